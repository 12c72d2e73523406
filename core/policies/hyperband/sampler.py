"""Where new configurations come from inside a schedule: at random, from a design, or from a policy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from haltune._utils.memo import Memo
from haltune._utils.words import amount, plural
from haltune.errors import InvalidInput
from haltune.log.decisions import Start
from haltune.log.events import Ended, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.policies.random import fresh
from haltune.space import Space

from .brackets import Bracket

Design = Literal["random", "sobol", "lhs"]
Drawn = tuple[
    Space, list[dict[str, Any]]
]  # a design, and the space it is of: while it is here, its id is its own
_DESIGNS = ("random", "sobol", "lhs")


@dataclass(frozen=True)
class Sampler:
    """The configurations of brackets.

    source: "random"; "sobol" or "lhs", a design of the bracket's n points; or a policy that proposes,
    which sees the trials at the highest rung that `enough` of them have reached, as if they had ended there.

    Raises InvalidInput for anything else.
    """

    source: Design | Policy[Any] = "random"
    enough: int | None = None  # trials; None: one more than the space has coordinates, at least 6
    _designs: Memo[Drawn] = field(default_factory=lambda: Memo(8), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.source not in _DESIGNS and not isinstance(self.source, Policy):
            raise InvalidInput(
                f"sampler={self.source!r}: one of {', '.join(_DESIGNS)}, or a policy such as GPUCB()"
            )

    def check(self, problem: Problem) -> None:
        """Raises InvalidInput when the problem does not suit the policy that proposes."""
        if not isinstance(self.source, str):
            self.source.start(problem)

    def draw(self, history: History, number: int, bracket: Bracket, index: int, unit: str) -> Start:
        """The configuration number `index` of bracket `number`, whose resource counts in `unit`.

        Its randomness depends on these two numbers, not on how many decisions came before: a search that
        was killed draws what it would have drawn.
        """
        rng = history.rng("design", number, index)
        if self.source == "random":
            return Start(fresh(history, rng), reason="drawn at random")
        if isinstance(self.source, str):
            return self._designed(history, number, bracket.rungs[0].n, index, rng)
        return self._proposed(self.source, history, bracket, unit, rng)

    def _designed(self, history: History, number: int, n: int, index: int, rng: Generator) -> Start:
        space, kind = history.problem.space, str(self.source)

        def drawn() -> Drawn:
            configs = space.sample_up_to(n, history.rng("design", number), design=kind)
            return space, [dict(c) for c in configs]

        _, design = self._designs((history.seed, number, id(space)), drawn)
        if index < len(design) and space.key(design[index]) not in history.tried:
            return Start(design[index], reason=f"point {index + 1} of a {self.source} design of {n}")
        return Start(
            fresh(history, rng), reason=f"drawn at random: the {self.source} design has no new point"
        )

    def _proposed(
        self, policy: Policy[Any], history: History, bracket: Bracket, unit: str, rng: Generator
    ) -> Start:
        seen = highest_rung(history, bracket, unit, self.enough or max(6, history.problem.space.dim + 1))
        if seen is None:
            return Start(fresh(history, rng), reason="drawn at random: too few trials for a model yet")
        state = policy.start(history.problem)
        for id in seen.ids:
            state = policy.fold(state, Ended(at=0.0, trial=id, attempt=1, status=Status.COMPLETED))
        for id in seen.failed:
            state = policy.fold(state, Ended(at=0.0, trial=id, attempt=1, status=Status.FAILED))
        move = policy.propose(state, seen, rng)
        if not isinstance(move, Start):
            return Start(
                fresh(history, rng), reason=f"drawn at random: the sampler says {type(move).__name__}"
            )
        reason = f"{move.reason}; from {plural(len(seen.ids), 'trial')} at {amount(seen.resource, unit)}"
        return Start(move.config, reason=reason, evidence=move.evidence)


class AtRung(History):
    """A history as it would be had every trial that reached a rung ended there; others, running, are pending.

    One that failed before it has failed.

    What is not told of single trials, such as what was spent, it has in common with the history that it is a view of.
    """

    def __init__(self, history: History, resource: float, reports: dict[int, int]) -> None:
        vars(self).update(vars(history))
        self._history, self.resource, self._reports = history, resource, reports

    @property
    def ids(self) -> list[int]:
        """The trials at the rung, in the order of their numbers."""
        return sorted(self._reports)

    @property
    def failed(self) -> list[int]:
        """The trials that failed before the rung."""
        return [t.id for t in self._history.with_status(Status.FAILED) if t.id not in self._reports]

    def trial(self, id: int) -> TrialRecord:
        """Cut at the rung."""
        t = self._history.trial(id)
        if t.status is Status.FAILED and id not in self._reports:
            return t
        keep = self._reports.get(id, len(t.epochs))
        return replace(
            t, epochs=t.epochs[:keep], values=t.values[:keep], scores=t.scores[:keep], seconds=t.seconds[:keep],
            metrics={name: column[:keep] for name, column in t.metrics.items()}, status=Status.COMPLETED,
        )  # fmt: skip

    @property
    def pending(self) -> list[TrialRecord]:
        """Those that have not come that far, but may."""
        return [t for t in self._history.pending if t.id not in self._reports]


def highest_rung(history: History, bracket: Bracket, unit: str, enough: int) -> AtRung | None:
    """The view at the largest resource that `enough` trials have reached; None when none is."""
    for rung in reversed(bracket.rungs):
        reports = {t.id: n for t in history.trials if (n := _reports_to(t, rung.resource, unit))}
        if len(reports) >= enough:
            return AtRung(history, rung.resource, reports)
    return None


def _reports_to(t: TrialRecord, resource: float, unit: str) -> int:
    """How many reports of a trial lead up to a resource; 0 when it has not had as much."""
    if unit not in ("epochs", "seconds"):
        return len(t.epochs) if t.status is Status.COMPLETED and (t.resource or 0.0) >= resource else 0
    had = t.epochs if unit == "epochs" else np.cumsum(t.seconds)
    return int(np.searchsorted(had, resource)) + 1 if len(had) and had[-1] >= resource else 0
