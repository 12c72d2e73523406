"""Runs as tasks on whatever node of a Ray cluster has room; an actor keeps the log."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput, NotSupported, StoreError, installing

try:
    import ray
except ImportError as error:
    raise ImportError(f"haltune.launch.ray needs Ray: {installing('ray')}") from error

from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from haltune._utils.checks import check_counts
from haltune.log.spending import Outcome
from haltune.study import Study

from ..child import Slot
from ..crew import Crew, Options
from ..worker import Train, check_called
from .keeper import Keeper, PagedLog
from .task import Job, Room, checked

_LOG, _FILES = 8, 2  # calls that the keeper answers at a time
__all__ = ["run"]


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
    ours = study if max_retries is None else _retrying(study, max_retries)
    with _connected(), _kept(ours, max_restarts) as keeper, _probe(ours) as probe:
        job = _job(ours, keeper, train, errors, probe, shared)

        def start(slot: Slot, marker: Path) -> Room:
            return Room(job, keeper, needs, marker)

        try:
            with Crew(ours, options, start, early=True) as crew:
                return crew.work()
        finally:
            study.sync()


def _retrying(study: Study, max_retries: int) -> Study:
    """The study, with another number of retries."""
    spoken = study.session.voice.verbose
    return Study(**vars(replace(study.settings, max_retries=max_retries, verbose=spoken)))


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
    """The actor that keeps the study, on this node."""
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
    """What tasks have in common, where Ray hands it to them."""
    arguments = {name: value for name, value in vars(study.settings).items() if name != "store"}
    url, holder = study.store.url, study.session.holder
    try:
        return ray.put(
            Job(secrets.token_hex(8), keeper, url, arguments, holder, train, errors, probe, shared)
        )
    except (TypeError, AttributeError) as error:
        raise InvalidInput(
            f"Ray cannot send the training, or the study's functions, to its nodes: {error}. What cannot be pickled, "
            "such as locks and open files, belongs inside train(trial)"
        ) from error
