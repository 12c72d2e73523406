"""The loop for Accelerate, in one process and in two."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from callback_fakes import PAUSE, STOP, FakeTrial
from interrupted_fits import handlers  # noqa: F401
from paused_studies import pausing_study

pytest.importorskip("accelerate", reason="Accelerate is not installed")

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import DistributedType, GradientAccumulationPlugin, ProjectConfiguration
from accelerated import searched, train
from safetensors.torch import load_file
from samplers import Numbered, Shuffling

from haltune import Minimize
from haltune.callbacks import check_resume
from haltune.callbacks.accelerate import AcceleratedLoop
from haltune.callbacks.sharded import ShardedLoop
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

SUPPORT = Path(__file__).parents[1] / "support"


def test_every_epoch_is_reported_and_a_stop_ends_the_loop():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    train(trial)
    assert (trial.epochs, trial.endings) == ([1, 2], [None])


def test_an_epoch_without_an_update_is_said():
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(3, 1)
    net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    with (
        pausing_study(at=(), epochs=3, verbose=0).ask() as trial,
        pytest.warns(HaltuneWarning, match="made no update from epoch 1 to 2"),
    ):
        for epoch in (loop := AcceleratedLoop(trial, accelerator)):
            if epoch != 2:
                accelerator.backward(net(torch.ones(2, 3)).pow(2).mean())
                sgd.step()
            loop.report(1 / epoch)


def test_the_best_model_comes_back_as_safetensors(tmp_path):
    study, weights = searched(tmp_path / "search.db")
    kept = load_file(f"{study.best.checkpoint}/model.safetensors")
    assert sorted(torch.cat([part.flatten() for part in kept.values()]).tolist()) == sorted(weights)
    assert study.best.checkpoint_epoch == 5


@pytest.mark.usefixtures("handlers")
def test_ctrl_c_finishes_the_epoch_and_the_search_continues_exactly_there(tmp_path):
    def interrupts(epoch):
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "search.db", during=interrupts)
    study, weights = searched(tmp_path / "search.db")
    assert (study.trials[0].attempt, study.trials[0].epochs.tolist()) == (2, [1, 2, 3, 4, 5])
    assert weights == searched(tmp_path / "straight.db")[1]


def test_what_accelerate_would_load_as_a_pickle_is_not_paused():
    class Own:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise AssertionError

    trial = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"register_for_checkpointing as pickles.*keeps training"):
        train(trial, before=lambda accelerator: accelerator.register_for_checkpointing(Own()))
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)


def test_a_pause_is_declined_before_the_program_leaves_its_loop_for_it():
    trial, accelerator = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE}), Accelerator(cpu=True)
    net = accelerator.prepare(torch.nn.Linear(1, 1))
    accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))
    with pytest.warns(HaltuneWarning, match=r"register_for_checkpointing as pickles.*keeps training"):
        for _ in (loop := AcceleratedLoop(trial, accelerator)):
            if loop.report(net.weight.item()):
                break
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)


@pytest.mark.usefixtures("handlers")
def test_a_state_that_is_not_whole_is_not_saved_where_the_program_leaves_its_loop_after_ctrl_c():
    study = pausing_study(at=(), verbose=0)
    warned = pytest.warns(HaltuneWarning, match="register_for_checkpointing as pickles")
    with pytest.raises(KeyboardInterrupt), warned, study.ask() as trial:
        accelerator = Accelerator(cpu=True)
        accelerator.prepare(torch.nn.Linear(1, 1))
        accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))
        for _ in (loop := AcceleratedLoop(trial, accelerator)):
            os.kill(os.getpid(), signal.SIGINT)
            loop.report(1.0)
            break
        signal.pause()
    assert (study.trials[0].status, study.trials[0].checkpoint) == ("interrupted", None)


@pytest.mark.usefixtures("handlers")
def test_a_final_model_is_kept_where_ctrl_c_comes_in_the_last_epoch():
    study = pausing_study(at=(), epochs=1, keep=1, verbose=0)
    with pytest.raises(KeyboardInterrupt), study.ask() as trial:
        accelerator = Accelerator(cpu=True)
        accelerator.prepare(torch.nn.Linear(1, 1))
        accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))  # a pause would be declined
        for _ in (loop := AcceleratedLoop(trial, accelerator)):
            os.kill(os.getpid(), signal.SIGINT)
            loop.report(1.0)
        signal.pause()
    assert study.best.checkpoint is not None


class Caches(torch.nn.Module):
    """It keeps what its last pass computed, 20 MB."""

    def __init__(self):
        super().__init__()
        self.layer, self.whole = torch.nn.Linear(1, 1), torch.zeros(5_000_000, 1)

    def forward(self, x):
        y = self.layer(x)
        if self.training:
            self.whole = y.detach().expand(5_000_000, 1).clone()
        return y


class Reads(Caches):
    def forward(self, x):
        return super().forward(x + self.whole.mean())


class Around(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Caches()

    def forward(self, x):
        return self.inner(x + self.inner.whole.mean())


class SetsFirst(Caches):
    def forward(self, x):
        self.whole = self.layer(x).expand(5_000_000, 1).detach().clone()
        return self.layer(x) + self.whole.mean()


@pytest.mark.parametrize(("kind", "pauses"), [(Caches, True), (SetsFirst, True), (Reads, False), (Around, False)])
def test_activations_that_a_module_keeps_do_not_hinder_a_pause_unless_a_next_pass_reads_them(kind, pauses):
    def run(trial):
        accelerator, net = Accelerator(cpu=True), kind()
        net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
        for _ in (loop := AcceleratedLoop(trial, accelerator)):
            loss = net(torch.ones(1, 1)).pow(2).mean()
            accelerator.backward(loss)
            sgd.step()
            sgd.zero_grad()
            loop.report(loss.item())

    trial = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE})
    with nullcontext() if pauses else pytest.warns(HaltuneWarning, match="whole changes .* delete it at the end"):
        run(trial)
    assert (trial.declined, trial.epochs) == ((0, [1, 2]) if pauses else (1, [1, 2, 3]))


def test_a_training_is_not_paused_while_gradients_of_accumulated_batches_wait():
    trial = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE})

    accelerator = Accelerator(
        cpu=True, gradient_accumulation_plugin=GradientAccumulationPlugin(4, sync_with_dataloader=False)
    )
    net, loader = torch.nn.Linear(1, 1), torch.utils.data.DataLoader(torch.rand(3, 1))
    net, sgd, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    with pytest.warns(HaltuneWarning, match=r"accumulated batches wait.*sync_gradients is True.*keeps training"):
        for epoch in (loop := AcceleratedLoop(trial, accelerator)):
            for x in loader:
                with accelerator.accumulate(net):
                    accelerator.backward(net(x).pow(2).mean())
                    sgd.step()
                    sgd.zero_grad()
            loop.report(1 / epoch)
    GradientState._reset_state()  # of the process, not of the Accelerator
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)


def test_large_data_of_a_second_model_that_do_not_change_do_not_keep_it_from_a_pause():
    class Net(torch.nn.Linear):
        def __init__(self):
            super().__init__(1, 1)
            self.table = np.random.default_rng().random(3 << 20)  # 24 MB

    trial, accelerator = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE}), Accelerator(cpu=True)
    accelerator.prepare(Net(), Net())
    for epoch in (loop := AcceleratedLoop(trial, accelerator)):
        loop.report(1 / epoch)
    assert (trial.epochs, trial.declined) == ([1, 2], 0)


def test_a_training_under_deepspeed_without_zero_is_not_paused(monkeypatch):
    trial = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE})

    def shards(accelerator):  # DeepSpeed itself is not installed where tests run
        monkeypatch.setattr(Accelerator, "distributed_type", property(lambda self: DistributedType.DEEPSPEED))
        monkeypatch.setattr(Accelerator, "backward", lambda self, loss: loss.backward())

    with pytest.warns(HaltuneWarning, match=r"whole state of ZeRO 1, 2 and 3 only.*keeps training"):
        train(trial, before=shards)
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)


def test_a_training_under_fsdp_is_not_paused_where_its_checkpoint_would_lack_the_count_of_its_optimizer(monkeypatch):
    trial = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE})

    def counts(accelerator):  # as MADGRAD does; on CPUs Accelerate does not choose FSDP
        accelerator._optimizers[0].state["k"] = torch.tensor([0])
        monkeypatch.setattr(Accelerator, "distributed_type", property(lambda self: DistributedType.FSDP))

    with pytest.warns(HaltuneWarning, match=r"because SGD has a state that belongs to no weight.*keeps training"):
        train(trial, before=counts)
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)


@pytest.mark.parametrize(
    "makes",
    [
        lambda accelerator: torch.optim.swa_utils.AveragedModel(accelerator._models[0]),
        lambda accelerator: torch.optim.lr_scheduler.ExponentialLR(accelerator._optimizers[0].optimizer, 0.9),
    ],
    ids=["average", "schedule"],
)
def test_an_average_and_a_schedule_that_were_not_prepared_are_not_paused_and_the_warning_names_them(makes):
    trial = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"follower changes in training.*prepare it, too.*keeps training"):
        train(trial, before=makes)
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_weight_of_no_model_is_not_paused_unless_hooks_of_the_accelerator_save_it(hooked):
    trial = FakeTrial(max_epochs=3, verdicts={2.0: PAUSE})
    accelerator, net = Accelerator(cpu=True), torch.nn.Linear(1, 1)
    temperature = torch.nn.Parameter(torch.ones(1))
    net, sgd = accelerator.prepare(net, torch.optim.SGD([*net.parameters(), temperature], 0.1))
    if hooked:
        accelerator.register_save_state_pre_hook(lambda _, __, folder: torch.save(temperature, f"{folder}/t.pt"))
        accelerator.register_load_state_pre_hook(lambda _, folder: temperature.data.copy_(torch.load(f"{folder}/t.pt")))
    said = pytest.warns(HaltuneWarning, match=r"weights outside the models, as a temperature.*keeps training")
    with nullcontext() if hooked else said:
        for epoch in (loop := AcceleratedLoop(trial, accelerator)):
            accelerator.backward((temperature * net(torch.ones(1, 1))).pow(2).mean())
            sgd.step()
            sgd.zero_grad()
            loop.report(1 / epoch)
    assert (trial.epochs, trial.declined) == (([1, 2], 0) if hooked else ([1, 2, 3], 1))


class Average:
    """An average of the weights that is no module: Diffusers and torch_ema have one."""

    def __init__(self, net):
        self.averages = [weight.detach().clone() for weight in net.parameters()]

    def update(self, net):
        for average, weight in zip(self.averages, net.parameters(), strict=True):
            average.lerp_(weight.detach(), 0.3)

    def value(self, net, x):
        """The metric of the average, for which it takes the place of the weights."""
        own = [weight.detach().clone() for weight in net.parameters()]
        for weights in (self.averages, own):
            for weight, other in zip(net.parameters(), weights, strict=True):
                weight.data.copy_(other)
            if weights is self.averages:
                value = net(x).pow(2).mean().item()
        return value

    def state_dict(self):
        return {"averages": self.averages}

    def load_state_dict(self, state):
        for average, saved in zip(self.averages, state["averages"], strict=True):
            average.copy_(saved)


class Shadows:
    """An average without a state_dict, as many programs have it."""

    def __init__(self, net):
        self.shadow = {name: weight.detach().clone() for name, weight in net.named_parameters()}

    def update(self, net):
        for name, weight in net.named_parameters():
            self.shadow[name] = 0.7 * self.shadow[name] + 0.3 * weight.detach()


def test_an_average_without_a_state_is_neither_paused_nor_left_out_of_the_kept_model():
    def averages(trial):
        accelerator, x = Accelerator(cpu=True), torch.ones(4, 3)
        ema = Shadows(torch.nn.Linear(3, 1))
        net = torch.nn.Linear(3, 1)
        net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
        for _ in (loop := AcceleratedLoop(trial, accelerator)):
            accelerator.backward(net(x).pow(2).mean())
            sgd.step()
            ema.update(net)
            loop.report(float(ema.shadow["weight"].sum()))

    how = "ema changes in training.*save and load it in accelerator.register_save_state_pre_hook and "
    with pytest.warns(HaltuneWarning, match=how):
        averages(trial := FakeTrial(max_epochs=3, verdicts={2.0: PAUSE}))
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)
    study = pausing_study(at=(), keep=1, verbose=0)
    with pytest.warns(HaltuneWarning, match=how), study.ask() as trial:
        averages(trial)


class Counted:
    """A metric with a state_dict, as of torcheval."""

    def __init__(self):
        self.total = torch.zeros(())

    def state_dict(self):
        return {"total": self.total}


class Hooks:
    """A trainer with two averages, whose hooks save and load the first."""

    def __init__(self, saved, average):
        self.saved, self.average = saved, average

    def save(self, models, weights, folder):
        self._write([weights.pop(), self.saved.state_dict()], folder)

    def load(self, models, folder):
        of_net, of_average = torch.load(f"{folder}/hooks.pt")
        models.pop().load_state_dict(of_net)
        self.saved.load_state_dict(of_average)

    def registers(self, accelerator):
        accelerator.register_save_state_pre_hook(lambda *given: self.save(*given))
        accelerator.register_load_state_pre_hook(lambda *given: self.load(*given))

    def _write(self, states, folder):
        torch.save(states, f"{folder}/hooks.pt")


def averaged(trial, hooks="average", others=()):
    """Train, and report the value of the average. hooks: what Accelerate's save and load; None: it has none."""

    def save(models, weights, folder):  # as the programs of Diffusers do
        torch.save([weights.pop(), saved.state_dict()], f"{folder}/{hooks}.pt")

    def load(models, folder):
        of_net, of_average = torch.load(f"{folder}/{hooks}.pt")
        models.pop().load_state_dict(of_net)
        saved.load_state_dict(of_average)

    accelerator, x = Accelerator(cpu=True), torch.ones(4, 3)
    net = torch.nn.Linear(3, 1)
    average, metric = Average(net), Counted()
    saved = average if hooks == "average" else Average(net)
    net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    if "functions" in others:
        Hooks(saved, average).registers(accelerator)
    elif "methods" in others:
        accelerator.register_save_state_pre_hook(Hooks(saved, average).save)
        accelerator.register_load_state_pre_hook(Hooks(saved, average).load)
    elif hooks is not None:
        accelerator.register_save_state_pre_hook(save)
        accelerator.register_load_state_pre_hook(load)
    for _ in (loop := AcceleratedLoop(trial, accelerator)):
        accelerator.backward(net(x).pow(2).mean())
        sgd.step()
        sgd.zero_grad()
        if "metric" in others:
            metric.total += 1
        else:
            average.update(net)
        loop.report(average.value(net, x))
    return {"net": net, "averages": average.averages}


@pytest.mark.parametrize("others", [(), ("methods",), ("functions",)])
def test_an_average_that_is_no_module_resumes_exactly_by_hooks_of_the_accelerator(others):
    assert check_resume(lambda trial: averaged(trial, others=others))


@pytest.mark.parametrize(
    ("hooks", "others"), [(None, ()), ("another", ()), ("another", ("methods",)), ("another", ("functions",))]
)
def test_an_average_that_no_hook_saves_is_neither_paused_nor_left_out_of_the_kept_model(hooks, others):
    how = "average changes in training.*save and load it in accelerator.register_save_state_pre_hook and "
    with pytest.warns(HaltuneWarning, match=how):
        averaged(trial := FakeTrial(max_epochs=3, verdicts={2.0: PAUSE}), hooks, others)
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)
    study = pausing_study(at=(), keep=1, verbose=0)
    with pytest.warns(HaltuneWarning, match=how), study.ask() as trial:
        averaged(trial, hooks, others)
    assert study.best.checkpoint is None


def test_a_kept_model_has_the_average_that_a_hook_saves_and_a_metric_with_a_state_does_not_count():
    kept = []
    for options in ({}, {"hooks": None, "others": ("metric",)}):
        study = pausing_study(at=(), keep=1, verbose=0)
        with study.ask() as trial:
            averaged(trial, **options)
        kept.append({path.name for path in Path(study.best.checkpoint).iterdir()})
    assert "average.pt" in kept[0]


class Slows:
    """It lowers the learning rate by a number of NumPy."""

    def __init__(self, accelerator):
        self.optimizer = accelerator._optimizers[0]

    def step(self):
        for group in self.optimizer.param_groups:
            group["lr"] *= np.float64(0.99)


def test_rates_that_are_numbers_of_numpy_resume():
    (one, straight), (other, resumed) = (searched(None, at, before=Slows) for at in ((), (2, 3)))
    assert (one.trials[0].attempt, other.trials[0].attempt) == (1, 3)
    assert one.trials[0].values.tolist() == other.trials[0].values.tolist()
    assert straight == resumed


def test_a_sampler_that_draws_the_random_numbers_of_the_model_within_a_pass_is_not_paused_there():
    draws = torch.utils.data.RandomSampler(range(24), True, 80, torch.default_generator)  # 32 at a time
    trial = FakeTrial(max_epochs=12, verdicts={10.0: PAUSE})
    trial.unit = "step"
    with pytest.warns(HaltuneWarning, match=r"sampler draws random numbers within a pass.*keeps training"):
        train(trial, sampler=draws)
    assert (trial.epochs[-1], trial.declined) == (12, 1)


@pytest.mark.parametrize(
    ("sampler", "unit", "at"), [(Shuffling, "epoch", (2, 3)), (Numbered, "epoch", (2,)), (Numbered, "step", (8,))]
)
def test_the_order_of_a_sampler_of_a_library_resumes(sampler, unit, at, tmp_path):
    length = {"epoch": 5, "step": 14}[unit]
    straight = searched(tmp_path / "straight.db", (), length, unit, sampler=sampler)
    paused = searched(tmp_path / "paused.db", at, length, unit, sampler=sampler)
    assert (paused[0].trials[0].attempt, paused[1]) == (1 + len(at), straight[1])


def test_a_sampler_whose_weights_another_trial_has_changed_is_warned_of(tmp_path):
    shared = torch.utils.data.WeightedRandomSampler(torch.ones(24), 24)

    def during(epoch):
        shared.weights = shared.weights * torch.linspace(1.0, 0.5, 24)

    text = "WeightedRandomSampler has been in another training, which changed its weights"
    with pytest.warns(HaltuneWarning, match=text) as said:
        for trial in pausing_study(f"{tmp_path}/s.db", at=(), epochs=2, trials=3, verbose=0):
            with trial:
                train(trial, sampler=shared, during=during)
    assert sum(text in str(one.message) for one in said) == 1


def test_a_sampler_of_a_library_that_shuffles_in_place_is_not_paused_within_a_pass():
    trial = FakeTrial(max_epochs=12, verdicts={10.0: PAUSE})
    trial.unit = "step"
    with pytest.warns(HaltuneWarning, match=r"samplers change while they are read.*keeps training"):
        train(trial, sampler=Shuffling)
    assert (trial.epochs[-1], trial.declined) == (12, 1)


def test_an_accelerator_that_holds_the_model_of_another_trial_is_refused():
    accelerator = Accelerator(cpu=True)
    study = pausing_study(at=(), trials=3, verbose=0)
    with study.ask() as trial:
        train(trial, accelerator=accelerator)
    with study.ask() as trial, pytest.raises(InvalidInput, match=r"model of trial 0.*free_memory\(\)"):
        train(trial, accelerator=accelerator)
    accelerator.free_memory()
    with study.ask() as trial:
        train(trial, accelerator=accelerator)


def test_an_accelerator_that_holds_the_model_of_another_fold_is_refused():
    with pausing_study(at=(), verbose=0).ask() as trial:
        accelerator, folds = Accelerator(cpu=True), trial.folds(2)
        for fold in folds:
            net = accelerator.prepare(torch.nn.Linear(1, 1))
            if fold.index:
                with pytest.raises(InvalidInput, match=r"model of fold 0\. Make an Accelerator for each fold"):
                    next(iter(AcceleratedLoop(fold, accelerator)))
                accelerator.free_memory()
                net = accelerator.prepare(torch.nn.Linear(1, 1))
            for _ in (loop := AcceleratedLoop(fold, accelerator)):
                loop.report(net.weight.item())


def test_numbers_of_the_program_that_begin_again_in_a_resumed_trial_are_named(caplog):
    caplog.set_level("INFO", "haltune")
    for trial in pausing_study(at=(2,)):
        with trial:
            accelerator, bad = Accelerator(cpu=True), 0
            accelerator.prepare(torch.nn.Linear(1, 1))
            for _ in (loop := AcceleratedLoop(trial, accelerator)):
                bad = 2 * bad + 1
                loop.report(bad)
    assert [m for m in caplog.messages if "with bad = 0 (3 where it paused), as at its start" in m]


def test_data_that_cannot_be_put_back_are_said_when_the_trial_resumes():
    class Rows(torch.utils.data.Dataset):
        order = None

        def __len__(self):
            return 2

        def __getitem__(self, i):
            self.order = self.order or Order()
            self.order.taken += 1
            return torch.ones(1)

    class Order:
        taken = 0

    with pytest.warns(HaltuneWarning, match="has resumed, but dataset.order could not be restored"):
        for trial in pausing_study(at=(1,), epochs=2, verbose=0):
            with trial:
                accelerator, rows = Accelerator(cpu=True), Rows()
                rows.order = None
                _, loader = accelerator.prepare(torch.nn.Linear(1, 1), torch.utils.data.DataLoader(rows))
                for _ in (loop := AcceleratedLoop(trial, accelerator)):
                    loop.report(len([*loader]))


def test_an_accelerator_that_names_its_checkpoints_itself_is_refused(tmp_path):
    naming = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
    with pytest.raises(NotSupported, match="without automatic_checkpoint_naming"):
        AcceleratedLoop(FakeTrial(), Accelerator(cpu=True, project_config=naming))


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (
            '{"processes": 2, "random": {}, "loaders": [], "models": [], "modules": {}, "data": {}}',
            NotSupported,
            "on 2 ranks.*nproc_per_node 2",
        ),
        ("{}", InvalidInput, "damaged"),
    ],
)
def test_a_checkpoint_of_other_processes_and_a_damaged_one_say_what_to_do(text, error, said, tmp_path):
    study = pausing_study(tmp_path / "search.db", verbose=0)
    with study.ask() as trial:
        train(trial)
    trial = study.ask()
    Path(trial.checkpoint, "haltune_0.json").write_text(text)
    with pytest.raises(error, match=said):
        train(trial)


@pytest.mark.slow
def test_two_processes_stop_pause_and_resume_together_digit_for_digit(tmp_path):
    """By torchrun, as accelerate launch starts them on GPUs; on CPUs it needs MPI."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(SUPPORT / "accelerated.py"), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    (once, *straight), (attempts, *paused) = first["straight"], first["paused"]
    assert (once, attempts, first["processes"]) == (1, 3, 2)
    assert straight == paused
    assert first["alone"] == first["paused"]  # the first process alone reports, and the others wait for it
    assert first["average"] == first["straight"]  # of weights, in the first process alone: it does not pause
    assert first["checkpoint"] == [
        "haltune_0.json", "haltune_1.json", "model.safetensors", "optimizer.bin", "random_states_0.pkl",
        "random_states_1.pkl", "scheduler.bin",
    ]  # fmt: skip


def test_a_state_of_another_trial_that_the_program_loaded_is_refused(tmp_path):
    study = pausing_study(tmp_path / "search.db", at=(2,), trials=2, verbose=0)

    def load(accelerator):
        if (tmp_path / "shared").exists():
            accelerator.load_state(tmp_path / "shared")

    accelerator = Accelerator(cpu=True)
    with study.ask() as trial:
        train(trial, accelerator=accelerator, during=lambda _: accelerator.save_state(tmp_path / "shared"))
    other = next(trial for trial in iter(study.ask, None) if trial.id == 1)
    with pytest.raises(NotSupported, match=r"trial 1 loaded a state of trial 0.*leave out accelerator.load_state"):
        train(other, before=load)


class Noise(torch.nn.Module):
    """Adds noise from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.numbers = torch.Generator().manual_seed(1)

    def forward(self, x):
        return x + torch.randn(x.shape, generator=self.numbers)


@pytest.mark.parametrize("kind", ["accelerate", "sharded", "by hand"])
def test_generators_of_modules_and_variables_continue_in_loops_of_ones_own(kind):
    def run(trial):
        accelerator, rng = Accelerator(cpu=True), np.random.default_rng(2)
        net = torch.nn.Sequential(torch.nn.Linear(1, 1), Noise())
        net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
        loop = {
            "accelerate": lambda: AcceleratedLoop(trial, accelerator),
            "sharded": lambda: ShardedLoop(trial, net, sgd),
        }
        if kind == "by hand":
            if trial.checkpoint:
                accelerator.load_state(trial.checkpoint)
            loop, report = trial.epochs(), trial.report
        else:
            loop = loop[kind]()
            report = loop.report
        for _ in loop:
            loss = net(torch.tensor([[rng.random()]], dtype=torch.float32)).square().mean()
            accelerator.backward(loss)
            sgd.step()
            sgd.zero_grad()
            report(loss.item())
            if kind == "by hand":
                trial.save(accelerator.save_state, ".accelerate")
        return net

    assert check_resume(run, goal=Minimize("loss"))


def test_a_model_whose_prepared_average_changes_after_its_report_is_kept():
    study = pausing_study(at=(2,), metric=Minimize("val_loss"), keep=1, verbose=0)
    for trial in study:
        with trial:
            accelerator = Accelerator(cpu=True)
            net = torch.nn.Linear(3, 1)
            average = torch.optim.swa_utils.AveragedModel(net)
            net, average, sgd = accelerator.prepare(net, average, torch.optim.SGD(net.parameters(), 0.1))
            for epoch in (loop := AcceleratedLoop(trial, accelerator)):
                accelerator.backward(net(torch.ones(4, 3)).pow(2).mean())
                sgd.step()
                sgd.zero_grad()
                loop.report(1.0 / epoch)
                average.update_parameters(net)
    assert study.trials[0].attempt == 2
    assert study.best.checkpoint is not None


@pytest.mark.parametrize("of", ["best", "last"])
def test_a_model_that_trains_after_its_report_is_kept_as_it_was_there(of):
    study = pausing_study(at=(2,), metric=Minimize("val_loss", of=of), keep=1, verbose=0)
    for trial in study:
        with trial:
            accelerator = Accelerator(cpu=True)
            net = torch.nn.Linear(3, 1)
            net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
            for _ in (loop := AcceleratedLoop(trial, accelerator)):
                loop.report(net.weight.sum().item())
                accelerator.backward(net(torch.ones(4, 3)).pow(2).mean())
                sgd.step()
                sgd.zero_grad()
    assert study.trials[0].attempt == 2
    assert load_file(Path(study.best.checkpoint, "model.safetensors"))["weight"].sum().item() == study.best.value


class Masks:
    """A collator that masks rows by a generator that it makes at its first batch, as that of transformers."""

    __module__ = "torch.utils.data"  # not of the program, whose attributes are saved by themselves

    def __init__(self):
        self.seed, self.generator = 5, None

    def create_rng(self):
        self.generator = torch.Generator().manual_seed(self.seed)

    def __call__(self, rows):
        if self.generator is None:
            self.create_rng()
        x = torch.stack(rows)
        return x * (torch.rand(x.shape, generator=self.generator) < 0.8)


def test_a_generator_that_a_collator_makes_at_its_first_batch_continues():
    rows = [*torch.randn(16, 3, generator=torch.Generator().manual_seed(0))]
    records = []
    for at in ((), (1, 2)):
        s = pausing_study(at=at, verbose=0)
        for trial in s:
            with trial:
                torch.manual_seed(0)
                accelerator, net = Accelerator(cpu=True), torch.nn.Linear(3, 1)
                loader = torch.utils.data.DataLoader(rows, 4, shuffle=True, collate_fn=Masks())
                net, sgd, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.05), loader)
                for _ in (loop := AcceleratedLoop(trial, accelerator)):
                    total = 0.0
                    for x in loader:
                        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
                        accelerator.backward(loss)
                        sgd.step()
                        sgd.zero_grad()
                        total += loss.item()
                    loop.report(total)
        records.append(s.trials[0])
    straight, paused = records
    assert (straight.attempt, paused.attempt) == (1, 3)
    assert [*straight.values] == [*paused.values]
