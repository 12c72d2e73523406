"""What if: a study's recorded curves decided again under other stopping rules, without training anything."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from haltune.display import numeral, plural, short, visible
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.policy import Policy, check_policy, in_words
from haltune.log.problem import Problem
from haltune.log.records import Best, TrialRecord
from haltune.study.replay import Replayed
from haltune.study.view import StudyView, read_study

LOG = "as recorded"
_TITLES = ("rule", "stopped", "trained", "saved", "wrong stops", "unknown")


@dataclass(frozen=True)
class RunUnderRule:
    """One run under a rule."""

    trial: int
    trained: float  # epochs under the rule, repeated ones included
    recorded: float  # epochs in the log, likewise
    ended: float | None  # the epoch at which the rule stopped it, or paused it for good; None: it did neither
    reason: str  # of that, in the rule's words; "" without it
    incumbent: float  # the best of the other runs at its last report here, as the rule left them; NaN: there was none
    wins: bool | None  # its end in the log beats that, which there must be; None: the log holds no end of it
    beyond: float  # epochs at most that it had still before it where the log ends it and the rule does not
    saved: float  # recorded epochs that the rule does not train
    wrong: bool | None  # a winner was stopped; None: that is not known


@dataclass(frozen=True)
class RuleOutcome:
    """What a rule comes to on the recorded runs."""

    name: str
    runs: tuple[RunUnderRule, ...]
    best: Best | None  # that it leaves, by the rule of `study.best`
    regret: float  # how far that lies behind the log's best, the metric's units; NaN if one is missing
    stopped: int  # runs that it ended
    recorded: float  # epochs of the log
    trained: float  # those of them that it trains
    saved: float  # and those that it does not
    winners: int  # runs that are known to beat the incumbent of their time
    wrong: int  # winners that it stopped
    unknown: int  # runs of which the log does not hold the end
    unjudged: int  # stops of those: nobody knows whether they were wrong
    beyond: float  # epochs at most that it would have trained where the log ended a run and the rule did not


@dataclass(frozen=True)
class Replay:
    """A study's log under several stopping rules; print it. `replayed["a name"]` is one of them."""

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
        raise KeyError(f"there are {', '.join(repr(rule.name) for rule in self.rules)}, not {name!r}")

    def __str__(self) -> str:
        log, whole, rules = self.log, len(self.log.runs) - self.log.unknown, (self.log, *self.rules)
        rows = [(*_TITLES, f"best {self.metric}", "regret"), *map(_cells, rules)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = []
        for name, *cells in rows:
            right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            table.append("  ".join([name.ljust(widths[0]), *right]))
        beyond = any(r.beyond for r in self.rules)
        bound = "; at most so many where a rule would train on beyond them" * beyond
        cut = bool(log.unknown) * f" ({plural(log.unknown, 'run does', 'runs do')} not go to the end)"
        lines = [
            f"{plural(len(log.runs), 'run')} and {self.problem.amount(log.recorded)} recorded, "
            f"{whole} to the end",
            "", *table, "",
            f"saved: of the {self.problem.units} recorded{cut}{bound}",
            "wrong stops: of runs that beat the best of their time, where there was one",
            f"regret: how far the best {self.metric} that is left lies behind the best of the log",
            *(note for rule in self.rules if (note := _unknown(rule, self.problem))),
        ]  # fmt: skip
        return visible("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """All of it in JSON's types; what is not a finite number is None."""
        log, *rules = (
            asdict(rule) | {"best": b and {"trial": b.trial, "value": b.value, "epoch": b.epoch}}
            for rule in (self.log, *self.rules)
            for b in [rule.best]
        )
        return {
            "metric": self.metric,
            "unit": self.problem.unit,
            "log": _finite(log),
            "rules": [_finite(rule) for rule in rules],
        }


def _cells(rule: RuleOutcome) -> tuple[str, ...]:
    share = f" ({rule.saved / rule.recorded:.0%})" if rule.recorded else ""
    least, most = ("at least ", "at most ") if rule.beyond else ("", "")
    return (
        rule.name,
        f"{rule.stopped} of {len(rule.runs)}",
        f"{least}{numeral(rule.trained)}",
        f"{most}{numeral(rule.saved)}{share}",
        f"{rule.wrong} of {plural(rule.winners, 'winner')}",
        plural(rule.unknown, "run") if rule.unknown else "none",
        "none" if rule.best is None else short(rule.best.value),
        short(rule.regret, 3) if math.isfinite(rule.regret) else "",
    )


def _unknown(rule: RuleOutcome, problem: Problem) -> str:
    """What the log does not show of a rule, and why."""
    stops, left, found = rule.unjudged, rule.unknown - rule.unjudged, []
    if stops:
        was, whose = plural(stops, "stop was", "stops were"), "that run" if stops == 1 else "those runs"
        found.append(f"whether {was} right is unknown, for the log does not hold the end of {whose}")
    if left:
        end, whom = plural(left, "run ends", "runs end"), "it" if left == 1 else "them"
        more = f", with at most {problem.amount(rule.beyond)} still to train" if rule.beyond else ""
        found.append(f"{end} in the log where this rule does not end {whom}{more}")
    return f"{rule.name}: {'; '.join(found)}" if found else ""


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replay(study: StudyView | str | os.PathLike[str], *policies: Policy[Any] | Mapping[str, Policy[Any]]) -> Replay:
    """A study's recorded curves decided again under other stopping rules: what they would have saved, and got wrong.

    Nothing is trained, proposed or written. Configurations and their order are the log's; each report that was
    judged is judged by the rule, on the history as the rule itself would have left it at that moment. A run that it
    stops ends there: nobody sees its later epochs, and it is an incumbent for its values up to there alone. A pause
    (Hyperband's) counts as a stop, unless the log paused the run at the same epoch: then it went on where it did in
    the log. A stop was wrong if the run's end, as recorded, beats the incumbent of that moment; while there is none,
    as for the first run, it is neither right nor wrong.

    Only a run that the log holds to its end can tell that: the others are counted as unknown. Where the log ended a
    run before the rule would, nothing is known of what the rule would have made of it; the run stands as it stood in
    the log, and what it had before it is told as epochs `beyond` the log: what is saved of the recorded ones is then a
    bound. So a study trained in full tells all, and
    one that stopped most of its runs little of rules that are more patient.

    Args:
        study: A Study, finished or running, or a store's path or URL that holds one, which is opened to be read.
        policies: Those whose `judge` is asked; of `Halting(RandomSearch(), OptimalStopping(K1=2000))` that is the
            stopping alone. Or mappings of names to them. One that places each trial as it proposes it, such as
            Hyperband, can only be asked about trials of its own.

    Returns:
        A Replay, to be printed: for each rule the runs stopped, the epochs saved of those recorded, the winners
        stopped, what is unknown, and the best that it leaves; `.rules` has them run by run, with reasons.

    Raises:
        InvalidInput: For what is no study or no policy, none at all, and a policy that cannot take up these trials.
        StoreError: When there is no such study.

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
        raise InvalidInput(f"replay(study, ...): a Study, or the path of its store, not {study!r}")
    study.sync()
    problem, events = study.history.problem, list(study.events())
    if not problem.plain:
        raise InvalidInput(
            "replay(study, ...) compares rules for one goal without constraints, and this study has more"
        )
    log = Replayed(problem, events)
    rules = [_rule(name, log, Replayed(problem, events, policy)) for name, policy in named.items()]
    return Replay(problem.goal.metric, problem, _rule(LOG, log, log), tuple(rules))


def _rule(name: str, log: Replayed, lived: Replayed) -> RuleOutcome:
    goal, best, top = log.history.problem.goal, lived.history.best(), log.history.best()
    runs = tuple(_run(t, log, lived) for t in log.history.trials)
    recorded, trained = (math.fsum(getattr(r, name) for r in runs) for name in ("recorded", "trained"))
    return RuleOutcome(
        name, runs, best,
        regret=goal.sign * (top.value - best.value) + 0.0 if top and best else math.nan,  # 0, not -0
        stopped=sum(r.ended is not None for r in runs), recorded=recorded, trained=trained, saved=recorded - trained,
        winners=sum(r.wins is True for r in runs), wrong=sum(r.wrong is True for r in runs),
        unknown=sum(r.wins is None for r in runs),
        unjudged=sum(r.wins is None and r.ended is not None for r in runs), beyond=math.fsum(r.beyond for r in runs),
    )  # fmt: skip


def _run(t: TrialRecord, log: Replayed, lived: Replayed) -> RunUnderRule:
    """`t` is the run as the log holds it."""
    problem, verdict = log.history.problem, lived.ended.get(t.id)
    incumbent = lived.incumbents.get(t.id, math.nan)  # without one, as for the first run, it is no case
    wins = not math.isnan(incumbent) and t.complete and problem.goal.better(t.result(problem.goal), than=incumbent)
    ended = verdict or t.complete or t.partial or t.status is Status.FAILED or problem.max_epochs is None
    trained, recorded = lived.trained.get(t.id, 0.0), log.trained.get(t.id, 0.0)
    return RunUnderRule(
        t.id, trained, recorded, incumbent=incumbent,
        ended=None if verdict is None else lived.history.trial(t.id).epoch,
        reason="" if verdict is None else verdict.reason,
        wins=wins if t.complete else None,
        beyond=0.0 if ended else max(0.0, (problem.max_epochs or 0) - t.epoch),
        saved=recorded - trained,
        wrong=wins and verdict is not None if t.complete else None,
    )  # fmt: skip


def _named(policies: Sequence[Any]) -> dict[str, Policy[Any]]:
    """The rules by name: as given, or the policy in words; with a number where a name is taken."""
    found: dict[str, Policy[Any]] = {}
    for given in policies:
        for name, policy in given.items() if isinstance(given, Mapping) else [("", given)]:
            if not isinstance(name, str):
                raise InvalidInput(f"replay: a rule's name is a text, not {name!r}")
            rule = check_policy("replay asks policies such as Halting(RandomSearch())", policy)
            title = name or (in_words(policy) if is_dataclass(policy) else type(policy).__name__)
            names = [title, *(f"{title} ({n})" for n in range(2, len(found) + 2))]
            found[next(n for n in names if n not in found and n != LOG)] = rule
    if not found:
        raise InvalidInput("replay(study, policy): give the stopping rules to be tried, one policy or several")
    return found
