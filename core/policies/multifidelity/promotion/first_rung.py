"""Where runs are first compared: as early as pays, and as late as it takes to tell them apart."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from haltune._utils.arrays import Array

_TRAININGS = 8  # full trainings that a rung is weighed for


def first_rung(foretells: Array, epochs: tuple[int, ...]) -> int:
    """The rung that finds the best run for the price of eight full trainings.

    So many epochs begin n = 8 N / epochs runs to a rung, the best of n is about z(1 - 1 / n) deviations above the mean
    there, z the normal quantile, and the share of that which it keeps to the end is the correlation `foretells` (K,) of
    the rung with the last. The largest product wins, the earlier of equals.
    """
    counts = [max(_TRAININGS * epochs[-1] / n, 2.001) for n in epochs]
    above = [NormalDist().inv_cdf(1 - 1 / n) for n in counts]
    return int(np.argmax(foretells * np.array(above)))
