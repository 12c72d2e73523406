"""Searches on a cluster of some nodes, whose workers, actor and nodes are killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from facts import image_of
from ray_trainings import Climb, Diary, Promise
from trainings import wait_for

from haltune import Checkpointing, Float, Maximize, Problem, Space, Study
from haltune.log.events import Checkpointed, Ended, Expired, Reported, Resumed, Status
from haltune.log.history import History
from haltune.policies import RandomSearch
from haltune.study.redecide import redecide

TRIALS, EPOCHS = 5, 8
PROBLEM = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 2)), EPOCHS)


def new_study(tmp_path: Path, **options: Any) -> Study:
    options = {
        "checkpoints": Checkpointing(keep=0),
        **options,
    }  # which of them still lie there changes while a log is read
    return Study(PROBLEM, RandomSearch(trials=TRIALS), tmp_path / "search.db", seed=7, **options)


def keepers() -> list[Any]:
    import ray

    names = [n for n in ray.util.list_named_actors() if n.startswith("haltune ")]
    return [ray.get_actor(name) for name in names]


@contextmanager
def meanwhile(deeds: Callable[[], None]) -> Iterator[None]:
    """Do something while the search runs; what it raises fails the test."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            deeds()
        except BaseException as error:
            raised.append(error)
            for _ in range(2):  # what was to happen will not: leave at once
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1.0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        if raised:
            raise raised[0]
    thread.join(60.0)
    assert not thread.is_alive()


def fresh(diary: Diary, after: int, spared: str = "") -> Promise | None:
    """Return the last acknowledged report after so many, of an unfinished trial on another node than `spared`."""
    lively = [p for p in diary.read()[after:] if p.epoch < EPOCHS - 3 and p.node != spared]
    return lively[-1] if lively else None


def check(study: Study, diary: Diary) -> None:
    """No report lost and none twice; attempts resume from checkpoints; nothing hangs; the log replays."""
    log = list(study.events())
    reported = [e for e in log if isinstance(e, Reported)]
    stored = {(e.trial, e.attempt, e.epoch): e.value for e in reported}
    assert len(stored) == len(reported)
    assert {p[:4] for p in diary.read()} <= {(*key, value) for key, value in stored.items()}
    assert [t.status for t in study.trials] == [Status.COMPLETED] * TRIALS
    assert all(list(t.epochs) == list(range(1, EPOCHS + 1)) for t in study.trials)
    assert study.store.leases(study.name) == []
    assert sum(isinstance(e, Ended) and e.status is Status.COMPLETED for e in log) == TRIALS
    saved: dict[int, float] = defaultdict(float)
    for e in log:
        if isinstance(e, Checkpointed):
            saved[e.trial] = e.epoch
        elif isinstance(e, Resumed):
            first = min(n for t, a, n in stored if (t, a) == (e.trial, e.attempt))
            assert first == saved[e.trial] + 1
    rebuilt = History(PROBLEM)
    rebuilt.locate = study.checkpoints.located
    for event in log:
        rebuilt.apply(event)
    same = image_of(study.history) == image_of(rebuilt)
    assert same
    decisions = list(redecide(PROBLEM, study.policy, log))
    assert len(decisions) > TRIALS
    assert [d for d in decisions if d[1] != d[2]] == []


def losses(study: Study) -> list[str | None]:
    return [e.reason for e in study.events() if isinstance(e, Expired)]


@pytest.mark.slow
def test_a_search_outlives_a_worker_the_actor_and_a_node_that_are_killed(nodes: Any, tmp_path: Path) -> None:
    import ray

    from haltune.launch import ray as launcher

    diary, here = Diary(tmp_path / "diary"), ray.get_runtime_context().get_node_id()

    def deeds() -> None:
        worker = wait_for(lambda: fresh(diary, 0))
        os.kill(worker.pid, signal.SIGKILL)
        (keeper,) = keepers()
        before = len(diary.read())
        ray.kill(keeper, no_restart=False)
        wait_for(lambda: len(diary.read()) > before)
        nodes.kill(wait_for(lambda: fresh(diary, before, spared=here)).node)

    study = new_study(tmp_path)
    with meanwhile(deeds):
        outcome = launcher.run(study, Climb(diary), workers=2)
    assert outcome.over
    check(study, diary)
    reasons = losses(study)
    assert any("ended without a message" in str(r) for r in reasons), reasons
    assert any("node that died" in str(r) for r in reasons), reasons
    assert keepers() == []


# -- slow: one thing at a time -------------------------------------------------------------------


@pytest.mark.slow
def test_checkpoints_are_carried_to_nodes_that_do_not_see_their_folder(nodes: Any, tmp_path: Path) -> None:
    from haltune.launch import ray as launcher

    diary, study = Diary(tmp_path / "diary"), new_study(tmp_path, checkpoints=Checkpointing())

    def deeds() -> None:
        for _ in range(3):
            before = len(diary.read())
            os.kill(wait_for(lambda before=before: fresh(diary, before)).pid, signal.SIGKILL)

    with meanwhile(deeds):
        launcher.run(study, Climb(diary, folder=True), workers=3, shared=False, max_retries=5)
    check(study, diary)
    assert len(losses(study)) == 3
    best = study.best
    assert best is not None
    assert best.checkpoint is not None
    assert (Path(best.checkpoint) / "epoch").read_text() == str(EPOCHS)
    assert study.checkpoints.trials() == [best.trial]


@pytest.mark.slow
def test_errors_that_are_to_be_retried_and_runs_that_take_too_long(nodes: Any, tmp_path: Path) -> None:
    from haltune.launch import ray as launcher

    def moody(trial: Any) -> None:
        for epoch in trial.epochs():
            if trial.id == 1 and trial.attempt == 1 and epoch == 2:
                raise ConnectionError("the data went away")
            if trial.id == 2 and epoch == 3:
                time.sleep(1000)
            trial.report(epoch / 10, seconds=1.0)
        if trial.id == 3 and trial.attempt == 1:
            raise SystemExit(3)

    study = new_study(tmp_path)
    launcher.run(study, moody, workers=2, retry_on=ConnectionError, trial_timeout=20)
    done = [Status.COMPLETED] * 2 + [Status.FAILED] + [Status.COMPLETED] * 2
    assert [t.status for t in study.trials] == done
    assert "trial_timeout" in str(study.trials[2].error)
    assert [t.attempt for t in study.trials] == [1, 2, 1, 2, 1]


@pytest.mark.slow
def test_ctrl_c_finishes_the_epochs_and_the_same_program_continues(nodes: Any, tmp_path: Path) -> None:
    from haltune.launch import ray as launcher

    diary, study = Diary(tmp_path / "diary"), new_study(tmp_path)

    def deeds() -> None:
        wait_for(lambda: fresh(diary, 3))
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(deeds):
        outcome = launcher.run(study, Climb(diary), workers=2)
    assert not outcome.over
    assert "Ctrl-C" in outcome.reason
    assert study.history.running == 0
    assert study.history.interrupted
    for t in study.trials:
        assert t.checkpoint_epoch == t.epoch  # saved where it was left
    assert losses(study) == []
    again = new_study(tmp_path)
    assert launcher.run(again, Climb(diary), workers=2).over
    check(again, diary)


PROGRAM = """
import sys
from pathlib import Path
import ray
from ray_trainings import Climb, Diary
from haltune import Float, Maximize, Problem, Space, Study
from haltune.launch import ray as launcher
from haltune.policies import RandomSearch

ray.init(address=sys.argv[1], log_to_driver=False)
problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 2)), 8)
study = Study(problem, RandomSearch(trials=5), sys.argv[2], seed=7)
launcher.run(study, Climb(Diary(Path(sys.argv[3]))), workers=2)
"""


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_a_search_that_continues(nodes: Any, tmp_path: Path) -> None:
    import ray

    from haltune.launch import ray as launcher

    diary = Diary(tmp_path / "diary")
    address = ray.get_runtime_context().gcs_address
    arguments = [sys.executable, "-c", PROGRAM, address, tmp_path / "search.db", diary.path]
    program = subprocess.Popen([str(a) for a in arguments])
    try:
        wait_for(lambda: fresh(diary, 3))
    finally:
        program.kill()
        program.wait()
    again = new_study(tmp_path)
    assert launcher.run(again, Climb(diary), workers=2).over
    check(again, diary)


@pytest.mark.slow
def test_a_search_on_a_server_outlives_a_worker_and_the_actor(nodes: Any, tmp_path: Path, postgres_url: str) -> None:
    import ray

    from haltune.launch import ray as launcher

    diary, folder = Diary(tmp_path / "diary"), tmp_path / "checkpoints"
    study = Study(PROBLEM, RandomSearch(trials=TRIALS), postgres_url, seed=7, checkpoints=folder)

    def deeds() -> None:
        os.kill(wait_for(lambda: fresh(diary, 0)).pid, signal.SIGKILL)
        (keeper,) = keepers()
        before = len(diary.read())
        ray.kill(keeper, no_restart=False)
        wait_for(lambda: len(diary.read()) > before)

    with meanwhile(deeds):
        launcher.run(study, Climb(diary), workers=2, shared=False)
    check(study, diary)
    assert len(losses(study)) == 1


@pytest.mark.slow
def test_parts_of_a_gpu_are_shared_and_workers_wait_for_nodes_that_join(nodes: Any, tmp_path: Path) -> None:
    from haltune.launch import ray as launcher

    folder = tmp_path / "seen"
    folder.mkdir()

    def look(trial: Any) -> None:
        import ray

        node = ray.get_runtime_context().get_node_id()
        mine = folder / f"now-{trial.id}"
        mine.touch()
        together = len(list(folder.glob("now-*")))
        for epoch in trial.epochs():
            time.sleep(0.3)
            together = max(together, len(list(folder.glob("now-*"))))
            trial.report(epoch / 10)
        mine.unlink()
        (folder / str(trial.id)).write_text(f"{node} {os.environ['CUDA_VISIBLE_DEVICES']} {together}")

    def deeds() -> None:
        for node in list(nodes.others):
            nodes.kill(node.node_id)
        time.sleep(2.0)
        assert len(new_study(tmp_path).trials) == 0  # no room: nothing is started
        nodes.fill(num_gpus=1)

    with meanwhile(deeds):
        outcome = launcher.run(new_study(tmp_path), look, workers=4, resources={"CPU": 0.5, "GPU": 0.5}, progress=False)
    assert outcome.over
    seen = [(folder / str(n)).read_text().split() for n in range(TRIALS)]
    assert {node for node, _, _ in seen} <= {n.node_id for n in nodes.others}
    assert {device for _, device, _ in seen} == {"0"}
    assert max(int(together) for _, _, together in seen) > 1
