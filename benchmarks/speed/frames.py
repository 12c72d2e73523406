"""Frames, calls and files of haltune that an ordinary report and an ask use.

    python benchmarks/speed/frames.py [--policy bobos random default]

Report: a middle epoch of a trial that is not decided on, reported by `TrainingLoop.report`. Depth: frames of haltune
from the loop's method to the store's `append`, both counted. Calls: of functions of haltune until the report returns
(generators that resume count again). Files: their modules. Ask: the one after that trial, with a proposal.
Goals: 12 frames and 100 calls for a report, 300 calls for an ask.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import haltune
from haltune import Float, Maximize, Problem, Space, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.policies import BOBOS, MultiFidelity, RandomSearch

POLICIES: dict[str, Callable[[], Any]] = {"random": RandomSearch, "bobos": BOBOS, "default": MultiFidelity}
ROOT = Path(__file__).resolve().parents[2]
_known: dict[str, str | None] = {}  # a code's file -> its path from the repository's root; None: not of haltune


class Walk:
    """Counts what haltune calls inside the block."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.depth = 0  # frames of haltune around the store's append

    def __enter__(self) -> Walk:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (file := within(frame)) is None:
            return
        code = frame.f_code
        self.calls[file, code.co_qualname] += 1
        if code.co_name == "append" and file.startswith("core/store") and not self.depth:
            above: FrameType | None = frame
            while above is not None:
                self.depth += within(above) is not None
                above = above.f_back

    def row(self) -> str:
        """Depth, calls, files."""
        return f"{self.depth:>6}{self.calls.total():>7}{len({file for file, _ in self.calls}):>7}"


def within(frame: FrameType) -> str | None:
    """The file of a frame of haltune."""
    name = frame.f_code.co_filename
    if name not in _known:
        path = Path(os.path.realpath(name))
        ours = (
            name[0] != "<"
            and path.is_relative_to(ROOT)
            and path.relative_to(ROOT).parts[0] not in (".venv", "benchmarks")
        )
        _known[name] = str(path.relative_to(ROOT)) if ours else None
    return _known[name]


def walks(policy: Any, store: str | None) -> tuple[Walk, Walk]:
    """Those of a report, and of the ask after it."""
    problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
    study = Study(problem, policy, store, seed=0, budget="20 trials", verbose=0)
    report, ask = Walk(), Walk()
    for number in range(6):
        trial = study.ask()
        assert isinstance(trial, Trial)
        loop = TrainingLoop(trial)
        for epoch in loop:
            value = (0.9 - trial.config["lr"] / 2) * epoch / (epoch + 1)
            if number == 5 and epoch == 2:
                with report:
                    loop.report(value)
            else:
                loop.report(value)
        trial.finish()
    with ask:
        study.ask()
    return report, ask


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Frames, calls and files of a report and of an ask")
    parser.add_argument("--policy", nargs="*", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--list", action="store_true", help="every function that was called, too")
    arguments = parser.parse_args()
    print(f"haltune {haltune.__version__}\n{'':24}{'depth':>6}{'calls':>7}{'files':>7}")
    for name in arguments.policy:
        for kind in ("memory", "sqlite"):
            with tempfile.TemporaryDirectory() as folder:
                store = None if kind == "memory" else f"sqlite:///{folder}/frames.db"
                for what, walk in zip(("report", "ask"), walks(POLICIES[name](), store), strict=True):
                    print(f"{name:8} {kind:7} {what:7}{walk.row()}")
                    for (file, function), count in walk.calls.items() if arguments.list else ():
                        print(f"    {count:4} {file}: {function}")


if __name__ == "__main__":
    main()
