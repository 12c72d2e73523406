"""Explain the decisions in a log, audit its stops, and estimate the gain of continuing.

explanation  each decision on a trial, its reason and its numbers, and the epochs that it saved
audit        how often a stopped trial would have won, from trials that `audit=` lets train to the end
outlook      the probability that continuing finds a better configuration
frame        the reports as a table
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.checks import is_number
from haltune._utils.process import named
from haltune.display import amount, chance, duration, numeral, percent, plural, several_of, short, visible
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import AUDIT
from haltune.log.events import Status, trial_of
from haltune.log.folds import EPOCH, FOLD, of_fold, over_folds, spread
from haltune.log.history import History
from haltune.log.metric_names import limit
from haltune.log.outcomes import Comparisons, outcome_of, saved_epochs
from haltune.log.problem import Goal, Problem
from haltune.log.records import Best, TrialRecord

if TYPE_CHECKING:
    import pandas as pd

# -- a trial's decisions -----------------------------------------------------------------------------------------------


def explanation(history: History, trial: int, log: Iterable[ev.Event], over: bool, lost: Container[int]) -> str:
    """Return each decision on a trial, as text.

    over: whether the search is. lost: trials whose workers are gone. Raises InvalidInput for no such trial.
    """
    record, problem = history.trial(trial), history.problem
    comparisons = Comparisons(history, over)
    found = _Lines(comparisons, record, lost)
    found.add("ended because", comparisons.now(record))
    found.add("folds", _folds(record, problem))
    smooth = {} if record.smoothed is None else dict(zip(record.epochs, record.smoothed, strict=True))
    for e in log:
        if trial_of(e) != trial:
            continue
        if isinstance(e, ev.Started):
            found.add("proposed", e.reason, e.evidence)
        elif isinstance(e, ev.Resumed):
            found.add(f"attempt {e.attempt}", e.reason, e.evidence)
        elif isinstance(e, ev.Reported):
            others = [f"{n} {e.metrics[n]:.6g}" for n in problem.measured if n in e.metrics]
            seen = smooth.get(e.epoch, math.nan) if e.attempt == record.attempt else math.nan
            first = f"{e.value:.6g}" + (f" (smoothed {seen:.6g})" if math.isfinite(seen) else "")
            if over_folds(e.metrics):
                at = f"{problem.unit} {numeral(e.metrics[EPOCH])} of fold {e.metrics[FOLD]:.0f}"
                first += f" ({at}: {e.metrics[of_fold(problem.goal.metric)]:.6g})"
            values, v = ", ".join([first, *others]), e.verdict
            found.add(problem.at(e.epoch), f"{values} -> {v.action}: {v.reason}", v.evidence)
        elif isinstance(e, ev.Ended):
            found.add("ended", f"{e.status} ({e.error})" if e.error else str(e.status))
            found.quote(e.traceback or "")
        elif isinstance(e, ev.Asked):
            found.add("asked", f"{e.wish}: {e.reason}")
        elif isinstance(e, ev.Noted):
            found.add("note", e.text or "removed")
        elif isinstance(e, ev.Expired):
            found.add("lost", f"{e.reason or f'{named(e.holder)} is gone'}; the trial is {e.status}")
    return found.text()


def short_explanation(comparisons: Comparisons, trial: int, lost: Container[int] = ()) -> str:
    """Return the outcome of a trial and its reason, as text. Raises InvalidInput for an unknown trial."""
    history, record = comparisons.history, comparisons.history.trial(trial)
    problem, values = history.problem, record.counting(history.problem.goal)
    found = _Lines(comparisons, record, lost)
    if len(values):
        found.add(problem.goal.metric, f"{values[-1]:.6g}, after {problem.at(record.epoch)}")
        found.add("folds", _folds(record, problem))
        others = record.results(problem) if problem.measured else {}
        for name in problem.measured:
            found.add(name, f"{others[name]:.6g}")
    found.add("note", history.notes.get(trial, ""))
    found.add("proposed", record.proposed)
    found.add("continued as", record.resumed)
    for title, reason in comparisons.because(record):
        found.add(title, reason)
    return found.text()


def _folds(record: TrialRecord, problem: Problem) -> str:
    """Return the last value of each fold, and their spread."""
    values = record.folds(problem)
    deviation = spread(values)
    return ", ".join(short(v) for v in values) + (f"; standard deviation {short(deviation, 2)}" if deviation else "")


class _Lines:
    """The lines of an explanation: the outcome first, the saved epochs last."""

    def __init__(self, comparisons: Comparisons, record: TrialRecord, lost: Container[int]) -> None:
        self._comparisons, self._record = comparisons, record
        found = outcome_of(record, comparisons.history.problem, comparisons.over, lost)
        self._lines = [f"trial {record.id}: {found.words}"]
        config = ", ".join(f"{name}={_number_of(value)}" for name, value in record.config.items())
        self.add("configuration", config or "the only one there is")

    def add(self, title: str, text: str, evidence: Mapping[str, Any] = {}) -> None:
        if not (text or evidence):
            return
        self._lines.append(f"  {title:<14} {text}")
        if numbers := ", ".join(f"{name} {_number_of(value)}" for name, value in evidence.items()):
            self._lines.append(f"  {'':<14} [{numbers}]")

    def quote(self, text: str) -> None:
        self._lines += [f"  {'':<14} {line}" for line in text.splitlines()]

    def text(self) -> str:
        record, problem = self._record, self._comparisons.history.problem
        if epochs := saved_epochs(record, problem, self._comparisons.over):
            seconds = self._comparisons.saved_seconds.get(record.id, 0.0)
            horizon = problem.max_epochs or math.inf
            share = f"{numeral(epochs)} of {problem.amount(horizon)} ({epochs / horizon:.0%})"
            self.add("saved", f"{share}, about {duration(seconds)}")
        return visible("\n".join(self._lines))


def _number_of(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


# -- audit -------------------------------------------------------------------------------------------------------------
#
# The policy draws a share of the trials before they start, and continues them where the rule would stop them
# (`policies/bobos/policy.py`). This code counts them, from the log alone.
#
#   would-be stop   the report at which an audited trial would have been stopped, with the numbers of that decision
#   wrong           the trial ended above the incumbent of that report, both by the value that counts for the goal
#   unknown         the trial failed, was stopped for another reason, or is not over
#   winner          an audited trial that ended above the incumbent of the last decision on it

_TAIL = 0.025  # beyond each end of a 95% interval


@dataclass(frozen=True)
class Rate:
    """A share that was counted."""

    count: int
    of: int

    @property
    def value(self) -> float:
        """The share; NaN if `of` is 0."""
        return self.count / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95% interval of Clopper and Pearson; (0, 1) if `of` is 0."""
        from scipy.special import betaincinv  # the import takes a third of a second, so not at the top

        k, rest = self.count, self.of - self.count
        low = float(betaincinv(k, rest + 1, _TAIL)) if k else 0.0
        return low, float(betaincinv(k + 1, rest, 1.0 - _TAIL)) if rest else 1.0

    def __str__(self) -> str:
        if not self.of:
            return "0 of 0"
        share, low, high = map(percent, (self.value, *self.interval))
        return f"{self.count} of {self.of}: {share}, 95% interval {low} to {high}"


def enough(share: float) -> int:
    """Return how many stops, none of them wrong, are needed for a 95% interval below `share` (above 0)."""
    return math.ceil(math.log(_TAIL) / math.log1p(-share))


@dataclass(frozen=True)
class WouldBeStop:
    """A trial that would have been stopped, and how it ended."""

    trial: int
    epoch: float  # at which it would have been stopped
    p_win: float  # probability that it wins, from the rule; NaN if the rule estimated none
    incumbent: float  # the best value at that time, the goal's metric
    came_to: float  # the trial's final value; NaN if it has none, or is not known
    wrong: bool | None  # None: not known
    paths: int = 0  # simulated curves behind p_win; 0: not in the log
    unit: str = "epoch"  # what the study counts

    def __str__(self) -> str:
        seen = "" if math.isnan(self.p_win) else chance(self.p_win, self.paths)
        seen = f" with P(beats {self.incumbent:.4g}) {seen}" if seen else ""
        value = "no final value" if math.isnan(self.came_to) else f"final value {self.came_to:.4g}"
        end = "its end is not known"
        if self.wrong is not None:
            end = f"{value}: a {'wrong' if self.wrong else 'right'} stop"
        return f"trial {self.trial}, at {self.unit} {numeral(self.epoch)}{seen}; {end}"


@dataclass(frozen=True)
class Audit:
    """Rate of wrong stops, measured on trials that continued beyond a stop; see `Study.audit`."""

    share: float  # of the trials that are drawn; 0 without an audit
    audited: int  # trials drawn
    stops: int  # of these, the ones that would have been stopped
    wrong: int  # of the stops, trials that beat the incumbent of that moment
    unknown: int  # of the stops, trials that failed, were stopped for another reason, or are not over
    of_stops: Rate  # wrong stops among those whose end is known
    of_winners: Rate  # wrong stops among audited trials that beat their incumbent
    cost: float  # epochs that audited trials trained after they would have been stopped
    saved: float  # epochs that stopping by the rule saved, in all trials of the study
    wanted: float  # share of stops that may be wrong
    K1: float | None  # smallest that would reach `wanted` among those trials; None if none does, see `advice`
    at_K1: Rate  # wrong stops among those trials with that K1
    runs: tuple[WouldBeStop, ...] = ()
    unit: str = "epoch"  # what the study counts

    def __str__(self) -> str:
        if not self.share:
            return "No audit: this policy continues no trial beyond a stop. Measure wrong stops with BOBOS(audit=0.05)."
        lines = [f"audit of {percent(self.share)} of the trials: {self.audited} drawn so far"]
        saved = f"stopping saved {amount(self.saved, several_of(self.unit))} in the other trials"
        if not self.stops:
            return f"{lines[0]}, none of them would have been stopped; {saved}"
        lines[0] += f", {self.stops} of them would have been stopped"
        lines[0] += f" (the end of {self.unknown} is not known)" if self.unknown else ""
        lines[0] += f"; wrong stops {self.of_stops}" if self.of_stops.of else ""
        if self.of_winners.of:
            lines.append(f"winners that stopping would have lost: {self.of_winners}")
        return "\n".join([*lines, f"the audit cost {amount(self.cost, several_of(self.unit))}; {saved}", self.advice])

    @property
    def advice(self) -> str:
        """The K1 that keeps wrong stops at the wanted share, and whether there are enough trials; or why none does."""
        goal = f"at most {percent(self.wanted)} of stops wrong"
        if self.K1 is None and not self.of_stops.of:
            return f"the K1 for {goal} is not known: no trial that would have been stopped has ended"
        if self.K1 is None:
            return f"no K1 gives {goal}: the rule predicted probability 0 for trials that won"
        if not self.at_K1.of:
            return f"K1={self.K1:g} stops none of these trials, so they do not show if it gives {goal}"
        if self.at_K1.interval[1] <= self.wanted:
            return f"K1={self.K1:g} gives {goal}: among these trials {self.at_K1}"
        needed = f"; at least {enough(self.wanted)} stops are needed" if self.wanted else ""
        return f"too few stops to show whether K1={self.K1:g} gives {goal}: among these trials {self.at_K1}{needed}"


def audit(history: History, log: Iterable[ev.Event], wanted: float) -> Audit:
    """Return the audit of a study, from its whole log. Raises InvalidInput for a share outside [0, 1)."""
    if not (is_number(wanted) and 0.0 <= wanted < 1.0):
        raise InvalidInput(f"wanted={wanted!r}: the share of stops that may be wrong, from 0 to below 1")
    events = iter(log)
    first = next(events, None)
    options = next(_auditing(first.policy), None) if isinstance(first, ev.Created) else None
    if options is None:
        return Audit(0.0, 0, 0, 0, 0, Rate(0, 0), Rate(0, 0), 0.0, 0.0, wanted, None, Rate(0, 0))
    followed: dict[int, _Audited] = {}
    for e in events:
        if isinstance(e, ev.Started) and AUDIT in e.evidence:
            followed[e.trial] = _Audited(e.trial)
        elif isinstance(e, ev.Resumed | ev.AttemptEvent) and e.trial in followed:
            followed[e.trial].take(e)
    runs = list(followed.values())
    for run in runs:
        run.end(history)
    stops = [run for run in runs if run.stop is not None]
    wrong, right = (sum(run.wins is wins for run in stops) for wins in (True, False))
    K1, at_K1 = _least_K1(runs, options.get("stopping", {}), wanted)
    over = history.finished is not None
    by_rule = [  # stopped because they would not beat the incumbent, not by an inner policy
        t for t in history.trials if t.status is Status.STOPPED and t.verdict and "incumbent" in t.verdict.evidence
    ]  # fmt: skip
    return Audit(
        share=float(options[AUDIT]),
        audited=len(runs),
        stops=len(stops),
        wrong=wrong,
        unknown=len(stops) - wrong - right,
        of_stops=Rate(wrong, wrong + right),
        of_winners=Rate(wrong, sum(run.wins is True for run in runs)),
        cost=sum(run.cost for run in runs),
        saved=sum(saved_epochs(t, history.problem, over) for t in by_rule),
        wanted=wanted,
        K1=K1,
        at_K1=at_K1,
        runs=tuple(run.would_be_stop(run.stop, history.problem.unit) for run in stops if run.stop),
        unit=history.problem.unit,
    )


@dataclass
class _Audited:
    """One audited trial, followed through the log."""

    trial: int
    attempt: int = 1
    held: bool = True  # by a worker; otherwise reports belong to an attempt that is over
    epoch: float = 0.0
    checkpoint: float = 0.0  # epoch from which another attempt would continue
    cost: float = 0.0
    incumbent: float = math.nan  # at the last decision on it
    reach: float = -math.inf  # the largest K1 at which it would have been stopped, as a multiple of its own
    decided: list[ev.Reported] = field(default_factory=list)  # up to `stop`
    value: float = math.nan
    wins: bool | None = None

    def take(self, e: ev.Resumed | ev.AttemptEvent) -> None:
        if isinstance(e, ev.Resumed):
            self.attempt, self.held = e.attempt, True
            self.epoch = self.checkpoint = 0.0 if e.anew else self.checkpoint
            if e.given_up:
                self.decided = [d for d in self.decided if d.epoch <= self.epoch]
        elif e.attempt != self.attempt:
            return
        elif isinstance(e, ev.Checkpointed) and self.held:
            self.checkpoint = e.epoch
        elif isinstance(e, ev.Ended | ev.Expired):
            self.held = False
        elif isinstance(e, ev.Reported) and self.held and e.epoch > self.epoch:
            if self.stop is not None and not e.copied:
                self.cost += e.epoch - self.epoch
            self.epoch = e.epoch
            if self.stop is None:
                self.decided.append(e)

    @property
    def stop(self) -> ev.Reported | None:
        """The decision by which it would have been stopped."""
        last = self.decided[-1:]
        return last[0] if last and AUDIT in last[0].verdict.evidence else None

    def end(self, history: History) -> None:
        """Note the final value, of a trial that ended as it would have by itself."""
        t, goal = history.trial(self.trial), history.problem.goal
        for e in self.decided:
            self.incumbent = _number(e.verdict.evidence, "incumbent", self.incumbent)
            self.reach = max(self.reach, _reach(e.verdict.evidence))
        if t.status is Status.COMPLETED or (t.status is Status.STOPPED and t.complete):
            self.value = t.result(goal)
            if not math.isnan(self.incumbent):
                self.wins = goal.sign * self.value > goal.sign * self.incumbent  # False without a value

    def would_be_stop(self, stop: ev.Reported, unit: str) -> WouldBeStop:
        p_win, paths = _number(stop.verdict.evidence, "p_win"), _number(stop.verdict.evidence, "paths", 0.0)
        return WouldBeStop(self.trial, stop.epoch, p_win, self.incumbent, self.value, self.wins, int(paths), unit)


def _reach(evidence: Mapping[str, Any]) -> float:
    """Return the largest K1 at which a decision would have been to stop, as a multiple of the K1 it was made with.

    A trial is stopped if K1 p_win is at most the losses of continuing and of a win. The result is -inf if K1 changes
    nothing, inf if the trial would have been stopped at any K1.
    """
    names = ("p_win", "K1", "loss_stop", "loss_continue", "loss_win")
    p, k1, stop, further, win = (_number(evidence, name) for name in names)
    room = min(further, win) - (stop - k1 * p)
    vetoed = _number(evidence, "sd_end") > _number(evidence, "kappa") * _number(evidence, "sd_now")
    if vetoed or not math.isfinite(room):
        return math.inf if AUDIT in evidence else -math.inf  # a diverged trial is stopped at any K1
    return max(room, 0.0) / (k1 * p) if p > 0.0 else math.inf


def _number(evidence: Mapping[str, Any], name: str, default: float = math.nan) -> float:
    """Return a number of a verdict's evidence, in which non-finite numbers are texts."""
    try:
        return float(evidence[name])
    except (KeyError, TypeError, ValueError):
        return default


def _least_K1(runs: list[_Audited], options: Mapping[str, Any], wanted: float) -> tuple[float | None, Rate]:
    """Return the smallest K1 with which at most the `wanted` share of audited stops is wrong, and the wrong stops.

    A K1 below the present one stops more trials. It is returned only if the whole interval lies below that share.
    """
    known = [(run.reach, run.wins) for run in runs if run.wins is not None and run.reach >= 0.0]
    if not any(run.stop is not None and run.wins is not None for run in runs):
        return None, Rate(0, 0)

    def rate(reach: float) -> Rate:
        stopped = [wins for r, wins in known if r >= reach]
        return Rate(sum(map(bool, stopped)), len(stopped))

    now, least = float(options["K1"]), float(options["K2"]) + float(options["c"])  # the least of theorem 2
    reaches = [0.0, *sorted({reach for reach, _ in known if reach > 0.0})]
    for below, reach in pairwise(reaches):
        found = rate(reach)
        if found.interval[1] <= wanted:
            break
        if found.value <= wanted and reach >= 1.0:
            if below < 1.0:
                return now, found
            break
    else:
        below = reaches[-1]  # above it none of them is stopped
    if not math.isfinite(below):
        return None, Rate(0, 0)
    x = below * now
    if x > 0.0:  # the next larger number of three digits
        step = 10.0 ** (math.floor(math.log10(x)) - 2)
        x = float(f"{(math.floor(x / step) + 1) * step:.3g}")
    k1 = max(x, least)
    return k1, rate(k1 / now)


def _auditing(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the options of policies that audit, the outermost first."""
    if is_number(spec.get(AUDIT)) and spec[AUDIT] and isinstance(spec.get("stopping"), Mapping):
        yield spec
    for option in spec.values():
        if isinstance(option, Mapping):
            yield from _auditing(option)


# -- outlook -----------------------------------------------------------------------------------------------------------
#
# Among 2n values in random order the best is in the second half with probability 1/2, for any distribution (the law of
# records). In either of two cases it is more likely; over recorded searches the probability is then 0.7:
#
#   ahead    a trial that may continue is already better than the best complete trial; 0.9 for random search, where
#            such a trial surely continues
#   rising   the policy predicts values, and the best trial is among the last quarter that started
#
# benchmarks/search/forecast_calibration.py compares the stated probabilities with what followed. They hold within 0.1
# for the default search and for random search, and only these state them: for Hyperband (0.5: 0.39, 0.7: 0.55) and
# GP-UCB (0.24, 0.47) they were too high. The size of a gain was not predictable: a multiple of the values' spread that
# gains exceeded in 1 of 4 cases on one half of the tasks was exceeded in 1 of 5 on the other, and in 2 of 3 if the
# spread was small. So no size is stated.

FEWEST, MOST = 5, 200  # trials: the range over which the probabilities were measured
EVEN, RAISED, NEAR = 0.5, 0.7, 0.9
_LAST = 0.25  # of the trials
_DISTINCT = 0.5  # share of values; if a metric takes few values, a trial ties with the best more often than it wins
_CONTINUES = (Status.RUNNING, Status.PAUSED, Status.INTERRUPTED)


@dataclass(frozen=True)
class Outlook:
    """The probability that continuing finds a better configuration; print it."""

    best: Best
    metric: str
    probability: float  # 0 if the best value is the metric's bound
    more: float  # as much again as was spent: seconds, or cost if trials report it
    cost: bool

    def __str__(self) -> str:
        if not self.probability:
            return f"{self.metric} {short(self.best.value)} is the best possible value: it cannot be improved."
        more = f"another {self.more:.3g} of cost" if self.cost else f"another {duration(self.more)}"
        return (
            f"If the search continues for {more}, as much as it has taken so far, it finds a better configuration "
            f"with an estimated probability of {self.probability:.0%}."
        )


def outlook(history: History, predicts: bool | None) -> Outlook:
    """Estimate whether a search for one goal finds a better configuration in as much time again.

    predicts: whether its policy predicts values; see `Policy.predicts`. Raises InvalidInput as `Study.outlook`.
    """
    if predicts is None:
        raise InvalidInput(
            "The probability of finding a better configuration was measured for the default search and for random "
            "search. It is not estimated for other policies."
        )
    goal, best, trials = history.problem.goal, history.best(), history.trials
    values = np.array([t.target(goal) for t in trials])
    known = values[np.isfinite(values)]
    if best is None or len(known) < FEWEST or len(trials) > MOST:
        raise InvalidInput(
            f"The search has {plural(len(known), 'trial')} with a value. The probability of finding a better one was "
            f"measured for {FEWEST} to {MOST} trials, and is not estimated for others."
        )
    spent = history.spent
    workers = spent.worker_time / spent.time if spent.time else 1.0
    reported = (spent.training + spent.validation) / max(workers, 1.0)  # more, if results are reported afterwards
    more = spent.cost or max(spent.time, reported)
    top = goal.sign * history.value_of(best)
    if best.metric == goal.metric and top >= goal.sign * _bound(goal, goal.sign * known):
        return Outlook(best, goal.metric, 0.0, more, bool(spent.cost))
    if len(np.unique(known)) < _DISTINCT * len(known):
        raise InvalidInput(
            f"More than half of the trials share their value of {goal.metric} with another. The probability of finding "
            "a better one is not estimated for such metrics. Evaluate on more data, so that values differ."
        )
    ahead = any(t.status in _CONTINUES and value > top for t, value in zip(trials, values, strict=True))
    rising = predicts and best.trial >= (1.0 - _LAST) * len(trials)
    probability = NEAR if ahead and not predicts else RAISED if ahead or rising else EVEN
    return Outlook(best, goal.metric, probability, more, bool(spent.cost))


def _bound(goal: Goal, values: np.ndarray) -> float:
    """Return the best possible value, from the goal's bounds or the metric's name; otherwise infinity."""
    if goal.bounds is not None:
        return goal.bounds[goal.sign > 0]
    known = limit(goal.metric, goal.sign, values)
    return goal.sign * math.inf if known is None else known


# -- the reports as a table --------------------------------------------------------------------------------------------


def frame(history: History) -> pd.DataFrame:
    """Return a table with a row for each report; see `Study.frame`."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("study.frame() needs pandas: pip install pandas. Or use study.trials.") from None
    trials = [t for t in history.trials if len(t.epochs)]
    counts = [len(t.epochs) for t in trials]

    def each(values: Iterable[Any]) -> list[Any]:
        return [_written(value) for value, n in zip(values, counts, strict=True) for _ in range(n)]

    def joined(parts: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.empty(0), *parts])

    columns: dict[str, Any] = {
        "trial": each(t.id for t in trials),
        "attempt": each(t.attempt for t in trials),
        "status": each(str(t.status) for t in trials),
        history.problem.unit: joined(t.epochs for t in trials),
        "value": joined(t.values for t in trials),
        "score": joined(t.scores for t in trials),
        "seconds": joined(t.seconds for t in trials),
    }
    for name in history.problem.space.parameters:
        columns[_written(f"config.{name}")] = each(t.config.get(name) for t in trials)
    for name in dict.fromkeys(n for t in trials for n in t.metrics if not n.startswith("haltune_")):
        columns[_written(f"metric.{name}")] = joined(
            t.metrics.get(name, np.full(len(t.epochs), np.nan)) for t in trials
        )
    return pd.DataFrame(columns)


def _written(cell: Any) -> Any:
    """Return a text that pandas can hold, with lone surrogates as their codes."""
    return cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
