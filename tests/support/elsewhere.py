"""Python source in a process of its own, which finds the helpers of the tests."""

import os
import subprocess
import sys
from pathlib import Path


def printed(source: str, *folders: Path, **environment: str) -> str:
    """Return the output of the source. folders: import paths, in addition to the helpers'."""
    known = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    paths = [str(Path(__file__).parent), *map(str, folders), *known]
    quiet = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        env=os.environ | quiet | environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
