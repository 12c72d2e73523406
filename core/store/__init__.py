"""Storage of the log, the leases and the checkpoints."""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .base import CLAIM, Conflict, Lease, Release, Store
    from .memory import MemoryStore
    from .open import open_store

_MODULES = {
    "base": ("CLAIM", "Conflict", "Lease", "Release", "Store"),
    "memory": ("MemoryStore",),
    "open": ("open_store",),
}
if not TYPE_CHECKING:  # a type checker must see unknown names as errors
    __getattr__, __dir__ = shows(__name__, _MODULES)

__all__ = ["CLAIM", "Conflict", "Lease", "MemoryStore", "Release", "Store", "open_store"]
