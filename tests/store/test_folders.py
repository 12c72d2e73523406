"""Folders of checkpoints: one for each study, and the same from any working directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from whims import PROBLEM, Whims

from haltune import Budget, HaltuneWarning, Study, Trial
from haltune.log import events as ev
from haltune.store.checkpoints import own_folder
from haltune.store.memory import MemoryStore
from haltune.study.view import read_study

Open = Callable[[], Study]


def opened(store: Any, **options: Any) -> Study:
    return Study(PROBLEM, Whims(), store, seed=1, budget=Budget(trials=3), **options)


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def saved(study: Study, text: str) -> Trial:
    """A trial that was saved after its first epoch."""
    trial = asked(study)
    trial.report(0.5)
    trial.save(lambda path: path.write_text(text))
    return trial


def need_each_their_own(a: Open, b: Open) -> None:
    """Two studies train a trial with the same number; the second ends it, the first resumes from its own state."""
    first, second = saved(a(), "of a"), saved(b(), "of b")
    first.interrupt()
    for epoch in second.epochs():
        second.report(0.5, epoch)
    second.finish()
    again = asked(a())
    assert (again.id, again.attempt, again.epoch) == (0, 2, 1)
    assert again.checkpoint is not None
    assert Path(again.checkpoint).read_text() == "of a"


@pytest.mark.parametrize(("one", "other"), [("a.db", "a.sqlite"), ("sqlite:///exp0.1", "sqlite:///exp0.2")])
def test_stores_of_like_names_keep_their_checkpoints_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    need_each_their_own(lambda: opened(one), lambda: opened(other))


@pytest.mark.parametrize("names", [("x" * 300, "x" * 299), ("a/b", "a%2Fb")])
def test_studies_may_share_the_folder_they_are_given(tmp_path: Path, names: tuple[str, str]) -> None:
    store, folder = tmp_path / "s.db", tmp_path / "shared"
    a, b = (lambda name=name: opened(store, name=name, checkpoints=folder) for name in names)
    need_each_their_own(a, b)
    assert {path.name for path in tmp_path.iterdir()} - {"s.db-wal", "s.db-shm"} == {"s.db", "shared"}


@pytest.mark.parametrize("name", ["..", "a/../../b", "x" * 300, "\0", "\ud800"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    created = ev.Created(at=1.0, problem={}, policy={}, seed=1, id="0123456789ab")
    for given in (created, replace(created, id=""), replace(created, id="/../../x"), replace(created, id="..")):
        folder = own_folder(MemoryStore(), name, given, tmp_path)
        assert folder.parent == tmp_path
        assert folder.name not in ("", ".", "..")
        folder.mkdir()
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
        folder.rmdir()


def test_a_study_that_moves_finds_its_checkpoints_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    monkeypatch.chdir(old)
    saved(opened("s.db", checkpoints="ck"), "moved").interrupt()
    monkeypatch.chdir(tmp_path)
    shutil.move(old / "ck", new / "elsewhere")
    for end in ("", "-wal", "-shm"):
        if (old / f"s.db{end}").exists():
            shutil.move(old / f"s.db{end}", new / f"renamed.sqlite{end}")
    again = asked(opened(new / "renamed.sqlite", checkpoints="new/elsewhere"))
    assert again.checkpoint is not None
    assert Path(again.checkpoint).read_text() == "moved"


def test_a_study_that_moves_finds_what_its_programs_wrote_into_their_folders(tmp_path: Path) -> None:
    trial = asked(opened(tmp_path / "old.db"))
    trial.report(0.5)
    own = trial.folder / "state.txt"
    own.write_text("of the program")
    trial.checkpointed(own)
    assert trial.checkpoint == str(own)
    trial.interrupt()
    for path in tmp_path.glob("old.*"):
        shutil.move(path, tmp_path / path.name.replace("old", "new"))
    for found in (read_study(tmp_path / "new.db"), again := opened(tmp_path / "new.db")):
        assert found.history.trial(0).checkpoint == str(own).replace("old.", "new.")
    assert Path(str(asked(again).checkpoint)).read_text() == "of the program"


def test_a_study_is_found_with_the_folder_that_its_program_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trial = saved(opened("s.db", checkpoints="models"), "state")
    path = trial.checkpoint
    trial.interrupt()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for found in (read_study("../s.db"), opened("../s.db")):
        assert found.history.trial(0).checkpoint == path
    again = asked(opened("../s.db"))
    assert (again.epoch, again.checkpoint) == (1, path)


def test_a_copied_database_does_not_train_on_in_the_folder_that_the_program_of_the_first_named(tmp_path: Path) -> None:
    first = saved(opened(tmp_path / "x.db", checkpoints=tmp_path / "models"), "of x")
    first.interrupt()
    for end in ("", "-wal"):
        if (tmp_path / f"x.db{end}").exists():
            shutil.copy(tmp_path / f"x.db{end}", tmp_path / f"y.db{end}")
    with pytest.warns(HaltuneWarning, match=r"y.checkpoints.*starts from scratch"):
        copy = asked(opened(tmp_path / "y.db"))
    copy.report(0.5)
    copy.save(lambda path: path.write_text("of y"))
    copy.finish()
    assert Path(str(first.checkpoint)).read_text() == "of x"
    assert str(tmp_path / "y.checkpoints") in str(copy.checkpoint)


def test_a_copied_database_trains_on_without_the_folder_of_the_first(tmp_path: Path) -> None:
    first = saved(opened(tmp_path / "x.db"), "of x")
    first.interrupt()
    path = Path(str(first.checkpoint))
    for end in ("", "-wal"):
        if (tmp_path / f"x.db{end}").exists():
            shutil.copy(tmp_path / f"x.db{end}", tmp_path / f"y.db{end}")
    shutil.copytree(tmp_path / "x.checkpoints", tmp_path / "y.checkpoints")
    copy = asked(opened(tmp_path / "y.db"))
    assert copy.checkpoint == str(path).replace("x.checkpoints", "y.checkpoints")
    copy.report(0.5)
    copy.save(lambda path: path.write_text("of y"))
    copy.finish()
    assert path.read_text() == "of x"


@pytest.mark.parametrize("link", ["a link to the file", "a link to its folder", "a link before the file exists"])
def test_a_store_opened_through_a_link_has_the_same_checkpoints(tmp_path: Path, link: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    real, linked = home / "real.db", tmp_path / "link.db"
    if link == "a link to its folder":
        linked = tmp_path / "there" / "real.db"
        linked.parent.symlink_to(home)
    else:
        linked.symlink_to(real)
    first, then = (linked, real) if link == "a link before the file exists" else (real, linked)
    saved(opened(first), "state").interrupt()
    again = asked(opened(f"sqlite:///{then}"))
    assert (again.attempt, again.epoch) == (2, 1)
    assert again.checkpoint is not None
    assert Path(again.checkpoint).read_text() == "state"
    assert sorted(path.name for path in home.iterdir() if path.is_dir()) == ["real.checkpoints"]
