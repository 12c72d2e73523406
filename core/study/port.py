"""The port of a trial: all that a training loop or a launcher may ask of it, and all that it must state.

    hook -> callback -> Reporter.report -> Port.record -> Session.change (rank, retry, lock)
         -> judging.record -> policy.judge, Replica.append -> Store.append

`Trial` is a Port with what users call on top. A callback for a framework needs this page and `callbacks.reporter`
alone. What a loop states is held here, for every loop: a fit trains the trial's own state, from where it was.
"""

from __future__ import annotations

import gc
import inspect
import math
import os
import sys
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.around import on_stack
from haltune._utils.checks import number, unfit
from haltune._utils.data import persistent
from haltune._utils.disk import discard, siblings
from haltune._utils.interruption import AroundTrial
from haltune.display import numeral, one_line, plural, several_of
from haltune.errors import HaltuneError, InvalidInput, LeaseLost, NotSupported, RankLost, StoreError, is_full
from haltune.log.decisions import Action, Verdict, continue_
from haltune.log.events import Status
from haltune.log.folds import over_folds
from haltune.log.history import History
from haltune.log.problem import length_advice, rounded
from haltune.ranks import follows, this, torch_ranks, without_barriers

from .attempt import Attempt, Failure, Report
from .judging import answered, record
from .replica import Replica
from .session import Session
from .states import State, States, ranks_of

_BUILD = "Build a model for each trial, within the loop, from trial.config"
_FINISHES = ("completed", "stopped", "interrupted", "failed")
_MOST_MARKS = 100_000  # of models, which a process knows: half a kilobyte each


class Port(Attempt):
    """One attempt at one configuration, as a training loop sees it.

    Facts to read: `id`, `attempt`, `unit`; `configuration`, as text (only the program reads `config`); `horizon`, the
    length of a full training in the study's unit, or None if only the policy ends trainings; `pause_at`, the next rung;
    `checkpoint`, the path of the state to continue from; `epoch`, the last reported position; `verdict`, the last
    verdict; `ended`, the status once it has ended; `goal` and `measures`, the metrics that a report needs; `history`,
    the log; `metrics`, reported before.

    To state: `starts`, what a fit trains and from where; `record`, a report; `begin_save` and `commit_save` or
    `give_up_save`, a state; `restores_randomness`, before it does; `decline_pause`, a state that cannot be saved;
    `planned`, where a fit ends by its own plan; `finish`, `fail`, `interrupt`, the end. In a distributed training every
    rank makes the same calls and gets the same answers.

    Args:
        session: The session of the process that holds the trial.
        attempt: Its data, from the log.
    """

    def __init__(self, session: Session, attempt: Attempt) -> None:
        self._asks = False  # the program has read `checkpoint` since an epoch or a report started
        self._loads = False  # the program has read `checkpoint` in this attempt, or found the state elsewhere
        self._unread = False  # its loop has started again as if from `checkpoint`, which was not read since
        super().__init__(**vars(attempt))
        self._begins = self.epoch  # where this attempt starts
        self._session, self._process = session, os.getpid()
        self._states = States(session)  # which the program saves, and what torch trains in between
        problem = session.log.problem
        self.unit = problem.unit
        self.horizon: int | None = problem.max_epochs
        self.goal, self.measures = problem.goal, problem.measures
        self._lap = session.monotonic()
        self._validation = 0.0  # seconds of the last evaluation, if known
        self._model: Callable[[], Any] | None = None  # weak: what the last fit of this attempt trains, if known
        self._trained_in_full = False  # by a loop that has asked for the epoch after the last one
        self._same_model = False  # this fit trains the model of the previous one
        self._own_weights = False  # a fit has started with weights of this trial
        self._left: float | None = None  # the epoch that a loop has started and not reported
        self._within: float | None = None  # as `_left`, also after the report
        self._counted = False  # a loop has started epochs
        self._broken: Failure | None = None  # the exception that ended the last fit, while no other fit has started
        self._fit: Callable[[], bool] | None = None  # whether the last fit is under way; None: it has ended normally
        self._block: int | None = None  # the process whose `with trial:` block trains it
        self._pace: list[tuple[float, float]] | None = []  # position, updates: of a fit's start and first reports
        self._last_act: Callable[[], object] | None = None
        # epoch and value of a report that was interrupted; True if it failed on all ranks
        self._unheard: tuple[float, float, bool] | None = None
        self._signals = AroundTrial(not session.launched, "step" if self.unit == "token" else self.unit)

    _first: float | None = None  # position of the first report of this attempt
    planned: float | None = None  # where the last fit of this attempt ends by its own plan, in the study's unit
    _mark = ""  # the last mark that it signed, if that is a text
    _retries = False  # an exception ended the previous loop, and this one has made no step yet; see `OwnWeights`
    _raised = False  # an exception left the last loop over its epochs, as far as is known
    _by_framework = False  # the loop is a framework's, which states by `starts` what it trains, also again
    _name = "trial"  # in messages to the program
    _over_folds = False  # True in a loop over trial.folds(k)
    _index = 0  # the index of the fold
    _reads = False  # the program has read `config`
    _folds_hint = "If its value is the mean over several trainings, write: for fold in trial.folds(k)."

    if not TYPE_CHECKING:

        @property
        def config(self) -> dict[str, Any]:
            self._reads = True
            return vars(self)["config"]

        @config.setter
        def config(self, values: dict[str, Any]) -> None:
            vars(self)["config"] = values

    @property
    def checkpoint(self) -> str | None:
        """The path of the state to continue from; None: the training starts from its beginning."""
        self._asks = self._loads = True
        if self._checkpoint is not None:
            self._asks_for_state(sys._getframe(1))
        return self._checkpoint

    @checkpoint.setter
    def checkpoint(self, path: str | None) -> None:
        self._checkpoint = path

    @property
    def resumes_from(self) -> str | None:
        """The path of `checkpoint`, for a loop that restores only what haltune has written next to the state."""
        return self._checkpoint

    @property
    def history(self) -> History:
        """The log of the study, as far as this process has read it."""
        return self._session.log.history

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Further metrics reported so far: name -> (n,), one entry for each report, NaN if it was not reported."""
        return self.history.trial(self.id).metrics

    @property
    def has_reported(self) -> bool:
        """True after the first report of this attempt."""
        return self._first is not None

    @property
    def _key(self) -> tuple[int, int]:
        """The trial and its fold, 0 without folds: what this process has seen of a training is noted by it."""
        return self.id, self._index

    # a fit

    def starts(
        self,
        model: Any = None,
        position: float | None = None,
        of: int | str | None = None,
        resume: str = "Resume it there",
    ) -> None:
        """State what a fit trains, and from where.

        If another model starts before the last reported position, the curve starts again; see `restart`. A loop that
        knows the position later than the model states it in a second call.

        Args:
            model: The object that it trains. Default: None, not known.
            position: Where it starts, in the study's unit. Default: None, not known.
            of: The trial whose state it loaded, or what `signer` returned. Default: None, no state, or not known.
            resume: How this loop resumes, a sentence for messages. Default: "Resume it there".

        Raises:
            NotSupported: If the state is another trial's, or if weights that this trial has trained count from the
                start again: those of the previous fit's model, or of another one.
        """
        self._need_own(model, of, resume)
        self.stated, self._loads = True, self._loads or of == self.id
        self._own_weights = of == self.id or (self._own_weights and model is None)
        self._pace = [] if position is None else [(position, 0.0)]
        if model is not None:
            self._same_model = self._model is not None and self._model() is model
            self._model = weak(model)
        failed = self._broken is not None or self._left is not None
        reached = self.epoch if failed and of is None else int(self.epoch)
        if position is not None and position < reached:
            if failed:
                why = f"with {self._broken.error.rstrip('.')}" if self._broken else "within an epoch"
                trained = " This one continues with the weights of its model: build a new one." * self._same_model
                self.restart(position, f"The previous fit ended {why}.{trained}")
            elif (self._same_model or (self._own_weights and not position)) and self.ended is None and not self._stops:
                what = "trains the previous fit's model" if self._same_model else "starts with weights of this trial"
                raise NotSupported(
                    f"This fit of trial {self.id} {what}, which has trained to {self._at(self.epoch)}, but counts from "
                    f"{self._at(position)}, so it would count as less than it trains. {resume}. If this fit is not to "
                    "count, leave haltune's callback out of it."
                )
            elif model is not None and self._fit is not None:  # the previous fit has not ended normally
                self.restart(position, "The previous fit ended with an exception.")
            else:
                self.restart(position, f"To continue it instead: {resume}. {self._folds_hint}")
        if position is not None:
            self._broken = self._left = None

    def _need_own(self, model: Any, of: int | str | None, resume: str = "") -> None:
        """Raise NotSupported if a fit has the state of another trial; warn if it trains its model object.

        resume: how the fit loads a state; "": it loads none, or that is not known.
        """
        first, _ = self._key if model is None else self._first_with(model)
        if isinstance(of, str):
            raise NotSupported(
                f"This fit of fold {self._index} of trial {self.id} starts with the weights of {of}, which have "
                "seen this fold's validation data. Build a model for each fold, within the loop."
            )
        if of not in (None, self.id):
            what, do = f"loaded a state of trial {of}", f"{resume}, and let each trial save to a folder of its own"
            if first != self.id:
                what, do = f"trains the model object that trial {of} has trained", _BUILD
            elif not resume:
                what = f"starts with the weights of trial {of}"
                do = f"If it loads a state, load only {self._name}.checkpoint. {_BUILD}"
            raise NotSupported(
                f"This fit of trial {self.id} {what}, so it would continue the training of another configuration. {do}."
            )
        if first != self.id:
            self.warn(
                f"Trial {self.id} trains the same model object as trial {first}, and continues with all that your "
                f"program does not reset in it. {_BUILD}.",
                "model",
                once=True,
            )

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
        if self._counted and self._stops and this().alone and not self._raised:
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
        self._starts_updates()
        starts, path = self._first is None, self.resumes_from
        if starts and path is not None:
            wrote, ranks = ranks_of(path), max(this().place.world or 1, torch_ranks().size)
            if wrote > ranks:  # fewer: a rank may have been killed before it wrote its own
                warn_of_ranks(self, wrote, ranks)
        return starts

    def _need_same_model(self, model: Any) -> None:
        """Raise NotSupported if a loop after a STOP or PAUSE is of another model. If that is not known, log a hint."""
        assert self.verdict is not None
        another = self._holds_another if model is None else self.trained_another(model)
        text = (
            f"Trial {self.id} was to {self.verdict.action} at {self._at(self.epoch)}, so this second loop over its "
            f"{several_of(self.unit)}{', of another model,' * (another is True)} trains nothing. {self._folds_hint}"
        )
        if another:
            raise NotSupported(text.rstrip())
        if another is None and self._folds_hint:
            self.hint(text, "second loop")

    @property
    def _holds_another(self) -> bool | None:
        """Whether the program has another model now in place of the one that it has trained; None: not known."""
        return None

    def _starts_updates(self) -> None:
        if (training := self._states.training) is not None:
            training.starts()

    def _saved_start(self, loads: bool) -> float:
        """Return where a second loop starts: after the last checkpoint, if it is loaded. loads: by the loop itself."""
        record = self.history.trial(self.id)
        self._unread = not (loads or self._asks)
        loads = not self._unread or record.checkpoint_epoch == self._begins
        return record.checkpoint_epoch if record.checkpoint and loads else 0.0

    def restores_randomness(self, put_back: Callable[[], object] | None = None) -> None:
        """State that this loop is about to restore the random state of the process that `checkpoint` has.

        The end of the trial, or of its `with trial:` block, restores the present one. Otherwise the next trial would
        draw the numbers of the trial that started where this one had paused.

        Args:
            put_back: Puts the present states of the framework's own generators back, too. Default: None.
        """
        self._states.restores(put_back)

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
        self._within_epoch(epoch, own)
        pauses = self._may_resume or self._states.declined is not None  # as rank 0 alone may have declined it
        asks = epoch is None and self.ended is None and (pauses or not self._session.seen.all_report)
        if asks and not (this().alone or this().place.launcher):  # rank 0 does not know of ranks that it has started
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
        self._session.seen.all_report = reported and not by_epoch
        if follows() and not stops:  # rank 0 has declined a pause, because it could not save
            self.decline_pause()
        if self.epoch > before:
            self._first = self._first or self.epoch
        self._states.saved_by_rank_0(self.resumes_from)

    def looks_at_weights(self) -> None:
        """State that a loop of the user's own is about to report: its weights are then looked at, as in Trial.report.

        Raises:
            NotSupported: The refusal of what an optimizer was about to train, if the program has handled it.
        """

    def forgets(self) -> str | None:
        """Return why what a loop of the user's own trains, or reads, cannot resume exactly; None: not known."""
        if (loader := persistent(on_stack())) is None:
            return None
        return f"the workers of {loader} persist, and no state has their random numbers: use persistent_workers=False"

    def leaves_loop(self) -> None:
        """State that a loop over the epochs is left, in the generator that yields them, when it is closed.

        If an exception leaves it, and the program handles the exception, the trial fails, as by `breaks`.
        """
        self._raised = self._block == os.getpid() and this().alone and raises_through(sys._getframe(1))
        if self._raised and self.ended is None and not self._stops:
            self._broken = Failure(
                f"An exception, which the program handled, ended its loop after {self._at(self.epoch)}. To end a "
                "training early, leave the loop by break."
            )
        if self._states.trains_rest():
            self._doubt_saved()
        self._within = None
        self._within_epoch(None, own=True)

    def breaks(self, error: BaseException) -> None:
        """State that an exception has ended a fit. The trial fails, unless the program handles it and fits again.

        Within `with trial:` another fit starts the curve again, from where it starts. Otherwise the trial fails at the
        end of the block, also if the program has handled the exception. Without a block it fails at once.
        """
        if self.ended is None and self._block == os.getpid() and this().alone:
            self._broken = Failure.by(error)
        else:
            self.fail(error)

    def fits(self, under_way: Callable[[], bool] | None) -> None:
        """State that a fit of a framework starts which calls no hook after an exception; None: it has ended normally.

        If the program handles such an exception and ends the trial, the trial fails, as by `breaks`.

        Args:
            under_way: Returns whether the fit still runs. A flag would stay set after the exception, so ask the stack:
                `haltune.callbacks.base.caller("fit", "tinyfit") is not None`.
        """
        self._fit = under_way
        if under_way is None and this().alone:
            self._sign_weights()  # a function that trains may drop a part of them when it returns

    def _handled(self) -> Failure | None:
        """Return the failure of the last fit that an exception ended, and that the program has handled; else None."""
        fit, self._fit = self._fit, None
        if self._broken is None and fit is not None and this().alone and not self._is_over and not fit():
            self._broken = Failure(
                f"An exception, which the program handled, ended its fit after {self._at(self.epoch)}. To end a "
                "fit early, use the framework's own way."
            )
        return self._broken

    @property
    def _is_over(self) -> bool:
        """True if nothing is left to train."""
        return self.ended is not None or self._stops or (self.horizon is not None and self.epoch >= self.horizon)

    @property
    def _ended_by_ctrl_c(self) -> bool:
        """True if Ctrl-C, which the program handled, ended its training after the last report."""
        return self._signals.interrupted and not self._is_over

    def goes_back(self, epoch: float) -> bool:
        """Return whether a report at `epoch` is of a loop that counts from its start again; see `restart`."""
        return epoch < self.epoch and (self._first is None or epoch <= self._first)

    def _restart_before(self, epoch: float) -> None:
        """Start the curve again if the report at `epoch` is of a training that restarted, even where it should resume.

        Raises NotSupported if a resumed training has weights of this trial, but reports its first position again.
        """
        if self._over_folds:  # a fold sees to it itself
            return
        if not (self.goes_back(epoch) or (epoch == self.epoch and self._resumes and not self._loads)):
            return
        if self._own_weights and self._resumes and epoch <= self._first_reported and this().alone:
            raise NotSupported(
                f"Trial {self.id} resumes with weights that it has trained to {self._at(self.epoch)}, but reports "
                f"{self._at(epoch)}, so it would count as less than it trains. Continue the count after "
                f"{self._name}.epoch, as {self._name}.epochs() does, or train new weights."
            )
        self.restart(advice=f"A training that resumes continues its count after {self._name}.epoch. {self._folds_hint}")

    def restart(self, position: float = 0.0, advice: str = "") -> None:
        """State that the training starts again: the curve continues from `position` as a new attempt, with a warning.

        What this attempt reported after it belongs to a training that was given up. It no longer counts, also for
        `study.best`. Does nothing after a STOP or PAUSE, or if nothing after `position` was reported.

        Args:
            position: Where it starts, in the study's unit. Default: 0.
            advice: What to do if this is not meant, the last sentences of the warning. Default: "".
        """
        self._need_held()
        reached, self._left, self._within, self._broken, self._states.waiting = self.epoch, None, None, None, None
        if self.ended is not None or self._stops or position >= reached:
            return
        if not self._session.restart(self, position):
            return
        self._first, self._unheard, self._lap = None, None, self._session.monotonic()
        self._states.restarts()
        self._trained_in_full, self._begins = False, self.epoch
        self._warn_of_restart(f"Trial {self.id}", reached, position, advice)

    def _warn_of_restart(self, who: str, reached: float, position: float, advice: str) -> None:
        """Warn that a training starts again; its earlier values up to its present `epoch` count."""
        start = f"after {self._at(position)}" if position else "from its start"
        lost = f" after {self._at(self.epoch)}" if self.epoch else ""
        why = ", because haltune has no checkpoint of it there" if self.epoch < position else ""
        self.warn(
            f"{who} had reported {self._at(reached)}, and now trains again {start}. Its earlier values{lost} no "
            f"longer count{why}. {advice}".rstrip(),
            "restart",
        )

    def owner(self, path: str | os.PathLike[str]) -> int | None:
        """Return the trial of this study that a checkpoint of haltune is of, by its path; None for other paths."""
        return self._session.checkpoints.owner(path)

    def sign(self, mark: Hashable) -> None:
        """State that this trial has trained a model with this mark, such as a digest of its weights.

        A copy of the model and a file that the program saved have the mark, too; see `signer`. The log has that of
        each saved state, if it is a text. Does nothing if a trial has started from its beginning with this mark:
        several trials may start with the same weights. Of very many marks the oldest are forgotten.
        """
        signed = self._session.seen.signed
        trained = signed.get(mark) != {}
        if trained:
            signed.setdefault(mark, {})[self._key] = self.attempt
            if len(signed) > _MOST_MARKS:  # a training of reinforcement learning may have a million updates
                for oldest in [*islice(signed, _MOST_MARKS // 2)]:
                    signed.pop(oldest, None)  # another thread may do the same
        if isinstance(mark, str):
            self._mark = mark if trained else ""

    def signer(self, mark: Hashable) -> int | str | None:
        """Return the trial that signed the mark of the model with which a fit starts; None: no trial did.

        The mark is among the last 100,000 of this process, or in a checkpoint. If this trial has signed it, return
        this trial: two equal configurations can train equal models. None also if it resumes with weights that no
        checkpoint has. In a fold, the name of another fold of the trial, "fold 0".
        """
        signed = self._session.seen.signed.get(mark, {})
        had = self._checkpoint is not None  # otherwise the saved state of this trial is of another fold
        trials = self.history.trials
        saved = {(t.id, self._index) for t in trials if t.weights == mark and (had or t.id != self.id)}
        if self._key in signed.keys() | saved:
            return self.id
        if self._checkpoint is not None:
            return None
        if not signed and not saved:
            self._session.seen.signed[mark] = {}
            return None
        trial, fold = min(signed.keys() | saved)
        return f"fold {fold}" if trial == self.id else trial

    def trainer_of(self, model: Any) -> str | None:
        """Return the other trial, or other fold of this trial, that trained this model object before, in words."""
        trial, fold = self._first_with(model)
        if (trial, fold) == self._key:
            return None
        return f"fold {fold}" if trial == self.id else f"trial {trial}"

    def _first_with(self, model: Any) -> tuple[int, int]:
        """Return the trial, and its fold, that trained a model, or with an optimizer, first in this process."""
        try:
            return self._session.seen.models.setdefault(model, self._key)
        except TypeError:  # it cannot be referred to weakly, or hashed
            return self._key

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._process = os.getpid()  # multiprocessing passed it to a process that it started, to train there

    @property
    def _held_here(self) -> bool:
        """True in the process that asked for the trial, adopted it or entered it; False in any other fork of it."""
        return os.getpid() == self._process

    def _need_held(self) -> None:
        """Raise NotSupported in a process that was forked from the one that trains."""
        if not self._held_here:
            raise NotSupported(
                f"Trial {self.id} is trained by process {self._process}, and process {os.getpid()} was forked from it, "
                "so it cannot report or save. To train the trial here, use `with trial:` in this process, or call "
                "trial.adopt()."
            )

    def trained_another(self, model: Any) -> bool:
        """Return whether a fit of this attempt in this process trained, and last another object than this model."""
        return self._model is not None and self._model() is not model

    def other_open(self) -> int | None:
        """Return the trial of this study that this thread trains now, if it is another one or another attempt."""
        return self._session.other_open(self)

    def attaches(self) -> None:
        """State that a fit has called the callback of this rank; see `need_attached`."""
        self._session.attaches(self)

    def need_attached(self, others: int) -> None:
        """Raise NotSupported on rank 0 if a fit calls no callback on one of so many other ranks: it would not follow.

        All ranks that have one have called `attaches` before rank 0 calls this.
        """
        if not self._session.attached(self, others):
            raise NotSupported(
                f"Rank 0 has a HaltuneCallback({self._name}), but another rank of this fit has none, so each would "
                "wait for the other. Make the callback on every rank, not on rank 0 alone: only rank 0 reports."
            )

    def adopt(self) -> None:
        """Continue the trial in a forked or spawned process. Raises NotSupported for a study in memory."""
        self._session.adopt(self)
        self._process = os.getpid()
        self._lap = self._session.monotonic()

    def record(self, report: Report, judge: bool = True, updates: float | None = None) -> Verdict:
        """Append a report, and return the verdict on it; after a STOP or PAUSE the verdict does not change.

        Args:
            report: The values, the position and the seconds; its position is above `epoch`.
            judge: False stores a report that is delivered late, without a decision of the policy. Default: True.
            updates: Updates that this fit has made so far, by the optimizer's, the learner's or the library's own
                counter. If they do not keep pace with the positions, the trial warns. Default: None, not known.

        Raises:
            InvalidInput: If a goal's metric is missing, or a metric is not a number.
            StoreError: If the log cannot be written; at once if `patient` is False.
            Exception: The exception of the policy. The report is stored before, unjudged.
        """
        self._need_held()
        if (self._over_folds or (self._first is None and over_folds(self.metrics))) and not over_folds(report.metrics):
            raise trains_over_folds(self.id)
        if self.measures.others:
            self.measures.check(report.metrics, self.metrics if self.measures.limited else ())
        scalars = {}
        for name in sorted(report.metrics, key=str):
            scalars[str(name)] = number(f"metric {name!r}", report.metrics[name])
        report = replace(report, epoch=rounded(report.epoch), metrics=scalars)
        self._states.date(self, report.epoch, self._left, fitted=self._model is not None)
        self._restart_before(report.epoch)
        before, idle = self.epoch, updates is None and judge and self._idles(report.epoch)
        self._unheard = report.epoch, report.value, False
        session = self._session
        if not (self._reads or self._first or self.attempt > 1 or session.launched):
            self.hint(
                f"Trial {self.id} reports, but its program has not read {self._name}.config, so all trials may train "
                f"the same configuration. Build the model from it, such as make_model(**{self._name}.config).",
                "config",
            )

        def work(replica: Replica) -> None:  # on rank 0, which may load the state for all
            if self._first is None:
                self._need_loaded()
            record(replica, session.budget, self, report, judge, session.monotonic)

        about = f"{self._label} reports {self.unit} {report.epoch:.12g}"
        with self._signals.whole():
            try:
                verdict = session.change(work, about, lambda _: answered(self, report), self, self.patient)
            except StoreError:
                self._unheard = report.epoch, report.value, True
                raise
        session.logger.judged(session.log.history, self, report, verdict, session.budget)
        self._validation = report.validation or self._validation
        self._broken = None
        self._recorded(before, report.epoch, updates, idle)
        left_out = self._states.left_out
        if left_out is not None and left_out.early and this().alone and torch_ranks().alone:  # others have the verdict
            self.decline_pause()
            verdict = self.verdict or verdict
        self._states.reported(self)
        if judge:  # otherwise it delivers late what it reported before
            self._signals.reported()
        self._lap, self._unheard = session.monotonic(), None  # at the end: a call that is interrupted may be repeated
        return verdict

    def _recorded(self, before: float, epoch: float, updates: float | None, idle: bool) -> None:
        """Note that a report is in the log, and warn if it was trained with no update, or not with as many as before.

        before: position of the report before. idle: see `_idles`.
        """
        self._first, self._left, self._asks = self._first or epoch, None, False
        training = None if self._model is None else self._states.training
        if training is not None and not training.begun and this().alone:  # a loop of the user's own states it by itself
            self._by_framework = True
            training.counts()
        if updates is not None:
            self._doubt_updates(epoch, updates)
        elif idle:
            self._warn_of_idle(before, epoch)

    def _need_loaded(self) -> None:
        """Raise NotSupported at the first report after a pause if the program cannot have loaded its state."""
        path = self._checkpoint if self._resumes and not self._loads else None
        if path is not None and self._session.checkpoints.is_written(path):
            load = f"model = joblib.load({self._name}.checkpoint)"
            if "torch" in sys.modules:
                load = "net.load_state_dict(torch.load(...))"
            raise NotSupported(
                f"Trial {self.id} resumes after {self._at(self.epoch)}, but its program has not read "
                f"{self._name}.checkpoint, so it would continue with other weights. Load the state before the loop, as "
                f"you have saved it, such as if {self._name}.checkpoint: {load}. If it has loaded it by another path, "
                f"read {self._name}.checkpoint once."
            )

    @property
    def _first_reported(self) -> float:
        """The first position of the curve that it continues."""
        return float(self.history.trial(self.id).epochs[0])

    @property
    def _resumes(self) -> bool:
        """True until the first report of an attempt that continues a training."""
        return self._first is None and self.epoch == self._begins > 0

    def _doubt_updates(self, epoch: float, updates: float) -> None:
        """Warn at the first reports of a fit whose updates do not keep pace with its positions."""
        pace = self._pace
        if pace is None or (pace and epoch <= pace[-1][0]):
            return
        pace.append((epoch, updates))
        steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(pace)]
        if len(steps) > 1 or (steps and steps[0][1] <= 0):
            self._pace = None
        if not steps:
            return
        expected = steps[0][1] * steps[-1][0] / steps[0][0]
        if (made := steps[-1][1]) <= 0:
            if not self._states.trained:  # by optimizers that the framework does not count, such as one within another
                self._warn_of_idle(pace[-2][0], epoch)
        elif abs(made - expected) > max(2.0, 0.5 * min(made, expected)):
            self.warn(
                f"Trial {self.id} made {made:g} updates from {self._at(pace[-2][0])} to {numeral(epoch)}, where "
                f"{expected:g} would be as many for each {self.unit} as before. haltune compares trials by "
                f"{self.unit}s, so each must train as much.",
                "updates",
            )

    def _warn_of_idle(self, since: float, epoch: float) -> None:
        self.warn(
            f"Trial {self.id} reported {self._at(epoch)}, but its training made no update from {self._at(since)} to "
            f"{numeral(epoch)}, so nothing was trained in between. Report after the updates.",
            "updates",
        )

    def _idles(self, epoch: float) -> bool:
        """Return whether a plain loop reports an epoch without a step of torch, but made steps for each one before.

        It may report another epoch than the one that it is in, as an evaluation elsewhere ends late.
        """
        within = self._within is not None and (self.unit == "token" or math.ceil(epoch) == self._within)
        # a trial that resumes may have accumulated gradients before
        unknown = self._over_folds or self._begins or (self.stated and not self._counted)
        if unknown or (self._counted and not within):
            return False
        return self._states.idles(within) and self._same_weights

    @property
    def _same_weights(self) -> bool:
        """True if the weights are those of the last report, as far as is known: CUDA graphs make steps unseen."""
        return True

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

    # saving

    def room_for(self, size: int) -> None:
        """Check that a checkpoint could be saved now.

        Args:
            size: Size of the checkpoint, in bytes.

        Raises:
            NoRoom: If it does not fit in the quota; OSError if it does not fit on the disk.
        """
        self._session.once(self, "needs room", partial(self._session.checkpoints.room_for, self.id, size))

    def save(
        self,
        write: Callable[[Path], object],
        suffix: str = ".ckpt",
        keep: bool | float = False,
        *,
        resumes_only: bool = False,
    ) -> str:
        """Save the state after the last reported epoch. A later attempt finds its path in `checkpoint`.

        Save after the report. A state that is saved before it counts from the report on, as that of the reported epoch,
        unless the program trains in between: then it is not kept. haltune sees this only with torch. Other programs
        must not save at the start of an epoch, before they train.
        In a loop over `epochs` the random state of Python, NumPy, torch, TensorFlow and Keras is saved too, and
        restored; so are random generators in variables of the program.
        In a distributed training all ranks call it; only rank 0 calls `write`, and all return the path.
        If the disk or the quota is full, a plain loop within `with trial:` keeps training, with one warning: the trial
        is not paused, the previous checkpoint remains, and its path is returned, or "" without one.

        Args:
            write: Called with a temporary path, to make a file or a folder there. haltune then forces it to the disk,
                renames it, records it and deletes older checkpoints of the trial.
            suffix: Ending of the path. Default: ".ckpt".
            keep: True for the trial's best epoch, with which it counts, or an earlier epoch whose state this is. It is
                kept in addition to the state to resume from, as `study.best.checkpoint` if no trial is better.
                Default: False.
            resumes_only: True if the model in it is not the one that was evaluated, such as the weights under an
                average, so that `study.best.checkpoint` is never this file. Default: False.

        Raises:
            InvalidInput: If `write` is not a function, or wrote nothing at its path.
            NoRoom: If the quota is full, except as above; OSError if the disk is full. The previous checkpoint remains.
            LeaseLost: If another worker holds the trial now, or it has ended. In a handler of Ctrl-C this is a warning.
            NotSupported: If `write` waits for other ranks, which do not call it.
            Exception: The exception of `write`.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=2)
            >>> trial = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=1)).ask()
            >>> _ = trial.report(0.3)
            >>> path = trial.save(lambda path: path.write_text("weights"), ".txt")
            >>> open(path).read(), trial.checkpoint == path
            ('weights', True)
        """
        check_write(write)
        # the loops of haltune decline a pause themselves; ranks that this one has started might miss that it does
        follow = torch_ranks().alone or not this().alone
        continues = self._block is not None and not self.stated and follow
        try:
            return self._save(write, suffix, keep, resumes_only, "is saved", continues)
        except Exception as error:
            if self._block is None and is_full(error):
                error.add_note(
                    "haltune: make room or raise disk_quota. Within `with trial:`, trial.save(write) of a plain loop "
                    "does not raise this, and the trial keeps training without a pause."
                )
            raise

    def _save(
        self,
        write: Callable[[Path], object],
        suffix: str,
        keep: bool | float,
        resumes_only: bool,
        about: str,
        continues: bool = False,
    ) -> str:
        """Save, as `save` does. about: the topic under which all ranks do it. continues: also if the disk is full."""
        session, states, state = self._session, self._states, self._begins_save(keep, resumes_only)
        began = session.monotonic()

        def written() -> str:  # on rank 0
            temporary = states.path(self, suffix, state.keep)
            with states.ours(self, temporary):
                try:
                    with without_barriers():
                        write(temporary)
                    check_written(temporary)
                except BaseException:
                    discard(temporary)
                    raise
            self._sign_weights()
            return states.commit(self, state, temporary, session.monotonic() - began)

        def outcome() -> list[str]:  # for all ranks: the path, and why there is none
            try:
                return [written(), ""]
            except Exception as error:
                if not (continues and is_full(error)):
                    raise
                return ["", one_line(error)]

        with self._signals.whole():
            answer: list[str] = session.once(self, about, outcome)
            path, full = answer
            seconds = session.monotonic() - began
            if not full:
                self._saved(state, seconds, path)
                return path
        self._lap += seconds
        return self._left_out(state, full)

    def _left_out(self, state: State, why: str) -> str:
        """Decline the pause of a state that a full disk has left out; return the path of the previous checkpoint."""
        if state.keep is False:
            self._states.left_out = state
            if self.verdict is not None and self.verdict.action is Action.PAUSE:
                state.declined = self.verdict
                self.decline_pause()
        what = "its state" if state.keep is False else "its best model"
        then = "" if self._is_over else "; it keeps training"
        self.warn(
            f"Trial {self.id}: {what} could not be saved ({why}){then}. Make room or raise disk_quota.",
            "save",
            once=True,
        )
        return self.resumes_from or ""

    def _pauses_unsaved(self) -> None:
        """Take back that a pause was declined, because the program has left its loop at once."""
        if (pause := self._states.declined) is not None and self.ended is None:
            self.verdict, self._states.left_out = pause, None
            self._session.log.first_time("nothing saved", advice=True)  # it has saved, so it needs no such advice

    def begin_save(self, suffix: str = ".ckpt", keep: bool | float = False) -> Path:
        """Return a temporary path to write a state to, the same on all ranks; `commit_save` makes it a checkpoint.

        If the state cannot be written, call `give_up_save` on all ranks.

        Args:
            suffix: Ending of the path. Default: ".ckpt".
            keep: See `commit_save`. Default: False.

        Raises:
            OSError: If the folder cannot be made.
        """
        keep = self._begins_save(keep).keep
        return self._session.once(self, "starts to be saved", lambda: str(self._states.path(self, suffix, keep)), Path)

    def commit_save(
        self, temporary: Path, seconds: float = 0.0, keep: bool | float = False, resumes_only: bool = False
    ) -> str:
        """Make the state at a path of `begin_save` the trial's checkpoint, and return its path.

        Args:
            temporary: The path, with the whole state: a file or a folder.
            seconds: Time that writing took. Default: 0.
            keep: True for the trial's best epoch, with which it counts. It is kept in addition to the state to resume
                from. Default: False.
            resumes_only: See `save`. Default: False.

        Raises:
            LeaseLost: If another worker holds the trial now, or it has ended.
            NoRoom: If the quota is full; OSError if the disk is full. The previous checkpoint remains.
        """
        session, state = self._session, self._begins_save(keep, resumes_only)
        began = session.monotonic()
        self._sign_weights()
        path: str = session.once(self, "commits", partial(self._states.commit, self, state, temporary, seconds))
        self._saved(state, seconds + session.monotonic() - began, path)
        return path

    def give_up_save(self, temporary: Path) -> None:
        """Delete what was written to a path of `begin_save`, in place of `commit_save`; ignore errors of the disk.

        Args:
            temporary: The path.
        """
        torch_ranks().first(lambda: discard(temporary))

    def _begins_save(self, keep: bool | float = False, resumes_only: bool = False) -> State:
        """Return a state that is to be written. Raises NotSupported in a process that does not train the trial."""
        self._need_held()
        # a loop of haltune's saves between its epochs, after their reports
        own = (self.patient or self._left is not None) and not self._over_folds and self._model is None
        upcoming = self._next_position or self.epoch + 1.0
        state = self._states.begins(self, keep, resumes_only, self._left, own, upcoming, self._of_earlier)
        state.weights = self._mark
        return state

    def _saved(self, state: State, seconds: float, path: str | None = None) -> None:
        """Note a state that was saved. seconds: that it took, which are not of the epoch. path: see `States.saved`."""
        self._lap += seconds
        self._states.saved(state, path)
        pauses = self._may_resume and state.keep is False
        if pauses and not state.early and self._states.before_training:
            self._doubt_saved()
        over = self._counted and self._within is None  # otherwise the training may continue from there, too
        if pauses and over and state.of is not None:
            self.warn(
                f"Trial {self.id} pauses after {self._at(self.epoch)}, but its program has restored the weights "
                f"of {self._at(state.of)} before it saved, so a trial that resumes continues from those. Save before "
                "you restore the best weights.",
                "weights put back",
                once=True,
            )

    def _doubt_saved(self) -> None:
        """Warn once of a state that lacks a part of its epoch, unless no attempt can resume from it."""
        if not self._is_over or self._may_resume:
            self.warn(
                f"Trial {self.id} saves its state of {self._at(self.epoch)} before its training of this {self.unit} is "
                f"over, so a trial that resumes from it does not train the rest. Save at the end of the {self.unit}, "
                "as TrainingLoop does.",
                "saved within",
                once=True,
            )

    @property
    def _of_earlier(self) -> float | None:
        """The position of an earlier report at which its weights were as now, if they differ from the last report's."""
        return None

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

    @property
    def _next_position(self) -> float | None:
        """The position of a report that gives none; None if it cannot be guessed."""
        if self._left is not None and self.unit != "token":
            return self._left  # a loop over the epochs may report every n-th only
        if self.unit == "epoch":
            return math.floor(self.epoch) + 1.0
        if (every := self._session.log.problem.every) is None:
            return None
        return self.epoch + every if self.horizon is None else min(self.epoch + every, float(self.horizon))

    def _at(self, position: float) -> str:
        return self.history.problem.at(position)

    def _within_epoch(self, epoch: float | None, own: bool) -> None:
        """Look at what the program has around its loop, which starts an epoch; None: it has ended one."""

    def _asks_for_state(self, frame: FrameType) -> None:
        """Look at what the program has, in a frame, where it reads the path of the state to continue from."""

    def _sign_weights(self) -> None:
        """State that its present weights are of this trial, where they are known."""

    def decline_pause(self, why: str | None = None) -> None:
        """Take back a PAUSE that was not carried out, so that later reports are judged.

        Args:
            why: Why no state of this trial can be saved, so that `room_for` raises from now on. Default: None.
        """
        if self.verdict is not None and self.verdict.action is Action.PAUSE:
            self.verdict = continue_("its pause was declined")
        if why is not None:
            self._session.checkpoints.refused[self.id] = why

    def keeps(self, best_epoch: bool = False) -> bool:
        """Return whether the present state is to be kept, because the trial is one of the best and it is not saved.

        Args:
            best_epoch: Ask about the last reported epoch: is it the trial's best, with which it counts? Otherwise about
                the end of the training. Default: False.
        """
        return self._states.keeps(self, best_epoch)

    # the end

    def before_end(self, act: Callable[[], object] | None) -> None:
        """Call `act` once when the trial is given back without an error, for loops whose end calls no callback."""
        self._last_act = act

    def finish(self, status: Status | str | None = None) -> None:
        """End the trial and give it back. `with trial:` does this for you; a second call does nothing.

        Args:
            status: "completed", "stopped", "interrupted" or "failed". Default: None, stopped or paused after such a
                verdict, interrupted if your program handled Ctrl-C and has not reported since, otherwise completed.

        Raises:
            InvalidInput: For another status.
            StoreError: If the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=1, seed=0, budget="1 trial")
            >>> trial = study.ask()
            >>> _ = trial.report(0.3)
            >>> trial.finish()
            >>> study.trials[0].status.value
            'completed'
        """
        if status is not None and status not in _FINISHES:
            raise InvalidInput(
                f"status={status!r} is not a status. Use one of {', '.join(_FINISHES)}, or None to follow the last "
                "verdict."
            )
        act, self._last_act = self._last_act, None
        if act is not None and self.ended is None and self._held_here:
            act()
        if status is None and self._ended_by_ctrl_c:
            status = Status.INTERRUPTED
        if status != Status.INTERRUPTED:
            self._states.ends(self)
        if status is None and (failure := self._handled()) is not None:
            self._end_as(Status.FAILED, failure)
        self._end_as(None if status is None else Status(status))
        if status is None and self.ended is Status.COMPLETED:
            self._look_at_plan()

    def _look_at_plan(self) -> None:
        """Warn if the trial has ended below max_epochs because its last fit planned so: no other fit followed."""
        if self.horizon is not None and self.epoch == self.planned and self.epoch < self.horizon:
            self.warn(
                f"Trial {self.id} ended after {self._at(self.epoch)}, as its last fit planned, but the search "
                f"compares final values at {self.unit} {self.horizon}. {length_advice(self.unit, self.epoch)}, unless "
                "your program ended it early.",
                "horizon",
                once=True,
            )

    def interrupt(self) -> None:
        """Give the trial back unfinished; it is offered again and resumes from its last checkpoint.

        A second call does nothing.

        Raises:
            StoreError: If the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, budget="1 trial")
            >>> study.ask().interrupt()
            >>> study.ask().attempt
            2
        """
        self._end_as(Status.INTERRUPTED)

    def fail(self, error: BaseException | Failure) -> None:
        """Record that training failed, with the traceback. `with trial:` does this; a second call does nothing.

        Args:
            error: The exception; or a Failure, if only its text is known. After a StoreError, the error of a full
                disk, a NotSupported, or another error of haltune's before any trial has succeeded, the trial is
                interrupted: the machine or the program is wrong, not its configuration, which is offered again. Except
                after a StoreError, it fails if this happens a second time in the same process.

        Raises:
            InvalidInput: If `error` is not an exception.
            StoreError: If the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, budget="1 trial")
            >>> study.ask().fail(ValueError("the data is gone"))
            >>> study.trials[0].error
            'ValueError: the data is gone'
        """
        refused = self._session.seen.refused
        early = isinstance(error, HaltuneError) and not isinstance(error, RankLost) and not self.history.any_success
        full = isinstance(error, BaseException) and is_full(error)
        first = (early or full or isinstance(error, NotSupported)) and self.id not in refused
        if first:
            refused.add(self.id)
        if first or isinstance(error, StoreError):
            self.interrupt()
        else:
            self._end_as(Status.FAILED, error if isinstance(error, Failure) else Failure.by(error))

    def _end_as(self, status: Status | None, failure: Failure | None = None, lost: str | None = None) -> None:
        """Append the end, unless this process is a fork that does not train the trial, such as one that loads data."""
        if self._held_here:
            if status is None:
                self._pauses_unsaved()
            self._states.ends_epoch()  # a variable may hold the iterator, which is then closed later or never
            try:
                self._session.end(self, status, failure, lost)
                self._states.saved_by_rank_0(self.resumes_from)
            finally:
                if self._block != os.getpid():  # otherwise the program may draw until the end of the block
                    self._states.draws_as_before()

    def mark_lost(self, reason: str) -> None:
        """Append that a process that trained it is gone. The trial is offered again, up to `max_retries` times."""
        self._end_as(Status.INTERRUPTED, lost=reason)

    def tolerates(self, error: BaseException) -> bool:
        """Return whether the search continues after the error by which the trial failed."""
        return self._session.tolerates(self, error)

    # messages

    def warn(self, text: str, about: str | None = None, once: bool = False) -> None:
        """Warn, and log it once in the study for each text, or for each matter `about`. once: also warn only once."""
        if once:
            warned = self._session.seen.warned
            if (about or text) in warned:
                return
            warned.add(about or text)
        self._session.warn(text, about)

    def hint(self, text: str, about: str) -> None:
        """Log a hint, once in a study for each matter `about`."""
        self._session.hint(text, about)


def trains_over_folds(id: int) -> InvalidInput:
    """Return the error for a report or an epoch of a trial that trains over folds."""
    return InvalidInput(
        f"Trial {id} trains over folds, and its value is the mean of their values: do not report it yourself. Within "
        "the loop over trial.folds(k), write fold.report(value), fold.epochs() and HaltuneCallback(fold)."
    )


def raises_through(frame: FrameType | None) -> bool:
    """Return whether a generator, with this frame, is closed by an exception that leaves the loop over it.

    Python closes it at once, and shows the exception to no code of the generator. But a traceback names the function
    with the loop and the instruction at which it is; a `break` has none.
    """
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:  # others may wrap it, as a progress bar
        frame = frame.f_back
    if frame is None:
        return False
    tracebacks = (one for one in gc.get_referrers(frame) if isinstance(one, TracebackType))
    return any(one.tb_frame is frame and one.tb_lasti == frame.f_lasti for one in tracebacks)


def weak(model: Any) -> Callable[[], Any]:
    """Return a function that returns the model while it lives."""
    try:
        return weakref.ref(model)
    except TypeError:
        return lambda: None


def warn_of_ranks(trial: Port, wrote: int, ranks: int) -> None:
    """Warn that a trial resumes on another number of ranks, where its state can be loaded but not all of it fits."""
    trial.warn(
        f"Trial {trial.id} paused on {plural(wrote, 'rank')} and resumes on {ranks}. Its weights, optimizer and "
        "schedule continue, but its random numbers and the order of its data differ, so its values are not exactly "
        "those of a trial that never paused. Start as many ranks as before for that.",
        "ranks",
    )


def check_write(write: Any) -> None:
    """Raise InvalidInput if `write` is not a function of one path."""
    if not callable(write):
        raise InvalidInput(
            f"write={write!r} is not a function. Pass one that takes the path to write to, such as lambda path: "
            "torch.save(state, path). If you have written a file yourself, record it with trial.checkpointed(path)."
        )
    if unfit(write) is not None:
        raise InvalidInput(
            f"write={write!r} cannot be called with one argument, the path to write to. Pass lambda path: ..."
        )


def check_written(path: Path) -> None:
    """Raise InvalidInput if nothing exists at the path of a state, although its folder does."""
    if os.path.lexists(path) or not path.parent.is_dir():
        return
    match siblings(path):
        case [part] if part.is_file():
            end = part.name[len(path.name) :]
            raise InvalidInput(
                f"write(path) appended {end!r} to its path, as np.save does. Pass suffix={end!r}, so that the path "
                "ends with it."
            )
        case [part, *_]:
            raise InvalidInput(
                f"write(path) wrote {part.name[len(path.name) :]!r} after its path, as tf.train.Checkpoint does, and "
                "nothing at the path. Make a folder and write into it, path.mkdir() and path / 'state'. If a library "
                "writes in the background, wait for it there."
            )
    raise InvalidInput("write(path) wrote nothing at its path. Write a file or a folder there.")
