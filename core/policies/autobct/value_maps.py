"""Value maps: V_N for deeper N than can be computed on the fly, learnt once for all problems of a dimension.

    V_N(x) = V_2(x) + lambda(x) f(features(x)),   f a small multilayer perceptron, at least 0

V_2 is in closed form; f knows what the later trainings add. V shifts with the score and scales with score and cost
together, so features are differences from V_1 in units of lambda, the score's deviation: one map serves any gamma.
Maps are float32 arrays in .npz files, read without pickle, with a header that says what they hold.

They are built by fitted value iteration over a cloud of beliefs (AutoBCT, sections 3.2 and 3.4). The cloud: priors
whose means and covariances are drawn around usual ones, what searches make of them in worlds drawn from them, the same
with their covariances shrunk by k / K, and truths, which are certain. V_3 of each state follows from the closed form of
V_2, V_{n+1} from the map of V_n; the perceptron learns (V_n - V_2) / lambda.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Array32, Indices
from haltune.display import one_line
from haltune.errors import InvalidInput

from .prior import Belief, Prior, default_basis, sampled
from .value import (
    Branches,
    Effort,
    GridBelief,
    ahead,
    chosen,
    grid_belief,
    nested,
    nodes,
    one_branch,
    q2,
    values,
    variances_of,
)

Layers = tuple[tuple[Array32, Array32], ...]  # weights (in, out) and biases (out,)
_FORMAT = 1
_HEADER = ("format", "dim", "depth", "basis", "ratios", "states", "error", "worst")
_SIDE = {1: 9, 2: 5}  # controls a side that features are taken at
_BOUND = 8.0  # features beyond count as this: a certain state has no scale of its own
_WITHIN = Effort(cost_nodes=3)
_MAP_EFFORT = Effort(score_nodes=9, cost_nodes=5)  # on top of a map


def grid(dim: int) -> Array:
    """(g, dim) the controls that a map of this dimension looks at. Raises InvalidInput when there are none."""
    if dim not in _SIDE:
        raise InvalidInput(f"value maps are for one or two coordinates, not {dim}: leave value_map out")
    axis = np.linspace(0.0, 1.0, _SIDE[dim])
    points = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    return np.asarray(points[nested(points)])


def _scale(x: Branches) -> Array:
    """(s,) lambda: the largest deviation of an observation of the score."""
    return np.asarray(np.sqrt((variances_of(x.c) + x.noise).max(axis=1)))


def features(x: Branches) -> tuple[Array, Array]:
    """(s, z, w, k) shift- and scale-invariant features of states on the map's controls, and V_2 (s, z, w)."""
    unit, one, two = _scale(x), x.one(), x.two(*nodes(_WITHIN.cost_nodes))
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
    layers: Layers

    @property
    def depth(self) -> int:
        """N: trainings that the values are of."""
        return int(self.header["depth"])

    def value(self, x: Branches) -> Array:
        """(s, z, w) V_N of states on `grid(dim)`."""
        inputs, two = features(x)
        more = _perceptron(inputs.reshape(two.size, -1), self.layers).reshape(two.shape)
        return np.asarray(two + _scale(x)[:, None, None] * np.maximum(more, 0.0))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the .npz file."""
        arrays = {
            f"{kind}{i}": layer[j] for i, layer in enumerate(self.layers) for j, kind in enumerate("wb")
        }
        np.savez(path, header=np.array(json.dumps(dict(self.header))), **arrays)  # type: ignore[arg-type]


def _perceptron(inputs: Array, layers: Layers) -> Array:
    """(b,) the output for inputs (b, k); tanh between layers."""
    hidden = inputs.astype(np.float32)
    for weights, biases in layers[:-1]:
        hidden = np.tanh(hidden @ weights + biases)
    weights, biases = layers[-1]
    return np.asarray((hidden @ weights + biases)[:, 0], dtype=np.float64)


def load_map(path: str | os.PathLike[str]) -> ValueMap:
    """Read a map. Raises InvalidInput for a file that is none, or of another format."""
    name = os.fspath(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
        header = json.loads(str(held.pop("header")))
        layers = tuple((held[f"w{i}"], held[f"b{i}"]) for i in range(len(held) // 2))
    except Exception as error:  # of whatever kind NumPy, the archive and its compression raise
        raise InvalidInput(f"{name} is no value map: {one_line(error)}. Build one with build_map") from error
    if not isinstance(header, dict) or not set(_HEADER) <= set(header) or header["format"] != _FORMAT:
        raise InvalidInput(
            f"{name}: this version reads value maps of format {_FORMAT} whose header says "
            f"{', '.join(_HEADER)}; build it again with build_map"
        )
    dim, depth = header["dim"], header["depth"]
    fine = bool(layers) and type(dim) is type(depth) is int and dim in _SIDE and depth > 2
    size = 6 * len(grid(dim)) + 3 if fine else 0
    for weights, biases in layers:
        fine = fine and weights.dtype == biases.dtype == np.float32 and np.isfinite(weights).all()
        fine = fine and weights.ndim == 2 and weights.shape == (size, len(biases))
        size = len(biases)
    if not fine or size != 1:
        raise InvalidInput(f"{name}: its layers do not fit its header; build it again with build_map")
    return ValueMap(header, layers)


@lru_cache(maxsize=8)
def shipped(name: str) -> ValueMap:
    """A map that comes with the package, "1d" or "2d", or one at a path. Raises InvalidInput."""
    own = Path(__file__).parent / "maps" / f"{name}.npz"
    return load_map(own if own.exists() else name)


def mapped(x: GridBelief, points: Array, known: ValueMap, epsilon: float) -> Array:
    """(g,) Q of each control at `points` (g, dim): one exact step on top of a map, trusted but for epsilon.

    -inf where it was not computed: Q is taken at the map's controls and at those that V_2 likes best.
    """
    away = np.linalg.norm(grid(int(known.header["dim"]))[:, None, :] - points, axis=2)
    nearest = np.asarray(away.argmin(axis=1))  # for each control of the map the nearest of `points`
    shallow = np.asarray(q2(x, _WITHIN)[:, 0])
    controls = np.union1d(nearest, np.argsort(-shallow, kind="stable")[:4])
    found = np.full(len(shallow), -np.inf)
    found[controls] = ahead(
        x, controls, lambda after: cautious(known.value(after.at(nearest)), epsilon), _MAP_EFFORT
    )
    return found


def cautious(values: Array, epsilon: float) -> Array:
    """V - epsilon |V|: less than a map says, because it may err. (1 - epsilon) V would be more where V < 0."""
    known = np.isfinite(values)  # -inf, not computed, stays: -inf - 0 * inf would be NaN
    return np.where(known, values - epsilon * np.abs(np.where(known, values, 0.0)), values)


# Building maps

_HIDDEN = (64, 32)
_SHRUNK = (1.0, 1.0, 0.5, 0.25, 0.0)  # of covariances; 0 is a truth
_TRAININGS = 4  # that a state of the cloud has seen, at most
_EFFORT = {
    1: Effort(score_nodes=9, cost_nodes=5, outer=9, best=0),
    2: Effort(score_nodes=5, cost_nodes=3, outer=5, best=6),
}
_BATCH, _PASSES, _RATE = 256, 300, 3e-3
_GAMMA = 0.16


def build_map(
    dim: int,
    depth: int = 3,
    states: int = 20_000,
    seed: int = 0,
    progress: Callable[[float, float], None] | None = None,
) -> ValueMap:
    """The map of V_depth in `dim` coordinates, 1 or 2; progress takes the share done and the seconds left.

    Raises InvalidInput for another dimension, a depth below 3, or too few states to learn from.
    """
    if depth < 3 or states < 100:
        raise InvalidInput(f"build_map(depth={depth}, states={states}): at least depth 3, and 100 states")
    rng = np.random.default_rng(seed)
    cloud = list(_cloud(dim, states, rng))
    found: ValueMap | None = None
    total, done, began = states * (depth - 2), 0, time.perf_counter()
    for level in range(3, depth + 1):  # each from the map of the depth below
        rows, targets, units = [], [], []
        for x in cloud:
            here = one_branch(x)
            row, two = features(here)
            rows.append(row.ravel())
            units.append(_scale(here).item())
            targets.append((deeper(x, dim, found) - two.item()) / units[-1])
            done += 1
            if progress is not None and (done % 100 == 0 or done == total):
                progress(done / total, (time.perf_counter() - began) * (total / done - 1.0))
        inputs, outputs = np.array(rows), np.maximum(np.array(targets), 0.0)
        held = len(inputs) // 10
        layers = _fit(inputs[held:], outputs[held:], rng, turns(dim))
        errors = np.abs(np.maximum(_perceptron(inputs[:held], layers), 0.0) - outputs[:held])
        errors *= units[:held]
        error, worst = float(np.sqrt(np.mean(errors**2))), float(np.quantile(errors, 0.99))
        header = {
            "format": _FORMAT, "dim": dim, "depth": level, "basis": default_basis(dim).spec,
            "ratios": [0.05, 0.15, 0.1], "states": len(cloud), "error": error, "worst": worst,
        }  # fmt: skip
        found = ValueMap(header, layers)
    assert found is not None
    return found


def deeper(x: GridBelief, dim: int, below: ValueMap | None) -> float:
    """V of one training more than the map below knows, or V_3 without one; one state on the map's controls."""
    shallow = values(x, 2, _WITHIN)
    weighted = nodes(_WITHIN.cost_nodes)
    value = (lambda after: after.two(*weighted)) if below is None else below.value
    found = ahead(x, chosen(shallow, _EFFORT[dim]), value, _EFFORT[dim])
    return float(max(found.max(), shallow.max()))


def _cloud(dim: int, states: int, rng: np.random.Generator) -> Iterator[GridBelief]:
    points = grid(dim)
    usual = [sampled(dim, kind) for kind in ("any", "increasing", "decreasing", "flat")]
    phi = usual[0].on(points)
    for _ in range(states):
        x = grid_belief(_drawn(usual[rng.integers(len(usual))], rng), phi, _GAMMA)
        for _ in range(int(rng.integers(_TRAININGS + 1))):
            z, w = rng.normal(size=(2, 1))
            x = x.after(int(rng.integers(len(points))), z, w)
        left = float(rng.choice(_SHRUNK))
        yield replace(x, c=left * x.c, d=left * x.d)


def _drawn(usual: Prior, rng: np.random.Generator) -> Prior:
    """A prior around a usual one, between its own covariance and a diagonal one as wide as the paper's."""

    def around(belief: Belief) -> Belief:
        size = len(belief.mean)
        mean = belief.mean + rng.uniform(0, 1) * (belief.root @ rng.normal(size=size))
        if rng.uniform() < 0.5:
            return Belief(mean, np.diag(rng.uniform(0.3, 1.5, size)))
        return Belief(mean, belief.root * rng.uniform(0.5, 2.0))

    noise = float(rng.choice([0.05, 0.1, 0.15]))
    return replace(
        usual, score=around(usual.score), cost=around(usual.cost), score_noise=noise, cost_noise=0.1
    )


def _fit(inputs: Array, outputs: Array, rng: np.random.Generator, turned: Indices) -> Layers:
    """A perceptron of least squares by Adam, the rate falling to nothing; each batch turned one of the ways (r, k)."""
    sizes = (inputs.shape[1], *_HIDDEN, 1)
    weights = [rng.normal(size=(a, b)) / np.sqrt(a) * (1.0 if b > 1 else 0.1) for a, b in pairwise(sizes)]
    parameters = [p for w in weights for p in (w, np.zeros(w.shape[1]))]
    first, second = ([np.zeros_like(p) for p in parameters] for _ in range(2))
    steps, step = _PASSES * max(1, len(inputs) // _BATCH), 0
    for _ in range(_PASSES):
        order = rng.permutation(len(inputs))
        for start in range(0, len(order) - len(order) % _BATCH or len(order), _BATCH):
            rows = order[start : start + _BATCH]
            step += 1
            rate = _RATE * max(0.0, 1.0 - step / (steps + 1))
            some = inputs[rows[:, None], turned[rng.integers(len(turned))]]
            gradient = _slopes(parameters, some, outputs[rows])
            for p, g, a, b in zip(parameters, gradient, first, second, strict=True):
                a += 0.1 * (g - a)
                b += 0.001 * (g * g - b)
                p -= rate * (a / (1 - 0.9**step)) / (np.sqrt(b / (1 - 0.999**step)) + 1e-8)
    single = [p.astype(np.float32) for p in parameters]
    return tuple(zip(single[::2], single[1::2], strict=True))


def _slopes(parameters: list[Array], inputs: Array, outputs: Array) -> list[Array]:
    """The gradient of the mean squared error."""
    hidden = [inputs]
    for w, b in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        hidden.append(np.tanh(hidden[-1] @ w + b))
    error = (hidden[-1] @ parameters[-2] + parameters[-1]) - outputs[:, None]
    back, found = 2.0 * error / len(outputs), []
    for i in range(len(parameters) - 2, -1, -2):
        h = hidden[i // 2]
        found += [back.sum(axis=0), h.T @ back]
        back = (back @ parameters[i].T) * (1.0 - h * h)
    return found[::-1]
