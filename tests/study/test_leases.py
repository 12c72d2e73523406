"""Leases and attempts: workers that are lost, what supersedes, and what late ones may do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from clocked import World

from haltune import Action, HaltuneWarning
from haltune.log.events import Checkpointed, Event, Expired, Reported, Resumed, Status
from haltune.store.base import Lease


@pytest.fixture
def world() -> World:
    return World()


def test_a_lease_that_expires_offers_the_trial_again_at_its_last_checkpoint(world: World) -> None:
    lost = world.ask()
    for value in (0.1, 0.2, 0.3):
        lost.report(value)
    lost.checkpointed("three.ckpt", seconds=0.5)
    lost.report(0.4)
    other = world.another()
    world.clock.now += 599
    assert world.ask(other).id == 1
    world.clock.now += 2
    found = world.ask(other)
    assert (found.id, found.attempt, found.checkpoint, found.epoch) == (0, 2, "three.ckpt", 3.0)
    assert found.config == lost.config
    found.report(0.45)
    assert world.curve() == [0.1, 0.2, 0.3, 0.45]
    assert list(world.study.trials[0].epochs) == [1, 2, 3, 4]
    expired = world.events(Expired)[0]
    assert (expired.trial, expired.attempt, expired.status) == (0, 1, Status.INTERRUPTED)
    assert "epoch 3, its last checkpoint" in world.events(Resumed)[0].reason


def test_a_program_that_stays_open_says_which_of_its_workers_is_gone(world: World, tmp_path: Path) -> None:
    lost = world.ask()
    lost.report(0.1)
    other = world.another()
    mine = world.ask(other)
    world.clock.now += 601
    assert other.explain(0, whole=False).startswith("trial 0: lost, its worker is gone")
    assert (other.lost, other.explain(mine.id, whole=False).splitlines()[0]) == ({0}, "trial 1: running")
    assert "1 lost, its worker is gone" in other.report(tmp_path / "page.html").read_text()


def test_a_lease_that_expired_unnoticed_is_simply_renewed(world: World) -> None:
    trial = world.ask()
    trial.report(0.1)
    world.clock.now += 5000
    assert not trial.report(0.2).stops
    assert world.curve() == [0.1, 0.2]
    assert not world.another().session.replica.expire(2)


def test_the_late_reports_of_a_lost_worker_are_stored_never_in_the_curve_and_answered_with_stop(world: World) -> None:
    lost = world.ask()
    lost.report(0.1)
    world.clock.now += 601
    other = world.another()
    assert other.session.replica.expire(2)  # expired, and not yet offered again
    with pytest.warns(HaltuneWarning, match="lease on trial 0 expired and the trial was offered again") as w:
        first = lost.report(0.9)
        found = world.ask(other)
        second = lost.report(0.95)
        lost.checkpointed("late.ckpt")
    assert len(w) == 1
    assert first.action is second.action is Action.STOP
    assert "another worker may train it" in first.reason
    found.report(0.2)
    assert list(other.trials[0].values) == [0.2]
    assert [e.value for e in world.events(Reported)] == [0.1, 0.9, 0.95, 0.2]
    assert world.events(Checkpointed) == []
    assert list(lost.epochs()) == []
    lost.finish()
    assert world.curve() == [0.2]
    assert world.study.trials[0].status is Status.RUNNING


def test_reports_and_heartbeats_and_checkpoints_renew_the_lease(world: World) -> None:
    trial, other = world.ask(), world.another()
    for renew in (trial.heartbeat, lambda: trial.report(0.1), lambda: trial.checkpointed("x"), trial.heartbeat):
        world.clock.now += 500
        renew()  # type: ignore[operator]
        world.clock.now += 500
        assert not other.session.replica.expire(2)


def test_a_lease_lasts_five_times_the_longest_epoch_when_that_is_longer(world: World) -> None:
    trial, other = world.ask(), world.another()
    trial.report(0.1, seconds=1000.0)
    world.clock.now += 4999
    other.sync()
    assert not other.session.replica.expire(2)
    world.clock.now += 2
    assert other.session.replica.expire(2)


def test_a_slow_worker_that_saves_a_trial_which_another_one_has_taken_continues_with_the_next(tmp_path: Path) -> None:
    world = World(checkpoints=tmp_path)
    for reports in (True, False):
        slow = world.ask()
        slow.report(0.4, seconds=1.0)
        world.clock.now += 601
        found = world.ask(world.another())
        assert (found.id, found.attempt) == (slow.id, 2)
        with pytest.warns(HaltuneWarning) as said, slow:
            if reports:
                slow.report(0.5, seconds=1.0)
            slow.save(lambda path: path.write_text("state"))
        assert any("Its state is not saved. This program continues" in str(one.message) for one in said)
        assert slow.ended is Status.INTERRUPTED
        found.report(0.6, seconds=1.0)
        found.finish()
    assert world.ask().id == 2


def test_the_first_report_of_a_slow_epoch_holds_the_trials_of_other_workers_too(world: World) -> None:
    slow = world.ask()
    world.clock.now += 300
    second, other = world.ask(world.another()), world.another()
    world.clock.now += 301
    assert world.ask(other).id == slow.id
    with pytest.warns(HaltuneWarning, match="lease on trial 0 expired"):
        slow.report(0.1, seconds=601.0)
    world.clock.now += 1000
    other.sync()
    assert other.lost == set()
    assert not other.session.replica.expire(2)
    assert not second.report(0.1).stops


def test_a_trial_lost_too_often_has_failed() -> None:
    world = World(max_retries=2)
    for attempt in (1, 2, 3):
        trial = world.ask(world.another())
        assert (trial.id, trial.attempt) == (0, attempt)
        world.clock.now += 601
    assert world.ask().id == 1
    assert world.study.trials[0].status is Status.FAILED
    assert [e.status for e in world.events(Expired)] == [Status.INTERRUPTED] * 2 + [Status.FAILED]


def test_a_trial_of_which_one_rank_always_fails_has_failed_after_as_many_attempts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 sees a collective that fails, each time that the launcher has started all ranks again."""
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))
    world = World(max_retries=2)
    for attempt in (1, 2, 3):
        trial = world.ask(world.another())
        assert (trial.id, trial.attempt) == (0, attempt)
        with pytest.raises(RuntimeError, match="by peer"), trial:
            raise RuntimeError("[gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]")
    (failed,) = world.another().trials
    assert failed.status is Status.FAILED
    assert "another rank was lost" in str(failed.error)
    assert caplog.text.count("Trial 0 was interrupted. The next start of this program") == 2
    assert world.ask().id == 1


def test_a_training_that_starts_over_starts_its_curve_again_and_is_asked_to_count_on(world: World) -> None:
    lost = world.ask()
    lost.report(0.1)
    lost.report(0.2)
    lost.checkpointed("two.ckpt")
    lost.interrupt()
    found = world.ask()
    with pytest.warns(HaltuneWarning, match="continues its count after trial.epoch") as w:
        found.report(0.11, epoch=1)
        found.report(0.21, epoch=2)
    assert len(w) == 1
    found.report(0.31, epoch=3)
    assert world.curve() == [0.11, 0.21, 0.31]


def test_a_worker_that_slept_after_it_appended_does_not_train_the_attempt_of_another(world: World) -> None:
    third, other = world.ask(world.another()), world.another()
    append, taken = world.store.append, []

    def asleep_after(name: str, events: Sequence[Event], **how: Any) -> int:
        world.store.append = append  # type: ignore[method-assign]
        third.report(0.5)  # somebody reports first: what is appended is read again
        position = append(name, events, **how)
        world.clock.now += 400
        third.heartbeat()
        world.clock.now += 400
        taken.append(world.ask(other))
        return position

    world.store.append = asleep_after  # type: ignore[method-assign]
    late = world.ask()
    assert [(t.id, t.attempt) for t in taken] == [(1, 2)]
    assert (late.id, late.attempt) == (2, 1)  # the answer was thrown away, and the question asked again
    taken[0].report(0.2)
    late.report(0.9)
    assert (world.curve(1), world.curve(2)) == ([0.2], [0.9])


def test_a_lease_that_is_newer_than_the_log_that_was_read_is_lost_by_the_next_look(world: World) -> None:
    first, other = world.ask(), world.another()
    world.clock.now += 601
    leases = world.store.leases

    def resumed_and_lost_before(name: str) -> list[Lease]:
        world.store.leases = leases  # type: ignore[method-assign]
        assert (found := world.ask(world.another())).attempt == 2
        assert found.id == first.id
        world.clock.now += 601
        return [replace(lease, expires=0.0) for lease in leases(name)]

    world.store.leases = resumed_and_lost_before  # type: ignore[method-assign]
    third = world.ask(other)
    assert (third.id, third.attempt) == (first.id, 3)
    assert [e.attempt for e in world.events(Expired)] == [1, 2]
