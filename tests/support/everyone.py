"""Every policy as the name of a parametrized law; if a law is expensive, the variants of a class are slow."""

import pytest
from worlds import LAWFUL, POLICIES

from examples import quickly


def leaders() -> list[str]:
    """The name of the first policy of each class."""
    first: dict[type, str] = {}
    for name, make in LAWFUL.items():
        first.setdefault(type(make()), name)
    return list(first.values())


LEADERS = leaders()
_ALIKE = (  # classes of their own, whose kind another one is
    "ei-per-cost",  # EI, which divides by something else
    "ei-cooled",
    "halving",  # a bracket of Hyperband
    "infinite-hyperband",
    "ladder",  # multifidelity without its model
    "several-multifidelity",  # multifidelity, of a value that is made of several
)
_DEAR = (
    "rollout",
    "bobos",
    "truvar",
    "ei",
    "halting-autobct",
)  # the laws that cost little are asked of them quickly, too
QUICK = [name for name in LEADERS if name not in (*_ALIKE, *_DEAR)]
everyone = pytest.mark.parametrize("name", list(LAWFUL))
# that is not dear quickly; all and their variants in the slow tests
each_class = pytest.mark.parametrize("name", quickly(LAWFUL, *QUICK))
# the same, where several goals are tested by themselves
each_of_one_goal = pytest.mark.parametrize("name", quickly(POLICIES, *QUICK))
