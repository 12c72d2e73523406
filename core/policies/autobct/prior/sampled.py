"""Priors from sampled shapes: what score and cost usually look like, as beliefs about basis coefficients.

A score is unimodal: a bump of random height, place and width in each coordinate, the drops of the coordinates added.
A cost is exponential in each coordinate, increasing, decreasing, either or flat. Some thousand of each are drawn and
fitted; the mean and covariance of their coefficients are the prior (AutoBCT, section 4, propagates such shapes too).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput

from .bases import Basis, default_basis
from .beliefs import Belief, Prior, belief

CostTrend = Literal["any", "increasing", "decreasing", "flat"]
_SIGNS = {"any": (-1.0, 1.0), "increasing": (0.0, 1.0), "decreasing": (-1.0, 0.0), "flat": (0.0, 0.0)}
_DRAWS = 2000


def sampled(
    dim: int,
    cost: CostTrend | Sequence[CostTrend] = "any",
    basis: Basis | None = None,
    score_noise: float = 0.05,
    cost_noise: float = 0.1,
) -> Prior:
    """A prior for `dim` coordinates: unimodal scores, and costs of the given kind in each coordinate.

    Args:
        dim: coordinates of the space's unit cube, `space.dim`.
        cost: "any", "increasing", "decreasing" or "flat" along a coordinate; one of these for all, or one for each.
            Default: "any".
        basis: of functions that are added up. Default: None, the paper's.
        score_noise: deviation of one observation of the score, on top of which comes what the basis cannot bend to.
            Default: 0.05.
        cost_noise: the same of the cost. Default: 0.1.

    Raises:
        InvalidInput: for another kind of cost, or as many kinds as are not coordinates.

    Example:
        >>> from haltune.policies import AutoBCT
        >>> from haltune.policies.autobct import sampled
        >>> policy = AutoBCT(prior=sampled(2, cost=("increasing", "any")))
    """
    kinds = [cost] * dim if isinstance(cost, str) else list(cost)
    if len(kinds) != dim or any(kind not in _SIGNS for kind in kinds):
        raise InvalidInput(f"cost={cost!r}: one of {', '.join(_SIGNS)}, or one for each of {dim} coordinates")
    return _sampled(dim, tuple(kinds), basis or default_basis(dim), score_noise, cost_noise)


@lru_cache(maxsize=32)
def _sampled(dim: int, kinds: tuple[str, ...], basis: Basis, score_noise: float, cost_noise: float) -> Prior:
    rng = np.random.default_rng(0)  # a prior is a constant: the same for every study
    points = rng.uniform(size=(max(256, 64 * dim), dim))
    phi = basis(points)
    scores, costs = _scores(points, rng), _costs(points, kinds, rng)
    with one_thread():  # the same bits in every process
        (score, score_rest), (cost, cost_rest) = (coefficients(phi, values) for values in (scores, costs))
    return Prior(score, cost, basis, math.hypot(score_noise, score_rest), math.hypot(cost_noise, cost_rest))


def coefficients(phi: Array, values: Array) -> tuple[Belief, float]:
    """The coefficients that fit functions (n, k) at points with basis phi (n, J) best, and the deviation left.

    Of the coefficients the mean and covariance over the functions.
    """
    ridge = np.sqrt(1e-4) * np.eye(
        phi.shape[1]
    )  # powers of a coordinate resemble each other: bounded coefficients
    design = np.vstack([phi, ridge])
    fits = np.linalg.lstsq(design, np.vstack([values, np.zeros((len(ridge), values.shape[1]))]), rcond=None)[
        0
    ]
    left = float(np.sqrt(np.mean((values - phi @ fits) ** 2)))
    return belief(fits.mean(axis=1), np.atleast_2d(np.cov(fits))), left


def _scores(points: Array, rng: np.random.Generator) -> Array:
    """(n, draws) unimodal functions, mostly on [0, 1]."""
    dim = points.shape[1]
    top = rng.uniform(0.5, 1.1, _DRAWS)
    peak = rng.uniform(0.0, 1.0, (_DRAWS, dim))
    width = rng.uniform(0.25, 1.2, (_DRAWS, dim))
    depth = (
        rng.dirichlet(np.ones(dim + 1), _DRAWS)[:, :dim] * top[:, None]
    )  # all drops together: at most the top
    away = (points[:, None, :] - peak) / width
    return np.asarray(top - (depth * (1.0 - np.exp(-2.0 * away**2))).sum(axis=2))


def _costs(points: Array, kinds: Sequence[str], rng: np.random.Generator) -> Array:
    """(n, draws) exponential functions around 1/2."""
    signs = np.array([_SIGNS[kind] for kind in kinds]).reshape(-1, 2)
    slope = rng.uniform(2.0 * signs[:, 0], 2.0 * signs[:, 1], (_DRAWS, len(kinds)))
    level = 0.5 * np.exp(rng.normal(0.0, 0.4, _DRAWS))
    return np.asarray(level * np.exp((points - 0.5) @ slope.T))
