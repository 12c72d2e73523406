"""A training that goes on needs no new value: what was logged before the pause was not misspelt."""

import pytest
from callback_fakes import FakeTrial
from paused_studies import pausing_study

from haltune.callbacks.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def test_a_trial_is_silent_until_its_first_value_in_whatever_fit():
    trial = FakeTrial(max_epochs=9)
    r = Reporter(trial)
    r.begin()
    assert r.silent
    r.report(0.5, 1)
    r.begin()  # a second fit of the same attempt
    assert not r.silent
    again = Reporter(FakeTrial(max_epochs=9, epoch=4.0))
    again.begin()
    assert not again.silent


def run(search, at=(4,), **options):
    """(status, epochs, values) of one trial, trained straight and with a pause."""
    found = []
    for pauses in ((), at):
        study = search(pauses, **options)
        (t,) = study.trials
        found.append((str(t.status), t.epochs.tolist(), t.values.tolist()))
        assert t.attempt == 1 + len(pauses)
    return found


def lightning(at, **options):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, search

    class NowAndThen(Net):
        def on_validation_epoch_end(self):
            if self.current_epoch % 4 == 0:
                self.log("dear", 1.0 / (1 + self.current_epoch))

    study, _, _ = search(at, NowAndThen, **options)
    return study


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        (
            {"metric": "val_loss", "epochs": 5, "check_val_every_n_epoch": 2, "num_sanity_val_steps": 0},
            [2, 4],
        ),
        ({"metric": "dear", "epochs": 8, "at": (5,)}, [1, 5]),
    ],
)
def test_a_lightning_fit_whose_last_leg_holds_no_value_is_completed(options, epochs):
    straight, paused = run(lightning, **options)
    assert straight == paused
    assert straight[:2] == ("completed", epochs)


def test_a_metric_that_was_misspelt_from_the_start_is_still_an_error():
    from haltune.errors import HaltuneWarning, InvalidInput

    with (
        pytest.warns(HaltuneWarning, match="check before training"),
        pytest.raises(InvalidInput, match="'val_los' was not logged"),
    ):
        lightning((), metric="val_los")


def test_a_trainer_of_hugging_face_whose_last_leg_evaluates_nothing_is_completed(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from transformers import TrainerCallback
    from transformers_nets import trainer

    from haltune.callbacks.transformers import HaltuneCallback

    class EvaluatesNowAndThen(TrainerCallback):
        def on_epoch_end(self, args, state, control, **others):
            control.should_evaluate = round(state.epoch) in (2, 4)

    def search(at):
        study = pausing_study(at=at, metric="eval_loss", epochs=5)
        for trial in study:
            folder = tmp_path / f"{len(at)}-{trial.attempt}"
            company = EvaluatesNowAndThen(), HaltuneCallback(trial)
            with trial:
                t = trainer(folder, *company, epochs=trial.max_epochs, eval_strategy="no")
                t.train(resume_from_checkpoint=trial.checkpoint)
        return study

    straight, paused = run(search)
    assert straight == paused
    assert straight[:2] == ("completed", [2, 4])
