"""Gaussian processes: kernels, exact posteriors, fitting."""

from .gp import LogNormal, Posterior, Priors, condition_on, fit, subset
from .kernels import Kernel
from .slice_sampling import sample

__all__ = ["Kernel", "LogNormal", "Posterior", "Priors", "condition_on", "fit", "sample", "subset"]
