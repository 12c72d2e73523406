"""Results that outlast the run: a line of JSON for each, written as it ends, so that none is computed twice."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

# arguments that do not change the results, and those in the keys
_WHATEVER = ["seeds", "runs", "keep", "svg", "figure", "data", "cache", "processes", "problem", "policy", "methods"]


class Kept:
    """Results by key, in a file of lines [key, result]; without a file, in memory.

    Keys and results are JSON, and are returned as JSON reads them back, whether read or computed.

    of: the other arguments of the command, in the first line; a file that was started with others is refused.
    """

    def __init__(self, file: Path | None, of: Mapping[str, Any] | None = None) -> None:
        there = file is not None and file.exists()
        lines = file.read_text(encoding="utf-8").splitlines() if file and there else []
        self._file = file
        if of is not None:
            head = json.dumps({"of": of}, sort_keys=True)
            if lines and lines[0] != head:
                sys.exit(f"{file} keeps what was asked for otherwise, {lines[0][:200]}: name another file")
            if file and not lines:
                file.write_text(head + "\n", encoding="utf-8")
            lines = lines[1:]
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
        """Return the result of this key, computed if it is missing."""
        if key not in self:
            self.add(key, make())
        return self[key]


def asked(given: Namespace) -> dict[str, Any]:
    """The script, and what of its command line makes other runs."""
    told = {key: value for key, value in vars(given).items() if key not in _WHATEVER and value is not None}
    return {"script": Path(sys.argv[0]).stem} | told


def kept(given: Namespace, seeds: int, found: Callable[[int], Any]) -> list[Any]:
    """Return the results of `found` for each seed from 0 on; those in the file `--keep` are not computed again."""
    keep = Kept(given.keep, asked(given))
    return [keep(seed, partial(found, seed)) for seed in range(seeds)]
