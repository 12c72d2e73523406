"""The policies: a module each, or a package whose policy.py holds the policy.

To add a policy, name its module in `_MODULES` and import it for type checkers.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows
from haltune.log.decisions import Resume as Resume  # what your own policies answer
from haltune.log.decisions import Start as Start
from haltune.log.policy import Policy as Policy  # the base class of your own policies

_MODULES = {
    "autobct.policy": ("AutoBCT",),
    "bayesopt": ("EI", "GPUCB"),
    "bobos.policy": ("BOBOS", "Halting"),
    "hyperband.policy": ("Hyperband", "InfiniteHyperband", "Ladder", "SuccessiveHalving"),
    "multifidelity.policy": ("MultiFidelity",),
    "random": ("RandomSearch",),
    "rollout": ("Rollout",),
    "truvar.policy": ("TruVaR",),
}
_PARTS = {"bobos.optimal_stopping": ("OptimalStopping",), "truvar.belief": ("Level",)}  # what some are made of
if TYPE_CHECKING:
    from .autobct.policy import AutoBCT as AutoBCT
    from .bayesopt import EI as EI
    from .bayesopt import GPUCB as GPUCB
    from .bobos.optimal_stopping import OptimalStopping as OptimalStopping
    from .bobos.policy import BOBOS as BOBOS
    from .bobos.policy import Halting as Halting
    from .hyperband.policy import Hyperband as Hyperband
    from .hyperband.policy import InfiniteHyperband as InfiniteHyperband
    from .hyperband.policy import Ladder as Ladder
    from .hyperband.policy import SuccessiveHalving as SuccessiveHalving
    from .multifidelity.policy import MultiFidelity as MultiFidelity
    from .random import RandomSearch as RandomSearch
    from .rollout import Rollout as Rollout
    from .truvar.belief import Level as Level
    from .truvar.policy import TruVaR as TruVaR
else:  # type checkers must report a name that does not exist
    __getattr__, __dir__ = shows(__name__, _MODULES | _PARTS)

POLICY_NAMES = tuple(sorted(name for names in _MODULES.values() for name in names))
__all__ = ["Level", "OptimalStopping", "Policy", "Resume", "Start", *POLICY_NAMES]
