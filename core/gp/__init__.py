"""Gaussian processes: kernels, exact posteriors, fitting."""

from .fit import fit
from .kernels import Kernel
from .posterior import Posterior, condition_on
from .priors import LogNormal, Priors
from .slice_sampling import sample
from .subset import subset

__all__ = ["Kernel", "LogNormal", "Posterior", "Priors", "condition_on", "fit", "sample", "subset"]
