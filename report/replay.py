"""Replay under another policy: judge a study's recorded curves by other stopping rules, without training."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

from haltune.display import numeral, one_line, plural, short, visible
from haltune.errors import HaltuneError, InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import ASKED, CUT, FULL, Action, Verdict
from haltune.log.events import Reported, Status, trial_of
from haltune.log.history import History
from haltune.log.policy import Fold, Policy, check_policy, in_words
from haltune.log.problem import Problem
from haltune.log.records import Best, TrialRecord
from haltune.log.scores import outgrown
from haltune.policies.from_spec import suited
from haltune.study.judging import judge
from haltune.study.view import StudyView, read_study

LOG = "as recorded"
_TITLES = ("rule", "stopped", "trained", "saved", "wrong stops", "unknown")


@dataclass(frozen=True)
class RunUnderRule:
    """A trial under a rule."""

    trial: int
    trained: float  # epochs under the rule, repeated ones included
    recorded: float  # epochs in the log, repeated ones included
    ended: float | None  # epoch at which the rule stopped it, or paused it and never resumed it; None: neither
    reason: str  # the rule's reason for this; "" if there is none
    incumbent: float  # best of the other trials, under the rule, at its last report here; NaN: there was none
    wins: bool | None  # its recorded final value beats the incumbent; None: the log has no final value
    beyond: float  # if the log ends it and the rule does not: the most epochs that it could still train
    saved: float  # recorded epochs that the rule does not train
    wrong: bool | None  # the rule stopped a winner; None: not known


@dataclass(frozen=True)
class RuleOutcome:
    """Result of a rule on the recorded trials."""

    name: str
    runs: tuple[RunUnderRule, ...]
    best: Best | None  # best trial under the rule, chosen as `study.best`
    regret: float  # difference between the log's best and this one, in metric units; NaN if one is missing
    stopped: int  # trials that it ended
    recorded: float  # epochs of the log
    trained: float  # recorded epochs that it trains
    saved: float  # recorded epochs that it does not train
    winners: int  # trials known to beat the incumbent of their time
    wrong: int  # winners that it stopped
    unknown: int  # trials without a final value in the log
    unjudged: int  # those of them that it stopped: whether rightly is unknown
    beyond: float  # the most epochs that it would train in addition, in trials that the log ended and the rule did not


@dataclass(frozen=True)
class Replay:
    """A study's log under several stopping rules. Print it, or get one rule's result by `replayed["a name"]`."""

    metric: str
    problem: Problem
    log: RuleOutcome  # what the study itself did
    rules: tuple[RuleOutcome, ...]

    def __iter__(self) -> Iterator[RuleOutcome]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __getitem__(self, name: str) -> RuleOutcome:
        for rule in self.rules:
            if rule.name == name:
                return rule
        known = ", ".join(repr(rule.name) for rule in self.rules)
        raise KeyError(f"No rule is named {name!r}. Use one of {known}.")

    def __str__(self) -> str:
        log, whole, rules = self.log, len(self.log.runs) - self.log.unknown, (self.log, *self.rules)
        rows = [(*_TITLES, f"best {self.metric}", "regret"), *map(_cells, rules)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = []
        for name, *cells in rows:
            right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            table.append("  ".join([name.ljust(widths[0]), *right]))
        beyond = any(r.beyond for r in self.rules)
        bound = "; an upper bound if the rule would continue a trial that the log ended" * beyond
        cut = bool(log.unknown) * f" ({plural(log.unknown, 'trial was', 'trials were')} not trained in full)"
        lines = [
            f"{plural(len(log.runs), 'trial')} and {self.problem.amount(log.recorded)} recorded, "
            f"{plural(whole, 'trial')} in full",
            "", *table, "",
            f"saved: recorded {self.problem.units} that the rule does not train{cut}{bound}",
            "wrong stops: stopped trials whose final value beats the best at the time of the stop",
            f"regret: difference between the best {self.metric} in the log and under the rule",
            *(note for rule in self.rules if (note := _unknown(rule, self.problem))),
        ]  # fmt: skip
        return visible("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Return all results in JSON types; numbers that are not finite become None."""

        def in_json(rule: RuleOutcome) -> Any:
            best = rule.best and {"trial": rule.best.trial, "value": rule.best.value, "epoch": rule.best.epoch}
            return _finite(asdict(rule) | {"best": best})

        rules = [in_json(rule) for rule in self.rules]
        return {"metric": self.metric, "unit": self.problem.unit, "log": in_json(self.log), "rules": rules}


def _cells(rule: RuleOutcome) -> tuple[str, ...]:
    share = f" ({rule.saved / rule.recorded:.0%})" if rule.recorded else ""
    least, most = ("at least ", "at most ") if rule.beyond else ("", "")
    return (
        rule.name,
        f"{rule.stopped} of {len(rule.runs)}",
        f"{least}{numeral(rule.trained)}",
        f"{most}{numeral(rule.saved)}{share}",
        f"{rule.wrong} of {plural(rule.winners, 'winner')}",
        plural(rule.unknown, "trial") if rule.unknown else "none",
        "none" if rule.best is None else short(rule.best.value),
        short(rule.regret, 3) if math.isfinite(rule.regret) else "",
    )


def _unknown(rule: RuleOutcome, problem: Problem) -> str:
    """Return a note on what the log does not show about a rule; "" if nothing is missing."""
    stops, left, found = rule.unjudged, rule.unknown - rule.unjudged, []
    if stops:
        was, whose = plural(stops, "stop was", "stops were"), "that trial" if stops == 1 else "those trials"
        found.append(f"whether {was} right is unknown, because the log has no final value of {whose}")
    if left:
        end, whom = plural(left, "trial ends", "trials end"), "it" if left == 1 else "them"
        more = f" and would train at most {problem.amount(rule.beyond)} more" if rule.beyond else ""
        found.append(f"{end} early in the log, but this rule does not stop {whom}{more}")
    return f"{rule.name}: {'; '.join(found)}" if found else ""


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replay(study: StudyView | str | os.PathLike[str], *policies: Policy[Any] | Mapping[str, Policy[Any]]) -> Replay:
    """Replay a study's recorded curves under other stopping rules: their saved epochs and their wrong stops.

    Nothing is trained, proposed or written. Configurations and their order come from the log. The rule judges each
    report that was judged, on the history that the rule itself would have produced up to then. If it stops a trial, the
    trial ends there: its later epochs are hidden, and it can be the incumbent only with its values up to there. A pause
    (as in Hyperband) counts as a stop, unless the log paused the trial at the same epoch; then the trial resumes as in
    the log. A stop was wrong if the trial's recorded final value beats the incumbent at the time of the stop. If there
    was no incumbent, as for the first trial, the stop is neither right nor wrong.

    This needs the final value. Trials that were not trained in full count as unknown. If the log ended a trial before
    the rule would, the trial keeps its recorded values. The epochs that it could still have trained count as `beyond`,
    and the saved epochs are then an upper bound. So a study trained in full answers everything; a study that stopped
    most trials shows little about rules that stop less.

    Args:
        study: A Study, finished or running; or the path or URL of its store, which is opened for reading.
        policies: Policies whose `judge` decides, or mappings of names to policies. Only the stopping part of a policy
            such as `Halting(RandomSearch(), OptimalStopping(K1=2000))` matters. A policy that assigns each trial a
            bracket when it proposes it, such as Hyperband, can only judge its own trials.

    Returns:
        A Replay to print: for each rule the stopped trials, the saved epochs, the stopped winners, the unknown cases
        and the best trial. `.rules` has the results of each trial, with reasons.

    Raises:
        InvalidInput: If `study` is not a study, if there is no policy, or if a policy cannot judge these trials.
        StoreError: If there is no such study.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import OptimalStopping
        >>> from haltune.policies import Halting, RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.1, 9.0)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=8))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> replayed = replay(study, {"careful": Halting(RandomSearch(), OptimalStopping(K1=2000))})
        >>> replayed["careful"].wrong, replayed["careful"].unknown
        (0, 0)
    """
    named = _named(policies)
    if isinstance(study, str | os.PathLike):
        study = read_study(study)
    if not isinstance(study, StudyView):
        raise InvalidInput(f"replay(study, ...) needs a Study or the path of its store. You gave {study!r}.")
    study.sync()
    problem, events = study.history.problem, list(study.events())
    if not problem.plain:
        raise InvalidInput(
            "replay(study, ...) compares rules for one goal without constraints. This study has several goals or "
            "constraints."
        )
    log = Replayed(problem, events)
    rules = [_rule(name, log, Replayed(problem, events, policy)) for name, policy in named.items()]
    return Replay(problem.goal.final, problem, _rule(LOG, log, log), tuple(rules))


def _rule(name: str, log: Replayed, ruled: Replayed) -> RuleOutcome:
    goal, best, top = log.history.problem.goal, ruled.history.best(), log.history.best()
    runs = tuple(_run(t, log, ruled) for t in log.history.trials)
    recorded, trained = (math.fsum(getattr(r, name) for r in runs) for name in ("recorded", "trained"))
    regret = math.nan
    if top and best and top.metric == best.metric:  # with rank_by=, one of them may have no complete trial
        regret = goal.sign * (top.value - best.value) + 0.0  # no -0
    return RuleOutcome(
        name, runs, best,
        regret=regret,
        stopped=sum(r.ended is not None for r in runs), recorded=recorded, trained=trained, saved=recorded - trained,
        winners=sum(r.wins is True for r in runs), wrong=sum(r.wrong is True for r in runs),
        unknown=sum(r.wins is None for r in runs),
        unjudged=sum(r.wins is None and r.ended is not None for r in runs), beyond=math.fsum(r.beyond for r in runs),
    )  # fmt: skip


def _run(t: TrialRecord, log: Replayed, ruled: Replayed) -> RunUnderRule:
    """Return the trial under the rule; `t` is the recorded trial."""
    problem, verdict = log.history.problem, ruled.ended.get(t.id)
    incumbent = ruled.incumbents.get(t.id, math.nan)  # NaN, as for the first trial: neither right nor wrong
    wins = not math.isnan(incumbent) and t.complete and problem.goal.better(t.result(problem.goal), than=incumbent)
    ended = verdict or t.complete or t.partial or t.status is Status.FAILED or problem.max_epochs is None
    trained, recorded = ruled.trained.get(t.id, 0.0), log.trained.get(t.id, 0.0)
    return RunUnderRule(
        t.id, trained, recorded, incumbent=incumbent,
        ended=None if verdict is None else ruled.history.trial(t.id).epoch,
        reason="" if verdict is None else verdict.reason,
        wins=wins if t.complete else None,
        beyond=0.0 if ended else max(0.0, (problem.max_epochs or 0) - t.epoch),
        saved=recorded - trained,
        wrong=wins and verdict is not None if t.complete else None,
    )  # fmt: skip


def _named(policies: Sequence[Any]) -> dict[str, Policy[Any]]:
    """Return the rules by name: the given name or the policy in words, with a number if it is taken."""
    found: dict[str, Policy[Any]] = {}
    for given in policies:
        for name, policy in given.items() if isinstance(given, Mapping) else [("", given)]:
            if not isinstance(name, str):
                raise InvalidInput(f"replay: the name of a rule must be a text. You gave {name!r}.")
            rule = check_policy("replay needs policies such as Halting(RandomSearch())", policy)
            title = name or (in_words(policy) if is_dataclass(policy) else type(policy).__name__)
            names = [title, *(f"{title} ({n})" for n in range(2, len(found) + 2))]
            found[next(n for n in names if n not in found and n != LOG)] = rule
    if not found:
        raise InvalidInput("replay(study, policy) got no policy. Give one or more stopping rules.")
    return found


class Replayed:
    """A log's trials under another policy; without one, as in the log."""

    def __init__(self, problem: Problem, log: Sequence[ev.Event], policy: Policy[Any] | None = None) -> None:
        self._fold = None if policy is None else Fold(problem, suited(policy, problem))
        self.history = History(problem) if self._fold is None else self._fold.history
        self.trained: dict[int, float] = {}  # trial -> epochs, those of superseded attempts included
        self.ended: dict[int, Verdict] = {}  # trial -> the policy's verdict that ended it
        self.incumbents: dict[int, float] = {}  # trial -> the best of the others at its last report; NaN: none
        self._log, self._taken = log, 0
        self._last_reports = {e.trial: n for n, e in enumerate(log) if isinstance(e, Reported)}
        self._verdicts: dict[int, Verdict] = {}  # position -> the policy's verdict on a report not yet folded
        self._paused: set[tuple[int, int]] = set()  # (trial, attempt) that both the policy and the log paused
        self._cut: set[int] = set()  # trials that the policy ended and the log did not
        if self._fold is not None:
            for seen, position, event in sorted(_judged_reports(log, problem), key=lambda found: found[:2]):
                self._take_until(seen)
                if (verdict := self._judge(self._fold, event)) is not None:
                    self._verdicts[position] = verdict
        self._take_until(len(log))

    def _judge(self, fold: Fold, event: Reported) -> Verdict | None:
        """Return the policy's verdict on a report; None if it is not asked."""
        unasked = event.verdict.action is Action.UNJUDGED and (event.trial, event.attempt) in self._paused
        if unasked or event.trial in self._cut or not self._counts(event):
            return None
        return judge(fold, event.trial, event)

    def _counts(self, event: Reported) -> bool:
        """Return whether a report enters the curve of its trial."""
        t = self.history.trial(event.trial)
        return t.attempt == event.attempt and t.status is Status.RUNNING and event.epoch > t.epoch

    def _take_until(self, position: int) -> None:
        for n in range(self._taken, position):
            event = self._log[n]
            if trial_of(event) in self._cut:
                continue
            if isinstance(event, Reported):
                self._report(n, event)
                continue
            if self._cut and isinstance(event, ev.Rescaled | ev.Started | ev.Resumed):
                # the scale that a study would have learnt before its next answer, from the curves as they are here
                new = self.history.learnt_scale()
                if new is not None and outgrown(self.history.scale, new):
                    self._apply(ev.Rescaled(at=event.at, low=new.low, high=new.high))
            if not (self._cut and isinstance(event, ev.Rescaled)):
                self._apply(event)
            if isinstance(event, ev.Resumed):
                self.ended.pop(event.trial, None)
        self._taken = max(self._taken, position)

    def _report(self, n: int, event: Reported) -> None:
        verdict, trial = self._verdicts.pop(n, None), event.trial
        if self._counts(event):
            epochs = event.epoch - self.history.trial(trial).epoch
            self.trained[trial] = self.trained.get(trial, 0.0) + (0.0 if event.copied else epochs)
            self.incumbents[trial] = self.history.incumbent(exclude=trial)
            self.ended.pop(trial, None)
        self._apply(event if verdict is None else replace(event, verdict=verdict))
        if verdict is None:
            if self._fold is None and _ends(event.verdict):
                self.ended[trial] = event.verdict
            return
        if not verdict.stops:
            return
        self.ended[trial] = verdict
        same = verdict.action is event.verdict.action
        if same and verdict.action is Action.PAUSE:
            self._paused.add((trial, event.attempt))
        elif not same or n != self._last_reports[trial]:  # or it continued in spite of the stop
            status = Status.STOPPED if verdict.action is Action.STOP else Status.PAUSED
            self._apply(ev.Ended(at=event.at, trial=trial, attempt=event.attempt, status=status))
            self._cut.add(trial)

    def _apply(self, event: ev.Event) -> None:
        if self._fold is None:
            self.history.apply(event)
            return
        try:
            self._fold.take(event)
        except HaltuneError:
            raise
        except Exception as error:
            name = type(self._fold.policy).__name__
            raise InvalidInput(
                f"{name} cannot judge the trials of this study ({one_line(error)}). Policies that assign a trial to a "
                "bracket as they start it, such as Hyperband, only judge their own trials."
            ) from error


def _ends(verdict: Verdict) -> bool:
    """Return whether the policy ended a trial early, not the budget, a user or the end of a training."""
    return verdict.stops and not {CUT, FULL, ASKED} & verdict.evidence.keys()


def _judged_reports(log: Sequence[ev.Event], problem: Problem) -> Iterator[tuple[int, int, Reported]]:
    """Yield (position seen, position, report) of the reports on which a policy is asked.

    These are the ones that the log's policy judged, except for the last report of a trial that got all that any trial
    gets, and those of a training that continued in spite of its verdict.
    """
    ended: set[tuple[int, int]] = set()  # (trial, attempt)
    for position, e in enumerate(log):
        if not isinstance(e, Reported):
            continue
        if problem.max_epochs is not None and e.epoch >= problem.max_epochs:
            continue
        if e.verdict.action is Action.UNJUDGED:
            asked = (e.trial, e.attempt) in ended
        else:
            asked = not {CUT, FULL, ASKED} & e.verdict.evidence.keys()
        if _ends(e.verdict):
            ended.add((e.trial, e.attempt))
        if asked:
            yield min(e.seen, position), position, e
