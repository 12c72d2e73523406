"""Build a value map for AutoBCT(value_map=), as the shipped ones were built: `haltune maps build`.

Fitted value iteration over a cloud of beliefs (AutoBCT, sections 3.2 and 3.4). The cloud consists of priors around the
usual ones, their posteriors after searches in worlds drawn from them, the same with covariances shrunk by k / K, and
certain states. V_3 of each state follows from the closed form of V_2, V_{n+1} from the map of V_n; the perceptron
learns (V_n - V_2) / lambda.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, permutations, product

import numpy as np

from haltune._utils.arrays import Array, Indices
from haltune.errors import InvalidInput

from .prior import Belief, Prior, default_basis, sampled
from .value import (
    WITHIN,
    Effort,
    GridBelief,
    Layers,
    ValueMap,
    ahead,
    chosen,
    features,
    grid,
    grid_belief,
    nodes,
    one_branch,
    perceptron,
    scale,
    values,
)

_HIDDEN = (64, 32)
_SHRUNK = (1.0, 1.0, 0.5, 0.25, 0.0)  # factors of covariances; 0 is a certain state
_TRAININGS = 4  # most trainings behind a state of the cloud
_EFFORT = {
    1: Effort(score_nodes=9, cost_nodes=5, outer=9, best=0),
    2: Effort(score_nodes=5, cost_nodes=3, outer=5, best=6),
}
_BATCH, _PASSES, _RATE = 256, 300, 3e-3
_GAMMA = 0.16


def turns(dim: int) -> Indices:
    """Return the positions (r, k) of the features after each rotation or reflection of the cube; values stay equal."""
    points = grid(dim)
    g, found = len(points), []
    for order in permutations(range(dim)):
        for flips in product((False, True), repeat=dim):
            turned = np.where(flips, 1.0 - points[:, order], points[:, order])
            to = np.abs(points - turned[:, None]).sum(axis=2).argmin(axis=1)
            alike = [to, g + to, [2 * g], 2 * g + 1 + to, 3 * g + 1 + to, [4 * g + 1, 4 * g + 2]]
            found.append(np.concatenate([*alike, 4 * g + 3 + to, 5 * g + 3 + to]))
    return np.array(found)


def build_map(
    dim: int, depth: int = 3, states: int = 20_000, seed: int = 0,
    progress: Callable[[float, float], None] = lambda done, left: None,
) -> ValueMap:  # fmt: skip
    """Build the map of V_depth in `dim` coordinates, 1 or 2; progress gets the share done and the seconds left.

    Raises InvalidInput for another dimension, a depth below 3, or fewer than 100 states.
    """
    if depth < 3 or states < 100:
        raise InvalidInput(f"build_map(depth={depth}, states={states}) is too small. Give 3 and 100, or more.")
    rng = np.random.default_rng(seed)
    cloud = list(_cloud(dim, states, rng))
    found: ValueMap | None = None
    total, done, started = states * (depth - 2), 0, time.perf_counter()
    for level in range(3, depth + 1):  # each from the map of the depth below
        rows, targets, units = [], [], []
        for x in cloud:
            here = one_branch(x)
            row, two = features(here)
            rows.append(row.ravel())
            units.append(scale(here).item())
            targets.append((deeper(x, dim, found) - two.item()) / units[-1])
            done += 1
            progress(done / total, (time.perf_counter() - started) * (total / done - 1.0))
        inputs, outputs = np.array(rows), np.maximum(np.array(targets), 0.0)
        held = len(inputs) // 10
        layers = _fit(inputs[held:], outputs[held:], rng, turns(dim))
        errors = np.abs(np.maximum(perceptron(inputs[:held], layers), 0.0) - outputs[:held])
        errors *= units[:held]
        error, worst = float(np.sqrt(np.mean(errors**2))), float(np.quantile(errors, 0.99))
        header = {
            "format": 1, "dim": dim, "depth": level, "basis": default_basis(dim).spec,
            "ratios": [0.05, 0.15, 0.1], "states": len(cloud), "error": error, "worst": worst,
        }  # fmt: skip
        found = ValueMap(header, layers)
    assert found is not None
    return found


def deeper(x: GridBelief, dim: int, below: ValueMap | None) -> float:
    """Return V with one training more than the map below has, or V_3 without a map, for one state."""
    shallow = values(x, 2, WITHIN)
    weighted = nodes(WITHIN.cost_nodes)
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
    """Draw a prior around a usual one, with its covariance or a diagonal one as wide as the paper's."""

    def around(belief: Belief) -> Belief:
        size = len(belief.mean)
        mean = belief.mean + rng.uniform(0, 1) * (belief.root @ rng.normal(size=size))
        if rng.uniform() < 0.5:
            return Belief(mean, np.diag(rng.uniform(0.3, 1.5, size)))
        return Belief(mean, belief.root * rng.uniform(0.5, 2.0))

    noise = float(rng.choice([0.05, 0.1, 0.15]))
    return replace(usual, score=around(usual.score), cost=around(usual.cost), score_noise=noise, cost_noise=0.1)


def _fit(inputs: Array, outputs: Array, rng: np.random.Generator, turned: Indices) -> Layers:
    """Fit a perceptron by least squares with Adam and a decreasing rate; each batch is turned at random (r, k)."""
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
    """Return the gradient of the mean squared error."""
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
