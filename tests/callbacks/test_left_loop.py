"""A TrainingLoop that is left by the user's own break: what is kept of it, and when nothing can be."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from callback_fakes import OUTAGE, FakeTrial
from scripted import ENDS, scripted_study

from haltune import Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning


def leave(
    trial: Trial, end: int, wrapped: Callable[[TrainingLoop], object] = iter, late: bool = True
) -> None:
    """Each epoch's state is its number; left in epoch `end`, after its report or before it."""
    state = {"epoch": 0}

    def save(path: Path) -> None:
        path.write_text(f"{trial.id} {state['epoch']}")

    loop = TrainingLoop(trial, save=save)
    for epoch in wrapped(loop):
        state["epoch"] = epoch
        if epoch == end and not late:
            break
        if loop.report(ENDS[trial.id][epoch - 1]) or epoch == end:
            break
    state["epoch"] = 99  # as when its best weights are put back: not what its last value was measured with


def kept(study: Study) -> tuple[float, float, str]:
    best = study.best
    assert best is not None
    return best.epoch, best.checkpoint_epoch, Path(str(best.checkpoint)).read_text()


@pytest.mark.parametrize(
    "wrapped", [iter, lambda loop: (epoch for epoch in loop)], ids=["itself", "in a bar"]
)
@pytest.mark.parametrize(
    ("of", "end", "found"),
    [("last", 2, (2, 2, "1 2")), ("best", 2, (2, 2, "1 2")), ("best", 3, (2, 2, "1 2"))],
)
def test_the_best_model_is_that_of_the_epoch_it_counts_for(of, end, found, wrapped):
    study = scripted_study(of)
    for trial in study:
        with trial:
            leave(trial, end, wrapped)
    assert kept(study) == found
    assert [str(t.status) for t in study.trials] == ["completed"] * 3


def test_a_pause_that_was_left_by_break_is_saved_and_so_is_what_comes_after_it():
    study = scripted_study("last", at=(1,))
    for trial in study:
        with trial:
            assert trial.checkpoint is None or Path(trial.checkpoint).read_text() == f"{trial.id} 1"
            leave(trial, 2)
    assert [t.epochs.tolist() for t in study.trials] == [[1, 2]] * 3
    assert [t.attempt for t in study.trials] == [2, 2, 2]
    assert kept(study) == (2, 2, "1 2")


def test_one_that_is_left_before_its_report_is_said_once_to_keep_nothing():
    study = scripted_study("last")
    with pytest.warns(
        HaltuneWarning, match=r"trial 0, the best so far, is not kept.*within epoch 3, before"
    ) as said:
        for trial in study:
            with trial:
                leave(trial, 3, late=False)
    assert len(said) == 1
    assert study.best is not None
    assert study.best.checkpoint is None


def test_what_its_user_saved_then_is_kept_in_silence():
    study = scripted_study("last")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trial in study:
            with trial:
                leave(trial, 3, late=False)
                trial.save(lambda path: path.write_text("the user's"))
    assert kept(study) == (2, 2, "the user's")


def test_an_epoch_that_fails_saves_nothing_of_what_it_trained():
    study = scripted_study("last", max_failures=9)

    def fail(trial):
        loop = TrainingLoop(trial, save=lambda path: path.write_text("half an epoch"))
        for epoch in loop:
            if epoch == 2:
                raise RuntimeError("no more data")
            loop.report(ENDS[trial.id][epoch - 1])

    trial = study.ask()
    with pytest.raises(RuntimeError), trial:
        fail(trial)
    assert not list(study.checkpoints.folder.rglob("*attempt-*.ckpt"))
    assert study.trials[0].status == "failed"


def test_reports_that_wait_for_a_server_are_delivered_at_the_end():
    trial = FakeTrial(max_epochs=3)
    loop = TrainingLoop(trial)
    with pytest.warns(HaltuneWarning, match="raining continues"):
        for epoch in loop:
            trial.broken = OUTAGE
            loop.report(1.0 / epoch)
            if epoch == 2:
                break
    trial.broken = None
    trial.last_act()
    assert trial.epochs == [1, 2]
