"""Loops under several goals: a loop of one's own by a mapping, and scalars that are recorded only where they count."""

import pytest

from haltune import Float, Maximize, Minimize, Study
from haltune.callbacks.loop import TrainingLoop
from haltune.callbacks.reporter import Reporter
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch


def a_trial(epochs=2):
    goals = [Maximize("acc"), Minimize("ms")]
    study = Study(
        {"x": Float(0, 1)}, goals, max_epochs=epochs, budget="1 trial", verbose=0, policy=RandomSearch()
    )
    return study, study.ask()


def test_a_loop_reports_a_mapping():
    study, trial = a_trial()
    loop = TrainingLoop(trial)
    for epoch in loop:
        loop.report({"acc": 0.1 * epoch, "ms": 3, "extra": 1})
    record = study.history.trial(0)
    assert record.values.tolist() == pytest.approx([0.1, 0.2])
    assert record.metrics["ms"].tolist() == [3.0, 3.0]
    assert "extra" in record.metrics


def test_only_the_goals_are_recorded_where_the_rest_is_not_wanted():
    study, trial = a_trial()
    reporter = Reporter(trial, record="monitor")
    reporter.begin()
    reporter.report(0.5, 1, {"ms": 2.0, "extra": 1.0})
    assert dict(study.history.trial(0).metrics).keys() == {"ms"}
    with pytest.raises(InvalidInput, match="a report lacks 'ms'"):
        reporter.report(0.5, 2, {"extra": 1.0})
