"""A program that launches a search whose runs wait for a gate: python waiting_program.py FOLDER [WORKERS]."""

import sys
from functools import partial
from pathlib import Path

from trainings import a_study, patient

from haltune.launch import run

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    study = a_study(folder, 4)
    outcome = run(study, partial(patient, folder / "gate"), workers=workers, gpus=None)
    print(outcome.over, outcome.reason)
