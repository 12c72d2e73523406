"""Makes the helpers of these tests importable, here and in the subprocesses that tests start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
CHECKS = Path(__file__).parent / "keras"  # which import each other
sys.path.insert(0, str(CHECKS))


@pytest.fixture
def in_a_process():
    """Run Python source in a process of its own and return what it printed."""

    def run(source: str, **environment: str) -> str:
        paths = [
            str(SUPPORT),
            str(CHECKS),
            *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p),
        ]
        quiet = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", source],
            env=os.environ | quiet | environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
