"""The families by name."""

from __future__ import annotations

from .instances import Instance
from .tables import MLP, Softmax

FAMILIES: dict[str, type[Instance]] = {family.family: family for family in (Softmax, MLP)}
