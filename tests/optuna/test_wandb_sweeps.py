"""W&B's sweep scheduler with haltune behind its Optuna engine, without a server: it asks, tells and prunes."""

import pytest

pytest.importorskip("wandb", reason="W&B is not installed")
pytest.importorskip("optuna", reason="Optuna is not installed")
pytest.importorskip("wandb.sdk.sweeps.scheduler.optuna", reason="this W&B has no sweep scheduler")

from wandb.sdk.sweeps.run_state import RunState
from wandb.sdk.sweeps.scheduler.optimizer import RunWithMetrics, make_optimizer
from wandb.sdk.sweeps.sweep_info import SweepInfo

EPOCHS = 20
SOURCE = f"""
import optuna
from haltune.optuna import HaltunePruner, HaltuneSampler

def study(sweep):
    return optuna.create_study(
        direction=sweep.config["metric"]["goal"], sampler=HaltuneSampler(max_epochs={EPOCHS}, seed=0),
        pruner=HaltunePruner(max_epochs={EPOCHS}),
    )
"""


@pytest.fixture
def optimizer(tmp_path):
    source = tmp_path / "search.py"
    source.write_text(SOURCE)
    config = {
        "metric": {"name": "val_acc", "goal": "maximize"},
        "parameters": {"top": {"min": 0.1, "max": 0.9}, "layers": {"values": [1, 2]}},
        "scheduler": {"engine": "optuna", "optimizer": "study", "source": str(source)},
    }
    return make_optimizer(SweepInfo("s", "s", "me", "digits", config, "controller"))


def train(optimizer, suggestion):
    """Train a run as W&B's agent would, its history polled after each epoch; return its epochs and its last value."""
    values = suggestion.config.flat_dict()
    history = []
    for epoch in range(EPOCHS):
        value = values["top"] * (epoch + 1) / (epoch + values["layers"] + 1)
        history.append({"_step": epoch, "val_acc": value})
        state = RunState.RUNNING if epoch + 1 < EPOCHS else RunState.FINISHED
        run = RunWithMetrics(suggestion.config, state, "w", history[-1], history)
        optimizer.tell_run(suggestion.run_id, run)
        if optimizer.prune_runs([suggestion.run_id], [run]):
            break
    return len(history), value


def test_a_sweep_is_searched_and_its_runs_stop_early_by_haltune(optimizer):
    runs = [train(optimizer, *optimizer.ask_n_runs(1)) for _ in range(16)]
    assert min(epochs for epochs, _ in runs) < EPOCHS
    best = max(value for epochs, value in runs if epochs == EPOCHS)
    assert optimizer.study.best_value == best > 0.8 * 0.9 * 20 / 21
    pruned = [t for t in optimizer.study.trials if t.state.name == "PRUNED"]
    assert len(pruned) == sum(epochs < EPOCHS for epochs, _ in runs)
    assert all(t.user_attrs["haltune:reason"] for t in pruned)
