"""What a search says while it runs, in the log "haltune": a line as a trial begins, one as it ends, and how far it is.

Quiet in processes that train for another: settings that leave their process are silent, ranks above 0 have a session
without a voice, and a fork is not who was asked to speak.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

from haltune.display import clipped, clock, counted, heard, plural, settings, short, visible
from haltune.log.decisions import Action, Finish, Verdict
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.outcomes import OUTCOMES, Savings, lead_of, outcome_of, trained_again, values_of
from haltune.log.policy import Policy, called, in_words
from haltune.log.problem import Budget
from haltune.log.records import Best, TrialRecord

from .attempt import Attempt

_log = logging.getLogger("haltune")
_BETWEEN_LINES = 10.0  # seconds between two lines of how far the search is
_BAR = 20  # characters
_CONFIG, _WHY = 120, 160  # characters of a configuration, and of a reason, on a terminal
_STYLES = {"stopped": "dim", "paused": "dim", "nothing": "red"}  # of the line of a trial that ended so
_DOES = {
    Action.CONTINUE: "trains on",
    Action.PAUSE: "pauses",
    Action.STOP: "stops",
    Action.UNJUDGED: "not judged",
}


class Voice:
    """Says it. verbose: 0 nothing, 1 a line as a trial begins and one as it ends; from 2 on `judged` is called, too."""

    def __init__(self, verbose: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.verbose = verbose
        self._clock, self._process = clock, os.getpid()
        self._next: float | None = (
            None  # when it is time to say how far the search is; None: nothing was said yet
        )
        self._begun: set[tuple[int, int]] = set()  # attempts that it told of, and not yet of their end
        self.last_word = True  # whether it says that the search is over; False where somebody else does
        self._left: list[tuple[int, int]] = []  # ended, and not told of yet
        self._standing = self._over = ""  # as it was said last

    @contextmanager
    def hushed(self) -> Iterator[None]:
        """Silent meanwhile: something else shows the trials."""
        before, self.verbose = self.verbose, 0
        try:
            yield
        finally:
            self.verbose = before

    def aside(self, words: str) -> None:
        """What is to be known of the search."""
        if self._speaks():
            self._say(lambda: words, "cyan")

    def begins(self, history: History, attempt: Attempt, unlimited: str = "") -> None:
        """An attempt was handed out. unlimited: see `unlimited`."""
        if not self._speaks():
            return
        if self._next is None:
            self._next = self._clock() + _BETWEEN_LINES
            if (before := len(history) - (attempt.attempt == 1)) > 0:
                self._say(lambda: f"the search continues, with {plural(before, 'trial')} so far", "cyan")
            if unlimited:
                self._say(lambda: unlimited, "cyan")
        before_it = {begun for begun in self._begun if begun[0] == attempt.id}  # a warning told of their end
        self._begun = self._begun - before_it | {(attempt.id, attempt.attempt)}
        self._say(lambda: begun(history.trial(attempt.id)))

    def judged(
        self, history: History, attempt: Attempt, epoch: float, value: float, verdict: Verdict
    ) -> None:
        """A report was decided on."""
        if self._speaks():
            what = f"trial {attempt.id}, epoch {epoch:g}: {history.problem.goal.metric} {short(float(value))}"
            self._say(lambda: f"{what}, {_DOES[verdict.action]}: {verdict.reason}", within=True)

    def leaves(self, attempt: Attempt) -> None:
        """An attempt is over; told later: a framework's hook may have ended it, and its bar be on the screen."""
        if self.verbose:
            self._left.append((attempt.id, attempt.attempt))

    def forgets(self, attempt: Attempt) -> None:
        """A warning told how an attempt ended."""
        self._begun.discard((attempt.id, attempt.attempt))

    def tell(self, history: History, budget: Budget) -> None:
        """Of those that left."""
        while self._left:
            self.ended(history, *self._left.pop(0), budget)

    def ended(self, history: History, trial: int, attempt: int, budget: Budget) -> None:
        """An attempt is over, here or in a process that trained it for this one. Told once."""
        if (trial, attempt) not in self._begun or not self._speaks():
            return
        self._begun.discard((trial, attempt))
        record, best = history.trial(trial), history.best()
        leads = best is not None and best.trial == record.id
        if history.problem.further:
            leads = record.id in history.front()
        look = "bold" if leads else _STYLES.get(outcome_of(record, history.problem).kind, "default")
        self._say(lambda: ending(history, record, best), look)
        if self._next is not None and self._clock() >= self._next:
            self._stands(history, budget)

    def over(self, history: History, answer: Finish, budget: Budget) -> None:
        """The search is over. Told once."""
        for trial, attempt in sorted(self._begun):
            if history.trial(trial).status is not Status.RUNNING:
                self.ended(history, trial, attempt, budget)
        if self.last_word and answer.reason != self._over and self._speaks():
            self._over = answer.reason
            held = answer.reason == history.held
            state = "stopped for now" if held else "over"
            self._say(lambda: f"the search is {state}: {answer.reason}", "cyan")
            self._stands(history, budget, over=not held)

    def _stands(self, history: History, budget: Budget, over: bool = False) -> None:
        self._next, told = self._clock() + _BETWEEN_LINES, standing_line(history, budget, over)
        told = f"{_bar(history, budget)}{told}"
        if told != self._standing:
            self._standing = told
            self._say(lambda: told, "cyan")

    def _speaks(self) -> bool:
        return self.verbose > 0 and os.getpid() == self._process and heard()

    def _say(self, words: Callable[[], str], style: str = "default", within: bool = False) -> None:
        """within: a training, whose bar may be on the screen."""
        with suppress(Exception):  # what cannot be said must not end a search
            _log.info("%s", visible(words(), lines=False), extra={"style": style, "within": within})


def unlimited(budget: Budget, policy: Policy[Any]) -> str:
    """Of a search that no budget ends, what does; "" of others, and where its policy was given a number of trials."""
    if any(_limits(getattr(budget, f.name)) for f in fields(budget) if f.name != "price"):
        return ""
    if re.search(r"\b(trials|rounds|n)=", in_words(policy)):
        return ""
    until = "" if policy.endless else f"until {called(policy)} has nothing more to train, or "
    return (
        f"no budget ends this search: it continues {until}until Ctrl-C, from where the same program continues; "
        "budget='2h' or budget='50 trials' limits it"
    )


def begun(t: TrialRecord) -> str:
    """The line of a trial that begins, or goes on: its configuration, and why it was chosen."""
    after = f"continues after epoch {t.checkpoint_epoch:g}" if t.checkpoint_epoch else "begins again"
    what, why = (after, t.resumed) if t.attempt > 1 else ("begins", t.proposed)
    reason = f" ({_within(why, _WHY)})" if why else ""
    return f"trial {t.id} {what}: {_within(settings(t.config), _CONFIG)}{reason}"


def ending(history: History, t: TrialRecord, best: Best | None) -> str:
    """The line of a trial that ended: what became of it, its value beside the best so far, and why it was stopped."""
    problem = history.problem
    found = outcome_of(t, problem)
    of = f" of {problem.max_epochs}" if problem.max_epochs and t.epoch != problem.max_epochs else ""
    where = f" at epoch {t.epoch:g}{of}" if of else f", {plural(t.epoch, 'epoch')}"
    told = (
        f"trial {t.id} {found.words if found.kind == 'completed' and of else OUTCOMES[found.kind][0] + where}"
    )
    if len(t.values):
        told += f": {values_of(t, problem)}"
    if problem.further:
        told += ", on the front" if t.id in history.front() else ""
    elif best is not None:
        told += f", {_beside_the_best(history, t, best)}"
    why = t.error or t.ended_because.partition(";")[0]
    return told + (f"; {_within(why, _WHY)}" if why else "")


def _within(text: str, most: int) -> str:
    """Cut on a terminal, where a line is read at a glance; whole in a file or a pipe."""
    return clipped(text, most) if _at_a_terminal() else text


def _at_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _beside_the_best(history: History, t: TrialRecord, best: Best) -> str:
    """The best is a complete trial; before there is one, the best of those that trained furthest.

    So others may have better values at earlier epochs: then it is only the best of the trials that it is compared with.
    """
    goal, complete = history.problem.goal, history.trial(best.trial).complete
    if best.trial != t.id:
        worse = goal.better(t.result(goal), than=best.value)
        of = f", {'complete' if complete else f'at epoch {best.epoch:g}'}" if worse else ""
        return f"best {short(best.value)} (trial {best.trial}{of})"
    others = [u for u in history.trials if u.id != t.id and len(u.values)]
    if not any(goal.better(u.result(goal), than=best.value) for u in others):
        return "the best so far"
    among = 1 + sum(u.complete if complete else u.epoch >= t.epoch for u in others)
    first = "highest" if goal.sign > 0 else "lowest"
    if not complete:
        return f"the {first} of {among} at epoch {t.epoch:g}"
    return f"the {first} of {plural(among, 'complete trial')}" if among > 1 else "the first complete trial"


def _bar(history: History, budget: Budget) -> str:
    """On a terminal, how much of the budget is spent, by the limit of which most is; "" elsewhere, or without one."""
    share = history.spent.share(history.wishes.extended(budget))
    if share is None or not _at_a_terminal():
        return ""
    return f"[{'#' * int(_BAR * share):.<{_BAR}}] {share:.0%} of the budget: "


def standing_line(history: History, budget: Budget, over: bool = False) -> str:
    """How far a search is: what it has cost beside its budget, what stopping saved, and its best."""
    problem = history.problem
    told = [spending_line(history, budget, Savings.of(history, over))]
    if (lead := lead_of(history)) is not None:
        told.append(lead)
    elif over and len(history):
        told.append(f"no trial has come to a finite {problem.goal.metric}")
    return "; ".join(told)


def spending_line(history: History, budget: Budget, savings: Savings | None = None) -> str:
    """What a search has cost, beside its budget, and what of full trainings was not trained.

    Epochs that were trained again are paid for twice: a limit counts them, trained and saved epochs make the whole.
    """
    spent, budget, again = history.spent, history.wishes.extended(budget), trained_again(history)
    once = spent.epochs - (0.0 if _limits(budget.epochs) else again)
    notes = savings.words if savings else []
    of_them = "of them" if _limits(budget.epochs) else "more"
    notes += [f"{counted(round(again, 1))} {of_them} lost and trained again"] * (again > 0.0)
    spared = f" ({'; '.join(notes)})" if notes else ""
    told = [
        _beside(counted(spent.trials), budget.trials, "trials"),
        _beside(counted(round(once, 1)), budget.epochs, "epochs") + spared,
        _beside(clock(spent.time), budget.time, "", clock),
    ]
    if budget.worker_time is not None:
        told.append(_beside(clock(spent.worker_time), budget.worker_time, "of worker time", clock))
    if budget.money is not None:
        told.append(_beside(counted(round(spent.money(budget.price), 2)), budget.money, "of money"))
    if budget.cost is not None:
        told.append(_beside(counted(round(spent.cost, 2)), budget.cost, "of cost"))
    return ", ".join(told)


def _limits(limit: Any) -> bool:
    return limit is not None and math.isfinite(limit)


def _beside(used: str, limit: Any, unit: str, written: Callable[[float], str] = counted) -> str:
    limited = _limits(limit)
    most = f" of {written(float(limit))}" if limited else ""
    one = limit == 1 if limited else used == "1"
    return f"{used}{most} {unit.removesuffix('s') if one else unit}".rstrip()
