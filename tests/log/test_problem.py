"""Goals, durations and budgets: what is accepted, and what refusals teach."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Study
from haltune.errors import InvalidInput
from haltune.log.problem import goal_from_json, seconds_of

SPACE = Space({"x": Float(0, 1)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2h", 7200), ("1h30m", 5400), ("1h 30min", 5400), ("90s", 90), ("90 s", 90), ("0.5d", 43200), (" 3 sec ", 3),
     ("1d2h3m4s", 93784), (12, 12), (0.5, 0.5)],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: str | float, expected: float) -> None:
    assert seconds_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "2 moons",
        "2x",
        "-1h",
        "1h-5m",
        "1,5h",
        "0s",
        0,
        -1,
        math.nan,
        math.inf,
        None,
        True,
        [1],
        "1e3s",
    ],
)
def test_what_is_no_duration_is_refused_with_examples(text: object) -> None:
    with pytest.raises(InvalidInput, match=r"time=.*'2h', '1h30m', '90s'"):
        seconds_of(text)  # type: ignore[arg-type]


@given(st.integers(0, 9), st.integers(0, 30), st.integers(0, 80), st.integers(1, 80))
def test_a_duration_is_the_sum_of_its_parts(d: int, h: int, m: int, s: int) -> None:
    assert seconds_of(f"{d}d {h}h{m}min {s}s") == d * 86400 + h * 3600 + m * 60 + s


@pytest.mark.parametrize("name", ["trials", "epochs", "money", "time", "worker_time"])
@pytest.mark.parametrize("bad", [0, -1, math.nan, True, [3]])
def test_a_limit_that_is_not_positive_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        Budget(**{name: bad}, price=1.0)  # type: ignore[arg-type]


def test_money_needs_a_price_and_a_price_alone_is_no_limit() -> None:
    with pytest.raises(InvalidInput, match="price="):
        Budget(money=10)
    with pytest.raises(InvalidInput, match="a whole number"):
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


@pytest.mark.parametrize("goal", [Maximize("a", (0, 1)), Minimize("b"), Minimize("c", (-1.5, 2))])
def test_a_goal_comes_back_from_json(goal: Maximize | Minimize) -> None:
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
    assert not Minimize("a").better(1.0, than=1.0)


def test_swapped_arguments_are_recognised() -> None:
    with pytest.raises(InvalidInput, match="is a Space, not Maximize"):
        Problem(Maximize("a"), SPACE)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="swapped"):
        Problem(SPACE, SPACE)  # type: ignore[arg-type]


@pytest.mark.parametrize("epochs", [0, -3, 2.5, True, "10", math.inf])
def test_max_epochs_is_a_whole_number_or_none(epochs: object) -> None:
    with pytest.raises(InvalidInput, match="max_epochs"):
        Problem(SPACE, Maximize("a"), epochs)  # type: ignore[arg-type]
    assert Problem(SPACE, Maximize("a"), None).max_epochs is None


def test_min_epochs_survive_a_log_that_lacks_them_where_there_are_none() -> None:
    plain, patient = Problem(SPACE, Maximize("a"), 9), Problem(SPACE, Maximize("a"), 9, min_epochs=4)
    assert "min_epochs" not in plain.to_json()
    assert Problem.from_json(plain.to_json()).min_epochs == 0
    assert Problem.from_json(patient.to_json()) == patient
    assert Problem(SPACE, Maximize("a"), None, min_epochs=4).min_epochs == 4


def test_a_search_of_functions_that_return_one_value_needs_no_minimum_of_epochs() -> None:
    study = Study({"x": Float(0.0, 1.0)}, "acc", min_epochs=4, budget="3 trials", verbose=0)
    study.optimize(lambda trial: trial.config["x"])
    assert [t.epoch for t in study.trials] == [1.0] * 3
