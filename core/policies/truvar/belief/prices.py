"""What observations cost: known in advance, learnt, or 1; times the cost of the level."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.memo import Memo
from haltune.errors import InvalidInput
from haltune.log.fold import FinishedTrials
from haltune.log.history import History
from haltune.policies.costs.gp_models import fit_gp
from haltune.policies.costs.models import CostModel, KnownCost, within_reach
from haltune.policies.costs.observed import full_cost
from haltune.policies.costs.remaining import RemainingBudget

from .levels import Level
from .options import SitePolicy

_REFIT = 10  # finished trials between fits of the costs


@dataclass(frozen=True)
class Prices:
    """What an observation costs: 1, a function (config) or (config, previous), or learnt; times its level's cost."""

    remaining: RemainingBudget
    learnt: bool
    levels: tuple[Level, ...]
    _fits: Memo[CostModel] = field(default_factory=lambda: Memo(1), repr=False, compare=False)

    def of(self, history: History, finished: FinishedTrials, points: Array) -> Array:
        """(k, n) at points (n, dim) for each level."""
        factors = np.array([level.cost for level in self.levels])[:, None]
        model = self.model(history, finished)
        if model is None:
            return factors * np.ones(len(points))
        own = model.predict(points, self.remaining.standing(history)).median
        return factors * np.maximum(own, 1e-12)  # what is free is divided by, too

    def model(self, history: History, finished: FinishedTrials) -> CostModel | None:
        """The cost of a configuration at a level of cost 1; None: 1."""
        if self.remaining.cost is not None:
            return KnownCost(self.remaining.cost, history.problem.space)
        unit = self.remaining.unit(history)
        costs = [(id, c) for id in finished if (c := full_cost(history, id, unit)) > 0.0]
        if not self.learnt or not costs:
            return None
        costs = costs[: max(len(costs) - len(costs) % _REFIT, min(len(costs), _REFIT))]

        def fitted() -> CostModel:
            relative = within_reach(np.array([c / self._factor(history, id) for id, c in costs]))
            points = [history.points[id] for id, _ in costs]
            return fit_gp(points, relative, rng=history.rng("fit", len(costs), 2))

        return self._fits((history.seed, history.problem.space, tuple(costs)), fitted)

    def spent(self, history: History, ids: FinishedTrials, least: float) -> float:
        """What these trials cost, in units of the least cost an observation can have."""
        if self.remaining.cost is None:
            return float(sum(self._factor(history, id) for id in ids)) / least
        model = KnownCost(self.remaining.cost, history.problem.space)
        after = [None, *(history.trial(id).config for id in ids)]
        own = [
            model.of([history.trial(id).config], before)[0] for id, before in zip(ids, after, strict=False)
        ]
        return float(sum(c * self._factor(history, id) for id, c in zip(ids, own, strict=True))) / least

    def _factor(self, history: History, id: int) -> float:
        name = history.trial(id).tags.get("level")
        return next((level.cost for level in self.levels if level.name == name), 1.0)


def prices_of(name: str, policy: SitePolicy, levels: tuple[Level, ...]) -> Prices:
    """What observations cost. Raises InvalidInput for a cost that is neither a function nor learnt."""
    if policy.cost_model not in (None, "gp"):
        raise InvalidInput(f"{name}(cost_model={policy.cost_model!r}): 'gp' to learn costs, or None")
    return Prices(RemainingBudget(name, policy.cost), policy.cost_model == "gp", levels)
