"""Results that outlast the run: a line of JSON for each, written as it ends, so that none is computed twice."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


class Kept:
    """What was found under each key, in a file of lines [key, result]; without a file in memory alone.

    Keys and results are what JSON can hold, and are had as JSON reads them back, whether read or computed.
    """

    def __init__(self, file: Path | None) -> None:
        there = file is not None and file.exists()
        lines = file.read_text(encoding="utf-8").splitlines() if file and there else []
        self._file = file
        self._found = {json.dumps(key): result for key, result in map(json.loads, lines)}

    def __contains__(self, key: Any) -> bool:
        return json.dumps(key) in self._found

    def __getitem__(self, key: Any) -> Any:
        return self._found[json.dumps(key)]

    def add(self, key: Any, result: Any) -> None:
        """Keep a result."""
        line = json.dumps([key, result])
        self._found[json.dumps(key)] = json.loads(line)[1]
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(line + "\n")

    def __call__(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was found under this key, or is made now."""
        if key not in self:
            self.add(key, make())
        return self[key]


def kept(file: Path | None, seeds: int, found: Callable[[int], Any]) -> list[Any]:
    """What `found` gives for each seed from 0 on, of those that `file` does not keep yet."""
    keep = Kept(file)
    return [keep(seed, partial(found, seed)) for seed in range(seeds)]
