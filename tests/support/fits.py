"""Each framework's training behind one interface, for the tests of callbacks.

`train(*callbacks, rounds=)` returns the trained model and its history, {data: {metric: values}}; a round is an epoch.
"""

# ruff: noqa: RUF012 (cases, not state)

import importlib
import os
from types import SimpleNamespace

import numpy as np
import pytest

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * RNG.normal(size=240) > 0.8).astype("float32")
TRAIN, HELD_OUT = slice(160), slice(160, None)


class Fit:
    """Training of a library: `train` returns the trained model and its history, {data: {metric: values}}."""

    def __init__(self):
        self.package = pytest.importorskip(self.name, reason=f"{self.name} is not installed")
        self.callback = importlib.import_module(f"haltune.callbacks.{self.name}").HaltuneCallback

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

    def search(self, s, *others, monitor=None, **options):
        """Train every trial of a study as in the docstring; return the last booster."""
        for trial in s:
            with trial:
                callback = self.callback(trial, monitor or self.monitor)
                left = trial.max_epochs - trial.epoch
                given = {k: v(trial) if callable(v) else v for k, v in options.items()}
                booster, _ = self.train(callback, *others, rounds=left, start=trial.checkpoint, **given)
        return booster


class XGBoost(Fit):
    name, loss, hint = "xgboost", "logloss", "xgb_model=trial.checkpoint"
    given = {"objective": "binary:logistic", "eval_metric": ["error", "logloss"], "nthread": 1, "max_depth": 3}
    drawing = {"subsample": 0.5, "colsample_bynode": 0.5}
    nothing_to_measure = r"Nothing was logged\. Give xgb\.train evals="
    fold_loss, fold_column = "test-logloss", "test-logloss-mean"
    exact = {
        "hist": {},
        "by leaves": {"grow_policy": "lossguide", "max_leaves": 4},
        "linear": {"booster": "gblinear", "max_depth": None},
        "several classes": {"objective": "multi:softprob", "num_class": 2, "eval_metric": "mlogloss"},
        "adaptive leaves": {"objective": "reg:absoluteerror"},
    }
    draws = {"rows": {"subsample": 0.5}}

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

    def load(self, path):
        return self.package.Booster(model_file=path)

    def each_round(self, call):
        """A callback of the user's own: call(round) before each, from 1."""
        before = {"before_iteration": lambda _, model, epoch, log: bool(call(epoch + 1))}
        return type("Calls", (self.package.callback.TrainingCallback,), before)()

    def schedule(self, rate, trial=None):
        start = trial.epoch if trial else 0
        return self.package.callback.LearningRateScheduler(lambda i: rate(i + start))

    def first_rate(self, rate, trial=None):
        return {"eta": rate(trial.epoch - 1) if trial and trial.epoch else 0.7}


class LightGBM(Fit):
    name, loss, hint = "lightgbm", "binary_logloss", "init_model=trial.checkpoint"
    given = {
        "objective": "binary", "metric": ["binary_error", "binary_logloss"], "num_threads": 1, "num_leaves": 5,
        "verbose": -1,
    }  # fmt: skip
    drawing = {"bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.5}
    nothing_to_measure = r"Nothing was logged\. Give lgb\.train valid_sets="
    fold_loss, fold_column = "valid-binary_logloss", "valid binary_logloss-mean"
    exact = {
        "gbdt": {},
        "without the average": {"boost_from_average": False},
        "renewed leaves": {"objective": "regression_l1", "metric": "l1"},
        "several classes": {"objective": "multiclass", "num_class": 2, "metric": "multi_logloss"},
        "nothing left to split": {"min_gain_to_split": 20.0},
    }
    draws = {"bagging": {"bagging_fraction": 0.5, "bagging_freq": 1}}

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

    def schedule(self, rate, trial=None):
        start = trial.epoch if trial else 0
        return self.package.reset_parameter(learning_rate=lambda i: rate(i + start))

    def first_rate(self, rate, trial=None):
        return {}


class CatBoost(Fit):
    def straight(self, rounds, planned):
        model, _ = self.train(rounds=planned, **self.drawing)
        return model.predict(X, prediction_type="RawFormulaVal", ntree_end=rounds)

    name, loss, hint = "catboost", "Logloss", r"callback\.snapshot"
    given = {"thread_count": 1, "verbose": False, "depth": 3, "eval_metric": "Accuracy", "use_best_model": False}
    drawing = {"rsm": 0.5}
    exact = {
        "as it is": {},
        "features and rows drawn": {"rsm": 0.5, "bootstrap_type": "Bernoulli", "subsample": 0.5},
        "ordered": {"boosting_type": "Ordered"},
    }

    def train(self, *callbacks, rounds=5, kind="CatBoostClassifier", snapshot=None, sets=1, **params):
        model = getattr(self.package, kind)(iterations=rounds, **self.given | params)
        held_out = [(X[HELD_OUT], Y[HELD_OUT])] * sets if sets else None
        model.fit(X[TRAIN], Y[TRAIN], eval_set=held_out, callbacks=list(callbacks) or None, **(snapshot or {}))
        return model, model.get_evals_result()

    def search(self, s, *others, monitor=None, **params):
        for trial in s:
            with trial:
                callback = self.callback(trial, monitor or self.monitor)
                model, _ = self.train(*others, callback, rounds=trial.max_epochs, snapshot=callback.snapshot, **params)
        return model

    def rounds(self, model):
        return model.tree_count_

    def scores(self, model):
        kind = "RawFormulaVal" if isinstance(model, self.package.CatBoostClassifier) else None
        return model.predict(X, **({"prediction_type": kind} if kind else {}))

    def load(self, path):
        return self.package.CatBoostClassifier().load_model(path)

    def each_round(self, call):
        """CatBoost has no hook before a round: after the one before."""

        def after(info):
            call(info.iteration + 1)
            return True

        return SimpleNamespace(after_iteration=after)


class Fastai(Fit):
    data, drawing = "", {}
    name, loss, hint = "fastai", "mae", "Make a callback for each attempt"
    monitor = "mae"

    def __init__(self):
        super().__init__()
        torch = pytest.importorskip("torch")
        g = torch.Generator().manual_seed(0)
        draw = torch.randn(24, 3, generator=g)
        self.rows = [(x, x.sum(0, keepdim=True) + 0.1 * torch.randn(1, generator=g)) for x in draw]

    def learner(self, seed=0, path=None, **options):
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
        learn = Learner(dls, torch.nn.Sequential(*layers), loss, metrics=mae, path=path, **options)
        learn.logger = lambda record: None  # its table
        return learn

    def train(self, *callbacks, rounds=5, **options):
        learn = self.learner(**options)
        learn.fit(rounds, 0.05, cbs=list(callbacks))
        columns = zip(learn.recorder.metric_names[1:-1], zip(*learn.recorder.values, strict=True), strict=True)
        return learn, {"": {name: list(values) for name, values in columns}}

    def metric(self, data, name):
        return name

    def search(self, s, *others, monitor=None, **options):
        for trial in s:
            with trial:
                callbacks = *others, self.callback(trial, monitor or self.monitor)
                learn, _ = self.train(*callbacks, rounds=trial.max_epochs, seed=trial.attempt - 1, **options)
        return learn

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

    def search(self, s, *others, monitor=None, **options):
        for trial in s:
            with trial:
                callbacks = *others, self.callback(trial, monitor or self.monitor)
                t, _ = self.train(*callbacks, rounds=trial.max_epochs, start=trial.checkpoint, **options)
        return t

    def train(self, *callbacks, rounds=5, start=None, **options):
        import tempfile

        from transformers_nets import trainer

        with tempfile.TemporaryDirectory() as folder:
            t = trainer(folder, *callbacks, epochs=rounds, **options)
            t.train(resume_from_checkpoint=start)
        log = t.state.log_history
        return t, {"eval": {"loss": [line["eval_loss"] for line in log if "eval_loss" in line]}}

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
        return np.concatenate([v.flatten().float().numpy() for v in t.model.state_dict().values()])

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

    def train(self, *callbacks, rounds=5, **options):
        from lightning_nets import Net, make_trainer, seed, shuffled

        log = []

        class Logs(Net):
            def on_validation_end(self):
                log.append(float(self.trainer.callback_metrics["val_loss"]))

        seed(3)
        trainer = make_trainer(*callbacks, epochs=rounds, num_sanity_val_steps=0, **options)
        trainer.fit(Logs(), shuffled(), shuffled())
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

    def train(self, *callbacks, rounds=5, **options):
        from keras_resume_checks import X, Y, momentum, net, seed_everything

        seed_everything(3)
        model, data = net(momentum(0.01)), {"x": X, "y": Y, "validation_data": (X, Y)}
        history = model.fit(epochs=rounds, callbacks=[*callbacks], verbose=0, batch_size=4, **data, **options)
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


BOOSTING = {"xgboost": XGBoost, "lightgbm": LightGBM, "catboost": CatBoost}
FITS = BOOSTING | {"fastai": Fastai, "transformers": Transformers, "lightning": Lightning}
if os.environ.get("HALTUNE_FITS") == "keras":  # a process for each of its backends
    FITS = {"keras": Keras}
