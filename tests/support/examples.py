"""Number of examples of a property, by the Hypothesis profile (see conftest.py), and tables of cases."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings

USUAL = 100  # examples of a property that names no number
QUICK = 6  # of them in the profile that repeats: the others are for the profile that looks for new ones
FEW = 2  # as many as are asked for are tried, whatever the profile


def many(count: int) -> int:
    """`count`, fewer in the profile that repeats and more in the one that looks for new examples."""
    return max(min(count, FEW), round(count * settings.default.max_examples / USUAL))


def rows(cases: Mapping[str, Sequence[Any]], slow: Collection[str]) -> list[Any]:
    """Return the cases of a table as parameters. slow: those of a kind that a quick one of the table tests, too."""
    assert set(slow) < cases.keys(), set(slow) - cases.keys()
    return [pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name in slow)) for name, case in cases.items()]


def quickly(names: Iterable[str], *quick: str) -> list[Any]:
    """Return names as parameters. quick: one of each kind; the others are slow."""
    found = list(names)
    assert set(quick) <= set(found), set(quick) - set(found)
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in quick)) for name in found]
