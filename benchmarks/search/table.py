"""Rows of a results table: means over tasks and seeds, their standard errors, and what others reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """Mean regret at each budget."""

    means: Array
    errors: Array  # standard errors, seeds being the chance and tasks being given
    seeds: int

    @classmethod
    def of(cls, regrets: Array) -> Row:
        """From regrets (tasks, seeds, budgets)."""
        tasks, seeds = regrets.shape[:2]
        variance = regrets.var(axis=1, ddof=1) / seeds if seeds > 1 else np.full_like(regrets[:, 0], np.nan)
        return cls(regrets.mean(axis=(0, 1)), np.sqrt(variance.sum(axis=0)) / tasks, seeds)

    def text(self) -> str:
        """Every budget's mean and error."""
        return "  ".join(f"{mean:.3f}±{error:.3f}" for mean, error in zip(self.means, self.errors, strict=True))

    def against(self, published: Sequence[float | None], seeds: int) -> str:
        """Return a published row: its means, and the difference in standard errors.

        Its errors are taken as ours would be with its number of seeds.
        """
        own = np.sqrt(1.0 + self.seeds / seeds) * self.errors
        cells = [
            " " * 11 if there is None else f"{there:.3f} {(mean - there) / e:+4.1f}e" if e > 0 else f"{there:.3f}      "
            for mean, there, e in zip(self.means, published, own, strict=True)
        ]
        return "  ".join(cells)


def header(first: str, budgets: Sequence[int], unit: str) -> str:
    """The line above the rows."""
    return f"{first:34s} seeds  " + "  ".join(f"{f'{b} {unit}':11s}" for b in budgets)
