"""Loggers learn how a trial ended, and a stopped run is a success to them."""

import light_tensorboard  # noqa: F401
import pytest
from callback_fakes import PAUSE, FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.pytorch.loggers import Logger  # noqa: E402
from lightning_nets import Net, make_trainer, shuffled  # noqa: E402

from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.log.decisions import stop  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
REASON = "P(beats 0.9) = 0.01 at epoch 2"
STOPPED = {"haltune_verdict": 2.0, "haltune_p_win": 0.01, "haltune_epochs_saved": 7.0}


def fit(trial, *loggers, net=None, checkpoint=None):
    trainer = make_trainer(HaltuneCallback(trial), epochs=trial.max_epochs, logger=list(loggers))
    trainer.fit(net or Net(), shuffled(), shuffled(), ckpt_path=checkpoint)


def stopped_trial():
    return FakeTrial(max_epochs=9, verdicts={2.0: stop(REASON, p_win=0.01)})


class Remembers(Logger):
    """A tracker like any other."""

    name, version = "tracker", 0

    def __init__(self):
        super().__init__()
        self.metrics, self.hyperparameters, self.statuses = {}, {}, []

    def log_metrics(self, metrics, step=None):
        self.metrics |= metrics

    def log_hyperparams(self, params, *args, **kwargs):
        self.hyperparameters |= dict(params)

    def finalize(self, status):
        self.statuses.append(status)

    @property
    def experiment(self):
        return None

    def of_haltune(self):
        return {n: v for n, v in self.metrics.items() if n.startswith("haltune")}


def test_a_stopped_run_logs_its_verdict_and_is_a_success():
    logger = Remembers()
    fit(stopped_trial(), logger)
    assert logger.of_haltune() == STOPPED
    assert logger.hyperparameters["haltune_reason"] == f"stop: {REASON}"
    assert logger.statuses == ["success"]


def test_a_run_trained_in_full_and_a_paused_one_say_so():
    full, paused = Remembers(), Remembers()
    fit(FakeTrial(max_epochs=2), full)
    fit(FakeTrial(max_epochs=4, verdicts={1.0: PAUSE}), paused)
    assert full.of_haltune() == {"haltune_verdict": 0.0, "haltune_epochs_saved": 0.0}
    assert paused.of_haltune() == {"haltune_verdict": 1.0, "haltune_epochs_saved": 3.0}
    assert (full.statuses, paused.statuses) == (["success"], ["success"])
    assert paused.hyperparameters["haltune_reason"] == "pause: end of the rung"


def test_tensorboard_shows_the_verdict_and_the_reason(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, default_hp_metric=False)
    fit(stopped_trial(), logger)
    events = EventAccumulator(logger.log_dir).Reload()
    assert {n: events.Scalars(n)[0].value for n in STOPPED} == pytest.approx(STOPPED)
    text = events.Tensors("haltune_reason/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text == f"stop: {REASON}"
    assert logger.hparams["haltune_reason"] == text
    assert "hp_metric" not in events.Tags()["scalars"]  # the user's own table of hyperparameters stays


def test_a_tracker_that_fails_breaks_nothing_and_spares_the_others():
    class Fails(Remembers):
        def log_metrics(self, metrics, step=None):
            if "haltune_verdict" in metrics:
                raise ConnectionError

        def log_hyperparams(self, params, *args, **kwargs):
            if "haltune_reason" in params:
                raise ConnectionError

    fails, works, trial = Fails(), Remembers(), stopped_trial()
    fit(trial, fails, works)
    assert (trial.endings, works.of_haltune()) == ([None], STOPPED)
    assert fails.statuses == ["success"]
