"""The figure of the budget, against the log summed up by hand."""

import pytest
from told import a_search, tell_trial, told

from haltune.log.events import Budgeted, Raised, Status
from haltune.report import budget


def limited(**limits):
    history = told()
    history.apply(Budgeted(at=0.0, budget=limits))
    tell_trial(history, [0.1] * 10, seconds=6.0)
    return tell_trial(history, [0.1] * 4, Status.STOPPED, seconds=9.0)  # 96 s of one worker, one after the other


@pytest.mark.parametrize(
    ("limits", "share", "words"),
    [
        ({"trials": 8}, 2 / 8, "2 of 8 trials"),
        ({"trials": 1}, 2.0, "2 trials (budget: 1)"),
        ({"epochs": 28}, 14 / 28, "14 of 28 epochs"),
        ({"time": 192.0}, 0.5, "1 min 36 s of 3 min 12 s time"),
        ({"money": 2.0, "price": 3.0}, 96 / 3600 * 3 / 2, "0.08 of 2 money"),
    ],
)
def test_each_limit_is_shown_with_what_is_spent(limits, share, words):
    figure = budget(limited(**limits))
    assert figure.data[0].x[0] == pytest.approx(share)
    assert [a.text for a in figure.layout.annotations] == [words]


def test_each_trial_has_its_epochs_and_what_stopping_saved_on_top_of_them():
    trained, saved = (t for t in budget(a_search()).data if t.name in ("trained", "saved"))
    assert list(trained.ids) == ["trial-0", "trial-2", "trial-1"]
    assert list(trained.y) == list(saved.base) == [10, 3, 2]
    assert list(saved.y) == [0, 0, 8]  # the one that failed saved nothing
    assert [told for _, told in trained.customdata] == ["10 epochs", "3 epochs", "2 epochs, 8 epochs saved"]


def test_a_limit_that_was_raised_is_the_limit_at_once():
    history = limited(trials=8, epochs=28)
    history.apply(Raised(at=history.now, budget={"trials": 16}))
    assert [a.text for a in budget(history).layout.annotations][::-1] == ["2 of 16 trials", "14 of 28 epochs"]
