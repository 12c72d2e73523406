"""HaltuneCallback in real trainings of fastai's Learner."""

import itertools

import numpy as np
import pytest
from callback_fakes import STOP, FakeTrial
from fits import Fastai
from paused_studies import pausing_study

pytest.importorskip("fastai", reason="fastai is not installed")


from haltune import Minimize
from haltune.callbacks import check_resume
from haltune.callbacks.fastai import HaltuneCallback
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

lib = Fastai()
learner, weights = lib.learner, lib.scores


def train(*callbacks, epochs=3, **options):
    learn = learner(**options)
    learn.fit(epochs, 0.05, cbs=list(callbacks))
    return learn


def test_a_stop_ends_the_fit_after_its_epoch_and_fits_after_it_train_nothing():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    callback = HaltuneCallback(trial, "mae")
    learn = train(callback, epochs=9)
    assert (trial.epochs, len(learn.recorder.values), trial.endings) == ([1, 2], 2, [None])
    before = weights(learn)
    learn.fit(2, cbs=callback)
    np.testing.assert_array_equal(weights(learn), before)


def test_a_phase_after_a_pause_trains_nothing_and_no_warning_comes(caplog):
    study = pausing_study(at=(2,), epochs=4, trials=1, metric=Minimize("mae"))
    for trial in study:
        with trial, caplog.at_level("WARNING", "haltune"):
            learn = train(HaltuneCallback(trial), epochs=2)
            before = weights(learn)
            learn.fit(2, cbs=HaltuneCallback(trial))
            assert (trial.attempt == 1) == np.array_equal(weights(learn), before)
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_epochs_of_several_fits_are_counted_on():
    trial = FakeTrial(max_epochs=9)
    learner().fine_tune(2, 0.05, freeze_epochs=1, cbs=HaltuneCallback(trial, "mae"))
    assert trial.epochs == [1, 2, 3]


def test_validating_predicting_and_looking_for_a_rate_report_nothing():
    trial = FakeTrial(max_epochs=3)
    learn = learner(cbs=HaltuneCallback(trial, "mae"))
    learn.validate()
    learn.get_preds()
    assert trial.reports == []
    learn.fit(2, 0.05)
    learn.validate()
    assert trial.epochs == [1, 2]


@pytest.mark.parametrize("hook", ["before_fit", "after_epoch"])
def test_a_callback_that_validates_within_a_fit_neither_reports_nor_ends_it(hook):
    from fastai.callback.core import Callback

    def validates(self):
        if not within:  # it starts a fit, too
            within.append(True)
            self.learn.validate()
            self.learn.get_preds()
            within.clear()

    within, trial = [], FakeTrial(max_epochs=9, verdicts={3.0: STOP})
    train(HaltuneCallback(trial, "mae"), type("Validates", (Callback,), {hook: validates})(), epochs=5)
    assert (trial.epochs, trial.endings) == ([1, 2, 3], [None])


def test_an_epoch_in_which_a_callback_does_not_validate_is_not_reported_and_resumes_exactly():
    from fastai.callback.core import Callback, CancelValidException

    class Seldom(Callback):
        def before_validate(self):
            if self.epoch % 2 == 0:
                raise CancelValidException

    def run(trial):
        learn = learner(cbs=Seldom())
        learn.fit(trial.max_epochs, 0.05, cbs=HaltuneCallback(trial, "mae"))
        epochs.append(trial.history.trial(trial.id).epochs.tolist())
        return learn

    epochs = []
    assert check_resume(run, goal=Minimize("mae"), pause_at=2)
    assert [2, 4] in epochs


# pausing


def test_the_best_model_comes_back_by_load():
    from haltune import Budget, Float, Minimize, Problem, Space, Study

    problem = Problem(Space({"lr": Float(0.3, 0.5)}), Minimize("mae", of="best"), max_epochs=5)
    s = Study(problem, budget=Budget(trials=1), seed=0, verbose=0)
    for trial in s:
        with trial:
            learn = learner()
            learn.fit(trial.max_epochs, trial.config["lr"], cbs=HaltuneCallback(trial))
    assert s.best.checkpoint_epoch == s.best.epoch
    fresh = learner(seed=5)
    fresh.load(f"{s.best.checkpoint}/model")
    fresh.validate()
    assert fresh.final_record[-1] == s.best.value


def test_a_checkpoint_that_is_damaged_says_what_to_do(tmp_path):
    s = pausing_study(tmp_path / "s.db", metric="mae", verbose=0)
    with s.ask() as trial:
        train(HaltuneCallback(trial, "mae"), epochs=4)
    trial = s.ask()
    with open(f"{trial.checkpoint}/progress.json", "w") as file:
        file.write("{}")
    with pytest.raises(InvalidInput, match=r"damaged.*Restore it from a copy"):
        train(HaltuneCallback(trial, "mae"), epochs=4)


# what fits change besides the weights


def unfreezing():
    from fastai.callback.core import Callback

    class Unfreezing(Callback):
        def before_train(self):  # not called in epochs that are replayed
            if self.epoch == 1:
                self.learn.model[0].requires_grad_(True)

    return Unfreezing()


def averaging():
    import copy

    from fastai.callback.core import Callback

    class Averaging(Callback):
        def before_fit(self):
            self.average = copy.deepcopy(self.learn.model)

        def after_train(self):
            for mean, new in zip(self.average.parameters(), self.learn.model.parameters(), strict=True):
                mean.data.mul_(0.5).add_(new.data, alpha=0.5)

        def before_validate(self):
            self.own = {name: value.clone() for name, value in self.learn.model.state_dict().items()}
            self.learn.model.load_state_dict(self.average.state_dict())

        def after_validate(self):
            self.learn.model.load_state_dict(self.own)

    return Averaging()


def counting():
    from fastai.callback.core import Callback

    class Counting(Callback):
        def after_loss(self):
            if self.training:
                self.learn.loss_grad = self.learn.loss_grad / (1 + self.train_iter)

    return Counting()


def accumulating():
    from fastai.callback.training import GradientAccumulation

    return GradientAccumulation(24)  # of epochs with 16 rows


@pytest.mark.parametrize("made", [unfreezing, accumulating, counting])
def test_layers_that_a_callback_unfroze_waiting_gradients_and_the_number_of_batches_resume(made):
    def run(trial):
        learn = learner(cbs=made())
        learn.model[0].requires_grad_(made is not unfreezing)
        learn.fit(trial.max_epochs, 0.05, cbs=HaltuneCallback(trial, "mae"))
        return learn

    assert check_resume(run, goal=Minimize("mae"))


def test_texts_of_a_language_model_that_its_loader_shuffles_in_place_keep_their_order():
    import torch
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.losses import CrossEntropyLossFlat
    from fastai.text.data import LMDataLoader
    from fastai.torch_core import set_seed

    def run(trial):
        numbers = torch.Generator().manual_seed(0)
        texts = [torch.randint(9, (n,), generator=numbers) for n in (5, 9, 4, 8, 6, 7)]
        set_seed(trial.attempt)
        loaders = (LMDataLoader(texts, bs=2, seq_len=4, shuffle=shuffles) for shuffles in (True, False))
        net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
        learn = Learner(DataLoaders(*loaders), net, CrossEntropyLossFlat())
        learn.logger = lambda record: None
        learn.fit(trial.max_epochs, 0.05, cbs=HaltuneCallback(trial))
        return learn

    assert check_resume(run, goal=Minimize("valid_loss"))


@pytest.mark.parametrize("at", [1, 3])
def test_fits_with_a_callback_each_count_on_and_resume_exactly(at):
    def run(trial):
        learn = learner()
        learn.model[0].requires_grad_(False)
        learn.fit(2, 0.05, cbs=HaltuneCallback(trial))
        learn.model[0].requires_grad_(True)
        learn.fit(2, 0.02, cbs=HaltuneCallback(trial))
        return learn

    assert check_resume(run, goal=Minimize("mae"), pause_at=at)


def test_a_training_with_an_average_in_a_callback_is_not_paused():
    def run(trial):
        learn = learner(cbs=averaging())
        learn.fit(trial.max_epochs, 0.05, cbs=HaltuneCallback(trial))
        return learn

    assert "changes in training and is not plain data" in str(check_resume(run, goal=Minimize("mae")))


def test_a_training_of_weights_outside_the_model_is_not_paused():
    import torch

    def run(trial):
        scale = torch.nn.Parameter(torch.ones(1))
        learn = learner(splitter=lambda net: [[*net.parameters()], [scale]])
        learn.loss_func = lambda predicted, wanted: torch.nn.functional.mse_loss(scale * predicted, wanted)
        learn.fit(trial.max_epochs, 0.05, cbs=HaltuneCallback(trial))
        return learn

    assert "weights outside the model, as of a loss" in str(check_resume(run, goal=Minimize("mae")))


def saving_the_worst():
    from fastai.callback.tracker import SaveModelCallback

    return SaveModelCallback(monitor="mae", comp=np.greater)  # loads it after the fit


@pytest.mark.parametrize("made", [averaging, saving_the_worst])
def test_the_kept_model_has_the_value_of_its_trial_where_callbacks_change_the_weights(made, tmp_path):
    s = pausing_study(tmp_path / "s.db", at=(), metric="mae", epochs=4, keep=1, verbose=0)
    with s.ask() as trial:
        learner(cbs=made(), path=tmp_path).fit(4, 0.1, cbs=HaltuneCallback(trial, "mae"))
    fresh = learner(seed=5)
    fresh.load(f"{s.best.checkpoint}/model")
    fresh.validate()
    assert fresh.final_record[-1] == s.best.value


def rounding():
    import torch
    from fastai.callback.core import Callback

    class Rounding(Callback):
        def before_validate(self):
            self.own = {name: value.clone() for name, value in self.learn.model.state_dict().items()}
            for parameter in self.learn.model.parameters():
                parameter.data = torch.round(parameter.data, decimals=1)

        def after_validate(self):
            self.learn.model.load_state_dict(self.own)
            self.own = None

    return Rounding()


@pytest.mark.parametrize("of", ["last", "best"])
def test_the_best_model_has_its_value_where_its_trial_pauses_and_other_weights_were_evaluated(of, tmp_path):
    goal = Minimize("mae", of=of)
    s = pausing_study(tmp_path / "s.db", at=(1,), metric=goal, epochs=4, keep=1, verbose=0)
    with s.ask() as trial:
        learner(cbs=rounding()).fit(4, 0.1, cbs=HaltuneCallback(trial, "mae"))
    assert s.trials[0].status == "paused"
    assert trial.checkpoint is not None  # to resume from
    if of == "last":
        assert s.best.checkpoint is None
    else:
        fresh = learner(seed=5)
        fresh.load(f"{s.best.checkpoint}/model")
        fresh.validate()
        assert fresh.final_record[-1] == s.best.value


def test_a_model_whose_weights_change_after_the_validation_is_not_kept(tmp_path):
    from fastai.callback.core import Callback

    class Shrinking(Callback):
        def after_validate(self):
            for parameter in self.learn.model.parameters():
                parameter.data *= 0.5

    s = pausing_study(tmp_path / "s.db", at=(), metric="mae", epochs=2, keep=1, verbose=0)
    changed = "is not kept: its weights have changed since they were evaluated"
    with pytest.warns(HaltuneWarning, match=changed), s.ask() as trial:
        learner(cbs=Shrinking()).fit(2, 0.1, cbs=HaltuneCallback(trial, "mae"))
    assert s.best.checkpoint is None


def test_a_fit_that_a_resumed_trial_replays_as_a_whole_has_not_trained_the_weights_of_the_next_trial(tmp_path):
    for _ in range(2):  # as in two processes
        s = pausing_study(tmp_path / "s.db", at=(3,), epochs=4, trials=2, metric="mae", verbose=0)
        for trial in s:
            with trial:
                learner().fine_tune(2, 0.05, freeze_epochs=2, cbs=HaltuneCallback(trial, "mae"))
            if len(s.trials) == 1 and trial.attempt == 1:
                break
    assert [(t.status, t.epoch) for t in s.trials] == [("completed", 4)] * 2


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_fit_of_another_length_than_at_the_pause_is_refused(epochs, tmp_path):
    s = pausing_study(tmp_path / "s.db", at=(2,), metric="mae", epochs=4, verbose=0)
    with s.ask() as trial:
        learner().fit_one_cycle(4, 0.05, cbs=HaltuneCallback(trial, "mae"))
    with pytest.raises(NotSupported, match=rf"fit of 4 epochs, and this fit has {epochs}"), s.ask() as trial:
        learner().fit_one_cycle(epochs, 0.05, cbs=HaltuneCallback(trial, "mae"))


def test_another_schedule_than_at_the_pause_is_refused(tmp_path):
    s = pausing_study(tmp_path / "s.db", at=(2,), metric="mae", epochs=4, verbose=0)
    with s.ask() as trial:
        learner().fit_one_cycle(4, 0.05, cbs=HaltuneCallback(trial, "mae"))
    with pytest.raises(NotSupported, match=r"another schedule of 'lr'"):
        learner().fit_one_cycle(4, 0.04, cbs=HaltuneCallback(s.ask(), "mae"))


@pytest.mark.parametrize(("monitor", "said"), [("maee", "not logged by this Learner"), ("mae", "no validation data")])
def test_a_metric_that_no_epoch_can_have_is_refused_before_the_first(monitor, said):
    learn = learner()
    if monitor == "mae":
        learn.dls.loaders = learn.dls.loaders[:1]
    before = weights(learn)
    with pytest.raises(InvalidInput, match=said):
        learn.fit(3, 0.05, cbs=HaltuneCallback(FakeTrial(max_epochs=3), monitor))
    np.testing.assert_array_equal(weights(learn), before)


held, named, of_metric = (np.random.default_rng(n) for n in range(3))


class Noise:
    """A metric with a generator of its own."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, predictions, targets):
        return (predictions - targets).abs().mean() + self.rng.normal()


def draws_in_metrics_and_a_callback(trial, drawn):
    from fastai.callback.core import Callback

    class Draws(Callback):
        def __init__(self):
            self.rng = held

        def after_step(self):
            drawn.setdefault(trial.id, set()).update([self.rng.random(), named.random()])

    def sampled(predictions, targets):
        number = of_metric.random()
        drawn.setdefault(trial.id, set()).add(number)
        return (predictions - targets).abs().mean() + number

    learn = learner(cbs=Draws())
    learn.metrics = [*learn.metrics, sampled, Noise(trial.id)]
    learn.fit(trial.max_epochs, 0.05, cbs=HaltuneCallback(trial, record="all"))
    return learn


def test_metrics_that_draw_resume_exactly(monkeypatch):
    def run(trial):
        if trial.attempt == 1:
            monkeypatch.setitem(globals(), "of_metric", np.random.default_rng(0))
        return draws_in_metrics_and_a_callback(trial, {})

    assert check_resume(run, goal=Minimize("mae"), pause_at=2)


def test_generators_that_trials_share_go_on_where_they_were_after_a_resumed_trial(tmp_path):
    drawn, study = {}, pausing_study(at=(2,), epochs=4, trials=3, metric=Minimize("mae"), folder=tmp_path, verbose=0)
    first, second = study.ask(), study.ask()
    for trial in itertools.chain((second, first), study):  # the one that resumes last paused before the other trained
        with trial:
            draws_in_metrics_and_a_callback(trial, drawn)
    assert [t.attempt for t in study.trials] == [2, 2, 2]
    assert not drawn[2] & (drawn[0] | drawn[1])
