"""The task of an executor: a worker of a search. Executors import it in each process."""

from __future__ import annotations

import os
from pathlib import Path

from haltune import Float, Study

SPACE = {"lr": Float(0.01, 1.0, log=True)}


def search(folder: str) -> int:
    """Train until the search is over; the process that did."""
    study = Study(SPACE, "loss", Path(folder) / "search.db", max_epochs=9, budget="12 trials", seed=0, verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(trial.config["lr"] + 1 / epoch)
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"epoch {epoch}")
    return os.getpid()
