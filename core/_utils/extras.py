"""What a plain loop has next to the weights that its optimizers train: averages, targets and scales of the loss.

If the program does not save an average, it starts again in a resumed trial, and the file lacks the weights that were
evaluated. What the program's functions hold on the stack shows this:

    enters      where the block of a trial is entered
    begins      where its loop starts: what is new. Of a loop over `range`, before its first step
    ends_epoch  where the loop reports, saves, asks for the next epoch, or pauses
    steps       before a step. The first one after a pause shows each state that differs from the pause. The first one
                of an epoch: a state that has changed since `ends_epoch` is made in each epoch; one of weights that
                optimizers train is the concern of `OwnWeights`; the others carry over. Of a wrapper of the model and of
                its average, the weights of the average count.
    lost        one that carries over, and is not as it was at the pause
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Container, Hashable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any
from weakref import WeakSet, ref

from .around import state_of, stateful
from .updates import Marks

_MOST = 64  # states that are looked at
_NEW, _ENOUGH = (True, 0), 3  # epochs


class Extras:
    """What is known of such states in a trial.

    others: what this process has seen in other trials of the study.
    """

    def __init__(self, others: Extras | None = None) -> None:
        # what was there before an attempt
        self._known: WeakSet[Any] = WeakSet() if others is None else others._known
        # name -> whether it carries over from epoch to epoch, and the epochs that show it
        self._carries: dict[str, tuple[bool, int]] = {} if others is None else others._carries
        # place of a pause -> names and prints
        self._paused: dict[Hashable, dict[str, _Print]] = {} if others is None else others._paused
        self._held: list[tuple[str, Any]] = []  # names and weak references of what is new where the loop started
        self._before: dict[str, _Print] = {}  # names and prints at the pause, until the first step after it
        self._ended: dict[str, _Print] = {}  # name -> print at the last end of an epoch
        self._unlike: list[str] = []  # names of states that were other after the resume

    def enters(self, frame: FrameType) -> None:
        """State that the block of a trial is entered: what is there is of earlier attempts, or of all trials."""
        self._known.update(one for _, one in _states(frame))

    def begins(self, place: Hashable, frame: FrameType) -> None:
        """State that a loop starts. place: where it resumes, as of `ends_epoch`."""
        self._before, self._ended, self._unlike = self._paused.get(place, {}), {}, []
        self._held = [(name, ref(one)) for name, one in _states(frame) if one not in self._known]

    def ends_epoch(self, pauses: Hashable, trained: Container[int]) -> None:
        """State that a loop asks for the next epoch. pauses: where it pauses now, or None.

        trained: ids of the weights that optimizers train.
        """
        looks = [
            (n, one) for n, one in self._present() if pauses is not None or self._carries.get(n, _NEW)[1] < _ENOUGH
        ]
        self._ended = {name: _print(one, _others(one, trained)) for name, one in looks}
        if pauses is not None:
            self._paused.setdefault(pauses, {}).update(self._ended)  # some have ended since an earlier call

    def steps(self) -> None:
        """State that an optimizer is about to make a step."""
        ended, self._ended = self._ended, {}
        before, self._before = self._before, {}
        for name, one in self._present() if before else ():
            if name in before and _differs(one, before[name]):
                self._unlike.append(name)
        for name, one in self._present() if ended else ():
            if name in ended:
                carries, epochs = self._carries.get(name, _NEW)
                own = ended[name][1] == ()
                self._carries[name] = carries and not own and not _differs(one, ended[name]), epochs + 1

    def _present(self) -> list[tuple[str, Any]]:
        return [(name, one) for name, reference in self._held if (one := reference()) is not None]

    @property
    def lost(self) -> str | None:
        """The name of a state that carries over, and that the trial resumed without."""
        return next((name for name in self._unlike if self._carries.get(name, (False, 0))[0]), None)


def _states(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield what the program holds, each once, with its name."""
    if (torch := sys.modules.get("torch")) is None:
        return
    others = torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.utils.data.DataLoader
    seen: set[int] = set()
    for name, one in stateful(frame):
        if len(seen) < _MOST and id(one) not in seen and not isinstance(one, others):
            seen.add(id(one))
            with suppress(TypeError):  # it cannot be hashed, or referred to weakly
                hash(ref(one))
                yield name, one


_Print = tuple[str, tuple[int, ...] | None]  # and the places of the weights that it is of; None: of another state


def _others(one: Any, trained: Container[int]) -> tuple[int, ...] | None:
    """Return the places of a model's weights that no optimizer trains; None of what has no weights."""
    with suppress(Exception):  # such as parameters that are not made yet
        if hasattr(one, "parameters") and (weights := [*one.parameters()]):
            return tuple(i for i, weight in enumerate(weights) if id(weight) not in trained)
    return None


def _differs(one: Any, before: _Print) -> bool:
    return _print(one, before[1]) != before


def _print(one: Any, places: tuple[int, ...] | None) -> _Print:
    """Return a text that changes with these weights of a model, or with another state; "" if it has none."""
    with suppress(Exception):  # such as parameters that are not made yet
        if hasattr(one, "parameters"):
            if getattr(one, "n_averaged", None) == 0:  # the first update of such an average takes the model's weights
                return "", places
            weights = [*one.parameters()]
            return str(Marks.of(weights[i] for i in places).together) if places else "", places
        values = _values(state_of(one))
        tensors = Marks.of(v for v in values if hasattr(v, "numel")).together
        numbers = [v for v in values if type(v) in (bool, int, float)]
        return hashlib.sha256(repr((tensors, numbers)).encode()).hexdigest() if values else "", places
    return "", places


def _values(state: Any) -> list[Any]:
    if isinstance(state, (dict, list, tuple)):
        return [value for part in (state.values() if isinstance(state, dict) else state) for value in _values(part)]
    return [state]
