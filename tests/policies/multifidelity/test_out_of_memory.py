"""Configurations that run out of memory: the default search learns that those like them do, too."""

from __future__ import annotations

import pytest

from haltune import Float, Int, Study, Trial
from haltune.log.events import Status


@pytest.mark.parametrize("epochs_before", [0, 2])
def test_few_of_the_later_trials_fail_though_the_best_lie_just_below_the_limit(epochs_before: int) -> None:
    def train(trial: Trial) -> None:
        size = trial.config["batch_size"] * trial.config["width"]
        for epoch in trial.epochs():
            if epoch > epochs_before and size > 2e4:  # three tenths of the space
                raise MemoryError("it does not fit")
            loss = 1.0 - 0.05 * trial.config["width"] ** 0.5 + (trial.config["x"] - 0.3) ** 2 + 1.0 / epoch
            if trial.report(loss).stops:
                break

    space = {"batch_size": Int(8, 512, log=True), "width": Int(16, 1024, log=True), "x": Float(0.0, 1.0)}
    study = Study(space, "loss", max_epochs=9, budget="36 trials", seed=1, verbose=0)
    failed = [t.status is Status.FAILED for t in study.optimize(train).trials]
    assert sum(failed[:12]) >= 2
    assert sum(failed[-18:]) <= 3  # five or six of random configurations
