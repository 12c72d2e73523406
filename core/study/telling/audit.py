"""What an audit found: how often a run that would have been stopped would have won, and what it cost to know.

A share of the runs is drawn before they start and trains on where the rule would stop it: `policies/bobos/policy.py`.
Here they are counted, from the log alone.

    would-be stop   the report at which an audited run would have been stopped, with that decision's numbers
    wrong           its run then ended above the incumbent of that report, each by what the goal says a run counts for
    unknown         its run failed, was cut by something else, or is not over
    winner          an audited run that ended above the incumbent of the last decision on it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from haltune._utils.checks import is_number
from haltune.display import chance, percent, plural
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import AUDIT
from haltune.log.events import Status
from haltune.log.fate import saved_epochs
from haltune.log.history import History
from haltune.log.records import TrialRecord

from .rate import Rate, enough


@dataclass(frozen=True)
class WouldBeStop:
    """A run that would have been stopped, and what became of it."""

    trial: int
    epoch: float  # at which it would have been stopped
    p_win: float  # its chance to win, as the rule saw it; NaN where it estimated none
    incumbent: float  # what it had to beat then, the goal's metric
    came_to: float  # what the run counts for in the end; NaN when it has no value, or is not known
    wrong: bool | None  # None: not known
    paths: int = 0  # simulated curves that p_win is a share of; 0 where the log does not say

    def __str__(self) -> str:
        said = "" if math.isnan(self.p_win) else chance(self.p_win, self.paths)
        seen = f" with P(beats {self.incumbent:.4g}) {said}" if said else ""
        end = {
            True: f"came to {self.came_to:.4g}: a wrong stop",
            False: f"came to {'no value' if math.isnan(self.came_to) else format(self.came_to, '.4g')}: a right stop",
            None: "how it would have ended is not known",
        }[self.wrong]
        return f"trial {self.trial}, at epoch {self.epoch:g}{seen}, {end}"


@dataclass(frozen=True)
class Audit:
    """How often stopping was wrong, measured on runs that trained on; see `Study.audit`."""

    share: float  # of the runs that are drawn for it; 0 without an audit
    audited: int  # runs drawn
    stops: int  # of these would have been stopped
    wrong: int  # of the stops: their run beat the incumbent of that moment
    unknown: int  # of the stops: failed, cut by something else, or not over
    of_stops: Rate  # wrong stops among those whose end is known
    of_winners: Rate  # wrong stops among audited runs that beat their incumbent
    cost: float  # epochs that audited runs trained after they would have been stopped
    saved: float  # epochs that stopping by the rule saved, in all runs of the study
    wanted: float  # share of stops that may be wrong
    K1: float | None  # the least that would reach it among those runs; None where none does: see `advice`
    at_K1: Rate  # wrong stops among those runs with that K1
    runs: tuple[WouldBeStop, ...] = ()

    def __str__(self) -> str:
        if not self.share:
            return "no audit: its policy has no share of runs that train on, such as BOBOS(audit=0.05)"
        head = f"audit of {percent(self.share)} of the runs: {self.audited} drawn so far"
        if not self.stops:
            return (
                f"{head}, none of them would have been stopped; stopping saved {plural(self.saved, 'epoch')}"
            )
        lost = f" (of {self.unknown} the end is not known)" if self.unknown else ""
        wrong = f"; wrong stops {self.of_stops}" if self.of_stops.of else ""
        lines = [f"{head}, {self.stops} of them would have been stopped{lost}{wrong}"]
        if self.of_winners.of:
            lines.append(f"winners that stopping would have lost: {self.of_winners}")
        lines.append(
            f"the audit cost {plural(self.cost, 'epoch')}; stopping saved {self.saved:g} in the other runs"
        )
        return "\n".join([*lines, self.advice])

    @property
    def advice(self) -> str:
        """Which K1 keeps wrong stops at the wanted share, and whether these runs can tell; or why none does."""
        goal = f"at most {percent(self.wanted)} of stops wrong"
        if self.K1 is None:
            if not self.of_stops.of:
                return f"which K1 gives {goal} is not known: no run that would have been stopped has come to its end"
            return f"no K1 gives {goal}: the rule saw no chance at all for runs that won"
        if not self.at_K1.of:
            return f"K1={self.K1:g} stops none of these runs, so they do not tell whether it gives {goal}"
        if self.at_K1.interval[1] <= self.wanted:
            return f"K1={self.K1:g} gives {goal}: among these runs {self.at_K1}"
        needed = f"; to tell takes at least {enough(self.wanted)} stops" if self.wanted else ""
        return f"too few to tell whether K1={self.K1:g} gives {goal}: among these runs {self.at_K1}{needed}"


def audit(history: History, log: Iterable[ev.Event], wanted: float) -> Audit:
    """The audit of a study, from its whole log. Raises InvalidInput for a share that is none."""
    if not (is_number(wanted) and 0.0 <= wanted < 1.0):
        raise InvalidInput(f"wanted={wanted!r}: the share of stops that may be wrong, from 0 to below 1")
    events = iter(log)
    options = _options(next(events, None))
    if options is None:
        return Audit(0.0, 0, 0, 0, 0, Rate(0, 0), Rate(0, 0), 0.0, 0.0, wanted, None, Rate(0, 0))
    followed: dict[int, _Followed] = {}
    for event in events:
        _follow(followed, event)
    runs = [run.ended(history) for run in followed.values()]
    over = history.finished is not None
    stops = [run for run in runs if run.stop is not None]
    wrong, right = (sum(run.wins is said for run in stops) for said in (True, False))
    winners = sum(run.wins is True for run in runs)
    K1, at_K1 = _k1(runs, options.get("stopping", {}), wanted)
    return Audit(
        share=float(options[AUDIT]),
        audited=len(runs),
        stops=len(stops),
        wrong=wrong,
        unknown=len(stops) - wrong - right,
        of_stops=Rate(wrong, wrong + right),
        of_winners=Rate(wrong, winners),
        cost=sum(run.cost for run in runs),
        saved=sum(saved_epochs(t, history.problem, over) for t in history.trials if _by_rule(t)),
        wanted=wanted,
        K1=K1,
        at_K1=at_K1,
        runs=tuple(run.told(run.stop) for run in stops if run.stop),
    )


_ESTIMATE = (("p_win", math.nan), ("paths", 0.0))  # of a decision, and where it has none


@dataclass
class _Followed:
    """One audited run, as its log is read."""

    trial: int
    attempt: int = 1
    held: bool = True  # by a worker: what is reported otherwise is of an attempt that is over
    at: float = 0.0  # epochs trained
    checkpoint: float = 0.0  # the epoch that an attempt would go on from
    cost: float = 0.0
    incumbent: float = math.nan  # of the last decision on it
    reach: float = -math.inf  # the largest K1 at which it would have been stopped, as a multiple of its own
    stop: ev.Reported | None = None
    came_to: float = math.nan
    wins: bool | None = None

    def report(self, e: ev.Reported) -> None:
        """One epoch more, and its decision until there is a would-be stop."""
        if e.attempt != self.attempt or not self.held or e.epoch <= self.at:
            return
        if self.stop is not None and not e.copied:
            self.cost += e.epoch - self.at
        self.at, told = e.epoch, e.verdict.evidence
        if self.stop is None:
            self.incumbent = _number(told, "incumbent", self.incumbent)
            self.reach = max(self.reach, _reach(told))
            self.stop = e if AUDIT in told else None

    def ended(self, history: History) -> _Followed:
        """The same, with how it ended."""
        record, goal = history.trial(self.trial), history.problem.goal
        if _has_ended(record):
            self.came_to = record.result(goal)
            if not math.isnan(self.incumbent):
                self.wins = goal.sign * self.came_to > goal.sign * self.incumbent  # not without a value
        return self

    def told(self, stop: ev.Reported) -> WouldBeStop:
        """With the report at which it would have been stopped."""
        p_win, paths = (_number(stop.verdict.evidence, name, otherwise) for name, otherwise in _ESTIMATE)
        return WouldBeStop(self.trial, stop.epoch, p_win, self.incumbent, self.came_to, self.wins, int(paths))


def _follow(followed: dict[int, _Followed], event: ev.Event) -> None:
    """Take up the next event of the log."""
    if isinstance(event, ev.Started) and AUDIT in event.evidence:
        followed[event.trial] = _Followed(event.trial)
    run = followed.get(event.trial) if isinstance(event, ev.TrialEvent) else None
    if run is None:
        return
    if isinstance(event, ev.Reported):
        run.report(event)
    elif isinstance(event, ev.Resumed):
        run.attempt, run.held = event.attempt, True
        run.at = run.checkpoint = 0.0 if event.anew else run.checkpoint
    elif isinstance(event, ev.Checkpointed) and event.attempt == run.attempt and run.held:
        run.checkpoint = event.epoch
    elif isinstance(event, (ev.Ended, ev.Expired)) and event.attempt == run.attempt:
        run.held = False


def _has_ended(record: TrialRecord) -> bool:
    """True for a run that came to the end it would have had by itself."""
    return record.status is Status.COMPLETED or (record.status is Status.STOPPED and record.complete)


def _by_rule(record: TrialRecord) -> bool:
    """True for a run that was stopped because it would not beat the incumbent, not by a policy inside."""
    by = record.verdict.evidence if record.verdict is not None else {}
    return record.status is Status.STOPPED and "incumbent" in by


def _reach(told: Mapping[str, Any]) -> float:
    """The largest K1 at which a decision would have been to stop, as a multiple of the one it was made with.

    A run is stopped where K1 p_win is at most the losses of going on and of a win; -inf where K1 changes nothing, and
    inf where it would have been stopped at any.
    """
    names = ("p_win", "K1", "loss_stop", "loss_continue", "loss_win")
    p, k1, stop, go_on, win = (_number(told, name) for name in names)
    room = min(go_on, win) - (stop - k1 * p)
    vetoed = _number(told, "sd_end") > _number(told, "kappa") * _number(told, "sd_now")
    if vetoed or not math.isfinite(room):
        return math.inf if AUDIT in told else -math.inf  # a run that diverged: no matter of K1
    return max(room, 0.0) / (k1 * p) if p > 0.0 else math.inf


def _number(told: Mapping[str, Any], name: str, otherwise: float = math.nan) -> float:
    """A number of a verdict's evidence, where those that are not finite are texts."""
    try:
        return float(told[name])
    except (KeyError, TypeError, ValueError):
        return otherwise


def _k1(runs: list[_Followed], options: Mapping[str, Any], wanted: float) -> tuple[float | None, Rate]:
    """The least K1 with which at most the `wanted` share of the audited runs' stops would be wrong, and their share.

    One below the present is told only where the whole interval lies below that share: it would stop more.
    """
    told = [(run.reach, run.wins) for run in runs if run.wins is not None and run.reach >= 0.0]
    if not any(run.stop is not None and run.wins is not None for run in runs):
        return None, Rate(0, 0)

    def rate(reach: float) -> Rate:
        stopped = [wins for r, wins in told if r >= reach]
        return Rate(sum(map(bool, stopped)), len(stopped))

    now, least = float(options["K1"]), float(options["K2"]) + float(options["c"])  # the least of theorem 2
    reaches = [0.0, *sorted({reach for reach, _ in told if reach > 0.0})]
    for below, reach in pairwise(reaches):
        found = rate(reach)
        if found.interval[1] <= wanted:
            break
        if found.value <= wanted and reach >= 1.0:
            if below < 1.0:
                return now, found
            break
    else:
        below = reaches[-1]  # above which none of them is stopped
    if not math.isfinite(below):
        return None, Rate(0, 0)
    k1 = max(_above(below * now), least)
    return k1, rate(k1 / now)


def _above(x: float) -> float:
    """The next larger number of three digits."""
    if x <= 0.0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(x)) - 2)
    return float(f"{(math.floor(x / step) + 1) * step:.3g}")


def _options(first: ev.Event | None) -> Mapping[str, Any] | None:
    """The options of the policy that audits, itself or inside others; None when none does."""
    return next(_auditing(first.policy), None) if isinstance(first, ev.Created) else None


def _auditing(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if is_number(spec.get(AUDIT)) and isinstance(spec.get("stopping"), Mapping):
        yield spec
    for option in spec.values():
        if isinstance(option, Mapping):
            yield from _auditing(option)
