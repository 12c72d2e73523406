"""haltune spends training time where it pays.

It decides, while deep-learning models train, which run to stop, what to train next and
when to stop looking. Policies live in `haltune.policies`, callbacks in
`haltune.callbacks`, figures in `haltune.report`.
"""

from .current import current_trial
from .decisions import Action, Finish, Resume, Start, Verdict, Wait
from .errors import HaltuneError, HaltuneWarning
from .levels import Level
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
    "Level",
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
    "current_trial",
]
__version__ = "0.1.0"
