"""Judge a report and store it with its verdict."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.display import numeral, one_line, short
from haltune.log import events as ev
from haltune.log.decisions import ASKED, CUT, WISH, Action, Verdict, continue_, stop
from haltune.log.events import OVER, Status, plain
from haltune.log.folds import of_fold
from haltune.log.history import History
from haltune.log.metric_names import is_never_negative
from haltune.log.points import as_seen, spacing, verdict_in_unit
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.store.base import Conflict

from .attempt import Attempt, Decides, MonotonicClock, Report
from .replica import Replica

_log = logging.getLogger("haltune")
_ELSEWHERE = "another process or a copy of the trial object"
_ONE_OBJECT = "Train each trial in one process, with the object that the study returned."


def record(
    replica: Replica, budget: Budget, attempt: Attempt, report: Report, judged: bool, clock: MonotonicClock
) -> None:
    """Append a report and its verdict as one event; see Trial.report. Raises Conflict, to be called again."""
    now = replica.log_sleep(attempt, report.seconds)
    history, last = replica.sync(), attempt.verdict
    stopped = last.action if last is not None and last.stops else None  # the first STOP or PAUSE stays
    r = history.trial(attempt.id)
    if r.attempt != attempt.attempt or r.status is not Status.RUNNING:
        _record_late(replica, attempt, report)
        return
    if report.epoch <= r.epoch:
        _doubt_order(replica, attempt, r, report)
        return
    if (every := spacing(history, r, report.epoch)) is not None:
        replica.append(ev.JudgedEvery(at=now, every=every), None)
        raise Conflict
    if missed := history.missed(attempt.id, report.epoch, now):
        replica.append(missed, attempt.id, replica.lease(attempt.id, attempt.attempt))
        raise Conflict
    began, broken = clock(), None
    try:
        verdict = _verdict(replica, history, budget, stopped, r, report, judged, now)
        if verdict.evidence:
            verdict = replace(verdict, evidence=plain(verdict.evidence))
    except Exception as error:  # a bug of a policy must not lose the report
        verdict, broken = Verdict(Action.UNJUDGED, f"the policy raised {one_line(error)}"), error
    event = ev.Reported(
        at=now, trial=attempt.id, attempt=attempt.attempt, verdict=verdict,
        seen=history.position, deciding=clock() - began, **vars(report),
    )  # fmt: skip
    replica.append(event, attempt.id, replica.lease(attempt.id, attempt.attempt, report.seconds, now))
    if stopped and judged and replica.first_time("trains on", advice=True):
        _log.warning(
            "Trial %d still trains after the verdict %s at %s. End the loop when trial.report(value).stops is true.",
            attempt.id, stopped, history.problem.at(attempt.epoch),
        )  # fmt: skip
    _look_at(replica, history.problem, r, report, verdict)
    if broken is not None:
        raise broken


def answered(attempt: Attempt, report: Report) -> Verdict:
    """Return the verdict on a report, the same on all ranks, after the attempt has followed its events."""
    if attempt._over:
        lost = "the lease on this trial was lost: another worker may train it now"
        if not attempt._stops:
            attempt.verdict = stop(_has_ended(attempt) if attempt.ended in OVER else lost)
        attempt.ended = attempt.ended or Status.INTERRUPTED
    return attempt.verdict or continue_(f"{attempt.unit} {numeral(report.epoch)} was reported before")


def _verdict(
    replica: Replica, history: History, budget: Budget, stopped: Action | None, r: TrialRecord, report: Report,
    judged: bool, now: float,
) -> Verdict:  # fmt: skip
    """Return the first verdict that applies: unjudged, end of training, your wish, a limit, the policy's."""
    epoch, horizon = report.epoch, history.problem.max_epochs
    if stopped:
        return Verdict(Action.UNJUDGED, f"reported after the verdict {stopped}")
    if not judged:
        return Verdict(Action.UNJUDGED, "delivered late")
    if horizon is not None and epoch >= horizon:
        arrived = f"its last, with a resource of {r.resource:g}" if r.partial else "trained in full"
        if not math.isfinite(report.value):
            arrived = "its last, and the value is not finite"
        return continue_(f"{history.problem.unit} {history.problem.reached(epoch)}: {arrived}")
    if history.held is not None:
        return stop(history.held, **{CUT: "not asked", WISH: "hold"})
    if replica.leaving is not None and (leaves := replica.leaving()) is not None:
        return stop(leaves, **{CUT: "not asked"})
    if (asked := history.wishes.runs.get(r.id)) is not None:
        aside = {CUT: "not asked", WISH: "pause"}
        return stop(asked.reason, **(aside if asked.wish == "pause" else {ASKED: "not asked"}))
    budget = history.wishes.extended(budget)
    if (reason := history.exhausted(budget, r.id, now, epoch - r.epoch, report.cost or 0.0)) is not None:
        return stop(reason, **{CUT: "not asked"})
    return judge(replica.fold, r.id, report)


def judge(log: Decides, id: int, report: Report | ev.Reported) -> Verdict:
    """Return the policy's verdict on a trial after a report that is not yet in the log.

    Between two judged points the policy is not asked. Before the problem's min_epochs every trial continues; after it
    one that diverged ends without the policy. A trial that paused without a state does not pause again in the epochs
    that it trains again: it would never come further if its program saves only as an epoch starts.
    """
    history, problem, trial = log.judged, log.judged.problem, as_judged(log, id, report)
    if (epoch := trial.epoch) != math.floor(epoch):
        return Verdict(Action.UNJUDGED, f"{problem.at(epoch)}: between two judged reports")
    if epoch < problem.min_epochs:
        return continue_(f"{problem.at(epoch)} of at least {problem.amount(problem.min_epochs)}: min_epochs")
    for goal in problem.goals:
        column = trial.column(goal.metric, problem.goal)
        if (why := _diverged(problem, goal.metric, trial, column)) is not None:
            return stop(why)
    rng = history.rng("judge", trial.id, int(np.count_nonzero(trial.whole)))
    with undisturbed, one_thread, undisturbed.heard:
        verdict = log.policy.judge(log.state, history, trial, rng)
    if verdict.action is Action.PAUSE and epoch <= (paused := history.paused_unsaved(id)):
        verdict = continue_(f"it paused at {problem.at(paused)} before, where its state was not saved")
    return verdict if problem.grid is None else verdict_in_unit(verdict, problem.grid)


def as_judged(log: Decides, id: int, report: Report | ev.Reported) -> TrialRecord:
    """Return the record of a trial as the policy counts, with one more report that is not yet in the log."""
    history, trial = log.judged, log.judged.trial(id)
    if (grid := history.problem.grid) is not None:
        epoch, value = as_seen(grid, log.history, id, report.epoch, report.value, trial.epoch)
        report = replace(report, epoch=epoch, value=value)
    return with_report(history, trial, report)


def _diverged(problem: Problem, metric: str, trial: TrialRecord, column: Array) -> str | None:
    """Return why a trial ends if its metric was not finite at two judged points in a row; otherwise None."""
    values, epochs = column[trial.whole][-2:].tolist(), trial.epochs[trial.whole][-2:].tolist()
    if len(values) < 2 or any(map(math.isfinite, values)):
        return None
    kinds = {"NaN" if math.isnan(value) else "infinite" for value in values}
    return (
        f"{metric} was {' and '.join(sorted(kinds))} at {problem.at(epochs[0])} and {problem.at(epochs[1])}: the "
        "training diverged"
    )


def with_report(history: History, r: TrialRecord, report: Report | ev.Reported) -> TrialRecord:
    """Return the record with one more report."""
    scale, value = history.scale_of(r.id), report.value
    score = float(scale.score(value)) if scale else math.nan
    names, blank = [*{**r.metrics, **report.metrics}], [math.nan] * len(r.epochs)
    pairs: list[tuple[Any, float]]  # each column, and its new value
    pairs = [(r.epochs, report.epoch), (r.values, value), (r.scores, score), (r.seconds, report.seconds)]
    pairs += [(r.metrics.get(n, blank), report.metrics.get(n, math.nan)) for n in names]
    table = np.empty((len(pairs), len(r.epochs) + 1))
    table[:, :-1], table[:, -1] = zip(*pairs, strict=True)
    table.flags.writeable = False
    epochs, values, scores, seconds, *others = table
    metrics = dict(zip(names, others, strict=True))
    return replace(r, epochs=epochs, values=values, scores=scores, seconds=seconds, metrics=metrics)


def _look_at(replica: Replica, problem: Problem, r: TrialRecord, report: Report, verdict: Verdict) -> None:
    """Log the policy's warning, and warn of a value outside the goal's bounds."""
    if "warning" in verdict.evidence:
        warning = str(verdict.evidence["warning"])
        reached = f"{problem.goal.metric} {short(report.value)}"
        replica.warn_once(f"trial {r.id}, {reached} at {problem.at(report.epoch)}: {warning}", about=warning)
    first = problem.goal
    for goal in problem.goals:
        value = report.value if goal is first else report.metrics.get(goal.metric, math.nan)
        if goal.bounds is not None and math.isfinite(value) and not goal.bounds[0] <= value <= goal.bounds[1]:
            shares = goal.bounds == (0, 1) and 1 < value <= 100
            percent = "If it is in percent, use bounds=(0, 100). " if shares else ""
            replica.warn_once(
                f"{goal.metric} = {value:g} lies outside the goal's bounds {goal.bounds}, so it scores as the nearer "
                f"bound. {percent}Give the bounds of the values that you report.",
                about="bounds" if goal is first else f"bounds of {goal.metric}",
            )
        own = report.metrics.get(of_fold(goal.metric), value)  # over folds the value is an estimate
        if goal.sign < 0 and own < 0.0 and is_never_negative(goal.metric):
            replica.warn_once(
                f"{goal.metric} = {own:g} is negative, and the study minimizes it, so the largest error is the best. "
                "If you report the negative of an error, such as a score 'neg_root_mean_squared_error' of "
                "scikit-learn, report the error itself.",
                about=f"negative {goal.metric}",
            )


def _record_late(replica: Replica, attempt: Attempt, report: Report) -> None:
    """Store the report of a worker that no longer holds the trial. It does not enter the curve."""
    before = "the trial" if attempt.ended in OVER else "this worker's lease on the trial"
    unjudged = Verdict(Action.UNJUDGED, f"{before} had ended before the report")
    event = ev.Reported(
        at=replica.now(), trial=attempt.id, attempt=attempt.attempt, verdict=unjudged,
        seen=replica.history.position, **vars(report),
    )  # fmt: skip
    replica.append(event, -1)
    r = replica.history.trial(attempt.id)
    if attempt.ended is None and r.attempt == attempt.attempt and r.status not in (Status.INTERRUPTED, Status.FAILED):
        replica.warn_once(
            f"{_ELSEWHERE.capitalize()} has ended trial {attempt.id} ({r.status}), so training stops here. "
            f"{_ONE_OBJECT}",
            about="ended elsewhere",
        )
    elif attempt.ended is None:
        replica.warn_once(
            f"This worker's lease on trial {attempt.id} expired and the trial was offered again, so training stops "
            "here."
        )
    elif attempt.ended in OVER:
        replica.warn_once(_has_ended(attempt), about="ended")
    elif attempt.ended is Status.PAUSED:
        replica.warn_once(
            f"Trial {attempt.id} reported {replica.problem.at(report.epoch)} after it was paused, so the "
            "report does not count. End the training where trial.report(value).stops is true; the trial resumes when "
            "the study offers it again.",
            about="ended",
        )


def _has_ended(attempt: Attempt) -> str:
    return (
        f"trial {attempt.id} has ended ({attempt.ended}), by study.tell(), trial.finish(), trial.fail() or at the end "
        "of `with trial`. Later reports do not count"
    )


def _doubt_order(replica: Replica, attempt: Attempt, r: TrialRecord, report: Report) -> None:
    """Warn of a report of an epoch that the curve has, unless this call repeats the last report.

    A call is repeated if the server did not answer the first time.
    """
    at = replica.problem.at
    same = report.epoch == r.epoch > attempt.epoch and report.seconds == r.seconds[-1]
    if same and np.array_equal(report.value, r.values[-1], equal_nan=True):
        return
    reported = f"Trial {attempt.id} reported {at(report.epoch)}"
    if r.epoch > attempt.epoch:
        text = f"{reported}, but {_ELSEWHERE} has reported {at(r.epoch)} already; the report is ignored. {_ONE_OBJECT}"
    else:
        text = (
            f"{reported} after {at(r.epoch)}; the report is ignored. Report each {attempt.unit} once: several metrics "
            "go into one dict, and if a callback reports, do not report yourself. A training that resumes from a "
            "checkpoint must continue its count (Keras: initial_epoch, Lightning: ckpt_path)."
        )
    replica.warn_once(text, about=f"epochs of trial {attempt.id}, attempt {attempt.attempt}")
