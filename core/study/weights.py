"""Whether the weights that train are the trial's own, in a loop of the user's own: only torch's optimizers show them.

    begins      before an optimizer's first step: its weights are another trial's, or not those of the pause
    new_model   at a report: its loop trains another model than before, so that the curve starts again
    reported    at a report: raises a refusal that the program handled, and warns of a doubt
    sign        where the program may save its weights: they are of this trial

A loop of a framework states what it trains; see `Port.starts`. `haltune._utils.updates` reads the optimizers.
`.schedules` and `.learners` look at learning-rate schedules, and at estimators and boosters.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

from haltune._utils import updates
from haltune._utils.around import stateful
from haltune._utils.extras import Extras
from haltune._utils.numbers import Number
from haltune._utils.randomness import flags_in
from haltune._utils.updates import Training, Updated
from haltune.display import plural
from haltune.errors import NotSupported
from haltune.ranks import follows

from .draws import random_of
from .fits import Fits
from .learners import OwnLearners
from .replica import Replica
from .schedules import OwnSchedules

_MOST = 10_000  # reports whose weights are known again
_FIRST = 10  # models with which a trial starts, whose marks are looked up at each report


@dataclass
class _Model:
    """What a plain loop trains."""

    weights: Updated  # before its last report, or its first one
    handles: int  # id of the error that was being handled, or 0
    reports: int
    former: _Model | None  # the model that was trained before it


@dataclass
class _Without:
    """What is known of an optimizer without momentum or averages, before its first step after a trial resumed."""

    position: float
    state: Mapping[Any, Any]  # the object: torch replaces it where a state is loaded
    kinds: frozenset[updates.Kind]  # of the optimizers before the pause; none: not known


class OwnWeights:
    """What is known of the weights that a trial trains, from the steps of torch's optimizers.

    Args:
        trial: The trial. A loop over its folds sets `trains` to the fold that trains.
    """

    def __init__(self, trial: Fits) -> None:
        self._trial = self.trains = trial
        self.learners, self.schedules = OwnLearners(), OwnSchedules()
        self._refusal: NotSupported | None = None  # of what an optimizer was about to train
        # marks of the weights with which optimizers started in this attempt -> the trial's position then
        self._begun_with: dict[Hashable, float] = {}
        self._first: set[str] = set()  # likewise, before the first report of a trial that does not resume
        self._begun = False  # an optimizer has started since the training started, or started again
        # position and first optimizer of a resumed trial, in words, if no optimizer started with its weights
        self._doubted: str | None = None
        # optimizers that started without momentum or averages in a trial that resumes
        self._without: WeakKeyDictionary[Any, _Without] = WeakKeyDictionary()
        # the attempt and the fold whose loop has started, and whether `epochs` or the like counts it
        self._began: tuple[int, int, bool] | None = None
        self._frozen: dict[int, Any] = {}  # by id, weak references: weights frozen where it started, or before
        self._resumed = 0.0  # the position at which that loop started
        self._looked: float | None = None  # the last position at which an epoch has ended
        self._model: _Model | None = None  # of the last report, if its loop is a plain one and that is known
        self._marks = frozenset[Hashable]()  # of the weights at the last report
        self.same = True  # they are those of the report before it, as far as is known
        self._at: float | None = None  # position of the first report with `_marks`, from the next report on
        self._earlier: dict[frozenset[Hashable], float] = {}  # marks at earlier reports -> their positions

    def __reduce__(self) -> tuple[Any, ...]:
        """A process that is started to train knows none of them."""
        return OwnWeights, (self._trial,), {"trains": self.trains}

    @cached_property
    def extras(self) -> Extras:
        """What its loop has next to what it trains."""
        return Extras(self._trial._seen.extras)

    @property
    def _training(self) -> Training | None:
        """What torch's optimizers train in the block of the trial."""
        return self._trial._states.training

    @property
    def _resumed_from(self) -> str | None:
        """The path from which a loop of the user's own resumes, until its first report; None: it does not."""
        trial = self.trains
        return trial.resumes_from if trial._resumes and trial._model is None else None

    # before the first step of an optimizer

    def begins(self, optimizer: Any, marks: set[Hashable]) -> None:
        """Raise NotSupported before the first step of a torch optimizer that continues what another trial trained.

        A program that handles the exception gets it again at its report, unless another model has started to train.
        """
        if marks:
            self._refusal = None
        if self.trains.resumes_from is None and not self.trains.has_reported and len(self._first) < _FIRST:
            self._first |= {mark for mark in marks if isinstance(mark, str)}
        if self._trial.alone:
            self._begins_epoch_by_step(sys._getframe(1))
        self.extras.steps()
        self._doubt_extras()
        self._need_state(optimizer)
        self._need_flags(optimizer)
        self.schedules.begins(self.trains, optimizer)
        try:
            self._need_own(optimizer, marks)
            self._begun_with = dict.fromkeys(marks, self.trains.epoch) | self._begun_with
            self._begun |= bool(marks)
        except NotSupported as refusal:
            self._refusal = refusal
            raise

    def _need_own(self, optimizer: Any, marks: set[Hashable]) -> None:
        trial = self.trains
        if trial._is_over:
            return  # what it trains after its own training is not counted
        signers = {of for mark in marks if (of := trial.signer(mark)) is not None}
        retries, trial._retries = trial._retries and trial.epoch > 0, False
        if marks:
            trial._own_weights = trial.id in signers
        if trial.id in signers:
            self._doubted = self._began_without(optimizer, marks)
            signed = self._trial._seen.signed
            # a copy of what this attempt has saved, as in MAML
            now = any(signed.get(mark, {}).get(trial._key) == trial.attempt for mark in marks)
            kept = now or trial.epoch or trial._by_framework
            if not kept and trial.resumes_from is None and trial is self._trial:
                raise NotSupported(
                    f"Trial {trial.id} starts from its beginning, because it has saved no state, but this fit "
                    "continues with weights that it has trained. Build a model for each attempt, and save a state to "
                    "resume from."
                )
            trial._loads = True
        else:
            trial._need_own(None, min(signers, key=str, default=None))
            others = self._begins_with_others(optimizer, marks)
            if retries and marks:  # the program has perhaps only asked whether there is a state
                there = self._began_here(marks) or (
                    trial.resumes_from is not None and updates.saved_in(trial.resumes_from, optimizer)
                )
                retries = there is False
                others = retries or (there is None and self._knows_weights)
            if others:
                if retries or trial._unread:
                    raise NotSupported(
                        f"The loop of trial {trial.id} starts again after {trial._at(trial.epoch)}, but with new "
                        f"weights. Load {trial._name}.checkpoint where your program handles the exception, or call "
                        f"{trial._name}.restart() there to train from the start."
                    )
                if not self._begun and not hasattr(optimizer, "eval"):  # a schedule-free one saves an average
                    self._doubted = _began(trial, optimizer)
        of = trial.trainer_of(optimizer)
        if of is not None and updates.has_moments(optimizer) and trial.resumes_from is None:
            raise NotSupported(
                f"Trial {trial.id} trains with the {type(optimizer).__name__} object of {of}, and would continue "
                "with its momentum or averages. Make an optimizer for each training, within the loop."
            )

    def need_own_start(self, replica: Replica, epoch: float) -> None:
        """Raise NotSupported before a report if the training started with weights that another process has trained.

        Those of another trial: the log gets their marks when it saves a state, or ends, perhaps after this start. Those
        of this trial, if it counts from its start again.
        """
        trial = self.trains
        if not self._first or trial._is_over or not self._trial.alone:
            return
        log = replica.sync()
        for mark in [*self._first]:
            trainers = log.trainers(mark)
            if trial.id in trainers:
                if not trial.has_reported and epoch <= log.first_reported(trial.id):
                    raise NotSupported(
                        f"Trial {trial.id} starts from its beginning, because it has saved no state, but continues "
                        f"with weights that it has trained, and reports {trial._at(epoch)} again, so it would count as "
                        f"less than it trains. Save a state to resume from by {trial._name}.save(write), or continue "
                        "the count."
                    )
            elif trainers and trial._key not in trial._seen.signed.get(mark, {}):
                trial._need_own(None, min(trainers))

    def _need_state(self, optimizer: Any) -> None:
        """Warn once if a trial has resumed with an optimizer that lacks its momentum or averages.

        One that makes steps in the next epoch, too, had them before the pause, unless the training changes to it where
        it resumes: then those before it were of other kinds.
        """
        trial = self.trains
        if (path := self._resumed_from) is not None and not follows():
            if not updates.has_moments(optimizer):
                self._without[optimizer] = _Without(trial.epoch, optimizer.state, self._kinds(path))
        elif (began := self._without.get(optimizer)) is not None and trial.epoch >= began.position + 1:
            del self._without[optimizer]
            kind = updates.kind_of(optimizer.param_groups, optimizer.state)
            same = optimizer.state is began.state and kind in (began.kinds or {kind})
            if same and updates.has_moments(optimizer):
                trial.warn(
                    f"Trial {trial.id} has resumed after {trial._at(began.position)}, but its "
                    f"{type(optimizer).__name__} started without the momentum or averages that it had there, so it "
                    "does not train as it would have without the pause. Save the state_dict() of each optimizer and "
                    "schedule with the weights, and load them all.",
                    "optimizer",
                    once=True,
                )

    def _need_flags(self, optimizer: Any) -> None:
        """Warn once if weights are frozen where a trial resumes that trained before the pause.

        Those that the loop itself has frozen since it started are as the program means.
        """
        trial, training = self.trains, self._training
        path = self._resumed_from
        if path is None or training is None or not trial.alone:
            return
        seen, key = self._trial._seen.flags, trial._key
        if key not in seen or seen[key][0] != trial.epoch:
            seen[key] = float(trial.epoch), flags_in(random_of(path))
        _, known = seen[key]
        frozen = [w for w in updates.trained_before(optimizer, known) if not w.requires_grad]
        before = [w for w in frozen if (reference := self._frozen.get(id(w))) is not None and reference() is w]
        training.toggles |= len(before) < len(frozen)
        if before:
            trial.warn(
                f"Trial {trial.id} has resumed after {trial._at(trial.epoch)}, but {plural(len(before), 'weight')} of "
                f"its {type(optimizer).__name__} that trained there are frozen, so it does not train as it would have "
                "without the pause. Save which weights train with them, [p.requires_grad for p in net.parameters()], "
                "and restore it.",
                "frozen weights",
                once=True,
            )

    def loads(self, frame: FrameType) -> None:
        """State that the program asks for its state, in a frame: nothing shows where a loop over `range` starts."""
        if self.trains._resumes and self._trial.alone:
            self._frozen |= _frozen(frame)

    def begins_epoch(self, epoch: float | None, frame: FrameType, own: bool) -> None:
        """State that a loop starts an epoch, in a frame; None: it has ended one. own: see `LoopPort.begins_epoch`."""
        trial, extras = self.trains, self.extras
        if epoch is None:
            self.notes()
        states = trial._model is None  # otherwise the loop itself sees to what has a state
        if not (states or own) or not self._trial.alone:  # FSDP shows a weight now whole, now in parts
            return
        place = self._place
        if epoch is None:
            if trial._stops or self._looked != trial.epoch:  # not at each step between two reports
                self._looked = trial.epoch
                if states:
                    training = self._training
                    extras.ends_epoch(place if trial._stops else None, training.weights if training else ())
                if trial._stops:
                    self._trial._seen.numbers.pauses(place, frame)
        elif self._began != (began := (trial.attempt, trial._index, True)):
            self._began = began
            if states:
                extras.begins(place if trial._resumes else None, frame)
                self._frozen = _frozen(frame) if trial._resumes else {}
            self._resumed = trial.epoch
            self._begins_numbers(place, frame, counted=True)

    @property
    def _place(self) -> tuple[int, int, float]:
        return *self.trains._key, float(self.trains.epoch)

    def _begins_epoch_by_step(self, frame: FrameType) -> None:
        """State that an optimizer makes its first step since a report: so a loop over `range` shows its start."""
        trial, place = self.trains, self._place
        if trial.stated or trial._model is not None:
            return
        draws, resumes = self._trial._seen.generators, trial._resumes
        in_loop = resumes and self._trial._seen.numbers.in_loop(place, frame)
        if draws.steps(place[:2], place if in_loop else None, not (trial.has_reported or resumes)):
            self.hint_of_draws()
        began = trial.attempt, trial._index, False
        if trial._counted or trial.has_reported or (resumes and (not in_loop or self._began == began)):
            return
        self._began, self._resumed = began, trial.epoch
        self.extras.begins(place if resumes else None, frame)
        self._begins_numbers(place, frame, counted=False)

    def looks(self, frame: FrameType) -> None:
        """State that a loop of the user's own reports, saves or ends, in a frame: its function may end before it asks.

        Only so a loop over `range` shows an epoch's end.
        """
        trial, training = self.trains, self._training
        if training is None or trial.stated or trial._model is not None or not self._trial.alone:
            return
        if trial._stops or not trial._counted:
            self.extras.ends_epoch(self._place if trial._stops else None, training.weights)
        self.schedules.looks(trial)
        if trial._stops:
            self._trial._seen.numbers.pauses(self._place, frame)
            self._trial._seen.generators.pauses(self._place)

    def hint_of_draws(self) -> None:
        """Hint at random numbers of a resumed trial whose random state haltune has not restored."""
        trial = self.trains
        path = trial.resumes_from if trial._begins and self._trial.alone else None
        if path is None or (trial._counted and random_of(path).is_file()):
            return
        loop = f"trial.{'epochs' if trial.unit == 'epoch' else 'steps'}()"
        why = f"its loop is not over {loop}"
        if trial._counted:
            why = "its state is a file that your program wrote"
        trial.hint(
            f"Trial {trial.id} has resumed after {trial._at(trial._begins)}, but {why}, so haltune has not restored "
            "its random state. Unless your program does so, this trial draws other numbers than without the pause: "
            f"loop over {loop}, and save by trial.save(write).",
            "random state",
        )

    def _begins_numbers(self, place: tuple[int, int, float], frame: FrameType, counted: bool) -> None:
        """Hint at numbers of the program that are again as where the trial started, or go on from trial to trial."""
        trial, numbers = self.trains, self._trial._seen.numbers
        what, where = f"has resumed after {trial._at(trial.epoch)}", "it paused"
        if not trial._resumes:
            numbers.starts(place[:2], frame, counted)
            what, where = "starts", "the first trial started"
            if shared := numbers.shared(place[:2], frame):
                trial.hint(
                    f"Trial {trial.id} starts with {_listed(shared, 'another trial started')}, of an object that "
                    "all trials share. If this changes what trains, or when your loop ends, make one for each trial, "
                    "within the loop.",
                    "shared",
                )
        elif reset := numbers.resumes(place[:2], place, frame, counted):
            trial.hint(
                f"Trial {trial.id} {what} with {_listed(reset, where)}, as at its start. If this changes what trains, "
                "or when your loop ends, save it with the weights, and restore it.",
                "numbers",
            )
        if not counted and trial._resumes:
            return  # before its first step such a loop may have counted
        if strays := numbers.strays(place if trial._resumes else None, frame):
            trial.hint(
                f"Trial {trial.id} {what} with {_listed(strays, where)}, which a function of the program sets by "
                "global. If this changes what trains, set it where each trial starts, save it with the weights, and "
                "restore it.",
                "globals",
            )

    def _doubt_extras(self) -> None:
        """Warn once if a trial has resumed without an average or the like that it had."""
        if (name := self.extras.lost) is not None:
            self.trains.warn(
                f"Trial {self.trains.id} has resumed after {self.trains._at(self._resumed)}, but {name} is not as it "
                "was there, so it does not train, or is not evaluated, as it would have been without the pause. Save "
                f"its state with the weights, and load it: {name}.state_dict(), or its tensors if it has none.",
                "extras",
                once=True,
            )

    def _kinds(self, path: str) -> frozenset[updates.Kind]:
        """Return the kinds of optimizers before a pause: those of its file, if another process has trained."""
        seen, key = self._trial._seen.optimizers, self.trains._key
        if key not in seen:
            seen[key] = updates.optimizers_in(path)
        return seen[key]

    def _begins_with_others(self, optimizer: Any, marks: set[Hashable]) -> bool:
        """Return whether a trial that resumes starts with other weights than it had, as far as that is known."""
        trial, path = self.trains, self._resumed_from
        if path is None:
            return False
        known = self._knows_weights
        others = known and bool(marks) and not self._began_here(marks)
        if (self._doubted or not known) and self._trial.alone:  # a new process knows none
            there = updates.saved_in(path, optimizer)
            trial._own_weights |= bool(there) and not updates.lacks(path, optimizer)
            others = others or (there is False and not known)
            self._doubted = None if there else self._doubted
        return others

    def _began_without(self, optimizer: Any, marks: set[Hashable]) -> str | None:
        """Return `_doubted` if an optimizer has weights of a trial that resumes, and others that it did not have.

        One with another number of weights than before may add some, where the training changes to it.
        """
        trial, training = self.trains, self._training
        by_framework = trial._model is not None and training is not None and not training.begun
        if not trial._resumes or trial.resumes_from is None or by_framework or not self._trial.alone:
            return None
        count, _ = updates.kind_of(optimizer.param_groups, {})
        if (kinds := self._kinds(trial.resumes_from)) and count not in {counted for counted, _ in kinds}:
            return None
        if any(isinstance(mark, str) and trial.signer(mark) == trial.id for mark in marks):
            return None  # all of them are of this trial
        unknown = {mark for mark in marks if trial.signer(mark) is None}
        return _began(trial, optimizer) if unknown & updates.lacks(trial.resumes_from, optimizer) else None

    @property
    def _knows_weights(self) -> bool:
        """True if this process has seen weights of the trial."""
        signed = self._trial._seen.signed
        return bool(self._begun_with) or any(self.trains._key in trainings for trainings in signed.values())

    def _began_here(self, marks: set[Hashable]) -> bool:
        """Return whether an optimizer started with some of these weights before, at the same position."""
        return any(self._begun_with.get(mark) == self.trains.epoch for mark in marks)

    # at a report

    def new_model(self, position: float | None) -> int:
        """Start the curve again if its loop trains another model now; return the reports of this model then, or else 0.

        position: of the present report; None: the next one. The former model of a retry is gone, has the same shapes,
        or raised the error that is handled now. The retry reports the first position again; without positions, one of
        the two models has several reports. One report for each of several models is no retry.
        """
        updated, handled, now, trial = updates.take(), sys.exc_info()[1], self._model, self.trains
        if updated is None:
            return 0
        if now is not None and updated.shares(now.weights):
            now.reports += 1
        else:
            former = None if now is None else replace(now, former=None)
            self._model = now = _Model(updated, 0 if handled is None else id(handled), 1, former)
        if (former := now.former) is None or not self._trial.alone:
            return 0
        failed = now.handles not in (0, former.handles)  # CatBoost leaves an error handled for good
        if position is not None:
            again = now.reports == 1 and position <= (trial._first or 0.0)
        elif now.reports == former.reports == 1:
            again = failed
        else:
            again = now.reports < 3 and 1 in (now.reports, former.reports)
        if not again:
            return 0
        if not failed and former.weights.shapes != updated.shapes and former.weights.alive:
            gc.collect()  # its optimizer may be part of a cycle
            if former.weights.alive:
                return 0
        now.former, attempt = None, trial.attempt
        advice = "Its optimizer updates the weights of another model than before."
        if position is None:
            advice += " If this is no retry, give each report its position: trial.report(value, epoch)."
        trial.restart(trial._saved_start(loads=False), advice)
        return now.reports if trial.attempt > attempt else 0

    def reported(self) -> None:
        """Sign the present weights, and look at each optimizer again. Raises a refusal that the program handled."""
        if self._refusal is not None:
            raise self._refusal
        if (training := self._training) is not None:
            training.counts()
            marks = self.sign(each=False)  # the program may save them now, and load them in another trial
            if self._at is None:
                self._at = float(self.trains.epoch)
            self.same = marks == self._marks
            if not self.same:
                if self._marks and len(self._earlier) < _MOST:
                    self._earlier.setdefault(self._marks, self._at)
                self._marks, self._at = marks, None
            self._doubt(training)
            key, seen = self.trains._key, self._trial._seen.optimizers
            seen[key] = seen.get(key, frozenset()) | training.kinds()
            training.looks_again()

    def _doubt(self, training: Training) -> None:
        """Warn once if a resumed trial started with weights that it did not have, in a program that keeps its own."""
        trial, seen = self.trains, self._trial._seen
        if training.reported:
            seen.keeps_weights = not training.changes and seen.keeps_weights is not False
        if seen.keeps_weights is None:
            return  # the next report shows it
        resumed = self._doubted is not None and trial._loads
        if resumed and seen.keeps_weights and self._trial.alone:  # ranks may share weights otherwise
            trial.warn(
                f"Trial {trial.id} has resumed {self._doubted} started with weights that it did not have there. Save "
                "all that it trains, without rounding, and load it from trial.checkpoint into the model that the "
                "optimizer is made for.",
                "weights",
                once=True,
            )
        self._doubted = None

    @property
    def of_earlier(self) -> float | None:
        """The position of an earlier report at which the weights were as now, if they differ from the last report's."""
        if (training := self._training) is None or not self._earlier:
            return None
        now = frozenset(training.marks(each=False))
        return None if now == self._marks else self._earlier.get(now)

    # other steps of a trial

    def notes(self) -> None:
        """Note what a resumed trial is to have, if it pauses; the last call before its end counts."""
        trial, training = self.trains, self._training
        self.schedules.notes(trial)
        flags = training.flags if trial._stops and trial._model is None and training is not None else []
        if flags:  # the function that trained has not returned
            self._trial._seen.flags[trial._key] = float(trial.epoch), flags

    def replaced(self, frame: FrameType) -> bool | None:
        """Return whether the program, by its functions on the stack, holds another model than it has trained.

        None: not known, such as of a model that is not torch's.
        """
        training = self._training
        with suppress(Exception):  # such as parameters that are not made yet
            known = self._marks.union(*self._earlier)
            return None if training is None else training.replaced([one for _, one in stateful(frame)], known)
        return None

    def sign(self, each: bool = True) -> frozenset[Hashable]:
        """State that optimizers have trained their present weights in this trial, and return their marks.

        each: also each alone.
        """
        training = self._training
        marks = frozenset(() if training is None else training.marks(each))
        for mark in marks:
            self.trains._signs(mark)
        return marks

    def restarts(self) -> None:
        """State that a new model has started the curve again: it does not do so twice."""
        self._model, self._doubted, self._begun, self._first = None, None, False, set()
        self._marks, self._at, self._earlier = frozenset(), None, {}

    def ends_fold(self) -> None:
        """State that a fold ends: the next one trains a model of its own."""
        self._model, self._marks, self._at, self._earlier, self._first = None, frozenset(), None, {}, set()
        if (training := self._training) is not None:
            training.ends_part()


def _frozen(frame: FrameType) -> dict[int, Any]:
    """Return weak references to the frozen weights of models and optimizers that the program holds, by id."""
    with suppress(Exception):  # such as parameters that are not made yet
        return {id(w): ref(w) for w in updates.weights_in(one for _, one in stateful(frame)) if not w.requires_grad}
    return {}


def _listed(numbers: Mapping[str, tuple[Number, Number]], where: str) -> str:
    """Return the names of numbers with both values, in words. where: they had the second one."""
    return ", ".join(
        f"{n} = {_shown(now)} ({_shown(then)} where {where})" for n, (now, then) in sorted(numbers.items())
    )


def _shown(number: Number) -> str:
    text = f"{number:.6g}" if type(number) is float else str(number)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def _began(trial: Fits, optimizer: Any) -> str:
    return f"after {trial._at(trial.epoch)}, but its {type(optimizer).__name__}"
