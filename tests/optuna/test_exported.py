"""A haltune study, written where Optuna's tools open it."""

import math

import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

from haltune import Choice, Float, Int, Maximize, Minimize, Problem, Study, load_study  # noqa: E402
from haltune.errors import InvalidInput  # noqa: E402
from haltune.log.decisions import Action  # noqa: E402
from haltune.optuna import from_study, to_study  # noqa: E402
from haltune.policies import BOBOS, Halting, RandomSearch, SuccessiveHalving  # noqa: E402

State = optuna.trial.TrialState
SPACE = {
    "lr": Float(1e-4, 1.0, log=True),
    "kernel": Choice(["rbf", "poly"]),
    "degree": Int(2, 5, when={"kernel": "poly"}),
    "size": Choice([(3, 3), (5, 5)]),
}


def searched(store=None, policy=None, goal=None, epochs=9, trials=8, **options):
    options = {"seed": 0, "budget": f"{trials} trials", "verbose": 0} | options
    study = Study(
        SPACE, goal or Maximize("acc", (0, 1)), store, max_epochs=epochs,
        policy=policy or RandomSearch(), **options,
    )  # fmt: skip
    for trial in study:
        for epoch in trial.epochs():
            value = 0.9 * epoch / (epoch + 3 * trial.config["lr"]) - 0.2 * (trial.config["lr"] > 0.1)
            trial.report(value, metrics={"loss": 1 - value})
        trial.checkpointed("nowhere") if trial.verdict.resumable else None
    return study


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_search_is_told_whole_in_any_storage(kind, tmp_path):
    study = searched(f"{tmp_path}/search.db", policy=Halting(RandomSearch()), epochs=20, trials=12)
    there = f"sqlite:///{tmp_path}/optuna.db"
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(f"{tmp_path}/optuna.log")
        there = optuna.storages.JournalStorage(backend)
    to_study(f"{tmp_path}/search.db", there, "digits")
    found = optuna.load_study(study_name="digits", storage=there)
    assert found.direction == optuna.study.StudyDirection.MAXIMIZE
    assert found.metric_names == ["acc"]
    assert found.best_value == study.best_value
    stopped = 0
    for t, o in zip(study.trials, found.trials, strict=True):
        assert {k: v for k, v in o.params.items() if k != "size"} == {
            k: v for k, v in t.config.items() if k != "size"
        }
        assert o.params["size"] == repr(t.config["size"])
        assert o.intermediate_values == dict(zip(t.epochs.astype(int).tolist(), t.values, strict=True))
        assert o.value == t.values[-1]
        assert math.isclose(o.datetime_start.timestamp(), t.started, abs_tol=1e-3)
        assert o.datetime_start <= o.datetime_complete
        assert o.user_attrs["loss"] == t.metrics["loss"][-1]
        if o.state is State.PRUNED:
            stopped += 1
            assert o.user_attrs["haltune:reason"] == t.verdict.reason
            assert o.user_attrs["haltune:p_beats"] == t.verdict.evidence["p_win"]
    assert stopped > 0
    assert found.user_attrs["haltune:over"]
    assert found.user_attrs["haltune:policy"] == "Halting"
    assert any("degree" in said for said in found.user_attrs["haltune:left_out"])


def test_paused_runs_are_pruned_open_ones_run_and_failed_ones_failed():
    study = searched(policy=SuccessiveHalving(n=9, rounds=1), trials=9)
    running = Study(SPACE, Minimize("loss"), max_epochs=4, budget="4 trials", seed=0, verbose=0)
    open_one, failed = running.ask(), running.ask()
    open_one.report(0.5)
    with pytest.raises(ZeroDivisionError), failed:
        raise ZeroDivisionError
    states = [t.state for t in to_study(running).trials]
    assert states == [State.RUNNING, State.FAIL]
    assert {t.state for t in to_study(study).trials} == {State.COMPLETE, State.PRUNED}
    paused = [t.id for t in study.trials if t.status == "paused"]
    assert paused
    assert {to_study(study).trials[id].user_attrs["haltune:status"] for id in paused} == {"paused"}


def test_what_ended_without_a_finite_value_failed():
    study = Study({"x": Float(0, 1)}, Minimize("loss"), seed=0, budget="2 trials", verbose=0)
    study.optimize(lambda trial: math.nan)
    assert [t.state for t in to_study(study).trials] == [State.FAIL] * 2


def test_a_copy_is_written_anew_and_nothing_of_others_is_overwritten(tmp_path):
    where = f"sqlite:///{tmp_path}/optuna.db"
    to_study(searched(f"{tmp_path}/search.db", trials=2), where)
    more = load_study(f"{tmp_path}/search.db", budget="4 trials")
    for trial in more:
        for epoch in trial.epochs():
            trial.report(epoch / 9)
    assert len(to_study(more, where).trials) == 4
    with pytest.raises(InvalidInput, match="is another"):
        to_study(searched(trials=1), where)
    optuna.load_study(study_name="study", storage=where).optimize(lambda trial: 0.5, n_trials=1)
    with pytest.raises(InvalidInput, match="of Optuna's own"):
        to_study(more, where)


def test_a_study_comes_back_with_its_very_space_goal_and_runs():
    study = searched(goal=Minimize("error", (0, 1), of="best"), policy=BOBOS(), trials=9)
    again = from_study(to_study(study))
    assert again.problem == Problem(study.problem.space, study.problem.goal, study.problem.max_epochs)
    assert [dict(t.config) for t in again.trials] == [dict(t.config) for t in study.trials]
    assert [t.status for t in again.trials] == [t.status for t in study.trials]
    assert [t.values.tolist() for t in again.trials] == [t.values.tolist() for t in study.trials]
    assert again.best.trial == study.best.trial
    stopped = [t.verdict.action for t in again.trials if t.verdict]
    assert set(stopped) <= {Action.STOP}
