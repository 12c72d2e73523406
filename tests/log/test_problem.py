"""Problems, goals, constraints, durations and budgets: what they take, refuse and record."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune import Budget, Constraint, Float, Maximize, Minimize, Problem, Space, Study
from haltune.errors import InvalidInput
from haltune.log.metric_names import direction
from haltune.log.problem import Goal, goal_from_json, seconds_of

SPACE = Space({"x": Float(0, 1)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2h", 7200), ("1h30m", 5400), ("1h 30min", 5400), ("90s", 90), ("90 s", 90), ("0.5d", 43200), (" 3 sec ", 3),
     (12, 12), (0.5, 0.5)],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: str | float, expected: float) -> None:
    assert seconds_of(text) == expected


@given(st.integers(0, 9), st.integers(0, 30), st.integers(0, 80), st.integers(1, 80))
def test_a_duration_is_the_sum_of_its_parts(d: int, h: int, m: int, s: int) -> None:
    assert seconds_of(f"{d}d {h}h{m}min {s}s") == d * 86400 + h * 3600 + m * 60 + s


@pytest.mark.parametrize(
    "text",
    ["", "h", "2 moons", "2x", "-1h", "1h-5m", "1,5h", "0s", 0, -1, math.nan, math.inf, None, True, [1], "1e3s"],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_examples(text: object) -> None:
    with pytest.raises(InvalidInput, match=r"time=.*'1h30m'"):
        seconds_of(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["trials", "epochs", "money", "time", "worker_time"])
@pytest.mark.parametrize("bad", [0, -1, math.nan, True, [3]])
def test_a_limit_that_is_not_positive_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        Budget(**{name: bad}, price=1.0)  # type: ignore[arg-type]


def test_a_price_alone_is_no_limit() -> None:
    with pytest.raises(InvalidInput, match="whole number"):
        Budget(trials=10.5)  # type: ignore[arg-type]
    assert Budget(price=3.0).unlimited
    assert Budget().unlimited
    assert not Budget(time="1s").unlimited


@pytest.mark.parametrize("bounds", [(1, 0), (0, 0), (0, math.inf), (math.nan, 1), (1,), "ab", 3])
def test_bounds_must_be_two_finite_numbers_in_order(bounds: object) -> None:
    with pytest.raises(InvalidInput, match="bounds"):
        Maximize("acc", bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ["", None, 3])
def test_a_metric_is_a_name(metric: object) -> None:
    with pytest.raises(InvalidInput, match="val_loss"):
        Minimize(metric)  # type: ignore[arg-type]


@pytest.mark.parametrize("goal", [Maximize("a", (0, 1), of="best"), Minimize("b"), Minimize("c", (-1.5, 2))])
def test_a_goal_comes_back_from_json(goal: Goal) -> None:
    found = goal_from_json(json.loads(json.dumps(goal.to_json())))
    assert found == goal
    assert type(found) is type(goal)


def test_what_is_not_finite_ranks_below_everything() -> None:
    for goal in (Maximize("a"), Minimize("a")):
        for bad in (math.nan, math.inf, -math.inf):
            assert not goal.better(bad, than=0.0)
            assert not goal.better(bad, than=math.nan)
            assert goal.better(0.0, than=bad)
    assert Maximize("a").better(2.0, than=1.0)
    assert Minimize("a").better(1.0, than=2.0)


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
    ("metric", "changes"), [("params", False), ("latency_ms", False), ("val_recall", True), ("parity_gap", True)]
)  # fmt: skip
def test_whether_training_changes_a_metric_its_name_says(metric: str, changes: bool) -> None:
    assert Constraint(metric, at_most=1.0).changes is changes
    assert Constraint(metric, at_most=1.0, changes=not changes).changes is not changes


ONE = Maximize("acc")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Constraint("params"), "at_most="),
        *[(lambda v=v: Constraint("params", at_most=v), "finite number") for v in (math.nan, "5e6", True)],
        (lambda: Constraint("params", at_most=1.0, at_least=2.0), "within both"),
        (lambda: Constraint("params", at_most=1.0, changes="no"), "True or False"),  # type: ignore[arg-type]
        (lambda: Maximize("acc", of="mean"), "'last'.*'best'"),  # type: ignore[arg-type]
        (lambda: Problem(SPACE, [], 3), "empty"),
        (lambda: Problem(SPACE, ["acc", Minimize("ms")], 3), "the goal is Maximize"),  # type: ignore[list-item]
        (lambda: Problem(SPACE, [ONE, 3], 3), "a list of such"),  # type: ignore[list-item]
        (lambda: Problem(SPACE, [ONE, Minimize("acc")], 3), "two goals of 'acc'"),
        (lambda: Problem(SPACE, [Maximize("acc", of="best"), Minimize("ms")], 3), "last epoch"),
        (lambda: Problem(ONE, SPACE), "is a Space, not Maximize"),  # type: ignore[arg-type]
        (lambda: Problem(SPACE, SPACE), "swapped"),  # type: ignore[arg-type]
        (lambda: Problem(SPACE, ONE, 3, constraints="params"), "constraints is a list"),  # type: ignore[arg-type]
        (lambda: Problem(SPACE, ONE, 3, constraints=[lambda c: True]), "belongs to the space"),  # type: ignore[list-item]
        (
            lambda: Problem(SPACE, ONE, 3, constraints=[Constraint("p", at_most=1), Constraint("p", at_least=0)]),
            "both limits in one",
        ),
        (
            lambda: Problem(SPACE, Maximize("a", of="best"), 3, constraints=[Constraint("recall", at_least=0.5)]),
            "the best epoch may be beyond",
        ),
        *[(lambda n=n: Problem(SPACE, ONE, n), "max_epochs") for n in (0, -3, 2.5, True, "10", math.inf, 10**12 + 1)],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make()


def test_a_problem_of_several_goals_is_recorded_and_read_back() -> None:
    goals = [Maximize("acc"), Minimize("ms")]
    limits = [Constraint("params", at_most=5e6), Constraint("ms", at_most=9)]
    problem = Problem(SPACE, goals, 3, constraints=limits)
    assert Problem.from_json(problem.to_json()) == problem == replace(problem, max_epochs=3)
    assert problem.goals == tuple(goals)
    assert problem.goal == goals[0]
    assert problem.measured == ("ms", "params")
    assert hash(problem) == hash(Problem.from_json(problem.to_json()))


def test_a_problem_of_one_goal_is_recorded_as_ever() -> None:
    assert Problem(SPACE, Maximize("acc"), 3).to_json() == {
        "space": SPACE.to_json(),
        "goal": {"goal": "maximize", "metric": "acc", "bounds": None},
        "max_epochs": 3,
    }
    assert Problem(SPACE, [Maximize("acc")], 3) == Problem(SPACE, Maximize("acc"), 3)
    patient = Problem(SPACE, Maximize("a"), 9, min_epochs=4)
    assert Problem.from_json(patient.to_json()) == patient


def test_a_search_of_functions_that_return_one_value_needs_no_minimum_of_epochs() -> None:
    study = Study({"x": Float(0.0, 1.0)}, "acc", min_epochs=4, budget="3 trials", verbose=0)
    study.optimize(lambda trial: trial.config["x"])
    assert [t.epoch for t in study.trials] == [1.0] * 3


DOWN = """loss val_loss train-rmse validation-logloss eval/loss MSE mean_squared_error err val.ppl WER FID valLoss
CrossEntropyLoss top5_error test/top1_err word_error_rate mae@12 multi_logloss epoch_loss"""
UP = """acc val_accuracy val_categorical_accuracy eval/f1 F1Score macroF1 r2_score AUROC recall@10 mAP50 val/mAP map@0.5
IoU BLEU4 rouge1 eval_rougeLsum ROUGE-2 ndcg@10 top1 top_1 top-5-accuracy acc1 valAccuracy log_likelihood"""
UNKNOWN = """value score metric x glossary mapping errand lossless val time epoch_seconds accuracy_loss f1_error
neg_mean_squared_error neg_log_likelihood accuracy_drop loss_gap 1-accuracy 1_acc inverse_loss ___ topology"""


@pytest.mark.parametrize(("names", "sign"), [(DOWN, -1.0), (UP, 1.0), (UNKNOWN, None)])
def test_a_metrics_name_says_which_way_it_points_or_is_not_guessed(names: str, sign: float | None) -> None:
    assert {name: direction(name) for name in names.split()} == dict.fromkeys(names.split(), sign)
