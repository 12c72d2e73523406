"""haltune.launch: train many trials at the same time, in separate processes; a crash of one does not end the search.

from haltune.launch import run

if __name__ == "__main__":
    run(study, train, workers=4)  # train(trial) trains one trial
"""

from .processes import run
from .scripts import run_script

__all__ = ["run", "run_script"]
