"""A plain training loop with the features of the framework callbacks. An outage of the store does not interrupt it.

For a short loop, `for epoch in trial.epochs()` and `trial.report(value)` are enough. `TrainingLoop` adds three things:
reports wait during an outage of the store, validation is timed separately, and the first stop stays in force. With
`save=` a trial can pause. It resumes from trial.checkpoint with its random state. Ctrl-C or SIGTERM waits until the
next report, where the trial is saved.

Under torchrun every rank runs the same loop. Rank 0 reports and saves, and all ranks stop, pause and resume together,
each with its own random state. If a value differs between ranks, that of rank 0 counts, so reduce it first. For a
sharded state, as with FSDP, use `ShardedLoop` (haltune.callbacks.sharded). `together=True` is for a state that you
write yourself: every rank calls `save` with the path of the same folder, and the trial resumes on as many ranks.

With `background=True` the training continues while the model of the best epoch is written. The model is committed, and
recorded in the log, at the end of the first epoch at which it is on the disk. A pause and the end of the trial wait.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from haltune._utils.disk import force
from haltune._utils.interruption import Interruption
from haltune._utils.randomness import OwnGenerators, put, put_back
from haltune.display import plural, several_of
from haltune.errors import InvalidInput, NotSupported
from haltune.ranks import follows, in_place_of_barriers, lone, torch_ranks
from haltune.study import Trial
from haltune.study.draws import RANDOM, put_beside, random_of
from haltune.study.port import check_write, check_written

from .behind import Behind, copied
from .reporter import Reporter, ordinary_errors

T = TypeVar("T")


class TrainingLoop:
    """Loop over the epochs of one training. It reports to a trial.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        verbose: Print a line for every report. Default: False.
        save: A function that writes the state after an epoch to a path (a file or a folder). It is called at the end of
            an epoch where the trial pauses and after Ctrl-C, at loop.report(value) for the best trial, and when you
            leave the loop by `break` after it. Default: None; a paused trial starts again, and no model is kept.
        suffix: The ending of that path. Default: ".ckpt".
        together: Whether every rank calls `save`, with the path of the same existing folder. Set it if `save` waits
            for all ranks, as fabric.save(path / "state.ckpt", state) does. Default: False, only rank 0.
        background: Whether `save` only copies the state and returns a function that writes it, such as
            write_later(state, path). haltune calls the function in a thread if the state is that of a best epoch, so
            that the training continues. Default: False, `save` writes.
        now: A monotonic clock, seconds. Default: time.monotonic.

    Raises:
        InvalidInput: If `trial` is not a trial, if `save` is not a function, or if an epoch is reported outside the
            loop.
        NotSupported: If ranks save together but torch.distributed is not initialised, or if another number of ranks
            wrote the checkpoint together.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         loop = TrainingLoop(trial)
        ...         for epoch in loop:
        ...             _ = loop.report(trial.config["lr"] / epoch)
        >>> [len(t.values) for t in study.trials]
        [2, 2, 2]
    """

    _own_file = "{}.random"  # of each rank, in the folder that ranks write together

    def __init__(
        self,
        trial: Trial,
        verbose: bool = False,
        *,
        save: Callable[[Path], object] | None = None,
        suffix: str = ".ckpt",
        together: bool = False,
        background: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if save is not None:
            check_write(save)
        self._reporter = Reporter(trial, verbose=verbose, now=now)
        self._suffix, self._together = suffix, together
        self._save = save if save is None or not background else partial(_save_at_once, save)
        self._copies = save if background and (trial.alone or together) else None  # returns what writes the copy
        self._behind = Behind(self._reporter)
        self._generators = OwnGenerators()
        self._epoch: int | None = None
        self._position: float | None = None  # of the report in this epoch
        self._evaluated: str | None = None  # fingerprint of the weights at the last report

    @property
    def trial(self) -> Trial:
        """The trial it reports to."""
        return self._reporter.trial

    @property
    def stopping(self) -> bool:
        """True if the loop should end."""
        return self._reporter.stopping

    @property
    def suffix(self) -> str:
        """The ending of the paths of its states."""
        return self._suffix

    @property
    def saves(self) -> bool:
        """True if it has a function that saves."""
        return self._save is not None

    def write(self, path: Path) -> None:
        """Write the present state to a path, as at a pause but without the random state."""
        if self._save is not None:
            self._save(path)

    def __iter__(self) -> Iterator[int]:
        """Yield epochs (or steps, if the study counts steps), from 1 or from the first after the checkpoint.

        If the study counts tokens, yield the steps of this attempt, from 1.
        """
        if self._together:
            _need_group(self.trial)
        model = self._trained_model()
        starts = self.trial.begins_loop(model)
        if self.trial.ended is None and self.trial.verdict is not None and self.trial.verdict.stops:
            return  # an earlier loop was left after its last report: nothing is left to train
        self._reporter.begin(model=model, of=self._of() if starts else None)
        if starts:
            path = None
            if (checkpoint := self.trial.resumes_from) is not None:
                self.trial.restores_randomness(self._generators.ends)
                self._restore()
                path = self._random(checkpoint)
            self.trial.doubts_orders(*self._generators.begins(path))
        self.trial.before_end(None)  # of an earlier loop
        with Interruption(self._save is not None and self.trial.alone) as interruption:
            try:
                yield from self._epochs(interruption)
            except GeneratorExit:
                if interruption.waits and not self.stopping:  # a trial that fails then is offered again
                    if self._reported:
                        self._save_to_resume()
                    self._reporter.end("interrupted")
                raise
            self._epoch = None
            self._commit()
            if self.stopping or not interruption.waits:
                self._keep_end()
            self._reporter.end_of_fit()

    def _reports(self) -> None:
        """Act after a report, before its model is kept."""

    def _epoch_ends(self, followed: bool) -> None:
        """Act at the end of an epoch, before its state is saved. followed: rank 0 alone has reported it."""

    def _trained_model(self) -> Any:
        """Return the model that it trains, or None: not known."""
        return None

    def _of(self) -> int | str | None:
        """Return the other trial whose state its model has, if known."""
        return None

    def _fingerprint(self) -> str | None:
        """Return what differs between the weights that it trains and others, or None: not known."""
        return None

    def _sign(self) -> None:
        """Mark the weights that were just reported as this trial's."""
        self._evaluated = self._fingerprint()
        self.trial.sign(self._evaluated)

    @property
    def _is_evaluated(self) -> bool:
        """True if the weights are those of the last report, as far as is known. Every rank asks."""
        if self._trained_model() is None:
            return not self.trial.trained_on
        return torch_ranks().once(lambda: self._evaluated in (None, self._fingerprint()))

    def _keeps(self, wanted: bool) -> bool:
        """Return whether a state that is wanted for the user is kept; warn if it is not of the last report."""
        if not wanted or self._is_evaluated:
            return wanted
        self._reporter.advise(
            f"The model of trial {self.trial.id}, the best so far, is not kept: after loop.report(value) its weights "
            "have changed, so it does not have the value of its trial. Report at the end of an epoch, with a value of "
            "the weights that you train.",
            "kept",
        )
        return False

    def _epochs(self, interruption: Interruption) -> Iterator[int]:
        tokens = self.trial.unit == "token"
        horizon = None if tokens else self.trial.horizon
        unsaved = False  # steps were trained since the last report, where alone a trial can be saved
        for epoch in itertools.count(1 if tokens else int(self.trial.epoch) + 1):
            if self.stopping or (interruption.waits and not unsaved) or (horizon is not None and epoch > horizon):
                return
            self._epoch, self._position = epoch, None
            self.trial.begins_epoch(epoch, own=True)
            try:
                yield epoch
            except GeneratorExit:
                if self.trial.ended is None and (self.stopping or not interruption.waits):
                    self.trial.leaves_loop()
                    self._leave(epoch)
                raise
            self.trial.begins_epoch(None, own=True)
            if followed := follows() and self._position is None and self.trial.epoch == epoch:
                self._position = epoch
                self._reporter.follow_rank_0()
            self._epoch_ends(followed)
            self._commit(wait=False)
            if not self._reported:
                self._reporter.trained = float(epoch)
            if not self._keeps_reports:
                self._keep_epoch()
            if self._save is not None and self._reporter.pausing:
                self._keep()
            elif interruption.waits and not self.stopping and self._reported:
                self._save_to_resume()
            unsaved = self._position is None

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Count the time in this context as validation."""
        self._reporter.clock.validating()
        try:
            yield
        finally:
            self._reporter.clock.validated()

    def report(self, value: Any, metrics: Mapping[str, float] | None = None, *, tokens: float | None = None) -> bool:
        """Report the goal's metric for the present epoch or step; return whether the loop ends.

        Args:
            value: One number, or several by name, as in `Trial.report`.
            metrics: Further scalars of the epoch.
            tokens: The position, if the study counts tokens.

        Returns:
            Whether to leave the loop. False where a trial pauses and torch trains an epoch after its report: the loop
            then ends by itself at the end of the epoch.

        Raises:
            InvalidInput: If it is called outside the loop, or if the value is a vector.
        """
        if self._epoch is None:
            raise InvalidInput(
                "loop.report was called outside the loop. Report within it: for epoch in loop: ...; loop.report(value)"
            )
        trial, reporter = self.trial, self._reporter
        if (tokens is None) == (trial.unit == "token"):
            raise InvalidInput(
                f"The study counts {several_of(trial.unit)}, and loop.report(value, tokens=n) is for studies made "
                "with max_tokens=. Give tokens= there, and leave it out elsewhere."
            )
        self._position = self._epoch if tokens is None else tokens
        trial.looks_at_weights()
        reporter.report(value, self._position, metrics)
        self._reports()
        if reporter.pausing and (why := trial.forgets()) is not None:
            reporter.decline(why, always=True)
        if self._save is None and not reporter.stopping:  # there is nothing to keep
            return False
        if not self._keeps_reports:
            return reporter.stopping
        self._keep_epoch()
        if not reporter.stopping:
            return False
        if not self._behind.started:
            self._keep_end()
        # a state to resume from has the whole epoch: a program that reports first is not to leave it now
        return reporter.stopping and not (reporter.pausing and trial.before_training)

    @property
    def _keeps_reports(self) -> bool:
        """True if the model of a report is kept at once: the program may train on within the epoch."""
        return lone()

    @property
    def _reported(self) -> bool:
        """Return whether this epoch was reported."""
        horizon = self.trial.horizon
        position = self._position if horizon is None or self._position is None else min(self._position, horizon)
        return self.trial.epoch == position

    def _keep_epoch(self) -> None:
        """Save the state after the epoch just reported, if it is to be kept as that of the best epoch."""
        if self._save is None or not self._keeps(self._reporter.keeps_epoch):
            return
        if self._copies is not None:
            self._reporter.attempt(partial(self._save_later, self._copies), keeps=True)
        elif self._together:
            self._reporter.attempt(lambda: self._save_together(keep=True), keeps=True)
        else:
            self._reporter.keep(self._save, self._suffix)

    def _leave(self, epoch: int) -> None:
        """Handle a loop that is left within an epoch, by the user's `break` or by an error; which one is unknown here.

        If the epoch was reported, the state is that after the epoch in both cases. An error may occur on one rank only,
        but ranks save together. So with several ranks this waits for the end of the trial, which an error does not
        reach.
        """
        saved = self._save is not None and self._reported and self.trial.alone
        if self.trial.alone:
            self._commit()
        if saved:
            self._keep_last()
        self.trial.before_end(lambda: self._end_left(epoch, saved))

    def _end_left(self, epoch: int, saved: bool) -> None:
        """Finish a trial that ends normally after its loop was left within an epoch."""
        self._commit()
        self._reporter.settle()
        if saved or self._save is None:
            return
        if self._reported:
            self._keep_last()
        elif self._reporter.keeps:
            self._reporter.advise(
                f"The model of trial {self.trial.id}, the best so far, is not kept: its loop was left within epoch "
                f"{epoch}, before loop.report(value), so the state of the model is not known. Leave the loop after the "
                "report, or keep the model by trial.save(write) when it is that of the last report.",
                "left",
            )

    def _keep_end(self) -> None:
        """Save the state that ends the trial, if the trial does not pause and its model is to be kept."""
        if self._save is not None and not self._reporter.pausing and self._keeps(self._reporter.keeps):
            self._keep()

    def _keep_last(self) -> None:
        """Save the state after the last epoch of a loop that was left, if it is needed."""
        self._keep_epoch()
        self._commit()
        if self._reporter.pausing or self._keeps(self._reporter.keeps):
            self._keep(over=True)

    def _keep(self, over: bool = False) -> None:
        """Save the state on rank 0 or on all ranks, and the random state of each rank. over: see Reporter.decline."""
        if self._together:
            self._reporter.attempt(self._save_together, over, keeps=not self._reporter.saves)
        elif self._reporter.save(self._write, self._suffix, over, not self._is_evaluated):
            put_beside(self.trial.checkpoint or "", self._generators.capture)

    def _save_to_resume(self) -> None:
        """Save the state of an epoch in which a signal came."""
        self._reporter.attempt(
            self._save_together
            if self._together
            else partial(self.trial.save, self._write, self._suffix, resumes_only=not self._is_evaluated)
        )

    def _save_together(self, keep: bool = False) -> None:
        """Write every rank's part, and commit them when all are there. If one rank raises an error, all raise it."""
        began, ranks = self._reporter.clock.now(), torch_ranks()
        path = self.trial.begin_save(self._suffix, keep)
        try:
            together(lambda: self._write(path))
            together(lambda: force(path))  # a part of this rank may not have left the memory of its machine
            ranks.once(lambda: self._check_parts(path))
        except Exception:
            self.trial.give_up_save(path)
            raise
        self.trial.commit_save(path, self._reporter.clock.now() - began, keep, not (keep or self._is_evaluated))

    def _save_later(self, copies: Callable[[Path], Any]) -> None:
        """Copy the state of the best epoch, and let a thread write it."""
        self._commit()
        began = self._reporter.clock.now()
        path = self.trial.begin_save(self._suffix, keep=True)
        try:
            if self._together:
                together(lambda: path.mkdir(exist_ok=True))
                together(lambda: put(self._random(path), self._generators.capture()))
            write = partial(_to_disk, together(lambda: copies(path)) if self._together else copies(path), path)
        except Exception:
            self.trial.give_up_save(path)
            raise
        self._behind.start(path, write, began)

    def _commit(self, wait: bool = True) -> None:
        """Commit the state that a thread writes. If not wait, do it only if all ranks have written theirs."""
        if self._together and not wait:
            if not (self._behind.started and all(torch_ranks().gather(self._behind.done))):
                return  # a rank that commits alone waits for the others
            wait = True
        self._behind.commit(self._ready, wait)

    def _ready(self, work: Future[Any], path: Path) -> None:
        if self._together:
            together(work.result)
            torch_ranks().once(lambda: self._check_parts(path))
        else:
            work.result()
            check_written(path)

    def _check_parts(self, folder: Path) -> None:
        """Raise OSError if a rank's part is missing in the folder that all wrote."""
        for rank in range(torch_ranks().size):
            if not (folder / self._own_file.format(rank)).is_file():
                raise OSError(f"the part of rank {rank} is missing: all ranks must write to one shared folder")

    def _write(self, path: Path) -> None:
        assert self._save is not None
        if self._together:
            together(lambda: path.mkdir(exist_ok=True))  # before the ranks wait for each other in save
        self._save(path)
        check_written(path)  # before the random state is written next to it
        put(self._random(path), self._generators.capture())

    def _restore(self) -> None:
        """Restore what the program does not load from the checkpoint itself."""
        checkpoint = self.trial.resumes_from or ""
        if self._together and (wrote := len([*Path(checkpoint).glob(f"*{RANDOM}")])) != torch_ranks().size:
            raise other_ranks(self.trial.id, wrote, torch_ranks().size)
        put_back(self._random(checkpoint))

    def _random(self, checkpoint: str | Path) -> Path:
        """Return the file of this rank's random state, in the folder that ranks write together or next to the state."""
        if self._together:
            return Path(checkpoint, torch_ranks().own(self._own_file))
        return random_of(checkpoint)


def _to_disk(write: Callable[[], object], path: Path) -> None:
    write()
    if path.exists():
        force(path)


def _save_at_once(copies: Callable[[Path], Any], path: Path) -> None:
    copies(path)()


def write_later(state: Any, path: Path) -> Callable[[], object]:
    """Copy a state of PyTorch to the memory of the CPU, and return the function that writes the copy to a path.

    For TrainingLoop(..., background=True): save=lambda path: write_later({"net": net.state_dict()}, path).

    Args:
        state: A dict, list or tuple of tensors and of other values, such as the state_dict() of parts.
        path: The path that `save` was given.

    Returns:
        The function, torch.save of the copy.

    Example:
        ::

            def save(path):
                return write_later({"net": net.state_dict(), "sgd": sgd.state_dict()}, path)

            for epoch in (loop := TrainingLoop(trial, save=save, background=True)):
                ...
    """
    import torch

    return partial(torch.save, copied(state), path)


def other_ranks(
    trial: int, wrote: int, ranks: int, why: str = ", because each rank loads the part that it wrote"
) -> NotSupported:
    """Return the error for a checkpoint from another number of ranks. why: completes the sentence, after `ranks`."""
    return NotSupported(
        f"Trial {trial} paused on {plural(wrote, 'rank')} and cannot resume on {ranks}{why}. Start {wrote}, such as by "
        f"torchrun --nproc_per_node {wrote} or Lightning's Trainer(devices={wrote}), or fail the trial, "
        "trial.fail(error)."
    )


def _need_group(trial: Trial) -> None:
    """Raise NotSupported if ranks cannot save together, because they cannot wait for each other."""
    if not trial.alone and torch_ranks().alone:
        raise NotSupported(
            "With together=True the ranks wait for each other, but torch.distributed is not initialised. Call "
            "torch.distributed.init_process_group() before the loop."
        )


def together(work: Callable[[], T]) -> T:
    """Return what the work gives on this rank of torch's group. If it fails on one, raise OSError on all.

    The others may wait for that rank at a barrier in the work, as at the end of fabric.save. They raise it there.
    """
    ranks = torch_ranks()
    found: str | None = None

    def meet(failure: str | None = None) -> None:
        nonlocal found
        if found is None:  # the work may have caught what it raised at a barrier: the rank that failed is gone
            found = next((one for one in ranks.gather(failure) if one is not None), None)
        if found is not None:
            raise OSError(found)

    result: Any = None
    failure = None
    try:
        with ordinary_errors(), in_place_of_barriers(meet):
            result = work()
    except Exception as error:
        failure = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    meet(failure)
    return result  # type: ignore[no-any-return]
