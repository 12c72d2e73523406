"""A training that starts again within its trial: the curve starts again, and what was given up no longer counts."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clocked import World
from paused_studies import pausing_study
from whims import PAUSE, STOP

from haltune import HaltuneWarning, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import NotSupported, StoreAway
from haltune.log.events import Ended, Resumed
from haltune.study.attempt import Report


@pytest.fixture
def world() -> World:
    return World()


def own_count(trial: Trial) -> Iterator[Callable[[float], Any]]:
    for epoch in range(1, 10):
        yield lambda value, epoch=epoch: trial.report(value, epoch)


def epochs(trial: Trial) -> Iterator[Callable[[float], Any]]:
    for epoch in trial.epochs():
        yield lambda value, epoch=epoch: trial.report(value, epoch)


def training_loop(trial: Trial) -> Iterator[Callable[[float], Any]]:
    for _ in (loop := TrainingLoop(trial)):
        yield loop.report


def with_smaller_batches(trial: Trial, loop: Callable[[Trial], Iterator[Callable[[float], Any]]]) -> None:
    """Train two epochs, run out of memory in the third, and train three again."""
    for try_, value in enumerate((0.6, 0.2)):
        reports = loop(trial)
        for epoch, report in enumerate(reports, 1):
            if not try_ and epoch == 3:
                reports.close()  # as an exception does
                break
            report(value / epoch)
            if try_ and epoch == 3:
                break


@pytest.mark.parametrize("loop", [own_count, epochs, training_loop])
def test_a_retry_after_an_error_starts_the_curve_again(world: World, loop: Any) -> None:
    with world.ask() as trial, pytest.warns(HaltuneWarning, match="had reported epoch 2, and now trains again from"):
        with_smaller_batches(trial, loop)
    record = world.study.trials[0]
    assert (list(record.epochs), list(record.values)) == ([1, 2, 3], [0.2, 0.2 / 2, 0.2 / 3])
    assert (record.attempt, record.status.value) == (2, "completed")
    assert world.study.spent.epochs == 5  # what was given up was trained too
    assert world.another().trials[0].values.tolist() == record.values.tolist()


@pytest.mark.filterwarnings("ignore:waiting up to:haltune.errors.HaltuneWarning")
def test_a_restart_whose_answer_the_store_loses_starts_the_curve_again_once(world: World, monkeypatch: Any) -> None:
    append = world.store.append

    def unheard(name: str, events: Any, **options: Any) -> int:
        position = append(name, events, **options)
        if any(isinstance(event, Resumed) for event in (events if isinstance(events, list) else [events])):
            monkeypatch.setattr(world.store, "append", append)
            raise StoreAway("no answer")
        return position

    with world.ask() as trial:
        trial.report(0.5)
        monkeypatch.setattr(world.store, "append", unheard)
        with pytest.warns(HaltuneWarning, match="had reported epoch 1, and now trains again from its start"):
            trial.restart()
        trial.report(0.4)
    assert world.curve() == [0.4]
    assert world.study.trials[0].attempt == 2


def test_a_restart_where_no_checkpoint_is_says_that_all_earlier_values_are_lost(world: World) -> None:
    with world.ask() as trial:
        for value in (0.5, 0.4, 0.3):
            trial.report(value)
        with pytest.warns(HaltuneWarning, match="trains again after epoch 2. Its earlier values no longer count, beca"):
            trial.restart(2.0)
        trial.report(0.2, epoch=3)
    assert list(world.study.trials[0].epochs) == [3]


def test_a_second_phase_after_a_reported_epoch_continues_the_curve(world: World) -> None:
    with world.ask() as trial, warnings.catch_warnings(action="error"):
        for last in (2, 4):
            for epoch in trial.epochs():
                trial.report(0.1 * epoch)
                if epoch == last:
                    break
    assert (trial.attempt, list(world.study.trials[0].epochs)) == (1, [1, 2, 3, 4])


def test_a_resumed_trial_that_fails_in_a_loop_starts_again_from_its_checkpoint(world: World, tmp_path: Path) -> None:
    trial = world.ask()
    for value in (0.5, PAUSE):
        trial.report(value)
    trial.save(lambda path: path.write_text("state"))
    trial.finish()
    trial = world.ask()
    checkpoint = trial.checkpoint
    with pytest.warns(HaltuneWarning, match="trains again after epoch 2"):
        for value in (0.3, 0.2):
            for epoch in trial.epochs():
                if epoch == 4 and value == 0.3:
                    break
                trial.report(value)
    assert trial.checkpoint == checkpoint
    assert world.curve()[:3] == [0.5, PAUSE, 0.2]


@pytest.mark.parametrize(("loads", "start"), [(True, 1), (False, 0)])
def test_a_retry_starts_at_the_state_that_it_has_saved_only_if_it_reads_its_path(
    world: World, loads: bool, start: int
) -> None:
    trial, yielded = world.ask(), []
    with pytest.warns(HaltuneWarning, match="trains again after epoch 1" if loads else "trains again from its start"):
        for attempt in range(2):
            if attempt and loads:
                assert trial.checkpoint is not None
            for epoch in trial.epochs():
                yielded.append(epoch)
                if epoch == 3:
                    break
                trial.report(0.3)
                if epoch == 1:
                    trial.save(lambda path: path.write_text("state"))
    assert yielded == [1, 2, 3, *range(start + 1, 4)]
    assert world.study.spent.epochs == 4 - start


def test_a_checkpoint_names_its_trial_by_its_path(world: World, tmp_path: Path) -> None:
    first, second = world.ask(), world.ask()
    first.report(0.5)
    path = first.save(lambda path: path.write_text("state"))
    assert (second.owner(path), second.owner(tmp_path / "mine.ckpt"), second.owner(".")) == (0, None, None)


def test_a_resumed_loop_that_counts_from_one_starts_from_scratch(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)
    trial.report(PAUSE)
    trial.save(lambda path: path.write_text("state"))
    trial.finish()
    trial = world.ask()
    with pytest.warns(HaltuneWarning, match=r"continues its count after trial\.epoch"):
        trial.report(0.4, 1)
    assert (trial.attempt, trial.epoch, trial.checkpoint, world.curve()) == (3, 1, None, [0.4])


@pytest.mark.parametrize("model", [object, type("Net", (), {})])
def test_a_fit_of_another_model_starts_again_and_one_of_the_same_model_is_refused(world: World, model: Any) -> None:
    trial, net = world.ask(), model()
    trial.starts(net, 0)
    trial.record(Report(0.5, 1.0, 1.0))
    if model is not object:  # which cannot be referred to weakly, so it counts as another
        with pytest.raises(
            NotSupported, match=r"trained to epoch 1, but counts from epoch 0.* Use initial_epoch\. If this"
        ):
            trial.starts(net, 0, resume="Use initial_epoch")
        trial.starts(net, 1)
    with pytest.warns(HaltuneWarning, match="To continue it instead: Use initial_epoch"):
        trial.starts(model(), 0, resume="Use initial_epoch")
    assert (trial.attempt, trial.epoch) == (2, 0)


@pytest.mark.parametrize("twice", [True, False])
def test_a_fit_that_starts_with_weights_of_its_trial_but_counts_from_its_start_is_refused(
    world: World, twice: bool
) -> None:
    net = type("Net", (), {})
    trial = world.ask()
    for value in (0.5, PAUSE):
        trial.report(value)
    trial.save(lambda path: path.write_text("state"))
    trial.finish()
    trial = world.ask()
    with pytest.raises(NotSupported, match=r"starts with weights of this trial, which has trained to epoch 2, but .*"):
        trial.starts(net(), None if twice else 0, of=trial.id)
        trial.starts(position=0)
    with trial:
        trial.starts(net(), 2, of=trial.id)
        trial.breaks(RuntimeError("out of memory"))
        with pytest.warns(HaltuneWarning, match="trains again from its start"):
            trial.starts(net(), 0, of=trial.id)
        trial.record(Report(0.4, 1.0, 1.0))


@pytest.mark.parametrize("own_file", [False, True])
def test_another_process_knows_the_weights_of_a_checkpoint(own_file: bool, world: World) -> None:
    trial = world.ask()
    trial.starts(object(), 0, trial.signer("first weights"))
    for value in (0.5, PAUSE):
        trial.sign(f"after {value}")
        trial.sign(7)  # of one optimizer
        trial.report(value)
    if own_file:
        trial.checkpointed("state")
    else:
        trial.save(lambda path: path.write_text("state"))
    trial.finish()
    study = world.another()
    trial = study.ask()
    assert trial.signer("first weights") is None
    with pytest.raises(NotSupported, match=r"starts with weights of this trial, which has trained to epoch 2, but .*"):
        trial.starts(object(), 0, trial.signer(f"after {PAUSE}"))
    other = study.ask()
    with pytest.raises(NotSupported, match="a state of trial 0, so it would continue the training"):
        other.starts(object(), 0, other.signer(f"after {PAUSE}"))


def test_another_process_knows_the_weights_of_a_trial_that_has_saved_no_state(world: World) -> None:
    trial, other = world.ask(), world.ask()
    assert [trial.signer("first"), trial.signer("same")] == [None, None]
    for update in range(150):
        trial.sign(f"after {update}")
    trial.sign("same")
    trial.report(0.5)
    trial.finish()
    other.report(0.5)
    other.finish()
    new = world.another().ask()
    known = ["first", "same", *(f"after {update}" for update in (149, 50, 49, 5))]
    assert [new.signer(mark) for mark in known] == [None, None, trial.id, trial.id, None, None]


def test_a_process_knows_the_weights_of_the_last_updates_only(world: World) -> None:
    trial, other = world.ask(), world.ask()
    for update in range(150_000):
        trial.sign(f"after {update}")
    assert trial.signer("after 149999") == trial.id
    assert [other.signer(f"after {update}") for update in (149_999, 110_000, 10)] == [trial.id, trial.id, None]


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("over_folds", [False, True])
def test_a_plain_loop_that_loads_the_weights_of_its_trial_but_counts_from_one_is_refused(
    over_folds: bool, same_process: bool, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=4, trials=1, verbose=0)

    def train(trial: Trial) -> None:
        for part in trial.folds(1) if over_folds else (trial,):
            net = torch.nn.Linear(8, 4)
            if part.checkpoint:
                net.load_state_dict(torch.load(part.checkpoint))
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            for epoch in range(1, 5):
                net(torch.randn(8, 8)).square().sum().backward()
                sgd.step()
                if part.report(1 / epoch, epoch).stops:
                    part.save(partial(torch.save, net.state_dict()))
                    break

    if not same_process:
        with study.ask() as trial:
            train(trial)
        study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=4, trials=1, verbose=0)
    with pytest.raises(NotSupported, match=r"it has trained to epoch 2, but reports epoch 1, so .*\.epochs\(\) does"):
        study.optimize(train)


def test_a_trial_that_resumes_from_a_state_of_its_own_at_another_path_has_loaded_it(world: World) -> None:
    trial = world.ask()
    trial.report(PAUSE)
    trial.save(lambda path: path.write_text("state"))
    trial.finish()
    trial = world.ask()
    trial.starts(position=1, of=trial.id)  # as a loop states it that knows whose checkpoint it has loaded
    trial.record(Report(0.4, 2.0, 1.0))
    assert world.curve()[-1] == 0.4


def test_after_a_stop_nothing_starts_again(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)
    trial.report(STOP)
    trial.restart()
    assert (trial.attempt, list(trial.epochs())) == (1, [])
    trial.finish()
    assert [e.status.value for e in world.events(Ended)] == ["stopped"]
    assert not world.events(Resumed)


def test_a_trial_that_another_worker_holds_does_not_start_again(world: World) -> None:
    trial = world.ask()
    trial.report(0.5)
    other = world.another()
    world.clock.now += 1e6
    taken = world.ask(other)
    assert (taken.id, taken.attempt) == (0, 2)
    trial.restart()
    assert (trial.attempt, world.study.trials[0].attempt) == (1, 2)


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([0, 40], "made no update from epoch 0 to 1"), ([20, 20, 40], "made no update from epoch 1 to 2"),
        ([10, 50, 90], "made 40 updates from epoch 1 to 2, where 10"), ([20, 40, 41, 42], None), ([1, 3, 4], None),
    ],
)  # fmt: skip
def test_updates_that_do_not_keep_pace_with_the_epochs_are_said_at_the_second_report(
    world: World, updates: list[float], words: str | None
) -> None:
    trial = world.ask()
    trial.starts(position=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch, made in enumerate(updates, 1):
            trial.record(Report(0.5, float(epoch), 1.0), updates=made)
    assert [words in str(w.message) for w in caught] == ([] if words is None else [True])


@pytest.mark.parametrize("loop", [own_count, epochs, training_loop])
@pytest.mark.parametrize(
    ("steps", "words"),
    [([2, 2, 0, 2], "no update from epoch 2 to 3"), ([2, 1, 9], None), ([0, 1, 0, 1], None), ([0, 0, 0], None)],
)
def test_an_epoch_without_a_step_of_torch_is_said_if_each_before_had_some(
    world: World, loop: Any, steps: list[int], words: str | None
) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(8, 4)
    sgd, critic = torch.optim.SGD(net.parameters(), 0.1), torch.optim.Adam(torch.nn.Linear(8, 1).parameters())
    with world.ask() as trial, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch, report in enumerate(loop(trial)):
            for step in range(steps[epoch]):  # accumulated gradients may leave out epochs from the first one on
                net(torch.randn(8, 8)).square().sum().backward()
                (sgd if step % 2 == 0 else critic).step()
            report(0.5)
            if epoch + 1 == len(steps):
                break
    assert [str(words) in str(w.message) for w in caught] == ([] if words is None else [True])


def features(net: Any, sgd: Any, trial: Trial) -> None:
    """The net is trained before the loop, which then trains something else."""
    sgd.step()
    for _ in trial.epochs():
        trial.report(0.5)


def twice(net: Any, sgd: Any, trial: Trial) -> None:
    """The net and its average are evaluated."""
    for epoch in trial.epochs():
        sgd.step()
        trial.report(0.5, epoch - 0.5)
        trial.report(0.5, epoch)


def late(net: Any, sgd: Any, trial: Trial) -> None:
    """Evaluations end later than the epochs that they are of."""
    for epoch in trial.epochs():
        if epoch % 2:
            for past in range(max(1, epoch - 2), epoch):
                trial.report(0.5, past)
        sgd.step()


def replayed(net: Any, sgd: Any, trial: Trial) -> None:
    """After the first epoch, weights change without a step of the optimizer, as by CUDA graphs."""
    for epoch in trial.epochs():
        if epoch == 1:
            sgd.step()
        else:
            net.weight.data += 0.1
        trial.report(0.5)


def afterwards(net: Any, sgd: Any, trial: Trial) -> None:
    """A curve is reported when the training is over."""
    for _ in range(9):
        sgd.step()
    for epoch in range(1, 10):
        trial.report(0.5, epoch)


@pytest.mark.parametrize("program", [features, twice, late, replayed, afterwards])
def test_reports_between_which_torch_made_no_step_are_not_doubted_where_something_was_trained(
    world: World, program: Callable[[Any, Any, Trial], None]
) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(8, 4)
    net(torch.randn(8, 8)).square().sum().backward()
    with world.ask() as trial:
        program(net, torch.optim.SGD(net.parameters(), 0.1), trial)


@pytest.mark.slow
def test_a_program_that_imports_torch_within_its_first_trial_is_seen_to_train(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
from haltune import Float, Minimize, Study

with Study({"lr": Float(0.01, 1.0)}, Minimize("loss"), max_epochs=3, budget="1 trial").ask() as trial:
    import torch
    net = torch.nn.Linear(2, 1)
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in trial.epochs():
        if epoch != 2:
            net(torch.ones(1, 2)).sum().backward()
            sgd.step()
        trial.report(0.5)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "made no update from epoch 1 to 2" in ran.stderr


def test_a_second_loop_after_a_full_training_is_refused(world: World) -> None:
    trial = world.ask()
    for epoch in trial.epochs():
        trial.report(0.5, epoch)
    with pytest.raises(NotSupported, match=r"this second loop over its epochs would train nothing.*trial\.folds"):
        next(iter(trial.epochs()))


def in_a_net(trial: Trial, loop: Any, value: float, net: Any = None, fails: bool = False) -> Any:
    """Train a net of torch, by default a new one, to the end of a loop, or to an error after its first report."""
    torch = pytest.importorskip("torch")
    net = net or torch.nn.Linear(8, 4)
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for report in loop(trial):
        net(torch.randn(8, 8)).square().sum().backward()
        sgd.step()
        report(value)
        if fails:
            raise ConnectionError("while it logs")
    return net


@pytest.mark.parametrize("loop", [epochs, training_loop])
@pytest.mark.parametrize(("value", "verdict"), [(STOP, "stop"), (PAUSE, "pause")])
def test_a_second_loop_of_another_model_after_a_verdict_is_refused(
    world: World, loop: Any, value: float, verdict: str
) -> None:
    text = rf"was to {verdict} at epoch 1, so this second loop over its epochs, of another model, .*trial\.folds\(k\)"
    with pytest.raises(NotSupported, match=text), world.ask() as trial:
        for _ in range(3):
            in_a_net(trial, loop, value)


def test_a_loop_of_another_model_after_a_verdict_is_refused_also_if_an_error_left_the_first_loop(world: World) -> None:
    torch = pytest.importorskip("torch")

    def retried(trial: Trial, net: Any) -> None:
        with suppress(ConnectionError):
            in_a_net(trial, epochs, 0.5, net, fails=True)
        in_a_net(trial, epochs, STOP, net)

    with pytest.raises(NotSupported, match="of another model"), world.ask() as trial:
        retried(trial, torch.nn.Linear(8, 4))
        in_a_net(trial, epochs, STOP)


@pytest.mark.parametrize("loop", [epochs, training_loop])
@pytest.mark.parametrize("verdict", [STOP, PAUSE])
@pytest.mark.parametrize("phase", [lambda net: net, deepcopy], ids=["of the same model", "of a copy"])
def test_after_a_verdict_the_next_phase_of_a_training_trains_nothing_and_nothing_is_said(
    world: World, loop: Any, verdict: float, phase: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "haltune")
    with world.ask() as trial:
        in_a_net(trial, loop, verdict, phase(in_a_net(trial, loop, verdict)))
    assert world.study.trials[0].epochs.tolist() == [1]
    assert "second loop" not in caplog.text


@pytest.mark.parametrize("loop", [epochs, training_loop])
def test_after_a_verdict_a_second_loop_of_an_unknown_model_is_said(
    world: World, loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "haltune")
    for _ in range(2):
        with world.ask() as trial:
            for _ in range(2):
                for report in loop(trial):
                    report(STOP)
    [line] = [line for line in caplog.messages if "second loop" in line]
    assert line.startswith("Trial 0 was to stop at epoch 1, so this second loop over its epochs trains nothing. If its")


def test_a_loop_that_starts_again_after_an_error_behind_its_last_report_trains_nothing(world: World) -> None:
    with world.ask() as trial:
        for _ in range(2):
            with suppress(ConnectionError):
                in_a_net(trial, epochs, STOP, fails=True)
    assert world.study.trials[0].epochs.tolist() == [1]


def test_a_report_without_a_position_is_of_the_epoch_that_the_loop_is_in(world: World) -> None:
    trial = world.ask()
    for epoch in trial.epochs():
        if epoch % 3 == 0:
            trial.report(0.5)
    assert world.study.trials[0].epochs.tolist()[:2] == [3, 6]


def test_after_a_full_training_that_starts_again_a_loop_trains_it(world: World) -> None:
    trial = world.ask()
    for _ in trial.epochs():
        trial.report(0.5)
    with pytest.warns(HaltuneWarning, match="trains again from its start"):
        trial.restart()
    assert next(trial.epochs()) == 1


@pytest.mark.parametrize("same_model", [True, False])
def test_a_program_that_handles_the_error_of_a_fit_and_fits_again_starts_the_curve_again(
    world: World, same_model: bool
) -> None:
    net = type("Net", (), {})()
    with world.ask() as trial:
        trial.starts(net, 0)
        trial.record(Report(0.5, 1.0, 1.0))
        trial.breaks(RuntimeError("the GPU is gone"))
        with pytest.warns(HaltuneWarning, match="trains again from its start.*RuntimeError: the GPU is gone") as said:
            trial.starts(net if same_model else type(net)(), 0)
        trial.record(Report(0.2, 1.0, 1.0))
    assert len(said) == 1
    assert ("the weights of its model" in str(said[0].message)) is same_model
    record = world.study.trials[0]
    assert (record.attempt, record.values.tolist(), record.status.value) == (2, [0.2], "completed")


def test_a_trial_whose_fit_ended_with_an_error_and_did_not_start_again_has_failed(world: World) -> None:
    with world.ask() as trial:
        trial.record(Report(0.5, 1.0, 1.0))
        trial.breaks(RuntimeError("the GPU is gone"))
        assert trial.ended is None
    outside = world.ask()
    outside.breaks(ValueError("a bug"))
    assert [e.error for e in world.events(Ended)] == ["RuntimeError: the GPU is gone", "ValueError: a bug"]


def test_a_fold_whose_fit_ended_with_an_error_fails_its_trial(world: World) -> None:
    with world.ask() as trial:
        for fold in trial.folds(2):
            fold.record(Report(0.5, 1.0, 1.0))
            fold.breaks(RuntimeError("the GPU is gone"))
    assert [e.error for e in world.events(Ended)] == ["RuntimeError: the GPU is gone"]


def as_it_is(trial: Trial) -> Iterator[int]:
    return trial.epochs()


def in_a_bar(trial: Trial) -> Iterator[int]:
    yield from trial.epochs()


def zipped(trial: Trial) -> Iterator[int]:
    return map(lambda epoch, _: epoch, trial.epochs(), range(99))


def of_a_loop(trial: Trial) -> Iterator[int]:
    return iter(TrainingLoop(trial))


LOOPS = [as_it_is, in_a_bar, zipped, of_a_loop]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("reported", [True, False])
def test_a_loop_that_an_error_leaves_has_failed_if_the_program_handles_the_error_and_goes_on(
    world: World, loop: Callable[[Trial], Iterator[int]], reported: bool
) -> None:
    with world.ask() as trial:
        try:
            for epoch in loop(trial):
                if epoch < 2 or reported:
                    trial.report(0.5, epoch)
                if epoch == 2:
                    int("diverged")
        except ValueError:
            pass
    [end] = world.events(Ended)
    assert end.status.value == "failed"
    assert f"which the program handled, ended its loop after epoch {1 + reported}" in str(end.error)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("returns", [True, False])
def test_a_loop_that_break_or_return_leaves_is_complete_also_after_errors_in_it(
    world: World, loop: Callable[[Trial], Iterator[int]], returns: bool
) -> None:
    failures = []

    def train(trial: Trial) -> None:
        for epoch in loop(trial):
            try:
                int("a bad row")
            except ValueError as error:
                failures.append(error)  # with its traceback
            trial.report(0.5, epoch)
            if epoch == 2 and returns:
                return
            if epoch == 2:
                break

    with world.ask() as trial:
        train(trial)
    assert [e.status.value for e in world.events(Ended)] == ["completed"]


def test_a_loop_that_starts_again_after_an_error_behind_its_report_continues(world: World) -> None:
    with world.ask() as trial:
        for attempt in range(2):
            try:
                for epoch in trial.epochs():
                    trial.report(0.5, epoch)
                    if epoch == 2 and not attempt:
                        raise ConnectionError("while it logs")
            except ConnectionError:
                continue
    assert [e.status.value for e in world.events(Ended)] == ["completed"]
    assert world.study.trials[0].attempt == 1


def test_a_loop_that_starts_again_after_an_error_behind_a_report_within_an_epoch_starts_the_curve_again(
    world: World,
) -> None:
    yielded: list[int] = []
    with world.ask() as trial, pytest.warns(HaltuneWarning, match="had reported epoch 2.5, and now trains again from"):
        for _ in range(2):
            with suppress(MemoryError):
                for epoch in trial.epochs():
                    yielded.append(epoch)
                    trial.report(0.5, epoch - 0.5)
                    if yielded == [1, 2, 3]:
                        raise MemoryError
                    trial.report(0.5, epoch)
    assert yielded == [1, 2, 3, *range(1, 11)]
    assert world.events(Ended)[-1].status == "completed"


def test_a_fold_that_a_handled_error_leaves_fails_its_trial(world: World) -> None:
    with world.ask() as trial:
        for fold in trial.folds(3):
            try:
                for epoch in fold.epochs():
                    fold.report(0.5, epoch)
                    if fold.index == 1:
                        int("diverged")
            except ValueError:
                pass
    assert [e.status.value for e in world.events(Ended)] == ["failed"]


def test_a_retry_in_optimize_that_ends_before_its_attempt_began_has_reported(tmp_path):
    def train(trial: Trial) -> None:
        if trial.checkpoint is not None:
            trial.restart()
        for _ in trial.epochs():
            if trial.report(0.5).stops:
                trial.save(lambda path: path.write_text("a state"))
            if trial.attempt > 1:
                return

    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=4, trials=1, verbose=0)
    with pytest.warns(HaltuneWarning, match="trains again from its start"):
        study.optimize(train)
    assert [(t.status, t.epochs.tolist()) for t in study.trials] == [("completed", [1.0])]
