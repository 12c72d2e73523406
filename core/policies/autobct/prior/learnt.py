"""Priors learnt from earlier studies of the same space: the paper's meta-learning.

Each study s has coefficients a_s ~ N(mu, Sigma); its observations are phi^T a_s + noise. EM finds mu, Sigma and the
noise: unlike fitting each study first and averaging, it knows how little a short study says. A usual prior counts as
one study more, so that two studies do not make certain what they agree on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.history import History

from ..observations import Searched
from .beliefs import Belief, Prior, belief, variances
from .sampled import sampled
from .units import Ruler, Transform

Data = tuple[Array, Array, Array]  # basis functions (n, J), scores (n,), costs (n,)
_ROUNDS = 60  # of EM


def from_studies(
    studies: Sequence[History | Searched],
    worst: float | None = None,
    best: float | None = None,
    score_scale: Transform = "linear",
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


def _prepared(
    studies: Sequence[History | Searched],
    worst: float | None,
    best: float | None,
    kind: Transform,
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
