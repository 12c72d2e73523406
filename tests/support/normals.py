"""Expected values of a normal, by the book."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm


def improvement(mean: Any, variance: Any, best: float) -> Any:
    """E[max(f - best, 0)] = sigma (phi(z) + z Phi(z)), f ~ N(mean, variance)."""
    deviation = np.sqrt(np.maximum(variance, 1e-30))
    z = (mean - best) / deviation
    return deviation * (norm.pdf(z) + z * norm.cdf(z))
