"""Ctrl-C and SIGTERM in boosting, fastai and Hugging Face's Trainer: what is under way is finished and saved."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from callback_fakes import FakeTrial
from fits import CatBoost, Fastai, LightGBM, Transformers, XGBoost
from interrupted_fits import handlers  # noqa: F401
from paused_studies import pausing_study

from haltune import Float, Maximize, Problem, Space, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning, InvalidInput, LeaseLost
from haltune.log.events import Status
from haltune.policies import RandomSearch


@pytest.mark.parametrize("kind", [XGBoost, LightGBM, CatBoost, Fastai, Transformers])
def test_ctrl_c_finishes_the_round_and_the_search_continues_exactly_there(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # CatBoost writes a folder of its own where it runs
    lib = kind()

    def searched(store, *others, **options):
        study = pausing_study(store, at=(), metric=lib.monitor, verbose=0)
        return study, lib.scores(lib.search(study, *others, **options))

    def interrupts(number):
        if number == 2 + (kind is CatBoost):  # there at the end of a round: the first of them installs the handlers
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        searched("search.db", lib.each_round(interrupts))
    study, weights = searched("search.db")
    straight, as_ever = searched("straight.db")
    assert [(t.status, t.attempt, t.checkpoint_epoch) for t in study.trials] == [(Status.COMPLETED, 2, 2.0)]
    assert list(study.trials[0].values) == list(straight.trials[0].values)
    np.testing.assert_array_equal(weights, as_ever)


@pytest.mark.parametrize("kind", [XGBoost, LightGBM, Fastai])
def test_ctrl_c_ends_a_fit_of_a_trial_that_has_ended_at_once(kind):
    def interrupts(number):
        rounds.append(number)
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    lib, trial, rounds = kind(), FakeTrial(epoch=3.0), []
    trial.ended = "completed"
    with pytest.warns(HaltuneWarning, match="has ended"), pytest.raises(KeyboardInterrupt):
        lib.train(lib.each_round(interrupts), lib.told(trial), rounds=5)
    assert rounds == [1, 2]


# Ctrl-C and SIGTERM in a TrainingLoop that saves: the epoch is finished and saved, and the second leaves at once


PROBLEM = Problem(Space({"lr": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 6)


def searched(store: Any, seen: list[int], at: Any = lambda trial, epoch: None, save: bool = True) -> Study:
    """A search of two trials, whose trainings count their epochs; `at` is called in the middle of each."""
    study = Study(PROBLEM, RandomSearch(trials=2), store, seed=0, verbose=0)
    for trial in study:
        with trial:
            state = {"epochs": 0}
            if trial.checkpoint:
                with open(trial.checkpoint) as file:
                    state = json.load(file)

            def write(path: Any, state: dict[str, int] = state) -> None:
                path.write_text(json.dumps(state))

            loop = TrainingLoop(trial, save=write if save else None)
            for epoch in loop:
                at(trial, epoch)
                state["epochs"] += 1
                seen.append(epoch)
                loop.report(state["epochs"] / 10)
    return study


def sends(*numbers: int) -> Any:
    def at(trial: Trial, epoch: int) -> None:
        if (trial.id, epoch) == (1, 3):
            for number in numbers:
                os.kill(os.getpid(), number)

    return at


both = pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGUSR1, SystemExit)],
)


def sleep() -> None:
    """Sleep until a signal; without one, fail after a minute."""
    read, write = os.pipe()
    late: list[int] = []
    asleep = threading.Timer(60, lambda: late.append(os.write(write, b"x")))
    asleep.start()
    try:
        os.read(read, 1)
    finally:
        asleep.cancel()
        asleep.join()
        os.close(read)
        os.close(write)
        assert not late


@both
def test_the_epoch_is_finished_and_saved_and_the_search_continues_exactly_there(number, raised, tmp_path):
    store, seen = tmp_path / "search.db", []
    with pytest.raises(raised) as caught:
        searched(store, seen, sends(number))
    assert seen == [1, 2, 3, 4, 5, 6, 1, 2, 3]
    if raised is SystemExit:
        assert caught.value.code == 128 + number
    study = searched(store, seen)
    assert seen[9:] == [4, 5, 6]
    assert list(study.trials[1].values) == list(study.trials[0].values) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert study.trials[1].attempt == 2


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")])
def test_the_log_names_the_signal_and_a_second_one_ends_at_once(number, name, tmp_path, caplog):
    seen = []
    with pytest.raises(SystemExit):
        searched(tmp_path / "search.db", seen, sends(number, number))
    assert seen[6:] == [1, 2]
    lines = [line for line in caplog.messages if "received" in line]
    assert lines == [
        f"{name} received: training ends after the next save; a second signal ends it at once",
        f"{name} received again: training ends at once, without a save",
    ]


@pytest.mark.parametrize("in_c", [False, True])
def test_a_sigusr1_that_somebody_handles_is_left_to_them(in_c, tmp_path):
    heard, seen = [], []
    with open(tmp_path / "traces", "w") as traces:
        if in_c:
            faulthandler.register(signal.SIGUSR1, traces)
        else:
            signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
        try:
            searched(tmp_path / "search.db", seen, sends(signal.SIGUSR1))
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert seen == [1, 2, 3, 4, 5, 6] * 2
    assert heard or "most recent call first" in (tmp_path / "traces").read_text()


def test_an_epoch_that_the_grace_is_too_short_for_is_given_up_and_the_trial_given_back(tmp_path, monkeypatch, caplog):
    def at(trial, epoch):
        sends(signal.SIGTERM)(trial, epoch)
        if (trial.id, epoch) == (1, 3):
            sleep()

    monkeypatch.setenv("HALTUNE_GRACE", "0.1")
    with pytest.raises(SystemExit) as caught:
        searched(tmp_path / "search.db", [], at)
    assert caught.value.code == 143
    study = Study(PROBLEM, RandomSearch(trials=2), tmp_path / "search.db", seed=0, verbose=0)
    assert [(t.status, t.epoch) for t in study.trials] == [(Status.COMPLETED, 6), (Status.INTERRUPTED, 2)]
    assert "HALTUNE_GRACE=0.1 is nearly over: training ends at once, without a save" in caplog.text


def test_a_grace_that_is_no_number_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("HALTUNE_GRACE", "30s")
    with pytest.raises(InvalidInput, match="Cannot read HALTUNE_GRACE='30s'"):
        searched(tmp_path / "search.db", [])


def test_a_second_one_leaves_at_once(tmp_path):
    store, seen = tmp_path / "search.db", []
    with pytest.raises(KeyboardInterrupt):
        searched(store, seen, sends(signal.SIGINT, signal.SIGINT))
    assert seen[6:] == [1, 2]
    searched(store, seen)
    assert seen[8:] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(KeyboardInterrupt):  # and at once without a way to save
        searched(tmp_path / "other.db", seen := [], sends(signal.SIGINT), save=False)
    assert seen[6:] == [1, 2]


def test_in_the_last_epoch_the_trial_is_complete(tmp_path):
    def at(trial, epoch):
        if (trial.id, epoch) == (0, 6):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "search.db", [], at)
    study = Study(PROBLEM, RandomSearch(trials=2), tmp_path / "search.db", seed=0, verbose=0)
    assert [t.status for t in study.trials] == [Status.COMPLETED]


@pytest.mark.parametrize("leaves", [False, True], ids=["ends", "break"])
@pytest.mark.parametrize(("at", "end"), [((), 3), ((2,), 2)], ids=["the last one", "a pause"])
def test_an_epoch_that_ends_the_loop_in_any_case_is_saved(at, end, leaves, tmp_path):
    study = pausing_study(tmp_path / "search.db", at=at, epochs=3, keep=1, verbose=0)
    with pytest.raises(KeyboardInterrupt), study.ask() as trial:
        for epoch in (loop := TrainingLoop(trial, save=lambda path: path.write_text(f"{trial.epoch}"))):
            if epoch == end:
                os.kill(os.getpid(), signal.SIGINT)
            if loop.report(1 / epoch) and leaves:
                break
        sleep()
    (record,) = study.trials
    assert (record.checkpoint_epoch, Path(record.checkpoint).read_text()) == (end, str(end))


def test_an_epoch_that_fails_after_it_is_no_failed_trial(tmp_path):
    def at(trial, epoch):
        sends(signal.SIGINT)(trial, epoch)
        if (trial.id, epoch) == (1, 3):
            raise RuntimeError("a worker that loads data has gone")

    with pytest.raises(KeyboardInterrupt):  # it comes after the error, or in its stead
        with pytest.raises(RuntimeError):
            searched(tmp_path / "search.db", [], at)
        sleep()
    study = Study(PROBLEM, RandomSearch(trials=2), tmp_path / "search.db", seed=0, verbose=0)
    assert [t.status for t in study.trials] == [Status.COMPLETED, Status.INTERRUPTED]


def test_a_loop_that_is_left_by_break_is_interrupted_all_the_same():
    study = Study(PROBLEM, RandomSearch(trials=2), seed=0, verbose=0)
    begun = 0
    with pytest.raises(KeyboardInterrupt):
        for trial in study:
            begun += 1
            with trial:
                for epoch in (loop := TrainingLoop(trial, save=lambda path: path.touch())):
                    os.kill(os.getpid(), signal.SIGINT)
                    loop.report(0.5)
                    if epoch == 1:
                        break
            sleep()
    assert begun == 1


def test_a_loop_that_is_left_by_break_raises_the_signal_once_and_leaves_no_hook(caplog):
    trial, hook = Study(PROBLEM, RandomSearch(trials=1), seed=0, verbose=0).ask(), sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        for _ in (loop := TrainingLoop(trial, save=lambda path: path.touch())):
            os.kill(os.getpid(), signal.SIGINT)
            loop.report(0.5)
            break
        sleep()
    assert [line.partition(":")[0] for line in caplog.messages if "received" in line] == ["Ctrl-C received"]
    assert sys.unraisablehook is hook


def test_a_loop_that_is_left_by_break_keeps_its_last_epoch_and_a_handler_that_saves_it_again_lets_ctrl_c_through():
    study = Study(PROBLEM, RandomSearch(trials=2), seed=0, verbose=0)
    with pytest.raises(KeyboardInterrupt), study.ask() as trial:
        try:
            for epoch in (loop := TrainingLoop(trial, save=lambda path: path.write_text(f"{trial.epoch}"))):
                os.kill(os.getpid(), signal.SIGINT)
                loop.report(0.5)
                if epoch == 1:
                    break
            sleep()
        except KeyboardInterrupt:
            with pytest.warns(HaltuneWarning, match=r"^Trial 0 has ended \(interrupted\)\. Its state is not saved\. It "
                              r"resumes after epoch 1, its last checkpoint\.$"):  # fmt: skip
                saved = trial.save(lambda path: path.write_text("again"))
            raise
    assert saved == study.trials[0].checkpoint
    assert Path(saved).read_text() == "1"
    with pytest.raises(LeaseLost, match="has ended"):
        trial.save(lambda path: path.write_text("later"))


def test_what_is_ignored_stays_ignored_and_other_threads_set_no_handlers():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    trial = Study(PROBLEM, RandomSearch(trials=1), seed=0, verbose=0).ask()
    found = [signal.getsignal(signal.SIGINT) for _ in TrainingLoop(trial, save=lambda path: path.touch())]
    assert set(found) == {signal.SIG_IGN}
    signal.signal(signal.SIGINT, before)
    other = Study(PROBLEM, RandomSearch(trials=1), seed=0, verbose=0).ask()
    kept = []
    loop = TrainingLoop(other, save=lambda path: path.touch())
    thread = threading.Thread(target=lambda: kept.extend(signal.getsignal(signal.SIGINT) for _ in loop))
    thread.start()
    thread.join()
    assert set(kept) == {signal.default_int_handler}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_the_training_forked_leaves_ctrl_c_to_it_and_heeds_sigterm():
    trial = Study(PROBLEM, RandomSearch(trials=1), seed=0, verbose=0).ask()
    for _ in TrainingLoop(trial, save=lambda path: path.touch()):
        reads, writes = os.pipe()
        if not (child := os.fork()):
            os.kill(os.getpid(), signal.SIGINT)
            os.write(writes, b"x")
            for _ in range(6000):  # a signal that comes as a sleep starts is heard as it ends
                time.sleep(0.1)
            os._exit(0)
        assert os.read(reads, 1) == b"x"
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        for fd in (reads, writes):
            os.close(fd)
        break


PROGRAM = """
import os, signal
from haltune import Float, Study
from haltune.callbacks.loop import TrainingLoop

signal.signal(signal.SIGINT, signal.default_int_handler)
for trial in Study({"lr": Float(0.0, 1.0)}, "acc", max_epochs=3, budget="1 trial"):
    with trial:
        for epoch in (loop := TrainingLoop(trial, save=lambda path: path.write_text("state"))):
            os.kill(os.getpid(), signal.SIGINT)
            loop.report(0.5)
"""


def test_a_program_that_ctrl_c_ends_in_order_shows_no_traceback():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Ctrl-C received: training ends after the next save; a second signal ends it at once" in done.stderr
