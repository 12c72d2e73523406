"""A study decides alike in epochs, steps, tokens and parts of an epoch, if its reports divide a training alike."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from curves import accuracy
from everyone import each_of_one_goal
from hypothesis import example, given
from hypothesis import strategies as st
from worlds import EPOCHS, POLICIES, SPACE, problem

from haltune import Budget, Float, Maximize, Problem, Study, Trial, report
from haltune.display import numeral
from haltune.errors import HaltuneWarning, InvalidInput, StudyMismatch
from haltune.log.events import JudgedEvery, Reported
from haltune.log.points import at_point
from haltune.log.policy import Fold
from haltune.log.problem import Grid
from haltune.policies import Hyperband, MultiFidelity, RandomSearch, Rollout
from haltune.policies.multifidelity.prior_studies import EarlierStudy
from haltune.report import summary
from haltune.report.figures.decisions import rungs
from haltune.store.memory import MemoryStore
from haltune.study import replica
from haltune.study.explain import outlook
from haltune.study.redecide import redecide
from haltune.study.session import clocked

# unit -> (units of a full training, units of one report)
UNITS = {"step": (EPOCHS * 100, 100.0), "token": (EPOCHS * 2**20, float(2**20)), "epoch": (1, 1.0 / EPOCHS)}
# their first trial depends on the schedule, and without judge_every= it starts before a report shows the distance
FIRST_BY_SCHEDULE = ("halving", "hyperband", "hyperband-retrains")
OWN_RESOURCE = ("hyperband-seconds", "hyperband-samples")  # rungs in another resource


def searched(policy: Any, posed: Problem, every: float, trials: int = 9, early: float = 0.0) -> Study:
    """A search whose trainings report at every EPOCHS-th part, pauses and resumes included.

    early: A first report comes there, and each of the others as much later.
    """
    with clocked(ticking()):
        study = Study(posed, policy, MemoryStore(), seed=3, budget=Budget(trials=trials), verbose=0)
    for trial in study:
        with trial:
            reached = math.floor((trial.epoch - early) / every + 0.5)
            if early and not trial.epoch and trial.report(0.05, early).stops:
                continue
            for n in range(reached + 1, EPOCHS + 1):
                position = min(n * every + early, float(posed.max_epochs or math.inf))
                trial.checkpointed(f"{trial.id}-{n}") if n > reached + 1 else None
                if trial.report(accuracy(trial.config, n), position).stops:
                    trial.checkpointed(f"{trial.id}-{n}")
                    break
    return study


def ticking() -> Any:
    clock: Iterator[float] = iter(range(10**9))
    return lambda: float(next(clock))


def in_points(study: Study, every: float) -> list[Any]:
    """Return the decisions, with positions as numbers of reports."""
    return [
        (dict(t.config), t.status, t.attempt, [round(e / every, 6) for e in t.epochs], t.values.tolist())
        for t in study.trials
    ]


def of(unit: str) -> tuple[Problem, float]:
    whole = problem()
    length, every = UNITS[unit]
    return Problem(whole.space, whole.goal, length, unit=unit), every


@each_of_one_goal
def test_a_study_decides_alike_in_every_unit(name: str) -> None:
    if name in OWN_RESOURCE:
        pytest.skip("its rungs are in another resource")
    reference = in_points(searched(POLICIES[name](), problem(), 1.0), 1.0)
    for unit in UNITS:
        posed, every = of(unit)
        if name in FIRST_BY_SCHEDULE:
            posed = replace(posed, judge_every=every)
        assert in_points(searched(POLICIES[name](), posed, every), every) == reference, unit


@pytest.mark.parametrize("unit", ["step", *(pytest.param(u, marks=pytest.mark.slow) for u in UNITS if u != "step")])
@pytest.mark.parametrize("name", ["bobos", "hyperband", "gpucb"])
def test_every_decision_is_made_again_from_the_log(name: str, unit: str) -> None:
    posed, every = of(unit)
    study = searched(POLICIES[name](), posed, every)
    assert [kind for e in study.events() if (kind := e.kind) == "judged_every"] == ["judged_every"]
    for _, recorded, found in redecide(posed, POLICIES[name](), study.events()):
        assert found == recorded


def test_training_within_one_epoch_is_stopped_early() -> None:
    study = searched(MultiFidelity(), of("epoch")[0], 1.0 / EPOCHS, 20)
    assert sum(t.epoch < 1.0 for t in study.trials) >= 5
    assert study.best is not None
    assert study.best.epoch == 1.0


def test_reports_between_two_judged_ones_are_kept_and_not_judged() -> None:
    study = Study(
        {"x": problem().space.parameters["lr"]},
        "acc",
        max_steps=1000,
        judge_every=250,
        policy=RandomSearch(),
        budget="1 trial",
    )
    trial = study.ask()
    assert isinstance(trial, Trial)
    positions = (100, 250, 300, 480, 510, 760, 1000)
    actions = [trial.report(0.1, step=n).action.value for n in positions]
    assert actions == ["unjudged", "continue", "unjudged", "unjudged", "continue", "continue", "continue"]
    assert study.trials[0].epochs.tolist() == list(positions)
    assert not any(isinstance(e, JudgedEvery) for e in study.events())


def test_the_second_report_corrects_a_late_first_one() -> None:
    study = Study(
        {"x": problem().space.parameters["lr"]}, "acc", max_steps=1000, policy=RandomSearch(), budget="1 trial"
    )
    trial = study.ask()
    assert isinstance(trial, Trial)
    assert [trial.report(0.1, step=n).action.value for n in (300, 350, 400, 450)] == ["continue"] * 4
    assert [e.every for e in study.events() if isinstance(e, JudgedEvery)] == [300.0, 50.0]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("unit", "full", "positions"), [("step", 1000, (1, 101, 201, 301)), ("epoch", 3, (0.01, 0.26, 0.51))]
)
def test_the_second_report_corrects_an_early_first_one(
    unit: str, full: int, positions: tuple[float, ...], workers: int
) -> None:
    posed = Problem(problem().space, problem().goal, full, unit=unit)
    study = Study(posed, RandomSearch(), seed=0, budget=Budget(trials=workers), verbose=0)
    trials = [trial for _ in range(workers) if isinstance(trial := study.ask(), Trial)]
    for n in positions:
        for trial in trials:
            trial.report(0.1, n)
    found = [e.every for e in study.events() if isinstance(e, JudgedEvery)]
    assert found == [*([0.01] if unit == "epoch" else []), positions[2] - positions[1]]


@pytest.mark.parametrize("positions", [(100, 200, 400), (2, 4, 6), (1, 2, 9), (3, 8, 13), (1,)])
def test_other_first_reports_give_the_distance_alone(positions: tuple[int, ...]) -> None:
    posed = Problem(problem().space, problem().goal, 1000, unit="step")
    study = Study(posed, RandomSearch(), seed=0, budget=Budget(trials=2), verbose=0)
    for trial in (study.ask(), study.ask()):
        assert isinstance(trial, Trial)
        for n in positions:
            trial.report(0.1, n)
    found = [e.every for e in study.events() if isinstance(e, JudgedEvery)]
    assert found == [positions[0]] * (positions[0] > 1)


@pytest.mark.parametrize(
    ("positions", "judged"),
    [
        ((1.25, 2.5, 3.75, 4), (1.25, 2.5, 3.75)),
        ((1, 2.25, 3.5, 4), (1, 2.25, 3.5)),
        ((0.5, 2, 2.5, 3.5, 4), (2, 3.5)),
        ((1, 2, 2.5, 3, 4), (1, 2, 3)),
    ],
)
@pytest.mark.parametrize("judge_every", [None, 1])
def test_reports_that_come_less_often_than_once_an_epoch_are_judged(
    positions: tuple[float, ...], judged: tuple[float, ...], judge_every: float | None
) -> None:
    posed = replace(problem(), max_epochs=4, judge_every=judge_every)
    study = Study(posed, RandomSearch(), seed=0, budget=Budget(trials=2), verbose=0)
    for trial in (study.ask(), study.ask()):  # the first one's first report is judged before the distance is known
        assert isinstance(trial, Trial)
        done = [n for n in positions if trial.report(0.1, n).action.value == "continue"]
        assert done[done[0] < 1 :] == [*judged, 4]


@pytest.mark.parametrize(
    "name", ["multifidelity", *(pytest.param(n, marks=pytest.mark.slow) for n in ("bobos", "gpucb"))]
)
def test_a_report_in_the_first_step_does_not_change_what_is_decided(name: str) -> None:
    posed = replace(problem(), max_epochs=EPOCHS * 100, unit="step")
    study = searched(POLICIES[name](), posed, 100.0, early=1.0)
    late = [
        (config, status, attempt, [math.floor(n) for n in reports[1:]], values[1:])
        for config, status, attempt, reports, values in in_points(study, 100.0)
    ]
    assert late == in_points(searched(POLICIES[name](), problem(), 1.0), 1.0)
    for _, recorded, found in redecide(posed, POLICIES[name](), study.events()):
        assert found == recorded


def test_the_first_report_at_step_1_leaves_the_words_in_steps(caplog: pytest.LogCaptureFixture) -> None:
    study = Study({"lr": Float(1e-3, 1.0)}, "loss", max_steps=1000, budget="3 trials", seed=0)
    with caplog.at_level("INFO", "haltune"):
        for trial in study:
            for step in (1, 56, 83, 140, 300, 620, 1000):
                if trial.report(1 / step, step=step).stops:
                    break
    text = "\n".join(caplog.messages)
    assert "its first report shows when trials are compared" in caplog.messages[1]
    assert re.search(r"after \d+ steps", text)
    assert not re.search(r"after \d+ reports?|to \d+ reports|from report", text)


def test_a_log_opened_in_another_unit_or_length_is_refused_by_the_names_of_the_arguments(tmp_path: Path) -> None:
    def opened(**length: int) -> Study:
        return Study(
            {"lr": Float(1e-3, 1.0)}, "loss", tmp_path / "s.db", budget="2 trials", seed=0, verbose=0, **length
        )

    trial = opened(max_steps=100).ask()
    assert isinstance(trial, Trial)
    trial.report(0.5, step=10)
    with pytest.raises(StudyMismatch, match="max_steps: recorded 100, given 200"):
        opened(max_steps=200)
    with pytest.raises(StudyMismatch, match="unit: recorded 'step', given 'epoch'"):
        opened(max_epochs=100)
    with pytest.raises(InvalidInput, match=r"^step=0: .* above 0\. The first step is 1: add 1"):
        trial.report(0.5, step=0)


def test_studies_in_epochs_have_one_judged_report_an_epoch() -> None:
    study = Study(problem(), RandomSearch(), seed=0, budget=Budget(trials=2), verbose=0)
    for trial in study:
        for epoch in (1, 1.5, 2):
            trial.report(0.2, epoch)
        break
    actions = [e.verdict.action.value for e in study.events() if isinstance(e, Reported)]
    assert actions == ["continue", "continue", "continue"]  # the second report shows that an epoch has parts


NAMED = {"epoch": "epoch", "step": "step", "token": "tokens"}  # unit -> the argument of a report


@pytest.mark.parametrize("unit", [*NAMED, "game"])
@pytest.mark.parametrize("door", ["report", "tell"])
def test_a_report_names_the_unit_of_the_study_or_none(unit: str, door: str) -> None:
    posed = Problem(problem().space, problem().goal, 100, unit=unit)
    study = Study(posed, RandomSearch(), budget="1 trial", verbose=0)
    trial = study.ask()
    assert isinstance(trial, Trial)
    report = trial.report if door == "report" else partial(study.tell, trial)
    for n, (counts, name) in enumerate(NAMED.items(), start=1):
        if counts == unit:
            report(0.1, **{name: n})
        else:
            advice = rf"^trial.report\(..., {name}={n}\) in a study that counts {unit}s. Write trial.report\(value, "
            with pytest.raises(InvalidInput, match=advice + rf".*\), or make the study with max_{counts}s=\.$"):
                report(0.1, **{name: n})
        with pytest.raises(InvalidInput, match="two positions"):
            report(0.1, n, **{name: n})
    report(0.1, 4)
    report(0.1, position=5)
    assert trial.epoch == 5
    assert study.trials[0].epochs.tolist() == [*([list(NAMED).index(unit) + 1] if unit in NAMED else []), 4, 5]


def test_a_report_without_a_position_or_beyond_the_end_is_refused_with_what_to_do() -> None:
    study = Study(
        {"x": problem().space.parameters["lr"]}, "acc", max_steps=100, policy=RandomSearch(), budget="1 trial"
    )
    trial = study.ask()
    assert isinstance(trial, Trial)
    with pytest.raises(InvalidInput, match="step=n"):
        trial.report(0.1)
    with pytest.raises(InvalidInput, match="beyond max_steps=100"):
        trial.report(0.1, step=101)
    assert (trial.max_epochs, trial.max_steps) == (None, 100)


def test_a_budget_is_said_in_the_unit_of_the_study() -> None:
    def study(budget: str, **length: Any) -> Study:
        return Study({"x": problem().space.parameters["lr"]}, "acc", policy=RandomSearch(), budget=budget, **length)

    assert study("5000 steps, 9 trials", max_steps=100).budget == Budget(epochs=5000, trials=9)
    assert study("70 games", max_epochs=9, unit="game").budget == Budget(epochs=70)
    with pytest.raises(InvalidInput, match=r"limits steps, but the study counts epochs.*limit in epochs.*max_steps="):
        study("5000 steps", max_epochs=9)
    with pytest.raises(InvalidInput, match="the study counts tokens"):
        study("20 epochs", max_tokens=9)
    limited = study("250 steps", max_steps=100, judge_every=50)
    for trial in limited:
        for step in range(50, 101, 50):
            if trial.report(0.1, step=step).stops:
                break
    assert limited.outcome.reason.startswith("the budget of 250 steps is spent")


@pytest.mark.parametrize(
    "every", [pytest.param(500, marks=pytest.mark.slow), pytest.param(600, marks=pytest.mark.slow), 900]
)
def test_a_planned_budget_trains_as_many_trials_wherever_they_report(every: int) -> None:
    def searched(budget: str) -> Study:
        space = {"x": Float(0.0, 1.0)}
        policy = Rollout(1, initial=2, points=16)
        study = Study(space, Maximize("acc", (0, 1)), policy=policy, seed=0, max_steps=1000, budget=budget, verbose=0)
        for trial in study:
            for step in (every, 1000):
                trial.report(trial.config["x"] * step / 1000, step=step)
        return study

    assert [t.epoch for t in searched("4000 steps, 30 trials").trials] == [1000.0] * 4
    left = searched("3500 steps, 30 trials").outcome.reason
    assert left.startswith("nothing is affordable: 500 of 3500 steps are left, and the cheapest configuration")


def test_a_returned_value_that_is_ignored_is_compared_at_its_step(caplog: pytest.LogCaptureFixture) -> None:
    def train(trial: Trial) -> float:
        trial.report(0.5, step=100)
        return 0.75

    Study({"x": Float(0.0, 1.0)}, "acc", max_steps=100, budget="1 trial", verbose=0).optimize(train)
    assert "trial 0 counts with its reports, acc 0.5 at step 100." in caplog.text


@pytest.mark.parametrize("given", [{"max_steps": 5, "max_epochs": 3}, {"max_tokens": 5, "unit": "step"}])
def test_a_study_has_one_unit(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"one unit|unit="):
        Study({"x": problem().space.parameters["lr"]}, "acc", budget="1 trial", **given)


def test_a_unit_in_the_plural_is_read_as_its_singular() -> None:
    steps = Problem(SPACE, Maximize("acc"), 9, unit="steps")
    assert steps == Problem(SPACE, Maximize("acc"), 9, unit="step")
    trial = Study(steps, RandomSearch(), budget="1 trial").ask()
    assert isinstance(trial, Trial)
    trial.report(0.5, step=1)
    assert (trial.unit, trial.step) == ("step", 1)


@given(
    every=st.floats(1e-3, 1e6),
    count=st.integers(1, 400),
    jitter=st.lists(st.floats(-0.005, 0.4), min_size=1, max_size=30),
)
def test_reports_that_come_a_little_late_are_judged_once_a_point(every: float, count: int, jitter: list[float]) -> None:
    grid = Grid(every, every * count)
    assert grid.last == count
    found = [grid.points(min(n + jitter[n % len(jitter)], count) * every) for n in range(1, count + 1)]
    assert [math.floor(p + grid.slack) for p in found] == list(range(1, count + 1))
    assert grid.position(grid.last or 0) == every * count


@given(
    every=st.floats(1e-3, 1e6),
    count=st.integers(1, 400),
    more=st.floats(0.0, 0.02),
    shares=st.lists(st.floats(0.0, 1.0, exclude_min=True), min_size=1, max_size=30),
)
@example(every=100.0, count=6, more=0.0, shares=[0.5, 599 / 600, 1.0])
@example(every=100.0, count=6, more=1 / 600, shares=[600 / 601, 1.0])
def test_each_report_is_at_a_later_point_and_only_the_end_is_at_the_last(
    every: float, count: int, more: float, shares: list[float]
) -> None:
    grid, last = Grid(every, every * (count + more)), 0.0
    assert grid.horizon is not None
    for share in sorted(set(shares)):
        point = at_point(grid, share * grid.horizon, last)
        assert last < point <= (grid.last or 0) or share > 1.0 - 1e-9
        assert (point == grid.last) == (share >= 1.0 - 1e-9)
        assert at_point(grid, share * grid.horizon, point) <= (grid.last or 0)  # reported again
        last = point


LATE = {
    "steps": {"max_steps": 600},
    "smoothed": {"max_epochs": 600, "goal": Maximize("acc", smooth=2)},
    "ranked": {"max_epochs": 600, "goal": Maximize("acc", rank_by="f1")},
}


@pytest.mark.parametrize("kind", LATE)
def test_a_report_near_the_end_and_one_after_it_leave_the_log_readable(kind: str) -> None:
    store = MemoryStore()
    given: dict[str, Any] = {"goal": "acc", "budget": "1 trial", "verbose": 0, "policy": RandomSearch(), **LATE[kind]}
    study = Study(SPACE, store=store, judge_every=100, **given)
    trial = study.ask()
    assert isinstance(trial, Trial)
    for position in (500, 599, 600):
        trial.report({"acc": position / 1000, "f1": 0.5}, position)
    trial.finish()
    with pytest.warns(HaltuneWarning, match="Later reports do not count"):
        trial.report({"acc": 0.9, "f1": 0.5}, 600)
    assert study.judged.trials[0].epochs.tolist() == [5.0, 5.99, 6.0]
    replica._of_this_process.clear()
    assert Study(SPACE, store=store, judge_every=100, **given).trials[0].values.tolist() == [0.5, 0.599, 0.6]


def test_a_process_that_opens_the_log_later_has_the_same_state() -> None:
    posed, every = of("step")
    store = MemoryStore()
    study = Study(posed, Hyperband(eta=2), store, seed=3, budget=Budget(trials=6), verbose=0)
    for trial in study:
        for n in range(round(trial.epoch / every) + 1, EPOCHS + 1):
            if trial.report(accuracy(trial.config, n), n * every).stops:
                break
    log = list(store.read("study"))
    live, again = Fold(posed, Hyperband(eta=2)), Fold(posed, Hyperband(eta=2))
    live.read(log)
    for event in log:
        again.take(event)
    assert repr(live.state) == repr(again.state)
    assert live.judged.problem.max_epochs == EPOCHS
    assert [t.epoch for t in live.judged.trials] == [t.epoch / every for t in live.history.trials]


def near(found: Any, expected: Any) -> None:
    """Figures agree: positions in their units, numbers up to the last bits of a division."""
    if isinstance(expected, dict):
        for key in expected.keys() & found.keys():
            near(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            near(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)
    elif not isinstance(expected, str):
        assert found == expected


@pytest.fixture(scope="module")
def by_epochs() -> Study:
    """A BOBOS study in epochs."""
    return searched(POLICIES["bobos-audit"](), problem(), 1.0, 12)


@pytest.fixture(
    scope="module", params=["step", *(pytest.param(u, marks=pytest.mark.slow) for u in UNITS if u != "step")]
)
def pair(request: pytest.FixtureRequest, by_epochs: Study) -> tuple[Study, Study, float]:
    """It, and the same one in another unit."""
    posed, every = of(request.param)
    return by_epochs, searched(POLICIES["bobos-audit"](), posed, every, 12), every


def test_models_say_the_same_in_every_unit(pair: tuple[Study, Study, float]) -> None:
    epochs, other, _ = pair
    for figure in (report.importance, report.slices, report.contour):
        for one, same in zip(figure(other).data, figure(epochs).data, strict=True):
            near(one.to_plotly_json(), same.to_plotly_json())
    recommended = [study.recommend() for study in (other, epochs)]
    assert recommended[0] is not None
    assert recommended[1] is not None
    assert recommended[0].config == recommended[1].config
    assert outlook(other.history, True).probability == outlook(epochs.history, True).probability


def test_a_decision_is_drawn_at_its_positions(pair: tuple[Study, Study, float]) -> None:
    epochs, other, every = pair
    shown = zip(report.decisions(other).data, report.decisions(epochs).data, strict=True)
    for one, same in shown:
        assert [x and x / every for x in one.x] == pytest.approx(list(same.x))
        near(list(one.y), list(same.y))


def test_an_audit_counts_in_the_unit(pair: tuple[Study, Study, float]) -> None:
    epochs, other, every = pair
    found, known = other.audit(), epochs.audit()
    assert (found.stops, found.wrong, found.K1) == (known.stops, known.wrong, known.K1)
    assert (found.cost / every, found.saved / every) == pytest.approx((known.cost, known.saved))
    assert re.search(rf"[0-9.M]+ {other.history.problem.unit}s? in the other trials", str(found))


def test_a_study_in_another_unit_teaches_the_same(pair: tuple[Study, Study, float]) -> None:
    epochs, other, _ = pair
    taught = [EarlierStudy.of(study).to_json() for study in (other, epochs)]
    near(taught[0], taught[1])


@pytest.mark.parametrize("unit", UNITS)
def test_reasons_and_tables_say_the_unit(unit: str) -> None:
    posed, every = of(unit)
    study = searched(POLICIES["hyperband"](), posed, every)
    one, several = study.history.problem.unit, f"{study.history.problem.unit}s"
    said = "\n".join([study._repr_html_(), summary(study), *map(study.explain, range(len(study.trials)))])
    assert f"{several} ({every * EPOCHS:g}" not in said
    assert (one == "epoch") == ("epoch" in said)
    assert one in study.frame().columns
    assert "0000000" not in said
    assert list(rungs(study).layout.xaxis.ticktext) == [numeral(every * n) for n in (1, 3, 6)]
