"""Prediction of final values of configurations from every report of a study, for pages and answers.

The Gaussian process is that of the default search (`stage_process`), for every policy. It uses the epoch of
each value, so it does not mistake a trial that was stopped early for a bad configuration. A search only ranks; a page
states intervals. Therefore these things differ:

    targets          normal scores in which each trial counts with its share of the space. A search samples most near
                     its best trials, so among plain ranks the middle of the space would get the value of a good
                     configuration.
    hyperparameters  a few draws from the Gaussian at the mode of their posterior (Laplace), not the mode alone
    a shared error   of all new configurations, a Gaussian of variance  a^2 + 2 b^2 + c^2 + d^2 / 2:  a is constant; b
                     is the standard error of the mean target, doubled because the targets' own deviation is learnt
                     from the same trials; c is the difference that the shares make to that mean, an estimate of the
                     bias of the search's choice; d^2 is the variance of final values that the stages seen leave
                     unexplained, because trials that were stopped did not get there at random. The deviations
                     themselves are not widened: a map from scores to values is curved, and wider draws would shift
                     its mean.
    trials           for those seen, deviations times `_WIDER`, because stages and scores are learnt from them

Studies in `learn_from=` are not used: a page describes its own study.

These numbers were chosen on half of the recorded tasks: benchmarks/search/slices.py prints both halves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices
from haltune.gp.gp import factorise, solve_lower
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.log.scores import measured, plausible
from haltune.space import Space

from .curve_rows import CurveTable
from .scales import SIZE, NormalScores, bottom
from .stage_process import (
    LEARNT,
    VALUES_KEPT,
    Seen,
    StageKernel,
    StageProcess,
    Stages,
    descent,
    learn_kernel,
    seen_at_stages,
    spread,
    stage_epochs,
)

FEWEST_TRIALS = 5  # with a value
_SETTINGS = 4  # draws of the hyperparameters
_STEP = 1e-3  # of the hyperparameters, for the curvature of their density
_WIDER = 1.5
_SHARED = SIZE / 3  # a above
_POINTS = 1024  # of the space, by which the trials' shares are estimated
_FEATURES = 256  # cosines that approximate a draw of f
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)


@dataclass(frozen=True)
class FinalValues:
    """The model: draws of the metric after a full training. None from `of` where there is too little to learn from."""

    sign: float  # of the goal
    bounds: tuple[float, float]  # of the metric
    floor: float | None  # the value that worse ones were taken for; None where no trial's is worse
    scores: NormalScores
    error: float  # deviation of the error that new configurations share, of targets
    processes: tuple[StageProcess, ...]  # one for each draw of the hyperparameters
    runs: dict[int, int]  # trial -> its run in what the processes have seen

    @classmethod
    def of(cls, history: History) -> FinalValues | None:
        """From all reports; None for fewer than `FEWEST_TRIALS` with a value, or where nothing varies."""
        goal = history.problem.goal
        reported = [t for t in history.trials if len(t.epochs)]
        came = plausible([t.target(goal) for t in reported], reach=1e3)
        known = came[np.isfinite(came)]
        if len(known) < FEWEST_TRIALS or history.problem.space.dim == 0 or np.ptp(known) == 0:
            return None
        lowest = bottom(known)
        heights = np.maximum(np.where(np.isfinite(came), came, known.min()), lowest)
        low, high = goal.bounds or (-math.inf, math.inf)
        top = max(goal.sign * low, goal.sign * high)
        points = history.points[[t.id for t in reported]]
        shares = _shares_of_space(history.problem.space, points, history.rng("fit", 1))
        scores = NormalScores.of(heights, shares, top if goal.bounds else -math.inf)
        rows = _rows(history, reported, lowest)
        end = history.problem.max_epochs or math.ceil(rows.epoch.max())
        stages = Stages(stage_epochs(end), history.problem.space.dim)
        seen = seen_at_stages(history.points, rows, stages, scores.targets(rows.height))
        rng = history.rng("fit", 0)
        kept = spread(seen, VALUES_KEPT, None)
        mode = learn_kernel(stages, part := seen.at(spread(seen, LEARNT, rng)))
        kernels = [mode, *_about(mode, part, _SETTINGS - 1, rng)]
        reached = np.zeros(len(reported), dtype=np.intp)  # the stage of each trial; runs have the same numbers
        np.maximum.at(reached, seen.run, seen.stage)
        targets = scores.targets(heights)
        choice = shares @ targets - targets.mean()
        sampling = SIZE**2 * (shares @ shares)
        unexplained = SIZE**2 * (shares @ (1.0 - mode.correlations[reached] ** 2))
        return cls(
            goal.sign,
            (low, high),
            goal.sign * lowest if float(known.min()) < lowest else None,
            scores,
            math.sqrt(_SHARED**2 + 2.0 * sampling + choice**2 + 0.5 * unexplained),
            tuple(StageProcess.of(kernel, seen.at(kept)) for kernel in kernels),
            {reported[number].id: run for run, number in enumerate(np.unique(seen.run[kept]))},
        )

    def of_configurations(self, points: Array, draws: int, rng: Generator) -> Array:
        """(draws, m) the metric expected of a full training of new configurations (m, d): over what is a run's own."""
        found = []
        for process, count in zip(self.processes, _shares(draws, len(self.processes)), strict=True):
            kernel = process.kernel
            own = math.sqrt(kernel.own[-1, -1] + kernel.noise) * _NODES
            shift = self.error * rng.standard_normal((count, 1))
            targets = _drawn(process, points, None, count, rng) + shift
            found.append(self._metric(targets[..., None] + own) @ (_WEIGHTS / _WEIGHTS.sum()))
        return np.vstack(found)

    def of_trials(self, trials: list[int], points: Array, draws: int, rng: Generator) -> Array:
        """Return draws (draws, m) of the final values of these trials, of configurations (m, d), trained in full."""
        runs = np.array([self.runs.get(trial, -1) for trial in trials], dtype=np.intp)
        shares = _shares(draws, len(self.processes))
        every = zip(self.processes, shares, strict=True)
        return np.vstack([self._metric(_drawn(p, points, runs, count, rng)) for p, count in every])

    def _metric(self, targets: Array) -> Array:
        return np.clip(self.sign * self.scores.height(targets), *self.bounds)


def _shares_of_space(space: Space, points: Array, rng: Generator) -> Array:
    """(n,) how much of the space is nearest to each of points (n, d); equal ones divide theirs, and none has 0."""
    from scipy.spatial import KDTree  # slow to import

    different, which, count = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    sampled = space.encode_many(space.sample_up_to(_POINTS, rng, "sobol"))
    nearest = KDTree(different).query(sampled)[1]
    shares = ((np.bincount(nearest, minlength=len(different)) + 1.0) / count)[which.ravel()]
    return np.asarray(shares / shares.sum())


def _rows(history: History, trials: list[TrialRecord], lowest: float) -> CurveTable:
    """All reports, as heights. A trial on a part of the resource is as far as that part of a full training."""
    goal, horizon = history.problem.goal, history.problem.max_epochs
    most = max((t.resource or 0.0 for t in trials), default=0.0)
    epochs, heights = [], []
    for t in trials:
        share = t.resource / most if t.partial and t.resource and horizon else 1.0
        epochs.append(np.maximum(t.epochs * share, 1e-9))
        if horizon and t.status is Status.COMPLETED and not t.partial:  # it may have ended by itself before
            epochs[-1][-1] = horizon
        found = goal.sign * measured(t.counting(goal))
        heights.append(np.where(np.isfinite(found), np.maximum(found, lowest), np.nan))
    ids = np.repeat([t.id for t in trials], [len(t.epochs) for t in trials])
    return CurveTable(ids.astype(np.intp), np.concatenate(epochs), np.concatenate(heights))


def _about(mode: StageKernel, seen: Seen, count: int, rng: Generator) -> list[StageKernel]:
    """Kernels drawn from the Gaussian at the mode, of which no direction is wider than the prior's widest."""
    stages, theta = mode.stages, mode.theta
    steps = _STEP * np.eye(len(theta))
    bent = [descent(stages, seen, theta + s)[1] - descent(stages, seen, theta - s)[1] for s in steps]
    curvature = np.array(bent) / (2.0 * _STEP)
    if not np.isfinite(curvature).all():
        return []
    precision, axes = np.linalg.eigh((curvature + curvature.T) / 2.0)
    least = float(np.linalg.eigvalsh(stages.precision).min())
    low, high = np.array(stages.bounds).T
    away = rng.standard_normal((count, len(theta))) / np.sqrt(np.maximum(precision, least)) @ axes.T
    return [StageKernel(stages, t) for t in np.clip(theta + away, low, high)]


def _shares(draws: int, processes: int) -> list[int]:
    return [len(part) for part in np.array_split(range(draws), processes)]


def _drawn(process: StageProcess, points: Array, runs: Indices | None, count: int, rng: Generator) -> Array:
    """(count, m) draws of targets at the last stage, of runs that were seen or of new ones, without their own part.

    A draw from the prior, corrected by what was seen less the same draw there (Wilson et al. 2020, Matheron's rule):
    one solve for all points. f is a sum of cosines (Rahimi and Recht 2007) with the spectrum of Matern 5/2, a
    multivariate t of 5 degrees of freedom.
    """
    kernel, seen, stages = process.kernel, process.seen, len(process.kernel.stages.epochs)
    tails = np.sqrt(5.0 / rng.chisquare(5.0, _FEATURES))
    waves = rng.standard_normal((points.shape[1], _FEATURES)) / kernel.scales[:, None] * tails
    phases = rng.uniform(0.0, 2.0 * np.pi, _FEATURES)
    root = math.sqrt(2.0 / _FEATURES)

    def of_stages(covariance: Array, rows: int) -> Array:
        factor, _ = factorise(covariance, float(covariance.max()))
        return np.asarray(rng.standard_normal((count, rows, stages)) @ factor.T)

    weights, common = of_stages(kernel.shared, _FEATURES), of_stages(kernel.common, 1)
    own = of_stages(kernel.own, len(seen.points))
    f = np.einsum("rf,cfk->crk", root * np.cos(seen.points @ waves + phases), weights)
    prior = (f + own)[:, seen.run, seen.stage] + common[:, 0, seen.stage]
    prior += math.sqrt(kernel.noise) * rng.standard_normal(prior.shape)
    drawn = root * np.cos(points @ waves + phases) @ weights[:, :, -1].T + common[:, 0, -1]
    cross = kernel.across(seen, points)
    if runs is not None:
        cross = cross + (seen.run[:, None] == runs) * kernel.own[seen.stage, -1, None]
        unseen = math.sqrt(kernel.own[-1, -1]) * rng.standard_normal((count, len(runs)))
        drawn = drawn + np.where(runs >= 0, own[:, runs, -1], unseen).T
    off = solve_lower(process.factor, solve_lower(process.factor, (seen.value - prior).T), transposed=True)
    mean = cross.T @ process.weights
    wider = 1.0 if runs is None else _WIDER
    return np.asarray((mean[:, None] + wider * (drawn + cross.T @ off - mean[:, None])).T)
