"""Value maps: V_N for deeper N than can be computed on the fly, learnt once for all problems of a dimension.

    V_N(x) = V_2(x) + lambda(x) f(features(x)),   f a small multilayer perceptron, at least 0

V_2 is in closed form; f knows what the later trainings add. V shifts with the score and scales with score and cost
together, so features are differences from V_1 in units of lambda, the score's deviation: one map serves any gamma.
Maps are float32 arrays in .npz files, read without pickle, with a header that says what they hold.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Array32, Indices
from haltune._utils.words import one_line
from haltune.errors import InvalidInput

from .branches import Branches, variances_of
from .valuation import Effort, GridBelief, ahead, nested, nodes, q2

FORMAT = 1
_HEADER = ("format", "dim", "depth", "basis", "ratios", "states", "error", "worst")
_SIDE = {1: 9, 2: 5}  # controls a side that features are taken at
_BOUND = 8.0  # features beyond count as this: a certain state has no scale of its own
WITHIN = Effort(cost_nodes=3)
_MAP_EFFORT = Effort(score_nodes=9, cost_nodes=5)  # on top of a map


def grid(dim: int) -> Array:
    """(g, dim) the controls that a map of this dimension looks at. Raises InvalidInput when there are none."""
    if dim not in _SIDE:
        raise InvalidInput(f"value maps are for one or two coordinates, not {dim}: leave value_map out")
    axis = np.linspace(0.0, 1.0, _SIDE[dim])
    points = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    return np.asarray(points[nested(points)])


def scale(x: Branches) -> Array:
    """(s,) lambda: the largest deviation of an observation of the score."""
    return np.asarray(np.sqrt((variances_of(x.c) + x.noise).max(axis=1)))


def features(x: Branches) -> tuple[Array, Array]:
    """(s, z, w, k) shift- and scale-invariant features of states on the map's controls, and V_2 (s, z, w)."""
    unit, one, two = scale(x), x.one(), x.two(*nodes(WITHIN.cost_nodes))
    s, z, w = one.shape
    wide = [np.sqrt(variances_of(c)) for c in (x.c, x.d)]
    noise = np.broadcast_to(np.sqrt([x.noise[0], x.jitter[0]]), (s, 2))
    rows = [x.c[:, 0] / unit[:, None], x.d[:, 0] / unit[:, None]]
    shared = np.concatenate([*wide, noise, *rows], axis=1)  # (s, .)
    found = np.empty((s, z, w, 2 * len(x.m) + 1 + shared.shape[1]))
    parts = np.split(found, [len(x.m), 2 * len(x.m), 2 * len(x.m) + 1], axis=-1)
    parts[0][:] = np.moveaxis(x.m, 0, -1) - one[..., None]
    parts[1][:] = np.moveaxis(x.t, 0, -1)
    parts[2][:] = (two - one)[..., None]
    parts[3][:] = shared[:, None, None]
    found /= unit[:, None, None, None]
    return np.clip(found, -_BOUND, _BOUND, out=found), two


def turns(dim: int) -> Indices:
    """(r, k) the places of the features after each rotation or reflection of the cube, which change no value."""
    points = grid(dim)
    g, found = len(points), []
    for order in permutations(range(dim)):
        for flips in product((False, True), repeat=dim):
            turned = np.where(flips, 1.0 - points[:, order], points[:, order])
            to = np.abs(points - turned[:, None]).sum(axis=2).argmin(axis=1)
            alike = [to, g + to, [2 * g], 2 * g + 1 + to, 3 * g + 1 + to, [4 * g + 1, 4 * g + 2]]
            found.append(np.concatenate([*alike, 4 * g + 3 + to, 5 * g + 3 + to]))
    return np.array(found)


@dataclass(frozen=True, eq=False)
class ValueMap:
    """A map with its header and the layers of its perceptron."""

    header: Mapping[str, Any]
    layers: tuple[tuple[Array32, Array32], ...]  # weights (in, out) and biases (out,)

    @property
    def depth(self) -> int:
        """N: trainings that the values are of."""
        return int(self.header["depth"])

    def value(self, x: Branches) -> Array:
        """(s, z, w) V_N of states on `grid(dim)`."""
        inputs, two = features(x)
        more = perceptron(inputs.reshape(two.size, -1), self.layers).reshape(two.shape)
        return np.asarray(two + scale(x)[:, None, None] * np.maximum(more, 0.0))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the .npz file."""
        arrays = {
            f"{kind}{i}": layer[j] for i, layer in enumerate(self.layers) for j, kind in enumerate("wb")
        }
        np.savez(path, header=np.array(json.dumps(dict(self.header))), **arrays)  # type: ignore[arg-type]


def perceptron(inputs: Array, layers: tuple[tuple[Array32, Array32], ...]) -> Array:
    """(b,) the output for inputs (b, k); tanh between layers."""
    hidden = inputs.astype(np.float32)
    for weights, biases in layers[:-1]:
        hidden = np.tanh(hidden @ weights + biases)
    weights, biases = layers[-1]
    return np.asarray((hidden @ weights + biases)[:, 0], dtype=np.float64)


def load_map(path: str | os.PathLike[str]) -> ValueMap:
    """Read a map. Raises InvalidInput for a file that is none, or of another format."""
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
        header = json.loads(str(held.pop("header")))
        layers = tuple((held[f"w{i}"], held[f"b{i}"]) for i in range(len(held) // 2))
    except Exception as error:  # of whatever kind NumPy, the archive and its compression find fit
        raise InvalidInput(
            f"{os.fspath(path)} is no value map: {one_line(error)}. Build one with build_map"
        ) from error
    if (
        not isinstance(header, dict)
        or not all(map(header.__contains__, _HEADER))
        or header["format"] != FORMAT
    ):
        raise InvalidInput(
            f"{os.fspath(path)}: this version reads value maps of format {FORMAT} whose header says "
            f"{', '.join(_HEADER)}; build it again with build_map"
        )
    _check_layers(layers, header, path)
    return ValueMap(header, layers)


def _check_layers(layers: Any, header: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    dim, depth = header["dim"], header["depth"]
    fine = bool(layers) and type(dim) is type(depth) is int and dim in _SIDE and depth > 2
    size = 6 * len(grid(dim)) + 3 if fine else 0
    for weights, biases in layers:
        fine = fine and weights.dtype == biases.dtype == np.float32 and np.isfinite(weights).all()
        fine = fine and weights.ndim == 2 and weights.shape == (size, len(biases))
        size = len(biases)
    if not fine or size != 1:
        raise InvalidInput(
            f"{os.fspath(path)}: its layers do not fit its header; build it again with build_map"
        )


@lru_cache(maxsize=8)
def shipped(name: str) -> ValueMap:
    """A map that comes with the package, "1d" or "2d", or one at a path. Raises InvalidInput."""
    own = Path(__file__).parent / "maps" / f"{name}.npz"
    return load_map(own if own.exists() else name)


def mapped(x: GridBelief, points: Array, known: ValueMap, epsilon: float) -> Array:
    """(g,) Q of each control at `points` (g, dim): one exact step on top of a map, trusted but for epsilon.

    -inf where it was not computed: Q is taken at the map's controls and at those that V_2 likes best.
    """
    nearest = index_of(points, int(known.header["dim"]))

    def value(after: Branches) -> Array:
        return cautious(known.value(after.at(nearest)), epsilon)

    shallow = np.asarray(q2(x, effort=WITHIN)[:, 0])
    controls = np.union1d(nearest, np.argsort(-shallow, kind="stable")[:4])
    found = np.full(len(shallow), -np.inf)
    found[controls] = ahead(x, controls, value, _MAP_EFFORT)
    return found


def index_of(points: Array, dim: int) -> Indices:
    """(g,) for each control of the map the nearest of `points`."""
    away = np.linalg.norm(grid(dim)[:, None, :] - points, axis=2)
    return np.asarray(away.argmin(axis=1))


def check_dim(known: ValueMap, dim: int) -> None:
    """Raises InvalidInput when a map is of another dimension."""
    if known.header["dim"] != dim:
        raise InvalidInput(
            f"the value map is for {known.header['dim']} coordinates, this space has {dim}: leave value_map out, or "
            "build one with mapbuild.build_map"
        )


def cautious(values: Array, epsilon: float) -> Array:
    """V - epsilon |V|: less than a map says, for it may err. (1 - epsilon) V would be more where V < 0."""
    known = np.isfinite(values)  # -inf, not computed, stays: -inf - 0 * inf would be NaN
    return np.where(known, values - epsilon * np.abs(np.where(known, values, 0.0)), values)
