"""Prove that a training resumes exactly: `check_resume` trains without and with a pause, and compares bit for bit.

def run(trial):
    trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)])
    trainer.fit(Net(), data, ckpt_path=trial.checkpoint)
    return trainer                                    # or the module, the Keras model, any arrays

print(check_resume(run, goal=Minimize("val_loss")))
"""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.randomness import capture
from haltune.display import plural, visible
from haltune.errors import HaltuneWarning, InvalidInput
from haltune.log.decisions import Action, Finish, Move, Resume, Start, Verdict, continue_
from haltune.log.events import Event, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Goal, Minimize, Problem
from haltune.log.records import TrialRecord
from haltune.space import Space
from haltune.study import Study, Trial

MakeRun = Callable[[Trial], Any]


@dataclass(frozen=True)
class ResumeCheck:
    """Differences between a training and the same training with a pause; true if there are none."""

    epochs: int
    pause_at: int
    compared: tuple[str, ...]  # parts that both runs have: "weights", "optimizer", ...
    differences: tuple[str, ...]  # one sentence each

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        runs = f"{plural(self.epochs, 'epoch')} without a pause, and with a pause after {self.pause_at}"
        if self.ok:
            return visible(f"Resumes exactly: {runs}, agree to the last digit in {', '.join(self.compared)}.")
        listing = "\n".join(f"- {d}" for d in self.differences)
        return visible(f"Does NOT resume exactly. {runs}, differ:\n{listing}")


def check_resume(
    make_run: MakeRun,
    config: Mapping[str, Any] | None = None,
    *,
    goal: Goal | None = None,
    epochs: int = 4,
    pause_at: int | None = None,
    seed: int = 0,
) -> ResumeCheck:
    """Train without a pause, then again with a pause, and compare the final states bit for bit.

    It compares weights, optimizer, learning rates, schedules, random state and the reported metrics. Boosters have
    their own random generators; for them it compares trees and metrics.

    Args:
        make_run: A function that trains the given trial as in a search, from trial.checkpoint, and reports to it. It
            returns the trained object: a Lightning Trainer or module, a torch module, a Keras model, a booster, a
            scikit-learn estimator, or any dict, list or tuple of arrays and numbers. It is called three times; its
            exceptions are raised.
        config: The trial's configuration, trial.config. Default: None, empty.
        goal: The reported goal. Default: None, Minimize("val_loss").
        epochs: Epochs of each training. Default: 4.
        pause_at: The epoch after which one training pauses. Default: None, half of them.
        seed: Seed of all global generators before both trainings. The resumed part starts with another seed, as a new
            process would, so that generators that are not restored are found. Default: 0.

    Returns:
        The differences; true if there are none.

    Raises:
        InvalidInput: If `pause_at` is not within the training.

    Example:
        >>> from haltune.callbacks.loop import TrainingLoop
        >>> def run(trial):
        ...     weight = np.load(trial.checkpoint) if trial.checkpoint else np.zeros(1)
        ...     loop = TrainingLoop(trial, save=lambda path: np.save(path, weight), suffix=".npy")
        ...     for epoch in loop:
        ...         weight = weight + random.random()
        ...         _ = loop.report(float(weight[0]))
        ...     return weight
        >>> bool(check_resume(run))
        True
    """
    middle = epochs // 2 if pause_at is None else pause_at
    if not 0 < middle < epochs:
        raise InvalidInput(f"Cannot pause at pause_at={middle} of epochs={epochs}. Use 1 to {epochs - 1}.")
    goal = goal or Minimize("val_loss")
    straight = _CheckedTraining(goal, epochs, None, config)
    straight.train(make_run, seed)
    broken = _CheckedTraining(goal, epochs, middle, config)
    broken.train(make_run, seed)
    if (why := broken.not_paused()) is not None:
        return ResumeCheck(epochs, middle, (), (why,))
    broken.train(make_run, seed + 1)
    return _compare(straight, broken, epochs, middle)


@dataclass(frozen=True)
class _PausesOnce(Policy[None]):
    """Policy with one trial, which pauses after an epoch and then trains to its end."""

    at: int | None
    endless = False

    @property
    def spec(self) -> dict[str, Any]:
        return {"policy": "PausesOnce", "at": self.at}

    def start(self, problem: Problem) -> None:
        return None

    def fold(self, state: None, event: Event) -> None:
        return None

    def propose(self, state: None, history: History, rng: Generator) -> Move:
        for t in history.with_status(Status.PAUSED):
            return Resume(t.id, reason="to compare it with the training without a pause")
        if len(history):
            return Finish("one training is enough")
        return Start({"run": 0}, pause_at=self.at)

    def judge(self, state: None, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        if trial.attempt == 1 and self.at is not None and trial.epoch >= self.at:
            return Verdict(Action.PAUSE, f"paused after epoch {trial.epoch:g}")
        return continue_("trains to its end")


class _CheckedTraining:
    """One training, with or without a pause, and its final state."""

    def __init__(self, goal: Goal, epochs: int, pause_at: int | None, config: Any) -> None:
        self._config = dict(config or {})
        self.study = Study(Problem(Space({"run": 0}), goal, epochs), _PausesOnce(pause_at), seed=0, verbose=0)
        self.state: dict[str, Any] = {}
        self.randomness: dict[str, Any] = {}
        self.kind: str | None = None  # type of the returned object
        self.warnings: list[str] = []  # of haltune, which often name the cause

    def train(self, make_run: MakeRun, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (users' code draws from it)
        if (torch := sys.modules.get("torch")) is not None:
            torch.manual_seed(seed)
        if (keras := sys.modules.get("keras")) is not None:
            keras.utils.set_random_seed(seed)
        trial = self.study.ask()
        assert isinstance(trial, Trial)
        trial.config = dict(self._config)
        with warnings.catch_warnings(record=True) as caught, trial:
            warnings.simplefilter("always", HaltuneWarning)
            trained = make_run(trial)
        self.warnings = [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
        self.randomness = capture()
        self.state = _training_state(trained)
        self.kind = None if trained is None else type(trained).__name__

    def not_paused(self) -> str | None:
        """Return why the run did not pause; None if it did."""
        record = self.study.history.trial(0)
        if record.status is not Status.PAUSED:
            return (
                f"The run did not pause; it is {record.status} after epoch {record.epoch:g}. Add "
                "HaltuneCallback(trial) to its callbacks, or end its loop when trial.report(...).stops."
            )
        if record.checkpoint is None:
            return "The run was paused but saved nothing. In a loop of your own, call trial.save(write)."
        return None

    def metrics(self) -> dict[str, Any]:
        record = self.study.history.trial(0)
        own = {name: list(column) for name, column in record.metrics.items()}
        return {"epoch": list(record.epochs), self.study.problem.goal.metric: list(record.values), **own}


def _compare(straight: _CheckedTraining, broken: _CheckedTraining, epochs: int, middle: int) -> ResumeCheck:
    parts = {"metrics": (straight.metrics(), broken.metrics())}
    for part in straight.state | broken.state:
        parts[part] = (straight.state.get(part, {}), broken.state.get(part, {}))
    if "trees" not in straight.state:  # boosters have their own generators
        parts["random state"] = (straight.randomness, broken.randomness)
    if not (straight.state and broken.state):
        kind = "nothing" if broken.kind is None else f"an object of type {broken.kind}, which cannot be compared"
        unknown = f"make_run returned {kind}. Let it return the trainer, the model, or a dict of arrays."
        return ResumeCheck(epochs, middle, tuple(parts), (unknown,))
    found = [f"{part}: {what}" for part, pair in parts.items() if (what := _differing(*pair)) is not None]
    if found:
        found += broken.warnings
    return ResumeCheck(epochs, middle, tuple(parts), tuple(found))


# the state after a training, as plain arrays by name, and the comparison of two states


def _training_state(trained: Any) -> dict[str, Any]:
    """Return the parts of the trained object: names -> nested mappings, lists, arrays and numbers.

    A Lightning Trainer or an attached LightningModule has weights, optimizer, learning rate and schedules. A Keras
    model has the first three, a torch module weights, a booster or its estimator trees, a scikit-learn estimator its
    attributes. Arrays, numbers and containers of them are the part "returned". Other objects have no parts.
    """
    with suppress(AttributeError, RuntimeError):  # it is no LightningModule, or has no Trainer
        trained = trained.trainer if hasattr(trained.trainer, "lightning_module") else trained
    if hasattr(trained, "lightning_module"):
        optimizers = list(trained.optimizers)
        return {
            "weights": dict(trained.lightning_module.state_dict()),
            "optimizer": [o.state_dict() for o in optimizers],
            "learning rate": [[group["lr"] for group in o.param_groups] for o in optimizers],
            "schedules": [c.scheduler.state_dict() for c in trained.lr_scheduler_configs],
        }
    keras: Any = sys.modules.get("keras")
    if keras is not None and isinstance(trained, keras.Model):
        found: dict[str, Any] = {"weights": [_array(w) for w in trained.weights]}
        if (optimizer := getattr(trained, "optimizer", None)) is not None:
            found["optimizer"] = [_array(v) for v in optimizer.variables]
            found["learning rate"] = [float(optimizer.learning_rate)]
        return found
    if hasattr(trained, "state_dict"):
        return {"weights": dict(trained.state_dict())}
    if (trees := _trees(trained)) is not None:
        return {"trees": trees}
    if hasattr(trained, "get_params") and hasattr(trained, "fit"):
        return {"learnt": vars(trained)}
    plain = isinstance(trained, (Mapping, list, tuple, str, int, float)) or hasattr(trained, "shape")
    return {"returned": trained} if plain else {}


def _trees(trained: Any) -> Any:
    """Return the trees of a booster or an estimator of XGBoost, LightGBM or CatBoost; None for other objects."""
    if hasattr(trained, "get_booster"):
        trained = trained.get_booster()
    booster = getattr(trained, "booster_", trained)
    if hasattr(booster, "save_raw"):
        return np.frombuffer(booster.save_raw(), np.uint8)
    if hasattr(booster, "model_to_string"):  # after the trees, the text has the arguments of the last training
        return booster.model_to_string(num_iteration=-1).partition("end of trees")[0].split("\n")
    if hasattr(booster, "get_tree_leaf_counts"):
        borders = map(np.asarray, booster.get_borders().values())
        return [booster.get_tree_leaf_counts(), booster.get_leaf_values(), *borders]
    return None


def _differing(first: Any, second: Any) -> str | None:
    """Return where two states differ, and the largest difference; None if all bits agree."""
    one, two = dict(_leaves(first, "")), dict(_leaves(second, ""))
    alone = sorted(one.keys() ^ two.keys())
    if alone:
        where = "straight" if alone[0] in one else "resumed"
        return f"only the {where} run has {alone[0]} (and {len(alone) - 1} more)"
    wrong = [name for name in one if not _same(one[name], two[name])]
    if not wrong:
        return None
    gaps = []
    for name in wrong:
        with suppress(TypeError, ValueError):
            gaps.append(float(np.max(np.abs(np.asarray(one[name], float) - np.asarray(two[name], float)))))
    gaps = [gap for gap in gaps if math.isfinite(gap)]
    size = f", by up to {max(gaps):.3g}" if gaps else ""
    more = f" and {len(wrong) - 1} more of {len(one)}" if len(wrong) > 1 else ""
    return f"{wrong[0]}{more} differ{'' if more else 's'}{size}"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]")
    else:
        yield path, _array(value) if hasattr(value, "shape") else value


def _array(value: Any) -> Any:
    """Return a tensor of any framework as an array, including bfloat16."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return value.float().numpy() if value.is_floating_point() else value.numpy()
    if hasattr(value, "numpy") and not isinstance(value, np.ndarray):
        value = value.numpy()
    return np.asarray(value)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes()
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return bool(one == two) if type(one).__module__ == "builtins" else True  # objects: functions, classes
