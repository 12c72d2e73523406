"""Trainings that differ between devices: mixed precision, compiled models, out of memory, two workers on one device.

Each runs on the CPU and, with `make gpu`, on a CUDA device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paused_studies import pausing_study

from haltune import Float, Minimize, Study
from haltune.launch import run
from haltune.policies import RandomSearch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from haltune.callbacks import check_resume  # noqa: E402
from haltune.callbacks.loop import TrainingLoop, write_later  # noqa: E402
from haltune.callbacks.sharded import ShardedLoop  # noqa: E402

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def train(trial, device, precision=None, backend=None, background=False):
    """Train with dropout on a device; every part that changes a later step is saved."""
    torch.manual_seed(trial.attempt)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)).to(device)
    model = torch.compile(net, backend=backend) if backend else net
    adam = torch.optim.AdamW(net.parameters(), 1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**20, growth_interval=2, enabled=precision == torch.float16)
    parts = {"net": net, "adam": adam, "scaler": scaler}
    if trial.checkpoint:
        for name, state in torch.load(trial.checkpoint, map_location=device).items():
            parts[name].load_state_dict(state)

    def save(path):
        state = {name: part.state_dict() for name, part in parts.items()}
        return write_later(state, path) if background else torch.save(state, path)

    for _ in (loop := TrainingLoop(trial, save=save, background=background)):
        for _ in range(3):
            x = torch.randn(8, 3, device=device)
            with torch.autocast(device, precision, enabled=precision is not None):
                loss = torch.nn.functional.mse_loss(model(x).float(), x.sum(1, keepdim=True))
            scaler.scale(loss).backward()
            scaler.step(adam)
            scaler.update()
            adam.zero_grad()
        loop.report(loss.item())
    return {name: part.state_dict() for name, part in parts.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", [None, torch.float16, torch.bfloat16], ids=str)
def test_mixed_precision_with_a_loss_scale_resumes_digit_for_digit(device, precision):
    assert check_resume(lambda trial: train(trial, device, precision))


def test_the_generator_of_an_apple_device_continues_where_a_trial_paused(monkeypatch):
    monkeypatch.setattr(torch.mps, "device", torch.Generator(), raising=False)  # in a module it is no variable
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: torch.mps.device.get_state())
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state, device: torch.mps.device.set_state(state))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)

    def run(trial):
        torch.mps.device.manual_seed(trial.attempt)
        drawn = torch.load(trial.checkpoint) if trial.checkpoint else []
        for _ in (loop := TrainingLoop(trial, save=lambda path: torch.save(drawn, path))):
            drawn.append(torch.rand((), generator=torch.mps.device).item())
            loop.report(drawn[-1])
        return drawn

    assert check_resume(run)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "backend"), [("cpu", "aot_eager"), pytest.param("cuda", "inductor", marks=GPU)])
def test_a_compiled_model_resumes_digit_for_digit(device, backend):
    assert check_resume(lambda trial: train(trial, device, backend=backend))


@pytest.mark.slow
@pytest.mark.parametrize(("device", "backend"), [("cpu", "aot_eager"), pytest.param("cuda", "inductor", marks=GPU)])
def test_a_compiled_module_of_lightning_resumes_digit_for_digit(device, backend):
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    from haltune.callbacks.lightning import HaltuneCallback

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

        def training_step(self, batch, _):
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    def fit(trial):
        torch.manual_seed(trial.attempt)
        x = torch.arange(48.0).reshape(16, 3) / 48
        data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        shuffled, held_out = (torch.utils.data.DataLoader(data, 4, shuffle=shuffle) for shuffle in (True, False))
        trainer = lightning.Trainer(
            max_epochs=trial.max_epochs, accelerator="gpu" if device == "cuda" else "cpu", devices=1, logger=False,
            callbacks=[HaltuneCallback(trial)], enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(torch.compile(Net(), backend=backend), shuffled, held_out, ckpt_path=trial.checkpoint)
        return trainer

    assert check_resume(fit)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "backend"), [("cpu", "aot_eager"), pytest.param("cuda", "inductor", marks=GPU)])
def test_a_compiled_model_of_the_trainer_resumes_digit_for_digit(device, backend, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from haltune.callbacks.transformers import HaltuneCallback

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

        def forward(self, x, labels=None):
            found = self.net(x).squeeze(-1)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    def fit(trial):
        torch.manual_seed(trial.attempt)
        x = torch.arange(48.0).reshape(16, 3) / 48
        rows = [{"x": row, "labels": row.sum()} for row in x]
        arguments = transformers.TrainingArguments(
            str(tmp_path), num_train_epochs=trial.max_epochs, eval_strategy="epoch", save_strategy="no", report_to=[],
            use_cpu=device == "cpu", torch_compile=True, torch_compile_backend=backend, disable_tqdm=True,
        )  # fmt: skip
        callback = HaltuneCallback(trial, monitor="eval_loss")
        trainer = transformers.Trainer(Net(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
        trainer.train(resume_from_checkpoint=trial.checkpoint)
        return trainer

    assert check_resume(fit, goal=Minimize("eval_loss"))


@pytest.mark.parametrize("device", DEVICES)
def test_the_kept_model_of_a_device_is_a_copy_from_before_the_next_epoch(device):
    study = pausing_study(at=(), keep=1, verbose=0, metric=Minimize("loss", of="best"))
    with study.ask() as trial:
        last = train(trial, device, background=True)
    kept = torch.load(study.best.checkpoint)
    assert all(tensor.is_cpu for tensor in kept["net"].values())
    same = all(torch.equal(kept["net"][name], tensor.cpu()) for name, tensor in last["net"].items())
    assert same == (study.best.epoch == trial.horizon)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_a_device_without_double_precision_can_train(kind, monkeypatch):
    def refused(*args, **named):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    view = torch.Tensor.view
    monkeypatch.setattr(torch.Tensor, "double", refused)
    monkeypatch.setattr(
        torch.Tensor, "view", lambda tensor, *kind: refused() if torch.float64 in kind else view(tensor, *kind)
    )
    study = pausing_study(verbose=0)
    for trial in study:
        with trial:
            net = torch.nn.Linear(3, 3)
            net.scale = torch.nn.Parameter(torch.ones(11).to(kind), requires_grad=False)
            for epoch in (loop := ShardedLoop(trial, net, torch.optim.SGD(net.parameters(), 0.1))):
                loop.report(1 / epoch)
    assert (study.trials[0].attempt, study.trials[0].status) == (2, "completed")


@pytest.mark.parametrize("device", DEVICES)
def test_a_trial_that_runs_out_of_memory_fails_alone_and_frees_its_memory(device):
    configs = [{"size": size} for size in (0.1, 0.9, 0.2)]
    study = Study(
        {"size": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=1, policy=RandomSearch(3), seed=0, verbose=0,
        start=configs,
    )  # fmt: skip
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    for trial in study:
        with trial:
            held = torch.empty(2**20, dtype=torch.uint8, device=device)
            if trial.config["size"] > 0.5:
                held = torch.empty(2**55, dtype=torch.uint8, device=device)
            trial.report(float(held.numel() > 0))
            del held
    assert [str(t.status) for t in study.trials] == ["completed", "failed", "completed"]
    assert study.trials[1].error.startswith("out of memory")
    assert device == "cpu" or torch.cuda.memory_allocated() == before


def on_the_device(trial):
    """Train where the worker's device is."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight = torch.zeros(2, device=device, requires_grad=True)
    for _ in trial.epochs():
        loss = (weight - trial.config["lr"]).pow(2).sum()
        loss.backward()
        weight.data -= 0.1 * weight.grad
        if trial.report(loss.item(), metrics={"device": float(device == "cuda")}).stops:
            break


@pytest.mark.slow
@pytest.mark.parametrize(("device", "gpus"), [("cpu", None), pytest.param("cuda", [0], marks=GPU)])
def test_two_workers_share_one_device(tmp_path, device, gpus):
    store = tmp_path / "workers.db"
    study = Study({"lr": Float(0.1, 1.0)}, Minimize("loss"), store, max_epochs=2, policy=RandomSearch(4), verbose=0)
    assert run(study, on_the_device, workers=2, progress=False, gpus=gpus).over
    assert [t.epochs.tolist() for t in study.trials] == [[1.0, 2.0]] * 4
    used = {float(value) for t in study.trials for value in t.metrics["device"]}
    assert used == {float(device == "cuda")} or device == "cpu"


KERAS = """
import sys
import numpy as np
import keras
from haltune import Float, Study
from haltune.callbacks import check_resume
from haltune.callbacks.keras import HaltuneCallback

x = np.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)
keras.config.set_dtype_policy(sys.argv[1])


def train(trial):
    keras.utils.set_random_seed(trial.attempt)

    def make():
        layers = keras.layers
        net = keras.Sequential([keras.Input((3,)), layers.Dense(8), layers.Dropout(0.2), layers.Dense(1)])
        net.compile(keras.optimizers.Adam(0.01), "mse")
        return net

    net = trial.load_model() or make()
    epochs = {"epochs": trial.max_epochs, "initial_epoch": int(trial.epoch)}
    callbacks = [HaltuneCallback(trial, monitor="val_loss")]
    net.fit(x, x.sum(1), validation_data=(x, x.sum(1)), callbacks=callbacks, verbose=0, **epochs)
    return net


print(check_resume(train), "on", keras.ops.convert_to_tensor(x).device)
"""
KERAS_ON = [("cpu", "torch", "float32")] + [  # keras_resume_checks.py has the other twins on the CPU
    pytest.param("cuda", *case, marks=GPU)
    for case in (("torch", "float32"), ("torch", "mixed_bfloat16"), ("torch", "mixed_float16"), ("jax", "float32"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("device", "backend", "policy"), KERAS_ON)
def test_keras_resumes_digit_for_digit(device, backend, policy, tmp_path):
    for package in ("keras", backend):
        pytest.importorskip(package, reason=f"{package} is not installed")
    program = Path(tmp_path, "program.py")
    program.write_text(KERAS)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), policy], env=environment, capture_output=True, text=True,
        timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = done.stdout.lower().rpartition(" on ")[2]  # cpu, cuda:0, or JAX's TFRT_CPU_0
    if backend == "jax" and device == "cuda" and "cpu" in found:
        pytest.skip("JAX was not installed for CUDA")
    assert ("cpu" in found) == (device == "cpu"), found
