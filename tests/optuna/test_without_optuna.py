"""Where Optuna is not installed, `haltune.optuna` says so when something of it is asked for."""

import subprocess
import sys

from haltune.errors import installing

CODE = """
import sys
sys.modules["optuna"] = None
import haltune, haltune.optuna
assert sorted(haltune.optuna.__all__) == ["HaltunePruner", "HaltuneSampler", "from_study", "to_study"]
try:
    haltune.optuna.HaltunePruner
except ImportError as error:
    print(error)
"""


def test_it_is_named_with_what_to_type():
    done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"haltune.optuna needs Optuna: {installing('optuna')}"
