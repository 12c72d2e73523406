"""Ctrl-C and SIGTERM in boosting, fastai and Hugging Face's Trainer: what is under way is finished and saved."""

import os
import signal
from types import MappingProxyType

import numpy as np
import pytest
from interrupted_fits import InterruptedFits, handlers  # noqa: F401
from paused_studies import pausing_study

from haltune.log.events import Status

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X.sum(axis=1)
RAISED = MappingProxyType({signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit})


def send(numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


class TestXGBoost(InterruptedFits):
    raised = RAISED
    test_between_validations_it_trains_on_to_the_next = None  # each round is validated

    @staticmethod
    def sends(*numbers, epoch=2):
        xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")

        class Sends(xgb.callback.TrainingCallback):
            def before_iteration(self, model, number, evals_log):
                if number + 1 == epoch:
                    send(numbers)
                return False

        return Sends()

    @staticmethod
    def searched(store, *others):
        import xgboost as xgb

        from haltune.callbacks.xgboost import HaltuneCallback

        data = xgb.DMatrix(X, Y)
        study = pausing_study(store, at=(), verbose=0)
        for trial in study:
            with trial:
                booster = xgb.train(
                    {"nthread": 1}, data, trial.max_epochs - trial.epoch, evals=[(data, "held")],
                    callbacks=[*others, HaltuneCallback(trial, "rmse")], xgb_model=trial.checkpoint, verbose_eval=False,
                )  # fmt: skip
        return study, booster.predict(data)

    def test_in_cross_validation_it_is_heard_at_once(self, tmp_path):
        sends = self.sends(signal.SIGINT)
        import xgboost as xgb

        from haltune.callbacks.xgboost import HaltuneCallback

        study = pausing_study(tmp_path / "search.db", at=(), verbose=0)
        with pytest.raises(KeyboardInterrupt), study.ask() as trial:
            xgb.cv({}, xgb.DMatrix(X, Y), 4, nfold=2, callbacks=[sends, HaltuneCallback(trial, "test-rmse")])
        assert (study.trials[0].status, study.trials[0].epoch) == ("interrupted", 1.0)


class TestLightGBM(InterruptedFits):
    raised = RAISED
    test_between_validations_it_trains_on_to_the_next = None  # the first round, which it does not see begin

    def test_between_reports_it_trains_on_to_the_next(self, tmp_path):
        trial = self._interrupted(tmp_path, self.sends(signal.SIGINT), every=3)
        assert (trial.status, trial.checkpoint_epoch) == (Status.INTERRUPTED, 3.0)

    @staticmethod
    def sends(*numbers, epoch=2):
        def sends(env):
            if env.iteration + 1 == epoch:
                send(numbers)

        sends.before_iteration = True
        return sends

    @staticmethod
    def searched(store, *others, **options):
        lgb = pytest.importorskip("lightgbm", reason="LightGBM is not installed")
        from haltune.callbacks.lightgbm import HaltuneCallback

        study = pausing_study(store, at=(), verbose=0)
        for trial in study:
            with trial:
                data = lgb.Dataset(X, Y)
                booster = lgb.train(
                    {"num_threads": 1, "verbose": -1, "min_data_in_leaf": 5}, data, trial.max_epochs - trial.epoch,
                    init_model=trial.checkpoint, valid_sets=[data],
                    callbacks=[*others, HaltuneCallback(trial, "l2", **options)],
                )  # fmt: skip
        return study, booster.predict(X)

    def test_in_cross_validation_it_is_heard_at_once(self, tmp_path):
        lgb = pytest.importorskip("lightgbm", reason="LightGBM is not installed")
        from haltune.callbacks.lightgbm import HaltuneCallback

        study = pausing_study(tmp_path / "search.db", at=(), verbose=0)
        with pytest.raises(KeyboardInterrupt), study.ask() as trial:
            callbacks = [self.sends(signal.SIGINT), HaltuneCallback(trial, "l2")]
            lgb.cv({"verbose": -1}, lgb.Dataset(X, Y), 4, nfold=2, stratified=False, callbacks=callbacks)
        assert (study.trials[0].status, study.trials[0].epoch) == ("interrupted", 1.0)


class TestCatBoost(InterruptedFits):
    raised = RAISED
    test_between_validations_it_trains_on_to_the_next = None  # the first round, which it does not see begin

    test_a_second_one_leaves_at_once_and_says_what_is_lost = None  # nothing can be raised within fit

    def test_a_second_one_waits_for_the_rounds_end_too(self, tmp_path):
        trial = self._interrupted(tmp_path, self.sends(signal.SIGINT, signal.SIGINT))
        assert (trial.status, trial.checkpoint_epoch) == (Status.INTERRUPTED, 2.0)

    def test_between_evaluations_it_trains_on_to_the_next(self, tmp_path):
        trial = self._interrupted(
            tmp_path, self.sends(signal.SIGINT), metric_period=2
        )  # of rounds 1, 3 and 4
        assert (trial.status, trial.checkpoint_epoch) == (Status.INTERRUPTED, 3.0)

    @staticmethod
    def sends(*numbers, epoch=2):
        class Sends:
            def after_iteration(self, info):
                if info.iteration == epoch:
                    send(numbers)
                return True

        return Sends()

    @staticmethod
    def searched(store, *others, **options):
        catboost = pytest.importorskip("catboost", reason="CatBoost is not installed")
        from haltune.callbacks.catboost import HaltuneCallback

        study = pausing_study(store, at=(), verbose=0)
        for trial in study:
            with trial:
                callback = HaltuneCallback(trial, "learn-RMSE")
                model = catboost.CatBoostRegressor(
                    iterations=trial.max_epochs,
                    thread_count=1,
                    train_dir=str(store.parent),
                    **{"verbose": False} | options,
                )
                model.fit(X, Y, callbacks=[*others, callback], **callback.snapshot)
        return study, model.predict(X)


class TestFastai(InterruptedFits):
    raised = RAISED
    test_between_validations_it_trains_on_to_the_next = None  # each epoch is validated

    @staticmethod
    def sends(*numbers, epoch=2):
        pytest.importorskip("fastai", reason="fastai is not installed")
        from fastai.callback.core import Callback

        class Sends(Callback):
            def before_epoch(self):
                if self.epoch + 1 == epoch:
                    send(numbers)

        return Sends()

    @staticmethod
    def searched(store, *others):
        pytest.importorskip("fastai", reason="fastai is not installed")
        import torch
        from fastai.data.core import DataLoaders
        from fastai.data.load import DataLoader
        from fastai.learner import Learner
        from fastai.torch_core import set_seed

        from haltune.callbacks.fastai import HaltuneCallback

        rows = [(torch.tensor(x).float(), torch.tensor([y]).float()) for x, y in zip(X, Y, strict=True)]
        study = pausing_study(store, at=(), verbose=0)
        for trial in study:
            with trial:
                set_seed(trial.attempt)
                dls = DataLoaders(DataLoader(rows, bs=20, shuffle=True), DataLoader(rows, bs=60))
                learn = Learner(dls, torch.nn.Linear(3, 1), torch.nn.functional.mse_loss)
                learn.fit(trial.max_epochs, 0.1, cbs=[*others, HaltuneCallback(trial, "valid_loss")])
        return study, learn.model.weight.detach().numpy()


class TestTransformers(InterruptedFits):
    raised = RAISED
    every_second_epoch = MappingProxyType({"eval_strategy": "steps", "eval_steps": 8})

    @staticmethod
    def sends(*numbers, epoch=2):
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")

        class Sends(transformers.TrainerCallback):
            def on_epoch_begin(self, args, state, control, **others):
                if round(state.epoch) + 1 == epoch:
                    send(numbers)

        return Sends()

    @staticmethod
    def searched(store, *others, **options):
        pytest.importorskip("transformers", reason="transformers is not installed")
        from transformers_nets import trainer, weights

        from haltune.callbacks.transformers import HaltuneCallback

        study = pausing_study(store, at=(), verbose=0)
        for trial in study:
            with trial:
                callbacks = [*others, HaltuneCallback(trial, "eval_loss")]
                t = trainer(store.parent / store.stem, *callbacks, epochs=trial.max_epochs, **options)
                t.train(resume_from_checkpoint=trial.checkpoint)
        return study, weights(t)["layers.2.weight"].numpy()
