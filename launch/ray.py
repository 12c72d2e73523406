"""haltune.launch.ray: a search on a Ray cluster, whose workers and nodes come and go.

    from haltune.launch import ray

    ray.run(study, train, resources={"CPU": 1, "GPU": 0.5}, workers=8)  # train(trial) is the body of a search's loop

This program asks for all workers. An actor on its node keeps the log (see `keeper`): its SQLite file, or the connection
to PostgreSQL. Each trial is a task, in room that Ray keeps free for it on any node, and reports to the actor.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from haltune._utils.checks import check_counts
from haltune.display import one_line
from haltune.errors import InvalidInput, LeaseLost, NotSupported, StoreError, installing
from haltune.log.spending import Outcome
from haltune.study import Study, Trial

try:
    import ray
except ImportError as error:
    raise ImportError(f"haltune.launch.ray needs Ray: {installing('ray')}") from error

from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)  # fmt: skip
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from .crew import Child, Crew, Ending, Options, Slot
from .keeper import Carried, Keeper, KeeperStore, PagedLog, Reply
from .processes import Errors, Train, check_called, train_one

_PAUSE = 0.5  # seconds before a keeper that cannot be reached is called again
_log = logging.getLogger("haltune")
_SILENCE = 20.0  # seconds without room before a word is said
_LOOK = 0.2  # seconds between questions whether there is room
_DISPLACED = 5.0  # seconds without room before a trial that waits for it is given back
_REPEAT = 1.0  # seconds between requests to leave: a keeper that restarts forgets them


class KeeperConnection:
    """What connects a process with the keeper. A call waits while the keeper restarts."""

    def __init__(self, keeper: Any) -> None:
        self._keeper = keeper
        self._leave: str | None = None
        self.ahead = 0.0  # seconds that the store's clock is ahead of this machine's

    def leaving(self) -> str | None:
        return self._leave

    def log(self, method: Callable[..., object], *arguments: Any) -> Any:
        return self._ask(self._keeper.log.options(concurrency_group="log"), method, *arguments)

    def files(self, function: Callable[..., object], *arguments: Any) -> Any:
        return self._ask(self._keeper.files.options(concurrency_group="files"), function, *arguments)

    def _ask(self, call: Any, *arguments: Any) -> Any:
        while True:
            started = time.time()
            try:
                reply: Reply = ray.get(call.remote(*arguments))
                break
            except ActorUnavailableError:
                time.sleep(_PAUSE)
            except RayActorError as error:
                raise StoreError(
                    "the actor that keeps the study is gone: it was started again max_restarts times, or its node "
                    f"died. What it recorded is on the disk; the same program continues from there ({error})"
                ) from error
        self._leave = reply.leave
        self.ahead = reply.now - (started + time.time()) / 2.0
        if reply.error is not None:
            raise reply.error
        return reply.answer


@dataclass(frozen=True)
class Job:
    """What all tasks of a launcher have in common."""

    token: str  # of this launch
    keeper: Any
    url: str
    arguments: Mapping[str, Any]  # of Study; the store without its url
    holder: str
    train: Train
    retry_on: Errors
    probe: Path  # a file in the folder of the checkpoints
    shared: bool | None  # whether each node sees that folder; None: look for the probe


def train_trial(job: Job, id: int, attempt: int) -> str | None:
    """Train a trial; the traceback of an error that ends the search."""
    study, line = _opened(job)
    try:
        trial = study._take(id, attempt, job.holder, line.leaving)
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
            arguments["checkpoints"] = Carried(arguments["checkpoints"].keep, line.files)
        arguments["store"] = replace(arguments["store"], url=KeeperStore(line, job.url))
        _studies[job.token] = Study(**arguments), line
    return _studies[job.token]


_TASK = ray.remote(train_trial)


class Room(Child):
    """Room for one run at a time, on whatever node has it, and a task for each trial."""

    def __init__(self, job: Any, keeper: Any, resources: Mapping[str, float], marker: Path) -> None:
        self._job, self._keeper, self._resources, self._marker = job, keeper, dict(resources), marker
        self._group = placement_group([self._resources])
        self._run: Any = None
        self._since, self._next_look, self._next_request = time.monotonic(), 0.0, 0.0
        self._lacks: float | None = None  # since when it has lost its room, by time.monotonic
        self._warned = False

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

    def poll(self) -> Ending | None:
        if self._marker.exists() and time.monotonic() > self._next_request:
            self._next_request = time.monotonic() + _REPEAT
            self._keeper.leave.remote("the launcher was asked to stop: this trial continues later")
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


_LOG, _FILES = 8, 2  # calls that the keeper answers at a time


def run(
    study: Study,
    train: Train,
    *,
    resources: Mapping[str, float] | None = None,
    workers: int = 1,
    max_retries: int | None = None,
    max_restarts: int = 10,
    trial_timeout: float | str | None = None,
    retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    shared: bool | None = None,
    progress: bool | None = None,
) -> Outcome:
    """Train the trials of a study on a Ray cluster until the search is over.

    An actor keeps the study's log, on the node of this program, beside the SQLite file. Any other node may die. When
    this one does the search ends there, and the same program goes on: on that node, once it is back, or with
    PostgreSQL on any. Ctrl-C, or SIGTERM, once: the epochs under way are finished and saved; twice: leave at once.
    Connects to the cluster if the program did not: to that of RAY_ADDRESS, or of this machine, or a new one here.

    Args:
        study: A study whose store is a file or a server.
        train: Called as train(trial) in a Ray task: any function that Ray can send.
        resources: What a run takes of its node; a part of a GPU, {"GPU": 0.5}, shares it. A worker for which no node
            has room waits for one, without a trial; nodes may join at any time. Default: None, {"CPU": 1}.
        workers: Runs that train at a time. Default: 1.
        max_retries: How often a trial whose worker or node died is offered again, from its last checkpoint, before
            it has failed. Default: None, the study's.
        max_restarts: How often the actor may die; it goes on from the log, and reports wait for it. Default: 10.
        trial_timeout: Seconds, or a text such as "30min", that one attempt may take before it has failed.
            Default: None, no limit.
        retry_on: Exceptions of `train` after which its trial is offered again, as if its worker had been lost.
            Default: none.
        shared: Whether every node sees the study's folder of checkpoints. Default: None, each worker looks; where it
            does not see the folder, checkpoints are carried between its node and the actor's.
        progress: Show what trains. Default: None, on a terminal with Rich. What runs print, Ray keeps and shows.

    Returns:
        Whether the search is over, and why.

    Raises:
        InvalidInput: For what does not fit.
        NotSupported: For a study in memory, and for a program outside the cluster (Ray Client).
        StoreError: When the actor cannot open the store there.
        TrainingFailed, KeyboardInterrupt: As haltune.launch.run.

    Example:
        ::

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.launch import ray
            from haltune.policies import RandomSearch

            def train(trial):
                for epoch in trial.epochs():
                    trial.report(trial.config["lr"] / epoch)

            problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=3)
            study = Study(problem, RandomSearch(), "search.db", budget=Budget(trials=4))
            print(ray.run(study, train, workers=2).reason)
    """
    options = Options.of(workers, None, trial_timeout, None, progress, None)
    errors, needs = check_called(train, retry_on), checked({"CPU": 1} if resources is None else resources)
    check_counts(max_restarts=max_restarts)
    if not isinstance(study, Study):
        raise InvalidInput(f"study={study!r}: a Study whose store is a file, Study(..., store='search.db')")
    study.store.address()
    ours = study
    if max_retries is not None:
        storage = replace(study._settings.store, max_retries=max_retries)
        ours = Study(**vars(replace(study._settings, store=storage, verbose=study._session.logger.verbose)))
    with _connected(), _kept(ours, max_restarts) as keeper, _probe(ours) as probe:
        job = _job(ours, keeper, train, errors, probe, shared)

        def start(slot: Slot, marker: Path) -> Room:
            return Room(job, keeper, needs, marker)

        try:
            with Crew(ours, options, start, early=True) as crew:
                return crew.work()
        finally:
            study.sync()


@contextmanager
def _connected() -> Iterator[None]:
    """In a cluster; one that this program was not in before is left at the end."""
    if ray.util.client.ray.is_connected():
        raise NotSupported(
            "this program is outside the cluster (Ray Client), and its study with it: run it on one of the cluster's "
            "nodes, `ray job submit -- python search.py`"
        )
    connects = not ray.is_initialized()
    if connects:
        ray.init()
    try:
        yield
    finally:
        if connects:
            ray.shutdown()


@contextmanager
def _kept(study: Study, max_restarts: int) -> Iterator[Any]:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, max_task_retries=-1, concurrency_groups={"log": _LOG, "files": _FILES})
    options = {"name": f"haltune {study.name} {secrets.token_hex(4)}", "scheduling_strategy": here}
    keeper = actor(Keeper).options(max_restarts=max_restarts, **options)
    keeper = keeper.remote(study.store.address(), study.checkpoints)
    try:
        ray.get(keeper.log.remote(PagedLog.names))
    except RayError as error:
        raise StoreError(f"the study's actor does not start: {error}") from error
    try:
        yield keeper
    finally:
        ray.kill(keeper)


@contextmanager
def _probe(study: Study) -> Iterator[Path]:
    """A file by which a worker knows the study's folder of checkpoints from another of that name."""
    folder = study.checkpoints.folder
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".seen-{secrets.token_hex(8)}"
    probe.touch()
    try:
        yield probe
    finally:
        with suppress(OSError):
            probe.unlink()
            folder.rmdir()  # unless there are checkpoints


def _job(
    study: Study, keeper: Any, train: Train, errors: tuple[type[BaseException], ...], probe: Path, shared: bool | None
) -> Any:  # fmt: skip
    settings = study._settings
    arguments = vars(replace(settings, store=replace(settings.store, url=None)))
    url, holder = study.store.url, study._session.holder
    try:
        return ray.put(Job(secrets.token_hex(8), keeper, url, arguments, holder, train, errors, probe, shared))
    except (TypeError, AttributeError) as error:
        raise InvalidInput(
            f"Ray cannot send the training, or the study's functions, to its nodes: {error}. What cannot be pickled, "
            "such as locks and open files, belongs inside train(trial)"
        ) from error
