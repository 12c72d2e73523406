"""What a search has cost so far, and which limit of its budget is spent."""

from .spending import Accounted as Accounted
from .spending import Outcome as Outcome
from .spending import Spending as Spending
from .spending import Spent as Spent
from .spending import summable as summable
