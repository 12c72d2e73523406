"""What policies of expected improvement believe: a Gaussian process over squashed results, and how they begin.

With larger better: y = -log((best - v) / s + 0.3), s = best - median of the results v so far. Halfway between the best
and 0 this is nearly linear; far below the best all results look alike, so that a few trainings that went wrong do not
set the scale of the rest, and near it differences of a hundredth of s still count. It is a change of units alone: which
result is better stays, and what is improved is the gap to a result slightly better than the best.

Kernels are fitted to all of the first 50 results, then to multiples of ten: with so few results a fit costs little
and an old one misleads. Results change all their y when the best or the median moves: the posterior is made anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr

from haltune._utils.arrays import Array
from haltune._utils.memo import Memo
from haltune.gp import Posterior, condition_on, fit
from haltune.log.decisions import Start
from haltune.log.events import Status
from haltune.log.fold import FinishedTrials
from haltune.log.history import History
from haltune.log.scores import plausible
from haltune.policies.costs.remaining import EARLY, LogCost
from haltune.policies.random import fresh

from .acquisition import expected_improvement
from .surrogate import hallucinate

_FLOOR = 0.3  # of s: results closer to the best than this are hardly told apart, noise neither
_DRAWN = 512  # configurations that a design chooses from
_MIDDLE = 0.5  # of every coordinate, that they are drawn in


@dataclass(frozen=True, eq=False)
class Squash:
    """From results v = sign * value, larger better, to y and back."""

    best: float
    spread: float  # s
    sign: float

    @classmethod
    def of(cls, results: Array, sign: float) -> Squash:
        """From finite results (n,), n at least 1."""
        best = float(results.max())
        spread = best - float(np.median(results))
        if not spread > 1e-12 * abs(best):  # half of the results are the best
            spread = float(best - results.mean())
        return cls(best, spread if spread > 1e-12 * abs(best) else max(abs(best), 1e-6), sign)

    def squashed(self, results: Array) -> Array:
        """y (n,); what is not finite, as of trials that failed, counts as the worst result that is."""
        finite = np.isfinite(results)
        worst = float(results[finite].min(initial=self.best))
        known = np.where(finite, results, worst)
        return np.asarray(-np.log((self.best - known) / self.spread + _FLOOR))

    def value(self, y: float) -> float:
        """In the metric's own units."""
        return self.sign * (self.best - self.spread * (float(np.exp(-y)) - _FLOOR))


@dataclass(frozen=True, eq=False)
class Improvement:
    """A posterior over y, pending trials counted as observed at their mean, and the units of y."""

    posterior: Posterior
    best: float  # the best y of a trained configuration
    squash: Squash

    def expected(self, points: Array) -> Array:
        """(m,) expected improvement of y at points (m, dim)."""
        return expected_improvement(*self.posterior.predict(points), self.best)

    def hopes(self, point: Array) -> dict[str, float]:
        """What is hoped of a point (1, dim), values in the metric's own units.

        predicted: the median; beats: the probability of a result better than the best; gain: by how much on average,
        nothing where it is not. The gap to the best, in units of s, is exp(-y) less what it is for the best: the gain
        is the price of a put on a log-normal, s (e^-b N(d) - e^(-m + sd^2 / 2) N(d - sd)), d = (m - b) / sd.
        """
        mean, variance = (float(found[0]) for found in self.posterior.predict(point))
        sd = max(variance, 1e-300) ** 0.5
        d = (mean - self.best) / sd
        worth = np.exp(-self.best) * ndtr(d) - np.exp(min(variance / 2.0 - mean, 700.0)) * ndtr(d - sd)
        return {
            "predicted": self.squash.value(mean), "beats": float(ndtr(d)),
            "gain": self.squash.spread * max(float(worth), 0.0),
        }  # fmt: skip

    def told(self, hopes: dict[str, float], metric: str) -> str:
        """The same in words."""
        best, beats = self.squash.value(self.best), hopes["beats"]
        chance = f"= {beats:.2f}" if beats >= 0.005 else "< 0.01"
        gain, predicted = hopes["gain"], hopes["predicted"]
        return f"P(beats {best:.4g}) {chance}, gains {gain:.2g} of {metric} on average; predicted {predicted:.4g}"


@dataclass(eq=False)
class ImprovementSurrogate:
    """Beliefs by their data."""

    refit_every: int  # results, beyond the first fifty
    _fits: Memo[Posterior] = field(default_factory=lambda: Memo(8))

    def improvement(self, history: History, finished: FinishedTrials) -> Improvement | None:
        """After `finished`; None while none of them gave a finite value."""
        goal, sign = history.problem.goal, history.problem.goal.sign
        ended = (history.trial(i) for i in finished)
        results = plausible([np.nan if t.status is Status.FAILED else t.target(goal) for t in ended])
        if not np.isfinite(results).any():
            return None
        squash = Squash.of(results[np.isfinite(results)], sign)
        x = history.points[list(finished)]
        y = squash.squashed(results)
        key = (history.seed, x.tobytes(), y.tobytes())
        posterior = self._fits(key, partial(self._fitted, history, x, y))
        pending = history.points[[t.id for t in history.pending]]
        return Improvement(hallucinate(posterior, pending), float(y.max()), squash)

    def _fitted(self, history: History, x: Array, y: Array) -> Posterior:
        learnt = len(y) if len(y) <= EARLY else max(EARLY, len(y) - len(y) % self.refit_every)
        posterior = fit(x[:learnt], y[:learnt], rng=history.rng("fit", learnt), learn_from=400)
        if learnt == len(y):
            return posterior
        return condition_on(posterior.kernel, x, y, noise=posterior.noise, constant=float(y.mean()))


def cheap_design(history: History, log_cost: LogCost | None, rng: Generator) -> Start:
    """In the middle half of every parameter, far from all that was tried, and cheap: the largest distance / cost.

    In the middle, because in a corner a training may take a hundred times as long, and what it tells of is the corner:
    costs and scores that change smoothly are learnt from the middle as well. Of 512 Sobol configurations; distances
    are in the cube, to the nearest trial, costs are what is expected after the trials so far.
    """
    space = history.problem.space
    drawn = space.encode_many(space.sample_up_to(_DRAWN, rng, "sobol"))
    configs = space.decode_many(0.5 + _MIDDLE * (drawn - 0.5)) if space.dim else []
    new = [c for c, key in zip(configs, space.keys(configs), strict=True) if key not in history.tried]
    worth = _worth(history, space.encode_many(new), log_cost) if len(history) and new else np.zeros(len(new))
    for i in np.argsort(-worth, kind="stable"):
        if space.contains(new[i]):
            return Start(new[i], reason=_begun(history, log_cost))
    return Start(fresh(history, rng), reason="first design, drawn at random")


def _worth(history: History, points: Array, log_cost: LogCost | None) -> Array:
    seen = history.points
    apart = np.sqrt(((points[:, None, :] - seen[None]) ** 2).sum(axis=2)).min(axis=1)
    return np.asarray(np.log(np.maximum(apart, 1e-12)) - (log_cost(points)[0] if log_cost else 0.0))


def _begun(history: History, log_cost: LogCost | None) -> str:
    if not len(history):
        return "first design, from the middle of the space"
    return f"first design: {'cheap and far' if log_cost else 'far'} from what was tried, in the middle of the space"
