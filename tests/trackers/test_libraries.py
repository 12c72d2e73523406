"""The libraries with a search's events: MLflow in a database, Weights & Biases offline, TensorBoard in a folder."""

import json
import re
import sys

import light_tensorboard  # noqa: F401
import pytest

from haltune import Budget, Float, Maximize, Study
from haltune.errors import installing
from haltune.log.events import Status
from haltune.policies import Halting, OptimalStopping, RandomSearch, SuccessiveHalving
from haltune.trackers import MLflow, TensorBoard, WandB, track

HITS = {"../hit@10": 0.5, "../hit#10": 0.25}  # as MLflow accepts them, they have one name


@pytest.fixture(scope="module")
def study():
    """A search with runs that were trained in full, that were stopped, and one that failed."""
    study = Study(
        {"lr": Float(0.1, 4.0), "net[0].width": 8}, Maximize("acc", (0, 1)), max_epochs=20, seed=0,
        policy=Halting(RandomSearch(), OptimalStopping(K1=200)),
        name="digits: lr/width", budget=Budget(trials=8), verbose=0,
    )  # fmt: skip
    for trial in study:
        with trial:
            if trial.id == 5:
                raise ZeroDivisionError("no data")
            for epoch in trial.epochs():
                trial.report(epoch / (epoch + trial.config["lr"]), metrics={"loss": float("nan"), **HITS})
    assert {t.status for t in study.trials} == {Status.COMPLETED, Status.STOPPED, Status.FAILED}
    return study


@pytest.fixture(scope="module")
def other():
    """Another search."""
    found = Study(
        {"lr": Float(0.1, 4.0)}, Maximize("acc"), max_epochs=2, policy=RandomSearch(), budget="1 trial", verbose=0
    )
    for trial in found:
        for epoch in trial.epochs():
            trial.report(float(epoch))
    return found


def told(study, tracker, times=1):
    for _ in range(times):
        with track(study, tracker()):
            pass


@pytest.mark.slow
def test_mlflow_has_a_parent_and_a_run_for_each_trial_once(study, other, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    pytest.importorskip("alembic", reason="MLflow's databases need Alembic")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracker = MLflow(uri)
    for one in (study, other):
        told(one, lambda: tracker)
    told(study, lambda: MLflow(uri))
    client = mlflow.tracking.MlflowClient(uri)
    experiment = client.get_experiment_by_name(study.name)
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 9
    parent = runs.pop(study.name)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["haltune.best_trial"] == str(study.best.trial)
    for t in study.trials:
        run = runs[f"trial {t.id}"]
        assert run.info.status == ("FAILED" if t.status is Status.FAILED else "FINISHED")
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags["haltune.status"] == t.status
        assert float(run.data.params["lr"]) == t.config["lr"]
        assert run.data.params["net_0_.width"] == "8"
        hits = sorted(value for name, value in run.data.metrics.items() if name.startswith("_/hit_10"))
        assert hits == ([] if t.status is Status.FAILED else [0.25, 0.5])
        curve = client.get_metric_history(run.info.run_id, "acc")
        assert {m.step: m.value for m in curve} == dict(zip(t.epochs, t.values, strict=True))
        assert len(curve) == len(t.epochs)
        if t.verdict is not None:
            assert run.data.tags["haltune.reason"] == t.verdict.reason
    experiment = client.get_experiment_by_name(other.name)
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.run_name for run in runs} == {other.name, "trial 0"}


@pytest.mark.slow
def test_mlflow_finishes_the_runs_that_an_earlier_program_had_paused(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    pytest.importorskip("alembic", reason="MLflow's databases need Alembic")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow.tracking.MlflowClient(uri)
    study = Study(
        {"lr": Float(0.1, 4.0)}, Maximize("acc"), max_epochs=9, policy=SuccessiveHalving(n=3, rounds=1), seed=0,
        verbose=0,
    )  # fmt: skip

    def train(trial):
        with trial:
            for epoch in trial.epochs():
                trial.report(trial.id + epoch / 10)  # each trial beats those before, which wait

    def statuses():
        experiment = client.get_experiment_by_name(study.name)
        return {run.info.run_name: run.info.status for run in client.search_runs([experiment.experiment_id])}

    with track(study, MLflow(uri)):
        for _ in range(2):
            train(study.ask())
    assert statuses() == dict.fromkeys([study.name, "trial 0", "trial 1"], "SCHEDULED")
    with track(study, MLflow(uri)):
        for trial in study:
            train(trial)
    assert [t.id for t in study.trials if t.status is Status.PAUSED] == [0, 1]
    assert statuses() == dict.fromkeys([study.name, "trial 0", "trial 1", "trial 2"], "FINISHED")


@pytest.mark.slow
def test_weights_and_biases_has_a_group_of_runs_offline(study, other, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    begun, ended, begin = {}, {}, wandb.init

    def init(**options):
        run = begin(**options)
        finish, run_id = run.finish, options["id"]

        def finished(exit_code):
            ended[run_id] = (exit_code, dict(run.summary), run.tags, dict(run.config))
            finish(exit_code=exit_code)

        begun[run_id] = options
        monkeypatch.setattr(run, "finish", finished)
        return run

    monkeypatch.setattr(wandb, "init", init)
    tracker = WandB(mode="offline", folder=str(tmp_path))
    told(other, lambda: tracker)
    ((_, options),) = begun.items()
    assert (options["group"], options["project"]) == (other.name, other.name)
    begun.clear()
    told(study, lambda: tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")  # the mode if none is given, as in wandb itself
    told(study, lambda: WandB(folder=str(tmp_path)))
    assert WandB(folder=str(tmp_path)).place == tracker.place
    search = next(iter(study.events())).id
    assert list(begun) == [f"{search}-{i}" for i in range(8)]
    assert {(options["group"], options["project"]) for options in begun.values()} == {(study.name, "digits- lr-width")}
    for t in study.trials:
        exit_code, summary, tags, config = ended[f"{search}-{t.id}"]
        assert exit_code == (t.status is Status.FAILED)
        assert tags == (str(t.status),)
        assert config == dict(t.config)
        assert t.verdict is None or summary["haltune.reason"] == t.verdict.reason
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 8 + 1
    bookmark = tmp_path / "wandb" / f"haltune-{search}.json"
    assert json.loads(bookmark.read_text()) == {"position": study.history.position}
    assert wandb.run is None  # the program's own run, if it has one, is left alone


def test_tensorboard_has_curves_hparams_and_reasons(study, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told(study, lambda: TensorBoard(tmp_path), times=2)
    for t in study.trials:
        run = EventAccumulator(str(tmp_path / f"trial-{t.id}")).Reload()
        assert "hparams" in run.summary_metadata["_hparams_/session_start_info"].plugin_data.plugin_name
        if len(t.epochs):
            curve = run.Scalars("acc")
            assert [e.step for e in curve] == t.epochs.tolist()
            assert [e.value for e in curve] == pytest.approx(t.values.tolist())
        if t.verdict is not None:
            (words,) = run.Tensors("haltune.reason")
            assert words.tensor_proto.string_val[0].decode() == t.verdict.reason


def test_two_searches_in_one_tensorboard_folder_have_folders_of_their_own(study, other, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    tracker = TensorBoard(tmp_path)
    for one in (study, other, study):
        told(one, lambda: tracker)
    for one in (study, other):  # the programs start again
        told(one, lambda: TensorBoard(tmp_path))
    own = tmp_path / next(iter(other.events())).id
    assert [len(list(run.glob("events.*"))) for run in (tmp_path / "trial-0", own / "trial-0")] == [1, 1]
    assert len(list(own.glob("trial-*"))) == 1


@pytest.mark.parametrize(("library", "tracker", "install"), [
    ("mlflow.tracking", lambda: MLflow("sqlite://"), installing("mlflow")), ("wandb", WandB, installing("wandb")),
    ("tensorboard.summary.writer.event_file_writer", lambda: TensorBoard("runs"), "pip install tensorboard"),
])  # fmt: skip
def test_a_library_that_is_missing_is_named(monkeypatch, library, tracker, install):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=re.escape(install)):
        tracker()
