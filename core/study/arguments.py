"""Turn the arguments of Study into a problem, a policy and a budget.

Study(Problem(space, Maximize("val_acc"), 30), BOBOS())
Study({"lr": Float(1e-4, 1e-1, log=True)}, "val_acc", max_epochs=30, budget="30min")
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from haltune import policies
from haltune._utils.disk import StrPath
from haltune.errors import HaltuneError, InvalidInput, StoreError, warn
from haltune.log.events import Reported
from haltune.log.metric_names import direction, meant
from haltune.log.policy import Policy, check_policy, in_words
from haltune.log.problem import (
    LENGTHS,
    Budget,
    Goal,
    Maximize,
    Minimize,
    Problem,
    length_argument,
    seconds_of,
    singular,
)
from haltune.ranks import follows
from haltune.space import Space
from haltune.space.domains import Constant
from haltune.store.base import Store
from haltune.store.open import Storage, open_store

from .view import RecordedStudy, StudyView, read_study

_log = logging.getLogger("haltune")


def length_of(max_epochs: Any, max_steps: Any, max_tokens: Any, unit: Any) -> tuple[Any, Any]:
    """Return the length of a full training and its unit. Raises InvalidInput if several lengths are given."""
    lengths = zip(LENGTHS, (max_epochs, max_steps, max_tokens), strict=True)
    given = {name: length for name, length in lengths if length is not None}
    if len(given) > 1:
        raise InvalidInput(f"{' and '.join(given)}: a study counts in one unit. Give one of them.")
    if not given or max_epochs is not None:
        return max_epochs, unit
    ((argument, length),) = given.items()
    if singular(unit) not in (None, LENGTHS[argument]):
        raise InvalidInput(f"{argument}= counts {LENGTHS[argument]}s, but unit={unit!r}. Leave unit= out.")
    return length, LENGTHS[argument]


def refuse_misplaced_policy(**given: Any) -> None:
    """Raise InvalidInput for a policy as the value of another argument, by position or by name."""
    for name, value in given.items():
        if isinstance(value, Policy) or (isinstance(value, type) and issubclass(value, Policy)):
            written = in_words(value) if isinstance(value, Policy) else f"{value.__name__}()"
            raise InvalidInput(f"Study() got a policy as its {name}=. Pass it by keyword: policy={written}.")


def problem_of(
    given: Any, second: Any, policy: Any, length: tuple[Any, Any], min_epochs: Any, judge_every: Any, start: Any,
    constraints: Any, says: bool,
) -> tuple[Problem, Policy[Any]]:  # fmt: skip
    """Return the problem, and the policy that searches it.

    second: a policy after a Problem, a goal after a space. length: see length_of. says: True logs what was guessed.
    Raises InvalidInput for arguments of another type, and for ones that do not fit together.
    """
    _refuse_a_name(policy)
    if isinstance(given, Problem):
        if constraints != ():
            raise InvalidInput("constraints= is given after a Problem. Pass it to Problem() instead.")
        if length != (None, None) or min_epochs or judge_every is not None or tuple(start):
            raise InvalidInput(
                "max_epochs=, min_epochs=, unit=, judge_every= or start= is given after a Problem. Pass it to "
                "Problem() instead."
            )
        if second is not None and policy is not None:
            raise InvalidInput(f"Study() got two policies, {second!r} and policy={policy!r}. Give one.")
        what = f"after a Problem, which has its goal {given.goal!r}, the second argument is a policy such as BOBOS()"
        asked = policy if second is None else second
        return given, check_policy(what, policies.MultiFidelity() if asked is None else asked)
    if given is None:
        raise InvalidInput(
            "Study() needs a space and a goal. Write Study({'lr': Float(1e-4, 1e-1, log=True)}, 'val_acc', "
            "max_epochs=30, budget='30min'). To open an existing study, use haltune.load_study('search.db')."
        )
    if isinstance(given, Mapping):
        given = Space(given)
    if not isinstance(given, Space):
        swapped = " The space comes before the goal." if isinstance(given, str | Maximize | Minimize) else ""
        raise InvalidInput(
            f"The first argument of Study() is a Space or a Problem, not {given!r}.{swapped} Write Study(space, "
            "'val_acc', max_epochs=30) or Study(Problem(space, goal, max_epochs))."
        )
    if all(isinstance(domain, Constant) for domain in given.parameters.values()):
        warn(
            "The space has only constants, so all trials train the same configuration. Use Float(low, high), "
            "Int(low, high) or Choice([...]) for a parameter to search.",
            aloud=says,
        )
    asked = policies.MultiFidelity() if policy is None else policy
    decides = check_policy("policy= is a policy such as BOBOS()", asked)
    goals = [_goal(one, says) for one in second] if isinstance(second, list | tuple) else _goal(second, says)
    most, unit = length
    problem = Problem(
        given, goals, most, start, constraints, min_epochs=min_epochs, unit=unit or "epoch", judge_every=judge_every
    )
    return problem, decides


def _refuse_a_name(policy: Any) -> None:
    """Raise InvalidInput if the policy is given by name."""
    if not isinstance(policy, str):
        return
    names = {name.lower(): name for name in policies.POLICY_NAMES}
    if name := names.get(policy.lower()):
        raise InvalidInput(f"policy={policy!r} is a name. Pass the policy itself: haltune.policies.{name}().")
    near = get_close_matches(policy.lower(), names, n=1)
    likely = f" Perhaps you mean {names[near[0]]}()." if near else ""
    raise InvalidInput(
        f"policy={policy!r} is not a policy.{likely} Pass one of haltune.policies: "
        f"{', '.join(policies.POLICY_NAMES)}. The default is MultiFidelity()."
    )


def _goal(given: Any, says: bool) -> Goal:
    if isinstance(given, Maximize | Minimize):
        _doubt_direction(given, says)
        return given
    if isinstance(given, str):
        goal = guessed_goal(given)
        if says and not follows():
            does, opposite, other = ("maximizes", "minimize", "Minimize")
            if goal.sign < 0:
                does, opposite, other = ("minimizes", "maximize", "Maximize")
            _log.info("haltune %s %s, because of its name. To %s it, pass %s(%r).", does, given, opposite, other, given)
        return goal
    if isinstance(given, Policy) or (isinstance(given, type) and issubclass(given, Policy)):
        raise InvalidInput(
            f"The goal is {given!r}, a policy. After a space pass the goal, and the policy by keyword: Study(space, "
            f"'val_acc', max_epochs=30, policy={given!r})."
        )
    if given is None:
        raise InvalidInput(
            "The goal is missing. Name the metric after the space, Study(space, 'val_acc', max_epochs=30), or write "
            "Maximize('...') or Minimize('...')."
        )
    raise InvalidInput(
        f"The goal is {given!r}. Give the name of a metric, such as 'val_acc', or Maximize('...') or Minimize('...'), "
        "or a list of several."
    )


def _doubt_direction(goal: Goal, says: bool) -> None:
    """Warn if rank_by=, by its name, is better in the other direction than the goal."""
    if goal.rank_by is None:
        return
    try:
        named = guessed_goal(goal.rank_by)
    except InvalidInput:
        return
    if named.sign != goal.sign:
        order = "smallest" if goal.sign < 0 else "largest"
        warn(
            f"{goal!r} ranks the {order} {goal.rank_by} first; by its name, the opposite is better. rank_by= needs a "
            "metric that is better in the same direction as the goal, such as the loss of the evaluation, or report "
            f"the negative of {goal.rank_by} under another name.",
            aloud=says,
        )


def guessed_goal(metric: str) -> Goal:
    """Return Maximize or Minimize for the name of a metric. Raises InvalidInput if the name is not known."""
    if metric.lower() in ("max", "min", "maximize", "minimize"):
        raise InvalidInput(f"{metric!r} is not a metric. Name the metric: Maximize('val_acc') or Minimize('val_loss').")
    sign = direction(metric)
    if sign is None and (metric.endswith(".db") or "://" in metric):
        raise InvalidInput(
            f"The goal of Study() is a metric, and {metric!r} is a store. The goal comes before the store: "
            f"Study(space, 'val_acc', {metric!r}, ...)."
        )
    if sign is None:
        near = meant(metric)
        raise InvalidInput(
            f"haltune does not know whether a larger or a smaller {metric!r} is better. Write Maximize({metric!r}) or "
            f"Minimize({metric!r}){f', or {near!r} if you mean that' if near else ''}."
        )
    return Maximize(metric) if sign > 0 else Minimize(metric)


def wrong_way(goal: Goal) -> str | None:
    """Return a warning if the goal contradicts the name of its metric; otherwise None."""
    if direction(goal.metric) != -goal.sign:
        return None
    given, other = type(goal).__name__, "Minimize" if goal.sign > 0 else "Maximize"
    which = "largest" if goal.sign > 0 else "smallest"
    return (
        f"{given}({goal.metric!r}): the {which} {goal.metric} is the best. If you do not mean this, write "
        f"{other}({goal.metric!r}). This warning appears once, when a study is created, and not with verbose=0."
    )


def waits(policy: Policy[Any], problem: Problem) -> bool:
    """Return whether the policy needs max_epochs, which is missing.

    Raises InvalidInput if the policy does not suit trainings of one epoch either.
    """
    if problem.max_epochs is not None:
        return False
    try:
        policy.start(problem)
    except InvalidInput as lacking:
        try:
            policy.start(one_epoch(problem))
        except InvalidInput:
            raise lacking from None
        return True
    return False


def one_epoch(problem: Problem) -> Problem:
    return replace(problem, max_epochs=1, min_epochs=0)


_NUMBER = r"(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?(?:e\d+)?)"
_GAIN = r"(\s+(?:in a row\s+)?(?:without|with no)\s+(?:an?\s+|any\s+)?(?:gains?|improvements?|improving|progress))?"
_CURRENCIES = {"$": "usd", "dollar": "usd", "\N{EURO SIGN}": "eur", "euro": "eur", "\N{POUND SIGN}": "gbp"}
_CURRENCY = r"([$\N{EURO SIGN}\N{POUND SIGN}]|usd|eur|gbp|dollar|euro)?s?"
_HOURLY = rf"\s*(?:at|@)\s*{_CURRENCY}\s*{_NUMBER}\s*{_CURRENCY}\s*(?:/|per|an?)\s*(?:worker[ -]?)?(?:h|hr|hour)"
_MONEY = re.compile(rf"{_CURRENCY}\s*{_NUMBER}\s*{_CURRENCY}(?:{_HOURLY})?", re.IGNORECASE)


def budget_of(given: Any, problem: Problem) -> Budget:
    """Return a budget, or read a text such as "30min", "2h or 10 trials without gain" or "$50 at 2.10/h".

    Every limit of a text holds. Raises InvalidInput, also for a unit that is not the problem's.
    """
    if given is None or isinstance(given, Budget):
        return given or Budget()
    if not isinstance(given, str):
        wrong = "has no unit" if isinstance(given, float | int) else "is not a text"
        raise InvalidInput(f"budget={given!r} {wrong}. {_WRITE}")
    limits: dict[str, Any] = {}
    limit: float
    unit = problem.unit.lower()
    count = re.compile(rf"{_NUMBER}\s*(trial|run|epoch|step|token|{re.escape(unit)})(?:e?s)?{_GAIN}")
    for part in re.split(r"\s*(?:(?<!\d),|,(?!\d{3}(?!\d))|[;+]|\band\b|\bor\b)\s*", given.strip().lower()):
        counted = count.fullmatch(part)
        trials = counted is not None and counted[2] in ("trial", "run")
        if counted and (trials or not counted[3]):
            if not trials and counted[2] != unit:
                raise InvalidInput(
                    f"budget={given!r} limits {counted[2]}s, but the study counts {problem.units}. Give the limit in "
                    f"{problem.units}, or make the study with {length_argument(counted[2])}=."
                )
            name, limit = "trials" if trials else "epochs", _amount(counted[1])
            name = "trials_without_gain" if counted[3] else name
        elif (paid := _MONEY.fullmatch(part)) and any(paid.groups()[2:] + paid.groups()[:1]):
            if len({_CURRENCIES.get(c.lower(), c.lower()) for c in paid.group(1, 3, 4, 6) if c}) > 1:
                raise InvalidInput(f"budget={given!r}: {part!r} has two currencies. {_WRITE}")
            name, limit = "money", _amount(paid[2])
            limits |= {"price": _amount(paid[5])} if paid[5] else {}
        else:
            try:
                name, limit = "time", seconds_of(part)
            except InvalidInput:
                raise InvalidInput(f"Cannot read budget={given!r}. {_meant(part)}{_WRITE}") from None
        if name in limits:
            raise InvalidInput(f"budget={given!r} limits {name} twice. {_WRITE}")
        limits[name] = limit
    return Budget(**limits)


def _amount(digits: str) -> float:
    number = float(digits.replace(",", ""))
    return int(number) if number.is_integer() else number


def _meant(part: str) -> str:
    """Return what is wrong with a part of a budget."""
    if part.startswith("-"):
        return f"{part!r} is negative; a limit is greater than 0. "
    words = re.findall(r"[a-z]+", part)
    if any(word.startswith(("gain", "improv", "patience")) for word in words):
        return "A limit without gain is a number of trials. "
    if counts := [word for word in words if word in ("trials", "epochs")]:
        return f"The number of {counts[0]} is a whole number. "
    likely = [near for word in words for near in get_close_matches(word, ("trials", "epochs"), 1)]
    return f"Perhaps you mean {likely[0]!r}. " if likely else "Use a number with a unit. "


_WRITE = (
    "Write '30min', '20 trials', '500 epochs', '10 trials without gain', several as '20 trials, 2h', or "
    "Budget(time='30min'), Budget(trials=20)."
)
_UNHELD = re.compile("[\x00\ud800-\udfff]")  # in text that is not Unicode, such as a path of arbitrary bytes


def check_name(name: Any) -> None:
    """Raise InvalidInput for an invalid name of a study."""
    if not isinstance(name, str) or not name or _UNHELD.search(name):
        raise InvalidInput(
            f"name={name!r} is not a valid name of a study. Use a text that is not empty, without the character 0 and "
            "without half surrogate pairs."
        )


Earlier = StudyView | StrPath | tuple[StrPath, str]


def earlier_studies(given: Sequence[Earlier], store: StrPath | Store | Storage | None, name: str) -> Sequence[Any]:
    """Open the prior studies that are given by their stores. store, name: of the study that learns from them.

    A study that has reports keeps what it took when it was created: the stores are not read, and may be gone. Raises
    StoreError or InvalidInput for a store that cannot be read.
    """
    named = [e for e in given if _named(e)] if isinstance(given, list | tuple) else []
    if not named:
        return given
    if follows() or _under_way(store, name):
        return [e for e in given if not _named(e)]
    own = (_address(store), name)
    return [_read(e, own) if _named(e) else e for e in given]


def with_transfer(policy: Policy[Any], studies: Sequence[Any]) -> Policy[Any]:
    """Return the policy with transfer from prior studies. Raises InvalidInput if it does not support that."""
    learnt = policy.with_prior_studies(studies)
    if learnt is None:
        raise InvalidInput(
            f"learn_from= is given, but {in_words(policy)} learns only from its own study. Use the default policy, "
            "MultiFidelity(), or Halting(MultiFidelity())."
        )
    return learnt


def _named(given: Any) -> bool:
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str)
    return isinstance(given[0] if pair else given, str | os.PathLike)


def _read(given: Any, own: tuple[str, str]) -> RecordedStudy:
    """Open a prior study. own: the learning study's address and name; it may be in the same store, without reports."""
    where, name = given if isinstance(given, tuple) else (given, None)
    try:
        store = open_store(where, reading=True)
        names = [known for known in store.names() if (store.url, known) != own]
        if name is None and len(names) > 1:
            listing = ", ".join(map(repr, names))
            raise StoreError(
                f"It holds {len(names)} studies: {listing}. Name one: ({os.fspath(where)!r}, {names[0]!r})."
            )
        return read_study(store, names[0] if name is None and names else name)
    except HaltuneError as error:
        kind = InvalidInput if isinstance(error, InvalidInput) else StoreError
        raise kind(f"learn_from={os.fspath(where)!r}: {error}") from error


def _address(store: StrPath | Store | Storage | None) -> str:
    try:
        return open_store(store, reading=True).url
    except HaltuneError:
        return ""  # not created yet


def _under_way(store: StrPath | Store | Storage | None, name: str) -> bool:
    try:
        found = open_store(store, reading=True)
        return name in found.names() and any(isinstance(e, Reported) for e in found.read(name))
    except HaltuneError:
        return False  # not created yet; any other error is raised when it is opened
