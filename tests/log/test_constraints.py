"""Problems of several goals and constraints: what they take, refuse and record."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from haltune import Constraint, Float, Maximize, Minimize, Problem, Space
from haltune.errors import InvalidInput

SPACE = Space({"x": Float(0.0, 1.0)})
GOALS = [Maximize("acc"), Minimize("ms")]


@pytest.mark.parametrize(
    ("constraint", "value", "violation"),
    [
        (Constraint("params", at_most=5.0), 5.0, 0.0),
        (Constraint("params", at_most=5.0), 6.0, 0.2),
        (Constraint("params", at_most=-5.0), -4.0, 0.2),
        (Constraint("recall", at_least=0.8), 0.6, 0.25),
        (Constraint("bias", at_most=0.0), 0.5, 0.5),
        (Constraint("x", at_most=3, at_least=1), 2, 0.0),
        (Constraint("x", at_most=3, at_least=1), 0.5, 0.5),
        (Constraint("x", at_most=3), math.inf, math.inf),
        (Constraint("x", at_most=3), -math.inf, 0.0),
        (Constraint("x", at_most=3), math.nan, math.inf),
    ],
)
def test_a_violation_is_what_is_beyond_as_a_share_of_the_limit(
    constraint: Constraint, value: float, violation: float
) -> None:
    assert constraint.violation(value) == pytest.approx(violation)


@pytest.mark.parametrize(
    ("metric", "changes"),
    [("params", False), ("latency_ms", False), ("memory", False), ("val_recall", True), ("parity_gap", True)],
)
def test_whether_training_changes_a_metric_its_name_says(metric: str, changes: bool) -> None:
    assert Constraint(metric, at_most=1.0).changes is changes
    assert Constraint(metric, at_most=1.0, changes=not changes).changes is not changes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "limits nothing"),
        ({"at_most": math.nan}, "a finite number"),
        ({"at_most": "5e6"}, "a finite number"),
        ({"at_most": True}, "a finite number"),
        ({"at_most": 1.0, "at_least": 2.0}, "within both"),
        ({"at_most": 1.0, "changes": "no"}, "True or False"),
    ],
)
def test_a_constraint_that_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Constraint("params", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("goal", "constraints", "said"),
    [
        ([], (), "empty"),
        (["acc", Minimize("ms")], (), "the goal is Maximize"),
        ([Maximize("acc"), 3], (), "or a list of such"),
        ([Maximize("acc"), Minimize("acc")], (), "two goals of 'acc'"),
        ([Maximize("acc", of="best"), Minimize("ms")], (), "counts for its last"),
        (Maximize("acc"), "params", "constraints is a list"),
        (Maximize("acc"), [lambda c: True], "belongs to the space"),
        (
            Maximize("acc"),
            [Constraint("p", at_most=1), Constraint("p", at_least=0)],
            "both limits in one",
        ),
        (Maximize("acc", of="best"), [Constraint("recall", at_least=0.5)], "the best epoch may be beyond"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(goal: object, constraints: object, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Problem(SPACE, goal, 3, constraints=constraints)  # type: ignore[arg-type]


def test_a_problem_of_several_goals_is_recorded_and_read_back() -> None:
    problem = Problem(
        SPACE, GOALS, 3, constraints=[Constraint("params", at_most=5e6), Constraint("ms", at_most=9)]
    )
    assert Problem.from_json(problem.to_json()) == problem
    assert replace(problem, max_epochs=3) == problem
    assert problem.goals == tuple(GOALS)
    assert problem.goal == GOALS[0]
    assert problem.measured == ("ms", "params")
    assert hash(problem) == hash(Problem.from_json(problem.to_json()))


def test_a_problem_of_one_goal_is_recorded_as_ever() -> None:
    assert Problem(SPACE, Maximize("acc"), 3).to_json() == {
        "space": SPACE.to_json(),
        "goal": {"goal": "maximize", "metric": "acc", "bounds": None},
        "max_epochs": 3,
    }
    assert Problem(SPACE, [Maximize("acc")], 3) == Problem(SPACE, Maximize("acc"), 3)
