"""haltune.report: figures, a self-contained page, a live table, and replay under other policies.

Figures and their dependencies (Plotly, Rich) are imported when you use them. The page needs neither.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

from .replay import replay
from .summary import summary

if TYPE_CHECKING:
    from .comparison import compare
    from .console import live
    from .figures.beliefs import posterior, region
    from .figures.curves import learning_curves
    from .figures.decisions import calibration, decisions, rungs
    from .figures.parameters import contour, importance, parallel, rank, slices
    from .figures.results import budget, edf, front, metrics, progress, timeline
    from .page import write

_MODULES = {
    "comparison": ("compare",),
    "console": ("live",),
    "figures.beliefs": ("posterior", "region"),
    "figures.curves": ("learning_curves",),
    "figures.decisions": ("calibration", "decisions", "rungs"),
    "figures.parameters": ("contour", "importance", "parallel", "rank", "slices"),
    "figures.results": ("budget", "edf", "front", "metrics", "progress", "timeline"),
    "page": ("write",),
}
if not TYPE_CHECKING:  # a type checker reports unknown names itself
    __getattr__, __dir__ = shows(__name__, _MODULES)

__all__ = [
    "budget", "calibration", "compare", "contour", "decisions", "edf", "front", "importance", "learning_curves", "live",
    "metrics", "parallel", "posterior", "progress", "rank", "region", "replay", "rungs", "slices", "summary",
    "timeline", "write",
]  # fmt: skip
