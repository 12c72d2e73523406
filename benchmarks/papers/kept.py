"""Results that outlast the run: a line of JSON for each seed, written as it ends, so that none is computed twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kept(file: Path | None, seeds: int, found: Callable[[int], Any]) -> list[Any]:
    """What `found` gives for each seed, as JSON reads it back.

    Args:
        file: where seeds of the same experiment are kept, and more are added; None: nowhere.
        seeds: 0 to seeds - 1.
        found: makes the result of a seed, of what JSON can hold.
    """
    known = _read(file)
    for seed in range(seeds):
        if seed in known:
            continue
        line = json.dumps({"seed": seed, "result": found(seed)})
        known[seed] = json.loads(line)["result"]  # the same, read or computed
        if file is not None:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(line + "\n")
    return [known[seed] for seed in range(seeds)]


def _read(file: Path | None) -> dict[int, Any]:
    if file is None or not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["seed"]: row["result"] for row in rows}
