"""Guarantees of the keeper without a cluster: a repeated call stores nothing twice."""

from __future__ import annotations

import errno
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whims import PAUSE, PROBLEM, Whims

pytest.importorskip("ray", reason="needs Ray: pip install 'haltune[ray]'")

from dataclasses import replace

from haltune import Budget, Study
from haltune.errors import NoRoom, NotSupported
from haltune.launch import keeper as checkpoints
from haltune.launch.keeper import Carried, Keeper, KeeperStore, PagedLog
from haltune.log.decisions import continue_
from haltune.log.events import Created, Expired, Reported, Status
from haltune.store.base import Conflict, Lease
from haltune.store.checkpoints import Checkpoints
from haltune.store.memory import MemoryStore
from haltune.study import Trial


class Twice:
    """A line on which every call comes twice, as when the keeper dies before it can answer the first."""

    ahead = 0.0

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def log(self, method: Any, *arguments: Any) -> Any:
        return self._ask(self._keeper.log, method, *arguments)

    def files(self, method: Any, *arguments: Any) -> Any:
        return self._ask(self._keeper.files, method, *arguments)

    def _ask(self, door: Any, *arguments: Any) -> Any:
        sent = pickle.dumps(arguments)  # as Ray carries them
        door(*pickle.loads(sent))
        reply = door(*pickle.loads(sent))
        if reply.error is not None:
            raise reply.error
        return reply.answer


def reported(value: float, trial: int = 0, epoch: float = 1.0, at: float = 5.0) -> Reported:
    return Reported(
        at=at, trial=trial, attempt=1, epoch=epoch, value=value, seconds=1.0, verdict=continue_("on"), seen=1,
        metrics={"loss": math.nan},
    )  # fmt: skip


def new_log() -> tuple[PagedLog, MemoryStore]:
    store = MemoryStore()
    store.create("s", Created(at=0.0, problem={}, policy={}, seed=0))
    return PagedLog(store), store


@pytest.mark.parametrize(("value", "about"), [(0.5, 0), (math.nan, -1)])
def test_an_event_that_is_sent_again_is_in_the_log_once(value: float, about: int) -> None:
    log, store = new_log()
    first = log.append("s", [reported(value)], 1, about, None)
    log.append("s", [reported(0.1, trial=3)], 2, 3, None)
    assert log.append("s", [reported(value)], 1, about, None) == first == 1
    assert len(list(store.read("s"))) == 3


def test_a_lease_alone_that_conflicts_is_refused() -> None:
    log, store = new_log()
    log.append("s", [reported(0.5)], 1, 0, None)
    lease = Lease(0, 1, "a worker", 9.0, 1)
    with pytest.raises(Conflict):
        log.append("s", [], 1, 0, lease)
    assert store.leases("s") == []
    log.append("s", [], 2, -1, lease)
    assert store.leases("s") == [lease]


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(), st.booleans()), max_size=20))
def test_whatever_is_sent_again_the_log_is_that_of_sending_once(sent: Sequence[tuple[int, float, bool]]) -> None:
    log, store = new_log()
    events = [reported(value, trial, epoch=n + 1.0, at=float(n)) for n, (trial, value, _) in enumerate(sent)]
    for n, event in enumerate(events):
        for _ in range(1 + sent[n][2]):
            assert log.append("s", [event], n + 1, event.trial, None) == n + 1
    assert len(list(store.read("s"))) == 1 + len(events)


def test_a_keeper_that_starts_again_continues_from_the_log(tmp_path: Path) -> None:
    """Every call comes twice, and between any two the keeper is another one."""
    study = Study(PROBLEM, Whims(), tmp_path / "search.db", seed=1, budget=Budget(trials=3))
    while isinstance(trial := study.ask(), Trial):
        remote, carried = on_another_node(study)
        taken = remote.take(trial.id, trial.attempt, study.session.holder, lambda: None)
        carried.fetch(taken.checkpoint)
        with taken:
            assert (Path(taken.checkpoint).read_text() if taken.checkpoint else "0") == str(taken.epoch)
            for epoch in taken.epochs():
                verdict = taken.report(PAUSE if epoch == 4 else epoch / 30, seconds=1.0)
                taken.save(lambda path, epoch=epoch: path.write_text(str(epoch)))  # type: ignore[misc]
                if verdict.stops:
                    break
        carried.clear()
        study.sync()
    assert [t.status for t in study.trials] == [Status.COMPLETED] * 3
    assert [t.attempt for t in study.trials] == [2] * 3
    assert [list(t.epochs) for t in study.trials] == [list(range(1, 11))] * 3
    assert study.store.leases("study") == []
    assert list(study.checkpoints.folder.iterdir()) == []  # they are obsolete


def on_another_node(study: Study) -> tuple[Study, Carried]:
    """Return the study on a node that does not reach its folder, and the checkpoints there."""
    line, settings = Twice(Keeper(study.store.address(), study.checkpoints)), study.session.settings
    carried = Carried(0, line.files)
    storage = replace(settings.store, url=KeeperStore(line, "far"))  # type: ignore[arg-type]
    return Study(**vars(replace(settings, store=storage, checkpoints=carried))), carried


def test_a_curve_starts_again_on_a_node_that_does_not_reach_the_folder(tmp_path: Path) -> None:
    study = Study(PROBLEM, Whims(), tmp_path / "search.db", seed=1, budget=Budget(trials=3))
    trial = study.ask()
    assert isinstance(trial, Trial)
    remote, carried = on_another_node(study)
    taken = remote.take(trial.id, trial.attempt, study.session.holder, lambda: None)
    carried.fetch(None)
    for epoch in (1, 2):
        taken.report(0.5, epoch, seconds=1.0)
        if epoch == 1:
            taken.save(lambda path: path.write_text("1"))
    with pytest.warns(match="trains again after epoch 1"):
        taken.restart(1.0)
    assert (taken.attempt, taken.epoch, Path(taken.checkpoint or "").read_text()) == (2, 1, "1")


def test_a_task_learns_when_its_attempt_is_over(tmp_path: Path) -> None:
    study = Study(PROBLEM, Whims(), tmp_path / "search.db", seed=1, budget=Budget(trials=3))
    trial = study.ask()
    assert isinstance(trial, Trial)
    line = Twice(Keeper(study.store.address(), study.checkpoints))
    storage = replace(study.session.settings.store, url=KeeperStore(line, "far"))  # type: ignore[arg-type]
    remote = Study(**vars(replace(study.session.settings, store=storage)))
    taken = remote.take(trial.id, trial.attempt, study.session.holder, lambda: None)
    taken.report(0.5, seconds=1.0)
    trial.mark_lost("the node died")
    with pytest.warns(match="lease on trial 0 expired"):
        assert taken.report(0.6, seconds=1.0).stops
    study.sync()
    late = [e for e in study.events() if isinstance(e, Reported)]
    assert [e.value for e in late] == [0.5, 0.6]
    assert "lease" in late[1].verdict.reason
    assert [e.reason for e in study.events() if isinstance(e, Expired)] == ["the node died"]


def test_a_node_without_room_for_a_checkpoint_loses_its_trial_and_does_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from haltune.launch import ray as launcher

    study = Study(PROBLEM, Whims(), tmp_path / "search.db", seed=1, budget=Budget(trials=3))
    trial = study.ask()
    assert isinstance(trial, Trial)
    remote, carried = on_another_node(study)
    monkeypatch.setattr(launcher, "_opened", lambda job: (remote, SimpleNamespace(leaving=lambda: None)))
    monkeypatch.setattr(carried, "fetch", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    job: Any = SimpleNamespace(holder=study.session.holder, train=None, retry_on=())
    assert launcher.train_trial(job, trial.id, trial.attempt) is None
    study.sync()
    (lost,) = [e.reason for e in study.events() if isinstance(e, Expired)]
    assert lost == "its checkpoint could not be copied to its node: OSError: [Errno 28] No space left on device"
    assert study.trials[0].status is Status.INTERRUPTED


# -- checkpoints --------------------------------------------------------------------------------


def far(tmp_path: Path, **options: Any) -> tuple[Checkpoints, Carried]:
    kept = Checkpoints(tmp_path / "kept", **options)

    def ask(method: Any, *arguments: Any) -> Any:
        method(kept, *arguments)
        return method(kept, *arguments)

    return kept, Carried(kept.keep, ask)


def test_a_worker_whose_folder_is_deleted_refuses_files_of_the_users(tmp_path: Path) -> None:
    kept, carried = far(tmp_path)
    kept.files_of(0).mkdir(parents=True)
    with pytest.raises(NotSupported, match=r"give the study a folder there: Study\(\.\.\., checkpoints=folder\)"):
        carried.files_of(0)
    assert carried.artifacts(0, 9) == []
    assert carried.is_written(carried.temporary(0, 1, 2.0, ".ckpt"))  # which asks for no file of the user's


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    monkeypatch.setattr(checkpoints.tempfile, "gettempdir", lambda: str(folder))
    return folder


def write(path: Path) -> None:
    path.mkdir()
    (path / "empty").mkdir()
    (path / "layers").mkdir()
    (path / "layers" / "0").write_bytes(bytes(range(256)) * 100)
    (path / "nothing").write_bytes(b"")
    path.with_name(path.name + ".random").write_bytes(b"state")


def image(path: Path) -> dict[str, bytes | None]:
    parts = [path, *path.rglob("*"), path.with_name(path.name + ".random")]
    return {p.relative_to(path.parent).as_posix(): None if p.is_dir() else p.read_bytes() for p in parts}


@pytest.mark.parametrize("piece", [1000])
def test_a_checkpoint_comes_back_as_it_was_sent(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PIECE", piece)
    kept, carried = far(tmp_path)
    carried.fetch(None)
    part = carried.temporary(4, 2, 7.0, ".ckpt")
    write(part)
    original = image(part).values()
    final = carried.publish(part)
    assert list(image(kept.folder / carried.recorded(final)).values()) == list(original)
    carried.clear()
    assert not carried.folder.exists()
    _, other = far(tmp_path)
    there = other.located(carried.recorded(final))
    assert there is not None
    other.fetch(there)
    assert list(image(Path(there)).values()) == list(original)
    assert kept.trials() == [4]


def test_what_the_quota_refuses_leaves_nothing_on_either_side(tmp_path: Path) -> None:
    kept, carried = far(tmp_path, quota=20_000)
    carried.fetch(None)
    part = carried.temporary(4, 2, 7.0, ".ckpt")
    write(part)
    with pytest.raises(NoRoom):
        carried.publish(part)
    assert [p for p in kept.folder.rglob("*") if p.is_file()] == []
    assert [p for p in carried.folder.rglob("*") if p.is_file()] == []
    with pytest.raises(NoRoom):
        carried.room_for(4, 30_000)


def test_what_a_killed_worker_left_is_removed_by_the_next_one(tmp_path: Path, scratch: Path) -> None:
    _, alive = far(tmp_path)
    alive.fetch(None)
    parts = alive.folder.name.split("%2F")
    left = scratch / "%2F".join([*parts[:3], "999999999", *parts[4:]])
    left.mkdir()
    far(tmp_path)
    assert not left.exists()
    assert alive.folder.exists()
