"""What a program collects from all trials in a callback stays the program's: a resumed training does not replace it."""

import pytest
from fits import FITS
from paused_studies import pausing_study


@pytest.mark.parametrize("name", sorted(FITS.keys() & {"lightning", "transformers", "fastai", "keras"}))
def test_a_list_that_trials_share_is_that_of_the_program_after_a_pause(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lib = FITS[name]()
    kind = type(lib.each_round(lambda number: None))
    collected = []

    def follows():
        """Return a callback that each attempt makes, with the list of all."""
        one = kind()
        one.collected, one.own = collected, []
        return one

    def grows(self):
        self.collected.append(len(self.own))
        self.own.append(1)

    for hook in ("before_epoch", "on_train_epoch_start", "on_epoch_begin"):
        if hook in vars(kind):
            setattr(kind, hook, lambda self, *args, **others: grows(self))
    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=3, metric=lib.monitor, verbose=0)
    attempts = []
    for trial in study:
        with trial:
            lib.attempt(trial, follows(), *lib.callbacks(trial))
            attempts.append(trial.attempt)
    assert attempts == [1, 2]
    assert collected[:2] == [0, 1]  # what a callback counts itself continues
    assert collected[-1] == 2
