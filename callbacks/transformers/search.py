"""hyperparameter_search: `Trainer.hyperparameter_search` with haltune deciding.

The Trainer's own takes no further backend: its names are a closed enumeration, and it asks for them where it sets a
trial's parameters, names its folder and reports. So this is a function beside it, of the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput, NotSupported
from haltune.errors.foreign_words import answering
from haltune.log.problem import Budget, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.study import Study, Trial

from .callback import HaltuneCallback

OBJECTIVE = "objective"
_KINDS: dict[str, type[Maximize] | type[Minimize]] = {"minimize": Minimize, "maximize": Maximize}
Objective = Callable[[dict[str, float]], float]


@answering
def hyperparameter_search(
    trainer: Any,
    hp_space: Space | Mapping[str, Any],
    compute_objective: Objective | None = None,
    n_trials: int | None = 20,
    direction: str = "minimize",
    hp_name: Callable[[Trial], str] | None = None,
    timeout: float | str | None = None,
    **study: Any,
) -> Any:
    """The best run of a search over the arguments of a Trainer: stands in for `trainer.hyperparameter_search(...)`.

    Runs are stopped early, or pause and go on from the Trainer's checkpoints. A run trains as if its parameters had
    been given to TrainingArguments; afterwards these are as they were. `num_train_epochs` is a full training.

    Args:
        trainer: The Trainer, made with `model_init=`, which evaluates every epoch.
        hp_space: Parameter -> Float, Int, Choice or constant. Those that are no field of TrainingArguments are for
            `model_init(trial)`, in `trial.config`; it is called with None, too, when the Trainer is made.
        compute_objective: What a dict of metrics is worth. Default: None, as the Trainer has it: the evaluation loss,
            or the sum of all further metrics.
        n_trials: How many runs are begun, those of earlier calls on the same store included; None, no limit.
            Default: 20.
        direction: "minimize" or "maximize". Default: "minimize".
        hp_name: What a run's folder is called, hp_name(trial). Default: None, "run-" and its number.
        timeout: Seconds after which the search ends, or a text such as "2h". Default: None, no limit.
        study: Further arguments of haltune.Study: store="search.db", seed=0, policy=..., min_epochs=...

    Returns:
        transformers.trainer_utils.BestRun: `run_id`, `objective`, `hyperparameters`; `run_summary` is the Study, whose
        `best.checkpoint` is the model.

    Raises:
        InvalidInput: For a Trainer without model_init, epochs or evaluations, for a parameter that nobody reads, and
            when no run came to a value.
        NotSupported: For several directions, and with DeepSpeed.
        Exception: What a training raises before any succeeded, or max_failures times in a row.

    Example:
        ::

            import torch
            from transformers import Trainer, TrainingArguments

            from haltune import Float
            from haltune.callbacks.transformers import hyperparameter_search

            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(3, 1)

                def forward(self, x, labels):
                    out = self.layer(x).squeeze(-1)
                    return {"loss": (out - labels).pow(2).mean(), "logits": out}

            rows = [{"x": x, "labels": x.sum()} for x in torch.randn(16, 3)]
            arguments = TrainingArguments("runs", num_train_epochs=2, eval_strategy="epoch", report_to="none")
            trainer = Trainer(None, arguments, train_dataset=rows, eval_dataset=rows, model_init=Net)
            best = hyperparameter_search(trainer, {"learning_rate": Float(1e-4, 1e-1, log=True)}, n_trials=2)
            print(best.hyperparameters, best.run_summary.best.checkpoint)
    """
    from transformers.trainer_utils import BestRun, default_compute_objective

    _check(trainer, hp_space, direction)
    if "budget" in study:
        raise InvalidInput("budget= is said here by n_trials= and timeout=, as of the Trainer's own search")
    goal = _KINDS[direction](OBJECTIVE)
    space = hp_space if isinstance(hp_space, Space) else Space(hp_space)
    problem = Problem(space, goal, _horizon(trainer.args), min_epochs=study.pop("min_epochs", 0))
    _check_read(trainer, space)
    search = Study(problem, budget=Budget(trials=n_trials, time=timeout), **study)
    compute = compute_objective or default_compute_objective
    folder = Path(trainer.args.output_dir)
    for trial in search:
        with trial:
            name = f"run-{trial.id}" if hp_name is None else hp_name(trial)
            callback = _ObjectiveCallback(trial, compute, _sets(trainer))
            with _arranged(trainer, trial, str(folder / name), callback):
                trainer.train(resume_from_checkpoint=trial.checkpoint)
    best = search.best_trial
    return BestRun(str(best.id), search.best_value, search.best_params, search)


class _ObjectiveCallback(HaltuneCallback):
    """Reports what compute_objective makes of the metrics of all evaluation sets."""

    def __init__(self, trial: Trial, compute: Objective, sets: int) -> None:
        super().__init__(trial, OBJECTIVE)
        self._compute, self._sets = compute, sets
        self._found: list[dict[str, float]] = []  # of this evaluation, a set each

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:
        self._found.append(dict(metrics))
        if len(self._found) < self._sets:
            return
        metrics = {name: value for found in self._found for name, value in found.items()}
        self._found = []
        metrics = {**metrics, OBJECTIVE: self._compute(dict(metrics))}
        super().on_evaluate(args, state, control, metrics=metrics, **others)


@contextmanager
def _arranged(trainer: Any, trial: Trial, folder: str, callback: HaltuneCallback) -> Iterator[None]:
    """The Trainer as if it had been made for a trial; as it was afterwards."""
    arguments, init = trainer.args, trainer.model_init
    known = {name: value for name, value in trial.config.items() if hasattr(arguments, name)}
    told = {**known, "output_dir": folder}
    before = {name: getattr(arguments, name) for name in told}
    trainer.add_callback(callback)
    try:
        _set(trainer, {name: _as_field(before[name], value) for name, value in told.items()})
        trainer.model_init = lambda: _made(init, trial)
        yield
    finally:
        trainer.model_init = init
        trainer.remove_callback(callback)
        _set(trainer, before)


def _set(trainer: Any, arguments: Mapping[str, Any]) -> None:
    """Set training arguments, and what the Trainer derived from them when it was made."""
    for name, value in arguments.items():
        setattr(trainer.args, name, value)
    trainer._train_batch_size = trainer.args.train_batch_size  # there is no public way
    trainer.create_accelerator_and_postprocess()


def _as_field(before: Any, value: Any) -> Any:
    return type(before)(value) if isinstance(before, Enum) else value


def _made(init: Callable[..., Any], trial: Trial) -> Any:
    return init(trial) if _takes_a_trial(init) else init()


def _takes_a_trial(init: Callable[..., Any]) -> bool:
    from transformers.trainer_utils import number_of_arguments

    return bool(number_of_arguments(init) == 1)


def _sets(trainer: Any) -> int:
    """How many evaluations the Trainer makes of each: with several data sets, one of each set."""
    return len(trainer.eval_dataset) if isinstance(trainer.eval_dataset, dict) else 1


def _check(trainer: Any, space: Any, direction: Any) -> None:
    if isinstance(direction, list | tuple):
        raise NotSupported(
            f"direction={direction!r}: this search has one goal; let compute_objective weigh several into one"
        )
    if direction not in _KINDS:
        raise InvalidInput(f"direction={direction!r}: 'minimize' or 'maximize'")
    if callable(space) or not isinstance(space, Space | Mapping):
        raise InvalidInput(
            f"hp_space={space!r}: here it is the space itself, known before the first run, such as "
            "{'learning_rate': Float(1e-5, 1e-3, log=True)}, instead of a function of a trial"
        )
    if getattr(trainer, "args", None) is None or getattr(trainer, "model_init", None) is None:
        raise InvalidInput(
            "hyperparameter_search(trainer, ...) takes a Trainer made with model_init=, a function that makes the "
            f"model anew for each run, not {trainer!r}"
        )
    if trainer.args.eval_strategy == "no":
        raise InvalidInput(
            "runs are compared by what they evaluate: TrainingArguments(eval_strategy='epoch')"
        )
    if trainer.args.deepspeed:
        raise NotSupported(
            "with DeepSpeed a Trainer cannot be set anew for each run here: make one for each, in a loop over a "
            "Study, with HaltuneCallback(trial)"
        )


def _check_read(trainer: Any, space: Space) -> None:
    """Raises InvalidInput for parameters that nobody would read, and for those that are settled otherwise."""
    for name in ("num_train_epochs", "max_steps", "output_dir"):
        if name in space.names:
            raise InvalidInput(
                f"{name!r} is no parameter of a search: it is one for all runs, which it compares"
            )
    others = [name for name in space.names if not hasattr(trainer.args, name)]
    if others and not _takes_a_trial(trainer.model_init):
        raise InvalidInput(
            f"{', '.join(map(repr, others))}: no field of TrainingArguments, and model_init takes no argument that "
            "could tell it; write def model_init(trial), which reads trial.config (trial is None where the Trainer "
            "is made)"
        )


def _horizon(arguments: Any) -> int:
    epochs = float(arguments.num_train_epochs)
    if arguments.max_steps > 0 or not epochs.is_integer() or epochs < 1:
        raise InvalidInput(
            "runs are compared epoch by epoch: say how many a full training has by TrainingArguments("
            f"num_train_epochs=), a whole number, without max_steps=; here these are {epochs:g} and "
            f"{arguments.max_steps}"
        )
    return int(epochs)
