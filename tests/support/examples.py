"""Number of examples of a property, by the Hypothesis profile (see conftest.py)."""

from hypothesis import settings

USUAL = 100  # examples of a property that names no number
QUICK = 20  # of them in the profile that repeats: the others are for the profile that looks for new ones
FEW = 2  # as many as are asked for are tried, whatever the profile


def many(count: int) -> int:
    """`count`, fewer in the profile that repeats and more in the one that looks for new examples."""
    return max(min(count, FEW), round(count * settings.default.max_examples / USUAL))
