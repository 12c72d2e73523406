"""Mistakes that every training loop can make: what is said, how often, and what it costs."""

import pytest
from callback_fakes import FakeTrial
from paused_studies import pausing_study

from haltune.callbacks.reporting.reporter import Reporter
from haltune.errors import HaltuneWarning, InvalidInput


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
