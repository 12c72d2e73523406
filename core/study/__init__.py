"""Ask, report, finish: a search as a program sees it."""

from .study import Study
from .trial import Fold, Trial

__all__ = ["Fold", "Study", "Trial"]
