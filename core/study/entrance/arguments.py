"""What a Study is made with, whichever way it is said, as a problem, a policy and a budget.

Study(Problem(space, Maximize("val_acc"), 30), BOBOS())
Study({"lr": Float(1e-4, 1e-1, log=True)}, "val_acc", max_epochs=30, budget="30min")
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from haltune import policies
from haltune.errors import InvalidInput, warn
from haltune.log.metric_names import direction, meant
from haltune.log.policy import Policy, check_policy
from haltune.log.problem import Budget, Goal, Maximize, Minimize, Problem, seconds_of
from haltune.ranks.agreement import follows
from haltune.space import Space
from haltune.space.domains import Constant

_log = logging.getLogger("haltune")


def problem_of(
    given: Any,
    second: Any,
    policy: Any,
    max_epochs: Any,
    min_epochs: Any,
    start: Any,
    constraints: Any,
    says: bool,
) -> tuple[Problem, Policy[Any]]:
    """The problem, and the policy that searches it. second: a policy after a Problem, a goal after a space.

    says: what is guessed.

    Raises InvalidInput for what is neither, and for what does not go together.
    """
    _refuse_a_name(policy)
    if isinstance(given, Problem):
        if constraints != ():
            raise InvalidInput("a Problem has its constraints= itself: say them there")
        return _with_problem(given, second, policy, max_epochs, min_epochs, start)
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
    decides = check_policy("policy= is a policy such as BOBOS()", _default(policy))
    return Problem(
        given, _goals(second, says), max_epochs, start, constraints, min_epochs=min_epochs
    ), decides


def _with_problem(
    problem: Problem, second: Any, policy: Any, max_epochs: Any, min_epochs: Any, start: Any
) -> tuple[Problem, Policy[Any]]:
    if max_epochs is not None or min_epochs or tuple(start):
        raise InvalidInput("a Problem has its max_epochs=, min_epochs= and start= itself: say them there")
    if second is not None and policy is not None:
        raise InvalidInput(f"two policies, {second!r} and policy={policy!r}: give one")
    asked = _default(second if policy is None else policy)
    what = f"after a Problem, which has its goal {problem.goal!r}, the second argument is a policy such as BOBOS()"
    return problem, check_policy(what, asked)


def _default(policy: Any) -> Any:
    return policies.MultiFidelity() if policy is None else policy


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


def _goals(given: Any, says: bool) -> Goal | Sequence[Goal]:
    if isinstance(given, list | tuple):
        return [_goal(one, says) for one in given]
    return _goal(given, says)


def _goal(given: Any, says: bool) -> Goal:
    if isinstance(given, Maximize | Minimize):
        return given
    if isinstance(given, str):
        goal = guessed_goal(given)
        if says and not follows():
            which, other = ("larger", "Minimize") if goal.sign > 0 else ("smaller", "Maximize")
            _log.info(
                "a %s %s is better, by its name; if it is not, write %s(%r)", which, given, other, given
            )
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
        raise InvalidInput(
            f"{metric!r} of what? Name the metric: Maximize('val_acc') or Minimize('val_loss')"
        )
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


_COUNT = re.compile(r"(\d+)\s*(trial|run|epoch)s?")
_COUNTS = {"trial": "trials", "run": "trials", "epoch": "epochs"}


def budget_of(given: Any) -> Budget:
    """A budget, or a text such as "30min", "20 trials", "500 epochs" or "20 trials, 2h". Raises InvalidInput."""
    if given is None or isinstance(given, Budget):
        return given or Budget()
    if not isinstance(given, str):
        raise InvalidInput(f"budget={given!r}: of what? {_WRITE}")
    limits: dict[str, Any] = {}
    limit: float
    for part in re.split(r"\s*(?:[,;+]|\band\b|\bor\b)\s*", given.strip()):
        if counted := _COUNT.fullmatch(part):
            name, limit = _COUNTS[counted[2]], int(counted[1])
        else:
            try:
                name, limit = "time", seconds_of(part)
            except InvalidInput:
                raise InvalidInput(f"budget={given!r}: {_meant(part)}{_WRITE}") from None
        if name in limits:
            raise InvalidInput(f"budget={given!r} says twice how many {name}: {_WRITE}")
        limits[name] = limit
    return Budget(**limits)


def _meant(part: str) -> str:
    """What is wrong with a part of a budget, where that can be told."""
    if part.startswith("-"):
        return f"{part!r} allows nothing, where a limit is greater than 0. "
    words = re.findall(r"[a-z]+", part)
    if counts := [word for word in words if word in ("trials", "epochs")]:
        return f"{counts[0]} are a whole number. "
    likely = [near for word in words for near in get_close_matches(word, ("trials", "epochs"), 1)]
    return f"did you mean {likely[0]!r}? " if likely else "of what? "


_WRITE = (
    "Write '30min', '20 trials', '500 epochs', several as '20 trials, 2h', or Budget(time='30min'), "
    "Budget(trials=20)"
)
_UNHELD = re.compile("[\x00\ud800-\udfff]")  # in a text that is no Unicode, such as a path of arbitrary bytes


def check_name(name: Any) -> None:
    """Raises InvalidInput for what no study can be called."""
    if not isinstance(name, str) or not name or _UNHELD.search(name):
        raise InvalidInput(
            f"name={name!r}: a study's name is a text that is not empty, which a file can be called: without the "
            "character 0 and half surrogate pairs"
        )
