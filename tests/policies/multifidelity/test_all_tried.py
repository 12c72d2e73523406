"""A space whose configurations were all tried: they are trained in full, before any is tried again for an epoch."""

from __future__ import annotations

import pytest

from haltune import Choice, Maximize, Problem, Space, Study

EPOCHS = 9
ENDS = {"slow": (0.1, 0.9), "mid": (0.3, 0.7), "fast": (0.5, 0.6)}  # the first value and the last: curves cross


@pytest.mark.parametrize(("saves", "budget"), [(True, "50 epochs"), (True, "8 trials"), (False, "50 epochs")])
def test_every_configuration_of_a_small_space_is_trained_in_full(saves: bool, budget: str) -> None:
    problem = Problem(Space({"optimizer": Choice(list(ENDS))}), Maximize("acc", (0, 1)), EPOCHS)
    study = Study(problem, seed=0, budget=budget, verbose=0)
    for trial in study:
        with trial:
            first, last = ENDS[trial.config["optimizer"]]
            for epoch in trial.epochs():
                trial.report(first + (last - first) * (epoch - 1) / (EPOCHS - 1))
            if saves and trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed("saved")
    assert {t.config["optimizer"] for t in study.trials if t.epoch == EPOCHS} == set(ENDS)
    assert study.best is not None
    assert study.best.config["optimizer"] == "slow"
    late = [t for t in study.trials if "every configuration was tried" in t.proposed + (t.resumed or "")]
    assert late
    assert all(t.epoch == EPOCHS or t is study.trials[-1] for t in late)
