"""The bound on the expected simple regret of BO-BOS (Dai et al. 2019, theorem 1).

Values are in [0, 1], f is a sample of the Gaussian process over D, the configurations at every number of epochs, and
observations have noise of variance sigma^2. The bound holds with probability 1 - delta - delta' - delta''.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from haltune.errors import InvalidInput


@dataclass(frozen=True)
class RegretBound:
    """The three terms of theorem 1 after T trials."""

    optimisation: float  # kappa sqrt(T C_1 beta_T gamma_T) / T: GP-UCB's bound, times kappa
    wrong_stops: float  # sum_t eta_t / T, eta_t = (K_2 + c) / K_{1,t}
    early_stops: float  # N b sqrt(log(d a / delta')) tau_T / T

    @property
    def total(self) -> float:
        return self.optimisation + self.wrong_stops + self.early_stops


def regret_bound(
    size: int, gain: float, noise: float, K1: Sequence[float], stopped: int, horizon: int,
    smoothness: tuple[float, float], coordinates: int, *, K2: float = 99.0, c: float = 1.0, kappa: float = 2.0,
    delta: float = 0.1, delta_of_slopes: float = 0.1,
) -> RegretBound:  # fmt: skip
    """Return theorem 1's bound on E[S_T] after T = len(K1) trials.

    With values in [0, 1] a total of 1 or more says nothing.

    Args:
        size: |D|, the number of configurations times the number of epochs.
        gain: gamma_T, the maximum information gain of T observations, such as truvar.theory.information_gain.
        noise: sigma^2.
        K1: K_{1,t} of each trial, above 0; may be infinite.
        stopped: tau_T, the number of trials that were stopped.
        horizon: N, epochs of a full training.
        smoothness: (a, b) of assumption 2: a partial derivative exceeds L with probability at most a exp(-(L / b)^2).
        coordinates: d, of a configuration and its epochs.
        K2, c: losses of a wrong win and of an epoch.
        kappa: of condition C2.
        delta: probability that GP-UCB's bound fails.
        delta_of_slopes: delta', probability that a derivative is larger than assumed.

    Raises:
        InvalidInput: for numbers out of range.
    """
    T, (a, b) = len(K1), smoothness
    fits = size >= 1 and gain >= 0.0 and noise > 0.0 and kappa >= 1.0 and 0 <= stopped <= T and horizon >= 1
    fits = fits and T >= 1 and min(K1) > 0.0 and 0.0 < delta < 1.0 and 0.0 < delta_of_slopes < 1.0 and b > 0.0
    if not (fits and coordinates * a > delta_of_slopes):
        raise InvalidInput(
            "A number is out of range: noise, K1 and smoothness must be above 0, kappa at least 1, probabilities in "
            "(0, 1), stopped at most the number of trials, and coordinates * a above delta_of_slopes."
        )
    beta = 2.0 * math.log(size * T**2 * math.pi**2 / (6.0 * delta))
    c1 = 8.0 / math.log1p(1.0 / noise)
    slope = b * math.sqrt(math.log(coordinates * a / delta_of_slopes))
    return RegretBound(
        kappa * math.sqrt(T * c1 * beta * gain) / T, sum((K2 + c) / k1 for k1 in K1) / T, horizon * slope * stopped / T
    )
