"""Scenes of two ranks of one training; run as a script by test_ranks.py, in both processes at once.

Each scene is a function that yields its observations. If both ranks must see the same, only rank 0 has values.
"""

from __future__ import annotations

import json
import os
import random
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from whims import PAUSE, PROBLEM, STOP, Whims

from haltune import Budget, Checkpointing, Choice, Float, Int, Maximize, Problem, Space, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import InvalidInput, StoreError
from haltune.log.decisions import Action
from haltune.policies import Start
from haltune.study import Fold

RANK = int(os.environ.get("RANK", 0))
Seen = Iterator[tuple[Any, ...]]


def a_study(trials: int, policy: Any = None, **options: Any) -> Study:
    return Study(PROBLEM, policy or Whims(), budget=Budget(trials=trials), **{"seed": 1, **options})


def search(store: str | None) -> Seen:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  as seed_everything does
    study = Study(Problem(PROBLEM.space, PROBLEM.goal, 4), Whims(), store, name="search", budget=Budget(trials=4))
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                verdict = trial.report(0.1 * epoch if RANK == 0 else -1.0)
                yield trial.id, trial.config, verdict, trial.epoch, trial.pause_at
        yield trial.ended, trial.checkpoint, study.best
    values = [list(map(float, t.values)) for t in study.trials]
    yield study.outcome, study.best, study.spent.epochs, values, len(list(study.events()))


def search_in_memory() -> Seen:
    yield from search(None)


def search_in_a_file() -> Seen:
    yield from search("search.db")


def types() -> Seen:
    kernels = Choice([(3, 3), (5, 5), None, 1, 1.5, True, "a"])
    space = Space({"kernel": kernels, "n": Int(1, 9), "x": Float(1e-9, 1, log=True)})

    class Anywhere(Whims):
        def propose(self, state: Any, history: Any, rng: Any) -> Any:
            return Start(space.sample(1, rng)[0], resource=2, tags={"rung": 1, "pair": (1, 2.0)})

    study = Study(Problem(space, Maximize("acc", (0, 1)), 4), Anywhere(), budget=Budget(trials=20), seed=1)
    for trial in study:
        trial.report(0.5)
        yield repr(trial.config), repr(trial.epoch), repr(trial.tags), repr(trial.resource), repr(trial.goal)


def stop_pause_and_resume() -> Seen:
    values = iter([0.5, PAUSE, 0.5, STOP, STOP])
    for trial in a_study(2):
        with trial:
            if RANK == 0:  # which loads the state, and sends it to the other
                assert trial.checkpoint is None or trial.epoch
            for _ in trial.epochs():
                if trial.report(next(values) if RANK == 0 else 0.5).stops:
                    break
            saved = False
            if trial.verdict and trial.verdict.action is Action.PAUSE:
                saved = trial.save(lambda path: path.write_text("state"), ".txt") == trial.checkpoint
                saved = saved and (RANK > 0 or Path(str(trial.checkpoint)).is_file())
        yield trial.id, trial.attempt, trial.epoch, trial.ended, saved, trial.verdict, trial.checkpoint


def a_full_disk() -> Seen:
    for trial in a_study(1, checkpoints=Checkpointing(disk_quota=10)):
        trial.report(PAUSE)
        for save in (lambda t=trial: t.room_for(100), lambda t=trial: t.save(lambda p: p.write_bytes(bytes(99)))):
            try:
                save()
            except OSError as error:
                yield type(error).__name__, str(error), trial.checkpoint
        trial.decline_pause()
        trial.report(0.5)


def a_plain_loop_at_a_full_disk() -> Seen:
    """A pause cannot be saved, by all ranks, by rank 0 alone, or where rank 0 alone reports too."""
    for unit, who in (("epoch", "all"), ("epoch", "saves"), ("epoch", "reports"), ("step", "all"), ("step", "saves")):
        problem, kept = Problem(PROBLEM.space, PROBLEM.goal, 3, unit=unit), Checkpointing(disk_quota=10)
        values = iter([0.5, PAUSE, 0.6])
        for trial in Study(problem, Whims(), name=f"{unit} {who}", seed=1, budget=Budget(trials=1), checkpoints=kept):
            with trial, warnings.catch_warnings(action="ignore"):
                for n in trial.epochs():
                    in_step(f"full-{unit}-{who}-{n}")
                    if who != "reports" or RANK == 0:
                        trial.report(next(values), n)
                    if who == "all" or RANK == 0:
                        trial.save(lambda path: path.write_bytes(bytes(99)))
                    yield unit, who, n
            yield trial.ended, trial.attempt, trial.epoch


def rank_0_alone_reports() -> Seen:
    for trial in a_study(2):
        with trial:
            if RANK == 0:
                trial.report(STOP)
                trial.heartbeat()
                trial.save(lambda path: path.write_text("x"))
        yield trial.id, trial.epoch, trial.ended, trial.checkpoint


def failures(everywhere: bool) -> Seen:
    trial: Any = None
    try:
        for trial in a_study(6, max_failures=2):
            with trial:
                trial.report(0.5)
                if trial.id and (everywhere or RANK == 0):
                    raise ValueError("diverged")
            yield trial.id, trial.ended
    except ValueError as error:
        yield trial.id, str(error)


def failures_everywhere() -> Seen:
    yield from failures(True)


def failures_of_rank_0() -> Seen:
    yield from failures(False)


def nowhere_to_write() -> Seen:
    try:
        a_study(1, store="/nowhere/at/all/search.db")
    except StoreError as error:
        yield type(error).__name__, str(error)


def errors_while_deciding() -> Seen:
    class Broken(Whims):
        def judge(self, *_: Any) -> Any:
            raise ZeroDivisionError("in judge")

        def propose(self, state: Any, history: Any, rng: Any) -> Any:
            if len(history):
                raise OverflowError("in propose")
            return super().propose(state, history, rng)

    study = a_study(2, Broken())
    trial = study.ask()
    assert isinstance(trial, Trial)
    for work in (lambda: trial.report(0.5), study.ask):
        try:
            work()
        except ArithmeticError as error:
            yield type(error).__name__, str(error)


def several_studies_and_a_wait() -> Seen:
    one, two, more = a_study(3, Whims(wait_at=1)), a_study(3, name="two"), a_study(3)
    yield tuple(repr(study.ask()) for study in (one, two, one, more, two))
    yield repr(one), repr(two)


def a_training_loop() -> Seen:
    full = [True, False]

    def save(path: Path) -> None:
        if full.pop(0):
            raise OSError("no space left")
        path.write_text("state")

    values = iter([PAUSE, 0.5, PAUSE, *9 * [STOP]])
    for trial in a_study(2):
        with trial, warnings.catch_warnings(action="ignore"):
            assert trial.checkpoint is None or trial.epoch
            loop = TrainingLoop(trial, save=save)
            for epoch in loop:
                loop.report(next(values) if RANK == 0 else 0.5)
                yield epoch, loop.stopping, trial.verdict
        yield trial.id, trial.attempt, trial.epoch, trial.ended, trial.checkpoint


def a_training_that_starts_again() -> Seen:
    """By an error in its second loop, then by its own count, on both ranks."""
    for trial in a_study(2):
        with trial, warnings.catch_warnings(action="ignore"):
            for smaller in (False, True):
                with suppress(MemoryError):
                    for epoch in trial.epochs():
                        if epoch == 3 and not smaller:
                            raise MemoryError
                        trial.report(0.5)
                        yield trial.id, trial.attempt, trial.epoch
                        if smaller and epoch == 2:
                            break
            trial.report(0.9, 1)
        yield trial.id, trial.attempt, trial.epoch, trial.ended


def a_loop_left_by_break() -> Seen:
    """Leave by each rank's own early stopping, and at the end by an error of only rank 0, without a save."""
    study = a_study(4, checkpoints=Checkpointing(keep=9))
    for trial in study:
        with trial:
            for epoch in (loop := TrainingLoop(trial, save=lambda path: path.write_text("state"))):
                loop.report(0.1 * (epoch + trial.id))
                if trial.id == 3 and RANK == 0:
                    raise ValueError("diverged")
                if epoch == 2:
                    break
        yield trial.id, trial.ended, trial.checkpoint is not None
    yield study.best, Path(str(study.best.checkpoint)).read_text()


def in_step(where: str) -> None:
    """Wait for both ranks, as a collective does in real trainings."""
    Path(f"{where}-{RANK}").touch()
    while not Path(f"{where}-{1 - RANK}").exists():
        time.sleep(0.001)


def draws(pauses: bool) -> list[float]:
    """The random numbers of four epochs, after which the trial stops, perhaps with a pause after two."""
    values = iter([0.5, PAUSE if pauses else 0.5, 0.5, STOP])
    drawn = []
    for trial in a_study(1):
        random.seed(10 * trial.attempt + RANK)
        with trial:
            assert trial.checkpoint is None or trial.epoch
            loop = TrainingLoop(trial, save=lambda path: path.write_text("state"))
            for epoch in loop:
                in_step(f"{pauses}-{epoch}")
                drawn.append(random.random())
                loop.report(next(values) if RANK == 0 else 0.5)
    return drawn


def a_resumed_loop_draws_on() -> Seen:
    straight = draws(False)
    yield len(straight), draws(True) == straight


def drawn_where_rank_0_reports_alone(kind: str, pauses: bool) -> tuple[list[float], list[Any]]:
    """The random numbers of this rank in a trial that perhaps pauses, and how its attempts ended."""
    values, drawn, ends = iter([0.5, PAUSE if pauses else 0.5, 0.5, STOP]), [], list[Any]()

    def train(trial: Trial) -> None:
        random.seed(10 * trial.attempt + RANK)
        assert trial.checkpoint is None or trial.epoch

        def save(path: Path) -> None:
            path.write_text("state")

        loop = TrainingLoop(trial, save=save)
        for epoch in loop if kind == "TrainingLoop" else trial.epochs():
            in_step(f"{kind}-{pauses}-{epoch}")
            drawn.append(random.random())
            if RANK:
                stops = kind == "left by break" and epoch in (2 * pauses, 4)  # as rank 0 has broadcast it
            elif kind == "TrainingLoop":
                stops = loop.report(next(values))
            else:
                stops = trial.report(next(values)).stops
                trial.save(save)
            if kind == "left by break" and stops:
                break

    study = a_study(1, name=f"{kind} {pauses}")
    if kind == "optimize":
        study.optimize(train)
    else:
        for trial in study:
            with trial:
                train(trial)
            ends.append((trial.ended, trial.epoch, trial.checkpoint is None))
    return drawn, [*ends, study.best]


def rank_0_alone_reports_and_saves() -> Seen:
    for kind in ("epochs", "left by break", "TrainingLoop", "optimize"):
        (straight, _), (drawn, ends) = (drawn_where_rank_0_reports_alone(kind, pauses) for pauses in (False, True))
        yield kind, len(straight), drawn == straight, ends


def over_folds(pauses: bool, everywhere: bool = True) -> tuple[list[float], list[Any]]:
    """The random numbers of a trial over two folds of two epochs, and where each began; perhaps with two pauses.

    everywhere: all ranks report, and not rank 0 alone.
    """
    values = iter([PAUSE, PAUSE, 0.4, 0.5] if pauses else [0.5] * 4)
    drawn, seen = [], list[Any]()
    study = Study(Problem(PROBLEM.space, PROBLEM.goal, 2), Whims(), seed=1, budget=Budget(trials=1))
    for trial in study:
        random.seed(10 * trial.attempt + RANK)
        with trial:
            for fold in trial.folds(2):
                seen.append((fold.attempt, fold.index, fold.epoch, fold.checkpoint is None))
                for _ in (loop := TrainingLoop(fold, save=lambda path: path.write_text("state"))):
                    in_step(f"folds-{pauses}-{everywhere}-{len(drawn)}")
                    drawn.append(random.random())
                    if everywhere or RANK == 0:
                        loop.report(next(values) if RANK == 0 else 0.5)
        seen.append((trial.ended, trial.epoch))
    return drawn, [*seen, study.best]


def folds() -> Seen:
    (straight, _), (drawn, seen) = over_folds(False), over_folds(True)
    yield len(straight), drawn == straight
    yield from seen[:-1]
    yield repr(seen[-1]), seen[-1].folds


def folds_that_rank_0_reports() -> Seen:
    (straight, _), (drawn, seen) = over_folds(False, False), over_folds(True, False)
    yield len(straight), drawn == straight
    yield from seen[:-1]


def folds_of_three_epochs() -> Seen:
    """Where the reports of a trial over folds come, in two kinds of loop, from all ranks or from rank 0 alone."""
    for kind in ("TrainingLoop", "epochs"):
        for everywhere in (True, False):
            study = Study(Problem(PROBLEM.space, PROBLEM.goal, 3), Whims(), seed=1, budget=Budget(trials=1))
            for trial in study:
                with trial:
                    for fold in trial.folds(2):
                        loop = TrainingLoop(fold) if kind == "TrainingLoop" else None
                        for _ in fold.epochs() if loop is None else loop:
                            if everywhere or RANK == 0:
                                (fold if loop is None else loop).report(0.5)
            (found,) = study.trials
            yield kind, everywhere, found.attempt, found.epochs.tolist()


def train_elsewhere(trial: Trial) -> None:
    """Train as rank 0 of a fit in a spawned or forked process."""
    trial.adopt()
    trial.report(0.5, seconds=1.0)
    trial.report(STOP, seconds=1.0)
    trial.save(lambda path: path.write_text("state"))
    trial.finish()


def train_again_elsewhere(trial: Trial) -> None:
    """Train in a spawned process, which starts again."""
    trial.adopt()
    trial.report(0.5, seconds=1.0)
    trial.restart()
    trial.report(0.6, seconds=1.0)
    trial.finish()


def train_fold_elsewhere(fold: Fold) -> None:
    """Train a fold as rank 0 of a fit in a spawned or forked process."""
    fold.adopt()
    fold.report(0.5, seconds=1.0)
    fold.report(0.6 + fold.index / 10, seconds=1.0)
    fold.finish()


def the_users_own_first() -> Seen:
    """Enqueued on both ranks, recorded once; what is none is refused on both."""
    study = a_study(3, name="enqueued")
    mine = dict(PROBLEM.space.sample(1, np.random.default_rng(5))[0])
    yield study.enqueue(mine), study.enqueue(mine), len(study.history.queue)
    try:
        study.enqueue({})
    except InvalidInput as error:
        yield type(error).__name__, str(error)
    for trial in study:
        with trial:
            trial.report(0.5 + RANK)
        yield trial.config == mine, len(study.history.queue)


def a_wider_space() -> Seen:
    """Widen to a space whose grid lacks the earlier configurations."""
    narrow = {"x": Float(0.0, 1 / 3), "k": Choice(["a"])}
    wide = {"x": Float(-1.0, 1000.0), "k": Choice(["a", "b"]), "m": Int(1, 9, when={"k": "b"})}
    for space, trials in ((narrow, 2), (wide, 8)):
        study = Study(space, "acc", "wider.db", max_epochs=1, budget=Budget(trials=trials), seed=1)
        for trial in study:
            with trial:
                trial.report(0.5)
            yield (trial.config,)
        yield [dict(t.config) for t in study.trials], study.problem, len(study.history.points)


SCENES = [
    search_in_memory, search_in_a_file, types, stop_pause_and_resume, a_full_disk,
    a_plain_loop_at_a_full_disk, rank_0_alone_reports,
    failures_everywhere, failures_of_rank_0, nowhere_to_write, errors_while_deciding,
    several_studies_and_a_wait, a_training_loop, a_training_that_starts_again, a_loop_left_by_break,
    a_resumed_loop_draws_on, rank_0_alone_reports_and_saves, folds, folds_that_rank_0_reports,
    folds_of_three_epochs, the_users_own_first, a_wider_space,
]  # fmt: skip

if __name__ == "__main__":
    print(json.dumps({scene.__name__: list(scene()) for scene in SCENES}, default=str))
