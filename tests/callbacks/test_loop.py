"""The plain loop over the reporter."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from callback_fakes import STOP, Clock, FakeTrial
from paused_studies import pausing_study
from scripted import ENDS, scripted_study
from two_ranks import address, run_ranks

from haltune import Float, Minimize, Study, Trial
from haltune.callbacks import check_resume
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported
from haltune.policies import RandomSearch
from haltune.study.session import clocked

SUPPORT = Path(__file__).parents[1] / "support"
WAYS = {  # of saving, as sharded.py has them, and what they write
    "fsdp2, own files": ["0.pt", "1.pt"],
    "fsdp2, one checkpoint": [".metadata", "__0_0.distcp", "__1_0.distcp"],
    "fsdp1, one checkpoint": [".metadata", "__0_0.distcp", "__1_0.distcp"],
}


def test_it_trains_to_the_horizon_and_times_validation_apart():
    clock, trial = Clock(), FakeTrial(max_epochs=3)
    loop = TrainingLoop(trial, now=clock)
    for epoch in loop:
        clock.tick(4.0)
        with loop.validation():
            clock.tick(1.0)
        loop.report(1.0 / epoch)
    assert trial.values == [1.0, 1 / 2, 1 / 3]
    assert {(r["seconds"], r["validation"]) for r in trial.reports} == {(5.0, 1.0)}
    assert trial.endings == [None]


def test_it_ends_after_a_stop_continues_after_a_checkpoint_and_needs_no_report():
    loop = TrainingLoop(FakeTrial(max_epochs=9, verdicts={2.0: STOP}))
    assert [(epoch, loop.report(0.5)) for epoch in loop] == [(1, False), (2, True)]
    loop = TrainingLoop(FakeTrial(max_epochs=4, epoch=2.0))
    assert [epoch for epoch in loop if loop.report(0.5) or epoch] == [3, 4]
    assert list(TrainingLoop(FakeTrial(max_epochs=2, epoch=2.0))) == []
    assert list(TrainingLoop(FakeTrial(max_epochs=3))) == [1, 2, 3]


@pytest.mark.parametrize(
    ("save", "told"),
    [(lambda path: None, "wrote nothing at its path"), (lambda path: np.save(path, np.zeros(3)), r"suffix='\.npy'")],
)
def test_a_state_that_was_not_written_is_not_confused_with_the_random_state(save, told):
    trial = pausing_study(at=(2,)).ask()
    loop = TrainingLoop(trial, save=save)
    with pytest.warns(HaltuneWarning, match=f"could not be saved .*{told}"):
        for epoch in loop:
            loop.report(1.0 / epoch)
    assert trial.checkpoint is None


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("of", ["last", "best"])
def test_the_seconds_of_a_slow_save_count_as_those_of_a_checkpoint(of, background):
    clock, saved = Clock(), []

    def save(path):
        clock.tick(7.0)
        saved.append(path)
        return (lambda: path.write_text("state")) if background else path.write_text("state")

    with clocked(clock):
        study = pausing_study(at=(2,), epochs=3, keep=1, metric=Minimize("loss", of=of), verbose=0)
    for trial in study:
        with trial:
            assert (trial.checkpoint is None) == (trial.attempt == 1)
            for epoch in (loop := TrainingLoop(trial, save=save, background=background, now=clock)):
                clock.tick(10.0)
                loop.report(1 / epoch)
    assert len(saved) == (2 if of == "last" else 4)
    assert (study.spent.training, study.spent.checkpoint) == (30.0, 7.0 * len(saved))


def test_epochs_without_a_report_count_whole_although_a_save_behind_them_ends():
    clock, gate = Clock(), threading.Event()

    def save(path):
        return lambda: gate.wait(10) and path.write_text("state")

    study = best_of(epochs=4)
    with study.ask() as trial:
        for epoch in (loop := TrainingLoop(trial, save=save, background=True, now=clock)):
            clock.tick(10.0)
            if epoch % 2 == 0:
                loop.report(1 / epoch)
            elif epoch == 3:
                gate.set()
                for thread in threading.enumerate():
                    if thread.name.startswith("haltune-save"):
                        thread.join()
    assert study.trials[0].seconds.tolist() == [20.0, 20.0]


def train_together(trial):
    """A sum of what was drawn at random, of which each rank saves its part."""
    total = float(Path(trial.checkpoint, "total").read_text()) if trial.checkpoint else 0.0
    loop = TrainingLoop(
        trial, save=lambda path: (path / "total").write_text(str(total)), suffix=".sharded", together=True
    )
    for _ in loop:
        total += random.random()
        loop.report(total)
    return {"total": total}


def test_a_state_that_ranks_save_together_is_a_folder_to_continue_from():
    assert check_resume(train_together)
    study = pausing_study(at=(), keep=1, verbose=0)
    with study.ask() as trial:
        total = train_together(trial)["total"]
    assert sorted(path.name for path in Path(study.best.checkpoint).iterdir()) == ["0.random", "total"]
    assert float(Path(study.best.checkpoint, "total").read_text()) == total


def test_a_state_that_another_number_of_ranks_saved_says_how_many_to_start_and_its_trial_is_not_lost():
    study = pausing_study(trials=2, verbose=0)
    for _ in range(3):  # the first trial ends, the second one pauses
        with study.ask() as trial:
            train_together(trial)
    trial = study.ask()
    Path(trial.checkpoint, "1.random").write_text("{}")
    said = r"paused on 2 ranks and cannot resume on 1, because each rank loads.*--nproc_per_node 2"
    with pytest.raises(NotSupported, match=said), trial:
        train_together(trial)
    assert [trial.status for trial in study.trials] == ["completed", "interrupted"]


@pytest.mark.parametrize("kind", ["loop", "epochs"])
def test_a_trial_that_resumes_on_fewer_ranks_than_it_paused_on_says_what_differs(kind):
    def write(path):
        path.write_text("state")

    def train(trial):
        if kind == "loop":
            for epoch in (loop := TrainingLoop(trial, save=write)):
                loop.report(1 / epoch)
        else:
            for epoch in trial.epochs():
                trial.report(1 / epoch)
                trial.save(write)

    study = pausing_study(verbose=0)
    with study.ask() as trial:
        train(trial)
    trial = study.ask()
    shutil.copy(f"{trial.checkpoint}.random", f"{trial.checkpoint}.random1")
    with pytest.warns(HaltuneWarning, match="paused on 2 ranks and resumes on 1"), trial:
        train(trial)
    assert [*study.trials[0].epochs] == [1, 2, 3, 4]


def gated(gates, done, fails_at=None):
    """A `save` whose function writes the number of the epoch when the gate of this epoch opens."""

    def save(path):
        epoch = len(done) + 1
        done.append(epoch)

        def write():
            assert gates[epoch].wait(30)
            if epoch == fails_at:
                raise OSError(28, "No space left on device")
            path.write_text(str(epoch))

        return write

    return save


def train_behind(trial, save, gates):
    """Open the gate of an epoch in the next one: a training that waited for its file would never get there."""
    for epoch in (loop := TrainingLoop(trial, save=save, background=True)):
        if epoch - 1 in gates:
            gates[epoch - 1].set()
        loop.report(1 / epoch)
        if epoch == trial.horizon or epoch == trial.pause_at:
            gates[epoch].set()


def best_of(at=(), epochs=3, **options):
    return pausing_study(at=at, epochs=epochs, keep=1, verbose=0, metric=Minimize("loss", of="best"), **options)


def test_a_training_continues_while_the_model_of_its_best_epoch_is_written():
    study, done, gates = best_of(), [], {epoch: threading.Event() for epoch in (1, 2, 3)}
    with study.ask() as trial:
        train_behind(trial, gated(gates, done), gates)
    assert (done, Path(study.best.checkpoint).read_text(), study.best.value) == ([1, 2, 3], "3", 1 / 3)
    assert len(list(Path(study.best.checkpoint).parent.iterdir())) == 1


def test_a_model_that_could_not_be_written_behind_the_training_leaves_the_one_before():
    study, done, gates = best_of(), [], {epoch: threading.Event() for epoch in (1, 2, 3)}
    with study.ask() as trial, pytest.warns(HaltuneWarning, match=r"is not kept: .*No space left on device"):
        train_behind(trial, gated(gates, done, fails_at=3), gates)
    record = study.trials[0]
    assert (record.status, Path(record.kept).read_text()) == ("completed", "2")
    assert len(list(Path(record.kept).parent.iterdir())) == 1


def test_a_pause_waits_for_the_model_behind_it_and_is_written_at_once():
    study, done, gates = best_of(at=(2,)), [], {epoch: threading.Event() for epoch in (1, 2, 3)}
    gates[2].set()
    gates[3].set()
    with study.ask() as trial:
        train_behind(trial, gated(gates, done), gates)
    record = study.trials[0]
    assert (record.status, record.checkpoint_epoch, done[:2]) == ("paused", 2, [1, 2])
    assert Path(record.checkpoint).read_text() == "3"  # the third call of `save`
    assert Path(record.kept).read_text() == "2"


def test_ranks_without_a_process_group_cannot_save_together(in_a_process):
    source = (
        "from callback_fakes import FakeTrial\n"
        "from haltune.callbacks.loop import TrainingLoop\n"
        "from haltune.errors import NotSupported\n"
        "try: next(iter(TrainingLoop(FakeTrial(), save=print, together=True)))\n"
        "except NotSupported as error: print(error)"
    )
    said = in_a_process(source, RANK="0", WORLD_SIZE="2", MASTER_PORT="1")
    assert "Call torch.distributed.init_process_group() before the loop" in said


def by_torchrun(script, folder):
    """Run a script of the tests' support on two ranks; return what each of them has written into its file."""
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*torchrun, str(SUPPORT / script), str(folder)], capture_output=True, text=True, timeout=500,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_two_ranks_of_fsdp_save_their_parts_and_continue_digit_for_digit(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    weights = set()
    for told in by_torchrun("sharded.py", tmp_path):
        for way, files in WAYS.items():
            (once, *straight), (attempts, *paused) = told[f"{way} straight"], told[f"{way} paused"]
            assert (once, attempts, straight) == (1, 3, paused)
            assert told[f"{way} kept"] == sorted(["0.random", "1.random", *files])
        weights.add(str(straight[-1]))
        attempt, epochs, (said,) = told["full"]
        assert (attempt, epochs) == (1, [1, 2, 3, 4, 5])
        assert "No space left on device" in said
    assert len(weights) == 2  # each rank has its own part


@pytest.mark.slow
def test_ranks_save_behind_the_training_and_fail_together_and_none_waits_for_one_that_does_not_save(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    command = ["-W", "ignore", str(SUPPORT / "behind_of_ranks.py"), str(tmp_path)]
    told = run_ranks(command, tmp_path, seconds=120, **address())
    parts = ["0.random", "0.txt", "1.random", "1.txt"]
    for (in_time, quiet, first, files), (_, (said,), last, later), *failing, (_, (alone,), _, none) in told:
        assert (in_time, quiet, first, files) == ([True], [], 1, parts)
        assert (last, later) == (4, parts)
        assert "is not kept: its state could not be saved" in said
        assert "no memory for a copy" in said
        for _, (full,), end, whole in failing:
            assert (end, whole) == (4, parts)
            assert "is not kept: its state could not be saved (OSError: [Errno 28] No space left on device)" in full
        assert "is not kept: save waits for the other ranks, as fabric.save does" in alone
        assert none == []


@pytest.mark.slow
def test_two_ranks_of_fabric_save_together_and_continue_digit_for_digit(tmp_path):
    pytest.importorskip("lightning.fabric", reason="Lightning is not installed")
    for told in by_torchrun("fabric_loop.py", tmp_path):
        assert (told["straight"], told["straight attempts"], told["paused attempts"]) == (told["paused"], 1, 2)
        assert told["kept"] == ["0.random", "1.random", "state.ckpt"]
        epochs, (said,) = told["full"]
        assert (epochs, "No space left on device" in said, "keeps training" in said) == ([1, 2, 3, 4], True, True)


# A TrainingLoop that is left by the user's own break: what is kept of it, and when nothing can be


def leave(trial: Trial, end: int, wrapped: Callable[[TrainingLoop], object] = iter, late: bool = True) -> None:
    """Each epoch's state is its number; left in epoch `end`, after its report or before it."""
    state = {"epoch": 0}

    def save(path: Path) -> None:
        path.write_text(f"{trial.id} {state['epoch']}")

    loop = TrainingLoop(trial, save=save)
    for epoch in wrapped(loop):
        state["epoch"] = epoch
        if epoch == end and not late:
            break
        if loop.report(ENDS[trial.id][epoch - 1]) or epoch == end:
            break
    state["epoch"] = 99  # as when its best weights are put back: not what its last value was measured with


def kept(study: Study) -> tuple[float, float, str]:
    best = study.best
    assert best is not None
    return best.epoch, best.checkpoint_epoch, Path(str(best.checkpoint)).read_text()


@pytest.mark.parametrize("wrapped", [iter, lambda loop: (epoch for epoch in loop)], ids=["itself", "in a bar"])
@pytest.mark.parametrize(("of", "end"), [("last", 2), ("best", 3)])
def test_the_best_model_is_that_of_the_epoch_it_counts_for(of, end, wrapped):
    study = scripted_study(of)
    for trial in study:
        with trial:
            leave(trial, end, wrapped)
    assert kept(study) == (2, 2, "1 2")
    assert [str(t.status) for t in study.trials] == ["completed"] * 3


def test_a_pause_that_was_left_by_break_is_saved_and_so_is_what_comes_after_it():
    study = scripted_study("last", at=(1,))
    for trial in study:
        with trial:
            assert trial.checkpoint is None or Path(trial.checkpoint).read_text() == f"{trial.id} 1"
            leave(trial, 2)
    assert [t.epochs.tolist() for t in study.trials] == [[1, 2]] * 3
    assert [t.attempt for t in study.trials] == [2, 2, 2]
    assert kept(study) == (2, 2, "1 2")


def every_second(trial: Trial) -> int:
    """Report every second epoch; the state is the number of trained epochs. Return it."""
    state = {"epoch": int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0}
    for epoch in (loop := TrainingLoop(trial, save=lambda path: path.write_text(str(state["epoch"])))):
        state["epoch"] += 1
        if epoch % 2 == 0:
            loop.report(trial.id + 1 / epoch)
    return state["epoch"]


@pytest.mark.parametrize("at", [(), (2,), (4,)])
@pytest.mark.parametrize("of", ["last", "best"])
def test_if_the_last_epochs_have_no_report_the_model_of_the_last_report_is_kept(of, at):
    study = pausing_study(at=at, epochs=5, trials=2, keep=1, metric=Minimize("loss", of=of))
    for trial in study:
        with trial:
            assert every_second(trial) == (5 if trial.verdict is None or not trial.verdict.stops else at[0])
    assert kept(study) == (4, 4, "4")
    assert len(list(study.checkpoints.folder.rglob("*attempt-*.ckpt"))) == 1 + bool(at)


@pytest.mark.parametrize("of", ["last", "best"])
def test_distances_that_vary_keep_the_model_of_the_last_report_too(of):
    study = pausing_study(at=(), epochs=9, keep=1, metric=Minimize("loss", of=of))
    with study.ask() as trial:
        loop = TrainingLoop(trial, save=lambda path: path.write_text(f"{trial.epoch:g}"))
        for epoch in loop:
            if epoch in (3, 4, 7, 8):
                loop.report(1 / epoch)
    assert kept(study) == (8, 8, "8")


@pytest.mark.parametrize("of", ["last", "best"])
@pytest.mark.parametrize("late", [False, True])
def test_an_epoch_without_a_report_is_never_kept_as_the_one_before(late, of):
    """The state of epoch 4 cannot be written, or a thread writes it until after epoch 5."""
    study = pausing_study(at=(), epochs=5, keep=1, metric=Minimize("loss", of=of))
    model, trained = {"epoch": 0}, threading.Event()

    def save(path: Path) -> Callable[[], object]:
        def write() -> None:
            if not late and state == "4":
                raise OSError("the disk is full")
            trained.wait(10)
            path.write_text(state)

        state = str(model["epoch"])
        return write

    with nullcontext() if late else pytest.warns(HaltuneWarning, match="not kept"), study.ask() as trial:
        for epoch in (loop := TrainingLoop(trial, save=save, background=True)):
            model["epoch"] = epoch
            if epoch == 5:
                threading.Timer(0.1, trained.set).start()
            elif epoch % 2 == 0:
                trained.clear() if late and epoch == 4 else trained.set()
                loop.report(1 / epoch)
    assert study.best is not None
    assert study.best.checkpoint is None if not late else kept(study) == (4, 4, "4")


def test_one_that_is_left_before_its_report_is_said_once_to_keep_nothing():
    study = scripted_study("last")
    with pytest.warns(HaltuneWarning, match=r"trial 0, the best so far, is not kept.*within epoch 3, before") as said:
        for trial in study:
            with trial:
                leave(trial, 3, late=False)
    assert len(said) == 1
    assert study.best is not None
    assert study.best.checkpoint is None


def test_an_epoch_that_fails_saves_nothing_of_what_it_trained():
    study = scripted_study("last", max_failures=9)

    def fail(trial):
        loop = TrainingLoop(trial, save=lambda path: path.write_text("half an epoch"))
        for epoch in loop:
            if epoch == 2:
                raise RuntimeError("no more data")
            loop.report(ENDS[trial.id][epoch - 1])

    trial = study.ask()
    with pytest.raises(RuntimeError), trial:
        fail(trial)
    assert not list(study.checkpoints.folder.rglob("*attempt-*.ckpt"))
    assert study.trials[0].status == "failed"


def test_a_loop_by_steps_or_tokens_reports_when_it_validates_and_resumes_at_the_step(tmp_path):
    study = pausing_study(f"{tmp_path}/s.db", at=(40,), epochs=60, unit="step")
    trained = []
    for trial in study:
        with trial:
            assert (trial.checkpoint is None) == (trial.epoch == 0)
            loop = TrainingLoop(trial, save=lambda path: path.write_text("state"))
            for step in loop:
                trained.append(step)
                if step % 20 == 0:
                    loop.report(1 / step)
    assert trained == list(range(1, 61))
    assert (study.trials[0].attempt, study.trials[0].epochs.tolist()) == (2, [20, 40, 60])
    tokens = FakeTrial(max_epochs=100)
    tokens.unit = "token"
    loop = TrainingLoop(tokens)
    assert [batch for batch in loop if loop.report(0.5, tokens=30 * batch) or batch] == [1, 2, 3, 4]
    assert tokens.epochs == [30, 60, 90, 100]


def test_tokens_are_given_in_a_study_by_tokens_alone():
    loop = TrainingLoop(FakeTrial())
    with pytest.raises(InvalidInput, match=r"counts epochs.*tokens=n"):
        next(loop.report(0.5, tokens=3) for _ in loop)


@pytest.mark.parametrize("leaves", [False, True], ids=["ends", "break"])
def test_a_loop_by_tokens_counts_its_steps_and_keeps_the_state_after_its_last_report(leaves, tmp_path):
    study = pausing_study(f"{tmp_path}/s.db", at=(60,), epochs=100, unit="token", keep=1)
    seen = []

    def train(trial):
        tokens = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
        assert trial.max_tokens == 100
        loop = TrainingLoop(trial, save=lambda path: path.write_text(str(tokens)))
        for step in loop:
            tokens += 30
            seen.append((step, tokens))
            if loop.report(1 / tokens, tokens=tokens) and leaves:
                break

    study.optimize(train)
    assert seen == [(1, 30), (2, 60), (1, 90), (2, 120)]
    assert study.trials[0].epochs.tolist() == [30, 60, 90, 100]
    assert Path(study.best.checkpoint).read_text() == "120"


def test_the_steps_of_a_trial_by_tokens_end_with_its_last_token():
    study = Study({"x": Float(0, 1)}, "loss", max_tokens=100, policy=RandomSearch(trials=1), verbose=0)
    (steps,) = [
        [step for step in trial.steps() if trial.report(0.5, tokens=min(100, 30 * step)) or step] for trial in study
    ]
    assert steps == [1, 2, 3, 4]


def test_a_signal_between_two_reports_waits_for_the_next(tmp_path):
    study = pausing_study(f"{tmp_path}/s.db", at=(), epochs=20, unit="step")

    def train(trial):
        for step in (loop := TrainingLoop(trial, save=lambda path: path.write_text("state"))):
            if step == 7:
                os.kill(os.getpid(), signal.SIGTERM)
            if step % 5 == 0:
                loop.report(1 / step)

    with pytest.raises(SystemExit), study.ask() as trial:
        train(trial)
    trial = study.ask()
    assert (trial.step, trial.attempt, Path(trial.checkpoint).read_text()) == (10, 2, "state")


def test_a_model_that_trains_on_after_a_report_that_did_not_seem_the_last_is_not_kept():
    study = Study({"x": Float(0.0, 1.0)}, "val_loss", max_epochs=3, budget="1 trial", seed=0, policy=RandomSearch())
    for trial in study:
        loop = TrainingLoop(trial, save=lambda path: path.write_text("weights"))
        with pytest.warns(HaltuneWarning, match="it has trained to epoch 3, but its value"), trial:
            for epoch in loop:
                if epoch < 3:
                    loop.report(1.0 / epoch)
    assert study.best.checkpoint is None


def averaged(trial):
    """As docs/loops/plain.md saves averaged weights and trainable flags; returns the weights of both models."""
    torch = pytest.importorskip("torch")
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0 if trial.checkpoint is None else 9)  # another process starts with other weights
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).requires_grad_(False)
    average = torch.optim.swa_utils.AveragedModel(net)
    sgd = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    if trial.checkpoint:
        state = torch.load(trial.checkpoint)
        for part, name in ((net, "net"), (average, "average"), (sgd, "sgd")):
            part.load_state_dict(state[name])
        for p, flag in zip(net.parameters(), state["trainable"], strict=True):
            p.requires_grad_(flag)

    def save(path):
        parts = {"net": net.state_dict(), "average": average.state_dict(), "sgd": sgd.state_dict()}
        torch.save(parts | {"trainable": [p.requires_grad for p in net.parameters()]}, path)

    def loss(model):
        return (model(x) - x.sum(1, keepdim=True)).pow(2).mean()

    for epoch in (loop := TrainingLoop(trial, save=save)):
        if epoch in (1, 2):
            net[2 - epoch].requires_grad_(True)
        loss(net).backward()
        sgd.step()
        sgd.zero_grad()
        average.update_parameters(net)
        with torch.no_grad():
            loop.report(loss(average).item())
    return net, average, loss


def test_averaged_weights_and_trainable_flags_that_save_writes_resume_exactly_and_give_the_value():
    found = []
    for at in ((), (1, 3)):
        study = pausing_study(at=at, epochs=5, keep=1, verbose=0)
        for trial in study:
            with trial:
                net, average, loss = averaged(trial)
        found.append([p.tolist() for model in (net, average) for p in model.parameters()])
    assert found[0] == found[1]
    import torch

    average.load_state_dict(torch.load(study.best.checkpoint)["average"])
    assert loss(average).item() == study.best.value


def test_a_checkpoint_of_another_trial_is_not_taken_for_the_state_of_this_one():
    study = pausing_study(at=(), trials=2, keep=1, verbose=0)
    with study.ask() as trial:
        for epoch in (loop := TrainingLoop(trial, save=lambda path: path.write_text("weights"))):
            loop.report(1.0 / epoch)
    kept = study.best.checkpoint
    trial = study.ask()
    trial.report(1.0)
    with pytest.raises(InvalidInput, match="is a checkpoint of trial 0, so trial 1 would resume"):
        trial.checkpointed(kept)
    assert trial.checkpoint is None


@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_a_program_that_reports_before_it_trains_pauses_after_the_whole_epoch_although_it_would_break(unit):
    torch, found = pytest.importorskip("torch"), []
    for at in ((), (2,)):
        study = pausing_study(at=at, epochs=4, keep=1, unit=unit)
        for trial in study:
            with trial:
                weight = torch.nn.Parameter(
                    torch.tensor(float(Path(trial.checkpoint).read_text() if trial.checkpoint else 0))
                )
                sgd = torch.optim.SGD([weight], 1.0)
                for _ in (loop := TrainingLoop(trial, save=lambda path: path.write_text(f"{weight.item()}"))):  # noqa: B023
                    if loop.report(weight.item()):
                        break
                    weight.grad = -torch.ones(())
                    sgd.step()
        assert study.trials[0].attempt == len(at) + 1
        assert float(Path(study.best.checkpoint).read_text()) == study.best.value
        found.append(study.trials[0].values.tolist())
    assert found == [[0, 1, 2, 3]] * 2
