"""Two processes, started together, that are the ranks of one training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent


def run_ranks(
    command: list[str],
    where: Path,
    codes: tuple[int, int] = (0, 0),
    left: int = 0,
    seconds: float = 60,
    printed: bool = True,
    **environment: str,
) -> list[list[Any]]:
    """Run a command in two processes that are ranks of one training; return the output of each, line by line.

    printed: False if they print other things than JSON, which is not returned then.
    """
    temporary = where / "temporary"
    temporary.mkdir(exist_ok=True)
    base = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(temporary), "WORLD_SIZE": "2", "MASTER_PORT": str(os.getpid()), "OMP_NUM_THREADS": "1",
        "HALTUNE_RANK_TIMEOUT": "30", **environment,
    }  # fmt: skip
    base.pop("HALTUNE_RUN", None)
    processes = [
        subprocess.Popen(
            [sys.executable, *command], env=base | {"RANK": str(rank)}, cwd=where, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=seconds) for process in processes]
    finally:
        [process.kill() for process in processes]
    assert tuple(p.returncode for p in processes) == codes, told
    assert len([p for p in temporary.rglob("*") if p.name.startswith("run-")]) == left, told
    return [[json.loads(line) for line in out.splitlines() if printed] for out, _ in told]
