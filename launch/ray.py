"""haltune.launch.ray: a search on a Ray cluster, whose workers and nodes may die or join.

    from haltune.launch import ray

    ray.run(study, train, resources={"CPU": 1, "GPU": 0.5}, workers=8)  # train(trial) trains one trial

This program asks for all workers. An actor on its node owns the log (see `keeper`): a SQLite file, or the connection to
PostgreSQL. Each trial is a task in a placement group on any node, and reports to the actor.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from haltune._utils.checks import check_counts, is_number
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

from .crew import Child, Crew, Ending, Options, Slot, need_launchable
from .keeper import Carried, Keeper, KeeperStore, PagedLog, Reply
from .processes import Errors, Train, check_called, train_one

_PAUSE = 0.5  # seconds before a keeper that cannot be reached is called again
_log = logging.getLogger("haltune")
_SILENCE = 20.0  # seconds without free resources before a warning
_LOOK = 0.2  # seconds between checks for free resources
_DISPLACED = 5.0  # seconds without free resources before a waiting trial is given back
_REPEAT = 1.0  # seconds between requests to give back trials, which a restarted keeper forgets


class KeeperConnection:
    """The connection of a process to the keeper. A call waits while the keeper restarts."""

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
                    "The actor that keeps the study is gone: it died more than max_restarts times, or its node died. "
                    f"Its log is on the disk. To continue, start the same program again. ({error})"
                ) from error
        self._leave = reply.leave
        self.ahead = reply.now - (started + time.time()) / 2.0
        if reply.error is not None:
            raise reply.error
        return reply.answer


@dataclass(frozen=True)
class Job:
    """Data that all tasks of a launcher share."""

    token: str  # of this launch
    keeper: Any
    url: str
    arguments: Mapping[str, Any]  # of Study; the store without its url
    holder: str
    train: Train
    retry_on: Errors
    probe: Path  # a file in the folder of the checkpoints
    shared: bool | None  # whether each node can reach that folder; None: look for the probe


def train_trial(job: Job, id: int, attempt: int) -> str | None:
    """Train a trial; return the traceback of an error that ends the search, or None."""
    study, line = _opened(job)
    try:
        trial = study.take(id, attempt, job.holder, line.leaving)
    except LeaseLost:
        return None  # it went to another worker before this one started it
    kept = study.checkpoints
    if not isinstance(kept, Carried):
        return train_one(trial, job.train, job.retry_on)
    try:
        try:
            kept.fetch(trial.resumes_from)
        except OSError as error:  # such as a full disk; another node may have room
            trial.mark_lost(f"its checkpoint could not be copied to its node: {one_line(error)}")
            return None
        return train_one(trial, job.train, job.retry_on)
    finally:
        kept.clear()


_studies: dict[str, tuple[Study, KeeperConnection]] = {}  # of this process, for the last launcher


def _opened(job: Job) -> tuple[Study, KeeperConnection]:
    """Return this process's study; its log is read once."""
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
    """Resources for one trial at a time, on any node, and a task for each trial."""

    def __init__(self, job: Any, keeper: Any, resources: Mapping[str, float], marker: Path) -> None:
        self._job, self._keeper, self._resources, self._marker = job, keeper, dict(resources), marker
        self._group = placement_group([self._resources])
        self._run: Any = None
        self._since, self._next_look, self._next_request = time.monotonic(), 0.0, 0.0
        self._lacks: float | None = None  # since when it has no resources, by time.monotonic
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
            _log.warning("A worker waits: no node of the cluster has %s free.", self._resources)
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
            return _ending(self._run)
        if not self._is_displaced():
            return None
        ray.cancel(self._run, force=True)
        return Ending()

    def _has_room(self) -> bool:
        return bool(placement_group_table(self._group).get("state") == "CREATED")

    def _is_displaced(self) -> bool:
        """Return whether the node died before the task started, and no other node has had free resources since."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + 1.0
        self._lacks = None if self._has_room() else self._lacks or now
        return self._lacks is not None and now - self._lacks > _DISPLACED

    def close(self, kill: bool = False) -> None:
        if kill and self._run is not None:
            ray.cancel(self._run, force=True)
        remove_placement_group(self._group)  # Ray kills the tasks in it


def _ending(run: Any) -> Ending:
    try:
        return Ending(raised=ray.get(run))
    except RayTaskError as error:  # an error around the training; train_one handles the training's own
        return Ending(raised=re.sub(r"\x1b\[[0-9;]*m", "", str(error)))  # without colours
    except WorkerCrashedError:
        return Ending(died="ended without a message; see Ray's log of it")
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
    """Return the resources of which more than 0 is needed. Raises InvalidInput for invalid ones."""
    wrong = not isinstance(resources, Mapping) or any(
        not isinstance(name, str)
        or not is_number(amount)
        or not (amount >= 0.0 and (amount <= 1.0 or amount == int(amount)))
        for name, amount in resources.items()
    )
    if wrong or not any(resources.values()):
        raise InvalidInput(
            f"resources={resources!r}: name the resources of one trial, such as {{'CPU': 1, 'GPU': 0.5}}. An amount is "
            "at most 1, or a whole number."
        )
    return {name: float(amount) for name, amount in resources.items() if amount}


_LOG, _FILES = 8, 2  # calls that the keeper answers at the same time


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

    An actor keeps the study's log, on the node of this program, next to the SQLite file. Any other node may die. If
    this node dies, the search ends; start the same program again on this node, or, with PostgreSQL, on any node. After
    one Ctrl-C or SIGTERM the current epochs are finished and saved; after a second one the program ends at once. If
    the program is not connected to a cluster, it connects: to RAY_ADDRESS, to one of this machine, or to a new one.

    Args:
        study: A study whose store is a file or a server.
        train: Called as train(trial) in a Ray task: any function that Ray can send.
        resources: Resources of one trial. Trials can share a GPU: {"GPU": 0.5}. If no node has enough, a worker waits
            without a trial; nodes may join at any time. Default: None, {"CPU": 1}.
        workers: Number of trials that train at the same time. Default: 1.
        max_retries: How often a trial is offered again, from its last checkpoint, after its worker or node died;
            then it has failed. Default: None, the study's.
        max_restarts: How often the actor may die. It restarts from the log, and reports wait for it. Default: 10.
        trial_timeout: Time limit of one attempt, in seconds or as a text such as "30min". Beyond it the trial has
            failed. Default: None, no limit.
        retry_on: Exceptions of `train` after which its trial is offered again, as after the loss of a worker.
            Default: none.
        shared: Whether every node can reach the study's folder of checkpoints. If a worker cannot, its checkpoints are
            copied between its node and the actor's. Default: None, each worker checks.
        progress: Show the trials that train. Default: None, on a terminal with Rich. Ray shows the output of trials.

    Returns:
        Whether the search is over, and why.

    Raises:
        InvalidInput: For invalid arguments.
        NotSupported: For a study in memory, and for a program outside the cluster (Ray Client).
        StoreError: If the actor cannot open the store.
        TrainingFailed, KeyboardInterrupt: As in haltune.launch.run.

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
    need_launchable(study)
    ours = study
    if max_retries is not None:
        storage = replace(study.session.settings.store, max_retries=max_retries)
        ours = Study(**vars(replace(study.session.settings, store=storage, verbose=study.session.logger.verbose)))
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
    """Connect to a cluster in the block, and disconnect at its end, unless the program is connected already."""
    if ray.util.client.ray.is_connected():
        raise NotSupported(
            "This program and its study are outside the cluster (Ray Client). Run it on a node of the cluster: "
            "`ray job submit -- python search.py`."
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
        raise StoreError(f"The actor that keeps the study does not start: {error}") from error
    try:
        yield keeper
    finally:
        ray.kill(keeper)


@contextmanager
def _probe(study: Study) -> Iterator[Path]:
    """Make a file by which a worker recognizes the study's folder of checkpoints."""
    folder = study.checkpoints.folder
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".seen-{secrets.token_hex(8)}"
    probe.touch()
    try:
        yield probe
    finally:
        with suppress(OSError):
            probe.unlink()
            folder.rmdir()  # fails if there are checkpoints


def _job(study: Study, keeper: Any, train: Train, errors: Errors, probe: Path, shared: bool | None) -> Any:
    settings = study.session.settings
    arguments = vars(replace(settings, store=replace(settings.store, url=None)))
    url, holder = study.store.url, study.session.holder
    try:
        return ray.put(Job(secrets.token_hex(8), keeper, url, arguments, holder, train, errors, probe, shared))
    except (TypeError, AttributeError) as error:
        raise InvalidInput(
            f"Ray cannot send the training, or the study's functions, to its nodes: {error}. Create what cannot "
            "be pickled, such as locks and open files, inside train(trial)."
        ) from error
