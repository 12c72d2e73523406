"""Rules that describe a region of a space in words: boxes of parameters, grown by cuts (in the manner of PRIM).

A rule keeps an interval of each number and some options of each choice. It is grown from the whole space by the cut
that raises F_0.5 most, which counts precision twice: a short rule that is right beats a long one that covers all.
Numbers are expectations under the probabilities given, over the configurations given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haltune._utils.arrays import Array, Mask
from haltune.display.terminal import visible
from haltune.space import Space
from haltune.space.domains import Choice, Constant

_CUTS = 20  # of a number that are tried at each step
_GAIN = 1.005  # a cut must raise the measure by this factor, or the rule would only grow longer
_WORTH = 0.05  # share of the region that another rule must add
_BETA2 = 0.25  # beta^2 of F_beta


@dataclass(frozen=True)
class Rule:
    """A box: parameter -> (lowest, highest) or the options allowed; parameters that may be anything are absent."""

    conditions: Mapping[str, Any]
    coverage: float  # share of the region that is in the box
    precision: float  # share of the box that is in the region

    def holds(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration is in the box; a parameter that it does not have counts as fitting."""
        return all(_fits(config[name], kept) for name, kept in self.conditions.items() if name in config)

    def __str__(self) -> str:
        said = " and ".join(_said(name, kept) for name, kept in self.conditions.items()) or "anything"
        return visible(f"{said}  (covers {self.coverage:.0%} of it, {self.precision:.0%} right)")


def describe(
    space: Space, configs: Sequence[Mapping[str, Any]], probability: Array, most: int = 3
) -> tuple[Rule, ...]:
    """At most `most` rules for the region to which each of n configurations belongs with a probability (n,).

    Later rules describe what earlier ones leave. None when the region is empty in expectation.
    """
    columns = {n: _column(configs, n) for n, d in space.parameters.items() if not isinstance(d, Constant)}
    choices = {n for n, d in space.parameters.items() if isinstance(d, Choice)}
    total, left = float(probability.sum()), probability.copy()
    rules: list[Rule] = []
    while len(rules) < most and left.sum() > _WORTH * total and total > 0.5:
        box, conditions = _grown(columns, choices, left)
        inside = float(probability[box].sum())
        if left[box].sum() < _WORTH * total or inside < 0.5 * box.sum():
            break
        rules.append(Rule(conditions, inside / total, inside / float(box.sum())))
        left = np.where(box, 0.0, left)
    return tuple(rules)


Cut = tuple[str, str, Mask]  # parameter, side, and what is kept


def _grown(
    columns: Mapping[str, NDArray[Any]], choices: set[str], weight: Array
) -> tuple[Mask, dict[str, Any]]:
    box = np.ones(len(weight), dtype=np.bool_)
    best = _measure(box, weight)
    made: set[tuple[str, str]] = set()
    while True:
        cuts = [cut for name, column in columns.items() for cut in _cuts(name, column, name in choices, box)]
        scored = [(_measure(box & kept, weight), i) for i, (_, _, kept) in enumerate(cuts)]
        value, index = max(scored, key=lambda s: (s[0], -s[1]), default=(0.0, 0))
        if not value > best * _GAIN:
            return box, _conditions(columns, made, box)
        name, side, kept = cuts[index]
        box, best = box & kept, value
        made.add((name, side))


def _cuts(name: str, column: NDArray[Any], choice: bool, box: Mask) -> list[Cut]:
    """What is kept by each cut; a configuration that does not have the parameter is never cut off."""
    absent = _absent(column)
    inside = column[box & ~absent]
    if choice:
        options = {repr(v): v for v in inside}
        return [(name, "", absent | ~_equal(column, v)) for v in options.values()] if len(options) > 1 else []
    values = np.unique(inside.astype(np.float64))
    if len(values) < 2:
        return []
    number = np.where(absent, np.nan, column).astype(np.float64)
    steps = values[np.unique(np.linspace(0, len(values) - 1, _CUTS).astype(int))]
    low = [(name, "low", absent | (number >= v)) for v in steps[1:]]
    return low + [(name, "high", absent | (number <= v)) for v in steps[:-1]]


def _measure(box: Mask, weight: Array) -> float:
    inside, total, size = float(weight[box].sum()), float(weight.sum()), float(box.sum())
    return (1.0 + _BETA2) * inside / (_BETA2 * total + size) if size else 0.0


def _conditions(columns: Mapping[str, NDArray[Any]], made: set[tuple[str, str]], box: Mask) -> dict[str, Any]:
    """What the cuts that were made leave of each parameter; None at an end that was not cut."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        inside = column[box & ~_absent(column)]
        if (name, "") in made:
            found[name] = tuple({repr(v): v for v in inside}.values())
        elif {(name, "low"), (name, "high")} & made:
            low = min(inside) if (name, "low") in made else None
            found[name] = (low, max(inside) if (name, "high") in made else None)
    return found


def _fits(value: Any, kept: Any) -> bool:
    if isinstance(kept, tuple) and len(kept) == 2 and not isinstance(value, str) and _is_interval(kept):
        low, high = kept
        return bool((low is None or value >= low) and (high is None or value <= high))
    return value in kept


def _is_interval(kept: tuple[Any, Any]) -> bool:
    return all(end is None or isinstance(end, (int, float)) for end in kept)


def _said(name: str, kept: Any) -> str:
    if not (len(kept) == 2 and _is_interval(kept)):
        return f"{name} is {' or '.join(map(repr, kept))}"
    low, high = kept
    if low is None or high is None:
        return f"{name} <= {high:.4g}" if low is None else f"{name} >= {low:.4g}"
    if low == high:
        return f"{name} = {low:.4g}"
    return f"{low:.4g} <= {name} <= {high:.4g}"


def _column(configs: Sequence[Mapping[str, Any]], name: str) -> NDArray[Any]:
    column = np.empty(len(configs), dtype=object)
    column[:] = [config.get(name) for config in configs]
    return column


def _absent(column: NDArray[Any]) -> Mask:
    return np.array([value is None for value in column], dtype=np.bool_)


def _equal(column: NDArray[Any], option: Any) -> Mask:
    return np.array([repr(value) == repr(option) for value in column], dtype=np.bool_)
