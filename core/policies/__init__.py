"""The policies: what to do with the mathematics, one file each."""

from .autobct import AutoBCT
from .bobos import BOBOS
from .ei import EI, CostCooledEI, EIPerCost
from .gpucb import GPUCB
from .guided import Guided
from .hyperband import Hyperband, InfiniteHyperband, SuccessiveHalving
from .ladder import Ladder
from .levelsets import LevelSetSearch
from .random import RandomSearch
from .rollout import Rollout
from .truvar import TruVaR
from .wrappers import Halting

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
    "RandomSearch",
    "Rollout",
    "SuccessiveHalving",
    "TruVaR",
]
