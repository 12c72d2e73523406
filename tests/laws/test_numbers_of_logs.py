"""With any number in a log, opening it, asking and drawing its page need little memory and time."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import sys
import traceback
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from worlds import POLICIES, problem

from haltune import Budget, Study, Trial, load_study
from haltune.errors import HaltuneError
from haltune.log.events import from_json, to_json
from haltune.report.page import page
from haltune.store.memory import MemoryStore

MEMORY, SECONDS = 2**30, 30  # beyond what the process has, and of a processor
TRIED, NUMBERS, DRAWN = 8, 5, 8  # places of a policy; numbers at each place when all are tried; cases a page
WILD = (-(2**63), -1, 0, 2**31, 2**63 - 1, 2**63, 10**40, -1e300, 1e-300, 1e18, 1e300, math.inf, -math.inf, math.nan)
NAMES = ("random", "gpucb", "bobos", "hyperband", "asha", "ladder", "multifidelity")

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded by what Linux offers")
pytestmark = pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")

Case = tuple[str, tuple[Any, ...], float]  # what the number says, where it stands, and what is written there


@cache
def log(name: str) -> list[dict[str, Any]]:
    """A short search that pauses and resumes, as JSON."""
    study = Study(problem(), POLICIES[name](), seed=1, budget=Budget(trials=8), verbose=0)
    for _ in range(14):
        if not isinstance(trial := study.ask(), Trial):
            break
        for epoch in trial.epochs():
            trial.report(1 - 1 / epoch - trial.config["lr"] / 3, seconds=1.0, cost=2.0, metrics={"m": 0.5})
        trial.checkpointed("saved")
        trial.finish()
    return [json.loads(json.dumps(to_json(e))) for e in study.events()]


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the positions of numbers."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


@cache
def places(name: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return their positions in a log, by meaning."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for at, event in enumerate(log(name)):
        for path in numbers(event):
            found.setdefault(f"{event['kind']} {path}", []).append((at, *path))
    return found


def edited(name: str, path: tuple[Any, ...], number: float) -> list[dict[str, Any]]:
    events = deepcopy(log(name))
    inner: Any = events
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = number
    return events


def use(events: list[dict[str, Any]], drawn: bool) -> None:
    """Use a log; page: also draw its page, which takes most of the time."""
    first, *others = map(from_json, events)
    store = MemoryStore()
    store.create("study", first)
    store._log("study").extend(others)
    study = load_study(store, budget=Budget(trials=20), verbose=0)
    for _ in range(3):
        if not isinstance(trial := study.ask(), Trial):
            break
        trial.report(0.5, seconds=1.0)
        trial.finish()
    if drawn:
        page(study)


def in_little_room(events: list[dict[str, Any]], drawn: bool, told: Path) -> bool:
    """Return whether it works, or gives an error that names it, in a process with limits."""
    child = os.fork()
    if not child:
        code = 1
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
            used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
            resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS + 1))
            use(events, drawn)
            code = 0
        except HaltuneError:
            code = 0
        except BaseException:
            told.write_text(traceback.format_exc()[-3000:])
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def harm(name: str, cases: list[Case], told: Path) -> Iterator[str]:
    """The cases that fail. The page of every `DRAWN`th is drawn too."""
    for at, (kind, path, number) in enumerate(cases):
        told.write_text("killed")
        if not in_little_room(edited(name, path, number), at % DRAWN == 0, told):
            yield f"{kind} = {number}: {told.read_text()}"


@linux
@pytest.mark.parametrize(
    "name", [n if n in ("gpucb", "ladder") else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_no_number_in_a_log_takes_all_memory_or_time(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    cases = [
        (kind, rng.choice(places(name)[kind]), rng.choice(WILD)) for kind in rng.sample(sorted(places(name)), TRIED)
    ]
    assert list(harm(name, cases, tmp_path / "error")) == []
