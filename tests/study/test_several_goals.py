"""Studies of several goals and constraints: reports, records, and answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune import Budget, Constraint, Float, Maximize, Minimize, Problem, Space, Study
from haltune.errors import InvalidInput
from haltune.log.events import Reported, Status, from_json, to_json
from haltune.log.history import History
from haltune.policies import RandomSearch, SuccessiveHalving
from haltune.store.memory import MemoryStore
from haltune.study.view import read_study

SPACE = Space({"x": Float(0.0, 1.0)})
GOALS = [Maximize("acc"), Minimize("ms")]
LIMIT = Constraint("params", at_most=5.0)


def study_of(goal: Any = GOALS, constraints: Any = (), trials: int = 9, epochs: int = 1, store: Any = None) -> Study:
    problem = Problem(SPACE, goal, epochs, constraints=constraints)
    return Study(problem, RandomSearch(), store, seed=0, budget=Budget(trials=trials), verbose=0)


def told(study: Study, *reports: Any) -> Study:
    """A trial of one epoch for each report."""
    for report in reports:
        study.tell(study.ask(), report)  # type: ignore[arg-type]
    return study


VECTORS = st.lists(
    st.tuples(st.integers(0, 4) | st.just(math.nan), st.integers(0, 4) | st.just(-math.inf), st.integers(3, 7)),
    min_size=1,
    max_size=9,
)


@pytest.mark.filterwarnings("ignore:acc (was|became) NaN or infinite in all:haltune.errors.HaltuneWarning")
@settings(max_examples=many(100), deadline=None)
@given(VECTORS, st.booleans())
def test_the_front_is_what_no_feasible_run_dominates(rows: list[tuple[float, float, int]], limited: bool) -> None:
    limits = [LIMIT] if limited else []
    study = told(study_of(GOALS, limits), *[{"acc": a, "ms": m, "params": p} for a, m, p in rows])
    whole = [
        (i, a, m, max(0.0, p / 5 - 1) if limited else 0.0)
        for i, (a, m, p) in enumerate(rows)
        if math.isfinite(a) and math.isfinite(m)
    ]
    least = min((v for *_, v in whole), default=0.0)
    known = [(i, a, m) for i, a, m, v in whole if v == least]
    front = {i for i, a, m in known if not any(b >= a and n <= m and (b > a or n < m) for _, b, n in known)}
    found = study.pareto_front()
    assert {f.trial for f in found} == front
    assert [f.value for f in found] == sorted((f.value for f in found), reverse=True)
    for f in found:
        assert (f.values["acc"], f.values["ms"]) == rows[f.trial][:2]


def test_the_best_of_several_goals_is_said_to_be_a_front() -> None:
    study = told(study_of(), {"acc": 0.5, "ms": 3})
    for ask in (lambda: study.best, lambda: study.best_params, lambda: study.best_value, lambda: study.best_trial):
        with pytest.raises(InvalidInput, match=r"acc and ms.*study.pareto_front\(\)"):
            ask()
    for ask in (study.recommend, study.outlook, study.level_set, study.maximisers, study.audit):
        with pytest.raises(InvalidInput, match="one goal without constraints"):
            ask()


def test_within_constraints_the_best_keeps_to_them() -> None:
    study = told(study_of(Maximize("acc"), [LIMIT]), *[{"acc": a, "params": p} for a, p in [(0.9, 6), (0.5, 5)]])
    assert study.best is not None
    assert study.best.trial == 1
    assert [t.results(study.problem) for t in study.trials] == [
        {"acc": 0.9, "params": 6.0},
        {"acc": 0.5, "params": 5.0},
    ]


def test_where_no_run_keeps_to_them_it_is_the_least_beyond() -> None:
    rows = [(0.9, 9), (0.1, 6), (0.3, 6), (0.9, 7)]
    study = told(study_of(Maximize("acc"), [LIMIT]), *[{"acc": a, "params": p} for a, p in rows])
    assert study.best is not None
    assert study.best.trial == 2
    assert study.history.ranked() == [[2, 1], [3], [0]]


def test_every_number_of_a_report_is_in_the_log_and_read_back() -> None:
    store = MemoryStore()
    study = study_of(GOALS, [LIMIT], epochs=3, store=store)
    trial: Any = study.ask()
    trial.report({"acc": 0.5, "ms": math.nan, "params": 4.0, "extra": 1})
    trial.report(0.6, metrics={"ms": 7.0})  # what is limited stands
    trial.report({"acc": 0.7, "ms": 6.0}, 3, metrics={"lr": 0.1})
    trial.finish()
    said = [(e.value, dict(e.metrics)) for e in store.read("study") if isinstance(e, Reported)]
    assert said[1:] == [(0.6, {"ms": 7.0}), (0.7, {"lr": 0.1, "ms": 6.0})]
    assert said[0][0] == 0.5
    assert math.isnan(said[0][1].pop("ms"))
    assert said[0][1] == {"extra": 1.0, "params": 4.0}
    history = History(study.problem)
    for event in store.read("study"):
        history.apply(from_json(to_json(event)))
    assert [f.values for f in study.pareto_front()] == [{"acc": 0.7, "ms": 6.0, "params": 4.0}]
    assert history.on_front(0) == study.pareto_front()[0]
    assert read_study(store).pareto_front()[0].values == study.pareto_front()[0].values
    assert study.trials[0].status is Status.COMPLETED


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (0.5, "The report has no 'ms': every report needs all goals. This study needs 'acc', 'ms', 'params'"),
        ({"acc": 1.0, "ms": 1}, "The report has no 'params': the first report needs it for a constraint"),
        ({"Acc": 1.0, "ms": 1}, "Did you mean 'Acc'"),
        ({"acc": "high", "ms": 1, "params": 1}, "number"),
    ],
)
def test_a_report_that_lacks_something_is_refused(report: Any, said: str) -> None:
    trial: Any = study_of(GOALS, [LIMIT]).ask()
    with pytest.raises(InvalidInput, match=said):
        trial.report(report)
    trial.report({"acc": 1, "ms": 1, "params": 1})


@pytest.mark.parametrize(
    ("goal", "limits"),
    [
        (Maximize("acc"), [LIMIT]),
        pytest.param(GOALS, (), marks=pytest.mark.slow),
        pytest.param(GOALS, [LIMIT], marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("policy", [None, SuccessiveHalving(4, asynchronous=True)])
def test_a_study_of_steps_decides_as_one_of_epochs_with_the_same_reports(policy: Any, goal: Any, limits: Any) -> None:
    def searched(every: int, **length: int) -> list[tuple[Any, ...]]:
        study = Study(SPACE, goal, budget="6 trials", seed=0, verbose=0, policy=policy, constraints=limits, **length)
        for trial in study:
            with trial:
                assert trial.checkpoint is None or trial.epoch > 0
                for point in range(int(trial.epoch) // every + 1, 13):
                    x, params = trial.config["x"], 9.0 if trial.id in (0, 2) else 3.0
                    verdict = trial.report({"acc": x + point / 100, "ms": x**2, "params": params}, point * every)
                    trial.save(lambda path: path.write_text("weights"))
                    if verdict.stops:
                        break
        return [(t.config, t.status, t.epoch / every, t.values.tolist()) for t in study.trials]

    assert searched(5, max_steps=60) == searched(1, max_epochs=12)


def test_a_trial_beyond_a_fixed_limit_ended_because_of_it_and_not_of_its_rank() -> None:
    study = Study(SPACE, "acc", constraints=[LIMIT], max_epochs=9, budget="4 trials", seed=0, verbose=0)
    for trial in study:
        params = 9 if trial.id == 3 else 4
        for epoch in trial.epochs():
            if trial.report({"acc": trial.config["x"] - 0.5 / epoch, "params": params}).stops:
                break
    told = study.explain(3)
    assert "ended because" not in told
    assert "params = 9 breaks the constraint" in told
    row = study.trials[3]
    assert row.status is Status.STOPPED
    assert row.ended_because.startswith("params = 9 breaks the constraint params at most 5")
