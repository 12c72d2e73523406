"""What if: a study's recorded curves decided again under other stopping rules, without training anything."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.policy import Policy, check_policy, name_of
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.study.counterfactual import Lived
from haltune.study.reading import read_study
from haltune.study.results import Results

from .replayed import Replay, RuleOutcome, RunUnderRule

LOG = "as recorded"


def replay(
    study: Results | str | os.PathLike[str], *policies: Policy[Any] | Mapping[str, Policy[Any]]
) -> Replay:
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
        >>> from haltune import Budget, Float, Maximize, OptimalStopping, Problem, Space, Study
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
    if not isinstance(study, Results):
        raise InvalidInput(f"replay(study, ...): a Study, or the path of its store, not {study!r}")
    study.sync()
    problem, events = study.history.problem, list(study.events())
    if not problem.plain:
        raise InvalidInput(
            "replay(study, ...) compares rules for one goal without constraints, and this study has more"
        )
    log = Lived(problem, events)
    rules = [_rule(name, log, Lived(problem, events, policy)) for name, policy in named.items()]
    return Replay(problem.goal.metric, _rule(LOG, log, log), tuple(rules))


def _rule(name: str, log: Lived, lived: Lived) -> RuleOutcome:
    goal, best, top = log.history.problem.goal, lived.history.best(), log.history.best()
    regret = goal.sign * (top.value - best.value) + 0.0 if top and best else math.nan  # 0, not -0
    return RuleOutcome(name, tuple(_run(t, log, lived) for t in log.history.trials), best, regret)


def _run(t: TrialRecord, log: Lived, lived: Lived) -> RunUnderRule:
    """`t` is the run as the log holds it."""
    problem, word = log.history.problem, lived.ended.get(t.id)
    incumbent = lived.incumbents.get(t.id, math.nan)
    return RunUnderRule(
        trial=t.id,
        trained=lived.trained.get(t.id, 0.0),
        recorded=log.trained.get(t.id, 0.0),
        ended=None if word is None else lived.history.trial(t.id).epoch,
        reason="" if word is None else word.reason,
        incumbent=incumbent,
        wins=_wins(t, incumbent, problem) if t.complete else None,
        beyond=0.0 if word else _before(t, problem),
    )


def _wins(t: TrialRecord, incumbent: float, problem: Problem) -> bool:
    """Whether a run beat the best of its time; without one, such as the first run, it is no case."""
    return not math.isnan(incumbent) and problem.goal.better(t.result(problem.goal), than=incumbent)


def _before(t: TrialRecord, problem: Problem) -> float:
    """Epochs that a run had still before it when the log let it go."""
    if t.complete or t.partial or t.status is Status.FAILED or problem.max_epochs is None:
        return 0.0
    return max(0.0, problem.max_epochs - t.epoch)


# -- names ---------------------------------------------------------------------------------


def _named(policies: Sequence[Any]) -> dict[str, Policy[Any]]:
    """The rules by name: as given, or as one writes the policy."""
    found: dict[str, Policy[Any]] = {}
    for given in policies:
        pairs = given.items() if isinstance(given, Mapping) else [("", given)]
        for name, policy in pairs:
            if not isinstance(name, str):
                raise InvalidInput(f"replay: a rule's name is a text, not {name!r}")
            decides = check_policy("replay asks policies such as Halting(RandomSearch())", policy)
            found[_free(name or _title(policy), found)] = decides
    if not found:
        raise InvalidInput(
            "replay(study, policy): give the stopping rules to be tried, one policy or several"
        )
    return found


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or with a number where it is taken."""
    names = [name, *(f"{name} ({n})" for n in range(2, len(taken) + 2))]
    return next(n for n in names if n not in taken and n != LOG)


def _title(policy: Any) -> str:
    return _written(policy) if is_dataclass(policy) else type(policy).__name__


def _written(value: Any) -> str:
    """A policy as one writes it: Halting(RandomSearch(), OptimalStopping(K1=2000))."""
    if isinstance(value, type) or not is_dataclass(value):
        return name_of(value) if callable(value) else repr(value)
    parts = [_written(v) if is_dataclass(v) else f"{k}={_written(v)}" for k, v in _options(value).items()]
    return f"{type(value).__name__}({', '.join(parts)})"


def _options(value: Any) -> dict[str, Any]:
    """The options without which it would be another; some follow from others."""
    told = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    for name in list(told):
        rest = {k: v for k, v in told.items() if k != name}
        with suppress(Exception):  # it cannot do without
            told = rest if type(value)(**rest) == value else told
    return told
