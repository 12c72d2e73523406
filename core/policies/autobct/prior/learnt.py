"""Priors learnt from earlier studies of the same space: the paper's meta-learning, with a check.

Each study s has coefficients a_s ~ N(mu, Sigma); its observations are phi^T a_s + noise. EM finds mu, Sigma and the
noise: unlike fitting each study first and averaging, it knows how little a short study says. A usual prior counts as
one study more, so that two studies do not make certain what they agree on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.history import History

from ..observations import Searched
from .beliefs import Belief, Prior, belief, variances
from .sampled import sampled
from .units import Kind, Ruler

Data = tuple[Array, Array, Array]  # basis functions (n, J), scores (n,), costs (n,)
_ROUNDS = 60  # of EM
_QUANTILE = 1.645  # of a standard normal: 90% lie within
_LEAST = 0.6  # share within them that a prior must reach


@dataclass(frozen=True)
class Check:
    """How a learnt prior predicts each study from the others, before it sees any of its trainings."""

    covered: float  # share of observations within their central 90%
    score: float  # mean log density of an observed score over that under the usual prior, nats
    cost: float  # the same of costs

    @property
    def predicts(self) -> bool:
        """Whether it is better than knowing nothing, and about as certain as it may be."""
        return min(self.score, self.cost) > 0.0 and self.covered >= _LEAST

    def __str__(self) -> str:
        said = "the prior predicts" if self.predicts else "do not use the prior: it predicts badly"
        return (
            f"{said}: each study from the others, {self.covered:.0%} of what was seen within its central 90%, scores "
            f"{self.score:+.2f} and costs {self.cost:+.2f} nats an observation better than the usual prior"
        )


def from_studies(
    studies: Sequence[History | Searched],
    worst: float | None = None,
    best: float | None = None,
    score_scale: Kind = "linear",
    usual: Prior | None = None,
) -> Prior:
    """A prior of studies whose spaces are equal, by their trials that were trained in full.

    Args:
        studies: two or more, opened, or their histories.
        worst: raw score that counts 0. Default: None, the goal's bound, or what the studies span.
        best: raw score that counts 1; given together with worst. Default: None, likewise.
        score_scale: "linear", or "log" for the logarithms of scores. Default: "linear".
        usual: what is believed without the studies. Default: None, `sampled`.

    Raises:
        InvalidInput: for studies of different spaces or goals, and for too few of them.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import AutoBCT, RandomSearch
        >>> from haltune.policies.autobct import from_studies
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=2)
        >>> earlier = [Study(problem, RandomSearch(trials=3), seed=seed) for seed in (0, 1)]
        >>> for study in earlier:
        ...     for trial in study:
        ...         with trial:
        ...             for epoch in trial.epochs():
        ...                 verdict = trial.report(0.9 / (1 + trial.config["lr"]), seconds=60.0)
        >>> Study(problem, AutoBCT(prior=from_studies(earlier)), seed=2).ask().id
        0
    """
    histories, ruler, usual = _prepared(studies, worst, best, score_scale, usual)
    with one_thread():
        learnt = _learn([_data(h, ruler, usual) for h in histories], usual)
    ends = (0.0, ruler.unit)
    space = histories[0].problem.space.to_json()
    return replace(learnt, score_map=(ruler.worst, ruler.best), cost_map=ends, space=space)


def check(
    studies: Sequence[History | Searched],
    worst: float | None = None,
    best: float | None = None,
    score_scale: Kind = "linear",
    usual: Prior | None = None,
) -> Check:
    """Each study predicted by the prior of the others. Options and errors as in `from_studies`."""
    histories, ruler, usual = _prepared(studies, worst, best, score_scale, usual)
    data = [_data(h, ruler, usual) for h in histories]
    inside: list[bool] = []
    gains: list[float] = []  # of the score, then of the cost, of each study
    for i, held in enumerate(data):
        prior = _learn(data[:i] + data[i + 1 :], usual)
        for belief_, base, noise, old, y in (
            (prior.score, usual.score, prior.score_noise, usual.score_noise, held[1]),
            (prior.cost, usual.cost, prior.cost_noise, usual.cost_noise, held[2]),
        ):
            mean, cov = belief_.at(held[0])
            deviation = np.sqrt(np.diag(cov) + variances(noise, held[0]))
            inside += list(np.abs(y - mean) <= _QUANTILE * deviation)
            gains.append(
                (_density(belief_, noise, held[0], y) - _density(base, old, held[0], y)) / max(1, len(y))
            )
    return Check(float(np.mean(inside)), float(np.mean(gains[::2])), float(np.mean(gains[1::2])))


def _prepared(
    studies: Sequence[History | Searched],
    worst: float | None,
    best: float | None,
    kind: Kind,
    usual: Prior | None,
) -> tuple[list[History], Ruler, Prior]:
    listed = list(studies) if isinstance(studies, Sequence) else [None]
    if any(not hasattr(s, "history") and not isinstance(s, History) for s in listed):
        raise InvalidInput(f"from_studies({studies!r}): a list of studies, opened: [Study(...), Study(...)]")
    histories = [s if isinstance(s, History) else s.history for s in studies]
    if len(histories) < 2:
        raise InvalidInput(f"a prior is learnt from at least two studies, not {len(histories)}")
    first = histories[0].problem
    if any(h.problem.space != first.space or h.problem.goal != first.goal for h in histories):
        raise InvalidInput("a prior is learnt from studies of one space and one goal: these differ")
    if any(not _done(h) for h in histories):
        raise InvalidInput("every study must have a trial that was trained in full, with a finite value")
    values = np.array([first.goal.sign * h.trial(i).target(first.goal) for h in histories for i in _done(h)])
    unit = 2.0 * float(np.median([_seconds(h, i) for h in histories for i in _done(h)]))
    ends = _ends(values, worst, best, first.goal.bounds, first.goal.sign)
    return histories, Ruler(*ends, kind, 0.0, max(unit, 1e-9)), usual or sampled(first.space.dim)


def _ends(
    values: Array, worst: float | None, best: float | None, bounds: tuple[float, float] | None, sign: float
) -> tuple[float, float]:
    if worst is not None and best is not None:
        return worst, best
    if bounds is not None:
        return bounds if sign > 0 else (bounds[1], bounds[0])
    low, high = np.quantile(sign * values, [0.1, 1.0])
    width = max(float(high - low), 1e-9 * max(abs(float(high)), 1.0))
    return sign * float(low), sign * float(low + 1.1 * width)


def _done(history: History) -> list[int]:
    found = history.with_status(Status.COMPLETED)
    return [t.id for t in found if math.isfinite(t.target(history.problem.goal))]


def _seconds(history: History, trial: int) -> float:
    return max(float(history.trial(trial).seconds.sum()), history.worker_seconds(trial))


def _data(history: History, ruler: Ruler, usual: Prior) -> Data:
    done, goal = _done(history), history.problem.goal
    phi = usual.on(np.array([history.points[i] for i in done]))
    h = np.array([ruler.h(goal.sign * history.trial(i).target(goal)) for i in done])
    t = np.array([ruler.t(_seconds(history, i)) for i in done])
    return phi, np.clip(h, -1.0, 4.0), np.clip(t, 0.0, 10.0)


def _learn(data: Sequence[Data], usual: Prior) -> Prior:
    score, score_noise = _em([(phi, h) for phi, h, _ in data], usual.score, usual.score_noise)
    cost, cost_noise = _em([(phi, t) for phi, _, t in data], usual.cost, usual.cost_noise)
    return replace(usual, score=score, cost=cost, score_noise=score_noise, cost_noise=cost_noise)


def _em(data: Sequence[tuple[Array, Array]], usual: Belief, noise: object) -> tuple[Belief, float]:
    """mu, Sigma and the deviation of the noise of greatest likelihood, the usual belief counting as one study."""
    phi0 = data[0][0]
    variance = float(np.mean(variances(noise, phi0)))  # type: ignore[arg-type]
    floor = 0.04 * variance
    mean, cov = usual.mean, usual.cov
    weight, count = len(data) + 1.0, sum(len(y) for _, y in data)
    for _ in range(_ROUNDS):
        means, squares, errors = [usual.mean], usual.cov.copy(), variance
        for phi, y in data:
            cross = phi @ cov
            solved = np.linalg.solve(cross @ phi.T + variance * np.eye(len(y)), np.c_[y - phi @ mean, cross])
            a, left = mean + cross.T @ solved[:, 0], cov - cross.T @ solved[:, 1:]
            means.append(a)
            squares += left
            errors += float(np.sum((y - phi @ a) ** 2) + np.einsum("ij,jk,ik->", phi, left, phi))
        mean = np.mean(means, axis=0)
        apart = np.array(means) - mean
        cov = (squares + apart.T @ apart) / weight
        cov = (cov + cov.T) / 2
        variance = max(errors / (count + 1.0), floor)
    return belief(mean, cov), float(np.sqrt(variance))


def _density(believed: Belief, noise: object, phi: Array, y: Array) -> float:
    """Log density of observations that come together."""
    mean, cov = believed.at(phi)
    cov = cov + np.diag(variances(noise, phi))  # type: ignore[arg-type]
    root = np.linalg.cholesky(cov)
    z = np.linalg.solve(root, y - mean)
    return float(-0.5 * z @ z - np.log(np.diag(root)).sum() - 0.5 * len(y) * np.log(2 * np.pi))
