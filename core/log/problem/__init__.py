"""What is searched: a space, its goals and constraints, a horizon, and the budget it may cost."""

from .budget import Budget, seconds_of
from .constraints import Constraint
from .goals import Goal, Maximize, Minimize, goal_from_json
from .problem import ENDLESS, Problem

__all__ = [
    "ENDLESS",
    "Budget",
    "Constraint",
    "Goal",
    "Maximize",
    "Minimize",
    "Problem",
    "goal_from_json",
    "seconds_of",
]
