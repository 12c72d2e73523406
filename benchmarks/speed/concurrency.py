"""Many workers on one study: how long a report takes, how many a store takes, and that none is lost.

    python benchmarks/speed/concurrency.py [--seconds 15] [--postgres URL | none]

On a SQLite file, and on a PostgreSQL server (one of its own on loopback, with its files in the temporary folder and
flushed to the disk, unless --postgres names a database): 64 processes that report once a second, 8 that
report as fast as they can, and raw appends of the store by 8 and by 64 processes. Each report is the whole of
`trial.report`: read what others appended, judge, append, wait for the store. Afterwards the log is read, and every
acknowledged report must be there once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial
from haltune.log.decisions import continue_
from haltune.log.events import Created, Reported
from haltune.policies import RandomSearch
from haltune.store.open import open_sql, open_store

PROBLEM = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), None)
_FORK = multiprocessing.get_context("fork")  # everything is imported: the processes begin at once


def reports(url: str, seconds: float, pause: float, gate: Any) -> tuple[int, list[float], list[float]]:
    """A worker: its trial, what was acknowledged, and seconds of each report."""
    study = Study(PROBLEM, RandomSearch(), url, seed=1, budget=Budget(trials=1000), verbose=0)
    trial = study.ask()
    assert isinstance(trial, Trial)
    gate.wait()
    end, kept, took = time.monotonic() + seconds, [], []
    time.sleep(random.uniform(0.0, pause))
    while time.monotonic() < end:
        value, began = random.random(), time.perf_counter()
        trial.report(value, seconds=1.0)
        took.append(time.perf_counter() - began)
        kept.append(value)
        time.sleep(max(0.0, pause - took[-1]))
    return trial.id, kept, took


def appends(url: str, seconds: float, pause: float, gate: Any) -> tuple[int, list[float], list[float]]:
    """A worker that appends reports of a trial of its own to the store, and reads nothing."""
    store, seen, trial = open_sql(url), 1, os.getpid()
    gate.wait()
    end, kept, took = time.monotonic() + seconds, [], []
    while time.monotonic() < end:
        value, began = random.random(), time.perf_counter()
        event = Reported(
            at=began, trial=trial, attempt=1, epoch=len(kept) + 1.0, value=value, seconds=1.0, verdict=continue_("on"),
            seen=seen,
        )  # fmt: skip
        seen = store.append("study", [event], seen=seen, about=trial) + 1
        took.append(time.perf_counter() - began)
        kept.append(value)
    return trial, kept, took


def lead(work: Callable[..., Any], url: str, seconds: float, pause: float, gate: Any, results: Any) -> None:
    """The life of a process."""
    random.seed(os.getpid())
    try:
        results.put(work(url, seconds, pause, gate))
    except BaseException as error:
        results.put(error)
        raise


def measure(work: Callable[..., Any], url: str, workers: int, seconds: float, pause: float) -> str:
    """One line of the table. Raises what a worker raises, and AssertionError for a report lost or there twice."""
    gate, results = _FORK.Barrier(workers), _FORK.Queue()
    arguments = (work, url, seconds, pause, gate, results)
    processes = [_FORK.Process(target=lead, args=arguments) for _ in range(workers)]
    for process in processes:
        process.start()
    found = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    check(url, found)
    took = np.concatenate([row[2] for row in found])
    p50, p95, p99 = 1e3 * np.quantile(took, [0.5, 0.95, 0.99])
    rate = len(took) / seconds
    return f"{workers:9d} {len(took):9d} {rate:9.0f} {p50:9.2f} {p95:9.2f} {p99:9.2f} {1e3 * took.max():9.1f}"


def check(url: str, found: list[tuple[int, list[float], list[float]]]) -> None:
    """Every acknowledged report is in the log, once, in its order."""
    log: dict[int, list[float]] = {}
    for event in open_store(url).read("study"):
        if isinstance(event, Reported):
            log.setdefault(event.trial, []).append(event.value)
    for trial, kept, _ in found:
        assert log[trial] == kept, f"trial {trial}: {len(kept)} acknowledged, {len(log[trial])} stored"


def table(name: str, fresh: Callable[[], str], seconds: float) -> None:
    """All that is measured of one kind of store. fresh: the URL of an empty database."""
    heads = ("processes", "reports", "a second", "p50", "p95", "p99", "longest")
    print(f"\n{name}, ms a report\n{'':28}" + " ".join(f"{head:>9}" for head in heads))
    for what, work, workers, pause in (
        ("one report a second", reports, 64, 1.0),
        ("as fast as they can", reports, 8, 0.0),
        ("raw appends", appends, 8, 0.0),
        ("raw appends", appends, 64, 0.0),
    ):
        url = fresh()
        if work is appends:
            open_sql(url).create("study", Created(at=0.0, problem={}, policy={}, seed=1))
        print(f"{what:28}{measure(work, url, workers, seconds, pause)}", flush=True)
    print(f"{'load average':28}{os.getloadavg()[0]:9.1f}")


@contextmanager
def server(given: str | None) -> Iterator[Callable[[], str]]:
    """Return a maker of empty databases: schemas of the given one, or databases of a new server."""
    if given is not None:
        count = iter(range(10**6))
        yield lambda: schema(given, f"haltune_{os.getpid()}_{next(count)}")
        return
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
    import postgres

    with postgres.server(flushes=True) as own:
        yield own.database


def schema(url: str, name: str) -> str:
    """The URL of a new schema of a database."""
    import sqlalchemy as sa

    engine = sa.create_engine(url)
    with engine.begin() as c:
        c.execute(sa.text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{name}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--postgres", help="the URL of a database, or none; a server of its own if left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = iter(range(100))
        table("SQLite", lambda: f"sqlite:///{folder}/{next(files)}.db", options.seconds)
    if options.postgres == "none":
        return
    try:
        with server(options.postgres) as fresh:
            table("PostgreSQL", fresh, options.seconds)
    except LookupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
