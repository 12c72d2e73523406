"""The random state of a plain loop: a training that resumes draws as one that never paused."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from paused_studies import pausing_study

from haltune import Study, Trial

SEEDS = itertools.count()


def draws() -> list[float]:
    return [random.random(), float(np.random.random())]  # noqa: NPY002 (as programs do)


def study_of(folder: Path, at: tuple[int, ...]) -> Study:
    return pausing_study(f"{folder}/{at}.db", at=at, epochs=5, trials=2, folder=folder / "states", verbose=0)


def saves_after(trial: Trial) -> list[float]:
    drawn = load(trial)
    for _ in trial.epochs():
        drawn += draws()
        verdict = trial.report(drawn[-1])
        trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
        draws()  # an evaluation after the save
        if verdict.stops:
            break
    return drawn


def saves_before(trial: Trial) -> list[float]:
    drawn = load(trial)
    for _ in trial.epochs():
        drawn += draws()
        trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
        trial.report(draws()[0])
    return drawn


def saves_at_once(trial: Trial) -> list[float]:
    drawn = load(trial)
    for _ in trial.epochs():
        drawn += draws()
        if trial.report(drawn[-1]).stops:
            trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return drawn


def over_folds(trial: Trial) -> list[float]:
    drawn: list[float] = []
    for fold in trial.folds(2):
        drawn = load(fold)
        for _ in fold.epochs():
            drawn += draws()
            fold.report(drawn[-1])
            fold.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return drawn


def load(trial: Trial) -> list[float]:
    return json.loads(Path(trial.checkpoint).read_text()) if trial.checkpoint else []


@pytest.mark.parametrize("reopened", [True, False])
@pytest.mark.parametrize("program", [saves_after, saves_before, saves_at_once, over_folds])
def test_a_plain_loop_that_resumes_draws_as_without_a_pause(
    program: Callable[[Trial], list[float]], reopened: bool, tmp_path: Path
) -> None:
    ends: dict[bool, dict[int, list[float]]] = {True: {}, False: {}}
    for pauses in (False, True):
        study = study_of(tmp_path, (2, 4) if pauses else ())
        while isinstance(trial := study.ask(), Trial):
            random.seed(trial.id if trial.attempt == 1 else f"another process {next(SEEDS)}")
            np.random.seed(trial.id if trial.attempt == 1 else 1000 + next(SEEDS))  # noqa: NPY002
            with trial:
                ends[pauses][trial.id] = program(trial)
            study = study_of(tmp_path, (2, 4) if pauses else ()) if reopened else study
        if pauses:
            assert {t.attempt for t in study.trials} == {3}
    assert len(ends[True]) == 2
    assert ends[True] == ends[False]
