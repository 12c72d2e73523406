"""AutoBCT's priors of score and cost, and their updates by observations.

H(u) = alpha^T phi(u), alpha ~ N(mean, root root^T): (2.2)-(2.8) of Cironis, Palczewski and Aivaliotis, "Automatic
model training under restrictive time constraints" (AutoBCT). A `Prior` holds one such belief about the score and one
about the cost, their noises and their basis phi. Build it directly, by a name from the paper (`preset`), from sampled
shapes (`sampled`), or from prior studies (`from_studies`). A `Ruler` maps raw scores and seconds to the prior's scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.problem import Goal

Noise = float | tuple[float, ...]  # deviation: constant, or coefficients of log deviation over the basis
Transform = Literal["linear", "log"]
CostTrend = Literal["any", "increasing", "decreasing", "flat"]
LOWEST, HIGHEST, LARGEST_COST = -1.0, 4.0, 10.0  # limits of h and t that are observed


# Hashable function of controls (g, p) to (g, J), with `spec`: JSON that rebuilds it, or the name of a user's function.
Basis = Any


@dataclass(frozen=True)
class Powers:
    """The paper's basis (appendix D): 1, then (u_i - 1/2)^k by coordinate, then products (u_i - 1/2)(u_j - 1/2)."""

    degree: int = 3
    products: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or self.degree < 0:
            raise InvalidInput(f"Powers(degree={self.degree!r}) is not allowed. Give a whole number of 0 or more.")

    @property
    def spec(self) -> dict[str, Any]:
        return {"basis": "powers", "degree": self.degree, "products": self.products}

    def __call__(self, points: Array) -> Array:
        v = points - 0.5
        powers = [v[:, i] ** k for i in range(v.shape[1]) for k in range(1, self.degree + 1)]
        pairs = combinations(range(v.shape[1]), 2) if self.products else ()
        products = [v[:, i] * v[:, j] for i, j in pairs]
        return np.stack([np.ones(len(v)), *powers, *products], axis=1)


def basis_from(spec: Mapping[str, Any]) -> Basis:
    """Return the basis with this spec. Raises InvalidInput for a user's function, of which a spec has only the name."""
    if spec.get("basis") != "powers":
        raise InvalidInput(f"The basis {spec.get('basis')!r} is a function. Build the prior in your program.")
    return Powers(**{name: value for name, value in spec.items() if name != "basis"})


def default_basis(dim: int) -> Basis:
    """Return the paper's basis: cubic in 1-D, quartic with products in 2-D; in more dimensions additive quadratics."""
    if dim <= 1:
        return Powers(3)
    return Powers(4, products=True) if dim == 2 else Powers(2)


@dataclass(frozen=True, eq=False)
class Belief:
    """Mean and covariance of the coefficients of one function."""

    mean: Array  # (J,)
    root: Array  # (J, J) any square root of the covariance

    @property
    def cov(self) -> Array:
        return self.root @ self.root.T

    def observe(self, phi: Array, y: float, variance: float) -> Belief:
        """Return the belief after y = alpha^T phi + noise, by the rank-one form of appendix A in O(J^2).

        It updates the root (Potter's form), because Sigma - Sigma phi phi^T Sigma / d loses positive eigenvalues to
        rounding after some thousand updates.
        """
        f = self.root.T @ phi  # (J,)
        d = float(f @ f) + variance
        gain = self.root @ f / d
        mean = self.mean + gain * (y - float(phi @ self.mean))
        return Belief(mean, self.root - np.outer(gain, f) / (1.0 + np.sqrt(variance / d)))

    def at(self, basis: Array) -> tuple[Array, Array]:
        """Return mean (g,) and covariance (g, g) of the function where the basis functions are `basis` (g, J)."""
        half = basis @ self.root
        return basis @ self.mean, half @ half.T


def belief(mean: ArrayLike, cov: ArrayLike) -> Belief:
    """Return a belief from mean (J,) and covariance, (J, J) or its diagonal (J,).

    Raises InvalidInput if shapes disagree or the covariance is not symmetric positive semidefinite.
    """
    m, c = np.asarray(mean, dtype=np.float64), np.asarray(cov, dtype=np.float64)
    if m.ndim != 1 or c.shape not in ((len(m),), (len(m), len(m))):
        raise InvalidInput(
            f"the belief has the shapes {m.shape} and {c.shape}. Give a mean of J numbers and a covariance (J, J) or "
            "its diagonal (J,)."
        )
    c = np.diag(c) if c.ndim == 1 else c
    values, vectors = np.linalg.eigh((c + c.T) / 2)
    size = max(float(np.abs(values).max(initial=0.0)), 1e-300)
    if not (np.isfinite(m).all() and np.isfinite(c).all()) or np.abs(c - c.T).max() > 1e-9 * size:
        raise InvalidInput("the belief is not possible. Give a symmetric covariance, and finite numbers.")
    if values.min() < -1e-9 * size:
        raise InvalidInput(f"the belief has a covariance with the eigenvalue {values.min():.3g}. None may be negative.")
    return Belief(m, vectors * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True, eq=False)
class Prior:
    """Prior of score and cost on the control cube [0, 1]^p, both roughly in [0, 1].

    Args:
        score: the belief about the J coefficients of the score.
        cost: the same for the cost.
        basis: J functions of a control, such as `sampled(dim).basis`.
        score_noise: deviation of one observation: a number, or J numbers c with the deviation exp(c^T phi(u)).
            Default: 0.15.
        cost_noise: the same for the cost. Default: 0.1.
        score_map: the raw (score at 0, score at 1) of the prior. Default: None, any.
        cost_map: the same in seconds. Default: None, any.
        space: the only space that the prior is for, as JSON. Default: None, any of p coordinates.

    Raises:
        InvalidInput: if a noise is not positive, or has not J coefficients.

    Example:
        >>> from haltune.policies.autobct import Prior, sampled
        >>> usual = sampled(1)
        >>> Prior(usual.score, usual.cost, usual.basis, score_noise=0.02).score_noise
        0.02
    """

    score: Belief
    cost: Belief
    basis: Basis
    score_noise: Noise = 0.15
    cost_noise: Noise = 0.1
    score_map: tuple[float, float] | None = None
    cost_map: tuple[float, float] | None = None
    space: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("score", "cost"):
            noise = getattr(self, f"{name}_noise")
            size = len(getattr(self, name).mean)
            given = np.atleast_1d(np.asarray(noise, dtype=np.float64))
            fine = np.isfinite(given).all() and (given[0] > 0 if np.ndim(noise) == 0 else len(given) == size)
            if not fine:
                raise InvalidInput(
                    f"{name}_noise={noise!r} is not a noise. Give a positive deviation, or {size} coefficients of its "
                    "log over the basis."
                )
            if np.ndim(noise):
                object.__setattr__(self, f"{name}_noise", tuple(float(c) for c in given))

    def on(self, points: Array) -> Array:
        """Return the basis functions (g, J) at controls (g, p). Raises InvalidInput if they are not J."""
        phi: Array = self.basis(points)
        if phi.shape != (len(points), len(self.score.mean)) or len(self.cost.mean) != phi.shape[1]:
            raise InvalidInput(
                f"The prior has {len(self.score.mean)} and {len(self.cost.mean)} coefficients, but its basis has "
                f"{phi.shape[-1]} functions on {points.shape[1]} coordinates. Give a prior for this space."
            )
        return phi

    def observe(self, phi: Array, h: float | None, t: float | None, extra: float = 0.0) -> Prior:
        """Return the posterior after a training at phi (J,) with score h and cost t; either may be missing.

        extra: variance of the score in addition to the noise, as for a training that was stopped.
        """
        score, cost = self.score, self.cost
        if h is not None:
            score = score.observe(phi, h, float(variances(self.score_noise, phi[None])[0]) + extra)
        if t is not None:
            cost = cost.observe(phi, t, float(variances(self.cost_noise, phi[None])[0]))
        return replace(self, score=score, cost=cost)

    def to_json(self) -> dict[str, Any]:
        score, cost = self.score, self.cost
        return {
            "score_mean": score.mean.tolist(), "score_root": score.root.tolist(),
            "cost_mean": cost.mean.tolist(), "cost_root": cost.root.tolist(), "basis": self.basis.spec,
            "score_noise": self.score_noise, "cost_noise": self.cost_noise,
            "score_map": self.score_map, "cost_map": self.cost_map, "space": self.space,
        }  # fmt: skip


def variances(noise: Noise, phi: Array) -> Array:
    """Return the variance of an observation (g,) at controls with basis functions phi (g, J)."""
    if isinstance(noise, tuple):
        return np.asarray(np.exp(2.0 * (phi @ np.array(noise))))
    return np.full(len(phi), float(noise) ** 2)


def prior_from_json(data: Mapping[str, Any]) -> Prior:
    """Invert `Prior.to_json`, bit for bit. Raises InvalidInput if a part is missing."""
    needed = ("score_mean", "score_root", "cost_mean", "cost_root", "basis")
    if lacking := [name for name in needed if name not in data]:
        raise InvalidInput(f"The JSON of a prior has no {', '.join(lacking)}. Give what Prior.to_json() returns.")
    score, cost = (Belief(np.array(data[f"{name}_mean"]), np.array(data[f"{name}_root"])) for name in ("score", "cost"))
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k not in needed}
    return Prior(score, cost, basis_from(data["basis"]), **rest)


# The priors of the paper's eight examples, appendix D.1 to D.8. In D.2 and D.3 times are divided by 7.5, as in (4.22)
# and in the tables (the appendix prints 1.5). D.8 has the maps of D.7, the same problem in one coordinate: with them
# h = 0.97 is a score of 0.73, and a cost of 2.868 is 62 minutes, as in table 12 (the appendix prints those of D.4: 0.79
# and 21.5). Costs are in seconds: the paper's minutes times 60. In D.4 and D.8 the means are printed as coefficients of
# powers of u - 0.5 and as polynomials in u. They are polynomials in u: only so do the expected scores and V of table 6
# follow. The covariances are those of the coefficients.

_ONES = np.ones(4)
_WIDE = np.array([0.64, 4.0, 4.0, 4.0])
_IDC = (0.45, 0.8), (0.0, 7.5)
_FRAUD_MAPS = (0.0, 0.75), (5.0, 25.0)
_FRAUD = np.diag([4.0, 0.6, 0.62, 0.65, 0.70, 0.6, 0.62, 0.65, 0.70, 0.6])
_FRAUD[0, 1:] = _FRAUD[1:, 0] = -0.1
_QUARTIC = np.array([0.6] * 8 + [0.001, 0.6])

# score mean and covariance, cost mean and covariance, score noise, raw score and cost (s or min) at 0 and 1
_LINES = {
    "D.1": ((0.4, 0.1, -0.2, 0.1), _ONES, (1, 1, 2, 2), _WIDE, 0.05, (0.5, 1.0), (0.0, 0.6 / 60)),
    "D.2": ((0.4, -0.1, -0.2, -0.1), _ONES, (1, -1, 2, -2), _WIDE, 0.15, *_IDC),
    "D.3": ((0.4, -0.1, -0.8, -0.1), _ONES, (0.48, 0, 0, 0), np.array([0.64, 0, 0, 0]), 0.15, *_IDC),
    "D.4": ((0.4, 0.3, -0.4, 0, 0, 0.2, -0.4, 0, 0, 0), np.full(10, 0.6),
            (3, 0, 0, 0, 0, -3.5, 0.45, 0, 0.5, 0), _QUARTIC, 0.15, *_IDC),
    "D.5": ((0.5, 0.3, -0.2, 0), _ONES, (1.4, 4, 6, 6), _ONES, 0.05, (0.6, 0.8), (0.035, 5.0)),
    "D.6": ((0.9, 0.4, -2, 0), _ONES, (0.8, 1.5, 0, 0), _ONES, 0.15, (0.0, 1.0), (0.1, 12.0)),
    "D.7": ((0.9, 0, -2, 0), _ONES, (1.1, 0.6, 0, 0), _ONES, 0.15, *_FRAUD_MAPS),
    "D.8": ((0.8, 0, -0.8, 0, 0, 0, -0.8, 0, 0, 0), _FRAUD,
            (1.325, 0.75, 0.25, 0, 0, 0.75, 0.25, 0, 0, 0), np.ones(10), 0.15, *_FRAUD_MAPS),
}  # fmt: skip
PRESETS = tuple(_LINES)


def preset(name: str) -> Prior:
    """Return a prior of the paper. Raises InvalidInput for a name that is not in `PRESETS`."""
    if name not in _LINES:
        raise InvalidInput(f"The paper has no prior {name!r}. Give one of {', '.join(PRESETS)}.")
    score, score_cov, cost, cost_cov, noise, score_map, minutes = _LINES[name]
    basis = Powers(3) if len(score) == 4 else Powers(4, products=True)
    seconds = (60.0 * minutes[0], 60.0 * minutes[1])
    means = (score, cost) if len(score) == 4 else (_centred(score), _centred(cost))
    return Prior(belief(means[0], score_cov), belief(means[1], cost_cov), basis, noise, 0.1, score_map, seconds)


def _centred(mean: Sequence[float]) -> Array:
    """Return the coefficients in u - 0.5 of a mean in u: 1, u_1 .. u_1^4, u_2 .. u_2^4, u_1 u_2. The last must be 0."""
    found = np.zeros(10)
    found[0], found[9] = mean[0], mean[9]
    for start in (1, 5):
        moved = Polynomial([0.0, *mean[start : start + 4]])(Polynomial([0.5, 1.0])).coef
        found[0] += moved[0]
        found[start : start + len(moved) - 1] = moved[1:]
    return found


# Sampled shapes. A score is unimodal: a bump of random height, place and width in each coordinate, with the drops of
# the coordinates added. A cost is exponential in each coordinate: increasing, decreasing, either, or flat. Two thousand
# of each are drawn and fitted; the mean and covariance of their coefficients are the prior. (The paper draws a hundred
# unimodal shapes, in section 4, for the states from which its maps are learnt; it sets priors by hand.)

_SIGNS = {"any": (-1.0, 1.0), "increasing": (0.0, 1.0), "decreasing": (-1.0, 0.0), "flat": (0.0, 0.0)}
_DRAWS = 2000


def sampled(
    dim: int,
    cost: CostTrend | Sequence[CostTrend] = "any",
    basis: Basis | None = None,
    score_noise: float = 0.05,
    cost_noise: float = 0.1,
) -> Prior:
    """Build a prior for `dim` coordinates: unimodal scores, and costs of the given kind in each coordinate.

    Args:
        dim: number of coordinates of the space's unit cube, `space.dim`.
        cost: "any", "increasing", "decreasing" or "flat" along a coordinate; one of these for all, or one for each.
            Default: "any".
        basis: functions whose sum approximates score and cost. Default: None, the paper's.
        score_noise: deviation of one observation of the score; the error of the basis is added to it. Default: 0.05.
        cost_noise: the same for the cost. Default: 0.1.

    Raises:
        InvalidInput: for another kind of cost, and if there is not one kind for each coordinate.

    Example:
        >>> from haltune.policies import AutoBCT
        >>> from haltune.policies.autobct import sampled
        >>> policy = AutoBCT(prior=sampled(2, cost=("increasing", "any")))
    """
    kinds = [cost] * dim if isinstance(cost, str) else list(cost)
    if len(kinds) != dim or any(kind not in _SIGNS for kind in kinds):
        raise InvalidInput(
            f"cost={cost!r} is not allowed. Give one of {', '.join(_SIGNS)}, or one for each of {dim} coordinates."
        )
    return _sampled(dim, tuple(kinds), basis or default_basis(dim), score_noise, cost_noise)


@lru_cache(maxsize=32)
def _sampled(dim: int, kinds: tuple[str, ...], basis: Basis, score_noise: float, cost_noise: float) -> Prior:
    rng = np.random.default_rng(0)  # the prior is the same for every study
    points = rng.uniform(size=(max(256, 64 * dim), dim))
    phi = basis(points)
    # (n, draws) unimodal functions, mostly on [0, 1]
    top = rng.uniform(0.5, 1.1, _DRAWS)
    peak = rng.uniform(0.0, 1.0, (_DRAWS, dim))
    width = rng.uniform(0.25, 1.2, (_DRAWS, dim))
    # all drops together are at most the top
    depth = rng.dirichlet(np.ones(dim + 1), _DRAWS)[:, :dim] * top[:, None]
    away = (points[:, None, :] - peak) / width
    scores = np.asarray(top - (depth * (1.0 - np.exp(-2.0 * away**2))).sum(axis=2))
    # (n, draws) exponential functions around 1/2
    signs = np.array([_SIGNS[kind] for kind in kinds]).reshape(-1, 2)
    slope = rng.uniform(2.0 * signs[:, 0], 2.0 * signs[:, 1], (_DRAWS, dim))
    level = 0.5 * np.exp(rng.normal(0.0, 0.4, _DRAWS))
    costs = np.asarray(level * np.exp((points - 0.5) @ slope.T))
    with undisturbed, one_thread, undisturbed.heard:  # the same bits in every process
        (score, score_rest), (cost, cost_rest) = (_coefficients(phi, found) for found in (scores, costs))
    return Prior(score, cost, basis, math.hypot(score_noise, score_rest), math.hypot(cost_noise, cost_rest))


def _coefficients(phi: Array, values: Array) -> tuple[Belief, float]:
    """Fit functions (n, k) on phi (n, J); return mean and covariance of coefficients, and the residual deviation."""
    ridge = np.sqrt(1e-4) * np.eye(phi.shape[1])  # powers of a coordinate are collinear: keeps coefficients small
    targets = np.vstack([values, np.zeros((len(ridge), values.shape[1]))])
    fits = np.linalg.lstsq(np.vstack([phi, ridge]), targets, rcond=None)[0]
    left = float(np.sqrt(np.mean((values - phi @ fits) ** 2)))
    return belief(fits.mean(axis=1), np.atleast_2d(np.cov(fits))), left


# Maps between raw scores or seconds and the scale of a prior. A map that is not given comes from the prior, from the
# goal's bounds, or from the first trainings.

_BEYOND_MAP = 3.0  # widths of the map beyond its ends


def _bent(value: float, kind: Transform) -> float:
    if kind == "linear":
        return value
    return math.log(value) if value > 0 else -math.inf


def _unbent(bent: float, kind: Transform) -> float:
    return math.exp(min(bent, 700.0)) if kind == "log" else bent


@dataclass(frozen=True)
class Ruler:
    """Maps of raw scores and seconds to h and t, both roughly in [0, 1].

    h is affine in the raw score or in its logarithm, 0 at `worst` and 1 at `best`; t is affine in seconds.
    """

    worst: float  # raw score of h = 0
    best: float  # raw score of h = 1
    kind: Transform
    zero: float  # seconds of t = 0
    unit: float  # seconds of t = 1, less zero

    def h(self, value: float) -> float:
        """Return the score of a raw value; -inf if it is not finite."""
        low, high, raw = (_bent(v, self.kind) for v in (self.worst, self.best, value))
        return (raw - low) / (high - low) if math.isfinite(raw) else -math.inf

    def slope(self, value: float) -> float:
        """Return dh / d raw score at a raw value."""
        low, high = _bent(self.worst, self.kind), _bent(self.best, self.kind)
        width = abs(high - low)
        return 1.0 / width if self.kind == "linear" else 1.0 / (width * max(abs(value), 1e-300))

    def raw(self, h: float) -> float:
        low, high = _bent(self.worst, self.kind), _bent(self.best, self.kind)
        return _unbent(low + h * (high - low), self.kind)

    def amount(self, h: float) -> str:
        """Format a difference of scores in raw units, or as a factor on a log scale."""
        width = h * abs(_bent(self.best, self.kind) - _bent(self.worst, self.kind))
        return f"a factor of {math.exp(min(width, 700.0)):.3g}" if self.kind == "log" else f"{width:.2g}"

    def t(self, seconds: float) -> float:
        return (seconds - self.zero) / self.unit

    def seconds(self, t: float) -> float:
        return self.zero + t * self.unit

    def outside(self, value: float, seconds: float) -> str | None:
        """Return a warning if a training is far outside the maps."""
        for what, raw, on in (("score", value, self.h(value)), ("cost", seconds, self.t(seconds))):
            if math.isfinite(on) and not -_BEYOND_MAP <= on <= 1.0 + _BEYOND_MAP:
                ends = (self.worst, self.best) if what == "score" else (self.zero, self.zero + self.unit)
                return (
                    f"a {what} of {raw:.4g} is far outside the range {ends[0]:.4g} to {ends[1]:.4g} that AutoBCT uses. "
                    f"Give {'worst= and best=' if what == 'score' else 'seconds='} that fit"
                )
        return None


def check_map(worst: float | None, best: float | None, kind: Transform, where: str = "AutoBCT") -> None:
    if kind not in ("linear", "log"):
        raise InvalidInput(f"{where}(score_scale={kind!r}) is not allowed. Give 'linear' or 'log'.")
    if (worst is None) != (best is None):
        raise InvalidInput(f"{where} got only one of worst= and best=. Give both, or neither.")
    if worst is not None and best is not None:
        fine = math.isfinite(worst) and math.isfinite(best) and worst != best
        if not fine or (kind == "log" and min(worst, best) <= 0):
            raise InvalidInput(
                f"{where}(worst={worst!r}, best={best!r}) is not allowed. Give two different finite scores, "
                "both positive for 'log'."
            )


def score_ends(goal: Goal, values: Sequence[float], middle: float, kind: Transform) -> tuple[float, float] | None:
    """Return raw (worst, best) with the first trainings' best at h = 0.65 and their range 0.4 wide; None without any.

    middle: the prior's expected score, used if all first trainings have the same score.
    """
    seen = np.array([v for v in values if math.isfinite(v) and (kind == "linear" or v > 0)])
    if not len(seen):
        return None
    bent = goal.sign * np.array([_bent(v, kind) for v in seen])
    top, width = float(bent.max()), float(np.ptp(bent))
    at = 0.65
    if width <= 1e-9 * abs(top):
        width, at = 0.1 if kind == "log" else 0.1 * abs(top) or 1e-3, middle
    ends = [goal.sign * (top + (h - at) * width / 0.4) for h in (0.0, 1.0)]
    low, high = (_unbent(e, kind) for e in ends)
    return low, high


def cost_ends(seconds: Sequence[float], expected: Sequence[float]) -> tuple[float, float]:
    """Return the seconds of t = 0 and t = 1 at which first trainings cost together what the prior expects."""
    spent, believed = sum(seconds), sum(max(e, 0.05) for e in expected)
    return 0.0, spent / believed if spent > 0 else 1.0


# Learning from studies, the paper's meta-learning. Each study s has coefficients a_s ~ N(mu, Sigma); its observations
# are phi^T a_s + noise. EM estimates mu, Sigma and the noise; unlike an average of separate fits it accounts for the
# uncertainty after a short study. The usual prior counts as one more study, so that two studies that agree do not give
# certainty.

Data = tuple[Array, Array, Array]  # basis functions (n, J), scores (n,), costs (n,)
_ROUNDS = 60  # of EM


def from_studies(
    studies: Sequence[Any],
    worst: float | None = None,
    best: float | None = None,
    score_scale: Transform = "linear",
    usual: Prior | None = None,
) -> Prior:
    """Learn a prior from the full trainings of studies with equal spaces.

    Args:
        studies: two or more open studies, or their histories.
        worst: raw score that counts as 0. Default: None, the goal's bound, or estimated from the studies.
        best: raw score that counts as 1; give it together with worst. Default: None, as for worst.
        score_scale: "linear", or "log" for the logarithms of scores. Default: "linear".
        usual: prior without the studies. Default: None, `sampled`.

    Raises:
        InvalidInput: for studies of different spaces or goals, and for too few of them.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import AutoBCT, RandomSearch
        >>> from haltune.policies.autobct import from_studies
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=2)
        >>> earlier = [Study(problem, RandomSearch(trials=3), seed=seed) for seed in (0, 1)]
        >>> for study in earlier:
        ...     for trial in study:
        ...         with trial:
        ...             for epoch in trial.epochs():
        ...                 verdict = trial.report(0.9 / (1 + trial.config["lr"]), seconds=60.0)
        >>> Study(problem, AutoBCT(prior=from_studies(earlier)), seed=2).ask().id
        0
    """
    histories, ruler, usual = _prepared(studies, worst, best, score_scale, usual)
    with undisturbed, one_thread, undisturbed.heard:
        learnt = _learn([_data(h, ruler, usual) for h in histories], usual)
    ends = (0.0, ruler.unit)
    space = histories[0].problem.space.to_json()
    return replace(learnt, score_map=(ruler.worst, ruler.best), cost_map=ends, space=space)


def _prepared(
    studies: Sequence[Any], worst: float | None, best: float | None, kind: Transform, usual: Prior | None
) -> tuple[list[History], Ruler, Prior]:
    check_map(worst, best, kind, "from_studies")
    listed = list(studies) if isinstance(studies, Sequence) else [None]
    if any(not hasattr(s, "history") and not isinstance(s, History) for s in listed):
        raise InvalidInput(
            f"from_studies({studies!r}) needs a list of open studies. Give one, such as [Study(...), Study(...)]."
        )
    histories = [s if isinstance(s, History) else s.history for s in studies]
    if len(histories) < 2:
        raise InvalidInput(f"from_studies got {len(histories)} studies. Give two or more.")
    first = histories[0].problem
    if any(h.problem.space != first.space or h.problem.goal != first.goal for h in histories):
        raise InvalidInput("from_studies got studies of different spaces or goals. Give studies of one problem.")
    if any(not _done(h) for h in histories):
        raise InvalidInput(
            "from_studies got a study without a full training that has a finite value. Leave this study out."
        )
    unit = 2.0 * float(np.median([_seconds(h, i) for h in histories for i in _done(h)]))
    sign, bounds = first.goal.sign, first.goal.bounds
    if worst is not None and best is not None:
        ends = worst, best
    elif bounds is not None and (kind == "linear" or bounds[0] > 0.0):  # the logarithm of 0 is no end of a map
        ends = bounds if sign > 0 else (bounds[1], bounds[0])
    else:
        values = [sign * h.trial(i).target(first.goal) for h in histories for i in _done(h)]
        bent = sign * np.array([_bent(value, kind) for value in values])
        if not len(bent := bent[np.isfinite(bent)]):
            raise InvalidInput("from_studies(score_scale='log') got no score above 0. Give score_scale='linear'.")
        low, high = np.quantile(bent, [0.1, 1.0])
        width = max(float(high - low), 1e-9 * max(abs(float(high)), 1.0))
        ends = _unbent(sign * float(low), kind), _unbent(sign * float(low + 1.1 * width), kind)
    return histories, Ruler(*ends, kind, 0.0, max(unit, 1e-9)), usual or sampled(first.space.dim)


def _done(history: History) -> list[int]:
    found = history.with_status(Status.COMPLETED)
    return [t.id for t in found if math.isfinite(t.target(history.problem.goal))]


def _seconds(history: History, trial: int) -> float:
    return max(float(history.trial(trial).seconds.sum()), history.worker_seconds(trial))


def _data(history: History, ruler: Ruler, usual: Prior) -> Data:
    done, goal = _done(history), history.problem.goal
    phi = usual.on(np.array([history.points[i] for i in done]))
    h = np.array([ruler.h(goal.sign * history.trial(i).target(goal)) for i in done])
    t = np.array([ruler.t(_seconds(history, i)) for i in done])
    return phi, np.clip(h, LOWEST, HIGHEST), np.clip(t, 0.0, LARGEST_COST)


def _learn(data: Sequence[Data], usual: Prior) -> Prior:
    score, score_noise = _em([(phi, h) for phi, h, _ in data], usual.score, usual.score_noise)
    cost, cost_noise = _em([(phi, t) for phi, _, t in data], usual.cost, usual.cost_noise)
    return replace(usual, score=score, cost=cost, score_noise=score_noise, cost_noise=cost_noise)


def _em(data: Sequence[tuple[Array, Array]], usual: Belief, noise: Noise) -> tuple[Belief, float]:
    """Maximise the likelihood of mu, Sigma and the noise; the usual belief counts as one study."""
    phi0 = data[0][0]
    variance = float(np.mean(variances(noise, phi0)))
    floor = 0.04 * variance
    mean, cov = usual.mean, usual.cov
    weight, count = len(data) + 1.0, sum(len(y) for _, y in data)
    for _ in range(_ROUNDS):
        means, squares, errors = [usual.mean], usual.cov.copy(), variance
        for phi, y in data:
            cross = phi @ cov
            solved = np.linalg.solve(cross @ phi.T + variance * np.eye(len(y)), np.c_[y - phi @ mean, cross])
            a, left = mean + cross.T @ solved[:, 0], cov - cross.T @ solved[:, 1:]
            means.append(a)
            squares += left
            errors += float(np.sum((y - phi @ a) ** 2) + np.einsum("ij,jk,ik->", phi, left, phi))
        mean = np.mean(means, axis=0)
        apart = np.array(means) - mean
        cov = (squares + apart.T @ apart) / weight
        cov = (cov + cov.T) / 2
        variance = max(errors / (count + 1.0), floor)
    return belief(mean, cov), float(np.sqrt(variance))
