"""The policies, a room a paper: its mathematics, and in policy.py who asks for it."""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows
from haltune.log.policy import Policy  # what one of your own derives from

if TYPE_CHECKING:
    from .autobct.policy import AutoBCT
    from .bayesopt.ei import EI, CostCooledEI, EIPerCost
    from .bayesopt.gpucb import GPUCB
    from .bobos.halting import Halting
    from .bobos.policy import BOBOS
    from .guided import Guided
    from .hyperband.policy import Hyperband, InfiniteHyperband, Ladder, SuccessiveHalving
    from .multifidelity.policy import MultiFidelity
    from .random import RandomSearch
    from .rollout.policy import Rollout
    from .truvar.level_set_search import LevelSetSearch
    from .truvar.policy import TruVaR

_ROOMS = {
    "autobct.policy": ("AutoBCT",),
    "bayesopt.ei": (
        "EI",
        "CostCooledEI",
        "EIPerCost",
    ),
    "bayesopt.gpucb": ("GPUCB",),
    "bobos.halting": ("Halting",),
    "bobos.policy": ("BOBOS",),
    "guided": ("Guided",),
    "hyperband.policy": (
        "Hyperband",
        "InfiniteHyperband",
        "Ladder",
        "SuccessiveHalving",
    ),
    "multifidelity.policy": ("MultiFidelity",),
    "random": ("RandomSearch",),
    "rollout.policy": ("Rollout",),
    "truvar.level_set_search": ("LevelSetSearch",),
    "truvar.policy": ("TruVaR",),
}
if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, _ROOMS)

__all__ = [
    "BOBOS",
    "EI",
    "GPUCB",
    "AutoBCT",
    "CostCooledEI",
    "EIPerCost",
    "Guided",
    "Halting",
    "Hyperband",
    "InfiniteHyperband",
    "Ladder",
    "LevelSetSearch",
    "MultiFidelity",
    "Policy",
    "RandomSearch",
    "Rollout",
    "SuccessiveHalving",
    "TruVaR",
]
POLICY_NAMES = tuple(name for name in __all__ if name != "Policy")  # of the policies that there are
