"""State of a fit outside of its model's file: other callbacks, attributes of layers, the place in the data.

A `Watch` marks the attributes of objects when a fit starts, so that only what changes later is saved: numbers, texts,
arrays, generators, containers of these, variables of Keras that are not of the model, also those of modules that the
code names, and variables of a callback's functions. Large arrays, such as copies of the weights, are written apart.
Attributes that cannot be read are named, also arrays that are larger than a few copies of the model, and lists of a
million values, of which a sample changes.

A fit with steps_per_epoch may end an epoch within its data. A resumed fit then reads the earlier batches again, without
training. A shuffle of tf.data from a seed returns to its pass if all passes are whole.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from haltune._utils import randomness
from haltune._utils.around import is_own, names_in
from haltune._utils.interruption import caller, variables
from haltune.errors import NotSupported
from haltune.study import Study
from haltune.study.port import Port, weak

from .. import objects
from ..changes import clocks, is_time
from . import shuffles
from .optimizers import layers_of, optimizers_of

_SKIPPED = {"_model", "_model_ref", "model"}
_SET_BY_KERAS = {"params", "validation_data"}  # in a callback
_CONFIGURED = {"min_delta", "monitor_op"}  # Keras changes its sign once the direction is known: not a state

_COPIES = 4  # of the model, as the best weights, a teacher and averages
_SHORT = 20  # elements of a list of the program, such as layers
_PEEKED = 2  # batches of a generator that Keras reads before the training, for their shapes
OF_MODEL = ("model/", "layer ", "optimizer ", "loss ")  # starts of the paths of what a model has
_MADE = "made "  # before the mark of a model that a hook of the fit's start has made
_PLAIN = "plain "  # start of the mark of a number, a text or None
_GLOBAL = "global "  # before the name of a variable of a module, in a path

Slot = tuple[str, Any, Callable[[Any], object]]  # path, value, how to set it
Place = tuple[str, Any, Callable[[Any], object], str]  # a slot and its kind; "": an attribute or a variable
_TENSORS = "tensors"  # an attribute that has tensors of TensorFlow or JAX, as arrays
_PART = "part"  # a variable, or an element next to parts of Keras, that a resumed fit must have made, too
_OTHER = "other part"  # a variable that the compiled step may have as a constant, with its first value
_WEIGHTS = "weights of "  # the weights of a part of Keras that a callback holds, such as a teacher of the model
# attribute of a variable outside of models: the trial or fold whose fit has changed it, and its mark then
_LEFT = "_haltune_left"


def of_metrics(model: Any) -> dict[str, list[Any]]:
    """Return the variables of a model's metrics, by names. Keras resets them in each epoch; a user's may not.

    On TensorFlow those of compile() are built in the first step. Without these private names, what such a metric keeps
    over all epochs would start again in a resumed fit.
    """
    from keras import Metric, tree

    given = [getattr(one, f"_user_{kind}metrics", None) for one in model.metrics for kind in ("", "weighted_")]
    found: dict[str, list[Any]] = {}
    for one in (one for one in (*model.metrics, *tree.flatten(given)) if isinstance(one, Metric)):
        name = one.name
        while name in found:
            name += " again"
        found[name] = one.variables
    return found


def carried(model: Any) -> list[Any]:
    """Return what recurrent layers with stateful=True carry to the next batch: variables that no file of Keras has."""
    from keras import tree

    layers = [one for one in layers_of(model) if getattr(one, "stateful", False)]
    return [v for one in layers for v in tree.flatten(getattr(one, "states", None)) if _is_variable(v)]


def carries(model: Any) -> bool:
    """Return whether a recurrent layer starts with what it carries from earlier batches."""
    from keras import ops

    return any(bool(np.any(ops.convert_to_numpy(v))) for v in carried(model))


def values_of(variables: list[Any]) -> list[Any]:
    """Return the values of variables, JSON-able."""
    from keras import ops

    return [objects.state_of(ops.convert_to_numpy(v)) for v in variables]


def set_values(variables: list[Any], states: list[Any]) -> None:
    """Set what `values_of` returned, if the variables are built."""
    values = [objects.put_back(state, None) for state in states]
    if [tuple(v.shape) for v in variables] == [np.shape(value) for value in values]:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


class Apart:
    """Large arrays in attributes, such as copies of the weights, which are not written as text.

    model: of the fit. Together they may be `_COPIES` times as large as it.
    """

    def __init__(self, model: Any) -> None:
        self.arrays: list[Any] = []
        self._left: int = _COPIES * sum(4 * math.prod(v.shape) for v in model.weights)  # bytes

    def state_of(self, value: Any) -> Any:
        """Return the state of a large value, whose arrays are taken; None if it has too many or something else."""
        before = len(self.arrays)
        with suppress(NotSupported):
            state = None if objects.under_way(value) else objects.data_of(value, _parts_of_keras(), apart=self.arrays)
            self._left -= sum(array.nbytes for array in self.arrays[before:])
            if state is not None and self._left >= 0:
                return state
        del self.arrays[before:]
        return None


class Watch:
    """The attributes of objects, marked when it is made.

    trial: of the fit. owners: name -> object. earlier: the watch of the previous fit, whose marks stay for the same
    objects. of_data: they are data, of which only tables are reported.
    """

    def __init__(
        self, trial: int, owners: Mapping[str, Any], earlier: Watch | None = None, of_data: bool = False
    ) -> None:
        self._trial, self._of_data = trial, of_data
        self._references = {name: weak(owner) for name, owner in owners.items()}  # after an error no hook can drop it
        self._clocks = clocks()
        self._tensors: set[str] = set()  # paths of what has tensors when the fit starts
        before = {} if earlier is None else earlier._owners
        self.same = {name for name, owner in owners.items() if before.get(name) is owner}
        known: dict[str, str] = {} if earlier is None else earlier._marks
        self._marks: dict[str, str] = {
            path: mark for path, mark in known.items() if path.partition("/")[0] in self.same
        }
        # arrays that are there when the fit starts: path -> array
        self._arrays: dict[str, Callable[[], Any]] = {} if earlier is None else {**earlier._arrays}
        self._begun: dict[str, str] | None = None  # marks of variables outside of the model in the first epoch
        new = {name: owner for name, owner in owners.items() if name not in self.same}
        for path, value, _, kind in self._places(new):
            self._note_array(path, value)
            self._marks[path] = objects.mark(value, _parts_of_keras())
            self._note(value, kind, self._marks[path])

    @property
    def _owners(self) -> dict[str, Any]:
        return {name: one for name, refer in self._references.items() if (one := refer()) is not None}

    def _places(self, owners: Mapping[str, Any] | None = None) -> list[Place]:
        return _places(self._owners if owners is None else owners, self._of_data)

    def marks(self) -> dict[str, str]:
        """Return the present marks of what can be saved."""
        marks = {path: objects.mark(value, _parts_of_keras()) for path, value, *_ in self._places()}
        return {path: mark for path, mark in marks.items() if objects.is_data(mark) or objects.is_large(mark)}

    def hooks_were_called(self) -> None:
        """Take what callbacks have set as the fit started for a change, such as the learning rate that they have read.

        A resumed fit calls these hooks again, when the model has other weights and another learning rate. Not so times,
        which it takes again, and objects that are no data.
        """
        for path, value, _, kind in self._places():
            self._note_array(path, value)
            self._tensors |= {path} if kind == _TENSORS else set()
            mark = objects.mark(value, _parts_of_keras())
            is_new = kind in (_PART, _OTHER) and path not in self._marks
            timed = is_time(value, self._clocks)
            if kind.startswith(_WEIGHTS) or (is_new and not timed):
                if self._marks.get(path, _PLAIN).startswith(_PLAIN):  # there was nothing, or None
                    self._marks[path] = _MADE + mark
            elif timed or not (objects.is_data(mark) or objects.is_large(mark)):
                self._marks[path] = mark
            elif mark != (before := self._marks.get(path)):
                self._marks[path] = f"{objects.SET}{mark}"  # whatever it becomes is a change
                if path.partition("/")[0] not in self.same:
                    self._note(value, kind, mark, before)

    def _note(self, value: Any, kind: str, mark: str, before: str | None = None) -> None:
        if (objects.is_data(mark) or objects.is_large(mark)) and not kind.startswith(_WEIGHTS):
            objects.note(value, self._trial, mark, before)

    def _note_array(self, path: str, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self._arrays[path] = weak(value)

    def called(self, path: str) -> str:
        """Return the name of an attribute for messages."""
        owner, _, attribute = path.partition("/")
        of = f"{type(self._owners.get(owner)).__name__}."
        return attribute.removeprefix(_GLOBAL) if is_global(path) else f"{of}{attribute}"

    def changes(
        self, within: bool = True, of_callbacks: bool = True, apart: Apart | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return what changed: path -> state; and why other changes cannot be saved.

        within: a fit, rather than at its end. of_callbacks: their attributes, too. apart: takes large arrays.
        """
        if not self._references:
            return {}, []
        owners = self._owners.items()
        places = self._places({name: one for name, one in owners if of_callbacks or f"{name}/".startswith(OF_MODEL)})
        # a metric that its first update builds starts each epoch again, unless its class says otherwise
        new = {path for path, _, _, kind in places if kind == f"{_WEIGHTS}Metric"} - self._marks.keys()
        places = [place for place in places if place[0] not in new]
        values = {path: value for path, value, *_ in places}
        states, lost, others = objects.changes(values, self._marks, constant=_parts_of_keras())
        if apart is not None:
            found = {path: apart.state_of(values[path]) for path in lost}
            states |= {path: state for path, state in found.items() if state is not None}
        # a dataset that is also an iterator is watched itself
        lost = [path for path in lost if path not in states and not _is_part(values[path], "utils.PyDataset")]
        for path in states.keys() & self._arrays.keys():
            array = values[path]  # other parts of the program may hold it, too, such as the data
            if array is not None and array is self._arrays[path]():
                states[path]["in place"] = True
        # data open files, and loaders replace their parts; but a table in place of another one has its rows shuffled
        tables = {path for path in others if path in self._marks and hasattr(values[path], "sample")}
        unread = [*lost, *(p for p in others if not p.startswith(OF_MODEL) and (p in tables or not self._of_data))]
        # a model or a variable that was made since: a resumed fit has none that could be set
        known = {path for path, mark in self._marks.items() if within or not mark.startswith(_MADE)}
        unread += [path for path, _, _, kind in places if kind not in ("", _TENSORS) and path not in known]
        # in place of a None, as a clone of the best model: a resumed fit has the None
        plain = {path for path, mark in self._marks.items() if mark.removeprefix(objects.SET).startswith(_PLAIN)}
        made = (path for path, _, put, kind in places if kind.startswith(_WEIGHTS) or _variable_of(put) is not None)
        unread += [path for path in made if path in plain]
        unread += [path for path, _, _, kind in places if kind == _OTHER and path in states]
        # later tensors: a resumed fit has nothing there that shows that the arrays were tensors
        later = states.keys() - self._tensors
        unread += [path for path, _, _, kind in places if kind == _TENSORS and path in later]
        return states, [objects.unsaved(path.replace("/", "."), values[path]) for path in unread]

    def lasting(self, of_callbacks: bool) -> dict[str, Any]:
        """Return the states, changed or not, of the variables outside of the model.

        They may outlive a fit, so another trial may change them before this one resumes. of_callbacks: see `changes`.
        """
        held = [(path, value) for path, _, value in self._variables() if of_callbacks or path.startswith(OF_MODEL)]
        small = [(path, value) for path, value in held if value.nbytes <= objects.SMALL]
        return {path: objects.data_of(value) for path, value in small if objects.is_data(objects.mark(value))}

    def epoch_begins(self, who: str) -> str | None:
        """Note the variables outside of the model in the first epoch; return the name of one left by another trial.

        A hook of that epoch may set the same value in each trial, so only what a fit changes later counts as left.

        who: see `carried.who`.
        """
        if self._begun is not None:
            return None
        found: str | None = None
        begun: dict[str, str] = {}
        for path, variable, value in self._variables():
            begun[path] = now = objects.mark(value)
            of, left = vars(variable).get(_LEFT, (who, ""))
            found = self.called(path) if of != who and left == now else found
        self._begun = begun
        return found

    def leaves(self, who: str) -> None:
        """Note which variables outside of the model this fit has changed since its first epoch began."""
        begun = self._begun or {}
        for path, variable, value in self._variables():
            if (now := objects.mark(value)) != begun.get(path, now):
                vars(variable)[_LEFT] = who, now

    def _variables(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the variables outside of the model, without random generators: path, variable, value."""
        for path, value, put, _ in self._places():
            if (variable := _variable_of(put)) is not None and not path.endswith("/state"):
                yield path, variable, value

    def other_model(self) -> str | None:
        """Return the name of an attribute with another model of the program's, whose weights have changed, or None."""
        for path, value, _, kind in self._places():
            before = self._marks.get(path, "").removeprefix(_MADE)
            if kind == f"{_WEIGHTS}Layer" and objects.mark(value) != before:
                return self.called(path)
        return None

    def put_back(self, changed: Mapping[str, Any], apart: Sequence[Any]) -> list[str]:
        """Set what changed; return the names of what cannot be set. apart: the large arrays.

        What trials share stays, such as a list of the program's own records. Data have none, nor have parts of a model
        and callbacks of Keras.
        """
        there, failed = {path: (value, put) for path, value, put, _ in self._places()}, []
        for path, state in changed.items():
            owner, _, name = path.rpartition("/")
            try:
                if path in there:
                    value, put = there[path]
                    of = self._owners[path.partition("/")[0]]
                    own = self._of_data or _is_part(of, "Layer") or type(of).__module__.startswith("keras.")
                    if own or not objects.is_shared(value, state, self._trial):
                        put(objects.put_back(state, value, apart=apart))
                elif owner in self._owners:
                    setattr(self._owners[owner], name, objects.put_back(state, None, apart=apart))
            except NotSupported:  # built otherwise in this attempt
                failed.append(self.called(path))
        return failed


class Compiled:
    """The numbers of a model and its layers that its compiled step has read, in the first epoch after it was compiled.

    JAX and TensorFlow read an attribute when they compile, so later values have no effect, also in a further fit that
    keeps the step. A resumed fit compiles again, with the numbers of that first epoch.
    """

    @classmethod
    def of(cls, model: Any) -> Compiled:
        """Return the record of a model's present step."""
        from keras import backend

        eager = backend.backend() == "torch" or getattr(model, "run_eagerly", False)
        step = None if eager else getattr(model, "train_function", None)
        of, found = _COMPILED.get(model, (None, None))
        if found is None or step is None or of is None or of() is not step:
            found = cls((lambda: None) if eager else weak(model))
            _COMPILED[model] = None if step is None else weak(step), found
        return found

    def __init__(self, model: Callable[[], Any]) -> None:
        self._model = model
        self.numbers: dict[str, Any] = {}  # numbers that the step has
        self._later: dict[str, Any] = {}  # numbers that callbacks set for the first epoch of a resumed fit
        self._before: dict[str, Any] | None = None  # numbers at the end of the first epoch

    def epoch_begins(self) -> str | None:
        """Return the name of a number whose change has no effect, or None."""
        places = _numbers(self._model())
        for path, (value, put) in places.items():
            compiled = self.numbers.setdefault(path, value)
            if self._before is None and _differ(value, compiled):
                self._later[path] = value
                put(compiled)
        before = self._before or {}
        changed = [path for path, (value, _) in places.items() if _differ(value, before.get(path, value))]
        return min([*changed, *self._later], default=None)

    def steps_end(self) -> None:
        """Set what callbacks have set, before they read it at the end of the epoch."""
        places, later, self._later = _numbers(self._model()) if self._later else {}, self._later, {}
        for path in later.keys() & places.keys():
            places[path][1](later[path])

    def epoch_ends(self) -> None:
        """Note the numbers at the end of the first epoch."""
        self.steps_end()
        if self._before is None:
            self._before = {path: value for path, (value, _) in _numbers(self._model()).items()}


# model -> its compiled step, and the record of it
_COMPILED: WeakKeyDictionary[Any, tuple[Callable[[], Any] | None, Compiled]] = WeakKeyDictionary()


def _differ(one: Any, other: Any) -> bool:
    return bool(one != other and not (one != one and other != other))  # NaN is NaN


def _numbers(model: Any) -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """Return the numbers of a model and its layers that their code may read: by path, the value and what sets it."""
    found: dict[str, tuple[Any, Callable[[Any], object]]] = {}
    for name, one in () if model is None else owners_in(model, {}).items():
        read = _read_by(type(one))
        for path, value, put in _slots(name, one, {id(one)}):
            if type(value) in (bool, int, float) and path.partition("/")[2] in read:
                found[path] = value, put
    return found


_READ: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()  # class -> the names that its code uses


def _read_by(kind: type) -> set[str]:
    """Return the names that the code of a class uses: its own code, or that of Keras."""
    if kind not in _READ:
        _READ[kind] = objects.mentioned(kind, libraries=objects.of_library(kind.__module__))
    return _READ[kind]


def _parts_of_keras() -> tuple[type, ...]:
    import keras

    kinds = (keras.Layer, keras.Variable, keras.Optimizer, keras.Loss, keras.Metric, keras.callbacks.Callback)
    return (*kinds, Port, Study)


def settings_of(name: str, owner: Any) -> dict[str, str]:
    """Return the marks of the attributes of a part of a model that can be saved, by their paths."""
    marks = {path: objects.mark(value, _parts_of_keras()) for path, value, _ in _slots(name, owner, {id(owner)})}
    return {path: marked for path, marked in marks.items() if objects.is_data(marked)}


def _places(owners: Mapping[str, Any], of_data: bool) -> list[Place]:
    from keras import backend, ops

    # JAX's compiled step has a variable of a loss as a constant, from its first call in each process
    on_jax = backend.backend() == "jax"
    compiled: set[int] = set()
    for name, owner in owners.items() if on_jax else ():
        of_model = name.startswith(("model", "layer ", "loss "))
        slots = _slots(name, owner, {id(owner)}) if of_model else []
        compiled |= {id(v) for _, value, _ in slots for _, v in _parts_in(value)}
    places: list[Place] = []
    saved: set[int] | None = None  # of the variables that the model's file has
    for name, owner in owners.items():
        of_optimizer = _is_part(owner, "Optimizer")
        # of data: what has a state is found by `_seeds_of`
        of_modules = [] if of_data else _globals(name, owner)
        for path, value, put in (*_slots(name, owner, {id(owner)}), *of_modules):
            if type(value) in objects.PLAIN:
                places.append((path, value, put, ""))
                continue
            if of_optimizer:
                continue  # the model's file has its variables
            found = _parts_in(value)
            inner = [(at, v) for at, v in found if _is_variable(v) and id(v) not in compiled]
            held = [] if _is_part(owner, "Layer") else [(at, one) for at, one in found if not _is_variable(one)]
            if not inner and not held:
                if (arrays := _as_arrays(value)) is value:
                    places.append((path, value, put, ""))
                else:
                    places.append((path, arrays, partial(_put_tensors, put, value), _TENSORS))
                continue
            saved = _saved(owners.get("model")) if saved is None else saved
            for at, v in inner:
                if id(v) not in saved:  # JAX's step has no variable of TensorFlow, such as a generator's in tf.data
                    kind = _OTHER if on_jax and _is_part(v, "Variable") else _PART
                    places.append((f"{path}{at}", ops.convert_to_numpy(v), v.assign, kind))
            places += [(f"{path}{at}", one, put, _PART) for at, one, put in _next_to({at for at, _ in found}, value)]
            for at, one in held:
                variables = [one.state] if _is_part(one, "random.SeedGenerator") else one.variables
                variables = [v for v in variables if id(v) not in saved]
                weights = [ops.convert_to_numpy(v) for v in variables]
                kind = _WEIGHTS + next((of for of in ("Layer", "Metric") if _is_part(one, of)), "others")
                places += [(f"{path}{at}", weights, partial(_assign, variables), kind)] if variables else []
    return places


def _saved(model: Any) -> set[int]:
    of_optimizers = () if model is None else (v for one in optimizers_of(model).values() for v in one.variables)
    return {id(v) for v in (*getattr(model, "variables", ()), *of_optimizers)}


def _variable_of(put: Callable[[Any], object]) -> Any:
    """Return the variable of Keras or TensorFlow that a slot assigns; None if it is another slot."""
    variable = getattr(put, "__self__", None)
    return variable if _is_variable(variable) else None


def _assign(variables: list[Any], values: list[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _put_tensors(put: Callable[[Any], object], value: Any, new: Any) -> None:
    """Set an attribute whose value has tensors from one that has arrays in their places."""
    put(_as_tensors(new, value))


def _as_arrays(value: Any) -> Any:
    """Return a value with arrays in place of the backend's tensors in it; the same if it has none.

    Tensors of torch stay, because they are data, but leave their graph.
    """
    from keras import ops

    new = value
    if isinstance(value, (list, tuple, dict)):
        inner = value.values() if isinstance(value, dict) else value
        arrays = [_as_arrays(one) for one in inner]
        if any(one is not old for one, old in zip(arrays, inner, strict=True)):
            new = dict(zip(value, arrays, strict=True)) if isinstance(value, dict) else type(value)(arrays)
    elif ops.is_tensor(value) and not getattr(value, "is_leaf", False) and not _is_variable(value):
        with suppress(Exception):  # one of a graph of TensorFlow or JAX has no value
            new = value.detach() if hasattr(value, "untyped_storage") else ops.convert_to_numpy(value)
    return new


def _as_tensors(new: Any, value: Any) -> Any:
    """Return the arrays of `_as_arrays` as tensors where another value has them."""
    from keras import ops

    if isinstance(value, dict) and isinstance(new, dict):
        return {key: _as_tensors(one, value.get(key)) for key, one in new.items()}
    if isinstance(value, (list, tuple)) and isinstance(new, (list, tuple)) and len(new) == len(value):
        return type(value)(_as_tensors(one, old) for one, old in zip(new, value, strict=True))
    return ops.convert_to_tensor(new) if isinstance(new, np.ndarray) and _as_arrays(value) is not value else new


_RULES = ("_regularizer", "_constraint")  # ends of names of what layers hold for their weights
_WITH_VARIABLES = ("Layer", "Optimizer", "Metric", "random.SeedGenerator")  # classes of Keras


def _is_part(value: Any, *kinds: str) -> bool:
    """Return whether it is an object of one of these classes of Keras."""
    import keras

    return isinstance(value, attrgetter(*kinds)(keras))


_CODE = (type, types.FunctionType, types.MethodType, types.ModuleType)


def _parts_in(value: Any, depth: int = 3, seen: set[int] | None = None) -> list[tuple[str, Any]]:
    """Return the variables and the parts of Keras that an attribute is or contains, with their places in it."""
    if _is_variable(value) or _is_part(value, *_WITH_VARIABLES):
        return [("", value)]
    if type(value).__module__.startswith("tensorflow.python.ops.") and _is_variable(getattr(value, "state", None)):
        return [("/state", value.state)]  # a random generator
    seen = set() if seen is None else seen
    if not depth or id(value) in seen:
        return []
    seen.add(id(value))
    inner = [(key, one) for key, one in _items(value) if type(one) not in objects.PLAIN]
    return [(f"/{key}{at}", part) for key, one in inner for at, part in _parts_in(one, depth - 1, seen)]


def _next_to(places: set[str], value: Any, at: str = "") -> list[Slot]:
    """Return what is next to parts at these places of an attribute, in lists, dicts and objects of the program."""
    found: list[Slot] = []
    for key, one in _items(value):
        here = f"{at}/{key}"
        if any(place.startswith(f"{here}/") for place in places):
            found += _next_to(places, one, here)
        elif here not in places and not isinstance(value, tuple):  # which is made again as a whole
            by_key = isinstance(value, (dict, list))
            found.append((here, one, partial(value.__setitem__, key) if by_key else partial(setattr, value, key)))
    return found


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the elements of a list, a tuple or a dict, or the attributes of an object of the program: name, value."""
    if isinstance(value, (dict, list, tuple)):
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        yield from items
    elif hasattr(value, "__dict__") and not isinstance(value, _CODE) and objects.of_program(type(value)):
        yield from vars(value).items()


def _is_variable(value: Any) -> bool:
    """Return whether it is a variable of Keras or TensorFlow."""
    kind = type(value)  # a dict of settings may have any attribute: __getattr__ = dict.get
    return hasattr(kind, "assign") and hasattr(kind, "numpy")


def _slots(name: str, owner: Any, seen: set[int]) -> list[Slot]:
    """Return the attributes of an object, or the variables of a function, and those of its functions."""
    if isinstance(owner, types.MethodType):
        slots: list[Slot] = []
        if id(owner.__self__) not in seen and objects.of_program(type(owner.__self__)):
            slots = [(f"{name}/self", owner.__self__, lambda value: None)]
    elif isinstance(owner, types.FunctionType):
        slots = [(f"{name}/{key}", *one) for key, one in objects.variables_of(owner).items()]
    else:
        hidden = _SKIPPED | (_CONFIGURED if "monitor_op" in vars(owner) else set())
        hidden |= _SET_BY_KERAS if _is_part(owner, "callbacks.Callback") else set()
        if hasattr(owner, "get_config"):  # a layer, an optimizer, a loss or a metric
            mentioned = objects.mentioned(type(owner))  # other names that start with "_" are Keras' own
            hidden |= _of_layers() | {key for key in vars(owner) if key.startswith("_") and key not in mentioned}
        held = objects.held_by(owner, hidden)
        slots = [(f"{name}/{key}", value, partial(setattr, owner, key)) for key, value in held.items()]
    found: list[Slot] = []
    for path, value, put in slots:
        if not isinstance(value, (types.FunctionType, types.MethodType)):
            found.append((path, value, put))
        elif id(value) not in seen:
            seen.add(id(value))
            found += _slots(path, value, seen)
    return found


def _globals(name: str, owner: Any) -> list[Slot]:
    """Return the variables of Keras in modules that the program's code of an object or a function names.

    Also those that functions name which this code names or holds.
    """
    own = (base for base in type(owner).__mro__ if is_own(base.__module__))
    left = [owner, *getattr(owner, "__dict__", {}).values(), *(one for base in own for one in vars(base).values())]
    found: dict[str, Slot] = {}
    seen: set[int] = set()
    while left:
        one = left.pop()
        one = one.fget if isinstance(one, property) else one
        one = one.__func__ if isinstance(one, (types.MethodType, staticmethod, classmethod)) else one
        if not isinstance(one, types.FunctionType) or id(one) in seen or not is_own(one.__module__):
            continue
        seen.add(id(one))
        named: dict[str, Any] = {key: one.__globals__.get(key) for key in sorted(names_in(one.__code__))}
        left += [*named.values(), *(value for value, _ in objects.variables_of(one).values())]
        found |= {key: (f"{name}/{_GLOBAL}{key}", v, v.assign) for key, v in named.items() if _is_variable(v)}
    return [*found.values()]


def is_global(path: str) -> bool:
    return path.partition("/")[2].startswith(_GLOBAL)


@cache
def _of_layers() -> set[str]:
    """Return the attributes that Keras itself sets on a model or a layer."""
    import keras

    own = vars(keras.Sequential())
    return {*own, "optimizer", "history", "stop_training", "trainable", "built", "autocast"}


_EVALUATE = ("call", "test_step", "compute_loss", "compute_metrics", "update_state", "result")
_ADD = {"append", "appendleft", "extend", "clear"}


def evaluates_by(part: Any) -> set[str]:
    """Return the names that the program's own code of a part of a model may read when the model is evaluated."""
    named = objects.mentioned(type(part), _EVALUATE)
    return objects.mentioned(type(part), _EVALUATE, _read) | {f"{_GLOBAL}{name}" for name in named}


def _read(code: types.CodeType) -> set[str]:
    """Return the attributes that code reads, without those that it only sets or adds to, as self.seen.append(x)."""
    try:
        nodes = [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code))))]
    except (OSError, SyntaxError):  # there is no source, or only a part of a statement
        return {*code.co_names}
    added = set()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=whole, attr=name)) if name in _ADD:
                pass
            case ast.Subscript(value=whole, ctx=ast.Store()):
                pass
            case _:
                continue
        while isinstance(whole, ast.Subscript):
            whole = whole.value
        added.add(whole)
    return {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and n not in added}


def callbacks_in(listed: list[Any], is_listener: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the callbacks to watch, by their names."""
    counts: dict[str, int] = {}
    found = {}
    for callback in listed:
        if not is_listener(callback):
            kind = type(callback).__qualname__
            counts[kind] = counts.get(kind, 0) + 1
            found[f"{kind} {counts[kind]}" if counts[kind] > 1 else kind] = callback
    return found


def owners_in(model: Any, callbacks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects of a fit to watch, except its data: model, layers, optimizers, own losses and callbacks."""
    from keras import tree

    owners = {"model": model}
    for i, layer in enumerate(layers_of(model)):
        owners[f"layer {i}"] = layer
        rules = {key: one for key, one in vars(layer).items() if one is not None and key.endswith(_RULES)}
        owners |= {f"layer {i} {key}": one for key, one in rules.items() if hasattr(one, "get_config")}
    held = [o for one in optimizers_of(model).values() for o in (one, getattr(one, "inner_optimizer", None))]
    owners |= {f"optimizer {i}": one for i, one in enumerate(held) if one is not None}
    losses = tree.flatten(getattr(model, "loss", None))
    # those that its own train_step calls
    losses += [one for part in (model, *layers_of(model)) for one in vars(part).values() if _is_part(one, "Loss")]
    once = {id(one): (i, one) for i, one in reversed([*enumerate(losses)])}.values()
    own = {i: one for i, one in once if hasattr(one, "__dict__") and not objects.of_library(type(one).__module__)}
    return owners | {f"loss {i}": one for i, one in own.items()} | {**callbacks}


def numbered(part: Any) -> tuple[str, int] | None:
    """Return Keras' name for the class of a metric or a layer, and its number; None if it has another name."""
    # as Keras makes a name from that of a class, with functions that it does not export
    words = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", type(part).__name__))
    stem = re.sub("([a-z])([A-Z])", r"\1_\2", words).lower()
    found = re.fullmatch(rf"{re.escape(stem)}(?:_([1-9]\d*))?", part.name)
    return found and (stem, int(found[1] or 0))


# the data


class _Source:
    """What a dataset, a loader or an adapter of the program's changes while it is read.

    source: None if it has no state. earlier: the record of the previous fit.
    """

    def __init__(self, trial: int, source: Any, earlier: _Source | None = None) -> None:
        self.given: Callable[[], Any] = weak(source)
        roots: list[Any] = []
        owners: dict[str, Any] = {}
        self.seeds: list[Any] = []  # variables of Keras' generators in layers that its functions use
        if source is not None:
            roots = [source]
            if _is_tf(source):
                functions = _functions_of(source)
                self.seeds = _seeds_of(functions)
                roots = [
                    {f"{i}.{name}": value for i, f in enumerate(functions) for name, value, _ in _slots("", f, set())},
                    *functions,
                ]
                owners = {f"data {i}": f for i, f in enumerate(functions)}
            else:
                parts = {n: getattr(source, n, None) for n in ("sampler", "batch_sampler", "dataset")}
                owners = {"data": source} | {n: part for n, part in parts.items() if hasattr(part, "__dict__")}
                owners |= _datasets_in(source, "data")
                own = [base for one in owners.values() for base in type(one).__mro__ if is_own(base.__module__)]
                self.seeds = _seeds_of(
                    [f for of in own for f in vars(of).values() if isinstance(f, types.FunctionType)]
                )
        self.has_code = bool(owners)  # of the program's, or of a loader
        self.generators = randomness.generators_in(*roots)
        self._watch: Watch = Watch(trial, owners, None if earlier is None else earlier._watch, of_data=True)

    def state(self, apart: Apart | None = None, whole: bool = True) -> dict[str, Any]:
        """Return what has changed. Raises NotSupported if it cannot be saved.

        apart: takes large arrays. whole: it was read in whole passes, by one process.
        """
        shuffled = shuffles.states_of(self.given(), whole)
        changed, unread = self._watch.changes(apart=apart)
        if unread:
            raise NotSupported(unread[0])
        held = randomness.states_of(self.generators)
        return {"generators": held, "changed": changed, "seeds": values_of(self.seeds), "shuffles": shuffled}

    def put_back(self, state: Mapping[str, Any], apart: Sequence[Any] = ()) -> list[str]:
        """Set what `state` returned; return the names of what cannot be set. apart: the large arrays."""
        set_values(self.seeds, state["seeds"])
        failed = self._watch.put_back(state["changed"], apart)
        randomness.set_states(self.generators, state["generators"])
        return failed


def _datasets_in(source: Any, name: str, depth: int = 3) -> dict[str, Any]:
    """Return the PyDatasets that a PyDataset reads, with their names."""
    found: dict[str, Any] = {}
    for key, one in vars(source).items() if depth and _is_part(source, "utils.PyDataset") else ():
        if _is_part(one, "utils.PyDataset"):
            found |= {f"{name} {key}": one} | _datasets_in(one, f"{name} {key}", depth - 1)
    return found


class _Validation(_Source):
    """The data of a fit's validations: Keras starts each one with a new pass, and keeps what the data have changed.

    cut: a validation may end before the end of the data.
    """

    def __init__(self, trial: int, given: Any, cut: bool, earlier: _Source | None = None) -> None:
        from keras import backend

        arrays = isinstance(given, (tuple, list, dict)) or hasattr(given, "shape")
        self._is_generator = isinstance(given, types.GeneratorType)
        super().__init__(trial, None if arrays or self._is_generator else given, earlier)
        self._cut, self._by_tf = cut, backend.backend() == "tensorflow"
        self._first = randomness.states_of(self.generators)
        self._reads: bool | None = None

    def state(self, apart: Apart | None = None, whole: bool = True) -> dict[str, Any]:
        source = self.given()
        if self._is_generator:
            raise NotSupported(
                "its validation_data is a generator, of which each validation reads further batches. Use arrays, or a "
                "keras.utils.PyDataset"
            )
        state = super().state(apart, whole)
        ahead = self._cut and (self._by_tf or _is_tf(source))
        if ahead and (state["changed"] or self.seeds or state["generators"] != self._first):
            raise NotSupported(
                "TensorFlow reads its validation data ahead by a function with a state, so its place cannot be "
                "restored. Leave out validation_steps"
            )
        if self._by_tf and self._changes_when_read(source, state, [] if apart is None else apart.arrays):
            raise NotSupported(
                "reading its validation data changes them or draws random numbers, and TensorFlow reads batches for "
                "their shapes before the first validation of each fit. Validate on arrays, or on a tf.data dataset"
            )
        return state

    def _changes_when_read(self, source: Any, state: dict[str, Any], apart: Sequence[Any]) -> bool:
        """Return whether reading a batch, as TensorFlow does for its shapes, changes something."""
        from keras.utils import PyDataset

        if not isinstance(source, PyDataset):
            return type(source).__module__.startswith("torch.")  # iterating a loader draws its seed
        if self._reads is None:
            before = randomness.capture()
            try:
                source[0]
                self._reads = json.dumps([before, state]) != json.dumps([randomness.capture(), super().state()])
            except Exception:  # of the program's own code: Keras would meet it, too
                self._reads = True
            randomness.restore(before)
            self.put_back(state, apart)
        return self._reads


# generator that a program has given to fits -> the attempt of a trial that has read it; None: several
_READERS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_ONE_EACH = "Make it for each trial, within the loop"


class Data:
    """The place of a fit in its data.

    within: what HaltuneCallback evaluates within an epoch. reader: what names the attempt of the trial.

    Keras has no public access to a fit's data. They are the local `epoch_iterator` of Model.fit, with a `data_adapter`.
    Without it, shuffles by the data's own generators, and the place within a pass, start again in a resumed fit.
    """

    def __init__(self, trial: int, reader: Any, earlier: Data | None = None, within: Any = None) -> None:
        import keras

        given = variables(caller("fit", "keras."))
        iterator = given.get("epoch_iterator")
        self._fit: Callable[[], Any] = weak(iterator)
        read = objects.variables_of(getattr(getattr(iterator, "data_adapter", None), "generator", None))
        self._generator: Callable[[], Any] = weak(read.get("generator", (None,))[0])  # that the program gave to fit
        self._reader = reader
        self.read_before = False  # True: an earlier fit of this attempt has read from its generator, too
        if (generator := self._generator()) is not None:
            self.read_before = _READERS.get(generator) == reader
            _READERS[generator] = reader if _READERS.get(generator, reader) == reader else None
        source = self._source
        self._of_training: _Source = _Source(trial, source, None if earlier is None else earlier._of_training)
        self._of_training.generators |= randomness.generators_in(generator)
        evaluated = [(given.get("validation_data"), bool(given.get("validation_steps"))), (within, False)]
        before: list[Any] = [None, None] if earlier is None else earlier._of_validation
        self._of_validation: list[_Validation] = [
            _Validation(trial, *one, past) for one, past in zip(evaluated, before, strict=True)
        ]
        # random states before the first batch of the present pass, and whether its iterator was made before that
        self._drawn: tuple[Any, Any, bool] | None = None
        # whether TensorFlow may read ahead from the program's own code
        by_own = self._generator() is not None if source is None else self._of_training.has_code
        self._ahead = by_own and (keras.backend.backend() == "tensorflow" or _is_tf(source))

    @property
    def _iterator(self) -> Any:
        return self._fit()

    @property
    def _source(self) -> Any:
        """What the program gave to fit, if it may have a state: a dataset, a loader or an adapter of the user's."""
        adapter = getattr(self._iterator, "data_adapter", None)
        if type(adapter).__name__ in ("ArrayDataAdapter", "GeneratorDataAdapter"):
            return None
        names = ("py_dataset", "_dataloader", "_dataset")
        return next((found for n in names if (found := getattr(adapter, n, None)) is not None), adapter)

    @property
    def within(self) -> bool:
        """True if epochs may end within a pass over the data."""
        return bool(getattr(self._iterator, "steps_per_epoch", None))

    @property
    def _shared(self) -> bool:
        """True if another training of this process has read from its generator, too."""
        generator = self._generator()
        return generator is not None and _READERS.get(generator) != self._reader

    def epoch_begins(self, capture: Callable[[], Any]) -> None:
        """Record the random state if the next batch is the first of a pass."""
        if self.within and (self._iterator._current_iterator is None or self._iterator._steps_seen == 0):
            made = self._iterator._current_iterator is not None
            self._drawn = capture(), randomness.states_of(self._of_training.generators), made

    def state(self, within: bool, apart: Apart | None = None) -> dict[str, Any]:
        """Return the place after an epoch. Raises NotSupported if a fit cannot return to it.

        within: a fit. The next fit after its end starts a new pass. apart: takes large arrays.
        """
        source = self._source
        if self.read_before:
            raise NotSupported("several fits read from the same generator of its data. Make one for each fit")
        if self._shared:
            raise NotSupported(f"another training has read from the generator of its data, too. {_ONE_EACH}")
        enqueuer = getattr(getattr(self._iterator, "data_adapter", None), "enqueuer", None)
        if enqueuer is not None and not enqueuer.ready_queue.empty():
            raise NotSupported("the workers of its PyDataset hold batches for its next epoch. Use workers=1")
        if getattr(source, "persistent_workers", False):
            raise NotSupported(
                "the workers of its DataLoader persist, with random states of their own. Use persistent_workers=False"
            )
        shuffles.need_apart([source, *(one.given() for one in self._of_validation)])
        alone = not _is_distributed(self._iterator)
        state = self._of_training.state(apart, alone and within and not self.within)
        state["length"] = self._iterator._num_batches if state["shuffles"] else None
        held, changed = state["generators"], state["changed"]
        seen = drawn = None
        if self.within and within:
            seen = int(self._iterator._steps_seen)
            drawn = self._drawn if seen else None
            states = json.dumps([_of_python(drawn[0]), drawn[1]]) if drawn else ""
            others = drawn is not None and states != json.dumps([_of_python(randomness.capture()), held])
            if self._ahead and (changed or state["seeds"] or others):
                raise NotSupported(
                    "TensorFlow reads its data ahead by a function with a state or with global random numbers, so its "
                    "place in the data cannot be restored. Leave out steps_per_epoch, or let a Python generator draw "
                    "from one that it makes itself, np.random.default_rng(seed)"
                )
            if self._generator() is not None and seen < _PEEKED:
                raise NotSupported("Keras reads two batches of its generator before the training, and one is left")
        validation = [one.state(apart, alone and within) for one in self._of_validation]
        return state | {"seen": seen, "drawn": drawn, "validation": validation}

    def put_back(
        self, state: Mapping[str, Any], restore: Callable[[Any], object], apart: Sequence[Any] = ()
    ) -> list[str]:
        """Return to a place; return the names of what cannot be set.

        restore: sets a random state; the caller sets the final one afterwards. apart: the large arrays.

        Raises NotSupported if another training, or an earlier attempt, has read from its generator.
        """
        if self._shared:
            raise NotSupported(
                "This trial resumes, and the generator of its data has been read before, by another training or an "
                f"earlier attempt, so the trial would read other batches than without its pause. {_ONE_EACH}."
            )
        if state["seen"] is not None:
            self._drawn = state["drawn"]
            drawn, held, made = self._drawn or (None, {}, False)
            iterator = self._iterator
            if made:  # making it draws numbers, too
                iterator._current_iterator = iter(iterator._get_iterator())
            if drawn is not None:
                restore(drawn)
                randomness.set_states(self._of_training.generators, held)
            if not made:
                iterator._current_iterator = iter(iterator._get_iterator())
            for _ in range(state["seen"]):
                next(iterator._current_iterator, None)
            iterator._steps_seen = state["seen"]
        if state.get("length") is not None:  # which Keras has found in the first pass
            self._iterator._num_batches = state["length"]
        failed = self._of_training.put_back(state, apart)
        validation = state.get("validation", ())  # another one if the program has changed
        for one, held in zip(self._of_validation, validation, strict=False):
            failed += one.put_back(held, apart)
        return failed

    def put_orders_back(self, state: Mapping[str, Any]) -> list[str]:
        """Return to the orders of tf.data shuffles; return the names of those that cannot be set."""
        sources = [self._of_training, *self._of_validation]
        both = zip(sources, [state, *state.get("validation", ())], strict=False)
        return [name for one, held in both for name in shuffles.put_back(one.given(), held.get("shuffles", []))]


def _of_python(state: Mapping[str, Any]) -> list[Any]:
    return [state["python"], state["numpy"]]


def batches_of_epoch(planned: int | None) -> int:
    """Return the number of batches that the fit has trained in the epoch that ends. planned: by Keras, if known.

    Keras counts them only in a local of Model.fit. Without it, an epoch that ended early would count as a whole one.
    """
    end = variables(caller("fit", "keras.")).get("end_step")
    trained = (planned or 0) if end is None else int(end) + 1
    return min(trained, planned) if planned else trained  # with steps_per_execution, end_step may be beyond the end


def _is_distributed(iterator: Any) -> bool:
    """Return whether a fit's data go to several devices, by a strategy of TensorFlow or a distribution of Keras."""
    from keras import distribution

    given = getattr(iterator, "_distributed_dataset", None)
    return type(given).__module__.startswith("tensorflow.python.distribute.") or distribution.distribution() is not None


def _is_tf(source: Any) -> bool:
    return type(source).__module__.startswith("tensorflow.")


def _upstream(source: Any) -> Iterator[Any]:
    """Yield a tf.data dataset and those from which it reads, without those before a cache.

    These are read in the first pass only. A resumed fit repeats it from its start, if its seeds are the same.
    """
    left = [source] if hasattr(source, "_inputs") else []
    while left:
        one = left.pop()
        if type(one).__name__ != "CacheDataset":
            yield one
            left += one._inputs()


def _functions_of(source: Any) -> list[Any]:
    """Return the program's functions from which a tf.data dataset reads: those of from_generator and of map."""
    found, seen, left = [], set(), [source]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "_inputs"):
            parts = (part for dataset in _upstream(one) for part in vars(dataset).values())
            left += [f for part in parts if (f := getattr(part, "_func", None)) is not None]
        elif isinstance(one, types.FunctionType) and objects.of_library(one.__module__):
            left += [value for value, _ in objects.variables_of(one).values()]
        elif _is_tf(one) and hasattr(one, "_generator"):  # of from_generator
            left.append(one._generator)
        elif callable(one) and not isinstance(one, type) and hasattr(one, "__dict__"):
            found.append(one)
    return found


def _seeds_of(functions: list[Any]) -> list[Any]:
    """Return the variables of Keras' seed generators in layers that functions use, such as RandomFlip in a map.

    Also those in variables of the module, and in lists there, that functions or further ones of the program name, and
    the variables there, such as those of a tf.random.Generator.
    """
    import keras

    found: dict[int, Any] = {}
    left, seen = [*functions], {id(one) for one in functions}
    while left:
        function = left.pop()
        code = getattr(function, "__code__", None)
        named = [] if code is None else [function.__globals__.get(name) for name in sorted(names_in(code))]
        named = [one for one in named if not (isinstance(one, (list, tuple, dict)) and len(one) > _SHORT)]
        further = [one for one in named if isinstance(one, types.FunctionType) and is_own(one.__module__)]
        left += [one for one in further if id(one) not in seen]
        seen |= set(map(id, further))
        used = [*(value for _, value, _ in _slots("", function, set())), *named]
        parts = [part for one in used for _, part in _parts_in(one)]
        layers = [layer for one in parts if _is_part(one, "Layer") for layer in one._flatten_layers()]
        held = [value for layer in layers for value in vars(layer).values()]
        for one in [*parts, *held, *(inner for value in held if isinstance(value, dict) for inner in value.values())]:
            if isinstance(one, keras.random.SeedGenerator):
                found[id(one)] = one.state
        found |= {id(one): one for of in named for _, one in _parts_in(of) if _is_variable(one)}
    return [*found.values()]
