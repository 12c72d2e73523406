"""`run`: a search on this machine, with a process for each worker."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

from haltune.errors import InvalidInput, NotSupported
from haltune.log.spending import Outcome
from haltune.ranks.place import this
from haltune.study import Study

from .child import Slot
from .crew import Crew, Options
from .worker import Train, Worker, check_train


def run(
    study: Study,
    train: Train,
    *,
    workers: int = 1,
    gpus: Sequence[int | str] | str | None = "auto",
    trial_timeout: float | str | None = None,
    memory_limit: float | str | None = None,
    retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    progress: bool | None = None,
    logs: str | Path | None = None,
) -> Outcome:
    """Train the trials of a study in processes of this machine until the search is over.

    Whatever happens to a worker, a crash, a kill, a fault in compiled code, the search goes on: its trial is offered
    again from its last checkpoint, up to the study's max_retries times, and has failed then. Ctrl-C, or SIGTERM,
    once: the epochs under way are finished and saved; twice: leave at once. Either way the same program goes on
    where it was.

    Args:
        study: A study whose store is a file or a server.
        train: Called as train(trial) in a worker: a function at the top of a module.
        workers: Processes that train at a time. Default: 1.
        gpus: Devices to share out, one for each worker while there are enough (CUDA_VISIBLE_DEVICES): a list of
            numbers or names, "auto" to find them (the default), None to leave the environment alone.
        trial_timeout: Seconds, or a text such as "30min", that one attempt may take before it has failed.
            Default: None, no limit.
        memory_limit: Bytes, or a text such as "8GB", that an attempt's processes may take together before it has
            failed; on Linux. Default: None, no limit.
        retry_on: Exceptions of `train` after which its trial is offered again, as if its worker had been lost.
            Default: none.
        progress: Show what trains. Default: None, on a terminal with Rich.
        logs: The folder for what runs print, a file a trial. Default: None, beside the store.

    Returns:
        Whether the search is over, and why.

    Raises:
        InvalidInput: For what does not fit.
        NotSupported: For a study in memory.
        TrainingFailed: When the training raises before any trial succeeded, or max_failures times in a row.
        KeyboardInterrupt: After a second Ctrl-C.

    Example:
        ::

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.launch import run
            from haltune.policies import RandomSearch

            def train(trial):
                for epoch in trial.epochs():
                    trial.report(trial.config["lr"] / epoch)

            if __name__ == "__main__":
                problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=3)
                study = Study(problem, RandomSearch(), "search.db", budget=Budget(trials=4))
                print(run(study, train, workers=2).reason)
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as CPython itself finds out
        raise InvalidInput(
            "launch.run was called while a worker imports this program: call it under `if __name__ == '__main__':`"
        )
    if this().place.rank:
        raise NotSupported(
            "this process is one rank of a distributed training, which runs the program from its beginning: launch "
            "such a training by `haltune run -- python train.py`"
        )
    options = Options.of(workers, gpus, trial_timeout, memory_limit, progress, logs)
    errors = check_train(train, retry_on)

    def start(slot: Slot, marker: Path) -> Worker:
        return Worker(study, study.session.holder, train, errors, marker, slot.extra)

    with Crew(study, options, start) as crew:
        return crew.work()
