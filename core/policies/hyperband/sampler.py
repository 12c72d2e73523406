"""New configurations of a bracket: at random, from a design, or by a policy that sees a rung as the end of training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from haltune._utils.memo import Memo
from haltune.display import amount, plural
from haltune.errors import InvalidInput
from haltune.log.decisions import Start
from haltune.log.events import Ended, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.records import TrialRecord
from haltune.policies.random import fresh
from haltune.space import Space

from .brackets import Bracket

Design = Literal["random", "sobol", "lhs"]


@dataclass(frozen=True)
class Sampler:
    """Source of a bracket's configurations.

    source: "random"; "sobol" or "lhs", a design of the bracket's n points; or a policy that proposes. The policy sees
    the trials at the highest rung that enough of them have reached, as if they had ended there. Enough are 6, or the
    number of the space's coordinates plus 1 if that is more. Raises InvalidInput for anything else.
    """

    source: Design | Policy[Any] = "random"
    # the space is kept with its design, because its id is unique only while it exists
    _designs: Memo[tuple[Space, list[dict[str, Any]]]] = field(
        default_factory=lambda: Memo(8), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.source not in ("random", "sobol", "lhs") and not isinstance(self.source, Policy):
            raise InvalidInput(
                f"sampler={self.source!r} is not a sampler. Give 'random', 'sobol', 'lhs', or a policy such as GPUCB()."
            )

    def draw(self, history: History, number: int, bracket: Bracket, index: int, unit: str) -> Start:
        """Draw configuration `index` of bracket `number`, whose resource counts in `unit`.

        Its randomness depends on these two numbers alone, so that a search draws the same after a crash.
        """
        rng, space = history.rng("design", number, index), history.problem.space
        if self.source == "random":
            return Start(fresh(history, rng), reason="drawn at random")
        if not isinstance(self.source, str):
            return self._proposed(self.source, history, bracket, unit, rng)
        n, kind = bracket.rungs[0].n, str(self.source)

        def drawn() -> tuple[Space, list[dict[str, Any]]]:
            configs = space.sample_up_to(n, history.rng("design", number), design=kind)
            return space, [dict(c) for c in configs]

        _, design = self._designs((history.seed, number, id(space)), drawn)
        if index < len(design) and space.key(design[index]) not in history.tried:
            return Start(design[index], reason=f"point {index + 1} of a {kind} design of {n}")
        return Start(fresh(history, rng), reason=f"drawn at random: the {kind} design has no new point")

    def _proposed(self, policy: Policy[Any], history: History, bracket: Bracket, unit: str, rng: Generator) -> Start:
        seen = highest_rung(history, bracket, unit, max(6, history.problem.space.dim + 1))
        if seen is None:
            return Start(fresh(history, rng), reason="drawn at random: too few trials for a model yet")
        state = policy.start(history.problem)
        for ids, status in ((seen.ids, Status.COMPLETED), (seen.failed, Status.FAILED)):
            for id in ids:
                state = policy.fold(state, Ended(at=0.0, trial=id, attempt=1, status=status))
        move = policy.propose(state, seen, rng)
        if not isinstance(move, Start):
            return Start(fresh(history, rng), reason=f"drawn at random: the sampler returned {type(move).__name__}")
        reason = f"{move.reason}; from {plural(len(seen.ids), 'trial')} at {amount(seen.resource, unit)}"
        return Start(move.config, reason=reason, evidence=move.evidence)


class AtRung(History):
    """A history as if each trial that reached a rung had ended there. Trials before the rung are pending or failed.

    Spending, and all that does not concern single trials, is the history's own.
    """

    def __init__(self, history: History, resource: float, reports: dict[int, int]) -> None:
        vars(self).update(vars(history))
        self._history, self.resource, self._reports = history, resource, reports
        self.ids = sorted(reports)  # at the rung
        self.failed = [t.id for t in history.with_status(Status.FAILED) if t.id not in reports]

    def trial(self, id: int) -> TrialRecord:
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
        """The trials that may still reach the rung."""
        return [t for t in self._history.pending if t.id not in self._reports]


def highest_rung(history: History, bracket: Bracket, unit: str, enough: int) -> AtRung | None:
    """Return the view at the largest resource that `enough` trials have reached; None if there is none."""

    def reports_to(t: TrialRecord, resource: float) -> int:
        """Return the number of a trial's reports up to a resource; 0 if it has not had as much."""
        if unit not in ("epochs", "seconds"):
            return len(t.epochs) if t.status is Status.COMPLETED and (t.resource or 0.0) >= resource else 0
        had = t.epochs if unit == "epochs" else np.cumsum(t.seconds)
        return int(np.searchsorted(had, resource)) + 1 if len(had) and had[-1] >= resource else 0

    for rung in reversed(bracket.rungs):
        reports = {t.id: n for t in history.trials if (n := reports_to(t, rung.resource))}
        if len(reports) >= enough:
            return AtRung(history, rung.resource, reports)
    return None
