"""haltune spends training time where it pays.

It decides, while deep-learning models train, which run to stop, what to train next and
when to stop looking. Policies live in `haltune.policies`, callbacks in
`haltune.callbacks`, figures in `haltune.report`.
"""

from .decisions import Action, Finish, Resume, Start, Verdict, Wait
from .errors import HaltuneError, HaltuneWarning
from .problem import Budget, Maximize, Minimize, Problem
from .space import Space
from .spaces.domains import Choice, Constant, Float, Int
from .stopping import OptimalStopping
from .study import Study
from .trial import Trial

__all__ = [
    "Action",
    "Budget",
    "Choice",
    "Constant",
    "Finish",
    "Float",
    "HaltuneError",
    "HaltuneWarning",
    "Int",
    "Maximize",
    "Minimize",
    "OptimalStopping",
    "Problem",
    "Resume",
    "Space",
    "Start",
    "Study",
    "Trial",
    "Verdict",
    "Wait",
]
__version__ = "0.1.0"
