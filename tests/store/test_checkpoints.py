"""Checkpoints: complete or absent, their folders, which are kept, and a full disk."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clocked import World
from hypothesis import given, settings
from hypothesis import strategies as st
from paused_studies import pausing_study
from whims import PAUSE, PROBLEM, STOP, Whims

from examples import many
from haltune import (
    Budget,
    Checkpointing,
    Float,
    HaltuneWarning,
    Maximize,
    Minimize,
    Problem,
    Space,
    Storage,
    Study,
    Trial,
    load_study,
)  # fmt: skip
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import InvalidInput, LeaseLost, NoRoom, StoreError
from haltune.log.events import OVER, Checkpointed, Resumed
from haltune.policies import RandomSearch
from haltune.ranks import Group
from haltune.store.checkpoints import Checkpoints


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(checkpoints=tmp_path / "ck")


def write(text: str = "state"):  # type: ignore[no-untyped-def]
    return lambda path: path.write_text(text)


def files(world: World) -> list[str]:
    """Return the files in the study's folder, without the unique part of each name."""
    folder = world.study.checkpoints.folder
    paths = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [re.sub("(epoch-[0-9.]+)-[0-9a-f]{8}", r"\1", path) for path in paths]


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


@pytest.mark.parametrize(
    ("save", "told"),
    [
        (lambda path: np.save(path, np.zeros(3)), "suffix='.npy'"),
        (lambda path: [Path(f"{path}{end}").touch() for end in (".data-0-of-1", ".index")], r"path\.mkdir"),
        (lambda path: Path(f"{path}.tmp").mkdir(), "wait for it"),
        (lambda path: None, "wrote nothing at its path"),
        ("model.pt", "is not a function"),
    ],
)
def test_a_state_that_was_not_written_says_what_to_write(world: World, save: Any, told: str) -> None:
    trial = world.ask()
    trial.report(0.5)
    before = trial.save(write("good"))
    trial.report(0.5)
    with pytest.raises(InvalidInput, match=told):
        trial.save(save)
    assert trial.checkpoint == before
    assert files(world) == ["trial-0/attempt-1-epoch-1.ckpt"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_checkpoint_as_large_as_the_one_before_is_refused_before_it_is_written(tmp_path: Path, keep: bool) -> None:
    world, written = World(checkpoints=tmp_path, disk_quota=1500), []
    trial = world.ask()
    for value in (0.5, 0.4):
        trial.report(value)
        if not written:
            trial.save(lambda path: written.append(path.write_text("x" * 900)), keep=keep)
        else:
            with pytest.raises(NoRoom, match=r"1\.8 KB.*disk_quota is 1\.5 KB"):
                trial.save(lambda path: written.append(path), keep=keep)
    assert (len(written), len(files(world))) == (1, 1)


@pytest.mark.parametrize(
    ("unit", "position", "named"),
    [
        ("token", 9_437_184, "token-9437184"),
        ("step", 250, "step-250"),
        ("epoch", 0.25, "epoch-0.25"),
        ("game played", 3, "game_played-3"),
    ],
)
def test_a_name_says_the_position_in_the_studys_unit(tmp_path: Path, unit: str, position: float, named: str) -> None:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), 10**8, unit=unit)
    study = Study(problem, Whims(), checkpoints=tmp_path, budget=Budget(trials=1), verbose=0)
    trial = asked(study)
    trial.report(0.5, position)
    path = Path(trial.save(write(), ".pt"))
    assert re.fullmatch(rf"attempt-1-{named}-[0-9a-f]{{8}}\.pt", path.name)
    trial.report(0.5, position + 1)
    later = Path(trial.save(write(), ".pt"))
    assert [p.name for p in path.parent.iterdir()] == [later.name]  # the one before is found, and deleted


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("no pickle")])
def test_a_save_that_fails_leaves_the_checkpoint_before_it(world: World, error: Exception) -> None:
    trial = world.ask()
    trial.report(0.5)
    before = trial.save(write("good"))
    trial.report(0.5)

    def half(path: Path) -> None:
        path.write_text("ha")
        raise error

    with pytest.raises(type(error)):
        trial.save(half)
    assert trial.checkpoint == before
    assert Path(before).read_text() == "good"
    assert files(world) == ["trial-0/attempt-1-epoch-1.ckpt"]
    assert [e.epoch for e in world.events(Checkpointed)] == [1]


@pytest.mark.parametrize("writes", ["before", "after", "nothing"])
def test_a_worker_that_lost_its_trial_while_it_saved_gets_an_error_although_its_files_are_gone(
    world: World, writes: str
) -> None:
    late = world.ask()
    late.report(0.5)

    def write(path: Path) -> None:
        if writes == "before":
            path.write_text("state")
        world.clock.now += 601
        world.ask(world.another()).report(0.6)
        shutil.rmtree(path.parent)
        if writes == "after":
            path.write_text("state")

    with pytest.raises(LeaseLost, match="another worker"):
        late.save(write)


def test_what_is_over_is_deleted_but_the_best(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path, keep=2)
    for value in (0.3, 0.9, float("nan"), 0.1, STOP, 0.8):
        with world.ask() as trial:
            trial.report(value)
            trial.save(write())
    kept = {t.id for t in world.study.trials if world.study.checkpoints.of(t.id).exists()}
    assert kept == {1, 5}


def test_no_room_under_a_quota(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path, disk_quota=1000)
    first, second = world.ask(), world.ask()
    first.report(0.5)
    first.save(write("x" * 900))
    second.report(0.5)
    second.room_for(100)
    with pytest.raises(NoRoom, match=r"1\.1 KB.*disk_quota is 1 KB"):
        second.room_for(200)
    with pytest.raises(NoRoom) as caught:
        second.save(write("x" * 200))
    assert "make room or raise disk_quota. Within `with trial:`," in caught.value.__notes__[0]
    assert files(world) == ["trial-0/attempt-1-epoch-1.ckpt"]


# -- a full disk in a plain loop


def torch_on_a_full_disk(path: Path) -> None:
    """Raise as torch.save does."""
    path.write_text("ha")
    try:
        raise RuntimeError("[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/0")
    except RuntimeError as error:
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0") from error


def raises(kind: type[Exception], *arguments: Any) -> Any:
    def half(path: Path) -> None:
        path.write_text("ha")
        raise kind(*arguments)

    return half


full_disk = raises(OSError, errno.ENOSPC, "No space left on device")
FULL = {
    "disk": full_disk,
    "quota of the user": raises(OSError, errno.EDQUOT, "Disk quota exceeded"),
    "disk_quota": lambda path: path.write_bytes(bytes(2_000_000)),
    "torch": torch_on_a_full_disk,
    "Rust": raises(ValueError, "I/O error: No space left on device (os error 28)"),
}


def a_pausing_study(tmp_path: Path, at: tuple[float, ...] = (2, 3), **options: Any) -> Study:
    return pausing_study(folder=tmp_path, at=at, disk_quota="1MB", **{"verbose": 0, **options})


@pytest.mark.parametrize("fails", FULL.values(), ids=FULL)
def test_a_plain_loop_that_cannot_save_a_pause_trains_on_with_one_warning(tmp_path: Path, fails: Any) -> None:
    study, paths = a_pausing_study(tmp_path), []
    with pytest.warns(HaltuneWarning, match=r"Trial 0: its state could not be saved .*; it keeps training") as said:
        for trial in study:
            with trial:
                for epoch in trial.epochs():
                    trial.report(0.5)
                    paths.append(trial.save(write() if epoch in (1, 4) else fails))
    (record,) = study.trials
    assert (record.status, record.attempt, record.epochs.tolist()) == ("completed", 1, [1, 2, 3, 4])
    assert len([w for w in said if w.category is HaltuneWarning]) == 1
    assert paths[:3] == paths[:1] * 3
    assert Path(paths[0]).name.startswith("attempt-1-epoch-1-")


def test_a_program_that_leaves_its_loop_at_a_pause_which_was_not_saved_has_paused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = a_pausing_study(tmp_path, at=(2,), verbose=1)
    with pytest.warns(HaltuneWarning, match="keeps training"), asked(study) as trial:
        for _ in trial.epochs():
            verdict = trial.report(0.5)
            assert trial.save(full_disk) == ""
            if verdict.stops:
                break
    (record,) = study.trials
    assert (record.status, record.epochs.tolist(), record.checkpoint) == ("paused", [1, 2], None)
    assert "To save one, call trial.save" not in caplog.text
    assert asked(study).epoch == 0


def test_a_program_that_breaks_before_it_saves_is_told_to_save_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with asked(a_pausing_study(tmp_path, at=(2,), verbose=1)) as trial:
        for _ in trial.epochs():
            if trial.report(0.5).stops:
                break
            trial.save(write())
    assert "no checkpoint was saved after epoch 2" in caplog.text
    assert "after trial.report(value) and before break" in caplog.text


def test_a_program_that_ends_by_itself_after_a_pause_that_was_not_saved_is_complete(tmp_path: Path) -> None:
    study = a_pausing_study(tmp_path, at=(2,))
    with pytest.warns(HaltuneWarning, match="keeps training"), asked(study) as trial:
        for epoch in trial.epochs():
            if epoch == 3:
                break
            trial.report(0.5)
            trial.save(full_disk)
    assert (study.trials[0].status, study.trials[0].epochs.tolist()) == ("completed", [1, 2])


def test_a_state_that_could_not_be_saved_before_its_report_declines_the_pause(tmp_path: Path) -> None:
    study = a_pausing_study(tmp_path)
    with pytest.warns(HaltuneWarning, match="keeps training"), asked(study) as trial:
        for _ in trial.epochs():
            trial.save(full_disk)
            if trial.report(0.5).stops:
                break
    assert (study.trials[0].status, study.trials[0].epochs.tolist()) == ("completed", [1, 2, 3, 4])


def test_a_best_model_for_which_the_disk_has_no_room_costs_no_training(tmp_path: Path) -> None:
    study = a_pausing_study(tmp_path, at=(), keep=1)
    with pytest.warns(HaltuneWarning, match="its best model could not be saved"), asked(study) as trial:
        for _ in trial.epochs():
            trial.report(0.5)
            trial.save(full_disk, keep=True)
    assert study.trials[0].status == "completed"


def test_an_error_of_a_save_that_is_no_full_disk_is_one_of_the_training(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), asked(a_pausing_study(tmp_path)) as trial:
        for _ in trial.epochs():
            trial.report(0.5)
            trial.save(raises(PermissionError, errno.EACCES, "denied"))


def test_the_seconds_of_a_save_that_a_full_disk_ends_are_not_of_the_training(world: World) -> None:
    def slow(path: Path) -> None:
        world.clock.now += 7.0
        full_disk(path)

    with pytest.warns(HaltuneWarning, match="keeps training"), world.ask() as trial:
        trial.report(0.5)
        trial.save(slow)
        world.clock.now += 10.0
        trial.report(0.5)
    assert world.study.trials[0].seconds.tolist() == [0.0, 10.0]


def test_a_stopped_trial_that_a_full_disk_cannot_save_does_not_keep_training(world: World) -> None:
    with pytest.warns(HaltuneWarning, match=r"No space left on device\)\. Make room"), world.ask() as trial:
        trial.report(STOP)
        trial.save(full_disk)
    assert world.study.trials[0].status == "stopped"


def test_ranks_that_cannot_learn_of_a_declined_pause_get_the_error(world: World, monkeypatch: Any) -> None:
    two = Group(0, 2, lambda value, rank: value)  # of which haltune knows one, as Fabric has started the other
    monkeypatch.setattr("haltune.study.port.torch_ranks", lambda: two)
    with pytest.raises(OSError, match="No space left"), world.ask() as trial:
        trial.report(PAUSE)
        trial.save(full_disk)
    assert world.study.trials[0].status == "interrupted"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_fold_that_cannot_be_saved_trains_on_or_is_paused_where_its_loop_is_left(
    tmp_path: Path, leaves: bool
) -> None:
    study = a_pausing_study(tmp_path, at=(0.5,), epochs=2)
    with pytest.warns(HaltuneWarning, match="keeps training"), asked(study) as trial:
        for fold in trial.folds(2):
            for _ in fold.epochs():
                verdict = fold.report(0.5)
                fold.save(full_disk)
                if verdict.stops and leaves:
                    break
    (record,) = study.trials
    ended = ("paused", [0.5]) if leaves else ("completed", [0.5, 1.0, 1.5, 2.0])
    assert (record.status, record.epochs.tolist()) == ended


def test_a_loop_of_haltunes_over_a_fold_sees_a_full_disk_and_trains_on(tmp_path: Path) -> None:
    study = a_pausing_study(tmp_path, at=(0.5,), epochs=2)
    with pytest.warns(HaltuneWarning, match="No space left.*keeps training"), asked(study) as trial:
        for fold in trial.folds(2):
            for _ in (loop := TrainingLoop(fold, save=full_disk)):
                loop.report(0.5)
    (record,) = study.trials
    assert (record.status, record.attempt, record.epochs.tolist()) == ("completed", 1, [0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *((Checkpointing, "disk_quota", value) for value in ("many GB", -1, float("nan"))),
        *((Checkpointing, "keep", value) for value in (-1, 1.5)),
        *((Storage, "lease", value) for value in (0, float("inf"), "long")),
        *((Storage, "patience", value) for value in (-1, "long")),
        *((Storage, "max_retries", value) for value in (-1, None)),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(kind: Any, name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        kind(**{name: value})


def test_a_trial_whose_checkpoint_is_gone_starts_again_and_says_so(world: World) -> None:
    trial = world.ask()
    trial.report(0.4)
    trial.report(PAUSE)
    trial.save(write())
    trial.finish()
    shutil.rmtree(world.study.checkpoints.folder)
    with pytest.warns(HaltuneWarning, match="starts from scratch"):
        again = world.ask()
    assert (again.id, again.epoch, again.checkpoint) == (0, 0, None)
    assert world.events(Resumed)[0].anew
    assert not again.report(0.45).stops
    assert world.curve() == [0.45]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (Path.unlink, "has lost its file inner/1.bin"),
        (lambda part: os.truncate(part, 3), "has only 3 bytes of 5 in its file inner/1.bin"),
    ],
)
def test_a_trial_whose_checkpoint_lost_a_part_starts_again_and_names_it(world: World, harm: Any, said: str) -> None:
    trial = world.ask()
    trial.report(0.4)
    trial.report(PAUSE)
    path = Path(trial.save(a_folder))
    (path / "haltune.json").write_text("{}")  # shorter than before, as a callback may write it again
    trial.finish()
    assert world.study.checkpoints.damage(str(path)) is None
    harm(path / "inner" / "1.bin")
    with pytest.warns(HaltuneWarning, match=rf"checkpoint of trial 0, .*{said}\. The trial starts from scratch\. Let "):
        again = world.ask()
    assert (again.id, again.epoch, again.checkpoint) == (0, 0, None)


def a_folder(path: Path) -> None:
    (path / "inner").mkdir(parents=True)
    for name in ("0.bin", "inner/1.bin", "haltune.json"):
        (path / name).write_text("state")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda file: os.truncate(file, 3), "has only 3 bytes of 5"),
        (lambda file: file.write_text("STATE"), "is not as it was saved"),
    ],
)
def test_a_trial_whose_checkpoint_was_cut_or_written_over_starts_again(world: World, harm: Any, said: str) -> None:
    trial = world.ask()
    trial.report(0.4)
    trial.report(PAUSE)
    path = Path(trial.save(lambda path: path.write_text("state")))
    trial.finish()
    harm(path)
    with pytest.warns(HaltuneWarning, match=rf"checkpoint of trial 0, .*{said}\. The trial starts from scratch\. Let "):
        again = world.ask()
    assert (again.id, again.epoch, again.checkpoint) == (0, 0, None)


def test_a_save_looks_at_no_folder_of_other_trials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, looked, isdir = world.ask(), list[str](), os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: looked.append(str(path)) or isdir(path))
    for value in (0.6, 0.5):
        trial.report(value)
        trial.save(write())
        (world.study.checkpoints.folder / "trial-9").mkdir(exist_ok=True)
    assert not any("trial-9" in path for path in looked)


def test_a_power_failure_never_leaves_a_log_without_the_checkpoint_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the log, the disk has what was flushed last; of the checkpoints, it may have lost what was deleted."""
    db, disk, flush, unlink = tmp_path / "s.db", tmp_path / "disk", os.fsync, Path.unlink
    deleted: list[str] = []

    def flushed(handle: int) -> None:
        flush(handle)
        if os.path.samestat(os.fstat(handle), os.stat(f"{db}-wal")):
            disk.mkdir(exist_ok=True)
            for end in ("", "-wal"):
                shutil.copy(f"{db}{end}", disk / f"s.db{end}")

    def delete(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path.suffix == ".ckpt":
            deleted.append(path.name)
            for t in load_study(disk / "s.db").trials:
                assert t.status in OVER or t.checkpoint is None or Path(t.checkpoint).name not in deleted

    study = Study(PROBLEM, Whims(), db, budget=Budget(trials=2))
    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "unlink", delete)
    for value in (0.6, 0.5):  # the second is not kept
        trial = asked(study)
        for _ in range(3):
            trial.report(value)
            trial.save(write())
        trial.finish()
    assert len(deleted) == 5


@pytest.mark.parametrize(
    "in_folder", [False, pytest.param(True, marks=pytest.mark.slow)]
)  # of the trial, which haltune offers
@pytest.mark.parametrize("written", ["state 3", "sta", None])
def test_a_file_of_the_users_own_that_was_written_after_it_was_recorded_is_named(
    tmp_path: Path, written: str | None, in_folder: bool
) -> None:
    support = str(Path(__file__).parents[1] / "support")
    command = [
        sys.executable,
        "-c",
        OVERWRITES,
        str(tmp_path / "s.db"),
        support,
        "own" if in_folder else str(tmp_path / "own"),
    ]
    command.append(written or "")
    done = subprocess.run(command, timeout=60)
    assert done.returncode == -9
    study = Study(PROBLEM, Whims(), tmp_path / "s.db", budget=Budget(trials=3))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = asked(study)
    own = str(again.folder / "own" if in_folder else tmp_path / "own")
    assert (again.id, again.epoch, again.checkpoint) == (0, 2, own)
    named = [str(w.message) for w in said if "was written after" in str(w.message)]
    assert len(named) == (written is not None)
    for text in named:
        assert "own, the checkpoint of trial 0, was written after it was recorded at epoch 2" in text
        assert "own name" in text


OVERWRITES = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from whims import PROBLEM, Whims
from haltune import Budget, Study
study = Study(PROBLEM, Whims(), sys.argv[1], seed=1, budget=Budget(trials=3))
trial = study.ask()
own = trial.folder / sys.argv[3]  # or the path itself, if it is absolute
for epoch in (1, 2):
    trial.report(0.5)
    own.write_text(f"state {epoch}")
    trial.checkpointed(own)
trial.report(0.6)
if sys.argv[4]:
    own.write_text(sys.argv[4])
os.kill(os.getpid(), 9)
"""

KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
from whims import PROBLEM, Whims
from haltune import Budget, Study
study = Study(PROBLEM, Whims(), sys.argv[1], seed=1, budget=Budget(trials=3))
trial = study.ask()
trial.report(0.5)
trial.save(lambda path: path.write_text("whole"))
trial.report(0.6)
trial.save(lambda path: (path.write_text("ha"), os.kill(os.getpid(), 9)))
"""


def test_a_process_killed_while_it_saves_continues_from_the_checkpoint_before(tmp_path: Path) -> None:
    support = str(Path(__file__).parents[1] / "support")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "s.db"), support], timeout=60)
    assert done.returncode == -9
    again = asked(Study(PROBLEM, Whims(), tmp_path / "s.db", budget=Budget(trials=3)))
    assert (again.id, again.epoch) == (0, 1)
    assert again.checkpoint is not None
    assert Path(again.checkpoint).read_text() == "whole"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("property")


@settings(max_examples=many(40), deadline=None)
@given(steps=st.lists(st.sampled_from(["report", "save", "fail", "pause", "end", "other"]), max_size=25))
def test_after_any_events_the_log_names_only_whole_files_and_nothing_else_is_left(
    scratch: Path, steps: list[str]
) -> None:
    folder = Path(scratch) / os.urandom(4).hex()
    world = World(trials=1000, checkpoints=folder)
    trial = world.ask()

    def broken(path: Path) -> None:
        path.write_text("ha")
        raise OSError

    for step in steps:
        if trial.ended is not None or trial.epoch >= 9:
            trial.finish()
            trial = world.ask()
        if step in ("save", "fail") and not trial.has_reported:
            continue  # a state that is saved before its report waits for it
        if step == "save":
            trial.save(write(f"{trial.id} at {trial.epoch}"))
        elif step == "fail":
            with pytest.raises(OSError):
                trial.save(broken)
        elif step == "other":
            world.clock.now += 601
            trial = world.ask(world.another())
        elif step == "end" and trial.epoch:
            trial.finish()
        elif not (trial.verdict and trial.verdict.stops):
            assert trial.checkpoint is None or Path(trial.checkpoint).is_file()
            trial.report(PAUSE if step == "pause" else 0.5)
    world.study.sync()
    going_on = [t for t in world.study.trials if t.checkpoint and t.status not in OVER]
    there = {str(p) for p in folder.rglob("*") if p.is_file()}
    assert there == {t.checkpoint for t in going_on}
    for t in going_on:
        assert t.checkpoint is not None
        assert Path(t.checkpoint).read_text() == f"{t.id} at {t.checkpoint_epoch:g}"


# -- who wakes late, and who is interrupted -----------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreError])
def test_what_the_log_names_is_there_whatever_interrupts_the_save(
    world: World, after: bool, error: type[BaseException]
) -> None:
    trial = world.ask()
    for epoch in (1, 2):
        trial.report(0.5)
        if epoch == 1:
            before = trial.save(write("one"))
    append = world.store.append

    def interrupted(name: str, events: Any, **how: Any) -> int:
        world.store.append = append  # type: ignore[method-assign]
        if after:
            append(name, events, **how)
        raise error

    world.store.append = interrupted  # type: ignore[method-assign]
    world.study.patience = 0.0
    with pytest.raises(error):
        trial.save(write("two"))
    trial.interrupt()
    again = world.ask(world.another())
    assert again.epoch == (2 if after else 1)
    assert Path(str(again.checkpoint)).read_text() == ("two" if after else "one")
    assert Path(before).exists()
    again.report(0.5)
    again.save(write("the last"))  # what was left behind goes now
    assert len(files(world)) == 1


def test_who_wakes_late_supersedes_no_checkpoint_of_a_later_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, newer = world.ask(), []
    late.report(0.5)
    supersede = Checkpoints.supersede

    def asleep_before(*of: Any) -> None:
        monkeypatch.setattr(Checkpoints, "supersede", supersede)
        world.clock.now += 601
        other = world.ask(world.another())
        assert other.checkpoint is None or other.epoch > 0
        other.report(0.6)
        newer.append(other.save(write("newer")))
        supersede(*of)

    monkeypatch.setattr(Checkpoints, "supersede", asleep_before)
    late.save(write("older"))
    assert Path(newer[0]).read_text() == "newer"
    world.clock.now += 601
    assert world.ask(world.another()).checkpoint == newer[0]


def test_a_state_that_is_committed_after_a_later_report_is_of_its_own_epoch(tmp_path: Path) -> None:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", of="best"), max_epochs=3)
    study = Study(problem, RandomSearch(), tmp_path / "s.db", seed=0, budget=Budget(trials=1))
    with asked(study) as trial:
        trial.report(0.9)
        path = trial.begin_save(keep=True)
        path.write_text("epoch 1")
        trial.report(0.5)
        trial.commit_save(path, keep=1.0)
        trial.report(0.4)
    assert study.best.checkpoint is not None
    assert Path(study.best.checkpoint).read_text() == "epoch 1"
