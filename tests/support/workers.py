"""Work of other processes in the tests; spawned, so that it runs on all systems."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from typing import Any

from whims import PROBLEM, Whims

from haltune import Budget, Study
from haltune.log.decisions import continue_
from haltune.log.events import Created, Finished, Reported
from haltune.store.base import Conflict
from haltune.store.open import open_store


def together(work: Callable[..., Any], *arguments: tuple[Any, ...]) -> list[Any]:
    """Return the result of `work` for each tuple of arguments, in processes that start at the same moment."""
    context = mp.get_context("spawn")
    barrier, results = context.Barrier(len(arguments)), context.Queue()
    processes = [context.Process(target=_run, args=(work, n, a, barrier, results)) for n, a in enumerate(arguments)]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return [found[n] for n in range(len(arguments))]


def _run(work: Callable[..., Any], n: int, arguments: tuple[Any, ...], barrier: Any, results: Any) -> None:
    barrier.wait()
    try:
        results.put((n, work(*arguments)))
    except BaseException as error:
        results.put((n, repr(error)))
        raise


def created() -> Created:
    return Created(at=1.0, problem={}, policy={}, seed=0)


def create(url: str, name: str) -> bool:
    """Open the file, perhaps for the first time, and make a study."""
    return open_store(url).create(name, created())


def win_moves(url: str, rounds: int) -> list[int]:
    """Try to append the move at each position; the positions that were won."""
    store, won = open_store(url), []
    for position in range(1, rounds + 1):
        try:
            store.append("s", [Finished(at=2.0, reason="", seen=position)], seen=position, about=None)
        except Conflict:
            continue
        won.append(position)
    return won


def report_often(url: str, trial: int, reports: int) -> list[float]:
    """Append reports of a trial of one's own, however far the log has gone; the values that were acknowledged."""
    store, kept, seen = open_store(url), [], 1
    for n in range(reports):
        value = trial + n / 1000
        event = Reported(
            at=3.0, trial=trial, attempt=1, epoch=n + 1.0, value=value, seconds=1.0, verdict=continue_("on"), seen=1,
            metrics={"twice": 2 * value},
        )  # fmt: skip
        seen = store.append("s", [event], seen=seen, about=trial) + 1
        kept.append(value)
    return kept


def search_a_little(url: str, trials: int) -> list[int]:
    """A worker of a shared search; the trials it trained."""
    mine = []
    for trial in Study(PROBLEM, Whims(), url, seed=1, budget=Budget(trials=trials)):
        mine.append(trial.id)
        with trial:
            for epoch in range(1, 6):
                trial.report(0.1 * epoch, seconds=1.0)
    return mine
