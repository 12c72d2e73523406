"""What a search has cost so far, and which limit of its budget is spent."""

from .spending import Accounted, Outcome, Spending, Spent, summable

__all__ = ["Accounted", "Outcome", "Spending", "Spent", "summable"]
