"""The sentences that AutoBCT ends with: what was gained, what it cost, and what more would, in the metric's units."""

from __future__ import annotations

from haltune._utils.words import plural
from haltune.log.history import History

from .assessment import Assessment
from .value.valuation import expected_cost

_NEGLIGIBLE = 5e-4  # of score


def ending(history: History, assessment: Assessment, going: float, best: int) -> str:
    """That going on, worth `going` with control `best` next, does not pay."""
    ruler, cost = assessment.ruler, float(expected_cost(assessment.x)[best, 0])
    gain = (
        going + cost - assessment.heights[-1]
    )  # of which the costs of trainings after the next are taken off
    more = f"to gain {ruler.amount(gain)}" if gain > _NEGLIGIBLE else "to gain nothing"
    seconds = assessment.span(ruler.seconds(cost / assessment.gamma))
    but = "" if assessment.warning is None else f". But {assessment.warning}"
    return (
        f"{_gained(history, assessment)}. Going on does not pay: it is expected {more} and another training to take "
        f"{seconds}, worth {ruler.amount(cost)}{_rate(assessment)}. {_kept(history, assessment)}{but}"
    )


def _rate(assessment: Assessment) -> str:
    """By whose rate: a default that nobody chose is said to be one."""
    yours = "gamma= with seconds= sets your own" if assessment.own else "score_per_hour= sets your own"
    return "" if assessment.priced else f" (by gamma={assessment.gamma:g}: {yours})"


def used_up(history: History, assessment: Assessment | None, most: int) -> str:
    """That all of max_trainings are done."""
    if assessment is None:
        return f"max_trainings={most} allows no more"
    return (
        f"{_gained(history, assessment)}. max_trainings={most} allows no more. {_kept(history, assessment)}"
    )


def _gained(history: History, assessment: Assessment) -> str:
    """What was seen and, in brackets, what is believed: the two part where the basis bends less than the truth does."""
    ruler, metric, count = assessment.ruler, history.problem.goal.metric, len(assessment.done)
    first, last = (f"{assessment.done[i].value:.4g}" for i in (0, -1))
    was, now = (f"{ruler.raw(assessment.heights[i]):.4g}" for i in (0, -1))
    spent, worth = assessment.span(assessment.paid), ruler.amount(assessment.score_of(assessment.paid))
    said = f"{plural(count, 'training')} for {spent}, worth {worth} of {metric}, "
    if count == 1:
        return f"{said}gave {last} (expected of it again: {now})"
    return f"{said}led from {first} with the first configuration to {last} with the last (expected again: {was}, {now})"


def _kept(history: History, assessment: Assessment) -> str:
    top = history.best()
    seen = "" if top is None else f"; the best seen is {top.value:.4g}, of trial {top.trial}"
    return f"The configuration to keep is the last one, of trial {assessment.done[-1].trials[-1]}{seen}"
