"""Frames, calls and files of haltune on its ordinary paths: a report, a question, a pause.

    python benchmarks/speed/frames.py [lightning loop ask random keras] [--policy default] [--trace lightning]

Each row is one call from outside into haltune. Only frames of the package count.

- lightning: the hook that reports the third epoch of a Lightning fit. The trial continues. SQLite.
- loop: `TrainingLoop.report` of the same epoch in a plain loop. SQLite.
- ask: `study.ask()` with a new configuration after 16 trials, where the default search uses its model. In memory.
- random: `study.ask()` of random search after 16 trials. In memory.
- keras: the hook at the end of an epoch that reports and pauses, up to the event of the checkpoint. SQLite.

Frames: from the hook to the store's `append`, both counted; the largest. Calls: of functions of haltune; a generator
that resumes counts again. Files: in which these functions are. Changes: calls whose file differs from that of the call
before. `--trace` lists the calls in order, indented by their depth.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import haltune
from haltune import Float, Int, Maximize, Problem, Space, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.policies import BOBOS, MultiFidelity, RandomSearch
from haltune.store.memory import MemoryStore
from haltune.store.sqlite import SqliteStore
from haltune.study.session import clocked

POLICIES: dict[str, Callable[[], Any]] = {"default": MultiFidelity, "random": RandomSearch, "bobos": BOBOS}
GOALS = {"lightning": (9, 90, 18), "loop": (8, 70, None), "ask": (None, 300, None), "keras": (None, 250, None)}
ROOT = Path(__file__).resolve().parents[2]
# the clock of the store and of the process: on a slow machine, decisions are claimed and sleeps are logged
tick: Callable[[], float] = partial(next, count(1e9, 0.001))
_known: dict[str, str | None] = {}  # a code's file -> its path from the repository's root; None: not of haltune


@dataclass
class Walk:
    """Calls of haltune from one call from outside on."""

    calls: list[tuple[int, str, str]] = field(default_factory=list)  # (depth, file, function)
    appends: list[tuple[int, int, set[str]]] = field(default_factory=list)  # (calls so far, depth, kinds of events)

    def until(self, kind: str) -> Walk:
        """Return the part up to the append of such an event."""
        end = next(k for k, (_, _, kinds) in enumerate(self.appends) if kind in kinds)
        return Walk(self.calls[: self.appends[end][0]], self.appends[: end + 1])

    def numbers(self) -> tuple[int, int, int, int]:
        """Frames, calls, files, changes of file."""
        files = [file for _, file, _ in self.calls]
        changes = sum(file != following for file, following in pairwise(files))
        return max(depth for _, depth, _ in self.appends), len(files), len(set(files)), changes


@contextmanager
def walks(kind: str) -> Iterator[list[Walk]]:
    """Record the calls inside the block; afterwards the list holds each walk that appends an event of this kind."""
    found: list[Walk] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (file := within(frame)) is None:
            return
        depth, above = 1, frame.f_back
        while above is not None:
            depth += within(above) is not None
            above = above.f_back
        if depth == 1 or not found:
            found.append(Walk())
        code = frame.f_code
        found[-1].calls.append((depth, file, code.co_qualname))
        if code.co_name == "append" and file.startswith("core/store"):
            kinds = {event.kind for event in frame.f_locals["events"]}
            found[-1].appends.append((len(found[-1].calls), depth, kinds))

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found[:] = [walk for walk in found if any(kind in kinds for _, _, kinds in walk.appends)]


def within(frame: FrameType) -> str | None:
    """The file of a frame of haltune."""
    name = frame.f_code.co_filename
    if name not in _known:
        path = Path(os.path.realpath(name))
        ours = (
            name[0] != "<"
            and path.is_relative_to(ROOT)
            and path.relative_to(ROOT).parts[0] not in (".venv", "benchmarks")
        )
        _known[name] = str(path.relative_to(ROOT)) if ours else None
    return _known[name]


def value(trial: Trial, epoch: int) -> float:
    """The accuracy of a trial after an epoch."""
    return float((0.9 - trial.config["lr"] / 2) * epoch / (epoch + 1))


def asked(study: Study) -> Trial:
    """The next trial."""
    trial = study.ask()
    assert isinstance(trial, Trial), trial
    return trial


def trained(study: Study, trials: int) -> Study:
    """Train some trials in a plain loop."""
    for _ in range(trials):
        trial = asked(study)
        for epoch in trial.epochs():
            trial.report(value(trial, epoch))
        trial.finish()
    return study


def study_in(store: str | None, policy: str, **more: Any) -> Study:
    space = Space({"lr": Float(1e-4, 1.0, log=True), **more})
    problem = Problem(space, Maximize("acc", (0, 1)), max_epochs=9)
    kept = MemoryStore(tick) if store is None else SqliteStore(store, tick)
    return Study(problem, POLICIES[policy](), kept, seed=0, budget="20 trials", verbose=0)


def lightning(policy: str, store: str) -> Walk:
    """The hook that reports the third epoch of the sixth trial."""
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from haltune.callbacks.lightning import HaltuneCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trial = asked(trained(study_in(store, policy), 5))

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).pow(2).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("acc", value(trial, self.current_epoch + 1))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=8)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "num_sanity_val_steps": 0}
    trainer = pl.Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], **quiet)
    with walks("reported") as reports:
        trainer.fit(Net(), data, data)
    return reports[2]


def loop(policy: str, store: str) -> Walk:
    """`TrainingLoop.report` of the third epoch of the sixth trial."""
    trial = asked(trained(study_in(store, policy), 5))
    training = TrainingLoop(trial)
    with walks("reported") as reports:
        for epoch in training:
            training.report(value(trial, epoch))
    return reports[2]


def ask(policy: str, store: None) -> Walk:
    """`Study.ask` after 16 trials."""
    study = trained(study_in(store, policy, width=Int(8, 128, log=True)), 16)
    with walks("started") as starts:
        study.ask()
    return starts[0]


def keras(policy: str, store: str) -> Walk:
    """The hook at the end of the first epoch after which a trial pauses, up to the event of the checkpoint."""
    import keras
    import numpy as np

    from haltune.callbacks.keras import HaltuneCallback

    class Accuracy(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["acc"] = value(trial, epoch + 1)

    x, y = np.zeros((8, 2)), np.zeros((8, 1))
    study = study_in(store, policy)
    while True:
        with (trial := asked(study)):
            model = trial.load_model()
            if model is None:
                model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
                model.compile(keras.optimizers.SGD(0.01), "mse")
            fit = partial(model.fit, x, y, epochs=trial.max_epochs, initial_epoch=int(trial.epoch), verbose=0)
            with walks("checkpointed") as pauses:
                fit(callbacks=[Accuracy(), HaltuneCallback(trial)])
        if pauses:
            return pauses[0].until("checkpointed")


ROWS: dict[str, tuple[Callable[[str, Any], Walk], bool]] = {  # -> (its walk, whether it has a file)
    "lightning": (lightning, True),
    "loop": (loop, True),
    "ask": (ask, False),
    "random": (lambda _, store: ask("random", store), False),
    "keras": (keras, True),
}


def main() -> None:
    """Print the table, or the calls of one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"{', '.join(ROWS)}; default: all")
    parser.add_argument("--policy", choices=POLICIES, default="default")
    parser.add_argument("--trace", choices=ROWS, help="list the calls of this row in order")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"there is no row {', '.join(sorted(unknown))}; use {', '.join(ROWS)}")
    warnings.simplefilter("ignore")
    traced = [options.trace] if options.trace else []
    names = options.rows or traced or list(ROWS)
    print(f"haltune {haltune.__version__}, {options.policy} search; (goal: at most)\n{'':10}", end="")
    print("".join(f"{column:>14}" for column in ("frames", "calls", "files", "changes")))
    for name in names:
        walked, filed = ROWS[name]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, clocked(tick):
            walk = walked(options.policy, f"sqlite:///{folder}/frames.db" if filed else None)
        goals = (*GOALS.get(name, (None, None, None)), None)
        cells = [f"{n} ({goal})" if goal else f"{n}{'':5}" for n, goal in zip(walk.numbers(), goals, strict=True)]
        print(f"{name:10}{''.join(f'{cell:>14}' for cell in cells)}", flush=True)
        for depth, file, function in walk.calls if name == options.trace else ():
            print(f"{depth:4} {'  ' * depth}{file}: {function}")


if __name__ == "__main__":
    main()
