"""From the user's world to the one a prior speaks of, and back: raw scores to h, seconds to t, both about on [0, 1].

h is affine in the raw score or in its logarithm, 0 at `worst` and 1 at `best`; t is affine in seconds.
What is not given is taken from the prior, from the goal's bounds, or from the first trainings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from haltune.errors import InvalidInput
from haltune.log.problem import Goal

Transform = Literal["linear", "log"]
_BEYOND_MAP = 3.0  # widths of the map beyond its ends


@dataclass(frozen=True)
class Ruler:
    """The two maps."""

    worst: float  # raw score of h = 0
    best: float  # raw score of h = 1
    kind: Transform
    zero: float  # seconds of t = 0
    unit: float  # seconds of t = 1, less zero

    def h(self, value: float) -> float:
        """The score of a raw value; the floor below everything for one that is not finite."""
        low, high, raw = (self._bent(v) for v in (self.worst, self.best, value))
        return (raw - low) / (high - low) if math.isfinite(raw) else -math.inf

    def slope(self, value: float) -> float:
        """How far h moves for a unit of raw score, at a raw value."""
        width = abs(self._bent(self.best) - self._bent(self.worst))
        return 1.0 / width if self.kind == "linear" else 1.0 / (width * max(abs(value), 1e-300))

    def raw(self, h: float) -> float:
        """The raw value of a score."""
        low, high = self._bent(self.worst), self._bent(self.best)
        return _unbent(low + h * (high - low), self.kind)

    def amount(self, h: float) -> str:
        """A difference of scores in raw units; a factor where logarithms count."""
        width = h * abs(self._bent(self.best) - self._bent(self.worst))
        return f"a factor of {math.exp(min(width, 700.0)):.3g}" if self.kind == "log" else f"{width:.2g}"

    def t(self, seconds: float) -> float:
        """The cost of so many seconds."""
        return (seconds - self.zero) / self.unit

    def seconds(self, t: float) -> float:
        """The seconds of a cost."""
        return self.zero + t * self.unit

    def outside(self, value: float, seconds: float) -> str | None:
        """A warning when a training lies far outside the maps."""
        for what, raw, on in (("score", value, self.h(value)), ("cost", seconds, self.t(seconds))):
            if math.isfinite(on) and not -_BEYOND_MAP <= on <= 1.0 + _BEYOND_MAP:
                ends = (self.worst, self.best) if what == "score" else (self.zero, self.zero + self.unit)
                return (
                    f"a {what} of {raw:.4g} lies far outside the map {ends[0]:.4g} to {ends[1]:.4g} by which AutoBCT "
                    f"weighs: give it {'worst= and best=' if what == 'score' else 'seconds='} that fit"
                )
        return None

    def _bent(self, value: float) -> float:
        return _bent(value, self.kind)


def _bent(value: float, kind: Transform) -> float:
    if kind == "linear":
        return value
    return math.log(value) if value > 0 else -math.inf


def _unbent(bent: float, kind: Transform) -> float:
    return math.exp(min(bent, 700.0)) if kind == "log" else bent


def check_map(name: str, worst: float | None, best: float | None, kind: Transform) -> None:
    """Raises InvalidInput for ends that make no map."""
    if kind not in ("linear", "log"):
        raise InvalidInput(f"{name}(score_scale={kind!r}): 'linear' or 'log'")
    if (worst is None) != (best is None):
        raise InvalidInput(f"{name}: give worst= and best= together, or neither")
    if worst is not None and best is not None:
        fine = math.isfinite(worst) and math.isfinite(best) and worst != best
        if not fine or (kind == "log" and min(worst, best) <= 0):
            raise InvalidInput(
                f"{name}(worst={worst!r}, best={best!r}): two different finite raw scores, positive ones for 'log'"
            )


def score_ends(
    goal: Goal, values: Sequence[float], middle: float, kind: Transform
) -> tuple[float, float] | None:
    """The raw (worst, best) by the first trainings: their best at h = 0.65, their range 0.4 wide; None without any.

    middle: the score that the prior expects, where all first trainings came to the same.
    """
    seen = np.array([v for v in values if math.isfinite(v) and (kind == "linear" or v > 0)])
    if not len(seen):
        return None
    bent = goal.sign * np.array([_bent(v, kind) for v in seen])
    top, width = float(bent.max()), float(np.ptp(bent))
    at = 0.65
    if width <= 1e-9 * max(abs(top), 1e-9):
        width, at = max(0.1 * abs(top), 1e-3), middle
    ends = [goal.sign * (top + (h - at) * width / 0.4) for h in (0.0, 1.0)]
    low, high = (_unbent(e, kind) for e in ends)
    return low, high


def cost_ends(seconds: Sequence[float], expected: Sequence[float]) -> tuple[float, float]:
    """The seconds of t = 0 and t = 1: first trainings cost together what the prior expects of them."""
    spent, believed = sum(seconds), sum(max(e, 0.05) for e in expected)
    return 0.0, spent / believed if spent > 0 else 1.0
