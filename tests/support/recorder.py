"""Record small searches of this version, whose logs every later version must open.

    PYTHONPATH=tests/support python tests/support/recorder.py tests/recorded_logs/0.3.0

Writes 0.3.0.sqlite, with a study for each policy and each kind of event, and 0.3.0.json, with what each search came to.
Clocks, identities and workers are fixed, so the same code writes the same JSON, and the same logs apart from the paths
of a temporary folder. Run it once for each release, and never change what a release recorded.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from curves import accuracy
from worlds import LAWFUL, SPACE, Clock, Ticks, problem, problem_for, told

from haltune import Budget, Checkpointing, Constraint, Maximize, Minimize, Problem, Space, Storage, Study, Trial
from haltune.errors import HaltuneWarning
from haltune.log.events import plain
from haltune.policies import MultiFidelity, RandomSearch
from haltune.store.sqlite import SqliteStore
from haltune.store.studies import ask_of, hold, lift, note_on, raise_limits
from haltune.study.session import clocked
from haltune.study.view import StudyView, read_study

POLICIES = (
    "random", "gpucb", "autobct", "ei-cooled", "rollout", "truvar-level-set", "truvar-grid", "bobos-audit",
    "bobos-faithful", "halting-gpucb", "halving", "asha-stopping", "hyperband", "hyperband-retrains",
    "hyperband-samples", "infinite-hyperband", "ladder", "multifidelity", "multifidelity-taught",
    "several-multifidelity",
)  # fmt: skip
MINE = {"lr": 0.03, "layers": 2, "kernel": "rbf"}
SHALLOW = {"shallow": lambda config: config["layers"] < 4}  # the constraint of the study "queue"


@dataclass
class Recorder:
    """A store on a clock that the trainings advance."""

    store: SqliteStore
    clock: Clock
    laps: Ticks
    folder: Path

    def study(self, name: str, posed: Problem, policy: Any, budget: Budget, **options: Any) -> Study:
        kept = Checkpointing(self.folder / name)
        with clocked(self.laps):
            return Study(
                posed, policy, Storage(self.store), name, seed=7, budget=budget, checkpoints=kept, verbose=0, **options
            )

    def train(self, trial: Trial, epochs: float = math.inf, value: Callable[..., float] = accuracy) -> None:
        """Train up to `epochs` more, and save where the trial pauses."""
        loaded(trial)
        for n, epoch in enumerate(trial.epochs(), 1):
            self.clock.now += 1.0 + trial.id % 3
            verdict = trial.report(told(trial, value(trial.config, epoch)), epoch)
            if verdict.resumable:
                trial.save(self.write)
            if n >= epochs:
                break

    def write(self, path: Path) -> None:
        self.clock.now += 0.25
        path.write_text("state")

    def search(self, study: Study, **options: Any) -> None:
        for trial in study:
            with trial:
                self.train(trial, **options)


def of_policy(name: str) -> Callable[[Recorder], None]:
    def record(here: Recorder) -> None:
        policy = LAWFUL[name]()
        posed = replace(problem_for(policy), max_epochs=4)
        here.search(here.study(name, posed, policy, Budget(trials=5, epochs=12)))

    return record


def finished(here: Recorder) -> None:
    """A policy that ends the search, and a scale that is learnt."""
    here.search(here.study("finished", problem(4, bounded=False), RandomSearch(trials=3), Budget(trials=9)))


def best_epoch(here: Recorder) -> None:
    """The best epoch counts, and its state is kept; values that are not finite, and more numbers of a report."""
    goal = Minimize("loss", of="best", smooth=("median", 2), rank_by="error")
    study = here.study("best-epoch", Problem(SPACE, goal, 4), RandomSearch(), Budget(trials=3))
    for trial in study:
        with trial:
            for epoch, loss in enumerate((0.5, 0.3, math.nan, math.inf), 1):
                here.clock.now += 1.0
                odd = {"error": loss / 2, "\0 \ud800 \x1b": -0.0}
                trial.report(loss + trial.id / 10, epoch, 1.0, metrics=odd, cost=0.5)
                if epoch == 2:
                    trial.save(here.write, keep=True)
            trial.save(here.write)


def steps(here: Recorder) -> None:
    """Steps as unit: reports come four times in a step of the schedule that is learnt, or at their own positions."""
    posed = Problem(SPACE, Minimize("loss", smooth=50.0), 200, unit="step", min_epochs=20)
    for name, one in (("steps", posed), ("steps-judged", replace(posed, judge_every=50.0))):
        study = here.study(name, one, MultiFidelity(3, candidates=24, min_trials_per_rung=2), Budget(epochs=500))
        for trial in study:
            with trial:
                loaded(trial)
                for step in range(int(trial.epoch) + 25, 201, 25):
                    here.clock.now += 1.0
                    verdict = trial.report(1.0 - accuracy(trial.config, step / 25), step)
                    if verdict.resumable:
                        trial.save(here.write)
                    if verdict.stops:
                        break


def failures(here: Recorder) -> None:
    """Trials that failed, were interrupted, lost their worker or started again, a slept machine, a lost checkpoint."""
    study = here.study("failures", problem(4), RandomSearch(), Budget(trials=6, time=1e6))
    first = begun(study)
    here.train(first)
    first.finish()
    failing = begun(study)
    here.train(failing, 1)
    failing.fail(ValueError("the loss has no gradient"))
    interrupted = begun(study)
    here.train(interrupted, 2)
    saved = Path(interrupted.save(here.write))
    interrupted.interrupt()
    saved.unlink()
    again = begun(study)
    here.train(again, 1)
    here.laps.sleep(3600.0)
    here.train(again, 1)
    again.restart()
    begun(study)  # its process never reports again
    here.train(again)
    again.finish()
    here.clock.now += 700.0
    other = here.study("failures", problem(4), RandomSearch(), Budget(trials=6, time=1e6))
    for trial in other:
        with trial:
            here.train(trial)


def queue(here: Recorder) -> None:
    """Configurations that the user enqueued, one of them refused, and one trained again."""
    space = Space(dict(SPACE.parameters), constraints=list(SHALLOW.items()))
    posed = replace(problem(4), space=space, start=[MINE])
    study = here.study("queue", posed, RandomSearch(), Budget(trials=4))
    reader = read_study(here.store, "queue")
    reader.enqueue(here.store, MINE | {"layers": 4})
    study.enqueue(MINE, again=True)
    study.enqueue({"lr": 0.3, "layers": 1, "kernel": "poly", "degree": 3})
    here.search(study)


def wishes(here: Recorder) -> None:
    """A trial stopped and one paused by the user, a note, a search that was paused, raised limits, prices."""
    study = here.study("wishes", problem(4), RandomSearch(), Budget(trials=3, money=9.0, price=3.0))
    for wish in ("stop", "pause"):
        trial = begun(study)
        here.train(trial, 1)
        for one in ("pause", "continue", wish):
            ask_of(here.store, "wishes", study.history, trial.id, one, "the user asked")
            study.sync()
        here.train(trial, 1)
        trial.finish()
    note_on(here.store, "wishes", study.history, 0, "a plateau #again")
    trial = begun(study)
    here.train(trial, 1)
    hold(here.store, "wishes", "lunch")
    here.train(trial, 1)
    trial.finish()
    study.sync()
    lift(here.store, "wishes", study.history)
    study.sync()
    raise_limits(here.store, "wishes", study.history, {"trials": 5})
    here.search(study)


def widened(here: Recorder) -> None:
    """A space that was widened while a trial ran, then narrowed."""
    narrow = problem(4, Space({**SPACE.parameters, "layers": type(SPACE.parameters["layers"])(1, 2)}))
    first = here.study("widened", narrow, RandomSearch(), Budget(trials=4))
    trial = begun(first)
    here.train(trial, 1)
    other = here.study("widened", problem(4), RandomSearch(), Budget(trials=4))
    here.train(trial)
    trial.finish()
    here.search(other)
    parameters = {name: p for name, p in SPACE.parameters.items() if name not in ("kernel", "degree")}
    narrow = problem(4, Space({**parameters, "layers": type(SPACE.parameters["layers"])(2, 3), "kernel": "rbf"}))
    here.search(here.study("widened", narrow, RandomSearch(), Budget(trials=6)))


def running(here: Recorder) -> None:
    """A trial that trains and one that is paused, as a program that was killed leaves them; a budget that changed."""
    policy = MultiFidelity(3, candidates=24, min_trials_per_rung=2)
    study = here.study("running", problem(9), policy, Budget(trials=9))
    for _ in range(2):
        with begun(study) as trial:
            here.train(trial)
    study.budget = Budget(trials=12, epochs=200)
    here.train(begun(study), 1)


def limited(here: Recorder) -> None:
    """Two goals and a constraint, under random search."""
    goals = [Maximize("acc"), Minimize("ms", (0, 100))]
    posed = Problem(SPACE, goals, 4, constraints=[Constraint("params", at_most=2.5, changes=False)])
    here.search(here.study("limited", posed, RandomSearch(), Budget(trials=4)))


STUDIES = [
    *map(of_policy, POLICIES),
    finished, best_epoch, steps, failures, queue, wishes, widened, running, limited,
]  # fmt: skip


def loaded(trial: Trial) -> None:
    """Read the state of a trial that resumes, as every program must; its values depend on none."""
    assert trial.checkpoint is None or Path(trial.checkpoint).read_text() == "state"


def begun(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial), trial
    return trial


def told_of(study: StudyView) -> dict[str, Any]:
    """Return what a search came to, as JSON."""
    trials = [
        {
            "status": t.status, "attempt": t.attempt, "epochs": t.epochs, "values": t.values, "pause_at": t.pause_at,
            "checkpoint_epoch": t.checkpoint_epoch, "error": t.error,
        }
        for t in study.trials
    ]  # fmt: skip
    several = study.history.problem.further or study.history.problem.constraints
    best = [[t.trial, t.epoch, t.values] for t in study.pareto_front()] if several else None
    if not several and (one := study.best) is not None:
        best = [one.trial, one.epoch, one.value, one.metric]
    events, spent = study.history.position, asdict(study.spent)
    found: dict[str, Any] = plain({"events": events, "trials": trials, "best": best, "spent": spent})
    return found


@contextmanager
def fixed() -> Iterator[None]:
    """Give identities and workers in order, instead of at random, and say nothing."""
    identities = count(1)
    with (
        patch("secrets.token_hex", lambda n: f"{next(identities):0{2 * n}x}"),
        patch("haltune.study.replica.new_holder", lambda: "host/boot/0/1/1/worker"),
        patch.object(logging.getLogger("haltune"), "disabled", True),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", HaltuneWarning)
        yield


def record(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, fixed():
        path, clock = Path(folder) / "recorded.db", Clock(1_750_000_000.0)
        store = SqliteStore(f"sqlite:///{path}", clock)
        for search in STUDIES:
            search(Recorder(store, clock, Ticks(clock), Path(folder)))
        found = {name: told_of(read_study(store, name)) for name in store.names()}
        store.close()
        Path(f"{target}.sqlite").unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as c:
            c.execute("PRAGMA journal_mode=DELETE")
            c.execute("VACUUM INTO ?", [f"{target}.sqlite"])
    lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    Path(f"{target}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
