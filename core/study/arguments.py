"""What a Study is made with, whichever way it is given, as a problem, a policy and a budget.

Study(Problem(space, Maximize("val_acc"), 30), BOBOS())
Study({"lr": Float(1e-4, 1e-1, log=True)}, "val_acc", max_epochs=30, budget="30min")
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from haltune import policies
from haltune._utils.checks import number
from haltune._utils.disk import StrPath
from haltune.display import short
from haltune.errors import HaltuneError, InvalidInput, StoreError, warn
from haltune.log.events import Reported
from haltune.log.metric_names import direction, meant
from haltune.log.policy import Policy, check_policy, in_words
from haltune.log.problem import LENGTHS, Budget, Goal, Maximize, Minimize, Problem, length_argument, seconds_of
from haltune.ranks import follows
from haltune.space import Space
from haltune.space.domains import Constant
from haltune.store.base import Store
from haltune.store.open import Storage, open_store

from .trial import Trial
from .view import RecordedStudy, StudyView, read_study

_log = logging.getLogger("haltune")


def length_of(max_epochs: Any, max_steps: Any, max_tokens: Any, unit: Any) -> tuple[Any, Any]:
    """The length of a full training, and its unit. Raises InvalidInput for more than one of them."""
    lengths = zip(LENGTHS, (max_epochs, max_steps, max_tokens), strict=True)
    given = {name: length for name, length in lengths if length is not None}
    if len(given) > 1:
        raise InvalidInput(f"{' and '.join(given)}: a study counts in one unit. Give one of them")
    if not given or max_epochs is not None:
        return max_epochs, unit
    ((argument, length),) = given.items()
    if unit not in (None, LENGTHS[argument]):
        raise InvalidInput(f"{argument}= counts {LENGTHS[argument]}s, and unit={unit!r}. Leave unit= out")
    return length, LENGTHS[argument]


def problem_of(
    given: Any, second: Any, policy: Any, length: tuple[Any, Any], min_epochs: Any, judge_every: Any, start: Any,
    constraints: Any, says: bool,
) -> tuple[Problem, Policy[Any]]:  # fmt: skip
    """The problem, and the policy that searches it. second: a policy after a Problem, a goal after a space.

    length: see length_of. says: whether what is guessed is logged.

    Raises InvalidInput for what is neither, and for what does not go together.
    """
    _refuse_a_name(policy)
    if isinstance(given, Problem):
        if constraints != ():
            raise InvalidInput("a Problem has its constraints= itself: say them there")
        if length != (None, None) or min_epochs or judge_every is not None or tuple(start):
            raise InvalidInput(
                "a Problem has its max_epochs=, min_epochs=, unit=, judge_every= and start= itself: say them there"
            )
        if second is not None and policy is not None:
            raise InvalidInput(f"two policies, {second!r} and policy={policy!r}: give one")
        what = f"after a Problem, which has its goal {given.goal!r}, the second argument is a policy such as BOBOS()"
        asked = policy if second is None else second
        return given, check_policy(what, policies.MultiFidelity() if asked is None else asked)
    if given is None:
        raise InvalidInput(
            "what is to be searched, and what for? Study({'lr': Float(1e-4, 1e-1, log=True)}, 'val_acc', "
            "max_epochs=30, budget='30min'); haltune.load_study('search.db') opens a study that is there"
        )
    if isinstance(given, Mapping):
        given = Space(given)
    if not isinstance(given, Space):
        swapped = "; were space and goal swapped?" if isinstance(given, str | Maximize | Minimize) else ""
        raise InvalidInput(
            "the first argument is a Problem(space, goal, max_epochs), or a Space with its goal behind it, "
            f"Study(space, 'val_acc', max_epochs=30), not {given!r}{swapped}"
        )
    if all(isinstance(domain, Constant) for domain in given.parameters.values()):
        warn(
            "the space holds constants alone, so that all trials train one configuration: Float(low, high), "
            "Int(low, high) and Choice([...]) are varied",
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
    """Raises InvalidInput for the name of a policy in its place."""
    if not isinstance(policy, str):
        return
    names = {name.lower(): name for name in policies.POLICY_NAMES}
    if name := names.get(policy.lower()):
        raise InvalidInput(f"policy={policy!r}: give the policy itself, haltune.policies.{name}()")
    near = get_close_matches(policy.lower(), names, n=1)
    likely = f"did you mean {names[near[0]]}()? Give" if near else "give"
    raise InvalidInput(
        f"policy={policy!r}: {likely} the policy itself, one of haltune.policies: "
        f"{', '.join(policies.POLICY_NAMES)}; the default is MultiFidelity()"
    )


def _goal(given: Any, says: bool) -> Goal:
    if isinstance(given, Maximize | Minimize):
        return given
    if isinstance(given, str):
        goal = guessed_goal(given)
        if says and not follows():
            which, other = ("larger", "Minimize") if goal.sign > 0 else ("smaller", "Maximize")
            _log.info("a %s %s is better, by its name; if it is not, write %s(%r)", which, given, other, given)
        return goal
    if isinstance(given, Policy) or (isinstance(given, type) and issubclass(given, Policy)):
        raise InvalidInput(
            "after a space comes its goal, and the policy by its name: Study(space, 'val_acc', max_epochs=30, "
            f"policy={given!r})"
        )
    if given is None:
        raise InvalidInput(
            "what is the space searched for? Name the metric after it, Study(space, 'val_acc', max_epochs=30), or "
            "write Maximize('...') or Minimize('...')"
        )
    raise InvalidInput(
        "the goal is the name of a metric, such as 'val_acc', or Maximize('...') or Minimize('...'), or a list of "
        f"several, not {given!r}"
    )


def guessed_goal(metric: str) -> Goal:
    """Maximize or Minimize, as the metric's name has it. Raises InvalidInput where it does not say."""
    if metric.lower() in ("max", "min", "maximize", "minimize"):
        raise InvalidInput(f"{metric!r} of what? Name the metric: Maximize('val_acc') or Minimize('val_loss')")
    sign = direction(metric)
    if sign is None:
        near = meant(metric)
        raise InvalidInput(
            f"is a larger {metric!r} better, or a smaller one? Its name does not say"
            f"{f' (did you mean {near!r}?)' if near else ''}: write Maximize({metric!r}) or "
            f"Minimize({metric!r})"
        )
    return Maximize(metric) if sign > 0 else Minimize(metric)


def wrong_way(goal: Goal) -> str | None:
    """A warning where a goal goes against its metric's name."""
    if direction(goal.metric) != -goal.sign:
        return None
    said, other = type(goal).__name__, "Minimize" if goal.sign > 0 else "Maximize"
    which = "largest" if goal.sign > 0 else "smallest"
    return (
        f"{said}({goal.metric!r}) takes the {which} {goal.metric} for the best. Is {other}({goal.metric!r}) meant? If "
        "not, nothing is to do: this is said once, when a search is made, and not with verbose=0"
    )


def waits(policy: Policy[Any], problem: Problem) -> bool:
    """Whether a search of a space must know how many epochs a training has, and is not told.

    Raises InvalidInput for what trainings of one value do not suit, either.
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
    """The same for trainings that come to one value."""
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
        raise InvalidInput(f"budget={given!r}: of what? {_WRITE}")
    limits: dict[str, Any] = {}
    limit: float
    count = re.compile(rf"{_NUMBER}\s*(trial|run|epoch|step|token|{re.escape(problem.unit)})(?:e?s)?{_GAIN}")
    for part in re.split(r"\s*(?:(?<!\d),|,(?!\d{3}(?!\d))|[;+]|\band\b|\bor\b)\s*", given.strip()):
        counted = count.fullmatch(part)
        trials = counted is not None and counted[2] in ("trial", "run")
        if counted and (trials or not counted[3]):
            if not trials and counted[2] != problem.unit:
                raise InvalidInput(
                    f"budget={given!r} limits {counted[2]}s, and the study counts {problem.units}. Write "
                    f"'{counted[1]} {problem.units}', or make the study with {length_argument(counted[2])}="
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
                raise InvalidInput(f"budget={given!r}: {_meant(part)}{_WRITE}") from None
        if name in limits:
            raise InvalidInput(f"budget={given!r} says twice how many {name}: {_WRITE}")
        limits[name] = limit
    return Budget(**limits)


def _amount(digits: str) -> float:
    number = float(digits.replace(",", ""))
    return int(number) if number.is_integer() else number


def _meant(part: str) -> str:
    """What is wrong with a part of a budget, where that can be told."""
    if part.startswith("-"):
        return f"{part!r} allows nothing, where a limit is greater than 0. "
    words = re.findall(r"[a-z]+", part)
    if any(word.startswith(("gain", "improv", "patience")) for word in words):
        return "The search ends after a number of trials without gain. "
    if counts := [word for word in words if word in ("trials", "epochs")]:
        return f"{counts[0]} are a whole number. "
    likely = [near for word in words for near in get_close_matches(word, ("trials", "epochs"), 1)]
    return f"did you mean {likely[0]!r}? " if likely else "of what? "


_WRITE = (
    "Write '30min', '20 trials', '500 epochs', '10 trials without gain', several as '20 trials, 2h', or "
    "Budget(time='30min'), Budget(trials=20)"
)
_UNHELD = re.compile("[\x00\ud800-\udfff]")  # in a text that is no Unicode, such as a path of arbitrary bytes


def check_name(name: Any) -> None:
    """Raises InvalidInput for what no study can be called."""
    if not isinstance(name, str) or not name or _UNHELD.search(name):
        raise InvalidInput(
            f"name={name!r}: a study's name is a text that is not empty, which a file can be called: without the "
            "character 0 and half surrogate pairs"
        )


Earlier = StudyView | StrPath | tuple[StrPath, str]


def earlier_studies(given: Sequence[Earlier], store: StrPath | Store | Storage | None, name: str) -> Sequence[Any]:
    """The same, with studies in the place of stores; store, name: of the one that learns.

    One to which something was reported keeps what it took when it was made: those in stores are left out then, and need
    not be there any more. Raises StoreError, or InvalidInput, for what cannot be read.
    """
    named = [e for e in given if _named(e)] if isinstance(given, list | tuple) else []
    if not named:
        return given
    if follows() or _under_way(store, name):
        return [e for e in given if not _named(e)]
    return [_read(e) if _named(e) else e for e in given]


def taught(policy: Policy[Any], studies: Sequence[Any]) -> Policy[Any]:
    """The policy, having learnt from earlier studies. Raises InvalidInput for one that cannot."""
    learnt = policy.taught_by(studies)
    if learnt is None:
        raise InvalidInput(
            f"learn_from=: {in_words(policy)} learns from its own study alone; MultiFidelity(), the default, learns "
            "from earlier ones, within Halting(MultiFidelity()) too"
        )
    return learnt


def _named(given: Any) -> bool:
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str)
    return isinstance(given[0] if pair else given, str | os.PathLike)


def _read(given: Any) -> RecordedStudy:
    where, name = given if isinstance(given, tuple) else (given, None)
    try:
        store = open_store(where, reading=True)
        names = store.names()
        if name is None and len(names) > 1:
            listing = ", ".join(map(repr, names))
            raise StoreError(
                f"it holds {len(names)} studies: {listing}. Say which: ({os.fspath(where)!r}, {names[0]!r})"
            )
        return read_study(store, name)
    except HaltuneError as error:
        kind = InvalidInput if isinstance(error, InvalidInput) else StoreError
        raise kind(f"learn_from={os.fspath(where)!r}: {error}") from error


def _under_way(store: StrPath | Store | Storage | None, name: str) -> bool:
    """Whether there is such a study, and something was reported to it."""
    try:
        found = open_store(store, reading=True)
        return name in found.names() and any(isinstance(e, Reported) for e in found.read(name))
    except HaltuneError:
        return False  # not made yet; or who opens it says what is wrong


class ReportingFunction:
    """`train`, and what it returns reported as the value of a full training, unless it reported itself."""

    def __init__(self, train: Callable[[Trial], object]) -> None:
        if not callable(train):
            raise InvalidInput(f"train is a function of a trial, optimize(train), not {train!r}")
        _check_takes_a_trial(train)
        self.train = train
        self._doubted = False

    def __repr__(self) -> str:
        return repr(self.train)

    def __call__(self, trial: Trial) -> None:
        """Train. Raises InvalidInput where there is neither a value nor a report."""
        before = trial.epoch
        value: Any = self.train(trial)
        if trial.epoch == before:
            trial._session.recall(trial)  # a process that the training spawned may have reported
        if trial.epoch > before:
            self._doubt(trial, value)
            return
        if value is None:
            raise InvalidInput(
                "train(trial) returned nothing and reported nothing: return the value, or call trial.report(value) "
                "after every epoch"
            )
        if not isinstance(value, Mapping):
            value = number(f"what train(trial) returns, the {trial._goal.metric},", value)
        trial.report(value, trial._horizon)

    def _doubt(self, trial: Trial, value: Any) -> None:
        """Say once of a number that is returned after reports, and is not what the run counts for, that it is none."""
        if isinstance(value, bool):
            return
        goal, record = trial._goal, trial._session.log.history.trial(trial.id)
        try:
            returned = number("", value.get(goal.metric) if isinstance(value, Mapping) else value)
        except InvalidInput:
            return  # a model, say
        counts = record.result(goal)
        if self._doubted or math.isclose(returned, counts, rel_tol=1e-6) or math.isnan(returned):
            return
        self._doubted = True
        hint = ""
        if goal.of == "last" and np.isclose(record.values, returned, rtol=1e-6).any():
            hint = f"; where the best epoch counts, {type(goal).__name__}({goal.metric!r}, of='best')"
        _log.warning(
            "train(trial) returned %s after it had reported its epochs: trial %d counts for what it reported, %s %s at "
            "epoch %g, and what is returned is left out. Report what counts, or return it and report nothing%s",
            short(returned), trial.id, goal.metric, short(counts), record.epoch, hint,
        )  # fmt: skip


def _check_takes_a_trial(train: Callable[..., object]) -> None:
    """Raises InvalidInput for a function that cannot be called with one argument, as far as that is known."""
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(train, "__name__", "train")
        raise InvalidInput(
            f"train is called with the trial alone, train(trial), and {name}{signature} takes something else: its "
            "configuration is trial.config, so that optimize(lambda trial: train(**trial.config)) hands it on"
        ) from None
