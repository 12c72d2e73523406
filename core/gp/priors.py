"""Weakly informative priors for the hyperparameters of a Gaussian process whose targets have mean 0 and
deviation 1.

The defaults: lengthscales LogNormal(sqrt 2 + log(d)/2, sqrt 3), which grow with the dimension so that a GP
in many coordinates starts smooth, and noise LogNormal(-4, 1) (both Hvarfner et al. 2024, "Vanilla Bayesian
Optimization Performs Great in High Dimensions"); signal variance LogNormal(1, 1), most likely at 1, the
variance of standardised targets. The constant mean has a flat prior.
"""

from dataclasses import dataclass
from math import log, pi, sqrt

import numpy as np

from haltune.errors import InvalidInput


@dataclass(frozen=True)
class LogNormal:
    """log theta ~ N(location, spread^2), restricted to low <= theta <= high.

    Densities are of theta itself, as GPyTorch's.

    Args:
        location: The mean of log theta.
        spread: The standard deviation of log theta.
        low: The least theta.
        high: The greatest.

    Raises:
        InvalidInput: When the spread or the bounds are not positive, or the bounds are the wrong way round.

    Example:
        >>> LogNormal(0.0, 1.0, 1e-3, 1e3).mode
        -1.0
    """

    location: float  # mean of log theta
    spread: float  # standard deviation of log theta
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (
            0 < self.spread < np.inf and 0 < self.low <= self.high < np.inf and np.isfinite(self.location)
        ):
            raise InvalidInput(f"{self} needs a finite location, a positive spread and 0 < low <= high")

    @property
    def mode(self) -> float:
        """The log of the most likely theta inside the bounds: location - spread^2, clipped."""
        return float(np.clip(self.location - self.spread**2, log(self.low), log(self.high)))

    def log_density(self, log_theta: float) -> float:
        """The log density of theta."""
        standard = (log_theta - self.location) / self.spread
        return -0.5 * standard**2 - log_theta - log(self.spread) - 0.5 * log(2 * pi)

    def slope(self, log_theta: float) -> float:
        """The derivative of the log density by log theta."""
        return (self.location - log_theta) / self.spread**2 - 1.0


@dataclass(frozen=True)
class Priors:
    """Priors for targets of mean 0 and deviation 1; a plain number fixes that variance instead.

    Args:
        lengthscale: Of each coordinate.
        variance: Of the signal.
        noise: The variance of an observation.

    Example:
        >>> Priors.default(1).noise.location
        -4.0
    """

    lengthscale: LogNormal
    variance: LogNormal | float
    noise: LogNormal | float

    @classmethod
    def default(cls, dim: int) -> "Priors":
        """The weakly informative defaults for dim input coordinates in the unit cube."""
        return cls(
            lengthscale=LogNormal(sqrt(2) + 0.5 * log(max(dim, 1)), sqrt(3), 0.02, 1e3),
            variance=LogNormal(1.0, 1.0, 1e-2, 1e3),
            noise=LogNormal(-4.0, 1.0, 1e-6, 10.0),
        )
