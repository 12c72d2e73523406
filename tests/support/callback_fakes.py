"""A trial that records the calls of callbacks, and a clock that only tests advance."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from haltune.errors import StoreError, warn
from haltune.log.decisions import Action, Verdict, continue_, stop
from haltune.log.problem import Maximize, Measures, Minimize


class FakeTrial:
    """Answers reports from a script {epoch: verdict} and remembers every call."""

    def __init__(self, metric="val_loss", max_epochs=3, verdicts=None, epoch=0.0, maximize=False, id=7):
        self.id, self.unit = id, "epoch"
        self._session = self  # a study of its own
        self.config: dict[str, Any] = {"lr": 0.1}
        self.max_epochs = self.pause_at = max_epochs
        self._goal = (Maximize if maximize else Minimize)(metric)
        self._measures = Measures(metric)
        self.attempt = 1
        self.epoch = epoch
        self.checkpoint = None
        self.verdict = None
        self.ended = None
        self._keeps_checkpoint = self._keeps_epoch = False
        self._heartbeat_seconds = 3600.0
        self.broken: Exception | None = None  # raised by every report while it is set
        self.full: Exception | None = None  # raised by every save while it is set
        self.homes = 0  # processes that took it over
        self.declined = 0  # pauses taken back
        self.refused: str | None = None  # why its state cannot be saved
        self.saved: list[float] = []  # the epochs after which it was saved
        self.reports: list[dict[str, Any]] = []
        self.metrics: dict[str, list[float]] = {}  # recorded before it was resumed
        self.endings: list[Any] = []  # statuses and exceptions, in order
        self._verdicts = verdicts or {}

    def warn(self, text, about=None):
        """Warn as a session does."""
        warn(text)

    @property
    def _horizon(self):
        return self.max_epochs

    def _record(self, report, judge=True):
        if self.broken is not None:
            raise self.broken
        call = {name: getattr(report, name) for name in ("value", "epoch", "seconds", "validation")}
        self.reports.append(call | {"metrics": dict(report.metrics), "judge": judge})
        self.epoch = report.epoch
        unjudged = Verdict(Action.UNJUDGED, "delivered late")
        self.verdict = self._verdicts.get(report.epoch, continue_("fine")) if judge else unjudged
        return self.verdict

    def report(self, *args, **kwargs):
        raise AssertionError("callbacks hand on a Report whole")

    def _go_on(self):
        self.verdict = None
        self.declined += 1

    def room_for(self, size):
        if self.full is not None:
            raise self.full

    def save(self, write, suffix=".ckpt", keep=False):
        self.room_for(0)
        self.checkpoint = write
        return "saved" + suffix

    def _begin_save(self, suffix=".ckpt", keep=False):
        self.room_for(0)
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        return Path(folder) / ("part" + suffix)

    def _commit_save(self, temporary, seconds=0.0, keep=False):
        self.room_for(0)
        self.saved.append(self.epoch)
        self.checkpoint = str(temporary.rename(temporary.with_name("state.ckpt")))
        return self.checkpoint

    def _cannot_save(self, why):
        self.refused = why

    def _adopt(self):
        self.homes += 1

    def _before_end(self, act):
        self.last_act = act

    def finish(self, status=None):
        self.endings.append(status)

    def fail(self, error):
        self.endings.append(error)

    @property
    def epochs(self):
        return [r["epoch"] for r in self.reports]

    @property
    def values(self):
        return [r["value"] for r in self.reports]


class Clock:
    """Seconds by hand."""

    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time

    def tick(self, seconds):
        self.time += seconds


STOP = stop("P(beats 0.9) = 0.01")
PAUSE = Verdict(Action.PAUSE, "end of the rung")
OUTAGE = StoreError("the database is locked")
