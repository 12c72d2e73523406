"""The random state of the process, which a state of a plain loop has next to it.

    starts        a trial or a fold starts: it draws as where it first started, before it has trained
    begins_loop   its loop starts: it draws as at the pause
    ends_epoch    the state that was saved in the epoch resumes with the random state of its end
    ends          the trial has ended: the process draws as before it

Each rank has its own random state, in a file of its own next to the state that rank 0 writes.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from haltune._utils.disk import force
from haltune._utils.own_generators import OwnGenerators
from haltune._utils.randomness import capture, imports, put, put_back, restore, state_from_json, with_torch
from haltune.errors import InvalidInput
from haltune.ranks import follows, this

from .session import Session

RANDOM = ".random"  # suffix of the random state, next to a checkpoint
_MOST = 100  # files of the program's own whose random state is kept in memory
_START, _START_OF_FOLD = ".start", ".start-of-fold"  # of the one with which the trial, or its fold, started


class Draws:
    """The random states of a trial."""

    # the attempt in which a plain loop has started, so that its states have the process's random state; 0: none has
    _looped = 0
    _drawn: tuple[Path, dict[str, Any]] | None = None  # of a state of this epoch: file and random state
    _place: dict[str, Any] | None = None  # on a rank above 0: the random state at the end of its last epoch
    _had: str | None = None  # the last checkpoint next to which such a rank has its random state
    _started_in: int | None = None  # the process in which the trial has started
    _restores = False  # the random state of a checkpoint was restored
    _put_back: Callable[[], object] | None = None  # a framework's own generators, as they were before
    left: dict[str, Any] | None = None  # the random state at the save from which a plain loop resumes, if it is known

    def __init__(self, session: Session) -> None:
        self._session = session
        self._generators = OwnGenerators()  # of a plain loop
        self._starts: dict[str, Any] = {}  # suffix -> random state with which the trial, or its present fold, started
        self._before: dict[str, Any] = {}  # random state of the process, before another one is restored

    def starts(self, checkpoint: str | None, fold: bool = False) -> None:
        """State that a trial starts in this process, or its next fold, and restore the random state of its first start.

        Before it trains, a program may split its data at random, or make features of a random net. Otherwise a resumed
        trial would train on rows that it held out before.

        checkpoint: from which it resumes; None: it does not.
        """
        self.left = None if checkpoint is None else self._session.seen.left.get(checkpoint)
        if checkpoint is not None and (file := random_of(checkpoint)).is_file():
            with suppress(OSError, InvalidInput):  # `begins_loop` raises what is wrong with the file
                self.left = state_from_json(file.read_bytes())
        suffix = _START_OF_FOLD if fold else _START
        if not fold:
            if self._started_in == os.getpid():  # a loop over the study has stated it before the block
                return
            self._started_in = os.getpid()
            self._before = {} if checkpoint is None else capture()
        if checkpoint is not None and _draws_alone() and (start := Path(f"{checkpoint}{suffix}")).is_file():
            self._draws_from(start)
        self._starts[suffix] = capture()

    def restores(self, put_back: Callable[[], object] | None = None) -> None:
        """State that a loop is about to restore a random state. put_back: see `LoopPort.restores_randomness`."""
        self._before, self._restores = capture() | self._before, True  # torch may be imported within the block
        self._put_back = self._put_back or put_back

    def _draws_from(self, path: Path) -> None:
        """Restore the random state in a file, if there is one."""
        imports(path)  # before the present state is noted
        self.restores()
        put_back(path)

    def ends(self) -> None:
        """State that a trial has ended. The next must not draw as the one that started where this one had paused."""
        if self._restores and _draws_alone():
            self._generators.ends()
            if self._put_back is not None:
                self._put_back()
            restore(self._before)
        self._before, self._restores, self._put_back = {}, False, None

    def begins_loop(self, attempt: int, checkpoint: str | None) -> tuple[list[str], list[str]]:
        """State that a plain loop starts. The first one of an attempt restores the random state of its checkpoint.

        Return the names of lists that the program had shuffled, and of iterators from which it reads on.
        """
        path = random_of(checkpoint) if checkpoint is not None and self._looped != attempt else None
        self._looped, self._had = attempt, checkpoint
        self._drawn = None  # a state from before the loop has its own random state
        if path is not None:
            self._draws_from(path)
        return self._generators.begins(path)

    def ends_epoch(self, over: bool = False) -> None:
        """State that a plain loop is at the end of an epoch: the state that it saved resumes with this random state.

        over: the trial ends. Otherwise rank 0 may have saved alone, and the other ranks note theirs.
        """
        self.renews()
        self._drawn = None
        if not over and follows() and self._session.log.problem.unit == "epoch":
            self._place = self._generators.capture()

    def saved_by_rank_0(self, checkpoint: str | None) -> None:
        """Write this rank's random state of the end of the epoch next to a state that rank 0 alone has saved."""
        place = self._place
        if place is None or checkpoint in (None, self._had) or not self._session.checkpoints.is_written(checkpoint):
            return
        self._had = checkpoint
        if not random_of(checkpoint).exists():
            put_beside(checkpoint, lambda: place)

    def write(self, temporary: Path, resumes: bool, plain: bool) -> None:
        """Write the random states next to a state, on rank 0. Raises OSError.

        resumes: the trial may. plain: in its block it has a plain loop, perhaps over `range`.
        """
        if self._looped or (plain and resumes):
            put(random_of(temporary), self._generators.capture())
        for suffix, start in self._starts.items() if resumes else ():
            put(Path(f"{temporary}{suffix}"), with_torch(start))

    def saved(self, path: str | None, own: str) -> None:
        """Note a state to resume from that was saved. path: of a file of haltune's. own: of the program's, or ""."""
        self._drawn = None
        if path is None and own:
            left = self._session.seen.left
            left[own] = capture()
            if len(left) > _MOST:
                del left[next(iter(left))]
        if self._looped and path is not None:
            drawn = self._generators.capture()
            self._drawn = random_of(path), drawn
            put_beside(path, lambda: drawn)

    def renews(self, of: bool = True) -> None:
        """Replace the random state of the saved state by the present one. of: that state is of the last report."""
        if not of:
            self._drawn = None
        if self._drawn is not None:
            path, then = self._drawn
            now, draft = self._generators.capture(), path.with_name(f"{path.name}~")
            self._drawn = path, now
            if now != then and path.exists():
                with suppress(OSError):
                    put(draft, now)
                    force(draft)
                    draft.replace(path)


def _draws_alone() -> bool:
    """Return whether no trials of other threads draw from the generators of this process, too, as far as is known."""
    return threading.current_thread() is threading.main_thread()


def random_of(checkpoint: str | Path, suffix: str = RANDOM) -> Path:
    """Return the file of this rank's random state next to a state."""
    return Path(this().own(f"{checkpoint}{suffix}"))


def put_beside(checkpoint: str, drawn: Callable[[], dict[str, Any]], suffix: str = RANDOM) -> None:
    """Write this rank's random state next to a state that rank 0 has written, which has that of rank 0."""
    if follows():
        with suppress(OSError):  # rank 0 may have removed the folder already
            put(random_of(checkpoint, suffix), drawn())


def ranks_of(checkpoint: str) -> int:
    """Return the number of ranks that have a random state next to a state of a plain loop."""
    return next(n for n in itertools.count() if not Path(f"{checkpoint}{RANDOM}{n or ''}").is_file())
