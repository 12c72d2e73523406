"""Where a study is that is watched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from haltune.store.base import Store
from haltune.store.open import open_store


@dataclass(frozen=True)
class Location:
    """Where a study is; what writes to it is opened when somebody first asks for something."""

    store: Store  # to be read
    name: str
    url: str  # to be written
    checkpoints: str | None = None  # their folder, where it is not the one beside the store

    @cached_property
    def written(self) -> Store:
        """The store, to be written."""
        return open_store(self.url)
