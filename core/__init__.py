"""haltune decides, while models train, which trial to stop, what to train next and when to end the search.

Policies are in `haltune.policies`, callbacks in `haltune.callbacks`, figures in `haltune.report`.
"""

from haltune._utils.lazy import shows
from haltune.errors import HaltuneError, HaltuneWarning
from haltune.log.decisions import Action, Finish, Verdict, Wait
from haltune.log.problem import Budget, Constraint, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.space.domains import Choice, Constant, Float, Int
from haltune.store.checkpoints import Checkpointing
from haltune.store.open import Storage
from haltune.study import Study, Trial
from haltune.study.loading import current_trial, load_study

_PACKAGES = ("callbacks", "keras_tuner", "launch", "optuna", "ray_tune", "report", "syne_tune", "trackers")
__getattr__, __dir__ = shows(__name__, {}, _PACKAGES)

__all__ = [
    "Action",
    "Budget",
    "Checkpointing",
    "Choice",
    "Constant",
    "Constraint",
    "Finish",
    "Float",
    "HaltuneError",
    "HaltuneWarning",
    "Int",
    "Maximize",
    "Minimize",
    "Problem",
    "Space",
    "Storage",
    "Study",
    "Trial",
    "Verdict",
    "Wait",
    "current_trial",
    "load_study",
]
__version__ = "0.3.1"
