"""Foreign files in a folder of checkpoints, and failing disks: no link is followed, no file lost, no error raised."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from clocked import World

from haltune.store.checkpoints import Checkpoints

ODD = ("trial-²", "trial-٣", "trial-", "trial-1.bak", "trial-00001", "trial-" + "9" * 200, "trial--1", "trial-1_0")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(checkpoints=tmp_path / "ck")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a foreign folder; some of its files have names of checkpoints."""
    folder = tmp_path / "victim"
    (folder / "attempt-1-epoch-3-01234567").mkdir(parents=True)
    for name in (
        "thesis.tex",
        "attempt-1-epoch-1-01234567.ckpt",
        "attempt-1-epoch-3-01234567/weights",
        "part-attempt-0-epoch-0-01234567",
    ):
        (folder / name).write_text("ten years")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def a_life(world: World) -> None:
    """Save a trial twice, continue it as another attempt, and end it."""
    trial = world.ask()
    for _ in range(2):
        trial.report(0.5)
        path = trial.save(lambda path: path.write_text("state"))
        assert Path(path).read_text() == "state"
    trial.interrupt()
    again = world.ask(world.another())
    assert again.checkpoint == path
    again.report(0.5)
    again.save(lambda path: path.write_text("state"))
    again.finish()


def test_links_and_pipes_in_a_trials_folder_are_not_followed_and_block_nothing(world: World, victim: Path) -> None:
    folder, before = world.study.checkpoints.of(0), contents(victim)
    folder.mkdir(parents=True)
    (folder / "attempt-1-epoch-1-01234567").symlink_to(victim)  # named as haltune does: deleted itself
    (folder / "attempt-0-epoch-1-01234567.ckpt").symlink_to(victim / "thesis.tex")
    (folder / "link").symlink_to(victim)
    os.mkfifo(folder / "attempt-1-epoch-2-01234567.ckpt")
    (folder / "loop").symlink_to("loop")
    a_life(world)
    assert contents(victim) == before
    assert sorted(path.name for path in folder.iterdir()) == ["link", "loop"]


def test_a_checkpoint_that_holds_links_and_pipes_is_saved_and_deleted_without_following_them(
    world: World, victim: Path
) -> None:
    before = contents(victim)

    def odd(path: Path) -> None:
        path.mkdir()
        (path / "victim").symlink_to(victim)
        (path / "dangling").symlink_to("nowhere")
        os.mkfifo(path / "pipe")

    trial = world.ask()
    trial.report(0.5)
    trial.save(odd, "")
    trial.save(odd, "")
    trial.finish()
    assert contents(victim) == before


def test_what_haltune_did_not_make_is_neither_counted_nor_deleted(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path / "ck", disk_quota=1000)
    folder = world.study.checkpoints.folder
    for name in (*ODD, "mine", "trial-0", "trial-1"):
        (folder / name).mkdir(parents=True)
        (folder / name / "precious").write_text("x" * 2000)
    before = contents(folder)
    for _ in range(3):
        a_life(world)
    assert contents(folder) == before


def test_a_folder_that_is_deleted_under_a_search_is_made_again(world: World) -> None:
    import shutil

    trial = world.ask()
    trial.report(0.5)
    trial.save(lambda path: path.write_text("one"))
    shutil.rmtree(world.study.checkpoints.folder.parent)
    trial.report(0.5)
    assert Path(trial.save(lambda path: path.write_text("two"))).read_text() == "two"
    shutil.rmtree(world.study.checkpoints.folder.parent)
    trial.finish()


def test_a_disk_that_fails_is_not_taken_for_a_checkpoint_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, stat = Checkpoints(tmp_path), Path.stat
    path = tmp_path / "trial-0" / "attempt-1-epoch-1-01234567.ckpt"
    path.parent.mkdir()
    assert kept.missing("trial-0/attempt-1-epoch-1-01234567.ckpt")
    path.write_text("state")
    for number in (errno.EIO, errno.ESTALE, errno.EACCES):

        def fails(self: Path, *, follow_symlinks: bool = True, number: int = number) -> os.stat_result:
            if self == path:
                raise OSError(number, os.strerror(number))
            return stat(self, follow_symlinks=follow_symlinks)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", fails)
            assert not kept.missing("trial-0/attempt-1-epoch-1-01234567.ckpt")
