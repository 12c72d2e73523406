"""Costs and numbers of observations in theorem 3.1 and corollaries 3.1 and 3.2 of TruVaR (Bogunovic et al. 2016).

A prior is the matrix K (n, n) of covariances of f at the n points of D, with k(x, x) = 1. Notation: sigma^2 variance of
an observation, gamma_T maximum information gain (16), C*(xi, M) least cost after which every deviation in M is at most
xi (11).

Two constants of the paper do not hold. (41) bounds a sum of log(1 + sigma_j^2 / sigma^2) by gamma, but gamma has the
factor 1/2, so the sum is 2 gamma: for one point and sigma^2 = 10 an observation leaves a variance of 0.91, and (38)
allows 0.5. (57) leads to the same sum. So `sufficient_trials` puts 2 gamma where (17) prints gamma; `printed=True` is
(17) as printed.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence

import numpy as np

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

_MOST_STATES = 200_000  # multisets that `least_cost` looks at
_MOST_STEPS = 2_000  # of the multiplicative algorithm
_LONGEST = 1e15  # trials; beyond, a float is no whole number


def least_cost(
    covariance: Array, noise: Array | float, cost: Array | float, deviation: float, members: Sequence[int] | None = None
) -> tuple[float, tuple[int, ...]]:
    """Return C*(xi, M), equation (11), and a multiset of points that attains it.

    Multisets are visited in order of cost, so the first that suffices is the cheapest. Their number grows like
    n^|S| / |S|!: for a few points or a large deviation.

    Args:
        covariance: (n, n) of f.
        noise: variance of an observation, of each point (n,) or of all.
        cost: of an observation, of each point (n,) or of all; above 0.
        deviation: xi, the largest posterior deviation allowed within M.
        members: M, indices of points. Default: None, all.

    Raises:
        InvalidInput: for a deviation that is not above 0, and if 200,000 multisets do not suffice.
    """
    n = len(covariance)
    noises, costs = np.broadcast_to(np.asarray(noise, float), n), np.broadcast_to(np.asarray(cost, float), n)
    if not (deviation > 0.0 and (costs > 0.0).all()):
        raise InvalidInput(f"deviation={deviation!r} and every cost must be above 0.")
    among = np.arange(n) if members is None else np.asarray(members, dtype=int)
    number = itertools.count()  # orders equal costs, because matrices cannot be compared
    queue: list[tuple[float, int, tuple[int, ...], Array]] = [(0.0, next(number), (), np.asarray(covariance, float))]
    for _ in range(_MOST_STATES):
        spent, _, chosen, left = heapq.heappop(queue)
        if not len(among) or float(left.diagonal()[among].max()) <= deviation**2 * (1.0 + 1e-12):
            return spent, chosen
        for j in range(chosen[-1] if chosen else 0, n):  # in ascending order, so that no multiset comes twice
            column = left[:, j]
            after = left - np.outer(column, column) / (noises[j] + column[j]) if noises[j] + column[j] > 0.0 else left
            heapq.heappush(queue, (spent + float(costs[j]), next(number), (*chosen, j), after))
    raise InvalidInput(
        f"deviation={deviation:g} needs more than {_MOST_STATES:,} sets of observations to be compared. Raise it, or "
        "give fewer points."
    )


def information_gain(covariance: Array, noise: float, trials: float, tolerance: float = 1e-4) -> float:
    """Return an upper bound of gamma_T, equation (16), for T = `trials` observations of variance `noise`.

    It is the maximum over shares p of the points of 1/2 log det(I + T / sigma^2 K^(1/2) diag(p) K^(1/2)): gamma_T with
    observations that can be divided. By the equivalence theorem of optimal designs the value at any p falls short by at
    most max_j g_j - sum_j p_j g_j, g the gradient; this is added, and at most `tolerance` unless steps run out.
    """
    n, scale = len(covariance), trials / noise
    if not (noise > 0.0 and trials >= 0.0):
        raise InvalidInput(f"noise={noise!r} must be above 0, and trials={trials!r} at least 0.")
    shares = np.full(n, 1.0 / n)
    identity = np.eye(n)
    bound = math.inf
    for _ in range(_MOST_STEPS):
        root = np.sqrt(shares)
        inner = identity + scale * root[:, None] * covariance * root
        _, determinant = np.linalg.slogdet(inner)
        # d/dp_j of 1/2 log det(I + s K diag(p)) = s/2 [(I + s K diag(p))^-1 K]_jj
        half = root[:, None] * covariance
        middle = np.linalg.solve(inner, half)
        slopes = 0.5 * scale * (covariance.diagonal() - scale * np.einsum("ij,ij->j", half, middle))
        gap = float(slopes.max() - shares @ slopes)
        bound = min(bound, 0.5 * float(determinant) + max(gap, 0.0))
        if gap <= tolerance or scale == 0.0:
            break
        shares = shares * slopes
        shares /= shares.sum()
    return bound


def sufficient_trials(
    covariance: Array, noise: float, epsilon: float, *, delta: float = 0.1, slack: float = 0.1,
    domain: int | None = None, cost_ratio: float = 1.0, printed: bool = False,
) -> float:  # fmt: skip
    """Return the least T of corollary 3.1, equation (17): epsilon-accuracy with probability 1 - delta.

    eta_(1) = 1 and r = 1/2. Both sides are compared at whole T. The right side grows with T, so iterating
    T <- right side from 1 reaches the least solution.

    Args:
        covariance: (n, n) of f, with k(x, x) = 1.
        noise: sigma^2.
        epsilon: of definition 3.1, prior deviations.
        delta: probability that it fails. Default: 0.1.
        slack: the paper's delta-bar, above 0. Default: 0.1.
        domain: |D|; corollary 3.2 counts each point at each level. Default: None, n.
        cost_ratio: c_max / c_min, in the beta of corollary 3.2. Default: 1.
        printed: True: (17) as printed, with constants that do not hold (see the module). Default: False.

    Raises:
        InvalidInput: for numbers out of range, or if T exceeds 1e15.
    """
    if not (noise > 0.0 and epsilon > 0.0 and 0.0 < delta < 1.0 and slack > 0.0 and cost_ratio >= 1.0):
        raise InvalidInput("noise, epsilon and slack must be above 0, delta in (0, 1), cost_ratio at least 1.")
    size, T = domain or len(covariance), 1.0
    while T < _LONGEST:
        gain = information_gain(covariance, noise, T) * (1.0 if printed else 2.0)
        needed = math.ceil(_right_side(T, gain, noise, epsilon, delta, slack, size, cost_ratio))
        if needed <= T:
            return T
        T = float(needed)
    raise InvalidInput(f"epsilon={epsilon:g} needs more than {_LONGEST:g} observations. Raise it.")


def _right_side(
    T: float, gain: float, noise: float, epsilon: float, delta: float, slack: float, size: int, ratio: float
) -> float:
    """Return the right side of (17). gain: gamma_T; ratio: c_max / c_min."""
    wide = (1.0 + slack) ** 2
    beta = 2.0 * math.log(size * (T * ratio) ** 2 * math.pi**2 / (6.0 * delta))
    early = gain * beta * 6.0 * wide / (noise * math.log1p(1.0 / noise))
    late = 2.0 * noise * gain * beta * 96.0 * wide / epsilon**2
    stages = 2.0 * math.ceil(math.log2(32.0 * wide / (epsilon * math.sqrt(noise))))
    return (late + early + stages) * math.log(16.0 * wide * size * beta / (slack * epsilon) ** 2)


def sufficient_cost(
    covariance: Array, levels: Sequence[tuple[float, float]], epsilon: float, *, delta: float = 0.1, slack: float = 0.1,
    printed: bool = False,
) -> tuple[float, tuple[float, ...]]:  # fmt: skip
    """Return min_k c(k) T*(k) of corollary 3.2, and the T*(k) of all levels.

    levels: (noise variance, cost) of each. The other arguments are those of `sufficient_trials`.
    """
    costs = [cost for _, cost in levels]
    if not costs or min(costs) <= 0.0:
        raise InvalidInput("levels needs one (noise, cost) or more, with costs above 0.")
    ratio, domain = max(costs) / min(costs), len(covariance) * len(levels)
    found = tuple(
        sufficient_trials(
            covariance, noise, epsilon, delta=delta, slack=slack, domain=domain, cost_ratio=ratio, printed=printed
        )
        for noise, _ in levels
    )
    return min(T * cost for T, cost in zip(found, costs, strict=True)), found
