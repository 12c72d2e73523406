"""haltune.report: look at a search. Figures, one self-contained page, a table while it runs, and what if.

A figure, and what it rests on, is imported when somebody asks for it: Plotly and Rich never before; the page needs
neither.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

from .replay import replay
from .summary import summary

if TYPE_CHECKING:
    from .console import live
    from .figures.budget import budget
    from .figures.contour import contour
    from .figures.curves import learning_curves
    from .figures.front import front
    from .figures.importance import importance, slices
    from .figures.metrics import metrics
    from .figures.parallel import parallel
    from .figures.policies.calibration import calibration
    from .figures.policies.decisions import decisions
    from .figures.policies.posterior import posterior
    from .figures.policies.region import region
    from .figures.policies.rungs import rungs
    from .figures.progress import edf, progress
    from .figures.timeline import timeline
    from .page import write

_ROOMS = {
    "console": ("live",),
    "figures.budget": ("budget",),
    "figures.contour": ("contour",),
    "figures.curves": ("learning_curves",),
    "figures.front": ("front",),
    "figures.importance": ("importance", "slices"),
    "figures.metrics": ("metrics",),
    "figures.parallel": ("parallel",),
    "figures.policies.calibration": ("calibration",),
    "figures.policies.decisions": ("decisions",),
    "figures.policies.posterior": ("posterior",),
    "figures.policies.region": ("region",),
    "figures.policies.rungs": ("rungs",),
    "figures.progress": ("edf", "progress"),
    "figures.timeline": ("timeline",),
    "page": ("write",),
}
if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, _ROOMS)

__all__ = [
    "budget", "calibration", "contour", "decisions", "edf", "front", "importance", "learning_curves", "live", "metrics",
    "parallel", "posterior", "progress", "region", "replay", "rungs", "slices", "summary", "timeline", "write",
]  # fmt: skip
