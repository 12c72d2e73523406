"""The training of one trial as a Ray task, in room that Ray keeps free for it."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from haltune._utils.words import one_line
from haltune.errors import InvalidInput, LeaseLost
from haltune.study import Study, Trial

from ..child import Ending
from ..worker import Errors, Train, train_one
from .checkpoints import Carried
from .store import KeeperConnection, KeeperStore

_log = logging.getLogger("haltune")
_SILENCE = 20.0  # seconds without room before a word is said
_LOOK = 0.2  # seconds between questions whether there is room
_DISPLACED = 5.0  # seconds without room before a trial that waits for it is given back
_REPEAT = 1.0  # seconds between requests to leave: a keeper that restarts forgets them


@dataclass(frozen=True)
class Job:
    """What all tasks of a launcher have in common."""

    token: str  # of this launch
    keeper: Any
    url: str
    arguments: Mapping[str, Any]  # of Study, without the store
    holder: str
    train: Train
    retry_on: Errors
    probe: Path  # a file in the folder of the checkpoints
    shared: bool | None  # whether each node sees that folder; None: look for the probe


def train_trial(job: Job, id: int, attempt: int) -> str | None:
    """Train a trial; the traceback of an error that ends the search."""
    study, line = _opened(job)
    try:
        trial = study.take(id, attempt, job.holder, line.leaving)
    except LeaseLost:
        return None  # it went to another worker before this one began
    kept = study.checkpoints
    if not isinstance(kept, Carried):
        return train_one(study, trial, job.train, job.retry_on)
    try:
        kept.fetch(trial.checkpoint)
        return train_one(study, trial, job.train, job.retry_on)
    finally:
        kept.clear()


_studies: dict[str, tuple[Study, KeeperConnection]] = {}  # of this process: the launcher's it last worked for


def _opened(job: Job) -> tuple[Study, KeeperConnection]:
    """The study as this process has it: its log is read once."""
    if job.token not in _studies:
        _studies.clear()
        line = KeeperConnection(job.keeper)
        arguments = dict(job.arguments)
        sees = job.probe.exists() if job.shared is None else job.shared
        if not sees:
            arguments["checkpoints"] = Carried(arguments["keep_checkpoints"], line.files)
        _studies[job.token] = Study(store=KeeperStore(line, job.url), **arguments), line
    return _studies[job.token]


_TASK = ray.remote(train_trial)


class Room:
    """A Child: room for one run at a time, on whatever node has it, and a task for each trial."""

    session = 0  # no process of this machine

    def __init__(self, job: Any, keeper: Any, resources: Mapping[str, float], marker: Path) -> None:
        self._job, self._keeper, self._resources, self._marker = job, keeper, dict(resources), marker
        self._group = placement_group([self._resources])
        self._run: Any = None
        self._since, self._next_look, self._next_request = time.monotonic(), 0.0, 0.0
        self._lacks: float | None = None  # since when it has lost its room, by time.monotonic
        self._warned = False
        self.began: float | None = None

    def ready(self) -> bool:
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK
        if self._has_room():
            return True
        if now - self._since > _SILENCE and not self._warned:
            self._warned = True
            _log.warning("no node of the cluster has %s free: a worker waits for it", self._resources)
        return False

    def begin(self, trial: Trial, log: Path) -> None:
        task = _TASK.options(
            name=f"haltune trial {trial.id}", max_retries=0, **_options(self._resources),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group),
        )  # fmt: skip
        self._run = task.remote(self._job, trial.id, trial.attempt)
        self.began = time.monotonic()

    def waitables(self) -> Sequence[Any]:
        return []

    def poll(self) -> Ending | None:
        if self._marker.exists() and time.monotonic() > self._next_request:
            self._next_request = time.monotonic() + _REPEAT
            self._keeper.leave.remote("the launcher was asked to stop: this run continues later")
        done, _ = ray.wait([self._run], timeout=0)
        if done:
            return _ending(lambda: ray.get(self._run))
        if not self._is_displaced():
            return None
        ray.cancel(self._run, force=True)
        return Ending()

    def _has_room(self) -> bool:
        return bool(placement_group_table(self._group).get("state") == "CREATED")

    def _is_displaced(self) -> bool:
        """True when the node died before the task began, and no other has had room since: others may have."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + 1.0
        self._lacks = None if self._has_room() else self._lacks or now
        return self._lacks is not None and now - self._lacks > _DISPLACED

    def close(self, kill: bool = False) -> None:
        if kill and self._run is not None:
            ray.cancel(self._run, force=True)
        remove_placement_group(self._group)  # Ray ends what still runs in it


def _ending(outcome: Callable[[], str | None]) -> Ending:
    try:
        return Ending(raised=outcome())
    except RayTaskError as error:  # not the training, which train_one forgives or returns: what surrounds it
        return Ending(raised=re.sub(r"\x1b\[[0-9;]*m", "", str(error)))  # without colours
    except WorkerCrashedError:
        return Ending(died="ended without a word; Ray's log of it may say more")
    except NodeDiedError:
        return Ending(died="was on a node that died")
    except OutOfMemoryError:
        return Ending(died="was ended by Ray, because its node ran out of memory")
    except RayError as error:
        return Ending(died=f"was lost: {one_line(error)}")


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Resources as a task asks for them."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    return {
        "num_cpus": 0,
        **{named[name]: amount for name, amount in resources.items() if name in named},
        "resources": {name: amount for name, amount in resources.items() if name not in named},
    }


def checked(resources: Mapping[str, float]) -> dict[str, float]:
    """Resources without those of which nothing is needed. Raises InvalidInput for what is none."""
    wrong = not isinstance(resources, Mapping) or any(
        not isinstance(name, str)
        or isinstance(amount, bool)
        or not isinstance(amount, (int, float))
        or not (0.0 <= amount < math.inf and (amount <= 1.0 or amount == int(amount)))
        for name, amount in resources.items()
    )
    if wrong or not any(resources.values()):
        raise InvalidInput(
            f"resources={resources!r}: what a run takes of its node, such as {{'CPU': 1, 'GPU': 0.5}}; a part of one, "
            "or whole numbers"
        )
    return {name: float(amount) for name, amount in resources.items() if amount}
