"""Real searches of haltune's Tuner on a tiny net; run by test_keras_tuner."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import keras
import keras_tuner
import numpy as np
import pytest
from callback_studies import StopsAtTwo
from documents import blocks
from paused_studies import PausesAt

from haltune import load_study
from haltune.errors import HaltuneWarning, InvalidInput, InvalidSpace, NotSupported
from haltune.keras_tuner import Tuner
from haltune.policies import RandomSearch

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3))
Y = X.sum(axis=1, keepdims=True)


def build(hp):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(hp.Float("lr", 0.001, 0.3, sampling="log"), momentum=0.9)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def tuner(folder, hypermodel=build, **options):
    quick = {"objective": "val_loss", "max_epochs": 4, "max_trials": 3, "seed": 0, "verbose": 0}
    quick |= {"policy": RandomSearch(), "directory": str(folder), "project_name": "one"}
    return Tuner(hypermodel, **quick | options)


def search(t, **options):
    t.search(X, Y, **{"validation_split": 0.25, "verbose": 0, "batch_size": 8} | options)
    return t


def scores(t):
    return {name: float(trial.score) for name, trial in t.oracle.trials.items()}


def same_weights(one, other):
    for weight, same in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, same)


def test_it_searches_as_keras_tuners_own_do(tmp_path):
    t = search(tuner(tmp_path))
    assert [len(r.values) for r in t.study.trials] == [4, 4, 4]
    assert {name: r.values.min() for name, r in zip(t.oracle.trials, t.study.trials, strict=True)} == scores(t)
    best = min(t.oracle.trials.values(), key=lambda trial: trial.score)
    assert t.get_best_hyperparameters()[0].values == best.hyperparameters.values == t.study.best_params
    losses = [model.evaluate(X[24:], Y[24:], verbose=0)[0] for model in t.get_best_models(3)]
    assert losses == pytest.approx(sorted(scores(t).values()), rel=1e-4)
    t.results_summary()
    t.search_space_summary()
    assert load_study(tmp_path / "one" / "haltune.db").best_value == t.study.best_value


def test_losing_trials_are_stopped_and_callbacks_of_the_users_own_are_called(tmp_path):
    epochs = []

    class Counts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            epochs.append(epoch)

    t = search(tuner(tmp_path / "two", policy=StopsAtTwo(3)), callbacks=[Counts()])
    assert [len(r.values) for r in t.study.trials] == [4, 2, 2]
    assert epochs == [0, 1, 2, 3, 0, 1, 0, 1]
    assert all(trial.status == "COMPLETED" for trial in t.oracle.trials.values())
    t = search(tuner(tmp_path / "three", policy=StopsAtTwo(3), min_epochs=3))
    assert [len(r.values) for r in t.study.trials] == [4, 3, 3]
    with pytest.raises(InvalidInput, match="min_epochs=5 is above max_epochs=4"):
        tuner(tmp_path / "five", min_epochs=5)


def test_a_paused_run_continues_exactly_in_the_same_trial(tmp_path):
    paused = search(tuner(tmp_path / "a", policy=PausesAt(at=(1, 3)), max_trials=1))
    straight = search(tuner(tmp_path / "b", max_trials=1))
    assert [r.attempt for r in paused.study.trials] == [3]
    assert len(paused.oracle.trials) == 1
    for one, other in zip(paused.study.trials, straight.study.trials, strict=True):
        assert one.config == other.config
        assert list(one.values) == list(other.values)
    assert scores(paused) == scores(straight)
    same_weights(paused.get_best_models()[0], straight.get_best_models()[0])


class Worsens(keras_tuner.HyperModel):
    """The first epoch is the best."""

    def build(self, hp):
        return build(hp)

    def fit(self, hp, model, *args, callbacks, **kwargs):
        class Backwards(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                logs["val_loss"] = 1.0 + epoch

        return model.fit(*args, callbacks=[Backwards(), *callbacks], **kwargs)


def test_the_best_weights_before_a_pause_are_kept_where_later_ones_are_worse(tmp_path):
    t = search(tuner(tmp_path, Worsens(), policy=PausesAt(at=(2,)), max_trials=1))
    once = search(tuner(tmp_path / "once", Worsens(), max_trials=1))
    assert t.study.trials[0].attempt == 2
    assert scores(t) == scores(once) == {"0": 1.0}
    same_weights(t.get_best_models()[0], once.get_best_models()[0])


def test_a_program_that_is_started_again_continues(tmp_path):
    search(tuner(tmp_path, max_trials=2))
    t = tuner(tmp_path, max_trials=4)
    assert set(t.oracle.trials) == {"0", "1"}
    search(t)
    assert sorted(t.oracle.trials) == ["0", "1", "2", "3"]
    assert len(t.study.trials) == 4
    fresh = tuner(tmp_path, overwrite=True)
    assert fresh.oracle.trials == {}
    assert len(search(fresh).study.trials) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_a_program_that_starts_after_its_last_trial_logs_how_to_continue_by_the_tuners_arguments(
    shared, tmp_path, caplog
):
    options = {"store": tmp_path / "shared.db"} if shared else {}
    caplog.set_level("INFO", "haltune")
    for _ in range(2):
        search(tuner(tmp_path, max_trials=2, verbose=1, **options))
    new = "Tuner(store=)" if shared else "Tuner(project_name=), or overwrite=True"
    advice = f"To continue it, pass a larger Tuner(max_trials=). To start a new search, use another {new}."
    assert caplog.messages[-1] == advice
    assert caplog.messages.count(advice) == 1


def test_a_search_that_ctrl_c_has_ended_continues_if_it_is_called_again(tmp_path):
    class Ends(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    t = tuner(tmp_path, max_trials=2)
    with pytest.raises(KeyboardInterrupt):
        search(t, callbacks=[Ends()])
    search(t)
    assert [(r.status, len(r.values), r.attempt) for r in t.study.trials] == [("completed", 4, 2), ("completed", 4, 1)]
    assert {trial.status for trial in t.oracle.trials.values()} == {"COMPLETED"}
    assert sorted(t.oracle.trials) == ["0", "1"]


def test_a_folder_with_the_trials_of_another_study_is_refused_before_a_training(tmp_path):
    search(tuner(tmp_path, max_trials=1))
    t = tuner(tmp_path, seed=1, store=tmp_path / "other.db")
    with pytest.raises(InvalidInput, match="a trial 0 of another study"):
        search(t)
    assert [(r.status, len(r.values)) for r in t.study.trials] == [("interrupted", 0)]


class AsksLate(keras_tuner.HyperModel):
    """Asks for the size of a batch where it fits, as Keras Tuner's guides do."""

    def build(self, hp):
        return build(hp)

    def fit(self, hp, model, *args, **kwargs):
        batch = hp.Choice("batch", [16, 4, 8], default=16)
        assert batch == hp.values["batch"]
        return model.fit(*args, **kwargs | {"batch_size": batch})


def test_what_only_a_fit_asks_for_had_its_default_and_is_searched_from_then_on(tmp_path):
    search(tuner(tmp_path, AsksLate(), max_trials=2))
    t = search(tuner(tmp_path, AsksLate(), max_trials=8))
    assert t.study.trials[0].config == {"lr": t.study.trials[0].config["lr"], "batch": 16}
    assert {16} < {r.config["batch"] for r in t.study.trials} <= {4, 8, 16}
    for trial, record in zip(t.oracle.trials.values(), t.study.trials, strict=True):
        assert trial.hyperparameters.values == record.config
    assert t.get_best_hyperparameters()[0].values == t.study.best_params


def test_programs_with_folders_of_their_own_search_one_study_of_what_their_fits_ask_for(tmp_path):
    options = {"store": tmp_path / "search.db", "max_trials": 9}
    at_once = tuner(tmp_path / "at once", AsksLate(), **options)
    assert at_once.study.problem.space.names == ("lr",)
    search(tuner(tmp_path / "first", AsksLate(), **options | {"max_trials": 3}))
    later = tuner(tmp_path / "later", AsksLate(), **options | {"max_trials": 6})
    search(later)
    search(at_once)
    for t, trained in ((later, range(3, 6)), (at_once, range(6, 9))):
        assert sorted(t.oracle.trials) == [str(id) for id in trained]
        assert {name: trial.hyperparameters.values for name, trial in t.oracle.trials.items()} == {
            str(id): t.study.trials[id].config for id in trained
        }
    assert len({r.config["batch"] for r in at_once.study.trials[3:]}) > 1
    with pytest.warns(HaltuneWarning, match="9 trials"):
        search(tuner(tmp_path / "later", AsksLate(), overwrite=True, **options))


def test_a_class_derived_from_it_may_be_no_network(tmp_path):
    class Square(Tuner):
        def run_trial(self, trial, *args, **kwargs):
            if trial.trial_id == "1":
                raise ValueError("a bug")
            return trial.hyperparameters.get("x") ** 2

    hp = keras_tuner.HyperParameters()
    hp.Float("x", -1.0, 1.0)
    options = {"objective": "val_loss", "max_epochs": 1, "max_trials": 3, "seed": 0, "verbose": 0}
    t = Square(hyperparameters=hp, directory=str(tmp_path), policy=RandomSearch(), **options)
    t.search()
    assert [r.status for r in t.study.trials] == ["completed", "failed", "completed"]
    assert "a bug" in t.study.trials[1].error
    assert t.study.best_value == t.study.best_params["x"] ** 2


def test_a_search_whose_run_trial_declares_everything_is_told_to_declare_one_before(tmp_path):
    class Square(Tuner):
        def run_trial(self, trial, *args, **kwargs):
            return trial.hyperparameters.Float("x", -1.0, 1.0) ** 2

    t = Square(objective="val_loss", max_epochs=1, directory=str(tmp_path))
    with pytest.raises(InvalidSpace, match=r"known\.Float\('x'.*Then pass hyperparameters=known"):
        t.search()


KILLED = """
import os, sys
sys.path.insert(0, {here!r})
import keras
from tuner_checks import RandomSearch, X, Y, search, tuner

class Kills(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and self.trials() == 2 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)

    def trials(self):
        return len([name for name in os.listdir("one") if name.startswith("trial_")])

t = search(tuner("."), callbacks=[Kills()])
print([(r.status.value, len(r.values)) for r in t.study.trials], sorted(t.oracle.trials))
"""


def test_a_program_that_is_killed_and_started_again_trains_the_rest(tmp_path):
    run = partial(started, KILLED, tmp_path)
    assert run().returncode == -9
    done = run()
    assert done.stdout.splitlines()[-1] == "[('completed', 4), ('completed', 4), ('completed', 4)] ['0', '1', '2']", (
        done.stdout + done.stderr
    )


class Dips(keras_tuner.HyperModel):
    """The third epoch is the best."""

    def build(self, hp):
        return build(hp)

    def fit(self, hp, model, *args, callbacks, **kwargs):
        class Third(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                logs["val_loss"] = 1.0 + abs(epoch - 2)

        return model.fit(*args, callbacks=[Third(), *callbacks], **kwargs)


KILLED_LATE = """
import os, sys
sys.path.insert(0, {here!r})
import keras
from tuner_checks import Dips, PausesAt, same_weights, scores, search, tuner

class Kills(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)

t = search(tuner(".", Dips(), policy=PausesAt(at=(1,)), max_trials=1), callbacks=[Kills()])
once = search(tuner("once", Dips(), max_trials=1))
same_weights(t.get_best_models()[0], once.get_best_models()[0])
losses = t.oracle.trials["0"].metrics.get_history("loss")
print(t.study.trials[0].attempt, scores(t), [len(one.value) for one in losses])
"""


def test_a_resumed_trial_that_is_killed_after_its_best_epoch_has_the_weights_of_it(tmp_path):
    run = partial(started, KILLED_LATE, tmp_path)
    assert run().returncode == -9
    done = run()
    assert done.stdout.splitlines()[-1:] == ["3 {'0': 1.0} [1, 1, 1, 1]"], done.stdout + done.stderr


def started(source, folder):
    """Run a program in the folder; it may import this module."""
    source = source.format(here=str(Path(__file__).parent))
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source], cwd=folder, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip


def test_what_fails_is_left_out_and_tried_again_as_often_as_keras_tuner_says(tmp_path):
    failed = []

    def breaks(hp):
        model = build(hp)
        if len(failed) < 2 and hp.get("lr") == failing:
            failed.append(failing)
            raise ValueError("a bug")
        return model

    failing = search(tuner(tmp_path / "first", max_trials=2)).study.trials[1].config["lr"]
    t = search(tuner(tmp_path / "never", breaks))
    assert [r.status for r in t.study.trials] == ["completed", "failed", "completed"]
    assert "a bug" in t.study.trials[1].error
    assert t.oracle.trials["1"].status == "FAILED"
    failed.clear()
    t = search(tuner(tmp_path / "twice", breaks, max_retries_per_trial=2))
    assert [r.status for r in t.study.trials] == ["completed"] * 3
    assert t.oracle.trials["1"].status == "COMPLETED"


def test_a_trial_that_diverged_is_not_said_to_be_tried_again(tmp_path, capsys):
    fits = []

    class Diverges(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            fits.append(self)

        def on_epoch_end(self, epoch, logs=None):
            if len(fits) == 2:
                logs["val_loss"] = float("nan")

    t = search(tuner(tmp_path, max_trials=2, max_retries_per_trial=2), callbacks=[Diverges()])
    assert [(r.status, r.attempt) for r in t.study.trials] == [("completed", 1), ("stopped", 1)]
    assert [trial.status for trial in t.oracle.trials.values()] == ["COMPLETED", "FAILED"]
    assert "retries left" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"objective": None}, InvalidInput, "Tuner needs objective="),
        ({"objective": ["val_loss", "val_mae"]}, NotSupported, "one goal"),
        ({"max_epochs": None}, InvalidInput, "needs max_epochs="),
        ({"executions_per_trial": 2}, InvalidInput, "executed once"),
    ],
)
def test_what_it_cannot_search_is_said(options, error, said, tmp_path):
    with pytest.raises(error, match=said):
        tuner(tmp_path, **options)


def test_the_lines_of_the_documentation_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (lines,) = blocks("docs/coming_from.md", lambda text: text.startswith("from haltune.keras_tuner"))
    names = {"build": build, "x": X, "y": Y, "x_val": X, "y_val": Y}
    instead = {"max_epochs=30, max_trials=20": "max_epochs=2, max_trials=2", "val_accuracy": "val_loss"}
    names = lines.run(names, instead)
    assert isinstance(names["model"], keras.Model)
    assert len(names["tuner"].study.trials) == 2


def test_nothing_is_pickled(tmp_path):
    search(tuner(tmp_path, max_trials=1))
    kinds = {path.suffix for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert kinds <= {".json", ".db", ".h5", ".keras", ".random", ".db-wal", ".db-shm"}, kinds
    assert json.loads((tmp_path / "one" / "oracle.json").read_text())["start_order"] == ["0"]
