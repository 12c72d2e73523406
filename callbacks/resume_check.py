"""Prove that a training resumes exactly: `check_resume` trains without and with a pause, and compares bit for bit.

def run(trial):
    trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)])
    trainer.fit(Net(), data, ckpt_path=trial.checkpoint)
    return trainer                                    # or the module, the Keras model, any arrays

print(check_resume(run, goal=Minimize("val_loss")))
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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

from .loop import TrainingLoop

MakeRun = Callable[[Trial], Any]


@dataclass(frozen=True)
class ResumeCheck:
    """Differences between a training and the same training with a pause; true if there are none."""

    epochs: int
    pause_at: int
    compared: tuple[str, ...]  # parts that both runs have: "weights", "optimizer", ...
    differences: tuple[str, ...]  # one sentence each
    left_out: tuple[str, ...] = ()  # metrics that differ between two trainings without a pause too, such as times

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        runs = f"{plural(self.epochs, 'epoch')} without a pause, and with a pause after {self.pause_at}"
        lines = [f"Does NOT resume exactly. {runs}, differ:", *(f"- {d}" for d in self.differences)]
        if self.ok:
            lines = [f"Resumes exactly: {runs}, agree to the last digit in {', '.join(self.compared)}."]
        if self.left_out:
            lines.append(f"Not compared, because two trainings without a pause differ too: {', '.join(self.left_out)}.")
        return visible("\n".join(lines))


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
    their own random generators; for them it compares trees and metrics. If something differs, it trains once more
    without a pause: a metric that differs then too, such as a time, is left out, and a state that differs then too is
    no proof.

    Args:
        make_run: A function that trains the given trial as in a search, from trial.checkpoint, and reports to it. It
            returns the trained object: a Trainer of Lightning or Hugging Face, a Learner of fastai, a TrainingLoop, a
            torch or Lightning module, a model of Keras or Stable-Baselines3, a booster, a scikit-learn estimator, or a
            dict, list or tuple of these, arrays and numbers. It is called three or four times; its exceptions are
            raised.
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

    def trained(pause_at: int | None) -> _CheckedTraining:
        training = _CheckedTraining(goal, epochs, pause_at, config)
        training.train(make_run, seed)
        return training

    straight, broken = trained(None), trained(middle)
    if (why := broken.not_paused()) is not None:
        return ResumeCheck(epochs, middle, (), (why, *broken.warnings))
    broken.train(make_run, seed + 1)
    return _compare(straight, broken, lambda: trained(None), epochs, middle)


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
        self.drew: set[str] = set()  # names of the generators that the training drew from
        self.kind: str | None = None  # type of the returned object
        self.warnings: list[str] = []  # of haltune, which often name the cause

    def train(self, make_run: MakeRun, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (users' code draws from it)
        if (torch := sys.modules.get("torch")) is not None:
            torch.manual_seed(seed)
        if (keras := sys.modules.get("keras")) is not None:
            keras.utils.set_random_seed(seed)
        trial, before = self.study.ask(), capture()
        assert isinstance(trial, Trial)
        trial.config = dict(self._config)
        with warnings.catch_warnings(record=True) as caught, trial:
            warnings.simplefilter("always", HaltuneWarning)
            trained = make_run(trial)
            self.randomness = capture()
        self.warnings = [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
        self.drew = {name for name, state in self.randomness.items() if state != before.get(name)}
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


def _compare(
    straight: _CheckedTraining,
    broken: _CheckedTraining,
    again: Callable[[], _CheckedTraining],
    epochs: int,
    middle: int,
) -> ResumeCheck:
    """again: trains once more without a pause. It is called if something differs."""
    parts = _both(straight, broken)
    if not (straight.state and broken.state):
        kind = "nothing" if broken.kind is None else f"an object of type {broken.kind}, which cannot be compared"
        unknown = f"make_run returned {kind}. Let it return the trainer, the model, or a dict of arrays."
        return ResumeCheck(epochs, middle, tuple(parts), (unknown,))
    wrong = {part: names for part, pair in parts.items() if (names := _wrong(*pair))}
    chance = {part: {*_wrong(*pair)} for part, pair in _both(straight, again()).items()} if wrong else {}
    needed = {"epoch", straight.study.problem.goal.metric}
    times = {column for column in map(_column, parts[_METRICS][0]) if column.endswith(_TIMES)}  # may be equal by chance
    left = ({_column(name) for name in chance.get(_METRICS, ())} | times) - needed
    found: list[str] = []
    for part, names in wrong.items():
        names = [name for name in names if part != _METRICS or _column(name) not in left]
        by_chance = [name for name in names if name in chance.get(part, ())]
        of_resume = [name for name in names if name not in by_chance]
        if of_resume:
            found.append(f"{part}: {_gap(of_resume, *parts[part])}")
        if by_chance:
            found.append(
                f"{part}: {_gap(by_chance, *parts[part])}, but also between two trainings without a pause. Seed every "
                "generator of the training, and use deterministic algorithms"
            )
    if broken.study.history.trial(0).attempt > _ATTEMPTS:  # with the same random numbers
        found.append("the resumed run trained from its start again")
    if found:
        found += broken.warnings
    return ResumeCheck(epochs, middle, tuple(parts), tuple(found), tuple(sorted(left)))


_ATTEMPTS = 2  # of a trial that paused once
_METRICS = "metrics"  # the part with the reported metrics
_TIMES = ("_runtime", "_per_second")  # ends of the names of the Trainer's times


def _column(leaf: str) -> str:
    """Return the metric of a leaf such as "eval_runtime[0]"."""
    return leaf.rpartition("[")[0]


def _both(one: _CheckedTraining, other: _CheckedTraining) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the parts of two trainings, each as leaves by name."""
    states = {_METRICS: (one.metrics(), other.metrics())}
    states |= {part: (one.state.get(part, {}), other.state.get(part, {})) for part in one.state | other.state}
    if "trees" not in one.state:  # boosters have their own generators
        drawn = [{n: s for n, s in training.randomness.items() if n in one.drew} for training in (one, other)]
        states["random state"] = (drawn[0], drawn[1])
    return {part: (dict(_leaves(a, "")), dict(_leaves(b, ""))) for part, (a, b) in states.items()}


# the state after a training, as plain arrays by name, and the comparison of two states


def _training_state(trained: Any) -> dict[str, Any]:
    """Return the parts of the trained object: names -> nested mappings, lists, arrays and numbers.

    A Trainer or an attached LightningModule has weights, trainable flags, optimizer, learning rate and schedules. A
    Keras model has the first four, a torch module the first two, a booster or its estimator trees, a scikit-learn
    estimator its attributes, a TrainingLoop what its `save` writes. Arrays, numbers and containers of them are the part
    "returned". Other objects have no parts.
    """
    if isinstance(trained, (Mapping, list, tuple, str, int, float)) or hasattr(trained, "shape"):
        returned = _expanded(trained)
        compared = any(leaf is not None and _is_plain(leaf) for _, leaf in _leaves(returned, ""))
        return {"returned": returned} if compared else {}
    with suppress(AttributeError, RuntimeError):  # it is no LightningModule, or has no Trainer
        trained = trained.trainer if hasattr(trained.trainer, "lightning_module") else trained
    if hasattr(trained, "lightning_module"):
        optimizers = list(trained.optimizers)
        return _of_module(trained.lightning_module) | {
            "optimizer": [o.state_dict() for o in optimizers],
            "learning rate": [[group["lr"] for group in o.param_groups] for o in optimizers],
            "schedules": [c.scheduler.state_dict() for c in trained.lr_scheduler_configs],
        }
    if isinstance(trained, TrainingLoop):
        return {"saved": _saved(trained)} if trained.saves else {}
    keras: Any = sys.modules.get("keras")
    if keras is not None and isinstance(trained, keras.Model):
        found: dict[str, Any] = {
            "weights": [_array(w) for w in trained.weights],
            "trainable flags": [bool(w.trainable) for w in trained.weights],
        }
        if (optimizer := getattr(trained, "optimizer", None)) is not None:
            found["optimizer"] = [_array(v) for v in optimizer.variables]
            found["learning rate"] = [float(optimizer.learning_rate)]
        return found
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(trained, torch.nn.Module):
        return _of_module(trained)
    if (trees := _trees(trained)) is not None:
        return {"trees": trees}
    if hasattr(trained, "get_params") and hasattr(trained, "fit"):
        return {"learnt": vars(trained)}
    if hasattr(trained, "get_parameters") and hasattr(trained, "num_timesteps"):  # Stable-Baselines3
        return {"weights": trained.get_parameters(), "steps": {"num_timesteps": trained.num_timesteps}}
    if hasattr(trained, "model") and (inner := _training_state(trained.model)):  # Hugging Face, fastai
        for name, part in (("optimizer", "optimizer"), ("opt", "optimizer"), ("lr_scheduler", "schedules")):
            holder: Any = getattr(trained, name, None)
            if hasattr(holder, "state_dict"):
                inner[part] = holder.state_dict()
        return inner
    return {"state": trained.state_dict()} if hasattr(trained, "state_dict") else {}


def _of_module(module: Any) -> dict[str, Any]:
    flags = {name: p.requires_grad for name, p in module.named_parameters()}
    return {"weights": dict(module.state_dict()), "trainable flags": flags}


def _expanded(value: Any) -> Any:
    """Return a container with the parts of the models and trainers in it."""
    if isinstance(value, Mapping):
        return {key: _expanded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_expanded(inner) for inner in value]
    return value if _is_plain(value) or hasattr(value, "shape") else _training_state(value) or value


def _saved(loop: TrainingLoop) -> dict[str, Any]:
    """Return the contents of the files that the loop's `save` writes after its last epoch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state" + loop.suffix)
        loop.write(path)
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        return {file.relative_to(folder).as_posix(): _contents(file) for file in files}


def _contents(file: Path) -> Any:
    """Return what a file of PyTorch, NumPy or JSON holds, otherwise its bytes."""
    readers: list[Callable[[], Any]] = [lambda: np.load(file), lambda: json.loads(file.read_bytes())]
    if (torch := sys.modules.get("torch")) is not None:
        readers.insert(0, lambda: torch.load(file, map_location="cpu", weights_only=True))
    for read in readers:
        with suppress(Exception):
            found = read()
            return dict(found) if isinstance(found, np.lib.npyio.NpzFile) else found
    return np.frombuffer(file.read_bytes(), np.uint8)


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


def _wrong(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    """Return the names of the leaves that differ, or that one state lacks."""
    return [*sorted(one.keys() ^ two.keys()), *(n for n in one if n in two and not _same(one[n], two[n]))]


def _gap(wrong: list[str], one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """Return a sentence about the leaves that differ, and the largest difference."""
    if wrong[0] not in one or wrong[0] not in two:
        where = "straight" if wrong[0] in one else "resumed"
        return f"only the {where} run has {wrong[0]} (and {len(wrong) - 1} more)"
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
    elif isinstance(value, (list, tuple)) or type(value).__module__ == "fastcore.foundation":  # fastai's list
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
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        both = isinstance(one, np.ndarray) and isinstance(two, np.ndarray)
        return both and one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes()
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return bool(one == two) if _is_plain(one) else True  # other objects: functions, classes


def _is_plain(value: Any) -> bool:
    return type(value).__module__ == "builtins" or isinstance(value, np.ndarray)
