"""What a program collects from all trials in a callback stays the program's: a resumed training does not replace it."""

import itertools
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fits import FITS
from paused_studies import pausing_study

from haltune.callbacks import objects


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
            objects.note([number], trial, f"{number}")
            assert not objects.is_shared([number], None, trial)

    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as executor:
            list(executor.map(notes, range(4)))
    finally:
        sys.setswitchinterval(before)


LOOPS = sorted(FITS.keys() & {"lightning", "transformers", "fastai", "keras"})
CASES = [(name, "a list") for name in LOOPS] + [("lightning", kind) for kind in [*KINDS][1:] if "lightning" in LOOPS]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_trials_share_is_that_of_the_program_after_a_pause(name, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lib = FITS[name]()
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

    for hook in ("before_epoch", "on_train_epoch_start", "on_epoch_begin"):
        if hook in vars(callback):
            setattr(callback, hook, lambda self, *args, **others: grows(self))
    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=3, trials=2, metric=lib.monitor, verbose=0)
    waiting = [study.ask(), study.ask()]
    for trial in itertools.chain(waiting, study):
        with trial:
            lib.attempt(trial, follows(), *lib.callbacks(trial))
    assert [t.attempt for t in study.trials] == [2, 2]
    assert (program[:4], program[-1]) == ([1, 2, 1, 2], 3)  # what a callback counts itself continues
    assert values(collected) == (program[-4:] if kind == "a full deque" else program)
