"""Maximising an acquisition function over a mixed search space, among configurations not tried yet.

Notation: a point is a configuration in the unit cube, (dim,). Every value compared is of a real
configuration: points that a search moves to are decoded and encoded again (snapped) before they count.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Indices, Mask
from haltune.errors import InvalidInput
from haltune.log.decisions import Config
from haltune.space import Space
from haltune.space.cube import MOST_ROWS
from haltune.space.domains import bounding

from .acquisition import Acquisition, Surface

_STEPS = [
    sign * 2.0**-power for power in range(2, 13) for sign in (1, -1)
]  # of a number in steps, in the cube
_ROUNDS = 6  # of climbing: each an ascent and a comparison with all discrete neighbours
_FOLLOWED = 2  # climbs that go on after the first round
_START_DISTANCE = 0.1  # distance between starts of climbs, so that they do not all climb the same hill


@dataclass(frozen=True)
class Proposal:
    """The configuration of largest acquisition found."""

    config: dict[str, Any]
    value: float  # of the acquisition function there
    exhausted: bool  # no configuration is left that was not tried, so this one was


def maximise(
    acquisition: Acquisition,
    space: Space,
    rng: np.random.Generator,
    *,
    tried: Set[str] = frozenset(),
    around: Sequence[Config] = (),
    extra_candidates: Sequence[Config] = (),
    candidates: int = 1024,
    starts: int = 4,
) -> Proposal:
    """The best configuration found whose key is not in `tried`; from the same rng state, the same one.

    Screens `candidates` Sobol points (all configurations, in a space with no more), `extra_candidates`, and
    neighbours of the configurations `around`, the best seen, say. From the best `starts` of these that lie
    apart it climbs: L-BFGS-B along continuous coordinates, then single moves of the others.
    `exhausted` is certain in spaces of up to 100,000 configurations; in others it says that 1,024 further
    uniform draws found nothing new either.
    Raises InvalidInput when candidates or starts < 1, and InvalidSpace when the space has too little to draw.
    """
    if candidates < 1 or starts < 1:
        raise InvalidInput(f"maximise needs 1 candidate and 1 start or more, not {candidates} and {starts}")
    pool = _Evaluated(acquisition, space)
    small = space.size is not None and space.size <= min(candidates, MOST_ROWS)
    pool.add(space.enumerate() if small else space.sample_up_to(candidates, rng, "sobol"))
    pool.add([*extra_candidates, *around])
    pool.snap(_near(space, around, rng))
    _climb(pool, _apart(pool, starts))
    found = pool.best(tried)
    if found is None and not small:
        found = _hunt(pool, tried, rng)
    chosen = next(int(i) for i in pool.order() if pool.allows(i)) if found is None else found
    return Proposal(pool.configs[chosen], float(pool.values[chosen]), exhausted=found is None)


class _Evaluated:
    """All configurations looked at in one maximisation, with their points and values; it only grows."""

    def __init__(self, acquisition: Acquisition, space: Space) -> None:
        self.acquisition = acquisition
        self.space = space
        self.configs: list[dict[str, Any]] = []
        self.points: Array = np.zeros((0, space.dim))
        self.values: Array = np.zeros(0)
        self._free = not space.constraints and not any(map(bounding, space.parameters.values()))

    def add(self, configs: Sequence[Config]) -> range:
        """Evaluates configurations; the positions they got."""
        first = len(self.configs)
        if len(configs):
            points = self.space.encode_many(configs)
            self.configs += [dict(config) for config in configs]
            self.points = np.concatenate([self.points, points])
            self.values = np.concatenate([self.values, self._evaluate(points)])
        return range(first, len(self.configs))

    def snap(self, points: Array) -> range:
        """Evaluates the configurations that points (m, dim) decode to; the positions they got."""
        return self.add(self.space.decode_many(points) if len(points) else [])

    def order(self) -> Indices:
        """Positions by falling value, earlier ones first among equals."""
        return np.argsort(-self.values, kind="stable")

    def allows(self, position: int) -> bool:
        """Whether the space contains what was decoded there; asked late and one by one, for that is slow."""
        return self._free or self.space.contains(self.configs[position])

    def best(self, tried: Set[str]) -> int | None:
        """The best position allowed whose key is not in tried."""
        order = self.order()
        for start in (0, *range(4, len(order), 256)):
            some = order[start : 4 if start == 0 else start + 256]
            keys = self.space.keys([self.configs[i] for i in some])
            for i, key in zip(some, keys, strict=True):
                if key not in tried and self.allows(i):
                    return int(i)
        return None

    def _evaluate(self, points: Array) -> Array:
        surface = self.acquisition
        distinct, inverse = np.unique(
            points, axis=0, return_inverse=True
        )  # discrete moves often decode to one
        values = surface.values(distinct) if isinstance(surface, Surface) else surface(distinct)[0]
        return np.where(np.isnan(values), -np.inf, values)[inverse.ravel()]


def _apart(pool: _Evaluated, count: int) -> list[int]:
    """The best positions that are some distance from each other in the cube, at most count."""
    left = np.full(len(pool.values), True)
    starts: list[int] = []
    while left.any() and len(starts) < count:
        starts.append(int(np.argmax(np.where(left, pool.values, -np.inf))))
        left &= np.linalg.norm(pool.points - pool.points[starts[-1]], axis=1) >= _START_DISTANCE
        left[starts[-1]] = False
    return starts


def _climb(pool: _Evaluated, tops: list[int]) -> None:
    """Uphill from positions, by turns along continuous coordinates and over discrete neighbours.

    All go one round, the best few until they stop moving. A round decodes and evaluates for all at once.
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
    """For each position the best of its own points, where one is allowed and better, else itself."""
    found = iter(pool.snap(np.concatenate(points)))
    return [_better(pool, top, [next(found) for _ in own]) for top, own in zip(tops, points, strict=True)]


def _better(pool: _Evaluated, current: int, others: list[int]) -> int:
    """The best of others that is allowed, if it is better than `current` by more than rounding, else that."""
    least = float(pool.values[current]) + 1e-9 * (1.0 + abs(float(pool.values[current])))
    better = [other for other in others if pool.values[other] > least]
    better.sort(key=lambda other: -float(pool.values[other]))
    return next((other for other in better if pool.allows(other)), current)


def _ascent(pool: _Evaluated, start: int) -> Array:
    """Where L-BFGS-B ends along the continuous coordinates of a position's active parameters, and on the way.

    The points on the way are for constraints, and for an end that was tried: what is left is close to it.
    """
    point = pool.points[start]
    moving = _active(pool.space, pool.configs[start]) & pool.space.continuous
    if not moving.any():
        return np.zeros((0, len(point)))

    def descent(part: Array) -> tuple[float, Array]:
        values, gradients = pool.acquisition(_placed(point, moving, part)[None])
        return -float(values[0]), -gradients[0, moving]

    bounds = [(0.0, 1.0)] * int(moving.sum())
    from scipy.optimize import minimize  # slow to import, and many a process fits nothing

    found = minimize(
        descent,
        point[moving],
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 40, "ftol": 1e-6},
    )
    way = _placed(point, moving, np.asarray(found.x)) - point
    return np.array([point + share * way for share in (1.0, 0.98, 0.9, 0.5)])


def _active(space: Space, config: Config) -> Mask:
    """The coordinates of active parameters (dim,); those of inactive ones are imputed and do not move."""
    active = np.zeros(space.dim, dtype=np.bool_)
    for name, columns in space.columns.items():
        active[columns] = name in config
    return active


def _placed(point: Array, moving: Mask, part: Array) -> Array:
    whole = point.copy()
    whole[moving] = part
    return whole


def _moves(space: Space, config: Config, point: Array) -> Array:
    """Points (m, dim) that differ in one discrete parameter: numbers by steps, categories by any other."""
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
    """Neighbours (m, dim) of configurations: discrete moves, and normal steps of deviation 0.03 and 0.15."""
    near = [np.zeros((0, space.dim))]
    for config, point in zip(around, space.encode_many(around) if around else (), strict=True):
        free = space.continuous | ((point > 0.0) & (point < 1.0))  # what is 0 or 1 besides is one-hot
        scales = np.repeat([0.03, 0.15], 8)[:, None]
        near.append(np.clip(point + scales * rng.standard_normal((16, space.dim)) * free, 0.0, 1.0))
        near.append(_moves(space, config, point))
    return np.concatenate(near)


def _hunt(pool: _Evaluated, tried: Set[str], rng: np.random.Generator) -> int | None:
    """The best of what is left anywhere: of all configurations where they can be listed, else of draws."""
    listed = pool.space.size is not None and pool.space.size <= MOST_ROWS
    configs = pool.space.enumerate() if listed else pool.space.sample_up_to(1024, rng)
    keys = pool.space.keys(configs)
    pool.add([config for config, key in zip(configs, keys, strict=True) if key not in tried])
    return pool.best(tried)
