"""Prediction of held-out studies by a learnt prior: each study from the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import multivariate_normal, norm

from haltune import Study
from haltune._utils.arrays import Array
from haltune.policies.autobct.prior import Belief, Noise, _data, _learn, _prepared, variances


def foretold(studies: Sequence[Study]) -> tuple[float, float, float]:
    """(share of what was seen within its central 90%, nats an observation better than usual: of scores, of costs)."""
    histories, ruler, usual = _prepared(studies, None, None, "linear", None)
    data = [_data(history, ruler, usual) for history in histories]
    inside: list[bool] = []
    scores, costs = [], []
    for i, (phi, h, t) in enumerate(data):
        prior = _learn(data[:i] + data[i + 1 :], usual)
        inside += [*_within(prior.score, prior.score_noise, phi, h), *_within(prior.cost, prior.cost_noise, phi, t)]
        usually = (_density(usual.score, usual.score_noise, phi, h), _density(usual.cost, usual.cost_noise, phi, t))
        scores.append((_density(prior.score, prior.score_noise, phi, h) - usually[0]) / len(h))
        costs.append((_density(prior.cost, prior.cost_noise, phi, t) - usually[1]) / len(t))
    return float(np.mean(inside)), float(np.mean(scores)), float(np.mean(costs))


def _normal(believed: Belief, noise: Noise, phi: Array) -> tuple[Array, Array]:
    mean, cov = believed.at(phi)
    return mean, cov + np.diag(variances(noise, phi))


def _within(believed: Belief, noise: Noise, phi: Array, y: Array) -> list[bool]:
    mean, cov = _normal(believed, noise, phi)
    return list(np.abs(y - mean) <= norm.ppf(0.95) * np.sqrt(np.diag(cov)))


def _density(believed: Belief, noise: Noise, phi: Array, y: Array) -> float:
    """Log density of observations that come together."""
    mean, cov = _normal(believed, noise, phi)
    return float(multivariate_normal(mean, cov).logpdf(y))
