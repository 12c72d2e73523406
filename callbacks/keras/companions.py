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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from haltune._utils import generators
from haltune._utils.around import of_library
from haltune._utils.code import mentioned
from haltune.errors import NotSupported
from haltune.study.fits import weak

from .. import objects, plain
from ..changes import clocks, is_time
from . import places
from .optimizers import layers_of

_COPIES = 4  # of the model, as the best weights, a teacher and averages
_MADE = "made "  # before the mark of a model that a hook of the fit's start has made
_PLAIN = "plain "  # start of the mark of a number, a text or None
# attribute of a variable outside of models: the trial or fold whose fit has changed it, and its mark then
_LEFT = "_haltune_left"


def of_metrics(model: Any) -> dict[str, list[Any]]:
    """Return the variables of a model's metrics, by names. Keras resets them in each epoch; a user's may not.

    On TensorFlow those of compile() are built in the first step. Without these private names, what such a metric keeps
    over all epochs would start again in a resumed fit.
    """
    found: dict[str, list[Any]] = {}
    for one in (*model.metrics, *_given(model.metrics)):
        name = one.name
        while name in found:
            name += " again"
        found[name] = one.variables
    return found


def reset_unbuilt(model: Any) -> None:
    """Reset the metrics that compile() was given and the first step builds: Keras does not, in the next epoch."""
    for one in _given([one for one in model.metrics if not getattr(one, "built", True)]):
        one.reset_state()


def _given(metrics: Iterable[Any]) -> list[Any]:
    """Return the metrics that compile() was given, which it has put into these."""
    from keras import Metric, tree

    given = [getattr(one, f"_user_{kind}metrics", None) for one in metrics for kind in ("", "weighted_")]
    return [one for one in tree.flatten(given) if isinstance(one, Metric)]


def carried(model: Any) -> list[Any]:
    """Return what recurrent layers with stateful=True carry to the next batch: variables that no file of Keras has."""
    from keras import tree

    layers = [one for one in layers_of(model) if getattr(one, "stateful", False)]
    return [v for one in layers for v in tree.flatten(getattr(one, "states", None)) if places.is_variable(v)]


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
            state = None if objects.under_way(value) else objects.data_of(value, places.constants(), apart=self.arrays)
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
        for path, value, _, kind, *_ in self._places(new):
            self._note_array(path, value)
            self._marks[path] = plain.mark(value, places.constants())
            self._note(value, kind, self._marks[path])

    @property
    def _owners(self) -> dict[str, Any]:
        return {name: one for name, refer in self._references.items() if (one := refer()) is not None}

    def _places(self, owners: Mapping[str, Any] | None = None) -> list[places.Place]:
        return places.places_of(self._owners if owners is None else owners, self._of_data)

    def marks(self) -> dict[str, str]:
        """Return the present marks of what can be saved."""
        marks = {path: plain.mark(value, places.constants()) for path, value, *_ in self._places()}
        return {path: mark for path, mark in marks.items() if plain.is_data(mark) or plain.is_large(mark)}

    def hooks_were_called(self) -> None:
        """Take what callbacks have set as the fit started for a change, such as the learning rate that they have read.

        A resumed fit calls these hooks again, when the model has other weights and another learning rate. Not so times,
        which it takes again, and objects that are no data.
        """
        for path, value, _, kind, *_ in self._places():
            self._note_array(path, value)
            self._tensors |= {path} if kind == places.TENSORS else set()
            mark = plain.mark(value, places.constants())
            is_new = kind in (places.PART, places.OTHER) and path not in self._marks
            timed = is_time(value, self._clocks)
            if kind.startswith(places.WEIGHTS) or (is_new and not timed):
                if self._marks.get(path, _PLAIN).startswith(_PLAIN):  # there was nothing, or None
                    self._marks[path] = _MADE + mark
            elif timed or not (plain.is_data(mark) or plain.is_large(mark)):
                self._marks[path] = mark
            elif mark != (before := self._marks.get(path)):
                self._marks[path] = f"{plain.SET}{mark}"  # whatever it becomes is a change
                if path.partition("/")[0] not in self.same:
                    self._note(value, kind, mark, before)

    def _note(self, value: Any, kind: str, mark: str, before: str | None = None) -> None:
        if (plain.is_data(mark) or plain.is_large(mark)) and not kind.startswith(places.WEIGHTS):
            plain.note(value, self._trial, mark, before)

    def _note_array(self, path: str, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self._arrays[path] = weak(value)

    def called(self, path: str) -> str:
        """Return the name of an attribute for messages."""
        owner, _, attribute = path.partition("/")
        of = f"{type(self._owners.get(owner)).__name__}."
        called = attribute.removeprefix(places.GLOBAL) if places.is_global(path) else f"{of}{attribute}"
        return called.replace("/", ".")

    def changes(
        self, within: bool = True, of_callbacks: bool = True, apart: Apart | None = None, lasting: bool = False
    ) -> tuple[dict[str, Any], list[str]]:
        """Return what changed: path -> state; and why other changes cannot be saved.

        within: a fit, rather than at its end. of_callbacks: their attributes, too. apart: takes large arrays.
        lasting: return also the states, changed or not, of what another trial or another process may have otherwise.
        """
        from keras.utils import PyDataset

        if not self._references:
            return {}, []
        owners = self._owners.items()
        now = self._places(
            {name: one for name, one in owners if of_callbacks or f"{name}/".startswith(places.OF_MODEL)}
        )
        # a metric that its first update builds starts each epoch again, unless its class says otherwise
        now = [place for place in now if place.kind != f"{places.WEIGHTS}Metric" or place.path in self._marks]
        values = {place.path: place.value for place in now}
        states, lost, others = plain.changes(values, self._marks, constant=places.constants())
        if apart is not None:
            found = {path: apart.state_of(values[path]) for path in lost}
            states |= {path: state for path, state in found.items() if state is not None}
        # a dataset that is also an iterator is watched itself
        lost = [path for path in lost if path not in states and not isinstance(values[path], PyDataset)]
        for path in states.keys() & self._arrays.keys():
            array = values[path]  # other parts of the program may hold it, too, such as the data
            if array is not None and array is self._arrays[path]():
                states[path]["in place"] = True
        # data open files, and loaders replace their parts; but a table in place of another one has its rows shuffled
        tables = {path for path in others if path in self._marks and hasattr(values[path], "sample")}
        others = [p for p in others if not p.startswith(places.OF_MODEL) and (p in tables or not self._of_data)]
        # a model or a variable that was made since: a resumed fit has none that could be set
        known = {path for path, mark in self._marks.items() if within or not mark.startswith(_MADE)}
        made = [place.path for place in now if place.kind not in ("", places.TENSORS) and place.path not in known]
        # in place of a None, as a clone of the best model: a resumed fit has the None
        nothing = {path for path, mark in self._marks.items() if mark.removeprefix(plain.SET).startswith(_PLAIN)}
        assigned = [place.path for place in now if place.kind.startswith(places.WEIGHTS) or place.variable is not None]
        replaced = [path for path in assigned if path in nothing]
        compiled = [place.path for place in now if place.kind == places.OTHER and place.path in states]
        # later tensors: a resumed fit has nothing there that shows that the arrays were tensors
        later = states.keys() - self._tensors
        tensors = [place.path for place in now if place.kind == places.TENSORS and place.path in later]
        unread = [*lost, *others, *made, *replaced, *compiled, *tensors]
        states = _lasting(now) | states if lasting else states
        return states, [plain.unsaved(path.replace("/", "."), values[path]) for path in unread]

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
            begun[path] = now = plain.mark(value)
            of, left = vars(variable).get(_LEFT, (who, ""))
            found = self.called(path) if of != who and left == now else found
        self._begun = begun
        return found

    def leaves(self, who: str) -> None:
        """Note which variables outside of the model this fit has changed since its first epoch began."""
        begun = self._begun or {}
        for path, variable, value in self._variables():
            if (now := plain.mark(value)) != begun.get(path, now):
                vars(variable)[_LEFT] = who, now

    def _variables(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the variables outside of the model, without random generators: path, variable, value."""
        for place in self._places():
            if place.variable is not None and not place.path.endswith(places.SEED):
                yield place.path, place.variable, place.value

    def other_model(self) -> str | None:
        """Return the name of an attribute with another model of the program's, whose weights have changed, or None."""
        for path, value, _, kind, *_ in self._places():
            before = self._marks.get(path, "").removeprefix(_MADE)
            if kind == f"{places.WEIGHTS}Layer" and plain.mark(value) != before:
                return self.called(path)
        return None

    def put_back(self, changed: Mapping[str, Any], apart: Sequence[Any]) -> list[str]:
        """Set what changed; return the names of what cannot be set. apart: the large arrays.

        What trials share stays, such as a list of the program's own records. Data have none, nor have parts of a model
        and callbacks of Keras. Random generators of modules, which trials share, too, continue where the trial paused,
        until `give_back`.
        """
        from keras import Layer

        there, failed = {place.path: place for place in self._places()}, []
        for path, state in changed.items():
            owner, _, name = path.rpartition("/")
            try:
                if path in there:
                    _, value, put, *_ = there[path]
                    of = self._owners[path.partition("/")[0]]
                    own = self._of_data or isinstance(of, Layer) or type(of).__module__.startswith("keras.")
                    drawn = places.is_global(path) and (path.endswith(places.SEED) or generators.is_generator(value))
                    if own or drawn or not plain.is_shared(value, state, self._trial):
                        before = (plain.mark(value), objects.data_of(value)) if drawn else None
                        new = objects.put_back(state, value, apart=apart)
                        put(new)
                        if before is not None and plain.mark(new) != before[0]:  # another trial has drawn since
                            self._before.append((new, put, before[1]))
                elif owner in self._owners and not places.is_global(path):
                    setattr(self._owners[owner], name, objects.put_back(state, None, apart=apart))
            except NotSupported:  # built otherwise in this attempt
                failed.append(self.called(path))
        return failed

    def give_back(self) -> None:
        """State that the trial ends: the generators of modules continue where they were before `put_back`."""
        for value, put, state in self._before:
            put(objects.put_back(state, value))
        self._before = []


def _lasting(held: list[places.Place]) -> dict[str, Any]:
    """Return the states, changed or not, of what may outlive a fit, without large arrays."""
    small = [place for place in held if place.lasts and getattr(place.value, "nbytes", 0) <= objects.SMALL]
    return {of.path: objects.data_of(of.value) for of in small if plain.is_data(plain.mark(of.value))}


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
        numbers = _numbers(self._model())
        for path, (value, put) in numbers.items():
            compiled = self.numbers.setdefault(path, value)
            if self._before is None and _differ(value, compiled):
                self._later[path] = value
                put(compiled)
        before = self._before or {}
        changed = [path for path, (value, _) in numbers.items() if _differ(value, before.get(path, value))]
        return min([*changed, *self._later], default=None)

    def steps_end(self) -> None:
        """Set what callbacks have set, before they read it at the end of the epoch."""
        numbers, later, self._later = _numbers(self._model()) if self._later else {}, self._later, {}
        for path in later.keys() & numbers.keys():
            numbers[path][1](later[path])

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
    for name, one in () if model is None else places.owners_in(model, {}).items():
        read = _read_by(type(one))
        for key, value in places.held_by(one).items() if read else ():
            if type(value) in (bool, int, float) and key in read:
                found[f"{name}/{key}"] = value, partial(setattr, one, key)
    return found


_READ: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()  # class -> the names that its code uses


def _read_by(kind: type) -> set[str]:
    """Return the names that the code of a class uses: its own code, or that of Keras."""
    if kind not in _READ:
        _READ[kind] = mentioned(kind, libraries=of_library(kind.__module__))
    return _READ[kind]


_EVALUATE = ("call", "test_step", "compute_loss", "compute_metrics", "update_state", "result")
_ADD = {"append", "appendleft", "extend", "clear", "add_", "copy_", "fill_", "mul_", "zero_"}  # the last, of tensors


def evaluates_by(part: Any, name: str, parts: Iterable[Any]) -> bool:
    """Return whether the program's own code of a part of a model may read an attribute when the model is evaluated.

    name: that of an attribute, or of a variable of a module or a class in a path. parts: all own parts of the model,
    one of which may call another one as in training.
    """
    if name.startswith(places.GLOBAL):
        return name.removeprefix(places.GLOBAL).rstrip("'").rpartition(".")[2] in mentioned(type(part), _EVALUATE)
    if name not in mentioned(type(part), _EVALUATE, partial(_read, trains=True)):
        return False
    always = any(_TRAINS in mentioned(type(one), _EVALUATE, partial(_read, trains=True)) for one in parts)
    return always or name in mentioned(type(part), _EVALUATE, partial(_read, trains=False))


_TRAINS = "training=True"  # among the attributes that a code reads: a call with this argument


def _read(code: types.CodeType, trains: bool) -> set[str]:
    """Return the attributes that code reads, without those that it only sets or adds to, as self.seen.append(x).

    trains: also those that it reads in training alone.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):  # there is no source, or only a part of a statement
        return {*code.co_names}
    nodes = [*ast.walk(tree if trains else _Evaluation().visit(tree))]
    added, found = set(), set[str]()
    for node in nodes:
        match node:
            case ast.keyword(arg="training", value=ast.Constant(value=True)):
                found.add(_TRAINS)
                continue
            case ast.Call(func=ast.Attribute(value=whole, attr=name)) if name in _ADD:
                pass
            case ast.Subscript(value=whole, ctx=ast.Store()):
                pass
            case _:
                continue
        while isinstance(whole, ast.Subscript):
            whole = whole.value
        added.add(whole)
    read = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and n not in added}
    return found | read


class _Evaluation(ast.NodeTransformer):
    """Leaves out what a method does in training alone: behind `if training`, or `if not training: return x`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        for i, one in enumerate(node.body):
            if isinstance(one, ast.If) and _side(one.test) == "orelse" and isinstance(one.body[-1], ast.Return):
                del node.body[i + 1 :]
                break
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if side := _side(node.test):
            node.test = ast.Constant(None)  # of `training and ...` only the first part is read
            setattr(node, side, [ast.Pass()])
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if side := _side(node.test):
            node.test = ast.Constant(None)
            setattr(node, side, ast.Constant(None))
        return self.generic_visit(node)


def _side(test: ast.expr) -> str | None:
    """Return which side of a condition only a training reaches."""
    match test:
        case ast.Name(id="training"):
            return "body"
        case ast.BoolOp(op=ast.And(), values=[ast.Name(id="training"), *_]):
            return "body"
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id="training")):
            return "orelse"
    return None


def numbered(part: Any) -> tuple[str, int] | None:
    """Return Keras' name for the class of a metric or a layer, and its number; None if it has another name."""
    # as Keras makes a name from that of a class, with functions that it does not export
    words = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", type(part).__name__))
    stem = re.sub("([a-z])([A-Z])", r"\1_\2", words).lower()
    found = re.fullmatch(rf"{re.escape(stem)}(?:_([1-9]\d*))?", part.name)
    return found and (stem, int(found[1] or 0))
