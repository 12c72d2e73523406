"""SIGTERM and SIGUSR1 within `with trial:`: a plain loop finishes its epoch, and the trial is offered again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from whims import PROBLEM as WHIMSICAL
from whims import Whims

from haltune import Budget, Float, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.log.events import Status
from haltune.policies import RandomSearch

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")
BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
At = Callable[[Trial, int], object]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """None is handled before; nor afterwards."""
    numbers, hook = (signal.SIGTERM, signal.SIGUSR1), sys.unraisablehook
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    after = [signal.signal(number, handler) for number, handler in zip(numbers, before, strict=True)]
    assert after == [signal.SIG_DFL, signal.SIG_DFL]
    assert sys.unraisablehook is hook


def opened(store: Path | None = None) -> Study:
    return Study({"lr": Float(0.0, 1.0)}, "acc", store, max_epochs=4, policy=RandomSearch(trials=2), seed=0, verbose=0)


def searched(store: Path, seen: list[int], at: At = lambda trial, epoch: None) -> Study:
    """A search of two trials, whose trainings count their epochs; `at` is called in the middle of each."""
    study = opened(store)
    for trial in study:
        with trial:
            epochs = json.loads(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            for epoch in trial.epochs():
                at(trial, epoch)
                epochs += 1
                seen.append(epoch)
                trial.report(epochs / 10)
                trial.save(lambda path, epochs=epochs: path.write_text(json.dumps(epochs)))  # type: ignore[misc]
    return study


def sends(*numbers: int, trial: int = 1, epoch: int = 3) -> At:
    def at(now: Trial, position: int) -> None:
        if (now.id, position) == (trial, epoch):
            for number in numbers:
                os.kill(os.getpid(), number)

    return at


@BOTH
def test_the_epoch_is_finished_and_saved_and_the_search_continues_exactly_there(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    with pytest.raises(SystemExit) as caught:
        searched(tmp_path / "search.db", seen, sends(number))
    assert caught.value.code == 128 + number
    assert seen == [1, 2, 3, 4, 1, 2, 3]
    name = signal.Signals(number).name
    assert f"{name} received: training ends after this epoch; a second signal ends it at once" in caplog.messages
    study = searched(tmp_path / "search.db", seen)
    assert seen[7:] == [4]
    assert [(t.status, t.attempt) for t in study.trials] == [(Status.COMPLETED, 1), (Status.COMPLETED, 2)]
    assert list(study.trials[1].values) == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(("unit", "ends"), [("step", "step"), ("token", "step"), ("game", "game")])
def test_the_log_names_what_is_finished_first(unit: str, ends: str, caplog: pytest.LogCaptureFixture) -> None:
    study = Study({"lr": Float(0.0, 1.0)}, "acc", max_epochs=9, unit=unit, policy=RandomSearch(), budget="1 trial")
    with pytest.raises(SystemExit), study.ask() as trial:
        for n in trial.epochs():
            sends(signal.SIGTERM, trial=0)(trial, n)
    assert f"SIGTERM received: training ends after this {ends}; a second signal ends it at once" in caplog.messages


def test_a_trial_that_is_entered_twice_leaves_the_signals_as_they_were(tmp_path: Path) -> None:
    def train(trial: Trial) -> None:
        with trial:
            trial.report(0.5, 4)

    opened(tmp_path / "search.db").optimize(train)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_one_ends_at_once(tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(SystemExit) as caught:
        searched(tmp_path / "search.db", seen, sends(signal.SIGUSR1, signal.SIGTERM))
    assert caught.value.code == 143
    assert seen[4:] == [1, 2]
    trial = opened(tmp_path / "search.db").trials[1]
    assert (trial.status, trial.epoch, trial.checkpoint_epoch) == (Status.INTERRUPTED, 2, 2)


class Dies:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class Dummy:
    pass


def by_del() -> None:
    Dies()


def by_callback() -> None:
    weakref.finalize(Dummy(), os.kill, os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("ends", [by_del, by_callback])
def test_one_whose_exception_python_ignores_is_raised_after_the_next_report(ends: Callable[[], None]) -> None:
    seen: list[int] = []
    study = opened()
    with pytest.raises(SystemExit) as caught, study.ask() as trial:
        for epoch in range(1, 5):
            if epoch == 2:
                ends()
            seen.append(epoch)
            trial.report(epoch / 10)
    assert caught.value.code == 143
    assert seen == [1, 2]
    assert study.trials[0].status == Status.INTERRUPTED


def test_an_epoch_that_the_grace_is_too_short_for_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALTUNE_GRACE", "0.1")
    since = time.monotonic()

    def at(trial: Trial, epoch: int) -> None:
        sends(signal.SIGTERM)(trial, epoch)
        if (trial.id, epoch) == (1, 3):
            threading.Event().wait(60)

    with pytest.raises(SystemExit):
        searched(tmp_path / "search.db", [], at)
    assert time.monotonic() - since < 30
    assert opened(tmp_path / "search.db").trials[1].status is Status.INTERRUPTED


def test_in_the_last_epoch_the_trial_is_complete(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        searched(tmp_path / "search.db", [], sends(signal.SIGTERM, trial=0, epoch=4))
    assert [(t.status, t.epoch) for t in opened(tmp_path / "search.db").trials] == [(Status.COMPLETED, 4)]


def test_an_epoch_that_fails_after_it_is_no_failed_trial(tmp_path: Path) -> None:
    def at(trial: Trial, epoch: int) -> None:
        sends(signal.SIGTERM)(trial, epoch)
        if (trial.id, epoch) == (1, 3):
            raise RuntimeError("a worker that loads data has gone")

    with pytest.raises(SystemExit):
        searched(tmp_path / "search.db", [], at)
    assert [t.status for t in opened(tmp_path / "search.db").trials] == [Status.COMPLETED, Status.INTERRUPTED]


@BOTH
def test_a_loop_that_counts_by_itself_is_left_at_once_and_its_last_report_kept(number: int, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        for trial in opened(tmp_path / "search.db"):
            with trial:
                for epoch in range(1, 5):
                    trial.report(epoch / 10)
                    os.kill(os.getpid(), number)
    assert caught.value.code == 128 + number
    (trial,) = opened(tmp_path / "search.db").trials  # type: ignore[assignment]
    assert (trial.status, trial.epoch) == (Status.INTERRUPTED, 1)  # type: ignore[attr-defined]


def test_a_report_under_way_is_recorded() -> None:
    class Slow(Whims):
        def judge(self, *arguments: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().judge(*arguments)

    study = Study(WHIMSICAL, Slow(), seed=1, budget=Budget(trials=3), verbose=0)
    with pytest.raises(SystemExit):
        for trial in study:
            with trial:
                trial.report(0.5)
    assert [(t.status, list(t.values)) for t in study.trials] == [(Status.INTERRUPTED, [0.5])]


def test_what_the_program_handles_is_left_to_it() -> None:
    heard: list[int] = []

    def own(number: int, frame: object) -> None:
        heard.append(number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, own)
    with opened().ask() as trial:  # type: ignore[union-attr]
        for epoch in trial.epochs():
            os.kill(os.getpid(), signal.SIGTERM if epoch % 2 else signal.SIGUSR1)
            trial.report(0.1)
    assert heard == [signal.SIGTERM, signal.SIGUSR1] * 2
    assert trial.ended is Status.COMPLETED
    for number in (signal.SIGTERM, signal.SIGUSR1):
        assert signal.signal(number, signal.SIG_DFL) is own


def test_a_handler_set_within_the_block_stays_and_other_threads_set_none() -> None:
    def own(number: int, frame: object) -> None: ...

    with opened().ask() as trial:  # type: ignore[union-attr]
        signal.signal(signal.SIGTERM, own)
        trial.report(0.5)
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is own
    found = []

    def train() -> None:
        with opened().ask() as trial:  # type: ignore[union-attr]
            for _ in trial.epochs():
                found.append(signal.getsignal(signal.SIGTERM))
                trial.report(0.5)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL] * 4


# Ctrl-C that the program handles


def presses() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def breaks(trial: Trial) -> None:
    for epoch in trial.epochs():
        try:
            presses() if epoch == 3 else trial.report(0.5)
        except KeyboardInterrupt:
            break


def around(trial: Trial) -> None:
    with suppress(KeyboardInterrupt):
        for epoch in trial.epochs():
            presses() if epoch == 3 else trial.report(0.5)


def counts_itself(trial: Trial) -> None:
    with suppress(KeyboardInterrupt):
        for epoch in range(1, 5):
            presses() if epoch == 3 else trial.report(0.5, epoch)


def in_a_training_loop(trial: Trial) -> None:
    with suppress(KeyboardInterrupt):
        for epoch in (loop := TrainingLoop(trial)):
            presses() if epoch == 3 else loop.report(0.5)


def after_a_report(trial: Trial) -> None:
    with suppress(KeyboardInterrupt):
        for epoch in trial.epochs():
            trial.report(0.5)
            presses() if epoch == 2 else None


def at_once(trial: Trial) -> None:
    with suppress(KeyboardInterrupt):
        presses()


def after_another(trial: Trial) -> None:
    at_once(trial)
    counts_itself(trial)


def in_a_block(study: Study, train: Callable[[Trial], None]) -> None:
    with study.ask() as trial:  # type: ignore[union-attr]
        train(trial)


def over_the_study(study: Study, train: Callable[[Trial], None]) -> None:
    for trial in study:
        train(trial)


@pytest.mark.parametrize("block", [in_a_block, over_the_study])
@pytest.mark.parametrize("train", [breaks, around, counts_itself, in_a_training_loop, after_a_report, after_another])
def test_a_trial_whose_program_handles_ctrl_c_and_ends_early_is_interrupted_and_the_search_ends(
    train: Callable[[Trial], None],
    block: Callable[[Study, Callable[[Trial], None]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    study = opened()
    with pytest.raises(KeyboardInterrupt, match="ended trial 0 early"):
        block(study, train)
    trial = study.trials[0]
    assert (trial.status, list(trial.values)) == (Status.INTERRUPTED, [0.5, 0.5])
    assert "Trial 0 was interrupted. The next start" in caplog.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = study.ask()
    assert (again.id, again.attempt) == (0, 2)  # type: ignore[union-attr]


SIGNALS = pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGUSR1, SystemExit)],
)


@pytest.mark.parametrize("said", ["an exception in a callback", "Connection closed by peer"])
@SIGNALS
def test_a_trial_is_interrupted_where_a_library_raises_its_own_error_in_place_of_a_signals(
    number: int, raised: type[BaseException], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the error looks like that of a collective whose other rank is gone: the attempt is not lost."""
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))
    study = opened()
    study.ask().report(0.5, 4)  # type: ignore[union-attr]
    with pytest.raises(raised), study.ask() as trial:  # type: ignore[union-attr]
        trial.report(0.5)
        try:
            os.kill(os.getpid(), number)
        except BaseException as error:  # as CatBoost does with each one of a callback
            raise RuntimeError(said) from error
    assert (study.trials[1].status, study.history.losses(1)) == (Status.INTERRUPTED, 0)


@SIGNALS
def test_an_error_after_a_signal_that_the_program_has_handled_is_one_of_its_training(
    number: int, raised: type[BaseException]
) -> None:
    study = opened()
    with pytest.raises(ZeroDivisionError), study.ask() as trial:  # type: ignore[union-attr]
        with suppress(raised):
            os.kill(os.getpid(), number)
        trial.report(0.5)
        raise ZeroDivisionError
    assert study.trials[0].status is Status.FAILED


def test_so_is_one_without_a_report_and_one_over_folds() -> None:
    def over_folds(trial: Trial) -> None:
        for fold in trial.folds(2):
            for _ in fold.epochs():
                fold.report(0.5)
                if fold.index == 1:
                    try:
                        presses()
                    except KeyboardInterrupt:
                        break

    study = opened()
    for train, epoch in (at_once, 0.0), (over_folds, 2.5):
        with pytest.raises(KeyboardInterrupt):
            in_a_block(study, train)
        assert (study.trials[0].status, study.trials[0].epoch) == (Status.INTERRUPTED, epoch)


def skips_a_phase(trial: Trial) -> None:
    counts_itself(trial)
    for epoch in (3, 4):
        trial.report(0.5, epoch)


def skips_a_phase_and_stops_early(trial: Trial) -> None:
    after_a_report(trial)
    trial.report(0.5)


def evaluates_after_the_last_epoch(trial: Trial) -> None:
    for _ in range(4):
        trial.report(0.5)
    with suppress(KeyboardInterrupt):
        presses()


def evaluates_after_it_stopped_early(trial: Trial) -> None:
    for epoch in trial.epochs():
        trial.report(0.5)
        if epoch == 2:
            break
    with suppress(KeyboardInterrupt):
        presses()


def says_so(trial: Trial) -> None:
    counts_itself(trial)
    trial.finish("completed")


@pytest.mark.parametrize(
    "train",
    [skips_a_phase, skips_a_phase_and_stops_early, evaluates_after_the_last_epoch, evaluates_after_it_stopped_early,
     says_so],
)  # fmt: skip
def test_ctrl_c_that_did_not_end_the_training_leaves_the_trial_complete(train: Callable[[Trial], None]) -> None:
    with opened().ask() as trial:  # type: ignore[union-attr]
        train(trial)
    assert trial.ended is Status.COMPLETED


def test_a_handler_of_ctrl_c_of_the_program_s_own_is_left_to_it() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with opened().ask() as trial:  # type: ignore[union-attr]
            trial.report(0.5)
            presses()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert (heard, trial.ended) == ([signal.SIGINT], Status.COMPLETED)


PROGRAM = """
import os, signal, sys
from haltune import Float, Study

def train(trial):
    for epoch in trial.epochs():
        if where == "inside":
            os.kill(os.getpid(), signal.SIGTERM)
        trial.report(trial.config["lr"] * epoch)

where = sys.argv[1]
study = Study({"lr": Float(0.0, 1.0)}, "acc", "search.db", max_epochs=3, budget="1 trial", verbose=0)
study.optimize(train)
if where == "outside":
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("where", "code"), [("inside", 143), pytest.param("outside", -signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_program_ends_with_143_and_outside_of_trials_as_without_haltune(
    where: str, code: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, where], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
