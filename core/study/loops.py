"""What only haltune's own loops and launchers ask of a trial, and state.

    begins_loop, begins_epoch, leaves_loop    a loop over the epochs
    fits, breaks                              a fit that calls no hook after an exception, and the exception
    adopt, recall, heartbeat, mark_lost       a process that trains the trial, or waits for one that does

A callback for a framework needs little of this: the reference of the port says what.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from haltune._utils.around import on_stack
from haltune._utils.data import persistent
from haltune.display import plural, several_of
from haltune.errors import LeaseLost, NotSupported
from haltune.log.decisions import Verdict, continue_
from haltune.log.events import Status
from haltune.log.problem import rounded
from haltune.ranks import follows, this, torch_ranks

from .attempt import Failure
from .draws import ranks_of
from .port import Port


class LoopPort(Port):
    """A port as haltune's own loops and launchers see it."""

    # a loop over the epochs

    def begins_loop(self, model: Any = None) -> bool:
        """State that a loop over the epochs starts, and return whether it starts with the state of `checkpoint`.

        If the previous loop was left within an epoch, or trained another model, the user's code has handled an error
        and trains again, so the curve starts again. It continues from `checkpoint` if this loop loads it, as one that
        states its model does, or if the program has read it since; otherwise from its start.

        Args:
            model: The object that it trains, if the loop itself loads its state. Default: None, not known.

        Raises:
            NotSupported: If a loop of this attempt has trained to the end, so that this one would train nothing; or to
                a STOP or PAUSE, and this one is of another model.
        """
        self._weights.learners.looks(self._weights.trains)
        if self._counted and self._stops and self.alone and not self._raised:
            self._need_same_model(model)
        # an exception ended the previous loop
        self._retries, self._broken, self._raised = self._broken is not None, None, False
        self._unread = self._retries and model is None and not self._asks  # this loop may not load that state
        another = model is not None and self.trained_another(model)
        within = self._left is not None or (self._retries and self.epoch % 1 > 0)
        if within or (another and self.ended is None):
            self.restart(self._saved_start(model is not None), self._folds_hint if another else "")
        elif not another and self._trained_in_full:
            raise NotSupported(
                f"Trial {self.id} has trained to {self._at(self.epoch)}, a full training, and this second loop "
                f"over its {several_of(self.unit)} would train nothing. {self._folds_hint}"
            )
        self._states.begins_loop()
        starts, path = self._first is None, self.resumes_from
        if starts and path is not None:
            wrote, ranks = ranks_of(path), max(this().place.world or 1, torch_ranks().size)
            if wrote > ranks:  # fewer: a rank may have been killed before it wrote its own
                warn_of_ranks(self, wrote, ranks)
        return starts

    def _need_same_model(self, model: Any) -> None:
        """Raise NotSupported if a loop after a STOP or PAUSE is of another model. If that is not known, log a hint."""
        assert self.verdict is not None
        another = self._weights.replaced(sys._getframe()) if model is None else self.trained_another(model)
        text = (
            f"Trial {self.id} was to {self.verdict.action} at {self._at(self.epoch)}, so this second loop over its "
            f"{several_of(self.unit)}{', of another model,' * (another is True)} trains nothing. {self._folds_hint}"
        )
        if another:
            raise NotSupported(text.rstrip())
        if another is None and self._folds_hint:
            self.hint(text, "second loop")

    def restores_randomness(self, put_back: Callable[[], object] | None = None) -> None:
        """State that this loop is about to restore the random state of the process that `checkpoint` has.

        The end of the trial, or of its `with trial:` block, restores the present one. Otherwise the next trial would
        draw the numbers of the trial that started where this one had paused.

        Args:
            put_back: Puts the present states of the framework's own generators back, too. Default: None.
        """
        self._draws.restores(put_back)

    def doubts_orders(self, lists: list[str], iterators: list[str]) -> None:
        """Hint at orders of the data, and places in them, that the program keeps and haltune does not restore.

        Args:
            lists: Names of seeded datasets, and of lists and arrays that were shuffled in place before the pause.
            iterators: Names of generators and cycles of which a part was read before the pause, and nothing is yet.
        """
        if iterators:
            self.hint(
                f"Trial {self.id} has resumed after {self._at(self.epoch)}, but its program reads from the start of "
                f"{', '.join(iterators)} again, of which it had read a part. Unless your program restores the data, "
                "this trial reads them in another order than without the pause: make the iterator in each epoch, such "
                "as for batch in loader, or save how many batches it has read, and skip them before the loop.",
                "iterators",
            )
        if lists:
            self.hint(
                f"Trial {self.id} has resumed after {self._at(self.epoch)}, and its program reorders "
                f"{', '.join(lists)}. haltune does not restore that order. Unless your program does, this trial reads "
                "its data in another order than without the pause: draw a new order in each epoch, such as order = "
                "random.sample(range(n), n) or data.shuffle(n, seed=epoch), or save it with the weights, and load it.",
                "orders",
            )

    def begins_epoch(self, epoch: float | None, own: bool = False) -> None:
        """State that a loop is within an epoch, until it is reported; None: it is not, and asks for the next.

        own: a function of the program has the loop, and not a framework.
        """
        self._left, self._within, self._asks = epoch, epoch, False
        if epoch is not None:
            self._counted = True
            self._states.begins_epoch()
        elif self._states.trains_rest():
            self._doubt_saved()
        if epoch is None and self.horizon is not None and self.epoch >= self.horizon and not self._stops:
            self._trained_in_full = True
        self._weights.begins_epoch(epoch, sys._getframe(), own)
        pauses = self._may_resume or self._states.declined is not None  # as rank 0 alone may have declined it
        asks = epoch is None and self.ended is None and (pauses or not self._seen.all_report)
        if asks and not (self.alone or this().place.launcher):  # rank 0 does not know of ranks that it has started
            self._follow_rank_0()

    def _follow_rank_0(self) -> None:
        """Wait at the end of an epoch for rank 0, which may have reported or saved alone, and follow it.

        A rank that missed the verdict would train on, and wait for the others in a collective. In a study that counts
        another unit a wait after each would cost too much: all ranks must report. They wait until the first report, and
        at a pause.

        Raises:
            NotSupported: If rank 0 alone reports, in a study that does not count epochs.
        """
        before, mine, by_epoch = self.epoch, self.has_reported, self.unit == "epoch"
        must = f"In a study that counts {several_of(self.unit)}, report on all ranks, and share a break of your own."
        try:
            answer: list[bool] = self._session.once(self, f"ends its {self.unit}", lambda: [mine, self._stops])
        except LeaseLost as error:
            if not by_epoch:
                error.add_note(f"haltune: {must}")
            raise
        reported, stops = answer
        if reported and not (mine or by_epoch):
            raise NotSupported(
                f"Rank 0 has reported {self._at(self.epoch)} of trial {self.id} alone, so this rank would miss the end "
                f"of the trial, and train on. {must}"
            )
        self._seen.all_report = reported and not by_epoch
        if follows() and not stops:  # rank 0 has declined a pause, because it could not save
            self.decline_pause()
        if self.epoch > before:
            self._first = self._first or self.epoch
        self._draws.saved_by_rank_0(self.resumes_from)

    def looks_at_weights(self) -> None:
        """State that a loop of the user's own is about to report: its weights are then looked at, as in Trial.report.

        Raises:
            NotSupported: The refusal of what an optimizer was about to train, if the program has handled it.
        """
        if self._model is None:  # otherwise the loop states what it trains
            self._weights.reported()

    def forgets(self) -> str | None:
        """Return why what a loop of the user's own trains, or reads, cannot resume exactly; None: not known."""
        by_torch = self._states.training is not None and self._states.training.made
        booster = None if by_torch else self._weights.learners.forgets()  # a booster then only prepares the data
        if booster is not None or (loader := persistent(on_stack())) is None:
            return booster
        return f"the workers of {loader} persist, and no state has their random numbers: use persistent_workers=False"

    def leaves_loop(self) -> None:
        """State that a loop over the epochs is left, in the generator that yields them, when it is closed.

        If an exception leaves it, and the program handles the exception, the trial fails, as by `breaks`.
        """
        self._raised = self._block == os.getpid() and self.alone and raises_through(sys._getframe(1))
        if self._raised and self.ended is None and not self._stops:
            self._broken = Failure(
                f"An exception, which the program handled, ended its loop after {self._at(self.epoch)}. To end a "
                "training early, leave the loop by break."
            )
        if self._states.trains_rest():
            self._doubt_saved()
        self._within = None
        self._weights.begins_epoch(None, sys._getframe(), own=True)

    def breaks(self, error: BaseException) -> None:
        """State that an exception has ended a fit. The trial fails, unless the program handles it and fits again.

        Within `with trial:` another fit starts the curve again, from where it starts. Otherwise the trial fails at the
        end of the block, also if the program has handled the exception. Without a block it fails at once.
        """
        if self.ended is None and self._block == os.getpid() and self.alone:
            self._broken = Failure.by(error)
        else:
            self.fail(error)

    def fits(self, under_way: Callable[[], bool] | None) -> None:
        """State that a fit of a framework starts which calls no hook after an exception; None: it has ended normally.

        If the program handles such an exception and ends the trial, the trial fails, as by `breaks`.

        Args:
            under_way: Returns whether the fit still runs. A flag would stay set after the exception, so ask the stack:
                `haltune.callbacks.base.caller("fit", "tinyfit.") is not None`.
        """
        self._fit = under_way
        if under_way is None and self.alone:
            self._sign_weights()  # a function that trains may drop a part of them when it returns

    def before_end(self, act: Callable[[], object] | None) -> None:
        """Call `act` once when the trial is given back without an error, for loops whose end calls no callback."""
        self._last_act = act

    def other_open(self) -> int | None:
        """Return the trial of this study that this thread trains now, if it is another one or another attempt."""
        return self._session.other_open(self)

    def attaches(self, others: int = 0) -> None:
        """State that a fit has called the callback of this rank.

        Args:
            others: Other ranks of the fit. On rank 0 it waits for their callbacks. Default: 0, it waits for none.

        Raises:
            NotSupported: On rank 0, if the fit calls no callback on one of them: that rank would not follow.
        """
        if not self._session.attaches(self, others):
            raise NotSupported(
                f"Rank 0 has a HaltuneCallback({self._name}), but another rank of this fit has none, so each would "
                "wait for the other. Make the callback on every rank, not on rank 0 alone: only rank 0 reports."
            )

    def adopt(self) -> None:
        """Continue the trial in a forked or spawned process. Raises NotSupported for a study in memory."""
        self._session.adopt(self)
        self._process = os.getpid()
        self._lap = self._session.monotonic()

    def recall(self) -> None:
        """Read the reports of other processes of this training from the log."""
        self._session.recall(self)

    def _recalled(self, value: float, epoch: float | None) -> Verdict | None:
        """Return the verdict of a repeated report that is in the log already, although its call was interrupted."""
        if (unheard := self._unheard) is None:
            return None
        self._session.recall(self, f"{self.unit} {unheard[0]:.12g}" if unheard[2] else None)
        same = (epoch is None or rounded(epoch) == unheard[0]) and np.array_equal(value, unheard[1], equal_nan=True)
        if not same or self.epoch < unheard[0]:
            return None
        self._unheard = None
        return self.verdict or continue_("recorded already, before the call was interrupted")

    def heartbeat(self) -> None:
        """Renew the lease during an epoch that outlasts it."""
        if self._held_here:
            self._session.renew(self)

    @property
    def heartbeat_seconds(self) -> float:
        """The longest time between two heartbeats, in seconds."""
        return self._session.lease_seconds / 4.0

    def leave_signal(self, number: int) -> None:
        """Leave a signal within `with trial:` to a framework that asks whether it is free."""
        self._signals.release(number)

    def room_for(self, size: int) -> None:
        """Check that a checkpoint could be saved now.

        Args:
            size: Size of the checkpoint, in bytes.

        Raises:
            NoRoom: If it does not fit in the quota; OSError if it does not fit on the disk.
        """
        self._session.once(self, "needs room", partial(self._session.checkpoints.room_for, self.id, size))

    @property
    def trained_on(self) -> bool:
        """True if torch has trained since the last report, so that a model saved now has another value; all ranks ask.

        Not if it has only trained a critic or a probe.
        """
        return self._session.once(self, "has trained on", lambda: self._states.trained_on, bool)

    @property
    def before_training(self) -> bool:
        """True in a program that reports an epoch before torch trains it, and has reported it."""
        return self._states.before_training

    def mark_lost(self, reason: str) -> None:
        """Append that a process that trained it is gone. The trial is offered again, up to `max_retries` times."""
        self._end_as(Status.INTERRUPTED, lost=reason)

    def tolerates(self, error: BaseException) -> bool:
        """Return whether the search continues after the error by which the trial failed."""
        return self._session.tolerates(self, error)


def raises_through(frame: FrameType | None) -> bool:
    """Return whether a generator, with this frame, is closed by an exception that leaves the loop over it.

    Python closes it at once, and shows the exception to no code of the generator. But a traceback names the function
    with the loop and the instruction at which it is; a `break` has none. Without it, a training that an exception ended
    would count as one that ended by itself.
    """
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:  # others may wrap it, as a progress bar
        frame = frame.f_back
    if frame is None:
        return False
    tracebacks = (one for one in gc.get_referrers(frame) if isinstance(one, TracebackType))
    return any(one.tb_frame is frame and one.tb_lasti == frame.f_lasti for one in tracebacks)


def warn_of_ranks(trial: Port, wrote: int, ranks: int) -> None:
    """Warn that a trial resumes on another number of ranks, where its state can be loaded but not all of it fits."""
    trial.warn(
        f"Trial {trial.id} paused on {plural(wrote, 'rank')} and resumes on {ranks}. Its weights, optimizer and "
        "schedule continue, but its random numbers and the order of its data differ, so its values are not exactly "
        "those of a trial that never paused. Start as many ranks as before for that.",
        "ranks",
    )
