"""A state that a thread writes behind a training, while the training continues. The training itself commits it later.

Until then the log has the trial's earlier checkpoints, so a program that is killed in between loses only this state. A
pause and the end of a trial commit it first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .reporter import Reporter, ordinary_errors


@dataclass(frozen=True)
class _Written:
    path: Path
    position: float  # whose state it is
    work: Future[Any]
    seconds: float  # that the training has waited for it so far


class Behind:
    """The state of a best epoch that a thread writes; one at a time."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._written: _Written | None = None

    def start(self, path: Path, write: Callable[[], object], began: float) -> None:
        """Let a thread write the state after the last report to a path of `begin_save`.

        began: when its copy was started, by the reporter's clock.
        """
        pool = ThreadPoolExecutor(1, "haltune-save")
        work = pool.submit(write)
        pool.shutdown(wait=False)
        self._written = _Written(path, float(self._reporter.trial.epoch), work, self._reporter.clock.now() - began)

    @property
    def done(self) -> bool:
        """Whether a state is written and not committed yet."""
        return self._written is not None and self._written.work.done()

    @property
    def started(self) -> bool:
        """Whether a state is not committed yet."""
        return self._written is not None

    def commit(self, ready: Callable[[Future[Any], Path], object] | None = None, wait: bool = True) -> None:
        """Commit the state, if there is one.

        ready: waits for the work and raises an error if the state is not complete. Default: `work.result()`.
        wait: False does nothing while the thread still writes.
        """
        if self._written is None or not (wait or self._written.work.done()):
            return
        written, self._written = self._written, None

        def commit() -> None:
            began = self._reporter.clock.now()
            try:
                with ordinary_errors():
                    written.work.result() if ready is None else ready(written.work, written.path)
            except Exception:
                self._reporter.trial.give_up_save(written.path)
                raise
            waited = written.seconds + self._reporter.clock.now() - began
            self._reporter.trial.commit_save(written.path, waited, keep=written.position)

        self._reporter.attempt(commit, keeps=True, later=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"_reporter": self._reporter, "_written": None}


def copied(value: Any) -> Any:
    """Return a copy of a state, with its tensors on the CPU."""
    if hasattr(value, "untyped_storage"):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return copy.deepcopy(value)
