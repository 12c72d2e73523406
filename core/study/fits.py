"""What the fits of a trial train, and from where: its own weights, each update once.

    starts          a fit states its model, its position, and whose state it has loaded: another trial's is refused
    sign, signer    who has trained weights, by their marks
    restart         a training that starts again before what it reported: the curve starts again, as a new attempt
    _recorded       at a report: its updates keep pace with its positions

`Port` adds reports, states and the end. `OwnWeights` looks at the weights of a loop that states no model: it reads the
fields of `Fits`, and sets `_loads`, `_own_weights` and `_retries` where the weights show what the loop does not state.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable, Hashable, Mapping
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from haltune._utils.interruption import AroundTrial
from haltune.display import numeral
from haltune.errors import NotSupported
from haltune.log.history import History
from haltune.ranks import this

from .attempt import Attempt, Failure
from .draws import Draws
from .session import Seen, Session
from .states import States

_BUILD = "Build a model for each trial, within the loop, from trial.config"
_MOST_MARKS = 100_000  # of models, which a process knows: half a kilobyte each
_MOST_LOGGED = 100  # at the end of an attempt


class Fits(Attempt):
    """A trial's attempt, with what its fits train. Arguments as of `Port`."""

    def __init__(self, session: Session, attempt: Attempt) -> None:
        super().__init__(**vars(attempt))
        self._begins = self.epoch
        self._session, self._process = session, os.getpid()
        self._draws = Draws(session)
        self._states = States(session, self._draws)  # which the program saves, and what torch trains in between
        problem = session.log.problem
        self.unit = problem.unit
        self.horizon: int | None = problem.max_epochs
        self.goal, self.measures = problem.goal, problem.measures
        self._lap = session.monotonic()
        self._pace: list[tuple[float, float]] | None = []  # position, updates: of a fit's start and first reports
        # epoch and value of a report that was interrupted; True if it failed on all ranks
        self._unheard: tuple[float, float, bool] | None = None
        self._broken: Failure | None = None  # the exception that ended the last fit, while no other one has started
        self._signals = AroundTrial(not session.launched, "step" if self.unit == "token" else self.unit)

    # what the program has read
    _checkpoint: str | None = None  # see `Port.checkpoint`, of which the program does not know that this is read
    _reads = False  # `config`
    _asks = False  # `checkpoint` since an epoch or a report started
    _loads = False  # `checkpoint` in this attempt, or it found the state elsewhere
    _unread = False  # its loop has started again as if from `checkpoint`, which was not read since

    # the last fit
    planned: float | None = None  # where it ends by its own plan, in the study's unit
    _model: Callable[[], Any] | None = None  # weak: what it trains, if known
    _same_model = False  # it trains the model of the previous one
    _own_weights = False  # one has started with weights of this trial
    _mark = ""  # the last mark that it signed, if that is a text
    _fit: Callable[[], bool] | None = None  # whether it is under way; None: it has ended normally
    _by_framework = False  # a framework's loop, which states by `starts` what it trains, also again

    # the loop over its epochs
    _counted = False  # it has started epochs
    _left: float | None = None  # the epoch that it has started and not reported
    _within: float | None = None  # as `_left`, also after the report
    _raised = False  # an exception left the last one, as far as is known
    _retries = False  # an exception ended the previous one, and this one has made no step yet; see `OwnWeights`
    _trained_in_full = False  # it has asked for the epoch after the last one
    _block: int | None = None  # the process whose `with trial:` block trains it

    _begins: float = 0  # where this attempt starts
    _first: float | None = None  # position of its first report
    _name = "trial"  # in messages to the program
    _over_folds = False  # True in a loop over trial.folds(k)
    _index = 0  # the index of the fold
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
    def alone(self) -> bool:
        """True if no other rank trains with this process: ranks share weights, and leave a loop at different epochs."""
        return this().alone

    @property
    def _seen(self) -> Seen:
        return self._session.seen

    @property
    def _key(self) -> tuple[int, int]:
        """The trial and its fold, 0 without folds: what this process has seen of a training is noted by it."""
        return self.id, self._index

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

    def _at(self, position: float) -> str:
        return self.history.problem.at(position)

    # messages

    def warn(self, text: str, about: str | None = None, once: bool = False) -> None:
        """Warn, and log it once in the study for each text, or for each matter `about`. once: also warn only once."""
        if once:
            warned = self._seen.warned
            if (about or text) in warned:
                return
            warned.add(about or text)
        self._session.warn(text, about)

    def hint(self, text: str, about: str) -> None:
        """Log a hint, once in a study for each matter `about`."""
        self._session.hint(text, about)

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

    def _saved_start(self, loads: bool) -> float:
        """Return where a second loop starts: after the last checkpoint, if it is loaded. loads: by the loop itself."""
        record = self.history.trial(self.id)
        self._unread = not (loads or self._asks)
        loads = not self._unread or record.checkpoint_epoch == self._begins
        return record.checkpoint_epoch if record.checkpoint and loads else 0.0

    # whose weights they are

    def owner(self, path: str | os.PathLike[str]) -> int | None:
        """Return the trial of this study that a checkpoint of haltune is of, by its path; None for other paths."""
        return self._session.checkpoints.owner(path)

    def sign(self, mark: Hashable) -> None:
        """State that this trial has trained a model with this mark, such as a digest of its weights.

        A copy of the model and a file that the program saved have the mark, too; see `signer`. If it is a text, the log
        gets it with a state that is saved, or at the end: then it must be the same in every process. Does nothing if a
        trial has started from its beginning with this mark: several trials may start with the same weights. Of very
        many marks the oldest are forgotten.
        """
        trained = self._signs(mark)
        if isinstance(mark, str):
            self._mark = mark if trained else ""

    def _signs(self, mark: Hashable) -> bool:
        signed = self._seen.signed
        if trained := signed.get(mark) != {}:
            signed.setdefault(mark, {})[self._key] = self.attempt
            if len(signed) > _MOST_MARKS:  # a training of reinforcement learning may have a million updates
                for oldest in [*islice(signed, _MOST_MARKS // 2)]:
                    signed.pop(oldest, None)  # another thread may do the same
        return trained

    def _unlogged(self) -> str:
        """Return the last marks that this process knows of the trial and the log lacks, a line each."""
        texts = [(mark, by) for mark, by in [*self._seen.signed.items()] if isinstance(mark, str)]
        own = [mark for mark, by in texts if any(id == self.id for id, _ in by)][-_MOST_LOGGED:]
        return "\n".join(mark for mark in own if self.id not in self.history.trainers(mark))

    def signer(self, mark: Hashable) -> int | str | None:
        """Return the trial that signed the mark of the model with which a fit starts; None: no trial did.

        The mark is among the last 100,000 of this process, or in the log. If this trial has signed it, return
        this trial: two equal configurations can train equal models. None also if it resumes with weights that no
        checkpoint has, or starts with those that it has trained in another process, where its program may count on. In
        a fold, the name of another fold of the trial, "fold 0".
        """
        signed, history = self._seen.signed.get(mark, {}), self.history
        if self._key in signed:
            return self.id
        if self.resumes_from is not None:
            saved = isinstance(mark, str) and mark in history.trial(self.id).weights.split("\n")
            return self.id if saved else None
        logged = history.trainers(mark) if isinstance(mark, str) else ()
        if self.id in logged:  # in another process, or by another fold
            trainers = {key for key in signed if key[0] == self.id}
        elif not (trainers := signed.keys() | {(id, self._index) for id in logged}):
            self._seen.signed[mark] = {}
        trial, fold = min(trainers, default=(None, 0))
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
            return self._seen.models.setdefault(model, self._key)
        except TypeError:  # it cannot be referred to weakly, or hashed
            return self._key

    def trained_another(self, model: Any) -> bool:
        """Return whether a fit of this attempt in this process trained, and last another object than this model."""
        return self._model is not None and self._model() is not model

    # a training that starts again

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
        if self._own_weights and self._resumes and epoch <= self._first_reported and self.alone:
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

    # what a report shows

    def _recorded(self, before: float, epoch: float, updates: float | None, idle: bool) -> None:
        """Note that a report is in the log, and warn if it was trained with no update, or not with as many as before.

        before: position of the report before. idle: see `_idles`.
        """
        self._first, self._left, self._asks = self._first or epoch, None, False
        training = None if self._model is None else self._states.training
        if training is not None and not training.begun and self.alone:  # a loop of the user's own states it by itself
            self._by_framework = True
            training.counts()
        if updates is not None:
            self._doubt_updates(epoch, updates)
        elif idle:
            self._warn_of_idle(before, epoch)

    def _need_loaded(self) -> None:
        """Raise NotSupported at the first report after a pause if the program cannot have loaded its state."""
        path = self.resumes_from if self._resumes and not self._loads else None
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
        return self._states.idles(within)

    # its end

    def _handled(self) -> Failure | None:
        """Return the failure of the last fit that an exception ended, and that the program has handled; else None."""
        fit, self._fit = self._fit, None
        if self._broken is None and fit is not None and self.alone and not self._is_over and not fit():
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


def weak(model: Any) -> Callable[[], Any]:
    """Return a function that returns the model while it lives."""
    try:
        return weakref.ref(model)
    except TypeError:
        return lambda: None
