"""What halving has before it: the brackets that come, and how many trials may still begin."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from haltune.errors import StoreError
from haltune.log.events import Budgeted, Event, Started
from haltune.log.history import History
from haltune.log.validity import ADVICE

from .brackets import Bracket


class Plan:
    """The brackets of a schedule by their number; made as they are asked for, and remembered.

    source: brackets without end. ends: how many there are all the same; None: until the study's budget ends.
    once: how many there are when the study has no budget; None: as with one.
    """

    def __init__(self, source: Iterator[Bracket], ends: int | None = None, once: int | None = None) -> None:
        self._source, self.ends, self.once = source, ends, once
        self._made: list[Bracket] = []

    def __call__(self, number: int) -> Bracket:
        self._made.extend(islice(self._source, max(0, number + 1 - len(self._made))))
        return self._made[number]

    @staticmethod
    def number(event: Started) -> int:
        """The bracket of a trial, by its tag. Raises StoreError for what no schedule can have come to by then."""
        number = event.tags["bracket"]
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= event.trial:
            text = (
                f"trial {event.trial} has bracket {str(number)[:80]}, and each bracket before it has a trial"
            )
            raise StoreError(f"{text}: a whole number from 0 to {event.trial}. {ADVICE}")
        return number

    def has(self, number: int, history: History) -> bool:
        """Whether a bracket of this number comes yet."""
        unlimited = history.budget is None or history.budget.unlimited
        last = self.once if self.ends is None and unlimited else self.ends
        return last is None or number < last

    def __repr__(self) -> str:
        return "Plan()"


@dataclass(frozen=True, slots=True)
class Begun:
    """The trials that began, and the budget's limit on them: both are in the log."""

    trials: int = 0
    limit: float = math.inf

    def after(self, event: Event) -> Begun:
        """The same after `event`."""
        if isinstance(event, Started):
            return replace(self, trials=event.trial + 1)
        if isinstance(event, Budgeted) and event.plans:
            return replace(self, limit=event.budget.get("trials", math.inf))
        return self

    @property
    def no_more(self) -> bool:
        """True when nothing new may begin: rungs close with those that are there."""
        return self.trials >= self.limit
