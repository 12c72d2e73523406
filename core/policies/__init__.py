"""The policies: what to do with the mathematics, one file each."""

from .bobos import BOBOS
from .gpucb import GPUCB
from .random import RandomSearch
from .wrappers import Halting

__all__ = ["BOBOS", "GPUCB", "Halting", "RandomSearch"]
