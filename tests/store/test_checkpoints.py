"""Checkpoints: whole or absent, where they lie, who keeps them, and what happens without room."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import warnings
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clocked import World
from hypothesis import given, settings
from hypothesis import strategies as st
from whims import PAUSE, PROBLEM, STOP, Whims

from examples import many
from haltune import Budget, Checkpointing, HaltuneWarning, Storage, Study, Trial, load_study
from haltune.errors import InvalidInput, LeaseLost, NoRoom, StoreAway, StoreError
from haltune.log.events import OVER, Checkpointed, Resumed, Status
from haltune.store.checkpoints import Checkpoints
from haltune.store.memory import MemoryStore


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(checkpoints=tmp_path / "ck")


def write(text: str = "state"):  # type: ignore[no-untyped-def]
    return lambda path: path.write_text(text)


def files(world: World) -> list[str]:
    """What lies in the study's folder, without what makes each name unique."""
    folder = world.study.checkpoints.folder
    paths = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [re.sub("(epoch-[0-9.]+)-[0-9a-f]{8}", r"\1", path) for path in paths]


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def test_a_paused_trial_goes_on_from_what_it_saved(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)
    trial.report(PAUSE)
    trial.save(write("at two"))
    trial.finish()
    again = world.ask(world.another())
    assert (again.id, again.attempt, again.epoch) == (0, 2, 2)
    assert again.checkpoint is not None
    assert Path(again.checkpoint).read_text() == "at two"
    assert files(world) == ["trial-0/attempt-1-epoch-2.ckpt"]


def test_the_epoch_of_a_trial_is_an_int_where_it_is_whole(world: World) -> None:
    trial = world.ask()
    assert list(range(trial.epoch, 2)) == [0, 1]  # type: ignore[arg-type]
    trial.report(0.5, epoch=1.5)
    assert trial.epoch == 1.5
    trial.report(0.5, epoch=2.0)
    assert isinstance(trial.epoch, int)


def test_a_later_checkpoint_supersedes_and_leftovers_go_with_it(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)
    trial.save(write(), ".a")
    trial._begin_save(".killed").write_text("half of it")
    trial.report(0.5)
    trial.save(write(), ".b")
    assert files(world) == ["trial-0/attempt-1-epoch-2.b"]


def test_where_a_trial_was_saved_is_told_alike_before_and_after_that_is_deleted(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)
    trial.save(write())
    [told] = world.study.trials
    assert told.checkpoint is not None
    assert Path(told.checkpoint).read_text() == "state"
    trial.finish()
    assert files(world) == []
    assert [t.checkpoint for t in world.study.trials] == [told.checkpoint]
    assert [t.checkpoint for t in world.another().trials] == [told.checkpoint]
    best = world.study.best
    assert best is not None
    assert best.checkpoint is None


def test_a_folder_is_a_checkpoint_too(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)

    def write_folder(path: Path) -> None:
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "weights").write_text("w")

    for _ in range(2):  # the same epoch twice: the name is taken
        trial.save(write_folder, "")
    assert files(world) == ["trial-0/attempt-1-epoch-1/inner/weights"]


def test_what_is_beside_a_checkpoint_lives_and_goes_with_it(world: World) -> None:
    def write_two(path: Path) -> None:
        path.write_text("state")
        Path(f"{path}.random").write_text("numbers")

    trial = world.ask()
    trial.report(0.5)
    trial.save(write_two)
    assert files(world) == ["trial-0/attempt-1-epoch-1.ckpt", "trial-0/attempt-1-epoch-1.ckpt.random"]
    trial.report(0.5)
    trial.save(write())
    assert files(world) == ["trial-0/attempt-1-epoch-2.ckpt"]

    def half(path: Path) -> None:
        write_two(path)
        raise ValueError

    with pytest.raises(ValueError):
        trial.save(half)
    assert files(world) == ["trial-0/attempt-1-epoch-2.ckpt"]


@pytest.mark.parametrize(
    ("save", "told"),
    [
        (lambda path: np.save(path, np.zeros(3)), "suffix='.npy'"),
        (lambda path: None, "nothing was written"),
        ("model.pt", "a function of the path"),
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


def test_a_disk_that_fails_while_forcing_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trial = world.ask()
    trial.report(0.5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            trial.save(write())
    assert files(world) == []
    assert world.events(Checkpointed) == []


@pytest.mark.parametrize("writes", ["before", "after", "nothing"])
def test_who_lost_its_trial_while_it_saved_is_told_so_though_its_files_are_gone(world: World, writes: str) -> None:
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


def test_paused_and_running_trials_keep_theirs_until_the_policy_ends_the_search(tmp_path: Path) -> None:
    study = Study(PROBLEM, Whims(finish_after=1), MemoryStore(), seed=1, checkpoints=Checkpointing(tmp_path, keep=0))
    trial = asked(study)
    trial.report(PAUSE)
    path = Path(trial.save(write()))
    trial.finish()
    study.checkpoints.tidy(study.history)
    assert path.exists()
    study.ask()
    assert study.history.finished
    assert not path.exists()


def test_it_says_whether_a_trial_would_be_kept(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path, keep=1)
    with world.ask() as trial:
        trial.report(0.5)
    worse, better = world.ask(), world.ask()
    worse.report(0.4)
    better.report(0.6)
    assert (worse._keeps_checkpoint, better._keeps_checkpoint) == (False, True)
    better.save(write())
    assert not better._keeps_checkpoint  # it is there
    assert not World(checkpoints=tmp_path).ask()._keeps_checkpoint  # it has no value


def test_no_room_under_a_quota(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path, disk_quota=1000)
    first, second = world.ask(), world.ask()
    first.report(0.5)
    first.save(write("x" * 900))
    second.report(0.5)
    second.room_for(100)
    with pytest.raises(NoRoom, match=r"1\.1 KB.*disk_quota allows 1 KB"):
        second.room_for(200)
    with pytest.raises(NoRoom):
        second.save(write("x" * 200))
    assert files(world) == ["trial-0/attempt-1-epoch-1.ckpt"]


def test_of_two_saves_at_once_a_quota_admits_what_it_has_room_for(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path, disk_quota=1000)
    trials = world.ask(), world.ask(world.another())
    parts = []
    for trial in trials:
        trial.report(0.5)
        parts.append(trial._begin_save())
        parts[-1].write_text("x" * 600)
    with pytest.raises(NoRoom):
        trials[0]._commit_save(parts[0])
    trials[1]._commit_save(parts[1])
    assert files(world) == ["trial-1/attempt-1-epoch-1.ckpt"]


def test_no_room_on_the_disk(world: World) -> None:
    trial = world.ask()
    with pytest.raises(NoRoom, match="a checkpoint takes 1e\\+06 TB"):
        trial.room_for(10**18)
    trial.room_for(10**6)
    assert files(world) == []


@pytest.mark.parametrize(("quota", "size"), [("20GB", 20 * 10**9), ("1.5 mb", 1_500_000), (512, 512), (None, None)])
def test_a_quota_is_bytes_or_a_text(quota: object, size: int | None) -> None:
    assert Checkpoints("x", quota=quota).quota == size  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *((Checkpointing, "disk_quota", value) for value in ("20", "many GB", -1, 0, float("nan"), "1 XB", [1])),
        *((Checkpointing, "keep", value) for value in (-1, 1.5, True, "all")),
        *((Storage, "lease", value) for value in (0, -1, float("inf"), "long", True)),
        *((Storage, "patience", value) for value in (-1, float("nan"), "long", None)),
        *((Storage, "max_retries", value) for value in (-1, 1.5, True, None)),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(kind: Any, name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        kind(**{name: value})


def test_arguments_that_moved_into_a_group_work_with_one_warning_that_names_it(tmp_path: Path) -> None:
    with pytest.warns(HaltuneWarning) as caught:
        study = Study(
            PROBLEM, Whims(), tmp_path / "s.db", budget="9 trials", lease=30, keep_checkpoints=3, max_retries=7
        )  # type: ignore[call-overload]
    (said,) = map(str, map(attrgetter("message"), caught))
    assert "Write store=Storage(..., lease=30, max_retries=7), checkpoints=Checkpointing(keep=3)." in said
    asked(study).report(0.5)
    with pytest.warns(HaltuneWarning, match=r"Write checkpoints=Checkpointing\(\.\.\., disk_quota='1 GB'\)"):
        again = load_study(tmp_path / "s.db", policy=Whims(), checkpoints=tmp_path / "ck", disk_quota="1 GB")  # type: ignore[call-arg]
    assert (study.settings.store.lease, study.settings.store.max_retries, study.checkpoints.keep) == (30.0, 7, 3)
    assert again.checkpoints.quota == 10**9
    assert again.checkpoints.folder.is_relative_to(tmp_path / "ck")
    with pytest.raises(InvalidInput, match=r"give it once, store=Storage"):
        Study(PROBLEM, Whims(), Storage(), lease=30)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="did you mean keep"):
        Checkpointing(kep=3)  # type: ignore[call-arg]


def test_a_trial_whose_checkpoint_is_gone_begins_anew_and_says_so(world: World) -> None:
    trial = world.ask()
    trial.report(0.4)
    trial.report(PAUSE)
    trial.save(write())
    trial.finish()
    shutil.rmtree(world.study.checkpoints.folder)
    with pytest.warns(HaltuneWarning, match="begins anew"):
        again = world.ask()
    assert (again.id, again.epoch, again.checkpoint) == (0, 0, None)
    assert world.events(Resumed)[0].anew
    assert not again.report(0.45).stops
    assert world.curve() == [0.45]


def test_a_checkpoint_that_another_worker_superseded_meanwhile_is_not_said_to_be_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = world.ask()
    trial.report(0.4)
    trial.report(PAUSE)
    trial.save(write("older"))
    trial.finish()
    missing, other = Checkpoints.missing, world.another()

    def slow(kept: Checkpoints, path: str | None) -> bool:
        monkeypatch.setattr(Checkpoints, "missing", missing)
        again = world.ask(other)
        again.report(0.3)
        again.save(write("newer"))
        again.interrupt()
        return missing(kept, path)

    monkeypatch.setattr(Checkpoints, "missing", slow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third = world.ask()
    assert (third.id, third.attempt) == (0, 3)
    assert Path(str(third.checkpoint)).read_text() == "newer"
    assert not any(e.anew for e in world.events(Resumed))


def test_a_pause_taken_back_is_judged_again(world: World) -> None:
    trial = world.ask()
    assert trial.report(PAUSE).stops
    trial.go_on()
    assert not trial.report(0.5).stops
    assert trial.report(STOP).stops
    trial.go_on()  # a STOP stays
    trial.finish()
    assert world.study.history.trial(0).status is Status.STOPPED


def test_what_the_budget_cuts_short_may_be_saved_and_goes_on_under_a_larger_one(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path, budget=Budget(epochs=2))
    trial = world.ask()
    trial.report(0.5)
    verdict = trial.report(0.5)
    assert verdict.stops
    assert verdict.resumable
    trial.save(write())
    trial.finish()
    world.options["budget"] = Budget(epochs=9)
    again = world.ask(world.another())
    assert (again.id, again.epoch) == (0, 2)


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


def test_a_process_killed_while_it_saves_goes_on_from_the_checkpoint_before(tmp_path: Path) -> None:
    import subprocess

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
def test_whatever_happens_the_log_names_only_whole_files_and_nothing_else_is_left(
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
            trial.report(PAUSE if step == "pause" else 0.5)
    world.study.sync()
    going_on = [t for t in world.study.trials if t.checkpoint and t.status not in OVER]
    there = {str(p) for p in folder.rglob("*") if p.is_file()}
    assert there == {t.checkpoint for t in going_on}
    for t in going_on:
        assert t.checkpoint is not None
        assert Path(t.checkpoint).read_text() == f"{t.id} at {t.checkpoint_epoch:g}"


# -- who wakes late, and who is interrupted -----------------------------------------------------


def test_who_wakes_late_supersedes_no_checkpoint_of_a_later_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, newer = world.ask(), []
    late.report(0.5)
    supersede = Checkpoints.supersede

    def asleep_before(kept: Checkpoints, latest: Path) -> None:
        monkeypatch.setattr(Checkpoints, "supersede", supersede)
        world.clock.now += 601
        other = world.ask(world.another())
        other.report(0.6)
        newer.append(other.save(write("newer")))
        supersede(kept, latest)

    monkeypatch.setattr(Checkpoints, "supersede", asleep_before)
    late.save(write("older"))
    assert Path(newer[0]).read_text() == "newer"
    world.clock.now += 601
    assert world.ask(world.another()).checkpoint == newer[0]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreError, MemoryError])
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


def test_a_save_whose_answer_was_lost_is_the_trials_even_when_the_trial_is_not(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)
    append = world.store.append

    def cut_off(name: str, events: Any, **how: Any) -> int:
        world.store.append = append  # type: ignore[method-assign]
        append(name, events, **how)
        world.clock.now += 601
        assert world.another().session.replica.expire(2)
        raise StoreAway("the connection was cut")

    world.store.append = cut_off  # type: ignore[method-assign]
    with pytest.warns(HaltuneWarning, match="waiting"):
        path = trial.save(write("recorded"))
    assert world.ask(world.another()).checkpoint == path
    assert Path(path).read_text() == "recorded"


def test_checkpoints_of_epochs_that_read_alike_are_told_apart(world: World) -> None:
    trial = world.ask()
    trial.report(0.5, epoch=1.0)
    whole = trial.save(lambda path: path.mkdir(), "")
    trial.report(0.5, epoch=1.5)
    half = trial.save(write("half"), "")
    assert not Path(whole).exists()
    assert Path(half).read_text() == "half"


def test_two_threads_that_save_one_trial_leave_what_the_log_names(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)
    inner, append = [], world.store.append

    def another_thread_first(name: str, events: Any, **how: Any) -> int:
        world.store.append = append  # type: ignore[method-assign]
        inner.append(trial.save(write("inner")))
        return append(name, events, **(how | {"seen": world.study.history.position}))

    world.store.append = another_thread_first  # type: ignore[method-assign]
    outer = trial.save(write("outer"))
    recorded = [e.path for e in world.events(Checkpointed)]
    assert recorded == [world.study.checkpoints.recorded(Path(path)) for path in (inner[0], outer)]
    assert Path(outer).read_text() == "outer"
    assert files(world) == ["trial-0/attempt-1-epoch-1.ckpt"]


def test_a_search_that_a_larger_budget_takes_up_keeps_what_was_interrupted(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path, keep=0)
    trial = world.ask()
    trial.report(0.5)
    path = trial.save(write())
    trial.interrupt()
    history = world.study.history
    history.finished = "nothing is affordable"
    world.study.checkpoints.tidy(history, for_good=False)
    assert Path(path).exists()
    world.study.checkpoints.tidy(history)
    assert not Path(path).exists()
