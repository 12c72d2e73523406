"""Number of examples of a property, by the Hypothesis profile (see conftest.py), and tables of cases."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings

USUAL = 100  # examples of a property that names no number
QUICK = 4  # of them in the profile that repeats: the others are for the profile that looks for new ones
FEW = 2  # as many as are asked for are tried, whatever the profile


def many(count: int) -> int:
    """`count`, fewer in the profile that repeats and more in the one that looks for new examples."""
    return max(min(count, FEW), round(count * settings.default.max_examples / USUAL))


def rows(cases: Mapping[str, Sequence[Any]], *quick: str) -> list[Any]:
    """Return the cases of a table as parameters. quick: one of each kind; the others are slow."""
    return [pytest.param(*cases[one.values[0]], id=one.values[0], marks=one.marks) for one in quickly(cases, *quick)]


def quickly(names: Iterable[str], *quick: str) -> list[Any]:
    """Return names as parameters. quick: one of each kind; the others are slow."""
    found = list(names)
    assert set(quick) <= set(found), set(quick) - set(found)
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in quick)) for name in found]
