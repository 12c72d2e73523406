"""haltune.launch: many runs at once, none of which can take the search down with it.

from haltune.launch import run

if __name__ == "__main__":
    run(study, train, workers=4)  # train(trial) is the body of a search's loop
"""

from .processes import run
from .scripts import run_script

__all__ = ["run", "run_script"]
