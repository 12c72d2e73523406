"""The truths about trainings, for programs of the Trainer of Hugging Face that are drawn at random.

A program is right by itself: what its callbacks and its Trainer change is in their attributes. haltune resumes it digit
for digit, or it does not pause and says why; see support/zoo.py for the truths.
"""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path
from typing import Any

import pytest
import zoo

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments  # noqa: E402
from transformers_nets import Stream, rows  # noqa: E402

from haltune import Float, Minimize  # noqa: E402
from haltune.callbacks.transformers import HaltuneCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS, BATCH, EPOCHS, STEPS = 15, 4, 4, 16  # the last batch is smaller


class Net(torch.nn.Module):
    """Its batches count, in a buffer that is not saved and in a number."""

    def __init__(self, dropout: float, counts: bool) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(dropout), torch.nn.Linear(4, 1))
        self.counts, self.seen = counts, 0
        self.register_buffer("batches", torch.zeros(()), persistent=False)

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        out = self.layers(x).squeeze(-1)
        if self.training and self.counts:
            self.seen, self.batches = self.seen + 1, self.batches + 1
            out = out * (1 + 0.01 * self.seen) + 0.01 * self.batches
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


class Noisy(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        row = rows(ROWS)[index]
        return {**row, "x": row["x"] + 0.1 * torch.randn(3)}


class Shuffled(Stream):
    def __iter__(self) -> Any:
        yield from (self.rows[i] for i in torch.randperm(len(self.rows)))


class Changes(TrainerCallback):
    """It changes the training at one hook, by a count and a generator of its own."""

    def __init__(self, hook: str, what: str) -> None:
        self.count, self.drawn, self.what = 0, torch.Generator().manual_seed(3), what
        self.average: Any = {} if what == "average" else None
        setattr(self, hook, self.change)

    def change(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **others: Any
    ) -> None:
        self.count += 1
        weights = dict(model.named_parameters())
        with torch.no_grad():
            if self.what == "rate":
                for group in optimizer.param_groups:
                    group["lr"] *= 0.95
            elif self.what == "flags":
                model.layers[0].requires_grad_(self.count % 2 == 0)
            elif self.what == "dropout":
                model.layers[1].p = 0.5 / self.count
            elif self.what == "end":
                control.should_training_stop |= state.epoch >= EPOCHS - 1
            elif self.what == "model":  # which is not plain data
                self.average = copy.deepcopy(model)
            elif self.what == "average":
                for name, weight in weights.items():
                    mean = self.average.setdefault(name, weight.clone())
                    weight.lerp_(mean.lerp_(weight, 0.5), 0.1)
            else:
                by = torch.randn((), generator=self.drawn) if self.what == "own noise" else random.random()
                for weight in weights.values():
                    weight += 0.01 * by


class Cooling(Trainer):
    """Its loss is weighed by a number of its own."""

    heat = 2.0

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **others)
        if model.training:
            self.heat *= 0.95
            loss = loss * self.heat
        return (loss, outputs) if return_outputs else loss


def program(seed: int) -> zoo.Program:
    drawn = random.Random(seed)
    data = drawn.choice(["list", "list", "list", "noisy", "stream", "shuffled stream", "worker"])
    unit = "step" if "stream" in data else drawn.choice(["epoch", "epoch", "step"])
    kind, length = drawn.choice([Trainer, Trainer, Cooling]), EPOCHS if unit == "epoch" else STEPS
    dropout, counts, ends = drawn.choice([0.0, 0.3]), drawn.random() < 0.2, drawn.random() < 0.15
    every = drawn.choice([2, 3, 4, 5])
    options: dict[str, Any] = {
        "eval_strategy": "steps", "eval_steps": every, "save_strategy": drawn.choice(["no", "no", "epoch", "steps"]),
        "gradient_accumulation_steps": drawn.choice([1, 1, 2, 3]), "max_grad_norm": drawn.choice([0.0, 0.1]),
        "lr_scheduler_type": drawn.choice(["constant", "linear", "cosine", "reduce_lr_on_plateau", "inverse_sqrt"]),
        "optim": drawn.choice(["adamw_torch", "sgd", "adafactor", "rmsprop"]), "seed": drawn.choice([1, 42]),
        "logging_strategy": drawn.choice(["no", "epoch"]), "dataloader_num_workers": int(data == "worker"),
    }  # fmt: skip
    if unit == "epoch" and drawn.random() < 0.5:
        options["eval_strategy"] = "epoch"
    if drawn.random() < 0.3:
        options |= {"load_best_model_at_end": True, "save_steps": every, "save_strategy": options["eval_strategy"]}
    if options["lr_scheduler_type"] in ("linear", "cosine"):
        options["warmup_steps"] = drawn.choice([0, 3])
    hooks = ["on_epoch_begin", "on_epoch_end", "on_step_begin", "on_step_end", "on_evaluate"]
    what = ["rate", "flags", "dropout", "end", "model", "average", "own noise", "noise"]
    changes = [(drawn.choice(hooks), drawn.choice(what)) for _ in range(drawn.choice([0, 1, 1, 2]))]
    place, of_best = drawn.random(), drawn.random() < 0.5
    pauses = sorted(drawn.sample(range(1, EPOCHS), 2) if unit == "epoch" else drawn.sample(range(2, STEPS - 2), 2))

    def search(study: Any) -> None:
        for trial in study:
            with trial:
                callbacks: list[Any] = [Changes(*change) for change in changes]
                if ends and options.get("load_best_model_at_end"):
                    callbacks.append(EarlyStoppingCallback(2))
                callbacks.insert(int(place * (len(callbacks) + 1)), HaltuneCallback(trial))
                long = {"num_train_epochs": length} if unit == "epoch" else {"max_steps": length}
                arguments = TrainingArguments(
                    f"runs/{trial.id}", per_device_train_batch_size=BATCH, report_to="none", disable_tqdm=True,
                    use_cpu=True, **long, **options, **trial.config,
                )  # fmt: skip
                streams = {"stream": Stream, "shuffled stream": Shuffled}
                train = streams[data](ROWS) if data in streams else Noisy() if data == "noisy" else rows(ROWS)
                trainer = kind(
                    Net(dropout, counts), arguments, train_dataset=train, eval_dataset=rows(8, 1), callbacks=callbacks
                )
                trainer.train(resume_from_checkpoint=trial.checkpoint)

    def evaluate(path: str, config: Any) -> float:
        from safetensors.torch import load_file

        net = Net(dropout, counts).eval()
        net.load_state_dict(load_file(Path(path, "model.safetensors")))
        held_out = rows(8, 1)
        with torch.no_grad():
            return float(
                net(torch.stack([r["x"] for r in held_out]), torch.stack([r["labels"] for r in held_out]))["loss"]
            )

    def updates(position: float) -> float:
        if unit == "step":
            return position
        batches, accumulates = math.ceil(ROWS / BATCH), options["gradient_accumulation_steps"]
        whole, within = divmod(round(position * batches), batches)
        return whole * math.ceil(batches / accumulates) + math.ceil(within / accumulates)

    declared = zoo.Declaration(
        [], space={"learning_rate": Float(1e-4, 0.1, log=True)}, goal=Minimize("eval_loss"), max_epochs=length,
        unit=unit, trials=[{"learning_rate": 0.01}, {"learning_rate": 0.03}], pauses=pauses, updates=updates,
        best_epoch=of_best,
    )  # fmt: skip
    return zoo.Program(f"trainer {seed}", search, evaluate, declared)


QUICK = (8,)  # with changes at the start of an epoch, where a trial paused


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in range(40)])
def test_a_trainer_resumes_digit_for_digit_or_does_not_pause(seed: int) -> None:
    runs = zoo.train_all(program(seed))
    zoo.own(runs)
    updates: Any = runs.straight.declared.updates
    straight, paused = runs.straight.sound(), runs.paused.sound()
    assert repr(paused.curves) == repr(straight.curves)  # with NaN
    assert paused.weights == straight.weights
    for ran in (straight, paused):
        value, kept = ran.best or (None, None)
        assert kept is None or kept == pytest.approx(value, rel=1e-5)
        for (id, attempt), reports in ran.watch.reported.items():
            began = updates(ran.watch.begins[id, attempt])
            assert [made for _, made in reports] == [updates(at) - began for at, _ in reports]
    unpaused = [t.id for t in paused.trials if t.attempt == 1 and t.epoch > paused.declared.pauses[0]]
    assert not unpaused or any("cannot be paused" in line for line in paused.lines), paused.lines
