"""Makes the helpers of these tests importable, here and in the subprocesses that tests start."""

import sys
from pathlib import Path

import pytest
from elsewhere import printed

CHECKS = Path(__file__).parent / "keras"  # which import each other
sys.path.insert(0, str(CHECKS))


@pytest.fixture
def in_a_process():
    """Run Python source in a process of its own and return what it printed."""

    def run(source: str, **environment: str) -> str:
        return printed(source, CHECKS, **environment)

    return run
