"""One-epoch training of a tiny language model: steps saved at the same best loss, by haltune and by Optuna.

    python benchmarks/search/one_epoch.py [--seeds 5] [--trials 20] [--method haltune optuna full] [--processes 2]

A transformer of two layers, made from a configuration alone, learns the characters of this project's own pages: one
pass of 200 steps, evaluated every 10 on text kept aside. The space has learning rate, weight decay, warm-up, beta2 and
dropout; the learning rate decays to 0 over the 200 steps. `full` trains the same number of random configurations to the
end; `haltune` is a Study without a policy and max_steps=200; `optuna` is its TPE with MedianPruner and
interval_steps=10. The output has the mean best loss at the end of a training, its standard error over seeds, and the
share of the steps of full trainings that were saved. Settings were not tuned on it. Needs the extras transformers and
optuna.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import logging
import math
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

STEPS, EVERY, LENGTH, BATCH = 200, 10, 48, 8
ROOT = Path(__file__).parents[2]
Config = dict[str, Any]


def pages() -> np.ndarray:
    """(n,) the characters of the project's pages as numbers below 128."""
    text = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.md")))
    return np.frombuffer(text.encode("ascii", "ignore"), dtype=np.uint8).astype(np.int64)


class Training:
    """A model and its optimiser; all randomness from a seed."""

    def __init__(self, config: Config, seed: int) -> None:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.torch, self.config, self.step = torch, config, 0
        text = torch.from_numpy(pages())
        cut = 9 * len(text) // 10
        self.text, self.aside = text[:cut], text[cut:]
        drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config["dropout"])
        shape = GPT2Config(vocab_size=128, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, **drop)
        self.model = GPT2LMHeadModel(shape)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), config["lr"], betas=(0.9, config["beta2"]), weight_decay=config["decay"]
        )
        self.draws = np.random.default_rng(seed)
        self.held = np.random.default_rng(0).integers(0, len(self.aside) - LENGTH, 48)

    def batch(self, text: Any, starts: Any) -> Any:
        return self.torch.stack([text[s : s + LENGTH] for s in starts])

    def train(self) -> float:
        """Train to the next evaluation; return the loss on the text kept aside."""
        self.model.train()
        for _ in range(EVERY):
            self.step += 1
            warm = max(1.0, self.config["warmup"] * STEPS)
            share = min(self.step / warm, 0.5 + 0.5 * math.cos(math.pi * self.step / STEPS))
            for group in self.optimizer.param_groups:
                group["lr"] = self.config["lr"] * share
            x = self.batch(self.text, self.draws.integers(0, len(self.text) - LENGTH, BATCH))
            loss = self.model(input_ids=x, labels=x).loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.model.eval()
        with self.torch.no_grad():
            x = self.batch(self.aside, self.held)
            return float(self.model(input_ids=x, labels=x).loss)

    def save(self, path: Path) -> None:
        """The state after the last step."""
        random = (self.draws.bit_generator.state, self.torch.get_rng_state())
        self.torch.save((self.model.state_dict(), self.optimizer.state_dict(), *random, self.step), path)

    def load(self, path: str) -> None:
        model, optimizer, draws, drop, self.step = self.torch.load(path, weights_only=False)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.draws.bit_generator.state = draws
        self.torch.set_rng_state(drop)


def haltune(seed: int, trials: int, policy: Any = None) -> tuple[float, int]:
    """The best loss at the end of a training, and the steps that were trained."""
    from haltune import Float, Minimize, Study

    space = {
        "lr": Float(1e-4, 1e-1, log=True), "decay": Float(1e-4, 1.0, log=True), "warmup": Float(0.0, 0.3),
        "beta2": Float(0.9, 0.999), "dropout": Float(0.0, 0.4),
    }  # fmt: skip
    study = Study(
        space, Minimize("loss"), max_steps=STEPS, budget=f"{trials} trials", seed=seed, verbose=0, policy=policy
    )
    for trial in study:
        with trial:
            training = Training(trial.config, 1000 * seed + trial.id)
            if trial.checkpoint:
                training.load(trial.checkpoint)
            while training.step < STEPS:
                verdict = trial.report(training.train(), step=training.step)
                if verdict.resumable:
                    trial.save(training.save)
                if verdict.stops:
                    break
    ends = [float(t.values[-1]) for t in study.trials if t.epoch >= STEPS]
    return min(ends), int(study.history.spent.epochs)


def full(seed: int, trials: int) -> tuple[float, int]:
    """Train as many random configurations in full."""
    from haltune.policies import RandomSearch

    return haltune(seed, trials, RandomSearch())


def optuna(seed: int, trials: int) -> tuple[float, int]:
    """The same by Optuna."""
    import optuna as peer

    peer.logging.set_verbosity(peer.logging.ERROR)
    steps = 0

    def objective(trial: Any) -> float:
        nonlocal steps
        config = {
            "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
            "decay": trial.suggest_float("decay", 1e-4, 1.0, log=True),
            "warmup": trial.suggest_float("warmup", 0.0, 0.3),
            "beta2": trial.suggest_float("beta2", 0.9, 0.999),
            "dropout": trial.suggest_float("dropout", 0.0, 0.4),
        }
        training = Training(config, 1000 * seed + trial.number)
        while True:
            loss = training.train()
            steps += EVERY
            if training.step >= STEPS:
                return loss
            trial.report(loss, training.step)
            if trial.should_prune():
                raise peer.TrialPruned

    study = peer.create_study(
        sampler=peer.samplers.TPESampler(seed=seed),
        pruner=peer.pruners.MedianPruner(n_startup_trials=5, interval_steps=EVERY),
    )
    study.optimize(objective, n_trials=trials)
    return float(study.best_value), steps


METHODS: dict[str, Callable[[int, int], tuple[float, int]]] = {"full": full, "haltune": haltune, "optuna": optuna}


def one(method: str, seed: int, trials: int) -> tuple[float, int]:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    return METHODS[method](seed, trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    jobs = [(method, seed, args.trials) for method in args.method for seed in range(args.seeds)]
    with get_context("spawn").Pool(args.processes) as pool:
        found = np.array(pool.starmap(one, jobs, chunksize=1)).reshape(len(args.method), args.seeds, 2)
    print(f"{args.trials} trials of {STEPS} steps, {args.seeds} seeds")
    for method, rows in zip(args.method, found, strict=True):
        losses, saved = rows[:, 0], 1.0 - rows[:, 1] / (args.trials * STEPS)
        error = losses.std(ddof=1) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan
        print(f"{method:10s} best loss {losses.mean():.3f} ± {error:.3f}, {saved.mean():.0%} of the steps saved")


if __name__ == "__main__":
    main()
