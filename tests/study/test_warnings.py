"""Warnings of a search are also in its log, for programs that filter warnings: once, and not twice on a screen."""

import logging
import subprocess
import sys
import warnings

import pytest
from paused_studies import pausing_study

from haltune.callbacks.reporter import Reporter


@pytest.fixture
def said(caplog):
    """Return the warnings in the log "haltune"."""
    caplog.clear()
    return lambda: [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.fixture
def _unheard():
    """Ignore Python's warnings, as many programs do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("_unheard")
def test_what_callbacks_warn_of_is_said_once_a_search(said):
    study = pausing_study(at=(2,), trials=4)
    for trial in study:
        reporter = Reporter(trial, resume_hint="Call fit(..., ckpt_path=trial.checkpoint)")
        assert (trial.checkpoint is None) == (trial.epoch == 0)
        reporter.begin(planned=9)
        for epoch in (1, 2, 2) if trial.attempt == 1 else (3, 4):
            reporter.report(0.5, epoch)
        if reporter.pausing:
            reporter.save(lambda path: path.write_text("state"))
        reporter.end_of_fit()
    assert [line[:24] for line in said()] == ["This fit plans 9 epochs,", "Trial 0 has already repo"]


PROGRAM = """
import warnings, logging
{setup}
from haltune import Float, Maximize, Study
study = Study({{"x": Float(0, 1)}}, Maximize("val_loss"), max_epochs=3, budget="1 trial")
"""


@pytest.mark.parametrize(
    ("setup", "times"),
    [
        ("warnings.simplefilter('ignore')", 1),
        pytest.param("warnings.simplefilter('ignore'); logging.disable()", 0, marks=pytest.mark.slow),
        ("logging.basicConfig()", 1),
        pytest.param("logging.basicConfig(); warnings.simplefilter('ignore')", 1, marks=pytest.mark.slow),
        ("logging.basicConfig(); logging.captureWarnings(True)", 1),
        pytest.param("import sys; logging.basicConfig(stream=sys.stdout)", 1, marks=pytest.mark.slow),
    ],
)
def test_a_screen_has_a_warning_once(setup, times):
    code = [sys.executable, "-c", PROGRAM.format(setup=setup)]
    done = subprocess.run(code, text=True, timeout=120, check=True, capture_output=True)
    assert done.stderr.count("the largest val_loss is the best") == times
