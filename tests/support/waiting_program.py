"""A program that launches a search whose runs wait for a gate: waiting_program.py FOLDER [WORKERS | optimize]."""

import sys
from functools import partial
from pathlib import Path

from trainings import a_study, patient

from haltune.launch import run

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    given = sys.argv[2] if len(sys.argv) > 2 else "2"
    study, train = a_study(folder, 4), partial(patient, folder / "gate")
    if given == "optimize":
        study.optimize(train, workers=2)
        print("optimized")
    else:
        outcome = run(study, train, workers=int(given), gpus=None)
        print(outcome.over, outcome.reason)
