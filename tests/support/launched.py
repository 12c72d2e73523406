"""A program that launches the search of tests/support/chaos.py: python launched.py URL FOLDER TRIALS WORKERS."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import chaos

from haltune import Trial
from haltune.launch import run


def train(trial: Trial) -> None:
    """One attempt, its promises in a file of this process."""
    path = Path(sys.argv[2]) / f"{os.getpid()}-{trial.id}-{trial.attempt}.txt"
    promised = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        chaos.train(trial, promised, 0.02)
    finally:
        os.close(promised)


if __name__ == "__main__":
    study = chaos.opened(sys.argv[1], int(sys.argv[3]))
    print(run(study, train, workers=int(sys.argv[4]), progress=False, logs=Path(sys.argv[2]).parent / "logs"))
