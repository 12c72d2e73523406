"""The page about a search: written to a file, or served while the search runs."""

from .page import keep, page, write

__all__ = ["keep", "page", "write"]
