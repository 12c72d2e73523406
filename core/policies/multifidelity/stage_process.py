"""What is believed of the ends of runs: the Gaussian process of `stage_kernel` given what was seen at any stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haltune._utils.arrays import Array
from haltune.gp.gp import factorise, solve_lower

from .seen import Seen
from .stage_kernel import StageKernel, Stages, descent

_EVALUATIONS = 40  # of the density, in the search for its mode


def learn_kernel(stages: Stages, seen: Seen) -> StageKernel:
    """The kernel of the largest posterior density given what was seen, from the prior's mode on."""
    from scipy.optimize import minimize  # slow to import, and many a process fits nothing

    found = minimize(
        lambda theta: descent(stages, seen, theta),
        stages.mean,
        jac=True,
        method="L-BFGS-B",
        bounds=stages.bounds,
        options={"maxfun": _EVALUATIONS},
    )
    return StageKernel(stages, found.x if np.isfinite(found.fun) else stages.mean)


def density(stages: Stages, seen: Seen, kernel: StageKernel) -> float:
    """The logarithm of the posterior density up to a constant, which `learn_kernel` has made as large as it found."""
    return -descent(stages, seen, kernel.theta)[0]


@dataclass(frozen=True)
class StageProcess:
    """A posterior: n values seen, and what they say of the last stage."""

    kernel: StageKernel
    seen: Seen
    factor: Array  # (n, n) Cholesky, lower
    weights: Array  # (n,) K^-1 y

    @classmethod
    def of(cls, kernel: StageKernel, seen: Seen) -> StageProcess:
        """Given what was seen."""
        rho, _ = kernel.near_seen(seen)
        covariance = kernel.covariance(seen, rho)
        factor, _ = factorise(covariance, float(covariance.diagonal().max(initial=1.0)))
        weights = solve_lower(factor, solve_lower(factor, seen.value), transposed=True)
        return cls(kernel, seen, factor, weights)

    @property
    def best_end(self) -> float | None:
        """The largest value at the last stage, of this study; None: none was seen there."""
        last = self.seen.stage == len(self.kernel.stages.epochs) - 1
        here = last if self.seen.of is None else last & (self.seen.of == 0)
        return float(self.seen.value[here].max()) if here.any() else None

    def ends(self, points: Array, seen: bool = False) -> tuple[Array, Array]:
        """Mean and deviation (m,) of where runs of configurations (m, d) in the unit cube will end.

        seen: the runs of this study that were seen there, if one was; else new ones.
        """
        kernel = self.kernel
        cross = kernel.across(self.seen, points)
        if seen:
            cross = cross + self.seen.runs_at(points) * kernel.own[self.seen.stage, -1, None]
        explained = (solve_lower(self.factor, cross) ** 2).sum(axis=0)
        prior = kernel.common[-1, -1] + kernel.shared[-1, -1] + kernel.own[-1, -1]
        return cross.T @ self.weights, np.sqrt(np.maximum(prior - explained, 1e-12))

    def with_ends(self, points: Array) -> StageProcess:
        """Pending configurations (m, d) taken for ended at their means, so that parallel workers spread."""
        if not len(points):
            return self
        last, mean = len(self.kernel.stages.epochs) - 1, self.ends(points)[0]
        ended = Seen(points, np.arange(len(points)), np.full(len(points), last), mean)
        return StageProcess.of(self.kernel, self.seen.beside(ended))
