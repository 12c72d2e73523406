"""Whether the learning-rate schedules of a plain loop continue from their places at a pause, and rates without one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from haltune._utils.schedules import SchedulePlace, continues, rates_of, schedules_of
from haltune._utils.updates import shapes_of
from haltune.ranks import follows

from .fits import Fits


@dataclass
class _Rates:
    """The rates of an optimizer in this attempt."""

    first: list[float]
    last: list[float]  # where its program was last seen
    reset: tuple[float, list[float]] | None = None  # it resumed with the first ones: its position, and those there


class OwnSchedules:
    """Those of the optimizers that train a trial and its folds."""

    def __init__(self) -> None:
        self._rates: WeakKeyDictionary[Any, _Rates] = WeakKeyDictionary()
        # optimizers -> their schedules, as weak references; None: not asked for yet
        self._schedules: WeakKeyDictionary[Any, list[Any] | None] = WeakKeyDictionary()
        # schedules of a trial that resumes without their places -> its position and their steps then, and their places
        self._behind: WeakKeyDictionary[Any, tuple[float, int, SchedulePlace]] = WeakKeyDictionary()
        self._by_hand: WeakSet[Any] = WeakSet()  # schedules of whose optimizers the program sets the rates, too

    def begins(self, trial: Fits, optimizer: Any) -> None:
        """Warn once if a trial has resumed, and a learning-rate schedule does not continue from its place at the pause.

        A program that gives schedule.step() the number of the epoch moves it there with its first step.
        """
        found = self._of(optimizer, trial._resumes)
        if not (found or trial.stated or trial._model is not None or follows()):
            self._need_rates(trial, optimizer)
        if trial._resumes and trial._model is None and not follows():
            for one, before in _moved(trial, optimizer, found):
                if one.last_epoch == before.made:
                    _warn(
                        trial,
                        f"after {trial._at(trial.epoch)}, but its optimizer has another learning rate than the one "
                        f"that its {before.kind} had set there",
                        "Load the state of the optimizer after the schedule is made",
                    )
                else:
                    self._behind[one] = trial.epoch, one.last_epoch, before
        else:
            for one in found:
                if one in self._behind and one.last_epoch > self._behind[one][1]:
                    began, made, before = self._behind.pop(one)
                    if one.last_epoch == getattr(one, "_step_count", one.last_epoch + 1) - 1:
                        _warn(
                            trial,
                            f"after {trial._at(began)}, but its {before.kind} continues from step {made} instead "
                            f"of step {before.made}",
                            "Save the state_dict() of each optimizer and schedule with the weights, after the step of "
                            "the schedule, and load them all",
                        )
        self._by_hand.update(one for one in found if not SchedulePlace.of(one).sets)

    def _need_rates(self, trial: Fits, optimizer: Any) -> None:
        """Warn once if a trial has resumed with rates that it had at its start, although its epochs hand them on.

        A program that sets the rate of each epoch before its first step does not.
        """
        now, seen = rates_of(optimizer), trial._seen.rates
        if (rates := self._rates.get(optimizer)) is None:
            rates = self._rates[optimizer] = _Rates(now, now)
            start, position, paused = seen.of.get(trial._key, {}).get(shapes_of(optimizer), (now, 0.0, now))
            if trial._resumes and position == trial.epoch and now == start != paused:
                rates.reset = position, paused
        elif rates.last != rates.first:
            seen.carry = now == rates.last and seen.carry is not False
        if rates.reset is not None and seen.carry:
            (position, paused), rates.reset = rates.reset, None
            trial.warn(
                f"Trial {trial.id} has resumed after {trial._at(position)}, but its {type(optimizer).__name__} "
                f"started with the first learning rate, {_shown(rates.first)} instead of {_shown(paused)}, so it "
                "does not train as it would have without the pause. Save the state_dict() of each optimizer with the "
                "weights, and load it.",
                "optimizer",
                once=True,
            )

    def looks(self, trial: Fits) -> None:
        """Note the rates of a trial, whose program may have set them, and those with which it pauses."""
        noted = dict[int, tuple[list[float], float, list[float]]]()
        before = trial._seen.rates.of.get(trial._key, {})
        for optimizer, rates in [*self._rates.items()]:
            rates.last = rates_of(optimizer)
            if trial._stops and not self._of(optimizer, asked=True):
                shapes = shapes_of(optimizer)
                start, *_ = before.get(shapes, (rates.first,))
                last = start if shapes in noted else rates.last  # not of two alike: which one is not known
                noted[shapes] = start, float(trial.epoch), last
        if noted:
            trial._seen.rates.of[trial._key] = before | noted

    def notes(self, trial: Fits) -> None:
        """Note where the schedules of a trial are that pauses; the last call before its end counts."""
        self.looks(trial)
        if not trial._stops or trial._model is not None or trial._states.trained or follows():
            return
        noted = []
        for optimizer in [*self._schedules]:
            of = [SchedulePlace.of(one, one in self._by_hand) for one in self._of(optimizer, asked=True)]
            noted += [(shapes_of(optimizer), of)] if of else []
        if noted:
            trial._seen.schedules[trial._key] = float(trial.epoch), noted

    def _of(self, optimizer: Any, asked: bool) -> list[Any]:
        """Return the learning-rate schedules that an optimizer had when this was asked first.

        asked: also those that leave no mark at it, as one that follows a metric.
        """
        held, marked = self._schedules.get(optimizer), "initial_lr" in optimizer.param_groups[0]
        if held is None and (asked or marked):
            held = [*map(ref, schedules_of(optimizer))]
        self._schedules[optimizer] = held if held or marked else None  # one may be made later
        return [one for reference in held or () if (one := reference()) is not None]


def _shown(rates: list[float]) -> str:
    return ", ".join(f"{rate:.6g}" for rate in rates)


def _moved(trial: Fits, optimizer: Any, found: list[Any]) -> list[tuple[Any, SchedulePlace]]:
    """Return the schedules of an optimizer that do not continue from their places at the pause, with these."""
    nowhere = 0.0, list[tuple[Any, list[SchedulePlace]]]()
    position, noted = trial._seen.schedules.get(trial._key, nowhere)
    places = [of for shapes, of in noted if shapes == shapes_of(optimizer)]
    if position != trial.epoch or len(places) != 1:
        return []
    moved = []
    for kind in {place.kind for place in places[0]}:
        before = sorted((p for p in places[0] if p.kind == kind), key=lambda place: place.made)
        now = sorted((s for s in found if type(s).__name__ == kind), key=lambda one: one.last_epoch)
        for one, place in zip(now, before, strict=False):
            steps = math.inf if trial.horizon is None else place.made * (trial.horizon / position - 1.0)
            if one.last_epoch < place.made:
                unlike = not continues(one, place, int(min(steps, 1e6)) + 1)
            else:
                unlike = one.last_epoch == place.made and place.sets and not SchedulePlace.of(one).sets
            moved += [(one, place)] if unlike else []
    return moved


def _warn(trial: Fits, fact: str, advice: str) -> None:
    trial.warn(
        f"Trial {trial.id} has resumed {fact}, so it does not train as it would have without the pause. {advice}.",
        "schedule state",
        once=True,
    )
