"""Check the measured numbers on the pages with the commands that print them.

    python benchmarks/claims.py [ID ...] [--within 60] [--jobs 2] [--data FOLDER] [--write]

claims.toml in this folder lists the claims: the sentence and its page, the command, and for each number its pattern in
the output and the allowed deviation. Without ids the script runs the claims that take less than --within seconds. With
--write it runs none, and writes the table of README.md. It exits with 1 if a number changed or a command failed. Its
last lines name the claims that did not run because data or a package is missing: their numbers are not checked.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
CLAIMS, README = ROOT / "benchmarks/claims.toml", ROOT / "benchmarks/README.md"
BEGINS, ENDS = "<!-- written by benchmarks/claims.py --write -->", "<!-- until here -->"


@dataclass(frozen=True)
class Number:
    """One number of a claim."""

    name: str
    says: str  # as it stands on the page: ".34", "68%", or words, of which `value` gives the number
    pattern: str  # of the line that prints it, with one group
    within: float  # how far it may lie off, in the units of `value`
    value: float = math.nan  # default: what `says` says
    error: float | None = None  # a standard error, where one was measured

    @property
    def claimed(self) -> float:
        return float(self.says.rstrip("%")) if math.isnan(self.value) else self.value

    def found(self, printed: str) -> float:
        """Return the number that the command printed; NaN if no line matches."""
        there = re.search(self.pattern, printed, re.MULTILINE)
        return float(there[1].replace(",", "")) if there else math.nan

    def moved(self, found: float) -> bool:
        return not abs(found - self.claimed) <= self.within * (1 + 1e-9)

    def __str__(self) -> str:
        return f"{self.name} {self.says}" + ("" if self.error is None else f" ± {self.error:g}")


@dataclass(frozen=True)
class Said:
    """A sentence of a page, or the part of it that has the numbers."""

    file: str
    text: str

    def stands(self) -> bool:
        """Return whether the page still has the sentence, with any line breaks."""
        return words(self.text) in words((ROOT / self.file).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Claim:
    """A claim: its sentences and numbers, and its last measurement."""

    id: str
    what: str
    command: str
    seconds: float  # that the command took
    date: str
    commit: str
    said: tuple[Said, ...]
    numbers: tuple[Number, ...]
    needs: tuple[str, ...] = ()  # packages, by the names they are imported by
    rows: tuple[int, ...] = ()  # of the table in docs/experiments/index.md, by their numbers
    data: bool = False  # whether it reads the folder of recorded runs
    machine: str = "cpu"

    @classmethod
    def read(cls, told: dict[str, Any]) -> Claim:
        parts = {"said": tuple(Said(**one) for one in told["said"]),
                 "numbers": tuple(Number(**one) for one in told["numbers"]),
                 "needs": tuple(told.get("needs", ())), "rows": tuple(told.get("rows", ())),
                 "date": str(told["date"])}  # fmt: skip
        return cls(**(told | parts))

    @property
    def script(self) -> Path:
        """The file that the command runs."""
        return ROOT / shlex.split(self.command)[1]

    def missing(self) -> str:
        """Return the requirements that are missing here; empty if it can run."""
        if self.data and not os.environ.get("HALTUNE_DATA"):
            return "the folder of recorded runs: make claims DATA=folder"
        return " and ".join(name for name in self.needs if importlib.util.find_spec(name) is None)

    def run(self) -> str:
        """Return the output of the command, run in its own folder.

        Raises:
            subprocess.CalledProcessError: When it ended with an error.
        """
        _, script, *arguments = shlex.split(self.command)
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run(
                [sys.executable, str(ROOT / script), *arguments], cwd=folder, check=True, text=True,
                capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
            ).stdout  # fmt: skip


def read(path: Path = CLAIMS) -> list[Claim]:
    """All claims, in their order."""
    return [Claim.read(one) for one in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]]


def machines(path: Path = CLAIMS) -> dict[str, str]:
    """Return the descriptions of the machines by their names in the claims."""
    found: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))["machines"]
    return found


def words(text: str) -> str:
    return " ".join(text.split())


def tried(claim: Claim) -> Iterator[tuple[str, str, str, str]]:
    """Return a row for each number: its name, the claimed and the measured number, and whether they agree."""
    if missing := claim.missing():
        yield f"needs {missing}", "", "", "not run"
        return
    try:
        printed = claim.run()
    except subprocess.CalledProcessError as error:
        yield (error.stderr or "").strip().rpartition("\n")[2], "", "", "failed"
        return
    for number in claim.numbers:
        found = number.found(printed)
        told = "not printed" if math.isnan(found) else f"{found:g}"
        came = "moved" if number.moved(found) else "holds"
        yield number.name, f"{number.says} (within {number.within:g})", told, came


def table(claims: Sequence[Claim]) -> str:
    """The table of README.md."""
    rows = ["| Claim | Result | Command | Took | When | Said in |", "| --- | --- | --- | --- | --- | --- |"]
    for claim in claims:
        numbers = "; ".join(map(str, claim.numbers))
        pages = ", ".join(f"[{Path(name).name}](../{name})" for name in dict.fromkeys(s.file for s in claim.said))
        when = f"{claim.date}, {claim.commit}, {claim.machine}"
        told = f"`{claim.id}`: {claim.what}" + f" (rows {', '.join(map(str, claim.rows))})" * bool(claim.rows)
        cells = [told, numbers, f"`{claim.command}`", took(claim.seconds), when, pages]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def took(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def written(page: str, claims: Sequence[Claim]) -> str:
    """The page with the table between its two marks."""
    before, _, rest = page.partition(BEGINS)
    told = "\n".join(f"- `{name}`: {what}." for name, what in machines().items())
    return f"{before}{BEGINS}\n\n{table(claims)}\n\n{told}\n\n{ENDS}{rest.partition(ENDS)[2]}"


def main(arguments: Sequence[str] | None = None, path: Path = CLAIMS, console: Console | None = None) -> int:
    """Run the chosen claims, and print which hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ids", nargs="*", metavar="ID", help="those alone, however long they take")
    parser.add_argument("--within", type=float, default=60.0, help="seconds that a claim must take less than")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument("--data", type=Path, help="folder of the recorded runs; default: HALTUNE_DATA")
    parser.add_argument("--write", action="store_true", help="write the table of README.md, and run nothing")
    args = parser.parse_args(arguments)
    claims, console = read(path), console or Console()
    if unknown := set(args.ids) - {claim.id for claim in claims}:
        parser.error(f"no claim is called {', '.join(sorted(unknown))}: claims.toml has their names")
    if args.data:
        os.environ["HALTUNE_DATA"] = str(args.data.resolve())
    if args.write:
        README.write_text(written(README.read_text(encoding="utf-8"), claims), encoding="utf-8")
        return 0
    chosen = [claim for claim in claims if (claim.id in args.ids if args.ids else claim.seconds < args.within)]
    shown = Table("claim", "number", "says", "found", "", title=f"{len(chosen)} of {len(claims)} claims")
    ends: list[str] = []
    unchecked: list[str] = []
    with console.status(f"{len(chosen)} commands"), ThreadPoolExecutor(args.jobs) as pool:
        longest = sorted(chosen, key=lambda claim: -claim.seconds)  # first, so that no job is alone at the end for long
        running = {claim.id: pool.submit(list, tried(claim)) for claim in longest}
        for claim in chosen:
            for name, *cells, came in running[claim.id].result():
                shown.add_row(claim.id, name, *cells, came, style=None if came == "holds" else "bold")
                ends.append(came)
                unchecked += [f"{claim.id} ({name})"] if came == "not run" else []
    console.print(shown, markup=False)
    console.print(", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends)))
    if unchecked:
        console.print(f"Not checked: {'; '.join(unchecked)}", markup=False)
    return int(bool({"moved", "failed"} & set(ends)))


if __name__ == "__main__":
    sys.exit(main())
