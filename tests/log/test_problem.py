"""Problems, goals, constraints, durations and budgets: what they take, refuse and record."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune import Budget, Constraint, Float, Maximize, Minimize, Problem, Space
from haltune.errors import InvalidInput
from haltune.log.metric_names import direction
from haltune.log.problem import seconds_of
from haltune.log.spending import HeldTime, Spent

SPACE = Space({"x": Float(0, 1)})


@given(st.integers(0, 9), st.integers(0, 30), st.integers(0, 80), st.integers(1, 80))
def test_a_duration_is_the_sum_of_its_parts(d: int, h: int, m: int, s: int) -> None:
    assert seconds_of(f"{d}d {h}h{m}min {s}s") == d * 86400 + h * 3600 + m * 60 + s


@pytest.mark.parametrize("text", ["2 moons", "1h-5m", "0s", math.nan, None, True])
def test_what_is_no_duration_is_refused_with_examples(text: object) -> None:
    with pytest.raises(InvalidInput, match=r"time=.*'1h30m'"):
        seconds_of(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["trials", "epochs", "money", "time", "worker_time"])
@pytest.mark.parametrize("bad", [0, math.nan, [3]])
def test_a_limit_that_is_not_positive_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        Budget(**{name: bad}, price=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["20", "20 trials", "2h"])
def test_a_limit_that_is_a_text_is_refused_with_what_takes_one(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"Write the number alone; a duration is time='2h'"):
        Budget(text)  # type: ignore[arg-type]


def test_a_price_alone_is_no_limit() -> None:
    with pytest.raises(InvalidInput, match="whole number"):
        Budget(trials=10.5)  # type: ignore[arg-type]
    assert Budget(price=3.0).unlimited
    assert Budget().unlimited
    assert not Budget(time="1s").unlimited


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
        (Constraint("params", at_most=5.0), 6.0, 0.2),
        (Constraint("params", at_most=-5.0), -4.0, 0.2),
        (Constraint("recall", at_least=0.8), 0.6, 0.25),
        (Constraint("bias", at_most=0.0), 0.5, 0.5),
        (Constraint("x", at_most=3, at_least=1), 0.5, 0.5),
        (Constraint("x", at_most=3), math.inf, math.inf),
        (Constraint("x", at_most=3), math.nan, math.inf),
    ],
)
def test_a_violation_is_what_is_beyond_as_a_share_of_the_limit(
    constraint: Constraint, value: float, violation: float
) -> None:
    assert constraint.violation(value) == pytest.approx(violation)


ONE = Maximize("acc")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Constraint("params"), "at_most="),
        *[(lambda v=v: Constraint("params", at_most=v), "finite number") for v in (math.nan, "5e6", True)],
        (lambda: Problem(SPACE, ["acc", Minimize("ms")], 3), "has no direction. Use Maximize"),  # type: ignore[list-item]
        (lambda: Problem(SPACE, [ONE, 3], 3), "the goal must be Maximize"),  # type: ignore[list-item]
        (lambda: Problem(SPACE, [ONE, Minimize("acc")], 3), "two goals have the metric 'acc'"),
        (lambda: Problem(SPACE, [Maximize("acc", of="best"), Minimize("ms")], 3), "for its last"),
        (lambda: Problem(SPACE, SPACE), "swapped"),  # type: ignore[arg-type]
        (
            lambda: Problem(SPACE, ONE, 3, constraints=[Constraint("p", at_most=1), Constraint("p", at_least=0)]),
            "both limits in one",
        ),
        (
            lambda: Problem(SPACE, Maximize("a", of="best"), 3, constraints=[Constraint("recall", at_least=0.5)]),
            "the best epoch may violate",
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


DOWN = """loss val_loss train-rmse validation-logloss eval/loss MSE mean_squared_error err val.ppl WER FID valLoss
CrossEntropyLoss top5_error test/top1_err word_error_rate mae@12 multi_logloss epoch_loss"""
UP = """acc val_accuracy val_categorical_accuracy eval/f1 F1Score macroF1 r2_score AUROC recall@10 mAP50 val/mAP map@0.5
IoU BLEU4 rouge1 eval_rougeLsum ROUGE-2 ndcg@10 top1 top_1 top-5-accuracy acc1 valAccuracy log_likelihood"""
UNKNOWN = """value score metric x glossary mapping errand lossless val time epoch_seconds accuracy_loss f1_error
neg_mean_squared_error neg_log_likelihood accuracy_drop loss_gap 1-accuracy 1_acc inverse_loss ___ topology -val_loss"""


@pytest.mark.parametrize(("names", "sign"), [(DOWN, -1.0), (UP, 1.0), (UNKNOWN, None)])
def test_a_metrics_name_says_which_way_it_points_or_is_not_guessed(names: str, sign: float | None) -> None:
    assert {name: direction(name) for name in names.split()} == dict.fromkeys(names.split(), sign)


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=12)


def covered(spans: list[tuple[int, int]]) -> int:
    """Whole seconds inside any [start, end]."""
    return len({second for start, end in spans for second in range(start, end)})


@given(intervals, intervals, st.randoms())
def test_wall_clock_is_the_union_and_worker_time_the_sum(
    closed: list[tuple[int, int]], running: list[tuple[int, int]], random: object
) -> None:
    clock = HeldTime()
    for id, (start, length) in enumerate(closed):
        clock.begin(id, start)
        clock.alive(id, start + length // 2)
        clock.end(id, start + length)
    for id, (start, length) in enumerate(running, 100):
        clock.begin(id, start)
        clock.alive(id, start + length)
        clock.alive(id, start)  # a clock set back takes nothing away
    spans = [(start, start + length) for start, length in closed + running]
    assert clock.wall() == covered(spans)
    assert clock.worker() == sum(end - start for start, end in spans)


@given(intervals, st.integers(0, 60), st.integers(0, 30))
def test_looking_ahead_changes_nothing(closed: list[tuple[int, int]], start: int, now: int) -> None:
    clock = HeldTime()
    for start_of_one, length in closed:
        clock.add(start_of_one, start_of_one + length)
    clock.begin(7, start)
    before = (clock.wall(), clock.worker())
    later = clock.at(7, start + now)
    assert later.wall() == covered([(a, a + b) for a, b in closed] + [(start, start + now)])
    assert (clock.wall(), clock.worker()) == before


@pytest.mark.parametrize(
    ("budget", "spent", "words"),
    [
        (Budget(epochs=10), Spent(epochs=10), "10 epochs"),
        (Budget(time=60), Spent(time=60.0), "60 s of time"),
        (Budget(money=2, price=4), Spent(worker_time=1800.0), "2 of money"),
        (Budget(epochs=0.1 * 3), Spent(epochs=0.1 + 0.1 + 0.1), "0.3 epochs"),
        (Budget(trials=3), Spent(trials=3), None),  # those that started may continue
    ],
)
def test_the_first_limit_reached_is_named(budget: Budget, spent: Spent, words: str | None) -> None:
    found = spent.exhausts(budget)
    assert (found is None) if words is None else (found is not None and words in found)


@pytest.mark.parametrize(
    ("budget", "share"),
    [(Budget(), None), (Budget(epochs=40, trials=4), 0.5), (Budget(epochs=40, trials=4, time="10s"), 0.9)],
)
def test_the_limit_of_which_most_is_spent_says_how_far_a_search_is(budget: Budget, share: float | None) -> None:
    assert Spent(trials=2, epochs=10.0, time=9.0).share(budget) == share
