"""The weights that torch's optimizers update: what a loop of the user's own trains, which states no model.

`take` shows whether it is another model than before. `Training` has the weights of each optimizer of a trial, from its
first step on, and their marks: digests by which weights that another trial has trained are known.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

_stepped: dict[int, WeakSet[Any]] = {}  # thread -> optimizers that made a step since its last call of `take`
# of the trial whose block this thread, or this task of asyncio, has entered last
_training: ContextVar[Training | None] = ContextVar("_training", default=None)
_watches = False
_LARGEST = 64  # weights that have marks
_SAMPLED = 8  # elements of each of them in a mark
_DISTINCT = 4  # different numbers that a weight's own mark needs: a clipped weight can be equal in several trials


@dataclass(frozen=True)
class Updated:
    """Weights that were updated, held weakly."""

    weights: Mapping[int, Any]  # id -> weak reference
    shapes: tuple[tuple[int, ...], ...]

    def shares(self, other: Updated) -> bool:
        """Return whether some of the weights are among others."""
        both = self.weights.keys() & other.weights.keys()
        return any((w := self.weights[i]()) is not None and other.weights[i]() is w for i in both)

    @property
    def alive(self) -> bool:
        """True while some of them exist."""
        return any(reference() is not None for reference in self.weights.values())


class Marks(NamedTuple):
    """Digests of a sample of the largest of some weights."""

    together: str  # a text, which the log gets, as other processes compute the same; "": not read, or all equal
    each: frozenset[int]  # of each weight that has enough different numbers

    @classmethod
    def of(cls, weights: Iterable[Any]) -> Marks:
        """Return the marks of weights as they are now."""
        samples: list[tuple[tuple[int, ...], list[float]]] = []
        with suppress(Exception):  # weights without data, or of a kind that has no list
            for weight in sorted(weights, key=lambda w: -w.numel())[:_LARGEST]:
                here = weight.detach()
                here = here.to_local() if hasattr(here, "to_local") else here
                flat = here.reshape(-1)
                samples.append((tuple(here.shape), flat[:: max(1, len(flat) // _SAMPLED)].tolist()))
            differ = len({number for _, found in samples for number in found}) > 1
            each = (_digest(sample) for sample in samples if len(set(sample[1])) >= _DISTINCT)
            return cls(f"{_digest(samples):016x}" if differ else "", frozenset(each))
        return cls("", frozenset())

    @property
    def all(self) -> set[Hashable]:
        return {self.together, *self.each} - {""}


def _digest(sample: object) -> int:
    return int.from_bytes(hashlib.sha256(str(sample).encode()).digest()[:8])


@dataclass(eq=False)
class _Weights:
    """Weights that the same optimizers update."""

    references: list[Any]  # weak ones
    start: Marks  # before the first step, or before the first since `Training.counts`
    own: bool  # they were updated since `Training.counts`
    shapes: list[Any]
    first: int  # the number of the first step that updated them, of `Training.made`
    after: bool  # that step came after a report
    former: _Weights | None  # earlier weights of the same shapes, which a retry gives up
    last: int = 0  # the number of the last step that updated them

    @property
    def late(self) -> bool:
        """True if they were first updated after a report, and the former ones, if any, have been updated since."""
        return self.after and (self.former is None or self.former.last > self.first)

    @property
    def now(self) -> list[Any]:
        return [reference() for reference in self.references]

    @property
    def frozen(self) -> bool:
        return not any(w is None or w.requires_grad for w in self.now)

    def changed(self, each: bool) -> set[Hashable]:
        """Return their marks, if they have changed and still exist. each: also that of each such weight."""
        now = self.now
        if not self.own or any(w is None for w in now):
            return set()
        marks = Marks.of(now)
        return (marks.all if each else marks.all - marks.each) - self.start.all


class Training:
    """The weights that the optimizers of a trial update, in the thread or task in which its block is entered.

    A trial may have prepared a common base before its own training, so only what is updated after `counts` is its own.

    begins: called before an optimizer's first step, with the optimizer and the marks of its new weights.
    """

    def __init__(self, begins: Callable[[Any, set[Hashable]], None]) -> None:
        self._begins = begins
        self.begun = False  # `counts` was stated
        self.made = 0  # steps
        self.reported = self.changes = False  # whether new weights come after a report
        self.toggles = False  # weights were frozen that had trained
        self._of: WeakKeyDictionary[Any, list[_Weights]] = WeakKeyDictionary()  # of optimizers
        # of optimizers, by id, which of their weights train, at the first step since a report
        self._flags: WeakKeyDictionary[Any, dict[int, bool]] = WeakKeyDictionary()
        self._all: list[_Weights] = []
        self._latest: list[_Weights] = []  # those that were updated last before the last report
        self._saved, self._saved_at = list[_Weights](), 0  # see `saves`
        self._over, self._outer = False, _training.get()  # of a trial around this one
        _training.set(self)
        _stepped.pop(threading.get_ident(), None)  # what was trained before the block is not of this trial
        watch()

    def counts(self) -> None:
        """State that the training of the trial has started, at the latest with the weights that were updated last."""
        if not self.begun:
            for of in self._all:
                of.own |= of.last == self.made > 0
        self.begun = True

    def starts(self) -> None:
        """State that a loop of the trial starts, or that its training starts again: no report came before."""
        if not self.begun:  # a test of learning rates is over, and a state is loaded perhaps
            self._of.clear()
            self._all.clear()
        self.begun, self.reported = True, False
        watch()  # the program may have imported torch since the trial started

    def steps(self, optimizer: Any) -> None:
        """Note an optimizer that is about to make a step."""
        self.made += 1
        if (held := self._of.get(optimizer)) is None:
            held = self._of[optimizer] = self._noted(optimizer)
            flags = {id(w): bool(w.requires_grad) for w in all_weights_of(optimizer)}
            before = self._flags.get(optimizer, {})  # it may get weights, and lose some
            self.toggles |= any(before.get(weight) and not trains for weight, trains in flags.items())
            self._flags[optimizer] = flags
        for of in held:
            of.last = self.made
            if self.begun and not of.own:
                of.own, of.start = True, Marks.of(of.now)

    def saves(self, reported: int) -> None:
        """State that a state is saved, of the weights updated since then. reported: the steps until the last report."""
        self._saved, self._saved_at = [of for of in self._all if of.last > reported], self.made

    @property
    def saved_trained(self) -> bool:
        """True if the last saved state is of weights that were updated after the report before it.

        Those of a critic or a probe are late, and not updated again before the next report.
        """
        return any(not of.late or of.last > self._saved_at for of in self._saved)

    @property
    def trains_on(self) -> bool:
        """True if weights of the last saved state were updated after it, or others while all of these are frozen.

        Otherwise updates of others are those of a probe that evaluates the state, or of a copy. Late ones of that state
        are perhaps a critic or a probe, trained after each report: the training then continues with others.
        """
        saved, later = [of for of in self._saved if not of.late], [of for of in self._all if of.last > self._saved_at]
        return any(of in saved for of in later) or (bool(later) and all(of.frozen for of in saved))

    @property
    def trained_since_save(self) -> bool:
        """True if the weights that the trial trains were updated after its last saved state; see `trained_after`."""
        return self.trained_after(self._saved_at)

    def trained_after(self, step: int) -> bool:
        """Return whether weights were updated until a step and after it, other than those of a critic or a probe.

        If none were updated until then, the program reports before it trains, and they are what it trains. If all are
        late, it reported before it trained them, and trains those that it updated last before its last report.
        """
        later = [of for of in self._all if of.last > step]
        if all(of.first > step for of in self._all):
            return bool(later)
        trained = self._latest if all(of.late for of in self._all) else [of for of in self._all if not of.late]
        return any(of.first <= step and of in trained for of in later)

    @property
    def flags(self) -> list[Flags]:
        """The flags of its optimizers: True for a weight that has trained and is not frozen since.

        None in a program that freezes weights again: it sets them as it trains.
        """
        known = [] if self.toggles else self._flags.items()
        return [
            (shapes_of(one), [bool(flags.get(id(w)) and w.requires_grad) for w in all_weights_of(one)])
            for one, flags in known
        ]

    def kinds(self) -> frozenset[Kind]:
        """Return the kinds of the optimizers that have made steps since the last report."""
        return frozenset(kind_of(one.param_groups, one.state) for one in self._of)

    def looks_again(self) -> None:
        """Look at all optimizers once more after a report: a program may thaw weights, or add some."""
        self.reported = True
        self._latest = [of for of in self._all if of.last == self.made]
        self._of.clear()

    def _noted(self, optimizer: Any) -> list[_Weights]:
        """Return what is noted of the weights of an optimizer, after those that are new."""
        all_before = self._all
        self._all = [of for of in all_before if any(w is not None for w in of.now)]
        known = {id(w): of for of in self._all for w in of.now if w is not None}
        weights = _weights_of(optimizer)
        held = {id(of): of for w in weights if (of := known.get(id(w))) is not None}
        new = [w for w in weights if id(w) not in known]
        shapes = [w.shape for w in new]
        former = next((of for of in reversed(all_before) if of.shapes == shapes and not of.late), None)
        if former is not None:
            former.after, former.former = False, None  # that is settled, and a chain would grow with each new model
        of = _Weights([*map(ref, new)], Marks.of(new), self.begun, shapes, self.made, self.reported, former)
        self._begins(optimizer, of.start.all)
        self.changes |= self.reported and bool(new)
        added = [of] if new else []
        self._all += added
        return [*held.values(), *added]

    @property
    def weights(self) -> set[int]:
        """The ids of all weights that optimizers have updated."""
        return {id(w) for of in self._all for w in of.now if w is not None}

    def replaced(self, held: Sequence[Any], known: Container[Hashable]) -> bool | None:
        """Return whether an optimizer has weights of the shapes that were updated, and nothing has the updated ones.

        held: optimizers and models, among others. known: marks of the updated weights; a copy of them is no other
        model. False: one has updated weights, or copies. None: no such optimizer.
        """
        if not self.weights.isdisjoint(map(id, weights_in(held))):
            return False
        trained = [of.shapes for of in self._all if of.own]
        of = [weights for one in held if _is_optimizer(one) and (weights := _weights_of(one))]
        like = [weights for weights in of if [w.shape for w in weights] in trained]
        return all(Marks.of(weights).together not in known for weights in like) if like else None

    def marks(self, each: bool) -> set[Hashable]:
        """Return the marks of all weights that have changed. each: also that of each of them."""
        return set[Hashable]().union(*(of.changed(each) for of in self._all))

    def ends_part(self) -> None:
        """State that a fold ends: the next one trains a model of its own."""
        self._of.clear()
        self._all.clear()
        self._flags.clear()

    def ends(self) -> None:
        """Note no more optimizers, but those of the trial around this one."""
        self._over, outer = True, self._outer
        while outer is not None and outer._over:  # blocks that overlap
            outer = outer._outer
        if _training.get() is self:
            _training.set(outer)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A process that is started to train has none: it is None there."""
        return type(None), ()


def all_weights_of(optimizer: Any) -> list[Any]:
    return [w for group in optimizer.param_groups for w in group["params"]]


def _weights_of(optimizer: Any) -> list[Any]:
    return [w for w in all_weights_of(optimizer) if w.requires_grad]


def weights_in(held: Iterable[Any]) -> list[Any]:
    """Return the weights of the optimizers and the models among objects."""
    of = [all_weights_of(one) if _is_optimizer(one) else one.parameters() for one in held if _has_weights(one)]
    return [w for weights in of for w in weights]


def _has_weights(value: Any) -> bool:
    return _is_optimizer(value) or callable(getattr(type(value), "parameters", None))


def _is_optimizer(value: Any) -> bool:
    return isinstance(getattr(value, "param_groups", None), list)


Flags = tuple[int, list[bool]]  # of an optimizer: the digest of the shapes of its weights, and whether each one trains


def shapes_of(optimizer: Any) -> int:
    """Return a digest of the shapes of the weights of an optimizer."""
    return _digest([tuple(w.shape) for w in all_weights_of(optimizer)])


def flags() -> list[Flags]:
    """Return which weights train in the trial that this thread has entered."""
    training = _training.get()
    return [] if training is None or training._over else training.flags


def trained_before(optimizer: Any, flags: Iterable[Flags]) -> list[Any]:
    """Return the weights of an optimizer that train by flags, if these are of one optimizer with weights like its."""
    shapes = shapes_of(optimizer)
    like = [trains for of, trains in flags if of == shapes]
    pairs = zip(all_weights_of(optimizer), *like, strict=True) if len(like) == 1 else ()
    return [w for w, trains in pairs if trains]


def has_moments(optimizer: Any) -> bool:
    """Return whether an optimizer holds anything but zeros of steps that it has made, next to their number."""
    held = (v for of in _mappings(optimizer.state) for name, v in of.items() if name != "step" and v is not None)
    here = (v.to_local() if hasattr(v, "to_local") else v for v in held)  # the parts of other ranks need them all
    return any(bool((v != 0).any()) if hasattr(v, "any") else bool(v) for v in here)


Kind = tuple[int, frozenset[tuple[str, Any]]]  # how many weights an optimizer has, names and shapes of its state


def kind_of(groups: Iterable[Mapping[str, Any]], state: Mapping[Any, Any]) -> Kind:
    held = frozenset((name, getattr(v, "shape", None)) for of in _mappings(state) for name, v in of.items())
    return sum(len(group["params"]) for group in groups), held


def _mappings(state: Mapping[Any, Any]) -> list[Mapping[str, Any]]:
    """Return what an optimizer has of each weight. Some have a number for all of them in between."""
    return [of for of in state.values() if isinstance(of, Mapping)]


def optimizers_in(path: str) -> frozenset[Kind]:
    """Return the kinds of optimizers of which a file of torch has a state."""
    return frozenset(kind_of(saved["param_groups"], saved["state"]) for saved in _states(_read(path)))


def _states(saved: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the states of optimizers in a saved object."""
    if isinstance(saved, Mapping):
        if "param_groups" in saved and isinstance(state := saved.get("state"), Mapping):
            if state:
                yield saved
        else:
            saved = [*saved.values()]
    for part in saved if isinstance(saved, list | tuple) else ():
        yield from _states(part)


def _read(path: str) -> Any:
    """Return what a file of torch has, or those in a folder; None if it is of another kind."""
    if os.path.isdir(path):
        return [_read(entry.path) for entry in os.scandir(path)]
    with suppress(Exception):
        return sys.modules["torch"].load(path, map_location="cpu", weights_only=True, mmap=True)
    return None


def saved_in(path: str, optimizer: Any) -> bool | None:
    """Return whether a file of torch has a weight of an optimizer as it is now; None if that is not known."""
    saved = [*_tensors(_read(path))]
    shapes = {one.shape for one in saved}
    marks = Marks.of(w for w in _weights_of(optimizer) if w.shape in shapes).each
    return not marks.isdisjoint(_each(saved)) if marks else None


def lacks(path: str, optimizer: Any) -> set[int]:
    """Return the marks of those weights of an optimizer that a file of torch lacks, as they are now."""
    saved = [*_tensors(_read(path))]
    return _each(_weights_of(optimizer)) - _each(saved) if saved else set()


def _each(weights: Iterable[Any]) -> set[int]:
    return {mark for one in weights for mark in Marks.of([one]).each}


def _tensors(state: Any) -> Iterator[Any]:
    if hasattr(state, "numel"):
        yield state
    elif isinstance(state, Mapping):
        for name, part in state.items():
            if not isinstance(name, int):  # it is of an optimizer's state
                yield from _tensors(part)
    elif isinstance(state, list | tuple):
        for part in state:
            yield from _tensors(part)


def watch() -> None:
    """Note from now on which optimizers make steps, if torch is used. In compiled code nothing is noted."""
    global _watches
    optim = sys.modules.get("torch.optim.optimizer")
    if _watches or optim is None or not hasattr(optim, "register_optimizer_step_post_hook"):
        return
    compiler: Any = sys.modules.get("torch.compiler")

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiler is None or not compiler.is_compiling():
            _stepped.setdefault(threading.get_ident(), WeakSet()).add(optimizer)

    def steps(optimizer: Any, args: Any, kwargs: Any) -> None:
        training = _training.get()
        if training is not None and not training._over and (compiler is None or not compiler.is_compiling()):
            training.steps(optimizer)

    optim.register_optimizer_step_pre_hook(steps)
    optim.register_optimizer_step_post_hook(stepped)
    _watches = True


def take() -> Updated | None:
    """Return the weights that this thread has updated since the last call; None if that is not known."""
    optimizers = _stepped.pop(threading.get_ident(), ())
    weights = [w for one in optimizers for w in _weights_of(one)]
    if not weights:
        return None
    return Updated({id(w): ref(w) for w in weights}, tuple(sorted(tuple(w.shape) for w in weights)))
