"""What Optuna has found, as the past of a search."""

import math

import numpy as np
import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

from haltune import Choice, Float, Int, Maximize, Minimize, Study, load_study  # noqa: E402
from haltune.errors import InvalidInput, InvalidSpace  # noqa: E402
from haltune.log.events import Status  # noqa: E402
from haltune.optuna import from_study  # noqa: E402
from haltune.space import Space  # noqa: E402
from haltune.study.replay import replay  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)
EPOCHS = 9


def objective(trial):
    kernel = trial.suggest_categorical("kernel", ["rbf", "poly"])
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    layers = trial.suggest_int("layers", 1, 3)
    for i in range(layers):
        trial.suggest_int(f"units{i}", 8, 64, step=8)
    if kernel == "poly":
        trial.suggest_int("degree", 2, 5)
    value = 0.0
    for step in range(EPOCHS):
        value = (step + 1) / (step + 1 + 20 * lr)
        trial.report(value, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return value


def searched(trials=30, function=objective, **options):
    study = optuna.create_study(
        direction="maximize", study_name="digits", sampler=optuna.samplers.RandomSampler(0),
        pruner=optuna.pruners.MedianPruner(5, 2), **options,
    )  # fmt: skip
    study.optimize(function, n_trials=trials)
    return study


def test_the_space_is_read_from_the_trials_with_its_conditions():
    units = range(8, 65, 8)
    assert dict(from_study(searched()).problem.space.parameters) == {
        "kernel": Choice(["rbf", "poly"]),
        "lr": Float(1e-4, 1e-1, log=True),
        "layers": Int(1, 3),
        "units0": Choice(units, ordered=True),
        "units1": Choice(units, ordered=True, when={"layers": (">=", 2)}),
        "units2": Choice(units, ordered=True, when={"layers": (">=", 3)}),
        "degree": Int(2, 5, when={"kernel": ["poly"]}),
    }


def test_values_curves_states_and_times_are_those_of_optuna(tmp_path):
    there = searched()
    from_study(there, tmp_path / "past.db")
    past = load_study(tmp_path / "past.db")
    assert (past.name, past.problem.goal, past.problem.max_epochs) == ("digits", Maximize("value"), EPOCHS)
    assert past.best_value == there.best_value
    status = {"COMPLETE": Status.COMPLETED, "PRUNED": Status.STOPPED}
    for t, o in zip(past.trials, there.trials, strict=True):
        assert t.status is status[o.state.name]
        assert dict(zip(t.epochs - 1, t.values, strict=True)) == o.intermediate_values
        assert t.started == o.datetime_start.timestamp()
        assert t.seconds.sum() == pytest.approx(
            (o.datetime_complete - o.datetime_start).total_seconds(), abs=1e-6
        )
        assert {k: v for k, v in t.config.items() if k != "lr"} == {
            k: v for k, v in o.params.items() if k != "lr"
        }
        assert t.config["lr"] == pytest.approx(o.params["lr"], rel=1e-9)
    assert {t.status for t in past.trials} == set(status.values())
    assert {t.verdict.reason for t in past.trials if t.verdict} == {"pruned in Optuna"}


def test_the_log_is_one_of_haltunes_own_and_is_decided_again_as_it_is_written():
    past = from_study(searched())
    again = list(replay(past.problem, past.policy, past.events()))
    assert len(again) == 30
    assert [found for _, recorded, found in again if found != recorded] == []


def test_a_search_learns_from_it():
    past = from_study(searched(60))
    study = Study(
        past.problem.space, "accuracy", max_epochs=EPOCHS, budget="8 trials", learn_from=[past], seed=0, verbose=0
    )  # fmt: skip
    for trial in study:
        for epoch in trial.epochs():
            trial.report(epoch / (epoch + 20 * trial.config["lr"]))
    assert any("trials of 'digits'" in t.proposed for t in study.trials)
    assert np.median([t.config["lr"] for t in study.trials[3:]]) < 1e-3  # the best lies at the lower end


def test_a_program_that_is_run_again_opens_what_it_took(tmp_path):
    there = searched(3)
    from_study(there, tmp_path / "past.db")
    with pytest.raises(InvalidInput, match="already holds a study 'digits'"):
        from_study(there, tmp_path / "past.db")
    assert len(from_study(there, tmp_path / "past.db", "again").trials) == 3


def test_what_runs_waits_or_failed_is_told_as_such():
    there = optuna.create_study()
    there.add_trial(optuna.create_trial(value=1.0, params={"x": 1.0}, distributions={"x": UNIT}))
    running = there.ask({"x": UNIT})
    running.report(0.5, 1)
    failed = there.ask({"x": UNIT})
    there.tell(failed, state=optuna.trial.TrialState.FAIL)
    there.enqueue_trial({"x": 0.25})
    there.enqueue_trial({})
    past = from_study(there)
    assert [t.status for t in past.trials] == [Status.COMPLETED, Status.INTERRUPTED, Status.FAILED]
    assert past.trials[1].values.tolist() == [0.5]
    assert list(past.history.queue) == [{"x": 0.25}]


UNIT = optuna.distributions.FloatDistribution(0, 1)


def made(curve, value, state="COMPLETE", params=None, **others):
    params = {"x": 0.5} if params is None else params
    return optuna.create_trial(
        state=optuna.trial.TrialState[state], value=value, params=params,
        distributions=others or dict.fromkeys(params, UNIT), intermediate_values=dict(enumerate(curve)),
    )  # fmt: skip


def of(*trials, **options):
    study = optuna.create_study(**options)
    study.add_trials(trials)
    return study


@pytest.mark.parametrize(
    ("curves", "goal"),
    [
        ([([0.1, 0.3, 0.2], 0.2)], Maximize("value")),
        ([([0.1, 0.3, 0.2], 0.3), ([0.1, 0.2, 0.4], 0.4)], Maximize("value", of="best")),
        ([([0.1, 0.3, 0.2], 0.25)], Maximize("value")),
    ],
)
def test_the_goal_counts_the_epoch_that_the_objective_returned(curves, goal):
    there = of(*(made(*pair) for pair in curves), direction="maximize")
    past = from_study(there)
    assert past.problem.goal == goal
    assert past.best_value == there.best_value


def test_a_study_without_intermediate_values_trains_one_epoch():
    past = from_study(of(made([], 3.0), made([], 2.0)))
    assert (past.problem.max_epochs, past.problem.goal) == (1, Minimize("value"))
    assert [t.values.tolist() for t in past.trials] == [[3.0], [2.0]]


def test_values_that_are_not_finite_are_taken_as_they_are():
    past = from_study(of(made([math.nan, math.inf], math.inf), made([0.5, math.nan], None, "PRUNED")))
    assert past.best is None
    assert math.isnan(past.trials[0].values[0])
    assert math.isnan(past.trials[1].values[1])


def test_a_parameter_that_nothing_explains_is_left_out_and_said(caplog):
    there = of(
        made([], 1.0), made([], 1.0, params={"x": 0.5, "y": 0.5}), made([], 1.0, params={"x": 0.1}),
        made([], 1.0, params={"x": 0.5, "n": 2}, x=UNIT, n=optuna.distributions.IntDistribution(1, 4)),
    )  # fmt: skip
    with caplog.at_level("INFO", "haltune"):
        past = from_study(there)
    assert past.problem.space.names == ("x",)
    assert "'y' is left out: 3 trials of 4 lack it" in caplog.text
    given = Space({"x": Float(0, 1), "y": Float(0, 1)})
    assert len(from_study(there, space=given).trials) == 1


def test_ranges_that_changed_become_one_and_kinds_that_changed_are_an_error():
    wide = optuna.distributions.FloatDistribution(-1, 0.5)
    assert from_study(of(made([], 1.0), made([], 1.0, x=wide))).problem.space == Space({"x": Float(-1, 1)})
    choice = optuna.distributions.CategoricalDistribution([0.5])
    with pytest.raises(InvalidSpace, match=r"different parameters.* Rename"):
        from_study(of(made([], 1.0), made([], 1.0, x=choice)))


def test_what_cannot_be_taken_is_an_error_in_words(tmp_path):
    with pytest.raises(InvalidInput, match=r"optuna.load_study\("):
        from_study(f"sqlite:///{tmp_path}/optuna.db")
    with pytest.raises(InvalidSpace, match="No ended trial of this Optuna study"):
        from_study(optuna.create_study())
    with pytest.raises(InvalidInput, match="Set max_epochs="):
        from_study(of(made([1.0] * 5, 1.0)), max_epochs=2)
