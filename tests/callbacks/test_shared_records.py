"""What a program collects from all trials in a callback stays the program's: a resumed training does not replace it."""

import gc
import itertools
import sys
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fits import FITS
from paused_studies import pausing_study

from haltune.callbacks import objects, plain
from haltune.errors import NotSupported


def add(collected, value):
    if isinstance(collected, np.ndarray):
        collected[int(np.isfinite(collected).sum())] = value
    elif isinstance(collected, dict):
        collected["last"] = value
        collected["all"] += (value,)
    else:
        getattr(collected, "values", collected).append(value)


def values(collected):
    if isinstance(collected, np.ndarray):
        return [int(value) for value in collected if np.isfinite(value)]
    return [*(collected["all"] if isinstance(collected, dict) else getattr(collected, "values", collected))]


class Records:
    def __init__(self):
        self.values = []


KINDS = {
    "a list": list,
    "a full deque": lambda: deque(maxlen=4),
    "a dict": lambda: {"last": None, "all": ()},
    "an array": lambda: np.full(20, np.nan),
    "an object": Records,
}


def test_threads_that_train_trials_at_a_time_note_what_these_start_with():
    def notes(trial):
        for number in range(3000):
            plain.note([number], trial, f"{number}")
            assert not plain.is_shared([number], None, trial)

    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as executor:
            list(executor.map(notes, range(4)))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("begun", "number", "known"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_the_place_of_a_generator_is_known_if_it_has_neither_begun_nor_an_epoch(begun, number, known):
    class Rows:
        def rows(self):
            yield from range(3)

        def of_epoch(self, epoch):
            yield from range(epoch)

    made = Rows().of_epoch(3) if number else Rows().rows()
    if begun:
        next(made)
    assert objects.under_way(made) == (not known)


def test_what_cannot_be_put_back_leaves_a_container_as_it_is():
    held = {"rate": 0.1, "late": None}
    state = {"is": "dict", "items": [["rate", 0.2], ["late", {"is": "object", "class": "gone.Gone", "attributes": {}}]]}
    with pytest.raises(NotSupported):
        objects.put_back(state, held)
    assert held == {"rate": 0.1, "late": None}


def test_an_attribute_that_a_resumed_training_lacks_is_not_a_record_of_other_trials_that_is_gone():
    plain.note([1], 0, "of a list that no longer exists")
    assert not plain.is_shared(None, objects.data_of([2]), 1)


LOOPS = sorted(FITS.keys() & {"lightning", "transformers", "fastai", "keras"})
EPOCHS, STARTS = (
    ("before_epoch", "on_train_epoch_start", "on_epoch_begin"),
    ("before_fit", "on_fit_start", "on_train_begin"),
)
CASES = [(name, "a list") for name in LOOPS] + [("lightning", kind) for kind in [*KINDS][1:] if "lightning" in LOOPS]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_trials_share_is_that_of_the_program_after_a_pause(name, kind, tmp_path, monkeypatch):
    shares(FITS[name](), kind, tmp_path, monkeypatch)


def shares(lib, kind, tmp_path, monkeypatch, **options):
    monkeypatch.chdir(tmp_path)
    callback = type(lib.each_round(lambda number: None))
    collected, program = KINDS[kind](), []

    def follows():
        """Return a callback that each attempt makes, with what all share, and a list of its own that starts anyhow."""
        one = callback()
        one.collected, one.own = collected, [len(program)]
        return one

    def grows(self):
        add(self.collected, len(self.own))
        program.append(len(self.own))
        self.own.append(1)

    for hook in vars(callback).keys() & {*EPOCHS}:
        setattr(callback, hook, lambda self, *args, **others: grows(self))
    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=3, trials=2, metric=lib.monitor, verbose=0)
    waiting = [study.ask(), study.ask()]
    for trial in itertools.chain(waiting, study):
        with trial:
            lib.attempt(trial, follows(), *lib.callbacks(trial), **options)
    assert [t.attempt for t in study.trials] == [2, 2]
    assert (program[:4], program[-1]) == ([1, 2, 1, 2], 3)  # what a callback counts itself continues
    assert values(collected) == (program[-4:] if kind == "a full deque" else program)


@pytest.mark.skipif("lightning" not in LOOPS, reason="Lightning is not installed")
def test_what_trials_share_stays_so_next_to_a_module_of_many_layers(tmp_path, monkeypatch):
    import torch
    from lightning_nets import Net

    class Deep(Net):
        def __init__(self):
            super().__init__()
            self.more = torch.nn.ModuleList([torch.nn.Conv1d(1, 1, 1) for _ in range(60)])

    shares(FITS["lightning"](), "a dict", tmp_path, monkeypatch, net=Deep)


TAKES = {
    "a list": (lambda: [4, 3, 2, 1], lambda left: left.pop()),
    "a dict": (lambda: dict.fromkeys([4, 3, 2, 1]), lambda left: left.popitem()[0]),
    "a set": (lambda: {1, 2, 3, 4}, lambda left: left.pop()),
}


# a resumed fit of fastai calls the hooks of earlier epochs again
OWN = [*((name, "a list") for name in LOOPS if name != "fastai")]
OWN += [("lightning", kind) for kind in [*TAKES][1:] if "lightning" in LOOPS]


@pytest.mark.parametrize("by_hook", [False, True], ids=["", "by a hook"])
@pytest.mark.parametrize(("name", "kind"), OWN)
def test_what_a_trial_has_taken_from_a_collection_of_its_own_stays_taken(name, kind, by_hook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lib = FITS[name]()
    callback, taken, (make, take) = type(lib.each_round(lambda number: None)), [], TAKES[kind]

    def takes(self, *args, **others):
        taken.append(take(self.left))

    def makes(self, *args, **others):
        self.left = make()

    for hook in vars(callback).keys() & {*EPOCHS}:
        setattr(callback, hook, takes)
    for hook in STARTS if by_hook else ():
        setattr(callback, hook, makes)
    study = pausing_study(f"{tmp_path}/s.db", at=(1, 3), epochs=4, metric=lib.monitor, verbose=0)
    for trial in study:
        with trial:
            one = callback()
            one.left = make()
            lib.attempt(trial, one, *lib.callbacks(trial))
    assert (study.trials[0].attempt, taken) == (3, [1, 2, 3, 4])


@pytest.mark.parametrize("name", LOOPS)
def test_nothing_that_a_fit_started_with_stays_in_memory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lib = FITS[name]()
    callback, started = type(lib.each_round(lambda number: None)), []
    study = pausing_study(f"{tmp_path}/s.db", at=(), epochs=1, trials=3, metric=lib.monitor, verbose=0)
    for trial in study:
        with trial:
            one = callback()
            one.rows, one.several, one.named = np.zeros(3), [Records()], {"one": Records()}
            started += [weakref.ref(one.rows), weakref.ref(one.several[0]), weakref.ref(one.named["one"])]
            lib.attempt(trial, one, *lib.callbacks(trial))
            del one
    gc.collect()
    study = pausing_study(at=(), epochs=1, metric=lib.monitor, verbose=0)
    with study.ask() as trial:
        one = callback()
        one.several = []
        lib.attempt(trial, one, *lib.callbacks(trial))
    assert [refers() for refers in started] == [None] * 9
