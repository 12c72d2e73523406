"""State of callbacks that would carry over from one training to another.

A program may make a callback once, for all trials. Records of all trials are kept there, and stay the program's. But
patience that trial 0 has used up, or a list of its losses, would change the training of trial 1, whose values would not
be those of its configuration. So a fit is refused if such a callback starts it with what its last fit has changed.

A callback changes a training if its code sets something of the training, of an argument of a hook or of self.model, or
gives it to a function of its module that does. Only attributes that this code reads count; an attribute that it only
appends to is a record.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, cast
from weakref import WeakKeyDictionary

from haltune.errors import NotSupported
from haltune.study.port import Port

from . import objects

Marks = dict[str, str]  # attribute -> mark

# callback -> the trial or fold of its last fit, and what it held at its start and at its end
_FITS: WeakKeyDictionary[Any, tuple[str, Marks, Marks]] = WeakKeyDictionary()
_OF_LIBRARIES = {  # class of a library -> what it counts and does not reset
    "EarlyStopping": ("best_score", "wait_count", "stopping_history"),  # of Lightning, of XGBoost
    "EarlyStoppingCallback": ("early_stopping_patience_counter",),
}
_TRAINING = {"model", "trainer", "learn", "opt", "pl_module"}  # attributes of self that frameworks set
_PARTS = {"module", "net", "optimizer", "scheduler", "control"}  # of a training, as arguments of further methods
_HOOKS = ("on_", "_on_", "before_", "after_")
_LOGS = {"logs", "metrics", "outputs", "callback_metrics", "logged_metrics"}  # where values are logged
_SETS = ("set_", "load_", "freeze", "unfreeze", "assign", "stop")  # starts of names of methods that set something
_SHOWS = ("set_description", "set_postfix")  # of progress bars
_ENDS = {"_on_step", "after_iteration"}  # hooks that end a training by what they return
_RECORDS = {"append", "extend", "add", "update", "appendleft"}


def who(trial: Port) -> str:
    """Return what names a trial, or a fold of it, among those of all studies of this process."""
    return f"{trial.id} {getattr(trial, 'index', '')} {trial.config}"


def need_own_state(who: str, callbacks: Iterable[Any], starts: bool) -> None:
    """Raise NotSupported if a callback would change this training by what the one before left in it.

    Loops call it when a fit starts, after the hooks in which callbacks reset themselves.

    who: the trial or fold that trains, by the function of this name.
    starts: the training starts from its beginning. One that resumes has the callback's state from its checkpoint.
    """
    for callback in callbacks:
        with suppress(TypeError):  # it cannot be referred to weakly, or hashed
            (of, start, end), now = _FITS.get(callback, (who, {}, {})), _marks(callback)
            carried = [name for name in end if now.get(name) == end[name] != start.get(name)]
            if starts and carried and of != who:
                kind = type(callback).__name__
                raise NotSupported(
                    f"The {kind} object of this fit has been in another training, and its {carried[0]} would change "
                    "this one. Make one for each trial, within the loop, or reset it when a fit starts."
                )
            _FITS[callback] = who, now, {}


def leave(callbacks: Iterable[Any]) -> None:
    """Note what callbacks hold when a fit ends, for `need_own_state`."""
    for callback in callbacks:
        with suppress(TypeError):
            if callback in _FITS:
                _FITS[callback] = *_FITS[callback][:2], _marks(callback)


def _marks(callback: Any) -> Marks:
    held, kind = vars(callback), cast(type, type(callback))
    marks = {name: objects.mark(held[name]) for name in steering(kind) if name in held}
    return {name: mark for name, mark in marks.items() if objects.is_data(mark)}


@functools.cache
def steering(kind: type) -> frozenset[str]:
    """Return the attributes of a class by which its code may change a training; none of one that only records."""
    reads, changes, found = set[str](), False, set[str]()
    for base in kind.__mro__[:-1]:
        if objects.of_library(base.__module__):
            found |= {*_OF_LIBRARIES.get(base.__name__, ())}
            continue
        for name, method in vars(base).items():
            for code in (_Code(node) for node in _functions(method) if node.args.args):
                reads |= code.reads
                called = (getattr(method, "__globals__", {}).get(function) for function in code.calls)
                changes |= name != "__init__" and (code.changes or any(map(_changes_arguments, called)))
    return frozenset(found | (reads if changes else set()))


def _functions(function: Any) -> list[ast.FunctionDef]:
    """Return the syntax of a function and of those in it; none if its source is not known, or if it is no function."""
    with suppress(OSError, TypeError, SyntaxError):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return []


def _changes_arguments(function: Any) -> bool:
    program = inspect.isfunction(function) and not objects.of_library(function.__module__)
    return program and any(_Code(node, method_of_class=False).changes for node in _functions(function))


class _Code:
    """What a method reads of self, whether it changes the training, and the functions to which it gives a part of it.

    training: the names of the arguments, and of variables that refer to something in them or in self.model.
    """

    def __init__(self, method: ast.FunctionDef, method_of_class: bool = True) -> None:
        given = method.args
        names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
        names += [argument.arg for argument in (*given.kwonlyargs, given.vararg, given.kwarg) if argument is not None]
        self._own = names.pop(0) if method_of_class else ""
        hook = not method_of_class or method.name.startswith(_HOOKS)
        self._training = {*names} if hook else {*names} & (_TRAINING | _PARTS)
        nodes = [*ast.walk(method)]
        for _ in range(3):  # a variable may refer to another one that comes later in this walk
            for node in nodes:
                self._training |= {*self._referring(node)}
        returned = [node.value for node in nodes if isinstance(node, ast.Return)] if method.name in _ENDS else []
        ends = any(not isinstance(value, ast.Constant | type(None)) for value in returned)
        self.changes = ends or any(map(self._sets, nodes))
        self.calls = {
            node.func.id
            for node in nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if any(map(self._is_of_training, node.args))
        }
        records = {id(part) for node in nodes for part in self._recorded(node)}
        self.reads = {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in records
            if isinstance(node.value, ast.Name) and node.value.id == self._own
        }

    def _referring(self, node: ast.AST) -> Iterator[str]:
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.For):
            pairs = [(node.target, node.iter)]
        for target, value in pairs:
            if self._is_of_training(value) and isinstance(target, ast.Name | ast.Tuple | ast.List):
                yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))

    def _is_of_training(self, value: ast.expr) -> bool:
        """Return whether an expression refers to something in an argument, or in self.model; of logs it does not."""
        names = []
        while not isinstance(value, ast.Name):
            if isinstance(value, ast.Call):
                return any(map(self._is_of_training, (value.func, *value.args)))
            if not isinstance(value, (ast.Attribute, ast.Subscript)):
                return False
            names += [value.attr] if isinstance(value, ast.Attribute) else []
            value = value.value
        if _LOGS & {*names, value.id}:
            return False
        return value.id in self._training or (value.id == self._own and bool(_TRAINING & {*names[-1:]}))

    def _sets(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            return self._is_of_training(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            sets = name.startswith(_SETS) or (name.endswith("_") and not name.endswith("__"))
            return sets and not name.startswith(_SHOWS) and self._is_of_training(node.func.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            return self._is_of_training(node.args[0])
        return isinstance(node, ast.Raise) and node.exc is not None and "Cancel" in ast.unparse(node.exc)

    def _recorded(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the attribute of a statement that only records: self.losses.append(x), self.best[key] = x."""
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _RECORDS:
            yield call.func.value
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield node.value
