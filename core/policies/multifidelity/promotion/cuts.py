"""How few go on: as the options say where epochs, time or money are short, more where the trials alone are counted."""

from __future__ import annotations

from dataclasses import dataclass

from haltune.log.problem import Budget
from haltune.policies.hyperband.ladder import MOST_COMPARED, usual_min_trials

_TRIALS = 20  # of a budget of trials alone: half of each rung then go on


@dataclass(frozen=True)
class Cuts:
    """What the ladder is climbed by."""

    initial: int  # trials that are drawn at random
    eta: float  # one in so many of a rung goes on
    first: float  # the same of the rung where runs are first compared
    min_trials_per_rung: int | None = (
        None  # trials that are compared before any goes on; None: the usual number
    )
    most: int = MOST_COMPARED  # of these

    def within(self, budget: Budget | None, begun: int = 0) -> Cuts:
        """The same, or milder where a budget bounds trials and nothing else.

        Few trials are soon begun: a search that dropped all but one in eighteen of twenty would have learnt nothing by
        then, and trained two in full. Of n trials one in 2 (n / 20)^(1/2) goes on from the first rung, and one in
        2 (n / 20)^(1/4) from the others, a third are drawn at random and a fifth wait for each other. Of a budget that
        is smaller than what was begun, n is that: a search that is over does not continue for being given less.
        """
        if budget is None or budget.trials is None or budget != Budget(trials=budget.trials):
            return self
        n = max(budget.trials, begun)
        return Cuts(
            min(self.initial, max(2, n // 3)),
            min(self.eta, max(1.1, 2 * (n / _TRIALS) ** 0.25)),
            min(self.first, max(1.0, 2 * (n / _TRIALS) ** 0.5)),
            self.min_trials_per_rung,
            max(2, n // 5),
        )

    def waiting(self, horizon: int, epochs: int) -> int:
        """How many are compared, at so many epochs, before any goes on."""
        return self.min_trials_per_rung or min(self.most, usual_min_trials(horizon, epochs))
