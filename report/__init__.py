"""haltune.report: look at a search. Figures, one self-contained page, a table while it runs, and what if.

Plotly and Rich are imported when a figure or a table is asked for, never before; the page needs neither.
"""

from .console import live
from .figures.budget import budget
from .figures.curves import learning_curves
from .figures.importance import contour, importance, slices
from .figures.parallel import parallel
from .figures.policies.calibration import calibration
from .figures.policies.decisions import decisions
from .figures.policies.posterior import posterior
from .figures.policies.region import region
from .figures.policies.rungs import rungs
from .figures.progress import progress
from .figures.timeline import timeline
from .page import write
from .replay import replay
from .summary import summary

__all__ = [
    "budget", "calibration", "contour", "decisions", "importance", "learning_curves", "live", "parallel", "posterior",
    "progress", "region", "replay", "rungs", "slices", "summary", "timeline", "write",
]  # fmt: skip
