"""A space, wider ones, and what processes of their own do with a study that is widened meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from worlds import Clock, Crash, MortalStore, problem, small_study

from haltune import Choice, Float, Int, Space, Study, Trial
from haltune.errors import StoreError
from haltune.log.events import Event, Widened
from haltune.policies import RandomSearch
from haltune.study.redecide import redecide
from haltune.study.view import read_study

THIRD = 1 / 3  # on no decimal grid
NARROW = Space({
    "lr": Float(1e-3, THIRD, log=True), "layers": Int(1, 2), "kernel": Choice(["rbf"]), "decay": Float(0.0, 1e-3),
})  # fmt: skip
WIDE = Space({
    "lr": Float(1e-4, 1.0, log=True), "layers": Int(1, 4), "kernel": Choice(["poly", "rbf"]),
    "decay": Float(-1.0, 100.0),
})  # fmt: skip


def height(config: dict[str, Any], epoch: float) -> float:
    """Return a value whose maximum is outside the narrow space."""
    return 0.1 * config["layers"] + 0.2 * (config["kernel"] == "poly") + 0.01 * epoch


def study_in(space: Space, store: Any, policy: Any = None, trials: int = 4, **options: Any) -> Study:
    return small_study(policy or RandomSearch(), store, problem=problem(space=space), trials=trials, **options)


def configs(study: Any) -> list[dict[str, Any]]:
    return [dict(t.config) for t in study.trials]


def widenings(store: Any) -> list[Event]:
    return [e for e in store.read("study") if isinstance(e, Widened)]


def differing(study: Study, policy: Any) -> list[Any]:
    """Return the decisions that a policy makes otherwise when it has only the log."""
    decisions = list(redecide(study.problem, policy, study.events()))
    assert len(decisions) > 5
    return [d for d in decisions if d[1] != d[2]]


def crashed_and_continued(searched: Callable[[Any], Study], life: int, after: bool) -> Study:
    """Return a search that is continued after it crashed, before or after append number `life`."""
    clock = Clock()
    store = MortalStore(life, after, clock)
    with pytest.raises(Crash):
        searched(store)
    store.revive()
    clock.now += 1e6  # the lease of the dead process has expired
    return searched(store)


def at_once(work: Any, url: str) -> Any:
    """Run for `together`."""
    return work(url)


def train_until_it_is_widened(url: str) -> list[dict[str, Any]]:
    """Train until another process widens the space in the second trial; return all configurations."""
    study, mine = study_in(NARROW, url, trials=12), []
    for trial in study:
        mine.append(dict(trial.config))
        with trial:
            for epoch in trial.epochs():
                trial.report(height(trial.config, epoch), seconds=1.0)
                while trial.id == 1 and epoch == 2 and study.problem.space == NARROW:
                    time.sleep(0.01)
                    study.sync()
    return mine


def widen_while_it_trains(url: str) -> list[dict[str, Any]]:
    """Widen the study of the other process once it is in its second trial, and give that one trial to see."""
    while not _is_in_its_second_trial(url):
        time.sleep(0.01)
    trial = study_in(WIDE, url, trials=12).ask()
    assert isinstance(trial, Trial)
    with trial:
        for epoch in trial.epochs():
            trial.report(height(trial.config, epoch), seconds=1.0)
    return [dict(trial.config)]


def _is_in_its_second_trial(url: str) -> bool:
    try:
        trials = read_study(url).trials
    except StoreError:  # not yet made
        return False
    return len(trials) == 2 and trials[1].epoch == 2
