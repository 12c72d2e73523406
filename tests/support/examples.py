"""How many examples a property is tried on, under the Hypothesis profile in force (see conftest.py)."""

from hypothesis import settings

USUAL = 100  # examples of a property that names no number, in the profile that repeats


def many(count: int) -> int:
    """`count` in the profile that repeats, more where the profile asks for more."""
    return count * max(1, settings.default.max_examples // USUAL)
