"""A trial that records the calls of callbacks, and a clock that only tests advance."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from haltune import Constant, Problem, Space
from haltune._utils.disk import discard
from haltune.errors import StoreError, warn
from haltune.log.decisions import Action, Verdict, continue_, stop
from haltune.log.history import History
from haltune.log.problem import Maximize, Measures, Minimize
from haltune.study.attempt import Attempt
from haltune.study.loops import LoopPort


class FakeTrial(LoopPort):
    """A trial's port that answers reports from a script {epoch: verdict} and remembers every call."""

    def __init__(self, metric="val_loss", max_epochs=3, verdicts=None, epoch=0.0, maximize=False, id=7):
        Attempt.__init__(self, id, 1, {"lr": 0.1}, max_epochs, None, {}, None, epoch)
        self.max_epochs = self.horizon = max_epochs
        self.goal = (Maximize if maximize else Minimize)(metric)
        self.measures = Measures(metric)
        self.kept = False  # whether its state is to be kept
        self.broken: Exception | None = None  # raised by every report while it is set
        self.full: Exception | None = None  # raised by every save while it is set
        self.homes = 0  # processes that took it over
        self.declined = 0  # pauses taken back
        self.refused: str | None = None  # why its state cannot be saved
        self.saved: list[float] = []  # the epochs after which it was saved
        self.reports: list[dict[str, Any]] = []
        self.hints: list[str] = []
        self.endings: list[Any] = []  # statuses and exceptions, in order
        self._metrics: dict[str, list[float]] = {}  # recorded before it was resumed
        self._verdicts = verdicts or {}
        self._warned: set[str] = set()

    metrics = property(lambda self: self._metrics)
    heartbeat_seconds = 3600.0
    has_reported = property(lambda self: bool(self.reports))

    @property
    def history(self):
        return History(Problem(Space({"lr": Constant(0.1)}), self.goal, self.horizon))

    def starts(self, model=None, position=None, of=None, resume=""):
        if position is not None and position < self.epoch:
            self.restart(position, resume)

    def begins_loop(self, model=None):
        return True

    def restores_randomness(self, put_back=None):
        pass

    def doubts_orders(self, lists, iterators):
        pass

    def begins_epoch(self, epoch, own=False):
        pass

    trained_on = before_training = False

    def looks_at_weights(self):
        pass

    def forgets(self):
        return None

    def leaves_loop(self):
        pass

    def goes_back(self, epoch):
        return epoch < self.epoch and (not self.reports or epoch <= self.reports[0]["epoch"])

    def restart(self, position=0.0, advice=""):
        self.warn(f"trains again from {position:g}. {advice}", "restart")
        self.attempt, self.epoch, self.reports = self.attempt + 1, position, []

    def owner(self, path):
        return None

    def sign(self, mark):
        """It is the only trial of its study."""

    def signer(self, mark):
        return None

    def trainer_of(self, model):
        return None

    def trained_another(self, model):
        return False

    def other_open(self):
        return None

    def attaches(self, others=0):
        pass

    def adopt(self):
        self.homes += 1

    def heartbeat(self):
        pass

    def recall(self):
        pass

    def leave_signal(self, number):
        pass

    def record(self, report, judge=True, updates=None):
        if self.broken is not None:
            raise self.broken
        call = {name: getattr(report, name) for name in ("value", "epoch", "seconds", "validation")}
        self.reports.append(call | {"metrics": dict(report.metrics), "judge": judge})
        self.epoch = report.epoch
        unjudged = Verdict(Action.UNJUDGED, "delivered late")
        self.verdict = self._verdicts.get(report.epoch, continue_("fine")) if judge else unjudged
        return self.verdict

    def room_for(self, size):
        if self.full is not None:
            raise self.full

    def begin_save(self, suffix=".ckpt", keep=False):
        self.room_for(0)
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        return Path(folder) / ("part" + suffix)

    def commit_save(self, temporary, seconds=0.0, keep=False, resumes_only=False):
        self.room_for(0)
        self.saved.append(self.epoch)
        self.checkpoint = str(temporary.rename(temporary.with_name("state.ckpt")))
        return self.checkpoint

    def give_up_save(self, temporary):
        discard(temporary)

    def save(self, write, suffix=".ckpt", keep=False, *, resumes_only=False):
        self.room_for(0)
        self.checkpoint = write
        return "saved" + suffix

    def decline_pause(self, why=None):
        self.declined += self.verdict is not None
        self.verdict, self.refused = None, why or self.refused

    def keeps(self, best_epoch=False):
        return self.kept

    def before_end(self, act):
        self.last_act = act

    def finish(self, status=None):
        self.endings.append(status)

    def fail(self, error):
        self.endings.append(error)

    def breaks(self, error):
        self.fail(error)

    def fits(self, under_way):
        pass

    def interrupt(self):
        self.endings.append("interrupted")

    def mark_lost(self, reason):
        self.endings.append(reason)

    def tolerates(self, error):
        return True

    def warn(self, text, about=None, once=False):
        if not (once and (about or text) in self._warned):
            warn(text)
        self._warned.add(about or text)

    def hint(self, text, about):
        self.hints.append(text)

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
