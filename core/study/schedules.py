"""Whether the learning-rate schedules of a plain loop continue from their places at a pause, and rates without one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from haltune._utils.schedules import (
    Options,
    SchedulePlace,
    ahead,
    alike,
    continues,
    options_of,
    paces_of,
    renew,
    schedules_of,
    set_since,
)
from haltune._utils.updates import shapes_of
from haltune.ranks import follows

from .fits import Fits

_BEGUN = 2  # first steps of a schedule's epochs that are kept before the present one


@dataclass
class _Rates:
    """The rates of an optimizer in this attempt, and its other numbers."""

    first: Options
    reported: Options = field(default_factory=dict)  # those at the last report
    renewed: Options | None = None  # those that it was last seen with, since its last step
    late: set[str] = field(default_factory=set)  # those that were set after the last report


@dataclass
class _Doubt:
    """A schedule of a trial that resumes, until it has shown its pace."""

    position: float
    now: SchedulePlace
    before: SchedulePlace  # at the pause
    unlike: bool  # it does not continue from there


class OwnSchedules:
    """Those of the optimizers that train a trial and its folds."""

    def __init__(self) -> None:
        self._rates: WeakKeyDictionary[Any, _Rates] = WeakKeyDictionary()
        # optimizers -> their schedules, as weak references, and when these were asked for
        self._schedules: WeakKeyDictionary[Any, tuple[list[Any], tuple[bool, bool] | None]] = WeakKeyDictionary()
        self._doubted: WeakKeyDictionary[Any, _Doubt] = WeakKeyDictionary()  # schedules
        self._begun: WeakKeyDictionary[Any, tuple[tuple[float, int], ...]] = WeakKeyDictionary()  # see `SchedulePlace`
        self._by_hand: WeakSet[Any] = WeakSet()  # schedules of whose optimizers the program sets the rates, too

    def begins(self, trial: Fits, optimizer: Any) -> None:
        """Warn once if a trial has resumed, and a learning-rate schedule does not continue from its place at the pause.

        A program that gives schedule.step() the number of the epoch moves it there with its first step.
        """
        found = self._of(optimizer, trial)
        if not (found or trial._model is not None or follows()):
            self._need_rates(trial, optimizer)
        resumes = trial._resumes and trial._model is None and not follows()
        for one, before in _pairs(trial, optimizer, found) if resumes else ():
            steps = math.inf if trial.horizon is None else before.made * (trial.horizon / trial.epoch - 1.0)
            self._need_rate(trial, one, before)
            unlike = not continues(one, before, int(min(steps, 1e6)) + 1)
            self._doubted[one] = _Doubt(trial.epoch, SchedulePlace.of(one), before, unlike)
        for one in found:
            begun = [of for of in self._begun.get(one, ()) if of[0] != trial.epoch]
            self._begun[one] = (*begun[-_BEGUN:], (float(trial.epoch), one.last_epoch))
            if not resumes and one in self._doubted:
                self._need_place(trial, one)
        self._by_hand.update(one for one in found if not SchedulePlace.of(one).sets)

    def _need_rate(self, trial: Fits, schedule: Any, before: SchedulePlace) -> None:
        """Warn if a schedule is at its place, and its optimizer has another rate than the schedule had set there."""
        now = SchedulePlace.of(schedule)
        if now.made == before.made and before.sets and not alike(now.rates, before.rates):
            _warn(
                trial,
                f"after {trial._at(trial.epoch)}, but its optimizer has another learning rate than the one that its "
                f"{before.kind} had set there, {_shown(now.rates)} instead of {_shown(before.rates)}",
                "Make the schedule as the trial did at its start, then load the state of optimizer and schedule",
            )

    def _need_place(self, trial: Fits, schedule: Any) -> None:
        """Warn if a schedule, which has shown its pace since its trial resumed, has continued from another step."""
        doubt, begun = self._doubted[schedule], self._begun[schedule]
        now, before = doubt.now, doubt.before
        if schedule.last_epoch <= now.made or trial.epoch <= doubt.position:
            return
        if (due := before.due(doubt.position, paces_of(begun))) is None:
            by_number = schedule.last_epoch != getattr(schedule, "_step_count", schedule.last_epoch + 1) - 1
            due, wrong = before.made, doubt.unlike and now.made < before.made and not by_number
            if now.made >= before.made and len(begun) <= _BEGUN:
                return  # the next epoch may show it
        elif due == before.made:
            wrong = doubt.unlike and now.made != due
        else:  # the program left its epoch before the step
            made = ahead(schedule, before, due - before.made)[-1:]
            there = now.made == due or any(alike(now.rates, rates) for rates in made)
            later = SchedulePlace.of(schedule).rates[: len(now.rates)]  # the optimizer may have got a group
            wrong = not there and not alike(now.rates, later)
        del self._doubted[schedule]
        if wrong:
            _warn(
                trial,
                f"after {trial._at(doubt.position)}, but its {before.kind} continues from step {now.made} instead of "
                f"step {due}",
                "Save the state_dict() of each optimizer and schedule with the weights, after the step of the "
                "schedule, and load them all",
            )

    def _need_rates(self, trial: Fits, optimizer: Any) -> None:
        """Warn once if a trial has resumed with rates from before its pause, although its epochs hand them on.

        They are those of its start, or of a state that was saved before they were set. A program that sets the rate of
        each epoch before its first step does not need those of the pause. Likewise of other numbers.
        """
        now, seen, shapes = options_of(optimizer), trial._seen.rates, shapes_of(optimizer)
        part = trial.epoch % 1 if trial.unit == "epoch" else 0.0  # a program may set a rate only where an epoch starts
        if (rates := self._rates.get(optimizer)) is None:
            rates = self._rates[optimizer] = _Rates(now)
            earlier, position, paused = seen.of.get(trial._key, {}).get(shapes, ([now], 0.0, now))
            old = {name for name in now for those in earlier if now[name] == those.get(name) != paused.get(name)}
            for name in old & paused.keys() if trial._resumes and position == trial.epoch else ():
                text = (
                    f"Trial {trial.id} has resumed after {trial._at(position)}, but its {type(optimizer).__name__} "
                    f"started with the {'learning rate' if name == 'lr' else name} {_shown(now[name])} instead of "
                    f"{_shown(paused[name])}, so it does not train as it would have without the pause. Save the "
                    "state_dict() of each optimizer with the weights, after the program has changed its rate, and "
                    "load it."
                )
                seen.lost.setdefault((shapes, name, part), text)
        elif rates.renewed is not None:
            carried = now.keys() - set_since(optimizer, rates.renewed)
            seen.carried |= {(shapes, name, part) for name in carried}
            seen.stays |= {(shapes, name) for name in carried - rates.late}
        rates.renewed, rates.late = None, set()
        for lost in sorted(seen.lost.keys() & seen.carried):
            trial.warn(seen.lost.pop(lost), "optimizer", once=True)

    def looks(self, trial: Fits) -> None:
        """Note the rates of a trial, whose program may have set them, and those with which it pauses."""
        noted = dict[int, tuple[list[Options], float, Options]]()
        seen = trial._seen.rates
        before = seen.of.get(trial._key, {})
        for optimizer, rates in [*self._rates.items()]:
            shapes = shapes_of(optimizer)
            if rates.renewed is not None:
                rates.late |= set_since(optimizer, rates.renewed)
                seen.late |= {(shapes, name) for name in rates.late}
            last = renew(optimizer)
            rates.reported, rates.renewed = last if rates.renewed is None else rates.reported, last
            if trial._stops and not self._of(optimizer, trial):
                start = before[shapes][0][0] if shapes in before else rates.first
                late = seen.late - seen.stays  # the program may have left its epoch before it set them
                known = {name for name in last if name in rates.late or (shapes, name) not in late}
                known -= last.keys() if shapes in noted else set()  # which one of two alike is not known
                noted[shapes] = [start, rates.reported], float(trial.epoch), {name: last[name] for name in known}
        if noted:
            seen.of[trial._key] = before | noted

    def notes(self, trial: Fits) -> None:
        """Note where the schedules of a trial are that pauses; the last call before its end counts."""
        self.looks(trial)
        if not trial._stops or trial._model is not None or trial._states.trained or follows():
            return
        noted = []
        for optimizer in [*self._schedules]:
            found = self._of(optimizer, trial)
            of = [SchedulePlace.of(one, one in self._by_hand, self._begun.get(one, ())) for one in found]
            noted += [(shapes_of(optimizer), of)] if of else []
        if noted:
            trial._seen.schedules[trial._key] = float(trial.epoch), noted

    def _of(self, optimizer: Any, trial: Fits) -> list[Any]:
        """Return the learning-rate schedules that an optimizer has, as far as they were asked for.

        Only one that follows a metric leaves no mark at it. So others are asked for where a trial resumes and where it
        pauses, once each, as this takes as long as Python's collector.
        """
        held, asked = self._schedules.get(optimizer, ([], None))
        moment = "initial_lr" in optimizer.param_groups[0], trial._stops
        if not held and asked != moment and (any(moment) or trial._resumes):
            held, asked = [*map(ref, schedules_of(optimizer))], moment
        self._schedules[optimizer] = held, asked
        return [one for reference in held if (one := reference()) is not None]


def _shown(rates: list[float]) -> str:
    return ", ".join(f"{rate:.6g}" for rate in rates)


def _pairs(trial: Fits, optimizer: Any, found: list[Any]) -> list[tuple[Any, SchedulePlace]]:
    """Return the schedules of an optimizer, with their places at the pause, as far as these are known."""
    nowhere = 0.0, list[tuple[Any, list[SchedulePlace]]]()
    position, noted = trial._seen.schedules.get(trial._key, nowhere)
    places = [of for shapes, of in noted if shapes == shapes_of(optimizer)]
    if position != trial.epoch or len(places) != 1:
        return []
    pairs = list[tuple[Any, SchedulePlace]]()
    for kind in {place.kind for place in places[0]}:
        before = sorted((p for p in places[0] if p.kind == kind), key=lambda place: place.made)
        now = sorted((s for s in found if type(s).__name__ == kind), key=lambda one: one.last_epoch)
        pairs += zip(now, before, strict=False)
    return pairs


def _warn(trial: Fits, fact: str, advice: str) -> None:
    trial.warn(
        f"Trial {trial.id} has resumed {fact}, so it does not train as it would have without the pause. {advice}.",
        "schedule state",
        once=True,
    )
