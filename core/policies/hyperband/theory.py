"""Budgets that the theorems of Hyperband require on recorded curves, and those needed (Li et al. 2018, section 4).

Losses are a matrix (n, J): of n configurations after 1, 2, ..., J units of resource, smaller better. Notation: nu_i the
limit of configuration i, here its last loss, in ascending order nu_1 <= nu_2 <= ...; gamma(j) the least decreasing
function with |l_ij - nu_i| <= gamma(j) for all i, and gamma^-1(y) the first j with gamma(j) <= y; F the distribution
of limits, nu_* its lower end.

Theorem 1 is of figure 9 (infinite horizon, eta = 2), theorem 8 of figure 10 (finite horizon). Both say how large a
budget suffices for a configuration within epsilon of the best. `needed_budget` runs the figures on the curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from haltune._utils.arrays import Array, Indices
from haltune.errors import InvalidInput

from .brackets import Bracket, Rung, bracket_of, exact, fewest_halvings, pulls


def envelope(losses: Array) -> Array:
    """Return gamma (J,), equation (2): 0 at the last unit. Raises InvalidInput for losses that are not finite."""
    known = _checked(losses)
    away = np.abs(known - known[:, -1:]).max(axis=0)
    return np.asarray(np.maximum.accumulate(away[::-1])[::-1])


def units_until(gamma: Array, y: Array | float) -> Indices:
    """Return gamma^-1(y) for each y >= 0: the first unit, counted from 1, with gamma at most y."""
    return np.asarray(len(gamma) - np.searchsorted(gamma[::-1], y, side="right") + 1).clip(1, len(gamma))


def sufficient_budget(losses: Array, epsilon: float, *, eta: float | None = None) -> float:
    """Return z_SH: above this budget successive halving of all n configurations ends within epsilon of the best.

    Args:
        losses: (n, J), n of 2 or more; their gamma is used.
        epsilon: the distance to the best that is allowed, above 0.
        eta: None for theorem 1 (figure 9), else the rate of theorem 8 (figure 10), 2 or more, with R = J.

    Raises:
        InvalidInput: for fewer than two configurations, an epsilon that is not above 0, and losses that are not finite.
    """
    known, limits = _checked(losses), np.sort(np.asarray(losses, float)[:, -1])
    n, R = known.shape
    if n < 2 or not epsilon > 0.0:
        raise InvalidInput(f"epsilon={epsilon!r} must be above 0, and there must be 2 configurations or more; got {n}.")
    units = units_until(envelope(known), np.maximum(epsilon / 4.0, (limits[1:] - limits[0]) / 2.0))
    if eta is None:
        return float(2 * math.ceil(math.log2(n)) * (np.arange(2, n + 1) * (1 + units)).max())
    return float(eta * math.log(R, eta) * (n + max(R, int(units.sum()))))


def hardness(limits: Array, gamma: Array, n: int, delta: float, epsilon: float | None = None) -> float:
    """Return H(F, gamma, n, delta, epsilon) of lemma 2, with F the empirical distribution of limits (m,).

    With probability 1 - delta it bounds the sum over n configurations drawn from F of the units that each needs.
    epsilon: at least 4 (F^-1(p_n) - nu_*), p_n = log(2 / delta) / n. Default: None, this least one.

    Raises InvalidInput for a smaller epsilon, a delta outside (0, 1), and n < log(2 / delta).
    """
    away, least = _beyond_best(limits, n, delta)
    epsilon = least if epsilon is None else epsilon
    if epsilon < least * (1.0 - 1e-12):
        raise InvalidInput(f"epsilon={epsilon:g} is below 4 (F^-1(p_n) - nu_*) = {least:g}. Raise it, or raise n.")
    far = away > epsilon / 4.0
    beyond = float(units_until(gamma, away[far] / 4.0).sum()) / len(away)
    near = 4.0 / 3.0 * math.log(2.0 / delta) + 2.0 * n * float(np.mean(~far))
    return 2.0 * n * beyond + near * float(units_until(gamma, epsilon / 16.0))


def sampling_budget(
    limits: Array, gamma: Array, n: int, delta: float, epsilon: float | None = None, *, eta: float | None = None
) -> tuple[float, float]:
    """Return (budget, distance): with this budget the configuration that successive halving returns of n drawn ones is
    within `distance` of nu_*, with probability 1 - delta.

    Corollary 3 (eta None): B = 4 ceil(log2 n) H. Corollary 9: B = eta log_eta(R) (n + max(R, H)), R = len(gamma); its
    printed B has a bracket in the wrong place. distance = F^-1(p_n) - nu_* + epsilon; with the default epsilon five
    times F^-1(p_n) - nu_*. The other arguments are those of `hardness`.
    """
    _, least = _beyond_best(limits, n, delta)
    H = hardness(limits, gamma, n, delta, epsilon)
    distance = least / 4.0 + (least if epsilon is None else epsilon)
    if eta is None:
        return 4 * math.ceil(math.log2(n)) * H, distance
    return eta * math.log(len(gamma), eta) * (n + max(len(gamma), H)), distance


def needed_budget(losses: Array, epsilon: float, budgets: Sequence[int], *, eta: float | None = None) -> int | None:
    """Return the least of the budgets from which on successive halving of these curves ends within epsilon of the best.

    Figure 9 (eta None) needs n a power of 2. A configuration that is pulled beyond the last unit keeps its last loss.
    None: the largest budget does not suffice.
    """
    known = _checked(losses)
    best, found = float(known[:, -1].min()), None
    for budget in sorted(budgets, reverse=True):
        winner = survivor(known, budget, eta=eta)
        if winner is None or not known[winner, -1] - best <= epsilon:
            break
        found = budget
    return found


def survivor(losses: Array, budget: int, *, eta: float | None = None) -> int | None:
    """Return the configuration that successive halving returns; None if the budget suffices for no bracket."""
    n, R = losses.shape
    if eta is not None:
        halvings = fewest_halvings(budget, n, R, eta)
        bracket = None if halvings is None else bracket_of(n, halvings, exact(R), exact(eta))
    else:
        bracket = pulls(n, budget) if budget >= n * max(1, math.ceil(math.log2(n))) else None
    return None if bracket is None else _last(losses, bracket)


def _last(losses: Array, bracket: Bracket) -> int:
    alive = np.arange(len(losses))
    for rung, after in zip(bracket.rungs, (*bracket.rungs[1:], Rung(1, 0.0)), strict=True):
        seen = losses[alive, min(int(rung.resource), losses.shape[1]) - 1]
        alive = alive[np.argsort(seen, kind="stable")[: after.n]]
    return int(alive[0])


def _checked(losses: Array) -> Array:
    known = np.asarray(losses, dtype=np.float64)
    if known.ndim != 2 or not known.size or not np.isfinite(known).all():
        raise InvalidInput(
            f"losses of shape {known.shape} must be a finite matrix of n configurations by J units. Leave diverged "
            "trainings out, or bound their losses."
        )
    return known


def _beyond_best(limits: Array, n: int, delta: float) -> tuple[Array, float]:
    """Return the limits minus nu_*, ascending, and 4 (F^-1(p_n) - nu_*)."""
    if not 0.0 < delta < 1.0 or n < math.log(2.0 / delta):
        raise InvalidInput(f"n={n} must be at least log(2 / delta), and delta={delta!r} in (0, 1).")
    away = np.sort(np.asarray(limits, dtype=np.float64))
    away = away - away[0]
    rank = math.ceil(math.log(2.0 / delta) / n * len(away))  # F^-1(p): the first x with F(x) >= p
    return away, 4.0 * float(away[max(rank, 1) - 1])
