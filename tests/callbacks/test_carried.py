"""A callback object that several trials share: what steers a training is the trial's own, and records are kept."""

import itertools

import pytest
from fits import FITS, seed
from paused_studies import pausing_study

from haltune.callbacks.carried import steering
from haltune.errors import NotSupported

pytestmark = pytest.mark.filterwarnings(
    "ignore", "error::haltune.errors.HaltuneWarning", "ignore:A trial cannot:haltune.errors.HaltuneWarning"
)
LOOPS = sorted(FITS.keys() & {"lightning", "transformers", "fastai", "keras"})


class Records:
    """Collects losses of all trials, and shows them."""

    def on_epoch_end(self, trainer, logs):
        self.losses.append(logs["loss"])
        logs["mean"] = sum(self.losses) / len(self.losses)
        if logs["loss"] < self.best:
            self.best = logs["loss"]
            trainer.save_checkpoint("best")
        shown = {}
        shown["best"] = self.best
        print(shown)


class Halves:
    """Halves the rate by its losses."""

    def on_epoch_end(self, trainer, module):
        self.losses.append(float(trainer.callback_metrics["loss"]))
        self.seen.append(1)
        if len(self.losses) > 3 and self.losses[-1] > self.losses[-2]:
            for optimizer in trainer.optimizers:
                group = optimizer.param_groups[0]
                group["lr"] *= 0.5


class Stops:
    def on_evaluate(self, args, state, control, metrics, **others):
        self.bad += metrics["loss"] > self.best
        control.should_training_stop |= self.bad > 3


class Assigns:
    def on_epoch_begin(self, epoch, logs=None):
        self.calls += 1
        self.model.optimizer.learning_rate.assign(0.1 / self.calls)


class Cancels:
    def after_epoch(self):
        self.epochs += 1
        if self.epochs > 5:
            raise CancelFitException  # noqa: F821


def halve(optimizer):
    for group in optimizer.param_groups:
        group["lr"] /= 2


def show(trainer, losses):
    shown = {"epoch": trainer.current_epoch}
    shown["losses"] = losses


class Calls:
    def on_epoch_end(self, trainer, module):
        self.losses.append(1.0)
        if len(self.losses) > 3:
            halve(trainer.optimizers[0])


class Shows:
    def on_epoch_end(self, trainer, module):
        self.losses.append(1.0)
        show(trainer, self.losses)


class Plots:
    def draw(self, axes):
        axes.set_title(f"{len(self.losses)} losses")
        axes.name = self.losses[-1]

    def on_train_end(self, logs=None):
        self.losses += [logs["loss"]]
        self.draw(self.axes)


class Ends:
    def _on_step(self):
        self.steps += 1
        return self.steps < 100


class Goes:
    def _on_step(self):
        self.steps += 1
        print(self.steps)
        return True


class Freezes:
    def on_train_epoch_start(self, trainer, pl_module):
        for parameter in pl_module.layers.parameters():
            parameter.requires_grad_(self.count < 2)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Records, set()),
        (Halves, {"losses"}),
        (Stops, {"bad", "best"}),
        (Assigns, {"calls", "model"}),
        (Cancels, {"epochs"}),
        (Freezes, {"count"}),
        (Ends, {"steps"}),
        (Goes, set()),
        (Plots, set()),
        (Calls, {"losses"}),
        (Shows, set()),
    ],
)
def test_what_a_callback_reads_counts_if_it_changes_the_training(kind, names):
    assert steering(kind) == names


def lightning():
    from lightning.pytorch import Callback

    class Mine(Callback):
        def on_train_epoch_start(self, trainer, module):
            self.epochs.append(len(self.epochs))
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = 0.1 / len(self.epochs)

    return Mine, "on_train_start"


def transformers():
    from transformers import TrainerCallback

    class Mine(TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer=None, **others):
            self.epochs.append(len(self.epochs))
            optimizer.param_groups[0]["lr"] = 0.1 / len(self.epochs)

    return Mine, "on_train_begin"


def fastai():
    from fastai.callback.core import Callback

    class Mine(Callback):
        def before_batch(self):
            self.epochs.append(len(self.epochs))
            self.opt.set_hypers(lr=0.1 / len(self.epochs))

    return Mine, "before_fit"


def keras():
    import keras

    class Mine(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epochs.append(len(self.epochs))
            self.model.optimizer.learning_rate.assign(0.01 / len(self.epochs))

    return Mine, "on_train_begin"


MINE = {"lightning": lightning, "transformers": transformers, "fastai": fastai, "keras": keras}


@pytest.mark.parametrize("name", LOOPS)
def test_a_callback_that_changes_a_training_by_what_another_left_in_it_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lib, kind = FITS[name](), MINE[name]()[0]
    mine = kind()
    mine.epochs = []
    study = pausing_study(f"{tmp_path}/s.db", at=(), epochs=2, trials=3, metric=lib.monitor, verbose=0)
    with study.ask() as first:
        lib.attempt(first, mine, *lib.callbacks(first))
    second = study.ask()
    with second, pytest.raises(NotSupported, match=r"The Mine object of this fit .* its epochs"):
        lib.attempt(second, mine, *lib.callbacks(second))
    assert study.trials[1].values.tolist() == []
    with study.ask() as third:
        mine.epochs = []
        lib.attempt(third, mine, *lib.callbacks(third))
    assert study.trials[2].status == "completed"


@pytest.mark.parametrize("name", LOOPS)
def test_a_callback_that_clears_its_list_for_each_training_resumes_exactly(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lib, (kind, starts) = FITS[name](), MINE[name]()
    setattr(kind, starts, lambda self, *_, **others: self.epochs.clear())
    curves = []
    for at in ((), (2,)):
        mine = kind()
        mine.epochs = []
        study = pausing_study(f"{tmp_path}/{len(at)}.db", at=at, epochs=4, trials=2, metric=lib.monitor, verbose=0)
        waiting = [study.ask(), study.ask()]
        for trial in itertools.chain(waiting, study):
            with trial:
                seed(trial.attempt - 1)
                lib.attempt(trial, mine, *lib.callbacks(trial))
        curves.append([t.values.tolist() for t in study.trials])
        assert [t.attempt for t in study.trials] == [1 + len(at)] * 2
    assert curves[0] == curves[1]
