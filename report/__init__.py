"""haltune.report: look at a search. Figures, one self-contained page, a table while it runs, and what if.

Plotly and Rich are imported when a figure or a table is asked for, never before.
"""

from .console import live
from .figure import learning_curves
from .page import write
from .region import region
from .replay import replay
from .summary import summary

__all__ = ["learning_curves", "live", "region", "replay", "summary", "write"]
