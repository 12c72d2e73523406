"""The policies: what to do with the mathematics, one file each."""

from .bobos import BOBOS
from .gpucb import GPUCB
from .hyperband import Hyperband, InfiniteHyperband, SuccessiveHalving
from .random import RandomSearch
from .wrappers import Halting

__all__ = ["BOBOS", "GPUCB", "Halting", "Hyperband", "InfiniteHyperband", "RandomSearch", "SuccessiveHalving"]
