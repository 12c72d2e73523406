"""The errors haltune raises: each says what was wrong, what is allowed and what to do next."""

import sys
import warnings

from haltune.terminal import visible


class HaltuneError(Exception):
    """Base of every error that haltune raises on purpose."""

    def __str__(self) -> str:
        return visible(super().__str__())  # it may quote a name, a file or another program's words


class InvalidSpace(HaltuneError, ValueError):
    """A search space, or a configuration of it, is not well formed."""


class InvalidInput(HaltuneError, ValueError):
    """A value given to haltune is outside what is allowed."""


class UnknownArgument(InvalidInput, TypeError):
    """An argument that haltune does not take, answered by the one that is meant."""


class StudyMismatch(HaltuneError):
    """A study was reopened with another problem or policy than it was recorded with."""


class StoreError(HaltuneError):
    """The event log could not be read or written."""


class StoreAway(StoreError):
    """The server that keeps the log cannot be reached now; later it may be."""


class LeaseLost(HaltuneError):
    """This worker no longer holds the trial: its lease expired and the trial was offered to others."""


class RankLost(HaltuneError):
    """A rank of a distributed training waits for rank 0, which is gone or silent."""


class TrainingFailed(HaltuneError):
    """The training raised before any trial succeeded, or too many times in a row: most likely a bug in it."""


class NoRoom(HaltuneError, OSError):
    """A checkpoint does not fit: the disk or the quota is full."""


class NotSupported(HaltuneError):
    """Something haltune does not do (yet), named instead of done wrongly."""


class HaltuneWarning(UserWarning):
    """Something that works but that the user should know of; given once."""


def warn(text: str) -> None:
    """A HaltuneWarning that points at the caller's line outside haltune."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "haltune":
        level, frame = level + 1, frame.f_back
    warnings.warn(visible(text), HaltuneWarning, stacklevel=level)
