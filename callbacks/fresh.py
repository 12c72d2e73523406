"""Is a logged value new? Lightning's table of metrics is never cleared, so presence says nothing.

A value is new if its storage is not that of the value seen before the phase began.
That value is kept alive meanwhile, so that its address cannot be given to the new one.
The phase that first brings a new value is the metric's source from then on: a name
logged both in training and in validation is taken once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALIDATION = "validation"
TRAINING = "training"
AFTERWARDS = "afterwards"  # logged by the module's own on_train_epoch_end, after every callback's


class Fresh:
    """The new values of one metric.

    Used as `before(phase, logged)` ... `take(phase, logged)`, where `logged` maps names to scalar tensors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.source: str | None = None  # the phase it is taken from
        self._seen: dict[str, Any] = {}  # phase -> the value when it began

    def before(self, logged: Mapping[str, Any], *phases: str) -> None:
        """`phases` begin now."""
        for phase in phases:
            self._seen[phase] = logged.get(self.name)

    def take(self, phase: str, logged: Mapping[str, Any]) -> Any:
        """The value that `phase` brought; None if it brought none or is not the source."""
        value = logged.get(self.name)
        if value is None or self.source not in (None, phase) or _same(value, self._seen.get(phase)):
            return None
        self.source = phase
        return value

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
