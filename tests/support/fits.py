"""Each framework's training behind one interface, for the tests of callbacks.

`train(*callbacks, rounds=)` returns the trained model and its history, {data: {metric: values}}; a round is an epoch.
`attempt(trial, *callbacks)` trains as the docstring of the callback says, from the trial's checkpoint. Who adds a Fit
to FITS gets all laws of test_every_loop.py, to LOOPS that of resuming; `special` are its further cases.
"""

# ruff: noqa: RUF012 (cases, not state)

import copy
import importlib
import importlib.util
import json
import os
import random
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from documents import blocks
from paused_studies import pausing_study

from haltune import Maximize

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * RNG.normal(size=240) > 0.8).astype("float32")
TRAIN, HELD_OUT = slice(160), slice(160, None)


@dataclass(frozen=True)
class Case:
    """A training that pauses at the positions `at`.

    options: of the Fit's attempts. metric: a name or a goal. last: the last position reported, if not the end. apart:
    what differs in the state without haltune; None: all.
    """

    options: dict[str, Any] = field(default_factory=dict)
    at: tuple[float, ...] = (2,)
    length: int = 4
    unit: str = "epoch"
    metric: Any = None
    last: float | None = None
    apart: frozenset[str] | None = frozenset()
    marks: tuple[pytest.MarkDecorator, ...] = ()

    @property
    def within(self):
        """Whether a pause cuts an epoch."""
        return self.unit != "epoch" or any(at % 1 for at in self.at)


def few(cases, *quick):
    """Return the cases. quick: one of each kind; the others are slow."""
    assert set(quick) <= cases.keys(), set(quick) - cases.keys()
    slow = {name: (*one.marks, pytest.mark.slow) for name, one in cases.items() if name not in quick}
    return cases | {name: replace(cases[name], marks=marks) for name, marks in slow.items()}


TIMES = re.compile("^haltune|runtime$|per_second$")


def table(module, *packages):
    """The cases of a module, of which there are none where its packages are not installed."""
    return importlib.import_module(module).CASES if all(map(importlib.util.find_spec, packages)) else {}


def seed(number):
    """Seed all global generators, as another process would have them."""
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 (some frameworks draw from it)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)


def process(trial):
    """A seed of the process that trains: another one for each that resumes."""
    return trial.attempt - 1 if trial.checkpoint else 0


def drawn():
    """The next numbers of all global generators."""
    torch = sys.modules.get("torch")
    return random.random(), np.random.rand(), torch and torch.rand(3)  # noqa: NPY002


class Fit:
    """Training of a library: `train` returns the trained model and its history, {data: {metric: values}}."""

    usual, special = Case(at=(1, 3)), {}
    folder = None  # for what a training writes; None: a temporary one
    uncounted = ""  # why no counter of the framework shows the updates that a round lacks; then there is no `idling`

    def __init__(self):
        self.package = pytest.importorskip(self.name, reason=f"{self.name} is not installed")
        self.callback = importlib.import_module(f"haltune.callbacks.{self.name}").HaltuneCallback

    @classmethod
    def cases(cls):
        """The trainings that equal uninterrupted ones when they resume."""
        return {"paused twice": cls.usual} | cls.special

    def continuing(self, given):
        """Options of `train` that continue a trained model, or a file that haltune has kept (a path)."""
        return {"start": given}

    @property
    def monitor(self):
        return f"validation-{self.loss}"

    data = "validation"  # whose value of `loss` is reported

    def measured(self, log):
        """The values that a training reports, by its own history."""
        return log[self.data][self.loss]

    def metric(self, data, name):
        """Return the name in a report of a metric of the history."""
        return f"{data}-{name}"

    def straight(self, rounds, planned):
        """Return the model of a training without the callback, ended after so many of the planned rounds."""
        return self.scores(self.train(rounds=rounds, **self.drawing)[0])

    def model(self, booster):
        """The model, which the callback must not hold."""
        return booster

    def told(self, trial, **options):
        return self.callback(trial, self.monitor, **options)

    def callbacks(self, trial):
        """haltune's, for the goal of the study."""
        return [self.callback(trial)]

    def study(self, case, at, store=None, **options):
        """A study of a case, whose trials pause at these positions."""
        metric = case.metric or self.monitor
        return pausing_study(store, at, case.length, metric=metric, unit=case.unit, verbose=0, **options)

    def search(self, s, *others, then=lambda model: model, **options):
        """Train every trial of a study, each attempt from random states of its own; return then(the last model)."""
        for trial in s:
            with trial:
                seed(trial.attempt - 1)
                model, _ = self.attempt(trial, *others, *self.callbacks(trial), **options)
                found = then(model)
        return found

    def state(self, model):
        """All that a training has changed."""
        return {"weights": self.scores(model), "rounds": self.rounds(model), "next random numbers": drawn()}

    def lost(self, case):
        """The metrics beside the monitored one that the library itself does not continue after such pauses."""
        return set()

    def over_folds(self, s, count, **options):
        """Train every trial of a study over folds, as `search`; return the state and where fits started."""
        starts = []
        for trial in s:
            with trial:
                seed(trial.attempt - 1)
                for fold in trial.folds(count):
                    starts.append((fold.index, fold.epoch))
                    model, _ = self.attempt(fold, *self.callbacks(fold), **options)
                state = self.state(model)
        return state | {"starts": sorted(start for start in starts if start[1] == 0)}

    def trained(self, case, at, folder, folds=None):
        """The number of attempts and all that a study and its training come to with pauses at these positions."""
        self.folder = folder
        s = self.study(case, at, f"{folder}.db")
        state = self.over_folds(s, folds, **case.options) if folds else self.search(s, then=self.state, **case.options)
        (record,) = s.trials
        metrics = {name: column for name, column in record.metrics.items() if not TIMES.search(name)}
        told = {"status": record.status.value, "epochs": record.epochs.tolist(), "values": record.values.tolist()}
        return record.attempt, state | told | {"metrics": metrics}

    def alone(self, case, folder):
        """What the same training comes to without haltune, its values by its own history if it has one."""
        self.folder = folder
        seed(0)
        model, log = self.attempt(Alone(case.length, case.unit), **case.options)
        state, metric = self.state(model), case.metric or self.monitor
        columns = {self.metric(data, name): values for data, of in log.items() for name, values in of.items()}
        return state | ({"values": [*map(float, columns[metric])]} if metric in columns else {})


class Alone:
    """What the attempts of a training ask of its trial, for one without haltune."""

    attempt, epoch, checkpoint = 1, 0, None

    def __init__(self, length, unit):
        self.max_epochs = self.horizon = length
        self.unit = unit

    def load_model(self, make=None):
        return make and make(0.0)


class Loop(Fit):
    """Training that takes the trial itself."""

    monitor = "val_loss"

    def __init__(self):
        pytest.importorskip(self.name, reason=f"{self.name} is not installed")

    def callbacks(self, trial):
        return []

    def alone(self, case, folder):
        return {}


def boosted(metric=None, /, **options):
    """Nine rounds with two pauses. metric: of the validation data."""
    return Case(options, at=(2, 5), length=9, metric=metric and f"validation-{metric}")


class Booster(Fit):
    """Boosting, which draws from generators of its own."""

    usual = boosted()

    def state(self, booster):
        return {"scores": self.scores(booster), "rounds": self.rounds(booster)}

    def attempt(self, trial, *callbacks, rate=None, **options):
        """rate: of a round. Options that are functions are called with the trial."""
        given = {k: v(trial) if callable(v) else v for k, v in options.items()}
        if rate is not None:
            callbacks = (*callbacks, self.schedule(rate))
        return self.train(*callbacks, rounds=int(trial.max_epochs - trial.epoch), start=trial.checkpoint, **given)


class XGBoost(Booster):
    name, loss, hint = "xgboost", "logloss", "xgb_model=trial.checkpoint"
    given = {"objective": "binary:logistic", "eval_metric": ["error", "logloss"], "nthread": 1, "max_depth": 3}
    drawing = {"subsample": 0.5, "colsample_bynode": 0.5}
    nothing_to_measure = r"Nothing was logged\. Give xgb\.train evals="
    fold_loss, fold_column = "test-logloss", "test-logloss-mean"
    special = few(
        {
            "by leaves": boosted(grow_policy="lossguide", max_leaves=4),
            "linear": boosted(booster="gblinear", max_depth=None),
            "several classes": boosted("mlogloss", objective="multi:softprob", num_class=2, eval_metric="mlogloss"),
            "adaptive leaves": boosted(objective="reg:absoluteerror"),
            "a schedule": boosted(rate=lambda round: 0.5 / (1 + round)),
        },
        "a schedule",
    )

    def train(self, *callbacks, rounds=5, evals=("train", "validation"), start=None, options=None, **params):
        log, data = {}, self.package.DMatrix(X[TRAIN], Y[TRAIN])
        sets = {"train": data, "validation": self.package.DMatrix(X[HELD_OUT], Y[HELD_OUT])}
        params = {k: v for k, v in (self.given | params).items() if v is not None}
        booster = self.package.train(
            params, data, rounds, evals=[(sets[n], n) for n in evals], callbacks=list(callbacks), evals_result=log,
            verbose_eval=False, xgb_model=start, **(options or {}),
        )  # fmt: skip
        return booster, log

    def cv(self, *callbacks, rounds=5, **options):
        data = self.package.DMatrix(X[TRAIN], Y[TRAIN])
        options |= {"callbacks": list(callbacks), "as_pandas": False}
        return self.package.cv(self.given, data, rounds, nfold=3, **options)

    def rounds(self, booster):
        return booster.num_boosted_rounds()

    def scores(self, booster):
        return booster.predict(self.package.DMatrix(X[HELD_OUT]), output_margin=True)

    def state(self, booster):
        return super().state(booster) | {"raw": booster.save_raw()}

    def load(self, path):
        return self.package.Booster(model_file=path)

    def each_round(self, call):
        """A callback of the user's own: call(round) before each, from 1."""
        before = {"before_iteration": lambda _, model, epoch, log: bool(call(epoch + 1))}
        return type("Calls", (self.package.callback.TrainingCallback,), before)()

    def schedule(self, rate):
        """A callback of the user's own: rate(round) by the booster's count."""

        def before(_, model, epoch, log):
            model.set_param("learning_rate", rate(model.num_boosted_rounds()))
            return False

        return type("Rates", (self.package.callback.TrainingCallback,), {"before_iteration": before})()

    def recounting(self, rate):
        return self.package.callback.LearningRateScheduler(rate)

    def idling(self):
        """A callback of the user's own, with which the second round adds nothing to the booster; options of `train`."""

        def before(_, model, epoch, log):
            if epoch == 1:
                model.update = lambda *data, **options: None
            return False

        return type("Idles", (self.package.callback.TrainingCallback,), {"before_iteration": before})(), {}

    def keeping(self):
        """The library's own callback that keeps its best model; options of `train`."""
        return self.package.callback.EarlyStopping(3), {}


class LightGBM(Booster):
    name, loss, hint = "lightgbm", "binary_logloss", "init_model=trial.checkpoint"
    given = {
        "objective": "binary", "metric": ["binary_error", "binary_logloss"], "num_threads": 1, "num_leaves": 5,
        "verbose": -1,
    }  # fmt: skip
    drawing = {"bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.5}
    nothing_to_measure = r"Nothing was logged\. Give lgb\.train valid_sets="
    fold_loss, fold_column = "valid-binary_logloss", "valid binary_logloss-mean"
    special = few(
        {
            "without the average": boosted(boost_from_average=False),
            "renewed leaves": boosted("l1", objective="regression_l1", metric="l1"),
            "several classes": boosted("multi_logloss", objective="multiclass", num_class=2, metric="multi_logloss"),
            "nothing left to split": boosted(min_gain_to_split=20.0),
            "a schedule": boosted(rate=lambda round: 0.5 / (1 + round)),
        },
        "a schedule",
    )

    def train(self, *callbacks, rounds=5, evals=("train", "validation"), start=None, data=None, options=None, **params):
        log, data = {}, data or self.package.Dataset(X[TRAIN], Y[TRAIN])
        sets = {"train": data, "validation": self.package.Dataset(X[HELD_OUT], Y[HELD_OUT], reference=data)}
        recording = [self.package.record_evaluation(log)] if evals else []
        booster = self.package.train(
            self.given | params, data, rounds, valid_sets=[sets[n] for n in evals], valid_names=list(evals),
            callbacks=[*callbacks, *recording], init_model=start, **(options or {}),
        )  # fmt: skip
        return booster, log

    def cv(self, *callbacks, rounds=5, **options):
        data = self.package.Dataset(X[TRAIN], Y[TRAIN])
        return self.package.cv(self.given, data, rounds, nfold=3, callbacks=list(callbacks), **options)

    def rounds(self, booster):
        return booster.num_trees()

    def scores(self, booster):
        return booster.predict(X[HELD_OUT], raw_score=True)

    def load(self, path):
        return self.package.Booster(model_file=path)

    def each_round(self, call):
        def calls(env):
            call(env.iteration - env.begin_iteration + 1)

        calls.before_iteration = True
        return calls

    def schedule(self, rate):
        """A callback of the user's own: rate(round) by the booster's count."""

        def rates(env):
            env.model.reset_parameter({"learning_rate": rate(env.iteration)})

        rates.before_iteration = True
        return rates

    def recounting(self, rate):
        return self.package.reset_parameter(learning_rate=rate)

    uncounted = "LightGBM does not count rounds in which no leaf can be split, and these are trained as all others."

    def keeping(self):
        return self.package.early_stopping(3, verbose=False), {}


class CatBoost(Booster):
    def straight(self, rounds, planned):
        model, _ = self.train(rounds=planned, **self.drawing)
        return model.predict(X, prediction_type="RawFormulaVal", ntree_end=rounds)

    name, loss, hint = "catboost", "Logloss", r"callback\.snapshot"
    given = {"thread_count": 1, "verbose": False, "depth": 3, "eval_metric": "Accuracy", "use_best_model": False}
    drawing = {"rsm": 0.5}
    special = few(
        {
            "features and rows drawn": boosted(rsm=0.5, bootstrap_type="Bernoulli", subsample=0.5),
            "ordered": boosted(boosting_type="Ordered"),
        },
        "features and rows drawn",
    )

    def train(self, *callbacks, rounds=5, kind="CatBoostClassifier", snapshot=None, sets=1, **params):
        model = getattr(self.package, kind)(iterations=rounds, **self.given | params)
        held_out = [(X[HELD_OUT], Y[HELD_OUT])] * sets if sets else None
        model.fit(X[TRAIN], Y[TRAIN], eval_set=held_out, callbacks=list(callbacks) or None, **(snapshot or {}))
        return model, model.get_evals_result()

    def attempt(self, trial, *callbacks, **params):
        snapshot = callbacks[-1].snapshot if callbacks else None
        return self.train(*callbacks, rounds=trial.max_epochs, snapshot=snapshot, **params)

    def rounds(self, model):
        return model.tree_count_

    def scores(self, model):
        kind = "RawFormulaVal" if isinstance(model, self.package.CatBoostClassifier) else None
        return model.predict(X, **({"prediction_type": kind} if kind else {}))

    def load(self, path):
        return self.package.CatBoostClassifier().load_model(path)

    uncounted = "CatBoost gives its callback the number of the round, which is the position, and no model."

    def continuing(self, given):
        return {"snapshot": {"init_model": given}}

    def keeping(self):
        return None, {"use_best_model": True}

    def each_round(self, call):
        """CatBoost has no hook before a round: after the one before."""

        def after(info):
            call(info.iteration + 1)
            return True

        return SimpleNamespace(after_iteration=after)


def keeping_the_best(learn, n, cbs):
    from fastai.callback.tracker import SaveModelCallback

    learn.fit(n, 0.5, cbs=[*cbs, SaveModelCallback("mae")])


def fine_tuned(learn, n, cbs):
    learn.fine_tune(n - 2, 0.05, freeze_epochs=2, cbs=cbs)


class Fastai(Fit):
    data, drawing = "", {}
    special = few(
        {
            "one cycle": Case({"fit": lambda learn, n, cbs: learn.fit_one_cycle(n, 0.05, cbs=cbs)}, (2, 3), 6),
            "fine-tuning": Case({"fit": fine_tuned}, (2, 3), 6),
            "the best weights": Case({"fit": keeping_the_best}, (2, 3), 6),
        },
        "one cycle",
    )
    name, loss, hint = "fastai", "mae", "Make a callback for each attempt"
    monitor = "mae"

    def __init__(self):
        super().__init__()
        torch = pytest.importorskip("torch")
        g = torch.Generator().manual_seed(0)
        draw = torch.randn(24, 3, generator=g)
        self.rows = [(x, x.sum(0, keepdim=True) + 0.1 * torch.randn(1, generator=g)) for x in draw]

    def learner(self, seed=0, path=None, net=None, **options):
        import torch
        from fastai.callback.schedule import Learner
        from fastai.data.core import DataLoaders
        from fastai.data.load import DataLoader
        from fastai.torch_core import set_seed

        def mae(predicted, wanted):
            return (predicted - wanted).abs().mean()

        set_seed(seed)
        dls = DataLoaders(DataLoader(self.rows[:16], bs=8, shuffle=True), DataLoader(self.rows[16:], bs=8))
        layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
        loss = torch.nn.functional.mse_loss
        learn = Learner(dls, net or torch.nn.Sequential(*layers), loss, metrics=mae, path=path, **options)
        learn.logger = lambda record: None  # its table
        return learn

    def continuing(self, given):
        import torch

        learn = self.learner() if isinstance(given, str) else given
        if learn is not given:
            learn.model.load_state_dict(torch.load(Path(given) / "model.pth")["model"])
        return {"net": learn.model}

    def idling(self):
        from fastai.callback.core import Callback, CancelBatchException

        class Idles(Callback):
            def before_step(self):
                if self.epoch == 1:
                    raise CancelBatchException  # as GradientAccumulation

        return Idles(), {}

    def keeping(self):
        from fastai.callback.tracker import SaveModelCallback

        return SaveModelCallback("mae", comp=np.greater), {}

    def train(self, *callbacks, rounds=5, **options):
        learn = self.learner(path=self.folder, **options)
        learn.fit(rounds, 0.05, cbs=list(callbacks))
        columns = zip(learn.recorder.metric_names[1:-1], zip(*learn.recorder.values, strict=True), strict=True)
        return learn, {"": {name: list(values) for name, values in columns}}

    def metric(self, data, name):
        return name

    def attempt(self, trial, *callbacks, fit=lambda learn, n, cbs: learn.fit(n, 0.05, cbs=cbs)):
        learn = self.learner(seed=process(trial), path=self.folder)
        fit(learn, trial.max_epochs, [*callbacks])
        return learn, {}  # its history is of the last of several fits

    def rounds(self, learn):
        return len(learn.recorder.values)

    def scores(self, learn):
        return np.concatenate([v.flatten().float().numpy() for v in learn.model.state_dict().values()])

    def model(self, learn):
        return learn.model

    def each_round(self, call):
        from fastai.callback.core import Callback

        class Calls(Callback):
            def before_epoch(self):
                call(self.epoch + 1)

        return Calls()


class Transformers(Fit):
    data, drawing = "eval", {}
    name, loss, hint = "transformers", "loss", r"resume_from_checkpoint=trial\.checkpoint"
    monitor = "eval_loss"

    def __init__(self):
        for package in ("torch", "accelerate"):
            pytest.importorskip(package, reason=f"{package} is not installed")
        super().__init__()

    def lost(self, case):
        """Its mean over an epoch so far, and a log after the last evaluation: reported with the next."""
        return {"loss", "grad_norm", "learning_rate"} if case.within or "eval_steps" in case.options else set()

    @classmethod
    def cases(cls):
        return super().cases() | table("transformers_nets", "torch", "accelerate", "transformers")

    def attempt(self, trial, *callbacks, model=None, train=None, **options):
        options = {"epochs": trial.max_epochs if trial.unit == "epoch" else 2} | options
        made = {"model": model and model(), "train": train and train()}
        return self.train(*callbacks, rounds=options.pop("epochs"), start=trial.checkpoint, **made, **options)

    def train(self, *callbacks, rounds=5, start=None, **options):
        import tempfile

        import torch
        from transformers_nets import trainer

        with tempfile.TemporaryDirectory() as folder:
            t = trainer(self.folder or folder, *callbacks, epochs=rounds, **options)
            torch.rand(int(start is not None))  # not the state that a resumed training is to find
            t.train(resume_from_checkpoint=start)
        log = t.state.log_history
        return t, {"eval": {"loss": [line["eval_loss"] for line in log if "eval_loss" in line]}}

    def continuing(self, given):
        return {"start": given} if isinstance(given, str) else {"model": given.model}

    def idling(self):
        from transformers import TrainerCallback
        from transformers_nets import rows

        class Idles(TrainerCallback):
            def on_epoch_end(self, args, state, control, **others):
                args.gradient_accumulation_steps = 4

        return Idles(), {"train": rows(48)}

    def keeping(self):
        keeps = {"load_best_model_at_end": True, "metric_for_best_model": self.monitor, "greater_is_better": True}
        return None, {"save_strategy": "epoch"} | keeps

    def state(self, t):
        parts = {"optimizer": t.optimizer.state_dict(), "schedule": t.lr_scheduler.state_dict()}
        return super().state(t) | parts | {"step": t.state.global_step}

    def metric(self, data, name):
        return f"{data}_{name}"

    def straight(self, rounds, planned):
        from transformers import TrainerCallback

        class Ends(TrainerCallback):
            def on_epoch_end(self, args, state, control, **others):
                control.should_training_stop = state.epoch >= rounds

        return self.scores(self.train(Ends(), rounds=planned)[0])  # its schedule is made for all that are planned

    def rounds(self, t):
        return round(t.state.epoch)

    def scores(self, t):
        return np.concatenate([v.flatten().float().cpu().numpy() for v in t.model.state_dict().values()])

    def model(self, t):
        return t.model

    def each_round(self, call):
        from transformers import TrainerCallback

        class Calls(TrainerCallback):
            def on_epoch_begin(self, args, state, control, **others):
                call(round(state.epoch or 0) + 1)

        return Calls()


class Lightning(Fit):
    data, drawing = "", {}
    name, loss, hint = "lightning", "val_loss", r"ckpt_path=trial\.checkpoint"
    monitor = "val_loss"

    def __init__(self):
        pytest.importorskip("torch", reason="PyTorch is not installed")
        super().__init__()

    def lost(self, case):
        """Its means over an epoch so far."""
        return {"train_loss", "train_loss_epoch"} if case.within else set()

    @classmethod
    def cases(cls):
        return super().cases() | table("lightning_nets", "torch", "lightning")

    def callbacks(self, trial):
        count = {"tokens": lambda batch: batch[0].numel()} if trial.unit == "token" else {}
        return [self.callback(trial, **count)]

    def attempt(self, trial, *callbacks, net=None, train=None, validation=None, others=list, **options):
        """others: callbacks of the user's own. train: without data if the module makes its own; or a data module."""
        from lightning_nets import Net, make_trainer, shuffled

        options = {"epochs": trial.max_epochs, "default_root_dir": self.folder} | options
        trainer = make_trainer(*others(), *callbacks, **options)
        data = (train or shuffled)()
        how = {"datamodule": data} if hasattr(data, "prepare_data") else {"train_dataloaders": data}
        if "datamodule" not in how:
            how["val_dataloaders"] = (validation or shuffled)()
        trainer.fit((net or Net)(), **how, ckpt_path=trial.checkpoint)
        return trainer, {}

    def state(self, trainer):
        own = [c for c in trainer.callbacks if "haltune" not in c.state_key and "ModelCheckpoint" not in c.state_key]
        return super().state(trainer) | {
            "optimizers": [o.state_dict() for o in trainer.optimizers],
            "schedulers": [c.scheduler.state_dict() for c in trainer.lr_scheduler_configs],
            "logged": dict(trainer.callback_metrics),
            "callbacks": {c.state_key: c.state_dict() for c in own},
            "best of the kept": [c.best_model_score for c in trainer.checkpoint_callbacks],
            "step": trainer.global_step,
        }

    def continuing(self, given):
        return {"start": given} if isinstance(given, str) else {"net": given.lightning_module}

    def idling(self):
        from lightning_nets import Net

        class Idles(Net):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False

            def training_step(self, batch, index):
                loss = super().training_step(batch, index)
                if self.current_epoch != 1:
                    self.manual_backward(loss)
                    self.optimizers().step()

        return None, {"net": Idles()}

    def keeping(self):
        from lightning.pytorch.callbacks import ModelCheckpoint

        return ModelCheckpoint(self.folder, monitor=self.monitor), {"enable_checkpointing": True}

    def train(self, *callbacks, rounds=5, net=None, start=None, **options):
        from lightning_nets import Net, make_trainer, shuffled

        log = []

        class Logs(Net):
            def on_validation_end(self):
                log.append(float(self.trainer.callback_metrics["val_loss"]))

        seed(3)
        trainer = make_trainer(*callbacks, epochs=rounds, num_sanity_val_steps=0, **options)
        trainer.fit(net or Logs(), shuffled(), shuffled(), ckpt_path=start)
        return trainer, {"": {"val_loss": log}}

    def metric(self, data, name):
        return name

    def rounds(self, trainer):
        return trainer.current_epoch

    def scores(self, trainer):
        state = trainer.lightning_module.state_dict().values()
        return np.concatenate([v.detach().flatten().float().numpy() for v in state])

    def model(self, trainer):
        return trainer.lightning_module

    def each_round(self, call):
        from lightning.pytorch import Callback

        class Calls(Callback):
            def on_train_epoch_start(self, trainer, module):
                call(trainer.current_epoch + 1)

        return Calls()


class Keras(Fit):
    data, drawing = "", {}
    name, loss, hint = "keras", "val_loss", r"initial_epoch=trial\.epoch"
    monitor = "val_loss"

    @classmethod
    def cases(cls):
        return super().cases() | table("keras_resume_checks", "keras")

    def attempt(self, trial, *callbacks, make=None, by_function=False, data=None, **options):
        """by_function: the file of its model cannot be loaded."""
        from keras_resume_checks import X, Y, momentum, net, seed_everything

        def new(lr):
            return make() if make else net(momentum(0.01))

        seed_everything(3 if trial.checkpoint is None else 77)  # a resumed process has drawn other numbers
        self.package.random.normal((2,))
        model = trial.load_model(new) if by_function else trial.load_model() or new(0.01)
        x, y, size = (data(), None, None) if data else (X, Y, 4)
        done = int(trial.epoch) // 3 if trial.unit == "step" else trial.epoch
        plan = {"epochs": trial.max_epochs, "initial_epoch": done}
        given = {"validation_data": (X, Y), "batch_size": size, "verbose": 0} | plan | options
        return model, {"": model.fit(x, y, callbacks=[*callbacks], **given).history}

    def continuing(self, given):
        return {"model": self.package.saving.load_model(given) if isinstance(given, str) else given}

    def idling(self):
        class Idles(self.package.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 1:
                    self.model.train_function = lambda data: {"loss": 0.0}

        return Idles(), {}

    def keeping(self):
        return self.package.callbacks.EarlyStopping(self.monitor, mode="max", restore_best_weights=True), {}

    def state(self, model):
        from keras_resume_checks import state

        return {"variables": state(model)}

    def train(self, *callbacks, rounds=5, model=None, **options):
        from keras_resume_checks import X, Y, momentum, net, seed_everything

        seed_everything(3)
        model, data = model or net(momentum(0.01)), {"x": X, "y": Y, "validation_data": (X, Y), "batch_size": 4}
        history = model.fit(epochs=rounds, callbacks=[*callbacks], verbose=0, **data, **options)
        return model, {"": history.history}

    def metric(self, data, name):
        return name

    def rounds(self, model):
        return int(model.optimizer.iterations) // 3

    def scores(self, model):
        return np.concatenate([w.ravel() for w in model.get_weights()])

    def each_round(self, call):
        class Calls(self.package.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                call(epoch + 1)

        return Calls()


def descends(state):
    """One epoch of noisy gradient descent with momentum; its loss."""
    noise = random.random() + np.random.rand()  # noqa: NPY002 (the loop keeps their states)
    state["v"] = 0.9 * state["v"] - 0.1 * (2 * state["x"] + noise)
    state["x"] += state["v"]
    return state["x"] ** 2


class Own(Loop):
    """A loop of the user's own."""

    name = "haltune"
    special = {"by steps": Case(at=(2, 5, 6), length=8, unit="step")}

    def attempt(self, trial):
        from haltune.callbacks.loop import TrainingLoop

        state = json.loads(Path(trial.checkpoint).read_text()) if trial.checkpoint else {"x": 3.0, "v": 0.0}
        for _ in (loop := TrainingLoop(trial, save=lambda path: path.write_text(json.dumps(state)))):
            loop.report(descends(state), metrics={"speed": state["v"]})
        return state, {}

    def state(self, state):
        return state | {"next random numbers": drawn()}


class Plain(Own):
    """A loop of the user's own without a callback."""

    def attempt(self, trial):
        state = json.loads(Path(trial.checkpoint).read_text()) if trial.checkpoint else {"x": 3.0, "v": 0.0}
        for _ in trial.epochs():
            if trial.report(descends(state)).stops:
                trial.save(lambda path: path.write_text(json.dumps(state)))
        return state, {}


class Sharded(Own):
    """A model that may be spread over ranks, on one."""

    name, usual, special = "torch", Case(at=(2, 4), length=6), {}

    @classmethod
    def cases(cls):
        return super().cases() | table("sharded_nets", "torch")

    def attempt(self, trial, by=None, **options):
        from sharded_nets import train

        return (by or train)(trial, **options), {}


class Sklearn(Loop):
    name, monitor = "sklearn", Maximize("accuracy")
    special = few({
        "drawing from NumPy's own state": Case({"loss": "log_loss"}, (2, 4), 5),
        "averaged and adaptive": Case(
            {"average": 10, "learning_rate": "adaptive", "eta0": 0.1, "random_state": np.random.RandomState(1)},
            (2, 4), 5,
        ),
        "a network with Adam": Case(
            {"of": "neural_network.MLPClassifier", "hidden_layer_sizes": (5,), "batch_size": 16}, (2, 4), 5
        ),
        "naive Bayes": Case({"of": "naive_bayes.GaussianNB"}, (2, 4), 5),
    }, "a network with Adam")  # fmt: skip

    def __init__(self):
        super().__init__()
        pytest.importorskip("skops", reason="skops is not installed")

    def attempt(self, trial, of="linear_model.SGDClassifier", **parameters):
        from haltune.callbacks.sklearn import fit

        module, name = of.split(".")
        estimator = getattr(importlib.import_module(f"sklearn.{module}"), name)(**copy.deepcopy(parameters))
        held_out = X[HELD_OUT], Y[HELD_OUT]
        return fit(trial, estimator, X[TRAIN], Y[TRAIN], validation=held_out, batch_size=32), {}

    def state(self, model):
        learnt = {"coefs_", "intercepts_", "loss_curve_"}
        arrays = {n: v for n, v in vars(model).items() if isinstance(v, np.ndarray) or n in learnt}
        return arrays | {"attributes": sorted(vars(model)), "next random numbers": drawn()}


class Accelerate(Loop):
    name, usual = "accelerate", Case(at=(2, 3), length=5)
    special = few(
        {
            "seedable sampler": Case({"seedable": True}, (2, 3), 5),
            # of 6 batches each: within a pass, at its end, after a batch, within one after a whole one
            "within passes": Case({}, (4, 6, 7, 14), 15, "step"),
            "within passes, seedable sampler": Case({"seedable": True}, (4, 6, 7, 14), 15, "step"),
            "noisy data": Case({"noisy": True}, (2, 3), 5),
            "within passes, noisy data": Case({"noisy": True}, (1, 4, 5, 6, 7, 14), 15, "step"),
        },
        "within passes",
    )

    def attempt(self, trial, **options):
        from accelerated import train

        return train(trial, seed=process(trial), **options), {}

    def state(self, weights):
        return {"weights": weights, "next random numbers": drawn()}


class StableBaselines3(Fit):
    """Reinforcement learning, which counts steps."""

    name, monitor = "stable_baselines3", Maximize("mean_reward")
    usual = Case(at=(32, 96), length=128, unit="step")

    def __init__(self):
        super().__init__()
        pytest.importorskip("gymnasium", reason="gymnasium is not installed")

    @classmethod
    def cases(cls):
        return super().cases() | table("sb3_models", "stable_baselines3", "gymnasium")

    def attempt(self, trial, *callbacks, fit=None):
        from sb3_models import a2c

        return (fit or a2c)(trial.horizon, process(trial), *callbacks), {}

    def state(self, trained):
        model, root = trained
        policy, normalized = model.policy, model.get_vec_normalize_env()
        numbers = {name: one for name, one in vars(model).items() if type(one) in (bool, int, float)}
        of = getattr(normalized, "obs_rms", {})
        return {
            "policy": policy.state_dict(),
            "trainable": [weight.requires_grad for weight in policy.parameters()],
            "calls": (root.n_calls, getattr(policy.features_extractor, "calls", 0)),
            "optimizer": policy.optimizer.state_dict(),
            "means": {name: vars(one) for name, one in (of if isinstance(of, dict) else {"": of}).items()},
            "numbers": {name: one for name, one in numbers.items() if name not in ("seed", "start_time")},
            "next random numbers": drawn(),
        }


class Page(Fit):
    """The framework and the callback on the page about the port, read from there."""

    name, loss, hint = "a_framework", "val_loss", "Load trial.checkpoint before you fit"
    monitor, drawing, uncounted = loss, {"number": 3}, "it has none"

    def __init__(self):
        self.package = sys.modules.setdefault(self.name, ModuleType(self.name))
        for block in blocks("docs/reference/port.md")[:2]:
            block.run(vars(self.package))
        self.callback = self.package.HaltuneCallback

    def train(self, *callbacks, rounds=5, start=None, number=None):
        loop, values = start, []
        if not isinstance(start, self.package.Loop):
            loop = self.package.Loop(0.1)
            loop.state = loop.state if start is None else json.loads(Path(start).read_text())
        if number is not None:
            seed(number)
        loop.fit(rounds, [*callbacks, self.each_round(lambda epoch: values.append(loop.state["loss"]))])
        return loop, {self.data: {self.loss: values}}

    def attempt(self, trial, *callbacks):
        return self.train(*callbacks, rounds=trial.max_epochs, start=trial.checkpoint)

    def metric(self, data, name):
        return name

    def rounds(self, loop):
        return loop.state["epoch"]

    def scores(self, loop):
        return np.array([loop.state["loss"]])

    def each_round(self, call):
        hooks = SimpleNamespace(on_epoch_end=lambda loop, logged: call(loop.state["epoch"]))
        hooks.on_fit_start = hooks.on_fit_end = lambda *given: None
        return hooks


BOOSTING = {"xgboost": XGBoost, "lightgbm": LightGBM, "catboost": CatBoost}
FITS = BOOSTING | {"fastai": Fastai, "transformers": Transformers, "lightning": Lightning, "page": Page}
LOOPS = FITS | {"loop": Own, "plain": Plain, "sharded": Sharded, "sklearn": Sklearn, "accelerate": Accelerate}
LOOPS["stable_baselines3"] = StableBaselines3
HAVE_A_FIT = {*LOOPS, "keras"}  # modules of haltune.callbacks
if os.environ.get("HALTUNE_FITS") == "keras":  # a process for each of its backends
    LOOPS = FITS = {"keras": Keras}
