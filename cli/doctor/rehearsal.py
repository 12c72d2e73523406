"""Does a program go on exactly where it was? It trains one configuration straight, and once more with a pause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from haltune._utils.words import plural
from haltune.errors import HaltuneError
from haltune.launch import run_script
from haltune.log.events import Reported
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.policies import RandomSearch
from haltune.study import Study

from .checks import Finding

_ABOUT = "resume"
_SEED = 0  # of the one configuration


def rehearse(
    problem: Problem, command: Sequence[str], folder: Path, epochs: int, **options: Any
) -> Iterator[Finding]:
    """Findings on a program: the log of each training stays in `folder`.

    A budget of one epoch ends the training as Ctrl-C does: saved, and given back. A larger one takes it up again.
    """
    if problem.max_epochs is not None and problem.max_epochs < 2:
        yield Finding(_ABOUT, None, "a training of one epoch is never paused")
        return
    last = min(epochs, problem.max_epochs or epochs)
    try:
        straight = _trained(problem, command, folder / "straight", [last], options).history.trial(0)
        yield Finding(
            _ABOUT,
            True,
            f"{command[0]} trained {plural(straight.epoch, 'epoch')} with {dict(straight.config)}",
        )
        study = _trained(problem, command, folder / "paused", [1, last], options)
    except HaltuneError as error:
        last_line = str(error).strip().rpartition("\n")[2]
        yield Finding(_ABOUT, False, f"the program failed: {last_line}", f"what it printed is in {folder}")
        return
    paused = study.history.trial(0)
    if any(isinstance(e, Reported) and e.attempt == 1 and e.epoch > 1 for e in study.events()):
        yield Finding(
            _ABOUT, False, "the program trained on although it was told to stop after epoch 1",
            "end the training when trial.report(...).stops, or pass HaltuneCallback(trial)",
        )  # fmt: skip
    elif paused.checkpoint_epoch < 1:
        yield Finding(
            _ABOUT, False, "nothing was saved at the pause: the run began anew",
            "save it, trial.save(write), or pass HaltuneCallback(trial); begin at trial.checkpoint",
        )  # fmt: skip
    elif differs := _differs(straight, paused):
        again = _trained(problem, command, folder / "again", [last], options).history.trial(0)
        yield _unequal(differs, _differs(straight, again))
    else:
        yield Finding(
            _ABOUT, True, f"paused after epoch 1 it reports the same to the last bit, {plural(last, 'epoch')}"
        )


def _trained(
    problem: Problem, command: Sequence[str], folder: Path, ends: Sequence[int], options: dict[str, Any]
) -> Study:
    """One trial, trained by the program up to each of the epochs in turn."""
    folder.mkdir()
    for end in ends:
        budget = Budget(epochs=end)
        study = Study(
            problem, RandomSearch(trials=1), folder / "rehearsal.db", seed=_SEED, budget=budget, verbose=0
        )
        run_script(study, command, progress=False, **options)
    return study


def _differs(one: TrialRecord, other: TrialRecord) -> str:
    """The first epoch and number that differ between two trainings; empty when none does."""
    if list(one.epochs) != list(other.epochs):
        return f"the epochs reported are {_listed(one.epochs)} and {_listed(other.epochs)}"
    columns = {"the value": (one.values, other.values)}
    columns |= {
        f"the metric {n!r}": (one.metrics[n], other.metrics[n]) for n in one.metrics if n in other.metrics
    }
    for i, epoch in enumerate(one.epochs):
        for what, (a, b) in columns.items():
            if a[i] != b[i] and not (math.isnan(a[i]) and math.isnan(b[i])):
                return f"{what} of epoch {epoch:g} is {float(a[i])!r} straight and {float(b[i])!r} paused"
    return ""


def _listed(epochs: Any) -> str:
    return ", ".join(f"{e:g}" for e in epochs) or "none"


def _unequal(differs: str, by_itself: str) -> Finding:
    if by_itself:
        return Finding(_ABOUT, False, f"two straight trainings differ, so that a pause cannot be judged: {by_itself}",
                       "seed everything that is random")  # fmt: skip
    return Finding(_ABOUT, False, f"a pause changes the training: {differs}",
                   "save and load all of its state: weights, optimizer, schedule, random generators; "
                   "haltune.callbacks.check_resume names the part")  # fmt: skip
