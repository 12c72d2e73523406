"""Ctrl-C and SIGTERM in boosting, fastai and Hugging Face's Trainer: what is under way is finished and saved."""

import os
import signal
from types import MappingProxyType

import pytest
from fits import CatBoost, Fastai, LightGBM, Transformers, XGBoost
from interrupted_fits import InterruptedFits, handlers  # noqa: F401
from paused_studies import pausing_study

from haltune.log.events import Status


class InterruptedLoop(InterruptedFits):
    """Of a loop of `fits`."""

    raised = MappingProxyType({signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit})
    test_between_validations_it_trains_on_to_the_next = None  # each epoch is validated

    @pytest.fixture(autouse=True)
    def elsewhere(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # CatBoost writes a folder of its own where it runs
        self.lib = self.kind()

    def sends(self, *numbers, epoch=2):
        def call(number):
            for signalled in numbers if number == epoch else ():
                os.kill(os.getpid(), signalled)

        return self.lib.each_round(call)

    def searched(self, store, *others, **options):
        study = pausing_study(store, at=(), verbose=0)
        return study, self.lib.scores(self.lib.search(study, *others, **options))


class InterruptedFolds(InterruptedLoop):
    def test_in_cross_validation_it_is_heard_at_once(self, tmp_path):
        study = pausing_study(tmp_path / "search.db", at=(), verbose=0)
        with pytest.raises(KeyboardInterrupt), study.ask() as trial:
            self.lib.cv(self.sends(signal.SIGINT), self.lib.callback(trial, self.lib.fold_loss), rounds=4)
        assert (study.trials[0].status, study.trials[0].epoch) == ("interrupted", 1.0)


class TestXGBoost(InterruptedFolds):
    kind = XGBoost


class TestLightGBM(InterruptedFolds):
    kind = LightGBM

    def test_between_reports_it_trains_on_to_the_next(self, tmp_path):
        study = pausing_study(tmp_path / "search.db", at=(), verbose=0)
        with pytest.raises(KeyboardInterrupt), study.ask() as trial:
            self.lib.train(self.sends(signal.SIGINT), self.lib.told(trial, every=3), rounds=4)
        assert (study.trials[0].status, study.trials[0].checkpoint_epoch) == (Status.INTERRUPTED, 3.0)


class TestCatBoost(InterruptedLoop):
    kind = CatBoost
    test_a_second_one_leaves_at_once_and_says_what_is_lost = None  # nothing can be raised within fit

    def sends(self, *numbers, epoch=2):
        # at the end of a round: the first of them installs the handlers
        return super().sends(*numbers, epoch=epoch + 1)

    def test_a_second_one_waits_for_the_rounds_end_too(self, tmp_path):
        trial = self._interrupted(tmp_path, self.sends(signal.SIGINT, signal.SIGINT))
        assert (trial.status, trial.checkpoint_epoch) == (Status.INTERRUPTED, 2.0)

    def test_between_evaluations_it_trains_on_to_the_next(self, tmp_path):
        trial = self._interrupted(
            tmp_path, self.sends(signal.SIGINT), metric_period=2
        )  # of rounds 1, 3 and 4
        assert (trial.status, trial.checkpoint_epoch) == (Status.INTERRUPTED, 3.0)


class TestFastai(InterruptedLoop):
    kind = Fastai


class TestTransformers(InterruptedLoop):
    kind = Transformers
    test_between_validations_it_trains_on_to_the_next = (
        InterruptedFits.test_between_validations_it_trains_on_to_the_next
    )
    every_second_epoch = MappingProxyType({"eval_strategy": "steps", "eval_steps": 8})
