"""Processes, started together, that are the ranks of one training; two by default."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent


def run_ranks(
    command: list[str],
    where: Path,
    codes: tuple[int, ...] = (0, 0),
    left: int = 0,
    seconds: float = 60,
    printed: bool = True,
    **environment: str,
) -> list[list[Any]]:
    """Run a command in processes that are ranks of one training; return the output of each, line by line.

    codes: the exit status of each. printed: False if they print other things than JSON, which is not returned then.
    """
    temporary = where / "temporary"
    temporary.mkdir(exist_ok=True)
    base = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(temporary), "WORLD_SIZE": str(len(codes)), "MASTER_PORT": str(os.getpid()),
        "OMP_NUM_THREADS": "1", "HALTUNE_RANK_TIMEOUT": "30", **environment,
    }  # fmt: skip
    base.pop("HALTUNE_RUN", None)
    processes = [
        subprocess.Popen(
            [sys.executable, *command], env=base | {"RANK": str(rank)}, cwd=where, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(len(codes))
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=seconds) for process in processes]
    finally:
        [process.kill() for process in processes]
    assert tuple(p.returncode for p in processes) == codes, told
    assert len([p for p in temporary.rglob("*") if p.name.startswith("run-")]) == left, told
    return [[json.loads(line) for line in out.splitlines() if printed] for out, _ in told]


def address() -> dict[str, str]:
    """Return the variables by which ranks of torch.distributed meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def run_program(
    script: str, folder: Path, program: str, *words: str, codes: tuple[int, ...] = (0, 0), **environment: str
) -> list[Any]:
    """Run a script's program on ranks of torch.distributed; return what each has written to FOLDER/RANK.json.

    codes: the exit status of each rank; if one is not 0, nothing is returned, and a rank leaves its temporary files.
    """
    command = ["-W", "ignore", str(SUPPORT / script), program, str(folder), *words]
    where, ends = Path(tempfile.mkdtemp(dir=folder)), any(codes)
    environment |= address() | {"LOCAL_WORLD_SIZE": str(len(codes))}
    run_ranks(command, where, codes, int(ends), seconds=500, printed=False, **environment)
    return [] if ends else [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(codes))]
