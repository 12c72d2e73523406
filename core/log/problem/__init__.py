"""What is searched: a space, a goal, a horizon, and the budget it may cost."""

from .budget import Budget, seconds_of
from .goals import Goal, Maximize, Minimize, goal_from_json
from .problem import ENDLESS, Problem

__all__ = ["ENDLESS", "Budget", "Goal", "Maximize", "Minimize", "Problem", "goal_from_json", "seconds_of"]
