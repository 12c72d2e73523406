"""Studies in files that this user may not write, or not even see: they open to look at, or say what is in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from other_user import as_another_user, needs_another_user, open_folder

from haltune import Float, Study, load_study
from haltune.errors import NotSupported
from haltune.log.events import Status
from haltune.policies import RandomSearch
from haltune.report import learning_curves

pytestmark = [needs_another_user, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def searched(path: Path) -> Study:
    study = Study({"x": Float(0, 1)}, "acc", path, max_epochs=1, policy=RandomSearch(trials=2), verbose=0)
    study.optimize(lambda trial: trial.config["x"])
    study.ask()
    learning_curves(load_study(path))  # and all that this imports
    return study


@pytest.mark.parametrize("closed", ["file and folder", "folder"])
def test_a_database_that_can_only_be_read_opens_to_look_at(closed):
    def look() -> str:
        study = load_study(folder / "a.db")
        drawn = learning_curves(study)
        try:
            study.ask()
        except NotSupported as error:
            words = str(error)
        statuses = [t.status for t in study.trials]
        return f"{statuses == [Status.COMPLETED] * 2} {bool(drawn)} {study.best == best} {study.outcome.over} {words}"

    with open_folder() as folder:
        study = searched(folder / "a.db")
        best = study.best
        study.store.close()
        if closed == "folder":
            (folder / "a.db").chmod(0o666)
        told = as_another_user(look)
    assert told.startswith("True True True True the study 'study' can be looked at, not gone on with: sqlite:///")
    assert "permissions of the file and its folder" in told or "may this user write there" in told


@pytest.mark.parametrize("closed", ["folder", "file"])
def test_one_that_cannot_be_seen_is_not_said_to_be_missing(closed):
    with open_folder() as folder:
        (folder / "private").mkdir()
        path = folder / "private" / "a.db"
        searched(path).store.close()
        (folder / "private" if closed == "folder" else path).chmod(0o700)
        told = as_another_user(lambda: str(load_study(path)))
        gone = as_another_user(lambda: str(load_study(folder / "b.db")))
    assert told.startswith(f"StoreError: {path} cannot be read: this user may not ")
    assert (f"may not enter the folder {path.parent}" if closed == "folder" else f"may not read {path}") in told
    assert gone.startswith("StoreError: there is no file")
