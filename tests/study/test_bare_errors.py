"""What users hold wrongly is answered in haltune's words, and their own errors stay theirs."""

from __future__ import annotations

import copy
import pickle
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import haltune
from haltune import Checkpointing, Choice, Float, Minimize, Problem, Space, Storage, Study, Trial, policies
from haltune.errors import InvalidInput, LeaseLost, StoreError
from haltune.policies import RandomSearch

PROBLEM = Problem(Space({"lr": Float(0.0, 1.0)}), Minimize("loss"), 3)


def opened(store: Path | Storage | None = None, **options: Any) -> Study:
    return Study(PROBLEM, RandomSearch(), store, **{"seed": 0, "budget": "3 trials", "verbose": 0, **options})


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Numeric(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


def test_a_trial_of_another_study_is_refused_and_written_nowhere(tmp_path: Path) -> None:
    mine, other = opened(tmp_path / "a.db"), opened(tmp_path / "b.db", name="other")
    trial = asked(mine)
    with pytest.raises(InvalidInput, match=r"'study' in .*a\.db.*, not to 'other' in .*b\.db"):
        other.tell(trial, 0.5)
    assert len(mine.trials[0].values) == 0
    assert not other.trials


def test_a_trial_may_be_told_through_another_opening_of_its_study(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "a.db"), opened(tmp_path / "a.db")
    second.tell(asked(first), 0.25)
    second.sync()
    assert list(second.trials[0].values) == [0.25]


@pytest.mark.parametrize("error", [Mute(), Numeric()])
def test_an_error_that_has_no_text_is_recorded_by_its_class_and_raised(error: Exception) -> None:
    study = opened()
    with pytest.raises(type(error)), asked(study) as trial:
        trial.report(0.5)
        raise error
    assert study.trials[0].error == type(error).__name__
    asked(study).fail(error)
    assert study.trials[1].error == type(error).__name__


@pytest.mark.parametrize("name", [name for name in policies.__all__ if name not in haltune.__all__])
def test_a_policy_imported_from_haltune_is_answered_by_the_import_that_has_it(name: str) -> None:
    with pytest.raises(ImportError, match=f"from haltune.policies import {name}$"):
        exec(f"from haltune import {name}")


@pytest.mark.parametrize("folder", [0, [], "a\0b"])
def test_a_folder_of_checkpoints_that_is_no_path_is_refused_in_words(folder: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^checkpoints=.*a folder's path"):
        opened(checkpoints=folder)


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_folder_of_checkpoints_within_a_file_is_refused_before_anything_is_trained(
    tmp_path: Path, below: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidInput, match=r"^checkpoints=.*file is a file, not a folder"):
        opened(checkpoints=file / below)
    assert opened(checkpoints=tmp_path / "new" / below).ask() is not None


def test_numbers_beyond_what_a_machine_counts_keep_every_checkpoint(tmp_path: Path) -> None:
    study = opened(Storage(tmp_path / "a.db", patience=Decimal(1)), checkpoints=Checkpointing(keep=2**63))
    trial = asked(study)
    trial.report(0.5, epoch=3)
    trial.save(lambda path: path.write_text("state"))
    trial.finish()
    assert study.best.checkpoint is not None


def _tables(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [name for (name,) in database.execute("SELECT name FROM sqlite_master ORDER BY name")]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["mine"], r"holds mine\. Give the search another file"),
        (["studies", "trials", "version_info"], r"haltune\.optuna\.from_study\(study\) reads its studies"),
    ],
)
def test_a_file_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path, names: list[str], words: str) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as database:
        for name in names:
            database.execute(f"CREATE TABLE {name} (x)")
    with pytest.raises(StoreError, match=words):
        opened(path)
    assert _tables(path) == names


def test_half_a_surrogate_pair_is_written_as_its_code_in_the_frame() -> None:
    pytest.importorskip("pandas")
    space = Space({"\ud800": Float(0.0, 1.0), "kind": Choice(["\ud801", "\ud801b"])})
    study = Study(Problem(space, Minimize("loss"), 3), RandomSearch(), seed=0, budget="1 trial", verbose=0)
    asked(study).report(0.5, metrics={"\ud802": 1.0})
    table = study.frame()
    assert {r"config.\ud800", r"metric.\ud802"} <= set(table.columns)
    assert table["config.kind"][0].startswith(r"\ud801")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_records_and_the_history_are_pickled_and_copied(tmp_path: Path, copied: Any) -> None:
    opened(tmp_path / "a.db").optimize(lambda trial: trial.report(0.5, 3, metrics={"acc": 0.25}))
    study = opened(tmp_path / "a.db")  # as the log tells it
    record, history = copied(study.trials[0]), copied(study.history)
    assert record.config == study.trials[0].config
    assert list(record.metrics["acc"]) == list(history.trial(0).metrics["acc"]) == [0.25]
    assert copied(study.best).value == 0.5


def test_a_state_saved_after_the_end_of_its_trial_is_refused_because_the_trial_has_ended(tmp_path: Path) -> None:
    trial = asked(opened(tmp_path / "a.db"))
    trial.report(0.5)
    trial.finish()
    with pytest.raises(LeaseLost, match=r"trial 0 has ended \(completed\)"):
        trial.save(lambda path: path.write_text("state"))


def test_more_epochs_than_a_float_holds_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^max_epochs is at most 10\*\*12"):
        Study({"x": Float(0.0, 1.0)}, "loss", tmp_path / "a.db", max_epochs=10**400)
    assert not (tmp_path / "a.db").exists()
