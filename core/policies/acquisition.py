"""Acquisition functions, and their maximum over the untried configurations of a mixed search space.

Notation: sigma = sqrt(variance), z = (mean - best) / sigma, phi and Phi the normal density and distribution. Larger is
better. A point is a configuration in the unit cube, (dim,). All points are snapped (decoded and encoded again) before
they are compared, so that each value belongs to a real configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from math import log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erfcx, ndtr

from haltune._utils.arrays import Array, Indices
from haltune.gp import Posterior
from haltune.log.decisions import Config
from haltune.space import Space
from haltune.space.cube import MOST_ROWS
from haltune.space.domains import bounding

Acquisition = Callable[[Array], tuple[Array, Array]]  # points (m, dim) -> values (m,) and gradients (m, dim)
_SMALLEST = 1e-30  # lower bound of a variance, so that z is finite at a point observed without noise
_STEPS = [sign * 2.0**-power for power in range(2, 13) for sign in (1, -1)]  # of a number in the cube
_ROUNDS = 6  # most rounds of climbing; each is an ascent and a comparison with all discrete neighbours
_FOLLOWED = 2  # climbs that continue after the first round
_START_DISTANCE = 0.1  # between the starts of climbs, so that they do not all end at the same maximum


class Score(NamedTuple):
    """An acquisition function's values and their derivatives with respect to posterior mean and variance, each (m,)."""

    value: Array
    by_mean: Array
    by_variance: Array


def ucb(mean: Array, variance: Array, beta: float) -> Score:
    """Return mean + sqrt(beta) sigma, the GP-UCB of Srinivas et al. (2010); beta >= 0."""
    deviation = np.sqrt(np.maximum(variance, _SMALLEST))
    root = sqrt(beta)
    return Score(mean + root * deviation, np.ones_like(mean), 0.5 * root / deviation)


def expected_improvement(mean: Array, variance: Array, best: Array | float) -> Array:
    """Return sigma (phi(z) + z Phi(z)), for arrays of any shapes that broadcast."""
    deviation = np.sqrt(np.maximum(variance, _SMALLEST))
    z = (mean - best) / deviation
    value = z * ndtr(z)
    z *= z
    z *= -0.5
    np.exp(z, out=z)
    z *= 0.3989422804014327  # 1 / sqrt(2 pi)
    value += z
    value *= deviation
    return np.asarray(np.maximum(value, 0.0, out=value))


def log_ei(mean: Array, variance: Array, best: float) -> Score:
    """Return log E[max(f - best, 0)], with a small relative error at every z (Ament et al. 2023).

    With h = phi(z) + z Phi(z): log EI = log sigma + log h, d log EI / d mean = Phi / (sigma h) and
    d log EI / d sigma = phi / (sigma h). Each of three ranges of z has its own formula.
    """
    variance = np.maximum(variance, _SMALLEST)
    deviation = np.sqrt(variance)
    z = (mean - best) / deviation
    upper = np.maximum(z, -1.0)
    density = np.exp(-0.5 * upper * upper) / sqrt(2 * pi)
    height = density + upper * ndtr(upper)
    middle = np.clip(z, -30.0, -1.0)
    mills = sqrt(pi / 2) * erfcx(-middle / sqrt(2))  # Phi / phi; neither of the two underflows
    lower = np.minimum(z, -30.0)
    # Far out 1 + z mills cancels down to z^-2, so the asymptotic series of Phi / phi gives the difference directly.
    inverse = lower**-2.0
    series = inverse * (
        1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse * (1 - 9 * inverse * (1 - 11 * inverse))))
    )
    quotient = np.where(z > -30.0, 1.0 + middle * mills, series)
    ratio = np.where(z > -30.0, mills, (series - 1.0) / lower)
    with_tail = -0.5 * z * z - 0.5 * log(2 * pi) + np.log(quotient)
    near = z > -1.0
    log_h = np.where(near, np.log(height), with_tail)
    by_z = np.where(near, ndtr(upper) / height, ratio / quotient)  # Phi / h
    by_deviation = np.where(near, density / height, 1.0 / quotient)  # phi / h
    return Score(np.log(deviation) + log_h, by_z / deviation, 0.5 * by_deviation / variance)


@dataclass(frozen=True)
class Surface:
    """An acquisition function over a posterior: it maps points of the search space to values and gradients.

    score: mean and variance -> Score, such as `lambda mean, variance: log_ei(mean, variance, best)`.
    at: further coordinates of the posterior, appended to every point, such as the epoch.
    log_cost: points (m, dim) -> log cost (m,) and its gradient (m, dim), which are subtracted.
    """

    posterior: Posterior
    score: Callable[[Array, Array], Score]
    at: tuple[float, ...] = ()
    log_cost: Acquisition | None = None

    def values(self, points: Array) -> Array:
        """Return the values (m,) at points (m, dim), in half the time of values and gradients."""
        mean, variance = self.posterior.predict(self._complete(points))
        value = self.score(mean, variance).value
        return value if self.log_cost is None else value - self.log_cost(points)[0]

    def __call__(self, points: Array, /) -> tuple[Array, Array]:
        mean, variance, mean_gradient, variance_gradient = self.posterior.predict_with_gradient(self._complete(points))
        value, by_mean, by_variance = self.score(mean, variance)
        gradient = by_mean[:, None] * mean_gradient + by_variance[:, None] * variance_gradient
        gradient = gradient[:, : points.shape[1]]
        if self.log_cost is None:
            return value, gradient
        cost, cost_gradient = self.log_cost(points)
        return value - cost, gradient - cost_gradient

    def _complete(self, points: Array) -> Array:
        return np.hstack([points, np.tile(np.array(self.at), (len(points), 1))]) if self.at else points


@dataclass(frozen=True)
class Proposal:
    """The configuration with the largest acquisition value found."""

    config: dict[str, Any]
    value: float  # of the acquisition function
    exhausted: bool  # True: no untried configuration was found, so this one was tried before


def maximise(
    acquisition: Acquisition,
    space: Space,
    rng: np.random.Generator,
    *,
    tried: Set[str] = frozenset(),
    around: Sequence[Config] = (),
    candidates: int = 1024,
) -> Proposal:
    """Return the best configuration found whose key is not in `tried`. Equal rng states give equal results.

    It evaluates `candidates` Sobol points (or the whole space if that is smaller), and the configurations `around`
    (such as the best so far) with their neighbours. Then it climbs from the best 4 of these that are apart: by L-BFGS-B
    along continuous coordinates, then by changing one discrete parameter at a time.
    In a space of more than 100,000 configurations, `exhausted` means that 1,024 further uniform draws were all tried.
    Raises InvalidSpace when sampling finds too few configurations.
    """
    pool = _Evaluated(acquisition, space)
    small = space.size is not None and space.size <= min(candidates, MOST_ROWS)
    pool.add(space.enumerate() if small else space.sample_up_to(candidates, rng, "sobol"))
    pool.add(around)
    pool.snap(_near(space, around, rng))
    _climb(pool, _apart(pool, 4))
    found = pool.best(tried)
    if found is None and not small:
        listed = space.size is not None and space.size <= MOST_ROWS
        configs = space.enumerate() if listed else space.sample_up_to(1024, rng)
        keys = space.keys(configs)
        pool.add([config for config, key in zip(configs, keys, strict=True) if key not in tried])
        found = pool.best(tried)
    chosen = next(int(i) for i in pool.order() if pool.allows(i)) if found is None else found
    return Proposal(pool.configs[chosen], float(pool.values[chosen]), exhausted=found is None)


class _Evaluated:
    """All configurations evaluated in one maximisation, with their points and values."""

    def __init__(self, acquisition: Acquisition, space: Space) -> None:
        self.acquisition = acquisition
        self.space = space
        self.configs: list[dict[str, Any]] = []
        self.points: Array = np.zeros((0, space.dim))
        self.values: Array = np.zeros(0)
        bounded = any(map(bounding, space.parameters.values()))
        self._free = not space.constraints and not bounded and space.whole is space

    def add(self, configs: Sequence[Config]) -> range:
        """Evaluate configurations; return their positions."""
        first = len(self.configs)
        if len(configs):
            points = self.space.encode_many(configs)
            self.configs += [dict(config) for config in configs]
            self.points = np.concatenate([self.points, points])
            self.values = np.concatenate([self.values, self._evaluate(points)])
        return range(first, len(self.configs))

    def snap(self, points: Array) -> range:
        """Evaluate the configurations that points (m, dim) decode to; return their positions."""
        return self.add(self.space.decode_many(points) if len(points) else [])

    def order(self) -> Indices:
        """Return positions by decreasing value; of equal values the earlier comes first."""
        return np.argsort(-self.values, kind="stable")

    def allows(self, position: int) -> bool:
        """Return True if the space contains the configuration there. It is slow, so only the best are checked."""
        return self._free or self.space.contains(self.configs[position])

    def best(self, tried: Set[str]) -> int | None:
        """Return the best allowed position whose key is not in `tried`, or None."""
        order = self.order()
        for some in np.split(order, range(4, len(order), 256)):  # most often one of the first is new and allowed
            keys = self.space.keys([self.configs[i] for i in some])
            for i, key in zip(some, keys, strict=True):
                if key not in tried and self.allows(i):
                    return int(i)
        return None

    def _evaluate(self, points: Array) -> Array:
        surface = self.acquisition
        distinct, inverse = np.unique(points, axis=0, return_inverse=True)  # moves often decode to the same point
        values = surface.values(distinct) if isinstance(surface, Surface) else surface(distinct)[0]
        return np.where(np.isnan(values), -np.inf, values)[inverse.ravel()]


def _apart(pool: _Evaluated, count: int) -> list[int]:
    """Return at most `count` of the best positions, each at a minimum distance in the cube from those before it."""
    left = np.full(len(pool.values), True)
    starts: list[int] = []
    while left.any() and len(starts) < count:
        starts.append(int(np.argmax(np.where(left, pool.values, -np.inf))))
        left &= np.linalg.norm(pool.points - pool.points[starts[-1]], axis=1) >= _START_DISTANCE
        left[starts[-1]] = False
    return starts


def _climb(pool: _Evaluated, tops: list[int]) -> None:
    """Climb from positions, in turn along continuous coordinates and over discrete neighbours.

    All positions climb for one round; the best few continue until they stop moving. A round evaluates all at once.
    """
    for _ in range(_ROUNDS):
        before = tops
        tops = _step(pool, tops, [_ascent(pool, top) for top in tops])
        tops = _step(pool, tops, [_moves(pool.space, pool.configs[top], pool.points[top]) for top in tops])
        moved = [top for top, old in zip(tops, before, strict=True) if top != old]
        tops = sorted(moved, key=lambda top: -float(pool.values[top]))[:_FOLLOWED]
        if not tops or pool.space.continuous.all():
            return


def _step(pool: _Evaluated, tops: list[int], points: list[Array]) -> list[int]:
    """Return for each position the best of its points that is allowed and better by more than rounding, or itself."""
    positions = iter(pool.snap(np.concatenate(points)))
    found = []
    for top, own in zip(tops, points, strict=True):
        others = [next(positions) for _ in own]
        least = float(pool.values[top]) + 1e-9 * (1.0 + abs(float(pool.values[top])))
        better = [other for other in others if pool.values[other] > least]
        better.sort(key=lambda other: -float(pool.values[other]))
        found.append(next((other for other in better if pool.allows(other)), top))
    return found


def _ascent(pool: _Evaluated, start: int) -> Array:
    """Return the end of an L-BFGS-B ascent from a position, and points on the way to it.

    The points on the way are used when a constraint forbids the end or it was tried. Only the continuous coordinates
    of active parameters move.
    """
    point, config = pool.points[start], pool.configs[start]
    active = np.zeros(pool.space.dim, dtype=np.bool_)
    for name, columns in pool.space.columns.items():
        active[columns] = name in config
    moving = active & pool.space.continuous
    if not moving.any():
        return np.zeros((0, len(point)))

    def placed(part: Array) -> Array:
        whole: Array = point.copy()
        whole[moving] = part
        return whole

    def descent(part: Array) -> tuple[float, Array]:
        values, gradients = pool.acquisition(placed(part)[None])
        return -float(values[0]), -gradients[0, moving]

    from scipy.optimize import minimize  # slow to import, and many processes never fit

    bounds, options = list(zip(*pool.space.box[:, moving].tolist(), strict=True)), {"maxiter": 40, "ftol": 1e-6}
    found = minimize(descent, point[moving], jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    way = placed(np.asarray(found.x)) - point
    return np.array([point + share * way for share in (1.0, 0.98, 0.9, 0.5)])


def _moves(space: Space, config: Config, point: Array) -> Array:
    """Return points (m, dim) that differ in one discrete parameter: numbers by steps, categories in any other value."""
    moves = []
    for name, columns in space.columns.items():
        if name not in config or space.continuous[columns].any():
            continue
        width = columns.stop - columns.start
        options = np.eye(width) if width > 1 else np.clip(point[columns] + _STEPS, 0.0, 1.0)
        for option in options:
            move = point.copy()
            move[columns] = option
            moves.append(move)
    return np.array(moves).reshape(len(moves), space.dim)


def _near(space: Space, around: Sequence[Config], rng: np.random.Generator) -> Array:
    """Return neighbours (m, dim) of configurations: discrete moves, and normal steps of deviation 0.03 and 0.15."""
    near = [np.zeros((0, space.dim))]
    for config, point in zip(around, space.encode_many(around) if around else (), strict=True):
        free = space.continuous | ((point > 0.0) & (point < 1.0))  # other coordinates at 0 or 1 are one-hot
        scales = np.repeat([0.03, 0.15], 8)[:, None]
        near.append(np.clip(point + scales * rng.standard_normal((16, space.dim)) * free, 0.0, 1.0))
        near.append(_moves(space, config, point))
    return np.concatenate(near)
