"""The search space, and its map to the unit cube."""

from .space import Space

__all__ = ["Space"]
