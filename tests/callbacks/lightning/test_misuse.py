"""What a Lightning fit is told of wrong use."""

import copy
import pickle

import pytest
from callback_fakes import FakeTrial
from paused_studies import pausing_study

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning_nets import Net, make_trainer, shuffled

from haltune.callbacks.lightning import HaltuneCallback
from haltune.errors import HaltuneWarning, InvalidInput, UnknownArgument


def fit(*callbacks, net=None, validation=True, epochs=9):
    trainer = make_trainer(*callbacks, epochs=epochs)
    trainer.fit(net or Net(), shuffled(), shuffled() if validation else None)
    return trainer


def test_two_callbacks_in_one_fit_are_refused():
    trial = FakeTrial()
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `HaltuneCallback`"):
        fit(HaltuneCallback(trial), HaltuneCallback(trial))
    assert trial.reports == []


def test_a_misnamed_metric_is_warned_about_after_the_sanity_check_and_refused_after_the_first_epoch():
    trial = FakeTrial(max_epochs=9)
    warned = r"check before training, 'val_loss' was.*monitor='val_loss'"
    refused = r"not logged in the first epoch\..*mean 'val_loss'\?"
    with pytest.warns(HaltuneWarning, match=warned), pytest.raises(InvalidInput, match=refused):
        fit(HaltuneCallback(trial, monitor="val_los"))
    assert trial.reports == []


@pytest.mark.parametrize("metric", ["fid", "val_fid", "val_lift"])  # next to val_loss, in each epoch
def test_a_metric_that_is_logged_every_other_epoch_is_waited_for(metric):
    class Rarely(Net):
        def on_validation_epoch_end(self):
            if self.current_epoch % 2 and not self.trainer.sanity_checking:
                self.log(metric, 3.0)

    trial = FakeTrial(max_epochs=4)
    fit(HaltuneCallback(trial, monitor=metric), net=Rarely(), epochs=4)
    assert trial.epochs == [2, 4]


def test_a_fit_without_validation_says_that_none_ran():
    refused = r"'val_loss' was not logged.*No validation ran: give trainer\.fit its"
    with pytest.raises(InvalidInput, match=refused):
        fit(HaltuneCallback(FakeTrial(max_epochs=9)), validation=False)


def test_one_module_for_two_trials_is_warned_about():
    study, net = pausing_study(at=(), trials=2), Net()
    with pytest.warns(HaltuneWarning, match="the very model that trial 0 has trained"):
        for trial in study:
            fit(HaltuneCallback(trial, "val_loss"), net=net, epochs=trial.max_epochs)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"mode": "max"}, r"HaltuneCallback\(mode=\.\.\.\): .*Maximize\('val_acc'\)"),
        ({"patience": 3}, "the policy decides when a trial stops"),
        ({"save_top_k": 3}, "keep_checkpoints=3"),
        ({"metric": "val_acc"}, "monitor="),
        ({"monitr": "val_acc"}, r"did you mean monitor=\?"),
    ],
)
def test_the_words_of_the_frameworks_own_callbacks_are_answered(named, told):
    with pytest.raises(UnknownArgument, match=told):
        HaltuneCallback(FakeTrial(), **named)


def test_a_callback_needs_its_trial_copies_with_it_and_a_subclass_takes_what_it_likes():
    class Mine(HaltuneCallback):
        def __init__(self, trial, **named):
            super().__init__(trial)
            self.named = named

    with pytest.raises(TypeError, match="'trial'"):
        HaltuneCallback()
    made = Mine(FakeTrial(), mode="max")
    assert made.named == {"mode": "max"}
    assert copy.copy(made).trial is copy.deepcopy(made).trial is made.trial
    assert pickle.loads(pickle.dumps(HaltuneCallback(FakeTrial()))).trial.id == 7
