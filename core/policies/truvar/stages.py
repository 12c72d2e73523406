"""Stages and confidence sets of truncated variance reduction (Bogunovic et al. 2016, algorithms 1 and 2).

A stage is the paper's epoch (an epoch here is one of a training). In stage i, which began at time t_(i), points
count as known once sqrt(beta_(i)) sigma is at most eta_(i); both change from stage to stage:

    eta_(i) = eta r^(i-1),  beta_(i) = a log(|D| t_(i)^2),  t_(1) = 1,  t_(i+1) = t + 1

after t observations. All deviations here are in units of the prior's: k(x, x) = 1. (14) asks for
beta = 2 log(|D| C^2 pi^2 / (6 delta c_min^2)) with C the cost by the end of the stage: `theorem` takes the cost
spent by now, so that lemma C.1 holds at every time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from haltune._utils.arrays import Array, Mask


@dataclass(frozen=True, slots=True)
class Stage:
    """Which one, and when it began."""

    number: int = 1  # i
    since: int = 1  # t_(i)


@dataclass(frozen=True, slots=True)
class Confidence:
    """How stages narrow. a: factor of beta; delta: probability that `theorem` may fail."""

    a: float
    beta_form: Literal["practical", "theorem", "constant"] = "practical"  # constant: beta is a
    delta: float = 0.1
    eta: float = 1.0  # of the first stage, prior deviations; 0: all variance counts, always
    r: float = 0.1
    slack: float = 0.0  # the paper's delta-bar
    floor: float = 1e-6  # prior deviations: eta goes no lower, or noiseless data would lower it for ever

    def eta_of(self, stage: Stage) -> float:
        """eta_(i), prior deviations."""
        return self.eta * self.r ** (stage.number - 1)

    def beta_of(self, stage: Stage, size: int, spent: float) -> float:
        """beta_(i) for `size` points; spent: cost by now over the smallest cost, for `theorem` alone."""
        if self.beta_form == "theorem":
            return 2.0 * math.log(size * max(spent, 1.0) ** 2 * math.pi**2 / (6.0 * self.delta))
        if self.beta_form == "constant":
            return self.a
        # A single point has log 1 = 0: it would count as known before it was seen.
        return self.a * math.log(max(size, 2) * stage.since**2)

    def after(self, stage: Stage, widest: float, seen: int, size: int, spent: float) -> Stage:
        """The stage after `seen` observations; widest: the largest deviation of a member, prior deviations."""
        while self.eta_of(stage) > self.floor and self._reached(stage, widest, size, spent):
            stage = Stage(stage.number + 1, seen + 1)
        return stage

    def _reached(self, stage: Stage, widest: float, size: int, spent: float) -> bool:
        width = math.sqrt(self.beta_of(stage, size, spent)) * widest
        return width <= (1.0 + self.slack) * self.eta_of(stage)

    def accuracy(self, stage: Stage) -> float:
        """epsilon = 4 (1 + slack) eta of the last stage that ended, prior deviations (theorem 3.1); inf before."""
        if stage.number == 1:
            return math.inf
        return 4.0 * (1.0 + self.slack) * self.eta_of(Stage(stage.number - 1))


def potential_maximisers(mean: Array, width: Array, among: Mask) -> Mask:
    """(5): the points among these whose upper bound reaches the best lower bound; width = sqrt(beta) sigma, (n,)."""
    best = float(np.max(mean - width, where=among, initial=-np.inf))
    return np.asarray(among & (mean + width >= best))


def unclassified(mean: Array, width: Array, low: float, high: float, among: Mask) -> Mask:
    """(6): the points among these not yet known to lie above or below a threshold somewhere in [low, high]."""
    return np.asarray(among & (mean + width >= low) & (mean - width <= high))


@dataclass(frozen=True, slots=True)
class Aim:
    """What is looked for. Larger is better; threshold in units of the target; neither: the maximum.

    share: the threshold is this times the maximum of f (Gotovos et al. 2013, section 5).
    """

    threshold: float | None = None
    share: float | None = None

    @property
    def sets(self) -> bool:
        """True for level sets."""
        return self.threshold is not None or self.share is not None

    def between(self, mean: Array, width: Array) -> tuple[float, float]:
        """Where the threshold lies: [h, h], or the interval that the bounds on the maximum leave."""
        if self.threshold is not None or self.share is None:
            h = -math.inf if self.threshold is None else self.threshold
            return h, h
        ends = self.share * float((mean - width).max()), self.share * float((mean + width).max())
        return min(ends), max(ends)

    def open(self, mean: Array, width: Array, among: Mask) -> Mask:
        """The points among these that are not settled: (5) or (6)."""
        if not self.sets:
            return potential_maximisers(mean, width, among)
        low, high = self.between(mean, width)
        return unclassified(mean, width, low, high, among)

    def members(self, mean: Array, width: Array, among: Mask) -> Mask:
        """M: the open points; under an implicit threshold those, too, that may be the maximum that sets it."""
        found = self.open(mean, width, among)
        if self.share is None or not found.any():
            return found
        return found | potential_maximisers(mean, width, np.ones_like(found))
