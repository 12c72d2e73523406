"""Is a logged value new? Lightning's table of metrics is never cleared, so presence says nothing.

A value is new if its storage is not that of the value seen before the phase began.
That value is kept alive meanwhile, so that its address cannot be given to the new one.
The phase that first brings a new value of the goal's metric is its source from then on: a name
logged both in training and in validation is taken once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from haltune.errors import InvalidInput

from ..reporting.advice import scalar

VALIDATION = "validation"
TRAINING = "training"  # the whole epoch; validations within it belong to it


class FreshMetrics:
    """The new values of a table of metrics, `name` being the goal's.

    Used as `before(phase, logged)` ... `take(phase, logged)`, where `logged` maps names to scalar tensors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.source: str | None = None  # the phase it is taken from
        self._seen: dict[str, dict[str, Any]] = {}  # phase -> the table when it began

    def before(self, phase: str, logged: Mapping[str, Any]) -> None:
        """`phase` begins now."""
        self._seen[phase] = dict(logged)

    def take(self, phase: str, logged: Mapping[str, Any]) -> Any:
        """The value of the goal's metric that `phase` brought; None if it brought none or is not the source."""
        value = self.all(phase, logged).get(self.name)
        if value is None or self.source not in (None, phase):
            return None
        self.source = phase
        return value

    def all(self, phase: str, logged: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that `phase` brought."""
        seen = self._seen.get(phase, {})
        return {name: value for name, value in logged.items() if not _same(value, seen.get(name))}

    def forget(self) -> None:
        """A fit begins or is over: drop the values."""
        self._seen = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_seen": {}}


def _same(value: Any, seen: Any) -> bool:
    """True when both share their storage; a detached tensor shares that of its original."""
    if seen is None:
        return False
    return value is seen or bool(value.data_ptr() == seen.data_ptr())


def numbers(logged: Mapping[str, Any]) -> dict[str, float]:
    """What is a number; only the goals' metrics have to be."""
    found = {}
    for name, value in logged.items():
        with suppress(InvalidInput):
            found[name] = scalar(value, name)
    return found
