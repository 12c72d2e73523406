"""A callback object that several trials share: what steers a training is the trial's own, and records are kept."""

import importlib
import itertools
import warnings

import pytest
from fits import FITS, seed
from paused_studies import pausing_study

from haltune import Minimize
from haltune.errors import HaltuneWarning, NotSupported

pytestmark = pytest.mark.filterwarnings(
    "ignore", "error::haltune.errors.HaltuneWarning", "ignore:A trial cannot:haltune.errors.HaltuneWarning"
)
LOOPS = sorted(FITS.keys() & {"lightning", "transformers", "fastai", "keras"})


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


# the base of callbacks, and hooks that each loop calls after each of its steps or epochs, and before each epoch
COUNTS = {
    "lightning": ("lightning.pytorch:Callback", "on_train_epoch_end", "on_train_epoch_start"),
    "transformers": ("transformers:TrainerCallback", "on_step_end", "on_epoch_begin"),
    "fastai": ("fastai.callback.core:Callback", "after_batch", "before_epoch"),
    "keras": ("keras.callbacks:Callback", "on_epoch_end", "on_epoch_begin"),
}


def counting(name, resets):
    """A callback of the program's that counts, and one that only records or notes, of a class each."""
    (module, _, kind), hook, each_epoch = COUNTS[name][0].partition(":"), *COUNTS[name][1:]
    base = getattr(importlib.import_module(module), kind)

    def counts(self, *_, **others):
        if self.better():
            self.step += 1
        else:
            self.step = 0

    def better(self):
        return self.step < 99

    def loads(self, state):  # no hook of an epoch
        self.step = state["step"]

    def notes(self, *_, **others):
        self.seen.append(len(self.seen))
        self.last = self.seen[-1]
        if self.last:
            self.twice = 2 * self.last

    def anew(self, *_, **others):
        self.step = 0

    others = {"better": better, "on_load_checkpoint": loads}
    starts = {MINE[name]()[1] if resets == "fit" else each_epoch: anew} if resets else {}
    both = (
        type("Counts", (base,), {"__module__": __name__, hook: counts, "step": 0, **others} | starts)(),
        type("Notes", (base,), {"__module__": __name__, hook: notes})(),
    )
    both[1].seen = []
    return both


@pytest.mark.parametrize("resets", ["", "fit", "epoch"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_count_that_another_trial_has_left_in_a_callback_of_the_programs_is_warned_of(
    name, resets, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lib = FITS[name]()
    study = pausing_study(f"{tmp_path}/s.db", at=(), epochs=2, trials=2, metric=lib.monitor, verbose=0)
    shared = counting(name, resets)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", HaltuneWarning)
        for trial in study:
            with trial:
                lib.attempt(trial, *shared, *lib.callbacks(trial))
    found = [str(one.message) for one in said if "has been in another training" in str(one.message)]
    assert [one.partition(",")[0] for one in found] == ["Counts has been in another training"] * (not resets)
    assert [t.status for t in study.trials] == ["completed"] * 2


def of_lightning(monitor):
    from lightning.pytorch.callbacks import EarlyStopping

    return EarlyStopping(monitor, patience=3)


def of_transformers(monitor):
    from transformers import EarlyStoppingCallback

    return EarlyStoppingCallback(early_stopping_patience=3)


def of_xgboost(monitor):
    from xgboost.callback import EarlyStopping

    return EarlyStopping(rounds=3)


EARLY = {"lightning": of_lightning, "transformers": of_transformers, "xgboost": of_xgboost}
OPTIONS = {"transformers": {"metric_for_best_model": "eval_loss", "greater_is_better": True}}  # no evaluation gains


@pytest.mark.parametrize("name", sorted(FITS.keys() & EARLY.keys()))
def test_the_patience_that_another_trial_has_used_up_ends_no_training(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lib = FITS[name]()
    goal = Minimize(lib.monitor, of="best")
    study = pausing_study(f"{tmp_path}/s.db", at=(), epochs=3, trials=3, metric=goal, verbose=0)
    shared, options = EARLY[name](lib.monitor), OPTIONS.get(name, {})
    with study.ask() as first:
        lib.attempt(first, shared, *lib.callbacks(first), **options)
    with study.ask() as second:
        for _ in range(2):  # as a notebook whose cell runs again
            with pytest.raises(NotSupported, match=r"object of this fit has been in another training"):
                lib.attempt(second, shared, *lib.callbacks(second), **options)
    assert study.trials[1].values.tolist() == []
    with study.ask() as third:
        lib.attempt(third, EARLY[name](lib.monitor), *lib.callbacks(third), **options)
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


class Curriculum:
    """A data set that a program makes harder. It computes its length late, fills a cache, and counts what is read."""

    def __init__(self, rows):
        self.rows, self.difficulty, self.order, self.length, self.cache = rows, 1, [*range(len(rows))], None, {}
        self.reads = 0

    def __len__(self):
        self.length = len(self.rows)
        return self.length

    def __getitem__(self, row):
        self.reads += 1
        return self.cache.setdefault(row, self.rows[self.order[row]])


class InOrder:
    """A sampler with its place in the present pass."""

    def __init__(self, rows):
        self.rows, self.at = rows, 0

    def __len__(self):
        return self.rows

    def __iter__(self):
        self.at = 0
        while self.at < self.rows:
            yield self.at
            self.at += 1


def of_lightning_data():
    from lightning_nets import rows
    from torch.utils.data import DataLoader

    data, sampler = Curriculum(rows()), InOrder(len(rows()))
    return data, lambda: DataLoader(data, 4, sampler=sampler)


def of_transformers_data():
    from transformers_nets import rows

    data = Curriculum(rows(16))
    return data, lambda: data


DATA = {
    "lightning": (of_lightning_data, "on_train_epoch_start", "on_train_epoch_end"),
    "transformers": (of_transformers_data, "on_epoch_begin", "on_epoch_end"),
}


@pytest.mark.parametrize("resets", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(FITS.keys() & DATA.keys()))
def test_data_that_another_trial_has_made_harder_are_warned_of(name, resets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lib, (make, starts, ends) = FITS[name](), DATA[name]
    data, train = make()
    module, _, kind = COUNTS[name][0].partition(":")
    base = getattr(importlib.import_module(module), kind)

    def harder(self, *_, **others):
        data.difficulty += 1
        data.order.reverse()

    def easy(self, *_, **others):
        data.difficulty = 1

    hooks = {"__module__": __name__, ends: harder} | ({starts: easy} if resets else {})
    study = pausing_study(f"{tmp_path}/s.db", at=(), epochs=2, trials=3, metric=lib.monitor, verbose=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", HaltuneWarning)
        for trial in study:
            with trial:
                lib.attempt(trial, type("Harder", (base,), hooks)(), *lib.callbacks(trial), train=train)
    found = [str(one.message) for one in said if "has been in another training" in str(one.message)]
    assert [one[: one.index(", and")] for one in found] == [
        "Curriculum has been in another training, which changed its difficulty"
    ] * (not resets)
