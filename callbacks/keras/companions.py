"""State of a fit outside of its model's file: other callbacks, attributes of layers, variables of modules.

A `Watch` marks the attributes of objects when a fit starts, so that only what changes later is saved: numbers, texts,
arrays, generators, containers of these, variables of Keras that are not of the model, and variables of a callback's
functions. Of modules that the code names, it saves variables and random generators, not numbers: most are records of
all trials. Large arrays, such as copies of the weights, are written apart. Attributes that cannot be read are named,
also arrays that are larger than a few copies of the model, and lists of a million values, of which a sample changes.
"""

from __future__ import annotations

import ast
import inspect
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
from haltune.errors import NotSupported
from haltune.study import Study
from haltune.study.fits import weak
from haltune.study.port import Port

from .. import objects
from ..changes import clocks, is_time, set_buffers, unsaved_buffers
from .optimizers import layers_of, optimizers_of

_SKIPPED = {"_model", "_model_ref", "model"}
_SET_BY_KERAS = {"params", "validation_data"}  # in a callback
_CONFIGURED = {"min_delta", "monitor_op"}  # Keras changes its sign once the direction is known: not a state

_COPIES = 4  # of the model, as the best weights, a teacher and averages
_LONG = 1000  # elements of a container that is searched only if its first one is or has a part of Keras
OF_MODEL = ("model/", "layer ", "optimizer ", "loss ")  # starts of the paths of what a model has
_MADE = "made "  # before the mark of a model that a hook of the fit's start has made
_PLAIN = "plain "  # start of the mark of a number, a text or None
_GLOBAL = "global "  # before the name of a variable of a module, in a path
_SEED = "/state"  # end of the path of the state of a random generator

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
    return [v for one in layers for v in tree.flatten(getattr(one, "states", None)) if is_variable(v)]


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
        self._before: list[tuple[Any, Callable[[Any], object], Any]] = []  # see `give_back`
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
        called = attribute.removeprefix(_GLOBAL) if is_global(path) else f"{of}{attribute}"
        return called.replace("/", ".")

    def changes(
        self, within: bool = True, of_callbacks: bool = True, apart: Apart | None = None, lasting: bool = False
    ) -> tuple[dict[str, Any], list[str]]:
        """Return what changed: path -> state; and why other changes cannot be saved.

        within: a fit, rather than at its end. of_callbacks: their attributes, too. apart: takes large arrays.
        lasting: return also the states, changed or not, of what another trial or another process may have otherwise.
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
        lost = [path for path in lost if path not in states and not is_part(values[path], "utils.PyDataset")]
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
        states = _lasting(places) | states if lasting else states
        return states, [objects.unsaved(path.replace("/", "."), values[path]) for path in unread]

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
            if (variable := _variable_of(put)) is not None and not path.endswith(_SEED):
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
        and callbacks of Keras. Random generators of modules, which trials share, too, continue where the trial paused,
        until `give_back`.
        """
        there, failed = {path: (value, put) for path, value, put, _ in self._places()}, []
        for path, state in changed.items():
            owner, _, name = path.rpartition("/")
            try:
                if path in there:
                    value, put = there[path]
                    of = self._owners[path.partition("/")[0]]
                    own = self._of_data or is_part(of, "Layer") or type(of).__module__.startswith("keras.")
                    drawn = is_global(path) and (path.endswith(_SEED) or randomness.is_generator(value))
                    if own or drawn or not objects.is_shared(value, state, self._trial):
                        before = (objects.mark(value), objects.data_of(value)) if drawn else None
                        new = objects.put_back(state, value, apart=apart)
                        put(new)
                        if before is not None and objects.mark(new) != before[0]:  # another trial has drawn since
                            self._before.append((new, put, before[1]))
                elif owner in self._owners and not is_global(path):
                    setattr(self._owners[owner], name, objects.put_back(state, None, apart=apart))
            except NotSupported:  # built otherwise in this attempt
                failed.append(self.called(path))
        return failed

    def give_back(self) -> None:
        """State that the trial ends: the generators of modules continue where they were before `put_back`."""
        for value, put, state in self._before:
            put(objects.put_back(state, value))
        self._before = []


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
        for path, value, put in slots_of(name, one, {id(one)}):
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
    marks = {path: objects.mark(value, _parts_of_keras()) for path, value, _ in slots_of(name, owner, {id(owner)})}
    return {path: marked for path, marked in marks.items() if objects.is_data(marked)}


def _places(owners: Mapping[str, Any], of_data: bool) -> list[Place]:
    from keras import backend, ops

    # JAX's compiled step has a variable of a loss as a constant, from its first call in each process
    on_jax = backend.backend() == "jax"
    compiled: set[int] = set()
    for name, owner in owners.items() if on_jax else ():
        of_model = name.startswith(("model", "layer ", "loss "))
        slots = slots_of(name, owner, {id(owner)}) if of_model else []
        compiled |= {id(v) for _, value, _ in slots for _, v in parts_in(value)}
    places: list[Place] = []
    saved: set[int] | None = None  # of the variables that the model's file has
    for name, owner in owners.items():
        of_optimizer = is_part(owner, "Optimizer")
        of_modules = [] if of_data else _globals(name, owner)  # what data name is found by `data._seeds_of`
        for path, value, put in (*slots_of(name, owner, {id(owner)}), *buffers_of(name, owner), *of_modules):
            if type(value) in objects.PLAIN:
                places.append((path, value, put, ""))
                continue
            if of_optimizer:
                continue  # the model's file has its variables
            found = parts_in(value)
            inner = [(at, v) for at, v in found if is_variable(v) and id(v) not in compiled]
            tracked = is_part(owner, "Layer") and not is_global(path)  # by Keras
            held = [] if tracked else [(at, one) for at, one in found if not is_variable(one)]
            if not inner and not held:
                if (arrays := _as_arrays(value)) is value:
                    places.append((path, value, put, ""))
                else:
                    places.append((path, arrays, partial(_put_tensors, put, value), _TENSORS))
                continue
            saved = _saved(owners.get("model")) if saved is None else saved
            for at, v in inner:
                if id(v) not in saved:  # JAX's step has no variable of TensorFlow, such as a generator's in tf.data
                    kind = _OTHER if on_jax and is_part(v, "Variable") else _PART
                    places.append((f"{path}{at}", ops.convert_to_numpy(v), v.assign, kind))
            places += [(f"{path}{at}", one, put, _PART) for at, one, put in _next_to({at for at, _ in found}, value)]
            for at, one in held:
                variables = [one.state] if is_part(one, "random.SeedGenerator") else one.variables
                variables = [v for v in variables if id(v) not in saved]
                weights = [ops.convert_to_numpy(v) for v in variables]
                kind = _WEIGHTS + next((of for of in ("Layer", "Metric") if is_part(one, of)), "others")
                places += [(f"{path}{at}", weights, partial(_assign, variables), kind)] if variables else []
    return places


def _lasting(places: list[Place]) -> dict[str, Any]:
    """Return the states, changed or not, of what modules hold, and of other variables outside of the model.

    They may outlive a fit, so another trial may change them before this one resumes.
    """
    held = [
        (path, value)
        for path, value, put, _ in places
        if is_global(path) or (_variable_of(put) is not None and not path.endswith(_SEED))
    ]
    small = [(path, value) for path, value in held if getattr(value, "nbytes", 0) <= objects.SMALL]
    return {path: objects.data_of(value) for path, value in small if objects.is_data(objects.mark(value))}


def _saved(model: Any) -> set[int]:
    of_optimizers = () if model is None else (v for one in optimizers_of(model).values() for v in one.variables)
    return {id(v) for v in (*getattr(model, "variables", ()), *of_optimizers)}


def _variable_of(put: Callable[[Any], object]) -> Any:
    """Return the variable of Keras or TensorFlow that a slot assigns; None if it is another slot."""
    variable = getattr(put, "__self__", None)
    return variable if is_variable(variable) else None


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
    elif ops.is_tensor(value) and not getattr(value, "is_leaf", False) and not is_variable(value):
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


def is_part(value: Any, *kinds: str) -> bool:
    """Return whether it is an object of one of these classes of Keras."""
    import keras

    return isinstance(value, attrgetter(*kinds)(keras))


_CODE = (type, types.FunctionType, types.MethodType, types.ModuleType)


def parts_in(value: Any, depth: int = 3, seen: set[int] | None = None) -> list[tuple[str, Any]]:
    """Return the variables and the parts of Keras that an attribute is or contains, with their places in it."""
    if is_variable(value) or is_part(value, *_WITH_VARIABLES):
        return [("", value)]
    if type(value).__module__.startswith("tensorflow.python.ops.") and is_variable(getattr(value, "state", None)):
        return [(_SEED, value.state)]  # a random generator
    seen = set() if seen is None else seen
    if not depth or id(value) in seen:
        return []
    seen.add(id(value))
    if (
        isinstance(value, (dict, list, tuple))
        and len(value) > _LONG
        and not parts_in(next(_items(value))[1], depth - 1)
    ):
        return []  # such as images
    inner = [(key, one) for key, one in _items(value) if type(one) not in objects.PLAIN]
    return [(f"/{key}{at}", part) for key, one in inner for at, part in parts_in(one, depth - 1, seen)]


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


def is_variable(value: Any) -> bool:
    """Return whether it is a variable of Keras or TensorFlow."""
    kind = type(value)  # a dict of settings may have any attribute: __getattr__ = dict.get
    return hasattr(kind, "assign") and hasattr(kind, "numpy")


def slots_of(name: str, owner: Any, seen: set[int]) -> list[Slot]:
    """Return the attributes of an object, or the variables of a function, and those of its functions."""
    if isinstance(owner, types.MethodType):
        slots: list[Slot] = []
        if id(owner.__self__) not in seen and objects.of_program(type(owner.__self__)):
            slots = [(f"{name}/self", owner.__self__, lambda value: None)]
    elif isinstance(owner, types.FunctionType):
        slots = [(f"{name}/{key}", *one) for key, one in objects.variables_of(owner).items()]
    else:
        hidden = _SKIPPED | (_CONFIGURED if "monitor_op" in vars(owner) else set())
        hidden |= _SET_BY_KERAS if is_part(owner, "callbacks.Callback") else set()
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
            found += slots_of(path, value, seen)
    return found


def functions_in(*roots: Any) -> dict[types.FunctionType, dict[str, Any]]:
    """Return the program's functions among some objects, and those that they name or hold, each with what it names.

    Named are variables of its module, and of other modules of the program, as "augment.crop".
    """
    found: dict[types.FunctionType, dict[str, Any]] = {}
    left = [*roots]
    while left:
        one = left.pop()
        one = one.fget if isinstance(one, property) else one
        one = one.__func__ if isinstance(one, (types.MethodType, staticmethod, classmethod)) else one
        if isinstance(one, types.FunctionType) and one not in found and is_own(one.__module__):
            names, module = names_in(one.__code__), one.__globals__
            named = {name: module[name] for name in sorted(names & module.keys())}
            for place, other in [*named.items()]:
                if isinstance(other, types.ModuleType) and is_own(other.__name__):
                    named |= {f"{place}.{name}": vars(other)[name] for name in sorted(names & vars(other).keys())}
            found[one] = named
            left += [*named.values(), *(value for value, _ in objects.variables_of(one).values())]
    return found


def _globals(name: str, owner: Any) -> list[Slot]:
    """Return the variables of Keras and the random generators in modules that the program's code of an owner names.

    Also those in lists and in objects of the program there.
    """
    own = (base for base in type(owner).__mro__ if is_own(base.__module__))
    code = [owner, *getattr(owner, "__dict__", {}).values(), *(one for base in own for one in vars(base).values())]
    named = {key: value for of in functions_in(*code).values() for key, value in of.items()}
    found: dict[str, Slot] = {}
    for key, value in named.items():
        if isinstance(value, _CODE) or type(value) in objects.PLAIN:
            continue
        path = f"{name}/{_GLOBAL}{key}"
        with suppress(Exception):  # an object of the program that raises where it is looked at, or a thread changes it
            for at, one in parts_in(value):
                if is_variable(one):
                    found[f"{path}{at}"] = f"{path}{at}", one, one.assign
                elif is_part(one, "random.SeedGenerator"):
                    found[f"{path}{at}"] = f"{path}{at}{_SEED}", one, _stays
            if randomness.is_generator(value) or type(value) in (list, tuple, dict) or objects.of_program(type(value)):
                for at, one in randomness.generators_in(value, depth=3, code=False).items():
                    if randomness.is_generator(one):
                        found[f"{path}{at[1:]}"] = f"{path}{at[1:]}", one, _stays
    return [*found.values()]


def _stays(value: Any) -> None:
    """Set nothing: a generator takes its state itself."""


def is_global(path: str) -> bool:
    return path.partition("/")[2].startswith(_GLOBAL)


def is_drawn(path: str, state: Any) -> bool:
    """Return whether the state of a place is that of a random generator."""
    return (is_global(path) and path.endswith(_SEED)) or (isinstance(state, dict) and state.get("is") == "generator")


def buffers_of(name: str, owner: Any) -> list[Slot]:
    """Return the buffers of a layer on torch that no file of Keras has.

    It has the persistent ones of a module of torch that Keras wraps. torch keeps the buffers of a layer in a private
    attribute. Without it, they would start again in a resumed fit.
    """
    from keras import backend

    if backend.backend() != "torch" or not is_part(owner, "Layer"):
        return []
    found = [(key, one, partial(setattr, owner, key)) for key, one in owner._buffers.items()]
    if is_part(owner, "layers.TorchModuleWrapper"):
        found += [(key, one, partial(_set_buffer, owner, key)) for key, one in unsaved_buffers(owner)]
    return [(f"{name}/{key}", None if one is None else one.detach(), put) for key, one, put in found]


def _set_buffer(layer: Any, name: str, value: Any) -> None:
    set_buffers(layer, {name: value})


@cache
def _of_layers() -> set[str]:
    """Return the attributes that Keras itself sets on a model or a layer."""
    import keras

    own = vars(keras.Sequential())
    return {*own, "optimizer", "history", "stop_training", "trainable", "built", "autocast"}


_EVALUATE = ("call", "test_step", "compute_loss", "compute_metrics", "update_state", "result")
_ADD = {"append", "appendleft", "extend", "clear", "add_", "copy_", "fill_", "mul_", "zero_"}  # the last, of tensors


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
    losses += [one for part in (model, *layers_of(model)) for one in vars(part).values() if is_part(one, "Loss")]
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
