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
    """Train the trials of a study in `workers` processes until the search is over; how it ended.

    train: called as train(trial) in a worker; a function at the top of a module. Whatever happens to a worker,
    a crash, a kill, a fault in compiled code, the search goes on: its trial is offered again from its last
    checkpoint, up to the study's max_retries times, and has failed then.
    gpus: devices to share out, one for each worker while there are enough (CUDA_VISIBLE_DEVICES); "auto" finds them,
    None leaves the environment alone.
    trial_timeout: seconds, or a text such as "30min", that one attempt may take. memory_limit: bytes, or a text
    such as "8GB", that its processes may take together (Linux). A run that exceeds either has failed.
    retry_on: exceptions of `train` after which its trial is offered again, as if its worker had been lost.
    progress: show what trains (None: on a terminal with Rich). logs: the folder for what runs print, a file a trial;
    beside the store if None.

    Ctrl-C, or SIGTERM, once: the epochs under way are finished and saved; twice: leave at once. Either way the same
    program goes on where it was.

    Raises InvalidInput for what does not fit, NotSupported for a study in memory, TrainingFailed when the training
    raises before any trial succeeded or max_failures times in a row, KeyboardInterrupt after a second Ctrl-C.
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
