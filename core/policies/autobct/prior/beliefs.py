"""Beliefs about functions that are linear in basis functions, and how an observation changes them.

H(u) = alpha^T phi(u), alpha ~ N(mean, root root^T): (2.2)-(2.8) of Cironis, Palczewski and Aivaliotis, "Automatic
model training under restrictive time constraints" (AutoBCT). A `Prior` holds one such belief of the score and one of
the cost, their noise and their basis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

from .bases import Basis, basis_from

Noise = float | tuple[float, ...]  # deviation: constant, or coefficients over the basis of log deviation


@dataclass(frozen=True, eq=False)
class Belief:
    """What is believed of the coefficients of one function."""

    mean: Array  # (J,)
    root: Array  # (J, J) any square root of the covariance

    @property
    def cov(self) -> Array:
        """(J, J) covariance; symmetric and positive semidefinite by construction."""
        return self.root @ self.root.T

    def observe(self, phi: Array, y: float, variance: float) -> Belief:
        """After y = alpha^T phi + noise: the rank-one form of appendix A, in O(J^2), without an inverse.

        The root is updated, not the covariance (Potter's form): Sigma - Sigma phi phi^T Sigma / d, taken
        literally, loses its positive eigenvalues to rounding after some thousand updates.
        """
        f = self.root.T @ phi  # (J,)
        d = float(f @ f) + variance
        gain = self.root @ f / d
        mean = self.mean + gain * (y - float(phi @ self.mean))
        return Belief(mean, self.root - np.outer(gain, f) / (1.0 + np.sqrt(variance / d)))

    def at(self, basis: Array) -> tuple[Array, Array]:
        """Mean (g,) and covariance (g, g) of the function where the basis functions are `basis` (g, J)."""
        half = basis @ self.root
        return basis @ self.mean, half @ half.T


def belief(mean: ArrayLike, cov: ArrayLike, what: str = "the belief") -> Belief:
    """A belief from mean (J,) and covariance, (J, J) or its diagonal (J,).

    Raises InvalidInput when shapes disagree or the covariance is not symmetric positive semidefinite.
    """
    m, c = np.asarray(mean, dtype=np.float64), np.asarray(cov, dtype=np.float64)
    if m.ndim != 1 or c.shape not in ((len(m),), (len(m), len(m))):
        raise InvalidInput(
            f"{what}: a mean of J numbers and a covariance (J, J) or its diagonal (J,), not {m.shape}, {c.shape}"
        )
    c = np.diag(c) if c.ndim == 1 else c
    values, vectors = np.linalg.eigh((c + c.T) / 2)
    size = max(float(np.abs(values).max(initial=0.0)), 1e-300)
    if not (np.isfinite(m).all() and np.isfinite(c).all()) or np.abs(c - c.T).max() > 1e-9 * size:
        raise InvalidInput(f"{what}: the covariance must be symmetric, and all numbers finite")
    if values.min() < -1e-9 * size:
        raise InvalidInput(
            f"{what}: the covariance has the eigenvalue {values.min():.3g}; none may be negative"
        )
    return Belief(m, vectors * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True, eq=False)
class Prior:
    """What is believed of score and cost on the control cube [0, 1]^p, both about on [0, 1].

    Args:
        score: the belief of the J coefficients of the score.
        cost: the same of the cost.
        basis: J functions of a control, such as `sampled(dim).basis`.
        score_noise: deviation of one observation: a number, or J numbers c with the deviation exp(c^T phi(u)).
            Default: 0.15.
        cost_noise: the same of the cost. Default: 0.1.
        score_map: the raw (score at 0, score at 1) that the prior was made for. Default: None, any.
        cost_map: the same in seconds. Default: None, any.
        space: the only one that it is for, as JSON. Default: None, any of p coordinates.

    Raises:
        InvalidInput: for noises that are not positive, or not J.

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
                    f"{name}_noise={noise!r}: a positive deviation, or {size} coefficients over the basis of its log"
                )
            if np.ndim(noise):
                object.__setattr__(self, f"{name}_noise", tuple(float(c) for c in given))

    def on(self, points: Array) -> Array:
        """(g, J) the basis functions at controls (g, p). Raises InvalidInput when they are not J."""
        phi = self.basis(points)
        if phi.shape != (len(points), len(self.score.mean)) or len(self.cost.mean) != phi.shape[1]:
            raise InvalidInput(
                f"the prior has {len(self.score.mean)} and {len(self.cost.mean)} coefficients, its basis "
                f"{phi.shape[-1]} functions on {points.shape[1]} coordinates: give a prior for this space"
            )
        return phi

    def observe(self, phi: Array, h: float | None, t: float | None, extra: float = 0.0) -> Prior:
        """After one training at phi (J,): its score h and cost t, either may be missing.

        extra: variance that a score has on top of the noise, as when its training was ended early.
        """
        score, cost = self.score, self.cost
        if h is not None:
            score = score.observe(phi, h, float(variances(self.score_noise, phi[None])[0]) + extra)
        if t is not None:
            cost = cost.observe(phi, t, float(variances(self.cost_noise, phi[None])[0]))
        return replace(self, score=score, cost=cost)

    def to_json(self) -> dict[str, Any]:
        """JSON; `prior_from_json` is the inverse."""
        return {
            "score_mean": self.score.mean.tolist(),
            "score_root": self.score.root.tolist(),
            "cost_mean": self.cost.mean.tolist(),
            "cost_root": self.cost.root.tolist(),
            "basis": self.basis.spec,
            "score_noise": self.score_noise,
            "cost_noise": self.cost_noise,
            "score_map": self.score_map,
            "cost_map": self.cost_map,
            "space": self.space,
        }


def variances(noise: Noise, phi: Array) -> Array:
    """(g,) the variance of an observation at controls with basis functions phi (g, J)."""
    if isinstance(noise, tuple):
        return np.asarray(np.exp(2.0 * (phi @ np.array(noise))))
    return np.full(len(phi), float(noise) ** 2)


def prior_from_json(data: Mapping[str, Any]) -> Prior:
    """The inverse of `Prior.to_json`, bit for bit. Raises InvalidInput for what lacks a part of it."""
    rest = dict(data)
    if lacking := [
        n for n in ("score_mean", "score_root", "cost_mean", "cost_root", "basis") if n not in rest
    ]:
        raise InvalidInput(
            f"a prior as JSON is what Prior.to_json() gives: this one lacks {', '.join(lacking)}"
        )
    score, cost = (
        Belief(np.array(rest.pop(f"{name}_mean")), np.array(rest.pop(f"{name}_root")))
        for name in ("score", "cost")
    )
    rest = {name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()}
    return Prior(score, cost, basis_from(rest.pop("basis")), **rest)
