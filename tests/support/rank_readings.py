"""Readings of a study by two ranks of one training, in every state of a search and under every policy.

Run as a script by test_rank_readings.py, in both processes at once: it prints {policy: {state: {reading: answer}}}.
A reading that raises answers with its error. Figures and pages are compared by a digest of their text.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from curves import accuracy
from rich.console import Console
from whims import PAUSE, PROBLEM, STOP, Whims
from worlds import POLICIES, small_study

from haltune import Budget, Study, Trial
from haltune.log.decisions import Action
from haltune.log.records import Best
from haltune.report import learning_curves, live, region, summary, write


def recorded(summary: str) -> str:
    """Remove the state of files, which each rank reads at another moment."""
    return "\n".join(line for line in summary.splitlines() if " kept in " not in line)


RANK = int(os.environ["RANK"])


def _but_for_files(best: Best | None) -> Best | None:
    """Ignore files: rank 0 may be far ahead, and have deleted obsolete ones."""
    return best and replace(best, checkpoint=None)


_KEPT = re.compile("[^>]* kept in [^<]*")  # see `recorded`
Readings = dict[str, Callable[[Study], Any]]
QUICK: Readings = {  # in every state of every search
    "history": lambda s: (s.history.position, s.history.rng("propose", 0).integers(10**9), s.history.paused),
    "trials": lambda s: [(t.id, t.status, list(t.values), os.path.basename(t.checkpoint or "")) for t in s.trials],
    "best": lambda s: _but_for_files(s.best),
    "spent": lambda s: s.spent,
    "outcome": lambda s: s.outcome,
    "explain": lambda s: [s.explain(t.id) for t in s.trials],
    "explain nothing": lambda s: s.explain(99),
    "events": lambda s: len(list(s.events())),
    "repr": repr,
    "settings": lambda s: [(k, v) for k, v in sorted(vars(s.session.settings).items()) if k not in ("store", "policy")],
    "lease_seconds": lambda s: s.session.lease_seconds,
    "holder": lambda s: len(s.session.holder.split("/")),
    "checkpoints": lambda s: (s.checkpoints.folder, s.checkpoints.keep, s.checkpoints.quota),
    "summary": lambda study: recorded(summary(study)),
}
SLOW: Readings = {
    "recommend": lambda s: _but_for_files(s.recommend()),
    "level_set": lambda s: s.level_set(0.5),
    "own level_set": lambda s: s.level_set(),
    "maximisers": lambda s: s.maximisers(),
    "frame": lambda s: s.frame().to_csv(),
    "outlook": lambda s: s.outlook(),
    "page": lambda s: _KEPT.sub("", write(s, f"page-{RANK}.html").read_text()),
    "curves": lambda s: learning_curves(s).to_json(),
    "region": lambda s: region(s.level_set(0.5)).to_json(),
}
LONG = 2000  # characters


def answers(study: Study, readings: Readings = QUICK) -> dict[str, str]:
    """Return the answer or exception of each reading."""
    return {name: _said(reading, study) for name, reading in readings.items()}


def _said(reading: Callable[[Study], Any], study: Study) -> str:
    try:
        text = str(reading(study))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return text if len(text) < LONG else hashlib.sha256(text.encode()).hexdigest()


def search(study: Study) -> dict[str, dict[str, str]]:
    """A search of a few trials: what is read in each of its states."""
    seen = {"opened": answers(study)}
    for trial in study:
        here = f"trial {trial.id}, attempt {trial.attempt}"
        seen[f"{here} begins"] = answers(study)
        with trial:
            assert trial.checkpoint is None or trial.epoch > 0
            for epoch in trial.epochs():
                trial.report(accuracy(trial.config, epoch) if RANK == 0 else 0.0, seconds=1.0)
            if trial.verdict and trial.verdict.action is Action.PAUSE:
                trial.save(lambda path: path.write_text("state"))
        seen[f"{here} is {trial.ended}"] = answers(study)
    return seen | {"over": answers(study, QUICK | SLOW)}


def whims() -> dict[str, dict[str, str]]:
    """Trials that end in every way; at times the budget is spent while a trial is paused that would resume."""
    seen = {}
    unseen = Console(file=StringIO())
    with live(study := Study(PROBLEM, Whims(), "whims.db", seed=1, budget=Budget(trials=2)), unseen):
        for values in ([0.5, PAUSE], [0.5], [PAUSE], None, [STOP]):
            trial = study.ask()
            assert isinstance(trial, Trial)
            for value in values or ():
                trial.report(value if RANK == 0 else 0.5)
            trial.interrupt() if values is None else trial.finish()
            slow = SLOW if values in (None, [STOP]) else {}  # once trials have ended in most ways, and in all
            seen[f"{trial._label} is {trial.ended}"] = answers(study, QUICK | slow)
    return seen


def main(*names: str) -> None:
    """Print what this rank reads."""
    warnings.simplefilter("ignore")
    said = {}
    for name in names:
        study = small_study(POLICIES[name](), f"{name}.db" if len(said) % 2 else None, trials=3)
        said[name] = search(study)
    said["whims"] = whims()
    Path(f"said-{RANK}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*(sys.argv[1:] or POLICIES))
