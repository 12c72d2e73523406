"""A database server that stops and restarts: trainings continue, and no event is lost or doubled."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import chaos
import pytest
import sqlalchemy as sa
from facts import folded, image_of
from postgres import Server, server, skip_or_fail
from whims import PROBLEM, Whims

from haltune import Action, Budget, HaltuneWarning, Storage, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import StoreAway
from haltune.log.events import Reported, Started
from haltune.store.postgres import PostgresStore

psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """A server of this module's own, which tests stop and start again."""
    try:
        with server() as running:
            yield running
    except LookupError as error:
        skip_or_fail(str(error))


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def opened(url: str | Storage, **options: Any) -> Study:
    return Study(PROBLEM, Whims(), url, seed=1, budget=Budget(trials=9), **options)


def reports(study: Study) -> list[Reported]:
    return [e for e in study.events() if isinstance(e, Reported)]


@contextmanager
def away(mortal: Server, seconds: float) -> Iterator[None]:
    """The server is gone, and is back so many seconds later."""
    mortal.stop()
    back = threading.Timer(seconds, mortal.start)
    back.start()
    try:
        yield
    finally:
        back.join()


@pytest.mark.slow
def test_a_training_continues_while_its_server_is_away_and_its_reports_are_delivered_after(mortal: Server) -> None:
    study = opened(mortal.database())
    trial = asked(study)
    with pytest.warns(HaltuneWarning) as told, trial:
        loop = TrainingLoop(trial)
        for epoch in loop:
            if epoch == 4:
                mortal.stop()
            if epoch == 8:
                mortal.start()
            loop.report(0.01 * epoch)
    assert len([w for w in told if w.category is HaltuneWarning]) == 1
    assert "raining continues" in str(told[0].message)
    found = reports(study)
    assert [e.epoch for e in found] == list(range(1, 11))
    assert [e.epoch for e in found if e.verdict.action is Action.UNJUDGED] == [4, 5, 6, 7]
    assert study.trials[0].status == "completed"


@pytest.mark.slow
def test_a_training_that_ends_meanwhile_waits_for_its_server_with_its_reports(mortal: Server) -> None:
    study = opened(mortal.database())
    trial = asked(study)
    with pytest.warns(HaltuneWarning) as told, trial:
        loop = TrainingLoop(trial)
        for epoch in loop:
            if epoch == 9:
                mortal.stop()
            if epoch == 10:
                threading.Timer(1.0, mortal.start).start()
            loop.report(0.01 * epoch)
    first, *others = (str(w.message) for w in told if w.category is HaltuneWarning)
    assert "raining continues" in first
    assert len(others) <= 1  # none, when the server was back before the training ended
    assert all("waiting" in text for text in others)
    assert [e.epoch for e in reports(study)] == list(range(1, 11))
    assert study.trials[0].status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, pytest.param(60.0, marks=pytest.mark.slow)])
def test_asks_reports_and_ends_wait_for_a_server_that_is_away_and_say_so_once(mortal: Server, seconds: float) -> None:
    study = opened(mortal.database())
    with pytest.warns(HaltuneWarning, match="waiting up to 600 s for the study's server") as told:
        for step in ("ask", "report", "finish"):
            with away(mortal, seconds):
                if step == "ask":
                    trial = asked(study)
                elif step == "report":
                    trial.report(0.1)
                else:
                    trial.finish()
    assert len([w for w in told if w.category is HaltuneWarning]) == 1
    assert [e.epoch for e in reports(study)] == [1]
    assert study.trials[0].status == "completed"


@pytest.mark.slow
def test_a_study_is_opened_when_its_server_is_back(mortal: Server) -> None:
    url = mortal.database()
    with pytest.warns(HaltuneWarning, match="waiting up to 600 s for the study's server"), away(mortal, 1.0):
        study = opened(url)
    asked(study).report(0.1)
    with pytest.warns(HaltuneWarning, match="waiting up to 600 s"), away(mortal, 1.0):
        again = opened(url)
    assert [e.value for e in reports(again)] == [0.1]


@pytest.mark.slow
@pytest.mark.parametrize("use", ["ask", "report"])
def test_a_server_that_stops_answering_is_an_error_when_patience_ends(mortal: Server, use: str) -> None:
    study = opened(Storage(mortal.database(), patience=1.0))
    trial = asked(study)
    with mortal.silent(), pytest.raises(StoreAway):
        began = time.monotonic()
        trial.report(0.1) if use == "report" else study.ask()
    assert time.monotonic() - began < 25.0  # 7 s; the driver waits without end
    trial.report(0.2)
    assert [e.value for e in reports(study)] in ([0.2], [0.1, 0.2])


@pytest.mark.slow
@pytest.mark.parametrize("use", ["ask", "report"])
def test_ctrl_c_ends_the_wait_for_a_server_that_stops_answering(mortal: Server, use: str) -> None:
    study = opened(Storage(mortal.database(), patience=600.0))
    trial = asked(study)
    with mortal.silent(), pytest.raises(KeyboardInterrupt):
        interrupted: list[float] = []

        def interrupt() -> None:
            interrupted.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(1.0, interrupt).start()
        trial.report(0.1) if use == "report" else study.ask()
    assert time.monotonic() - interrupted[0] < 5.0  # 0.1 s; the driver waits for 10 s
    trial.report(0.2)
    assert [e.value for e in reports(study)] in ([0.2], [0.1, 0.2])


# -- an append whose answer is lost ---------------------------------------------------------------


def fails_once(store: PostgresStore, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """The next append loses its connection, before it is stored or after."""
    whole: Callable[..., Any] = PostgresStore._append

    def append(store: PostgresStore, c: sa.Connection, *arguments: Any) -> Any:
        monkeypatch.setattr(PostgresStore, "_append", whole)
        if not before:
            whole(store, c, *arguments)
        raw: Any = c.connection.driver_connection
        with suppress(psycopg.Error):
            raw.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return whole(store, c, *arguments)  # which finds it ended

    monkeypatch.setattr(PostgresStore, "_append", append)


@pytest.mark.parametrize("before", [True, False])
def test_a_report_whose_connection_breaks_is_stored_once(
    mortal: Server, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    study = opened(mortal.database())
    trial = asked(study)
    fails_once(study.store, monkeypatch, before)
    trial.report(0.1)
    fails_once(study.store, monkeypatch, before)
    assert trial.report(0.25).stops  # a whim of the policy, which must not get lost either
    fails_once(study.store, monkeypatch, before)
    trial.finish()
    fails_once(study.store, monkeypatch, before)
    assert asked(study).id == 1
    assert [e.value for e in reports(study)] == [0.1, 0.25]
    assert [e.trial for e in study.events() if isinstance(e, Started)] == [0, 1]
    assert study.trials[0].status == "stopped"


def test_a_log_that_lost_its_last_events_in_a_crash_is_read_again(mortal: Server) -> None:
    study = opened(mortal.database())
    trial = asked(study)
    for value in (0.1, 0.2, 0.3):
        trial.report(value)
    other = opened(study.store.address())
    store = study.store
    with store.engine.begin() as c:  # the time of an append without its flush
        c.execute(sa.text("DELETE FROM haltune_events WHERE seq >= 4"))
    mortal.stop()
    mortal.start()
    other.sync()
    assert list(other.history.trial(0).values) == [0.1]
    study.sync()
    trial.report(0.5)
    other.sync()
    assert image_of(other.history) == image_of(study.history) == image_of(folded(PROBLEM, study.events()))


# -- many workers -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.filterwarnings("ignore")  # forks, and workers that wait
def test_workers_outlive_crashes_of_their_server_and_nothing_acknowledged_is_lost(
    mortal: Server, tmp_path: Path
) -> None:
    url, trials, promised = mortal.database(), 60, tmp_path / "promised.txt"
    promised.touch()
    workers = [chaos.in_fork(lambda: chaos.work(url, trials, promised, 0.01)) for _ in range(4)]
    for _ in range(3):
        chaos.await_promises(promised, 20)
        mortal.stop("immediate")
        time.sleep(0.3)
        mortal.start()
    assert [os.waitpid(pid, 0)[1] for pid in workers] == [0] * 4
    found = chaos.check(url, tmp_path, trials)
    assert found["attempts lost"] <= 12  # a move whose answer was lost is offered again
