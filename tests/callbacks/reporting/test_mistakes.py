"""Mistakes that every training loop can make: what is said, how often, and what it costs."""

import copy

import pytest
from callback_fakes import FakeTrial
from paused_studies import pausing_study

from haltune.callbacks.reporter import missing, nearest
from haltune.callbacks.reporter import Reporter
from haltune.errors import HaltuneWarning, InvalidInput, UnknownArgument


def fit_from_the_start(trial, hint="Call fit(..., ckpt_path=trial.checkpoint)"):
    reporter = Reporter(trial, resume_hint=hint)
    reporter.begin()
    for epoch in range(1, 5):
        if reporter.report(0.5, epoch):
            break
    if reporter.pausing:
        reporter.save(lambda path: path.write_text("state"))
    reporter.end_of_fit()


def test_fits_that_begin_again_are_counted_from_the_second_on():
    study = pausing_study(at=(2,), trials=3)
    fit_from_the_start(study.ask())
    with pytest.warns(HaltuneWarning, match="epoch 1 is ignored. Does this fit begin again") as first:
        fit_from_the_start(study.ask())
    fit_from_the_start(study.ask())
    with pytest.warns(
        HaltuneWarning, match=r"2 fits have begun again.*4 epochs were paid for twice"
    ) as second:
        fit_from_the_start(study.ask())
    assert "ckpt_path=trial.checkpoint" in str(second[0].message)
    assert "BOBOS()" in str(second[0].message)
    assert (len(first), len(second)) == (1, 1)


def test_a_fit_that_plans_too_few_epochs_is_told_once_a_study_and_what_to_write():
    study = pausing_study(at=(), trials=2)
    with pytest.warns(
        HaltuneWarning, match="plans 2 epochs.*compared at 4.*give the loop trial.max_epochs"
    ) as said:
        for trial in (study.ask(), study.ask()):
            Reporter(trial).begin(2)
    assert len(said) == 1


def test_two_callbacks_in_one_lightning_fit_say_which_line_to_delete():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    trial = FakeTrial()
    trainer = make_trainer(HaltuneCallback(trial), HaltuneCallback(trial), epochs=2)
    with pytest.raises(InvalidInput, match=r"holds two HaltuneCallbacks.*delete the other line"):
        trainer.fit(Net(), shuffled(), shuffled())
    assert trial.reports == []
    assert HaltuneCallback(trial).state_key == "haltune"


def test_a_misnamed_metric_is_told_after_the_sanity_check_and_refused_after_the_first_epoch():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    trial = FakeTrial(max_epochs=9)
    trainer = make_trainer(HaltuneCallback(trial, monitor="val_los"), epochs=9)
    with (
        pytest.warns(HaltuneWarning, match=r"check before training, 'val_loss' was.*monitor='val_loss'"),
        pytest.raises(InvalidInput, match=r"not logged in the first epoch\..*mean 'val_loss'\?"),
    ):
        trainer.fit(Net(), shuffled(), shuffled())
    assert trainer.current_epoch == 0


@pytest.mark.parametrize("metric", ["fid", "val_fid", "val_lift"])  # beside val_loss, in each epoch
def test_a_metric_that_is_logged_every_other_epoch_is_waited_for(metric):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    class Rarely(Net):
        def on_validation_epoch_end(self):
            if self.current_epoch % 2 and not self.trainer.sanity_checking:
                self.log(metric, 3.0)

    trial = FakeTrial(max_epochs=4)
    trainer = make_trainer(HaltuneCallback(trial, monitor=metric), epochs=4)
    trainer.fit(Rarely(), shuffled(), shuffled())
    assert trial.epochs == [2, 4]


HOSTS = ("lightning", "keras", "transformers", "xgboost", "lightgbm", "fastai")


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("ours", ["lightning", "transformers", "xgboost", "lightgbm"])
def test_a_callback_that_was_given_to_another_framework_names_the_right_import(ours, host):
    """Each asks it for what only its own callbacks have."""
    module = pytest.importorskip(f"haltune.callbacks.{ours}")
    kind = type("Own", (module.HaltuneCallback,), {})  # a user's own of it, too
    callback = kind(FakeTrial())
    inside = {"__name__": f"{host}.trainer"}
    exec("def ask(callback): return callback.asked_of_a_callback", inside)
    error, answer = (AttributeError, "has no attribute 'asked_of_a_callback'")
    if host != ours:
        error, answer = InvalidInput, f"callbacks.{ours} was given .*from haltune.callbacks.{host} import"
    with pytest.raises(error, match=answer):
        inside["ask"](callback)
    assert not hasattr(callback, "asked_of_a_callback")


def test_a_lightning_trainer_refuses_the_callback_for_transformers():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    pytest.importorskip("transformers", reason="Transformers is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.transformers import HaltuneCallback

    trainer = make_trainer(HaltuneCallback(FakeTrial()), epochs=2)
    with pytest.raises(InvalidInput, match=r"from haltune\.callbacks\.lightning import HaltuneCallback"):
        trainer.fit(Net(), shuffled(), shuffled())


@pytest.mark.parametrize(
    ("name", "logged", "meant"),
    [
        ("val_loss", ["val_acc"], None),  # followed, it would look for the worst accuracy
        ("val_loss", ["val_acc", "val_los"], "val_los"),
        ("val_acc", ["train_acc"], None),  # nor for what was learnt by heart
        ("val_acc", ["acc", "train_acc"], "acc"),
        ("train_los", ["train_loss"], "train_loss"),
        ("val_score", ["val_Score_1"], "val_Score_1"),
    ],
)
def test_no_name_is_advised_that_would_search_for_something_else(name, logged, meant):
    assert nearest(name, logged) == meant
    said = str(missing(name, logged, "in the first epoch", "Log it"))
    assert f"monitor={meant or 'name'!r}" in said
    assert ("Did you mean" in said) == bool(meant)


def test_a_lightning_fit_without_validation_says_that_none_ran():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    trainer = make_trainer(HaltuneCallback(FakeTrial(max_epochs=4)), epochs=4)
    with pytest.raises(
        InvalidInput, match=r"'val_loss' was not logged.*No validation ran: give trainer\.fit its"
    ):
        trainer.fit(Net(), shuffled())


def test_the_class_among_a_lightning_trainers_callbacks_is_told_to_be_called():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    with pytest.raises(InvalidInput, match=r"holds the class: write HaltuneCallback\(trial\)"):
        make_trainer(HaltuneCallback, epochs=2).fit(Net(), shuffled(), shuffled())


def test_one_model_for_several_trials_is_told_once_a_study():
    class Model:
        """Anything that can be told apart."""

    study, model = pausing_study(at=(), trials=4), Model()
    first, second, third = study.ask(), study.ask(), study.ask()
    Reporter(first).begin(model=model)
    Reporter(first).begin(model=model)  # the same trial again
    Reporter(second).begin(model=Model())
    with pytest.warns(HaltuneWarning, match="trial 1 trains the very model that trial 0 has trained") as said:
        for trial in (second, third):
            Reporter(trial).begin(model=model)
    assert len(said) == 1
    Reporter(pausing_study(at=(), trials=1).ask()).begin(model=model)  # of another search


def test_one_lightning_module_for_two_trials_is_told():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    study, net = pausing_study(at=(), trials=2), Net()
    with pytest.warns(HaltuneWarning, match="the very model that trial 0 has trained"):
        for trial in study:
            trainer = make_trainer(HaltuneCallback(trial, "val_loss"), epochs=trial.max_epochs)
            trainer.fit(net, shuffled(), shuffled())


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"mode": "max"}, r"HaltuneCallback\(mode=\.\.\.\): .*Maximize\('val_acc'\)"),
        ({"patience": 3}, "the policy decides when a run stops"),
        ({"save_top_k": 3}, "keep_checkpoints=3"),
        ({"metric": "val_acc"}, "monitor="),
        ({"monitr": "val_acc"}, r"did you mean monitor=\?"),
    ],
)
def test_the_words_of_the_frameworks_own_callbacks_are_answered(named, told):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from haltune.callbacks.lightning import HaltuneCallback

    with pytest.raises(UnknownArgument, match=told):
        HaltuneCallback(FakeTrial(), **named)


def test_a_callback_without_its_trial_is_told_what_to_write():
    pytest.importorskip("transformers", reason="transformers is not installed")
    from haltune.callbacks.transformers import HaltuneCallback

    with pytest.raises(
        UnknownArgument, match=r"has no trial: callbacks=\[HaltuneCallback\(trial\)\], one for each"
    ):
        HaltuneCallback()  # so a Trainer does for callbacks=[HaltuneCallback]
    made = HaltuneCallback(FakeTrial())
    assert copy.copy(made).trial is copy.deepcopy(made).trial is made.trial


def test_a_callback_of_ones_own_takes_what_it_likes():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from haltune.callbacks.lightning import HaltuneCallback

    class Mine(HaltuneCallback):
        def __init__(self, trial, **named):
            super().__init__(trial)
            self.named = named

    assert Mine(FakeTrial(), mode="max").named == {"mode": "max"}
