"""The page about a search: written to a file, or served while the search runs."""

from .page import page, write

__all__ = ["page", "write"]
