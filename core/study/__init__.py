"""Ask, report, finish: a search as a program sees it."""

from .study import Study
from .trial import Trial

__all__ = ["Study", "Trial"]
