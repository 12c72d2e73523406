"""What can be configured, and its map to the unit cube."""

from .space import Space

__all__ = ["Space"]
