"""`haltune track` tells trackers of a search from outside."""

import pytest
from typer.testing import CliRunner

from haltune import Float, Study
from haltune.cli.app import app


@pytest.fixture
def log(tmp_path):
    study = Study(
        {"lr": Float(0.01, 1.0)},
        "loss",
        tmp_path / "a.db",
        max_epochs=2,
        seed=0,
        budget="2 trials",
        verbose=0,
    )
    for trial in study:
        for epoch in trial.epochs():
            trial.report(trial.config["lr"] / epoch)
    return tmp_path / "a.db"


def haltune(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_it_tells_all_of_a_search_that_is_over_and_ends(log, tmp_path):
    pytest.importorskip("tensorboard")
    done = haltune("track", log, "--tensorboard", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("told of 2 trials: the budget of 2 trials is spent")
    assert sorted(path.name for path in (tmp_path / "runs").glob("trial-*")) == ["trial-0", "trial-1"]


def test_it_asks_whom_to_tell(log):
    done = haltune("track", log)
    assert done.exit_code == 2
    assert "say whom to tell: --mlflow URI, --wandb PROJECT or --tensorboard FOLDER" in done.stderr
