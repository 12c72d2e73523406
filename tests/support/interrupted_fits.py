"""Ctrl-C and SIGTERM in the fit of any framework: the epoch is finished and saved, a second signal ends it."""

import signal

import numpy as np
import pytest
from paused_studies import pausing_study

from haltune.log.events import Status


@pytest.fixture(autouse=True)
def handlers():
    """Set the handlers of a terminal, and restore them afterwards; test modules import it."""
    numbers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in numbers.items()}
    yield
    after = {number: signal.signal(number, before[number]) for number in numbers}
    assert after == numbers


class InterruptedFits:
    """The tests; a subclass defines the training of its framework.

    searched(store, *callbacks, **options): one training of 4 epochs, resumed as in the log; its study and weights.
    sends(*signals, epoch=2): a callback that sends them to its own process in that epoch.
    raised: the exception of the fit, by its signal. every_second_epoch: the options that validate so.
    """

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_epoch_is_finished_and_saved_and_the_search_continues_exactly_there(self, number, tmp_path):
        with pytest.raises(self.raised[number]):
            self.searched(tmp_path / "search.db", self.sends(number))
        study, weights = self.searched(tmp_path / "search.db")
        straight, as_ever = self.searched(tmp_path / "straight.db")
        assert [(t.status, t.attempt, t.checkpoint_epoch) for t in study.trials] == [(Status.COMPLETED, 2, 2.0)]
        assert list(study.trials[0].values) == list(straight.trials[0].values)
        np.testing.assert_array_equal(weights, as_ever)

    def test_a_second_one_leaves_at_once_and_says_what_is_lost(self, tmp_path, caplog):
        trial = self._interrupted(tmp_path, self.sends(signal.SIGINT, signal.SIGINT))
        assert (trial.status, trial.epoch, trial.checkpoint) == (Status.INTERRUPTED, 1.0, None)
        assert "Ctrl-C received again: training ends at once, without a save" in caplog.text

    def test_in_the_last_epoch_the_trial_is_complete(self, tmp_path):
        trial = self._interrupted(tmp_path, self.sends(signal.SIGINT, epoch=4))
        assert (trial.status, trial.epoch) == (Status.COMPLETED, 4.0)

    def test_between_validations_it_trains_on_to_the_next(self, tmp_path):
        trial = self._interrupted(tmp_path, self.sends(signal.SIGINT, epoch=1), **self.every_second_epoch)
        assert (trial.status, trial.checkpoint_epoch) == (Status.INTERRUPTED, 2.0)

    def _interrupted(self, folder, *callbacks, **options):
        """The trial as the next program finds it."""
        with pytest.raises(self.raised[signal.SIGINT]):
            self.searched(folder / "search.db", *callbacks, **options)
        [trial] = pausing_study(folder / "search.db", at=(), verbose=0).trials
        return trial
