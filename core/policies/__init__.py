"""The policies: a module or a package each; of a package, policy.py has the policy."""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows
from haltune.log.policy import Policy  # what one of your own derives from

if TYPE_CHECKING:
    from .autobct.policy import AutoBCT
    from .bayesopt import EI, GPUCB
    from .bayesopt import CostCooledEI as CostCooledEI
    from .bayesopt import EIPerCost as EIPerCost
    from .bobos.halting import Halting
    from .bobos.policy import BOBOS
    from .guided import Guided
    from .hyperband.policy import Hyperband, InfiniteHyperband, Ladder, SuccessiveHalving
    from .multifidelity.policy import MultiFidelity
    from .random import RandomSearch
    from .rollout.policy import Rollout
    from .truvar.policy import LevelSetSearch as LevelSetSearch
    from .truvar.policy import TruVaR

_ROOMS = {
    "autobct.policy": ("AutoBCT",),
    "bayesopt": ("EI", "GPUCB", "CostCooledEI", "EIPerCost"),
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
    "truvar.policy": ("LevelSetSearch", "TruVaR"),
}
if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, _ROOMS)

__all__ = [
    "BOBOS",
    "EI",
    "GPUCB",
    "AutoBCT",
    "Guided",
    "Halting",
    "Hyperband",
    "InfiniteHyperband",
    "Ladder",
    "MultiFidelity",
    "Policy",
    "RandomSearch",
    "Rollout",
    "SuccessiveHalving",
    "TruVaR",
]
POLICY_NAMES = tuple(name for name in __all__ if name != "Policy")  # of the policies that there are
