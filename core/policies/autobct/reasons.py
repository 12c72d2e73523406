"""The sentences that AutoBCT ends with: what was gained, what it cost, and what more would, in the metric's units."""

from __future__ import annotations

from haltune.log.history import History

from .assessment import Weighed
from .value.valuation import expected_cost

_NOTHING = 5e-4  # of score


def ending(history: History, weighed: Weighed, going: float, best: int) -> str:
    """That going on, worth `going` with control `best` next, does not pay."""
    ruler, cost = weighed.ruler, float(expected_cost(weighed.x)[best, 0])
    gain = going + cost - weighed.heights[-1]  # of which the costs of trainings after the next are taken off
    more = f"to gain {ruler.amount(gain)}" if gain > _NOTHING else "to gain nothing"
    seconds = weighed.span(ruler.seconds(cost / weighed.gamma))
    but = "" if weighed.warning is None else f". But {weighed.warning}"
    return (
        f"{_gained(history, weighed)}. Going on does not pay: it is expected {more} and another training to take "
        f"{seconds}, worth {ruler.amount(cost)}{_rate(weighed)}. {_kept(history, weighed)}{but}"
    )


def _rate(weighed: Weighed) -> str:
    """By whose rate: a default that nobody chose is said to be one."""
    yours = "gamma= with seconds= sets your own" if weighed.own else "score_per_hour= sets your own"
    return "" if weighed.priced else f" (by gamma={weighed.gamma:g}: {yours})"


def used_up(history: History, weighed: Weighed | None, most: int) -> str:
    """That all of max_trainings are done."""
    if weighed is None:
        return f"max_trainings={most} allows no more"
    return f"{_gained(history, weighed)}. max_trainings={most} allows no more. {_kept(history, weighed)}"


def counted(count: int) -> str:
    """So many trainings."""
    return f"{count} training{'s' * (count != 1)}"


def _gained(history: History, weighed: Weighed) -> str:
    """What was seen and, in brackets, what is believed: the two part where the basis bends less than the truth does."""
    ruler, metric, count = weighed.ruler, history.problem.goal.metric, len(weighed.done)
    first, last = (f"{weighed.done[i].value:.4g}" for i in (0, -1))
    was, now = (f"{ruler.raw(weighed.heights[i]):.4g}" for i in (0, -1))
    spent, worth = weighed.span(weighed.paid), ruler.amount(weighed.score_of(weighed.paid))
    said = f"{counted(count)} for {spent}, worth {worth} of {metric}, "
    if count == 1:
        return f"{said}gave {last} (expected of it again: {now})"
    return f"{said}led from {first} with the first configuration to {last} with the last (expected again: {was}, {now})"


def _kept(history: History, weighed: Weighed) -> str:
    top = history.best()
    seen = "" if top is None else f"; the best seen is {top.value:.4g}, of trial {top.trial}"
    return f"The configuration to keep is the last one, of trial {weighed.done[-1].trials[-1]}{seen}"
