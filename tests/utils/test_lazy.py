"""What a package shows without having imported it."""

from __future__ import annotations

import subprocess
import sys

DOORS = """
import sys, haltune
assert not [name for name in sys.modules if name.startswith(("haltune.report", "haltune.launch"))]
print(haltune.report.write.__name__, haltune.launch.run.__name__, haltune.callbacks.check_resume.__name__)
print({"callbacks", "launch", "report", "OptimalStopping"} <= set(dir(haltune)))
"""


def test_rooms_that_texts_name_by_their_path_are_there_without_an_import_of_their_own() -> None:
    said = subprocess.run([sys.executable, "-c", DOORS], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["write", "run", "check_resume", "True"]
