"""Gaussian processes: kernels, exact posteriors, fitting."""

from .gp import LogNormal, Posterior, Priors, condition_on, fit, sample, subset
from .kernels import Kernel

__all__ = ["Kernel", "LogNormal", "Posterior", "Priors", "condition_on", "fit", "sample", "subset"]
