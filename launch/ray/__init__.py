"""haltune.launch.ray: a search on a Ray cluster, whose workers and nodes come and go.

from haltune.launch import ray

ray.run(study, train, resources={"CPU": 1, "GPU": 0.5}, workers=8)  # train(trial) is the body of a search's loop

This program asks for all workers. An actor beside it keeps the log: its SQLite file, or the connection to
PostgreSQL; runs are tasks on whatever node has room, and report to the actor.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .launcher import run

if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, {"launcher": ("run",)})  # the keeper's process needs no Ray

__all__ = ["run"]
