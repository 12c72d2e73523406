"""Costs learnt by Gaussian processes of their logarithms: the most probable one, or several equally probable ones.

The choice of Lee et al. (2021), section 6. See models for the notation and the other models.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune.gp import Posterior, fit, sample
from haltune.gp.kernels import as_points

from .models import PredictedCost, log_costs


@dataclass(frozen=True, eq=False)
class GPCost:
    """A Gaussian process on log cost."""

    posterior: Posterior

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        """Its posterior, with the noise of a single training."""
        mean, variance = self.posterior.predict(points)
        return PredictedCost(mean, np.sqrt(variance + self.posterior.noise))

    def gradient(self, points: Array) -> tuple[Array, Array]:
        """The posterior mean."""
        found = self.posterior.predict_with_gradient(points)
        return found.mean, found.mean_gradient

    def expected(self, points: Array) -> tuple[Array, Array]:
        """The posterior mean and half the variance."""
        return MixedCost((self,)).expected(points)

    def extended(self, points: ArrayLike, costs: ArrayLike) -> "GPCost":
        """The belief after further trainings at points (m, d), or one at (d,), hyperparameters as they are.

        Raises InvalidInput as `fit_gp`.
        """
        at = np.atleast_2d(np.asarray(points))
        return GPCost(self.posterior.condition(at, log_costs(np.atleast_1d(costs), len(at))))


@dataclass(frozen=True, eq=False)
class MixedCost:
    """Equally probable beliefs; together they are taken for the log-normal of the same mean and variance."""

    parts: tuple[GPCost, ...]

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        """The deviation counts what each is unsure of, and what they disagree in."""
        found = [part.predict(points, after) for part in self.parts]
        centres = np.array([one.log_median for one in found])
        within = np.mean([one.deviation**2 for one in found], axis=0)
        return PredictedCost(centres.mean(axis=0), np.sqrt(within + centres.var(axis=0)))

    def gradient(self, points: Array) -> tuple[Array, Array]:
        """The mean of theirs."""
        found = [part.gradient(points) for part in self.parts]
        return np.mean([value for value, _ in found], axis=0), np.mean(
            [slopes for _, slopes in found], axis=0
        )

    def expected(self, points: Array) -> tuple[Array, Array]:
        """m + s^2 / 2 of the mixture's m and s."""
        found = [part.posterior.predict_with_gradient(points) for part in self.parts]
        means = np.array([one.mean for one in found])
        slopes = np.array([one.mean_gradient for one in found])
        off = means - means.mean(axis=0)
        noise = float(np.mean([part.posterior.noise for part in self.parts]))
        spread = noise + np.mean([one.variance for one in found], axis=0) + (off**2).mean(axis=0)
        steeper = np.mean([one.variance_gradient for one in found], axis=0)
        steeper += 2.0 * (off[:, :, None] * (slopes - slopes.mean(axis=0))).mean(axis=0)
        return means.mean(axis=0) + 0.5 * spread, slopes.mean(axis=0) + 0.5 * steeper

    def extended(self, points: ArrayLike, costs: ArrayLike) -> "MixedCost":
        return MixedCost(tuple(part.extended(points, costs) for part in self.parts))


def fit_gp(
    X: ArrayLike,
    costs: ArrayLike,
    *,
    rng: np.random.Generator | None = None,
    start_from: GPCost | None = None,
) -> GPCost:
    """The Gaussian process of log costs (n,) at X (n, d), n at least 1; rng draws the starts of its fit.

    Raises InvalidInput on shapes that do not fit and on costs that are not positive and finite.
    """
    points = as_points(X)
    before = None if start_from is None else start_from.posterior
    return GPCost(fit(points, log_costs(costs, len(points)), rng=rng, start_from=before, learn_from=400))


def sample_gp(
    X: ArrayLike, costs: ArrayLike, *, count: int = 6, rng: np.random.Generator | None = None
) -> MixedCost:
    """`count` Gaussian processes of log costs (n,) at X (n, d), n at least 1, hyperparameters drawn by rng.

    With few trainings many lengthscales are probable, and the most probable one misleads about costs farther away.
    Raises InvalidInput as `fit_gp`, and when count < 1.
    """
    points = as_points(X)
    drawn = sample(points, log_costs(costs, len(points)), count=count, rng=rng)
    return MixedCost(tuple(GPCost(posterior) for posterior in drawn))
