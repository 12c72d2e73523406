"""Messages about a running search, shared by the log, the page and the command line.

The logger is "haltune". It logs a line when a trial pauses or ends, and sometimes the state of the search. Reasons are
in `explain`, and in the log with verbose=2. Only the process that opened the study logs; its worker processes, ranks
above 0 and forks do not.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from haltune.display import clipped, clock, counted, duration, numeral, plural, settings, short, shown, titled, visible
from haltune.log.decisions import Action, Finish, Verdict
from haltune.log.events import Status
from haltune.log.folds import plus_minus
from haltune.log.history import History
from haltune.log.outcomes import OUTCOMES, Savings, outcome_of, trained_again
from haltune.log.policy import Policy, called, in_words
from haltune.log.problem import Budget, Problem
from haltune.log.records import Best, TrialRecord
from haltune.space.domains import Float

from .attempt import Attempt, Report

F = TypeVar("F", bound=Callable[..., None])
_log = logging.getLogger("haltune")
_BETWEEN_LINES = 10.0  # seconds between two lines on the state of the search
_BETWEEN_TITLES = 1.0  # seconds between two titles of the terminal's window
_BAR = 20  # characters
_CONFIG, _WHY = 120, 160  # characters of a configuration, and of a reason, on a terminal
WITHIN, BEYOND = " within the limits", ", beyond the limits"  # of the constraints on metrics
_RATE = re.compile(r"(^|_)(lr|eta)($|_)|learning_?rate|step_?size", re.IGNORECASE)  # names of learning rates
_STYLES = {"stopped": "dim", "paused": "dim", "nothing": "red"}  # outcome -> style of its line
_DOES = {Action.CONTINUE: "continues", Action.PAUSE: "pauses", Action.STOP: "stops", Action.UNJUDGED: "not judged"}

# -- a trial and a search in words -------------------------------------------------------------------------------------


def values_of(t: TrialRecord, problem: Problem) -> str:
    """Return the present values of a trial: acc 0.91, ms 12."""
    deviation = plus_minus(t.folds(problem))
    first = f"{problem.goal.metric} {short(float(t.counting(problem.goal)[-1]))}{deviation}"
    found = t.results(problem) if problem.measured else {}
    # the metric of rank_by may not be measured yet
    others = [n for n in problem.measured if n != problem.goal.rank_by or not math.isnan(found[n])]
    return ", ".join([first, *(f"{name} {short(found[name])}" for name in others)])


def lead_of(history: History) -> str | None:
    """Return the best trial, "best acc 0.91 (trial 3)", or the front; None before a trial has a value."""
    problem = history.problem
    if not problem.further:
        if (best := history.best()) is None:
            return None
        complete, goal = history.complete(best.trial), problem.goal
        value, beyond = short(best.value) + plus_minus(best.folds), history.beyond(best.trial)
        if not complete and _seen_better(history, best.value):
            where = problem.at(best.epoch)
            return f"trial {best.trial} leads at {where}: {best.metric} {value}{BEYOND * beyond}"
        return f"best {best.metric} {value} (trial {best.trial}{_though(history, best)})"
    ids = history.front()
    if not ids:
        return None
    front = [history.on_front(id).values for id in ids]
    spans: list[str] = []
    for goal in problem.goals:
        values = sorted((run[goal.metric] for run in front), key=lambda v: -goal.sign * v)
        if len(problem.goals) == 2 and spans:  # of two goals, the best in one is the worst in the other
            values.reverse()
        first, last = short(values[0]), short(values[-1])
        spans.append(f"{goal.metric} {first}" + (f" to {last}" if last != first else ""))
    which = f"front of {plural(len(front), 'trial')}{BEYOND * any(map(history.beyond, ids))}"
    return f"{which}: {', '.join(spans)}"


def shared_fault(history: History) -> str | None:
    """Return what is wrong in most trials: an error of at least half of them, and at least 2; or no finite value.

    Errors that differ only in digits count as the same.
    """
    failed = history.with_status(Status.FAILED)
    errors = [t.error.strip().partition("\n")[0] for t in failed if t.error and t.error.strip()]
    alike = Counter(re.sub(r"\d+", "", error) for error in errors)
    for kind, count in alike.most_common(1):
        if count >= max(2, len(history) / 2):
            example = next(error for error in errors if re.sub(r"\d+", "", error) == kind)
            return f"{count} of {len(history)} trials failed with the same error: {clipped(example, 300)}"
    return none_finite(history, 2)


def none_finite(history: History, least: int = 3) -> str | None:
    """Return that no trial counts with a finite value, and what to do; None if one does, or fewer than `least` report.

    The value of a trial that diverges after some epochs is NaN or infinite, unless its best epoch counts.
    """
    if len(history) < least or history.top is not None:
        return None
    reported = sum(len(t.values) > 0 for t in history.trials)
    if reported < least:
        return None
    space = history.problem.space.parameters
    narrow = "narrow the space"
    if rates := [name for name, p in space.items() if isinstance(p, Float) and _RATE.search(name)]:
        tried = [t.config[rates[0]] for t in history.trials if len(t.values) and rates[0] in t.config]
        lowest = f" (the lowest tried: {short(min(tried))})" if tried else ""
        narrow = f"lower the upper bound of {rates[0]!r}, {space[rates[0]]!r}{lowest}"
    which = f"in all {reported} trials" if reported > 1 else "in the only trial"
    later = any(np.isfinite(t.values).any() for t in history.trials)
    was, check = ("became", "Clip") if later else ("was", "Check the data and the loss for NaN, clip")
    return (
        f"{history.problem.goal.metric} {was} NaN or infinite {which}, so haltune cannot compare trials. "
        f"{check} the gradients, or {narrow}."
    )


def no_value(history: History) -> str:
    """Return why there is no best trial, a sentence; the first letter is small."""
    none = f"no trial has reported a finite {history.problem.goal.metric} yet"
    return none_finite(history, 1) or f"{none} ({plural(len(history), 'trial')} started)."


def standing_line(history: History, budget: Budget, over: bool = False) -> str:
    """Return the state of a search: cost and budget, saved epochs, and the best. over: whether the search is."""
    lines = [spending_line(history, budget, Savings.of(history, over))]
    if (lead := lead_of(history)) is not None:
        lines.append(lead)
    elif over and len(history):
        lines.append(f"no trial has a finite {history.problem.goal.metric}")
    return "; ".join(lines)


def spending_line(history: History, budget: Budget, savings: Savings | None = None) -> str:
    """Return the cost of a search, its budget, and the saved epochs.

    Epochs that were trained again count twice in a budget of epochs. Without such a budget they are shown separately,
    so that trained and saved epochs add up to full trainings.
    """
    spent, budget, again = history.spent, history.wishes.extended(budget), trained_again(history)
    limited = _limits(budget.epochs)
    epochs = numeral(spent.epochs - (0.0 if limited else again))
    notes = savings.words if savings else []
    if again > 0.0:
        notes = [*notes, f"{numeral(again)} {'of them' if limited else 'more'} lost and trained again"]
    passed = budget.trials is not None and spent.trials > budget.trials  # the budget was smaller this time
    parts = [
        _of(counted(spent.trials), None if passed else budget.trials, "trials", "trial"),
        _of(epochs, budget.epochs, history.problem.units, history.problem.unit, numeral)
        + (f" ({'; '.join(notes)})" if notes else ""),
        _of(clock(spent.time), budget.time, "", "", clock),
    ]
    if budget.trials_without_gain is not None:
        parts.insert(1, _of(counted(spent.trials_without_gain), budget.trials_without_gain, "without gain"))
    if budget.worker_time is not None:
        parts.append(_of(clock(spent.worker_time), budget.worker_time, "of worker time", "", clock))
    if budget.money is not None or spent.paid:
        parts.append(_of(counted(round(spent.money(budget.price), 2)), budget.money, "of money"))
    if budget.cost is not None:
        parts.append(_of(counted(round(spent.cost, 2)), budget.cost, "of cost"))
    return ", ".join(parts)


def progress_line(history: History, budget: Budget) -> str:
    """Return the used share of the closest limit and the time that is left, as far as they are known, and the cost."""
    share, left = remaining(history, budget)
    line = spending_line(history, budget)
    return line if share is None else f"{share:.0%}{left}: {line}"


def _limits(limit: Any) -> bool:
    return limit is not None and math.isfinite(limit)


def _of(used: str, limit: Any, several: str, one: str = "", written: Callable[[float], str] = counted) -> str:
    limited = _limits(limit)
    most = f" of {written(float(limit))}" if limited else ""
    single = limit == 1 if limited else used == "1"
    return f"{used}{most} {one if single and one else several}".rstrip()


def unlimited(budget: Budget, policy: Policy[Any]) -> str:
    """Return what ends a search without a budget; "" for others, and if the policy has a number of trials."""
    if budget.to_json().keys() - {"price"}:
        return ""
    if re.search(r"\b(trials|rounds|n)=", in_words(policy)):
        return ""
    until = "" if policy.endless else f"until {called(policy)} has nothing more to train, or "
    return (
        f"No budget is set: the search continues {until}until Ctrl-C; the same program then continues it. To limit "
        "it, pass budget='2h' or budget='50 trials'."
    )


def started_line(t: TrialRecord, problem: Problem) -> str:
    """Return the line of a trial that starts or resumes: its configuration, and why it was chosen."""
    what, why = "started", t.proposed
    if t.attempt > 1:
        what = f"resumed after {problem.at(t.checkpoint_epoch)}" if t.checkpoint_epoch else "started again"
        why = t.resumed
    reason = f" ({_cut(why, _WHY)})" if why else ""
    return f"Trial {t.id} {what}: {_cut(settings(t.config), _CONFIG)}{reason}"


def ended_line(history: History, t: TrialRecord, reasons: bool = True) -> tuple[str, bool]:
    """Return the line of a trial that ended, and whether it is the best or on the front.

    The line has the outcome, the value, the best so far, and the reason. reasons: if False, the line is short: of the
    best so far it has only whether it is this trial, and of the reason its first words.
    """
    problem, found = history.problem, outcome_of(t, history.problem)
    whole = not problem.max_epochs or t.epoch == problem.max_epochs
    if found.kind == "completed" and not whole:
        line = f"Trial {t.id} {found.words}"
    else:
        where = f", {problem.amount(t.epoch)}" if whole else f" at {problem.unit} {problem.reached(t.epoch)}"
        line = f"Trial {t.id} {OUTCOMES[found.kind][0]}{where}"
    if len(t.values):
        line += f": {values_of(t, problem)}"
    if problem.further:
        leads = t.id in history.front()
        line += ", on the front" * leads
    else:
        best = history.best()
        leads = best is not None and best.trial == t.id
        line += f", {_rank(history, t, best)}" if best and (reasons or leads) else ""
    why = t.error or t.ended_because.partition(";")[0]
    if not reasons and not t.error:
        why = why.partition(", ")[0]
    return line + (f"; {_cut(why, _WHY)}" if why else ""), leads


def _rank(history: History, t: TrialRecord, best: Best) -> str:
    """Return the best trial, in words; for the best itself, the trials among which it is the best.

    The best is a complete trial; before there is one, the best of those that trained furthest. Others may have better
    values at earlier epochs.
    """
    goal, complete = history.problem.goal, history.complete(best.trial)
    metric = f"{best.metric} " if best.metric != goal.metric else ""
    if best.trial != t.id:
        if not complete and _seen_better(history, best.value):
            return f"trial {best.trial} leads at {history.problem.at(best.epoch)} with {metric}{short(best.value)}"
        return f"best {metric}{short(best.value)} (trial {best.trial}{_though(history, best)})"
    if history.beyond(t.id):
        return "the nearest to the limits so far"
    if best.metric != goal.metric:
        return f"the best {best.metric} so far"
    # a trial that paused with a better value was reported as the best then
    if not _seen_better(history, best.value, besides=t.id if complete else None):
        return "the best so far"
    others = (u for u in history.trials if u.id != t.id and len(u.values) and not history.beyond(u.id))
    among = 1 + sum(u.complete if complete else u.epoch >= t.epoch for u in others)
    first, within = "highest" if goal.sign > 0 else "lowest", WITHIN * bool(history.problem.constraints)
    if not complete:
        where = f"{history.problem.at(t.epoch)}{within}"
        return f"the {first} of {among} at {where}" if among > 1 else f"the only one at {where}"
    which = f"the {first} of {plural(among, 'complete trial')}" if among > 1 else "the first complete trial"
    return which + within


def _though(history: History, best: Best) -> str:
    """Return what to add to the best trial if another trial has reported a better value, or if it is beyond limits."""
    if history.beyond(best.trial):
        return BEYOND
    if not (history.complete(best.trial) and best.metric == history.problem.goal.metric):
        return ""
    worse = _seen_better(history, best.value, besides=best.trial)
    return (f",{WITHIN}" if history.problem.constraints else ", complete") if worse else ""


def _seen_better(history: History, value: float, besides: int | None = None) -> bool:
    """Return whether a trial has ever reported a better value. besides: a trial whose own curve does not count."""
    goal = history.problem.goal
    for t in history.trials:
        for run in (t, history.furthest_superseded(t.id)):
            if run is None or (run is t and t.id == besides):
                continue
            heights = goal.sign * run.counting(goal)
            if (heights[np.isfinite(heights)] > goal.sign * value).any():
                return True
    return False


def remaining(history: History, budget: Budget | None) -> tuple[float | None, str]:
    """Return the used share of the closest limit, if there is one, and in words the time that is left."""
    share = history.spent.share(history.wishes.extended(budget))
    if share is None or not 0.05 <= share < 1.0:
        return share, ""
    return share, f", about {duration(history.spent.time * (1.0 - share) / share)} left"


def at_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _cut(text: str, most: int) -> str:
    """Shorten a text on a terminal; leave it whole in a file or a pipe."""
    return clipped(text, most) if at_a_terminal() else text


# -- the log -----------------------------------------------------------------------------------------------------------


def _quietly(log: F) -> F:
    """Do nothing if the log has no reader, and suppress errors, so that logging does not end a search."""

    @wraps(log)
    def logged(self: Logger, *args: Any, **kwargs: Any) -> None:
        if self.verbose > 0 and os.getpid() == self._process and shown():
            with suppress(Exception):
                log(self, *args, **kwargs)

    return logged  # type: ignore[return-value]


class Logger:
    """Log a search. verbose: 0 logs nothing, 1 trials as they pause or end, 2 also starts, reports, reasons."""

    def __init__(self, verbose: int) -> None:
        self.verbose = verbose
        self.last_word = True  # whether it logs the end of the search
        self.extend = "To continue it, pass a larger budget=. To start a new search, use another file or another name=."
        self._process = os.getpid()
        self._next: float | None = None  # when to log the state of the search; None before the first line
        self._open: set[int] = set()  # trials whose last start was noted, but not its end
        self._named: set[int] = set()  # trials whose configuration was logged
        self._standing = self._over = ""  # as logged last
        self._retitle = 0.0  # when the terminal's title may change again

    @contextmanager
    def silenced(self) -> Iterator[None]:
        before, self.verbose = self.verbose, 0
        try:
            yield
        finally:
            self.verbose = before

    @_quietly
    def note(self, text: str) -> None:
        self._say(text, "cyan")

    @_quietly
    def started(self, history: History, attempt: Attempt, unlimited: Callable[[], str]) -> None:
        """Log the first start, or each. unlimited: returns what ends the search, if no budget does."""
        if first := self._next is None:
            self._next = time.monotonic() + _BETWEEN_LINES
            if (before := len(history) - (attempt.attempt == 1)) > 0:
                self._say(f"The search continues with {plural(before, 'trial')} so far", "cyan")
            if what_ends_it := unlimited():
                self._say(what_ends_it, "cyan")
        self._open.add(attempt.id)
        if first or self.verbose > 1:
            self._named.add(attempt.id)
            self._say(started_line(history.trial(attempt.id), history.problem))

    @_quietly
    def judged(self, history: History, attempt: Attempt, report: Report, verdict: Verdict, budget: Budget) -> None:
        """Log a report and its verdict with verbose=2; show the state of the search in the terminal's title."""
        self.title(history, budget)
        if self.verbose > 1:
            at, metric = history.problem.at(report.epoch), history.problem.goal.metric
            what = f"Trial {attempt.id}, {at}: {metric} {short(float(report.value))}"
            self._say(f"{what}, {_DOES[verdict.action]}: {verdict.reason}", within=True)

    @_quietly
    def title(self, history: History, budget: Budget) -> None:
        """Show the state of the search in the title of the terminal's window."""
        if (now := time.monotonic()) < self._retitle:
            return
        self._retitle = now + _BETWEEN_TITLES
        if at_a_terminal():
            parts = [progress_line(history, budget), lead_of(history)]
            titled(f"haltune {'; '.join(filter(None, parts))}")

    def forget(self, attempt: Attempt) -> None:
        """Do not log the end of an attempt, because a warning reported it."""
        self._open.discard(attempt.id)

    @_quietly
    def ended(self, history: History, budget: Budget, *, failed: bool = False) -> None:
        """Log the attempts that have ended, here or in another process. failed: also those without a result.

        It is called once the training no longer draws a progress bar. If an attempt failed or was interrupted here, a
        warning reports it instead.
        """
        results = (Status.COMPLETED, Status.STOPPED, Status.PAUSED)
        for trial in sorted(self._open):
            record = history.trial(trial)
            if record.status not in results and (record.status is Status.RUNNING or not failed):
                continue
            self._open.discard(trial)
            line, leads = ended_line(history, record, reasons=self.verbose > 1)
            if trial not in self._named:
                self._named.add(trial)
                line += f"; {_cut(settings(record.config), _CONFIG)}"
            style = _STYLES.get(outcome_of(record, history.problem).kind, "default")
            self._say(line, "bold" if leads else style)
            if self._next is not None and time.monotonic() >= self._next:
                self._stands(history, budget)

    @_quietly
    def over(self, history: History, answer: Finish, budget: Budget) -> None:
        """Log the end of the search, once."""
        self.ended(history, budget, failed=True)
        if self.last_word and answer.reason != self._over:
            self._over, held, idle = answer.reason, answer.reason == history.held, self._next is None
            titled(None)
            self._say(f"The search is {'stopped for now' if held else 'over'}: {answer.reason}", "cyan")
            self._stands(history, budget, over=not held)
            limits, spent = history.wishes.extended(budget), history.spent
            if idle and not held and (spent.exhausts(limits) or spent.starts_no_more(limits)):
                self._say(self.extend, "cyan")

    def _stands(self, history: History, budget: Budget, over: bool = False) -> None:
        self._next, line = time.monotonic() + _BETWEEN_LINES, standing_line(history, budget, over)
        share, left = remaining(history, budget)
        if share is not None and at_a_terminal():
            line = f"[{'#' * int(_BAR * share):.<{_BAR}}] {share:.0%} of the budget{left * (not over)}: {line}"
        if line != self._standing:
            self._standing = line
            self._say(line, "cyan")

    def _say(self, text: str, style: str = "default", within: bool = False) -> None:
        """Log a line. within: True during a training, whose progress bar may be on the screen."""
        _log.info("%s", visible(text, lines=False), extra={"style": style, "within": within})
