"""What the program's code names: attributes, variables of modules, functions."""

from __future__ import annotations

import dis
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from .around import is_own, of_library, own_classes


def names_in(code: CodeType) -> set[str]:
    """Return the names of variables of its module and of attributes that a code uses, and the codes within it."""
    return {*code.co_names}.union(*(names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def mentioned(
    kind: type,
    methods: tuple[str, ...] | None = None,
    names_of: Callable[[CodeType], Iterable[str]] = attrgetter("co_names"),
    libraries: bool = False,
) -> set[str]:
    """Return the names that the program's own code of a class uses.

    methods: only the code of these, and of methods that they use. names_of: of a code, those to return. libraries: also
    their code.
    """
    own: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if libraries or not of_library(base.__module__):
            own |= vars(base)
    left: list[Any] = [*own.values()] if methods is None else [own[name] for name in methods if name in own]
    found: set[str] = set()
    followed: set[str] = set()
    while left:
        one = left.pop()
        code = getattr(inspect.unwrap(getattr(one, "fget", None) or getattr(one, "__func__", one)), "__code__", one)
        if isinstance(code, CodeType):
            names = {*code.co_names}
            left += [*code.co_consts, *(own[name] for name in names - followed if name in own)]
            followed |= names
            found |= {*names_of(code)}
    return found


def assigned(code: CodeType) -> set[str]:
    """Return the names of the attributes that a code assigns."""
    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}


def loaded(code: CodeType) -> set[str]:
    """Return the names of the attributes that a code reads."""
    return {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_ATTR", "LOAD_METHOD")}


def set_first(code: CodeType) -> set[str]:
    """Return the attributes that a method sets at each call before it reads them: they do not last."""
    found, read, before = set[str](), set[str](), None
    for step in dis.get_instructions(code):
        if "JUMP" in step.opname:
            break
        if step.opname == "LOAD_ATTR":
            read.add(step.argval)
        of = () if before is None else before.argval if isinstance(before.argval, tuple) else (before.argval,)
        if step.opname == "STORE_ATTR" and step.argval not in read and code.co_varnames[:1] == of[-1:]:
            found.add(step.argval)
        before = step
    return found


def _filled(code: CodeType) -> set[str]:
    """Return the names of the attributes that a code assigns something other than None."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("COPY", "SWAP")]
    behind_none = {i + 2 for i, one in enumerate(steps) if (one.opname, one.argval) == ("LOAD_CONST", None)}
    return {one.argval for i, one in enumerate(steps) if one.opname == "STORE_ATTR" and i not in behind_none}


def _tested(code: CodeType) -> set[str]:
    """Return the names of the attributes of which a code asks whether they are None, or empty."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("TO_BOOL", "COPY")]
    pairs = [(one, then) for one, then in itertools.pairwise(steps) if one.opname == "LOAD_ATTR"]
    return {
        one.argval for one, then in pairs if "JUMP" in then.opname or (then.opname, then.argval) == ("LOAD_CONST", None)
    }


_OPENED: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()


def opened_by(kind: type) -> set[str]:
    """Return the names of the attributes that the methods of a program's class set if they are None."""
    if kind not in _OPENED:
        _OPENED[kind] = found = set[str]()
        for method in {name for base in kind.__mro__ if not of_library(base.__module__) for name in vars(base)}:
            found |= mentioned(kind, (method,), _tested) & mentioned(kind, (method,), _filled)
    return _OPENED[kind]


# which is first: reading or setting

_OF_VARIABLES, _KIND = re.compile("(LOAD|STORE)_(FAST|NAME|GLOBAL|DEREF|ATTR)"), re.compile("LOAD|STORE")
_LEAVES = "JUMP_FORWARD", "JUMP_BACKWARD", "RETURN_", "RAISE_", "RERAISE"


def _uses_of(step: dis.Instruction) -> Iterator[tuple[str, str]]:
    """Yield the variables that an instruction reads or sets, and attributes with a dot: name, which."""
    cleared = step.opname.endswith("_AND_CLEAR")  # by a comprehension, from Python 3.12 on
    if not cleared and (found := _OF_VARIABLES.match(step.opname)):
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)  # Python 3.13 joins two
        for name, kind in zip(names, _KIND.findall(step.opname), strict=False):
            yield f".{name}" if found[2] == "ATTR" else name, kind


@lru_cache(100)
def carried_by(code: CodeType, place: int = -1) -> dict[str, bool]:
    """Return the variables that a function sets after an instruction, and whether it reads each before it sets it.

    Likewise the attributes that it sets, with a dot before their names.
    """
    reads: dict[str, bool] = {}  # whether one is read where it may not be set yet
    stored = {*code.co_cellvars, *code.co_freevars}  # another function may set these
    known: frozenset[str] | None = frozenset()  # set on each way to here; None: no way leads here
    ahead: dict[int, frozenset[str]] = {}  # the same, by the place to which a jump leads
    ends: dict[int, int] = {}  # a `for` -> where it ends: its body is taken to run
    begins, extends = 0, False  # of the present instruction, and whether it is only the start of one
    for step in dis.get_instructions(code):
        if step.offset <= place:
            continue
        begins, extends = begins if extends else step.offset, step.opname == "EXTENDED_ARG"
        if (other := ahead.pop(step.offset, None)) is not None:
            known = other if known is None else known & other
        for key, kind in _uses_of(step):
            reads[key] = reads.get(key, False) or (kind == "LOAD" and known is not None and key not in known)
            if kind == "STORE":
                stored, known = stored | {key}, None if known is None else known | {key}
        if step.opname == "FOR_ITER":
            ends[begins] = step.argval
        elif "JUMP" in step.opname and known is not None:
            to = ends.get(step.argval, step.argval)
            if to > step.offset:
                ahead[to] = ahead.get(to, known) & known
        if step.opname.startswith(_LEAVES):
            known = None
    return {key: read for key, read in reads.items() if key in stored}


@lru_cache(100)
def carried_within(code: CodeType) -> dict[str, bool]:
    """Return the same of variables of a function that functions within it set by `nonlocal`."""
    found: dict[str, bool] = {}
    for inner in [one for one in code.co_consts if isinstance(one, CodeType)]:
        stored = {step.argval for step in dis.get_instructions(inner) if step.opname == "STORE_DEREF"}
        carried = carried_by(inner) | carried_within(inner)
        found |= {name: carried[name] for name in stored & {*inner.co_freevars} & {*code.co_cellvars}}
    return found


def read_first(code: CodeType) -> set[str]:
    """Return the attributes that a method reads before it sets them."""
    uses = [use for step in dis.get_instructions(code) for use in _uses_of(step)]
    return {name[1:] for name, kind in dict(reversed(uses)).items() if kind == "LOAD" and name[0] == "."}


@lru_cache(1000)
def counted_globals(code: CodeType) -> frozenset[str]:
    """Return the variables of its module that a function reads, and then sets."""
    stored = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL"}
    return frozenset(name for name in stored if carried_by(code)[name])


# from code to what it names

CODE = (FunctionType, GeneratorType, FrameType, type, ModuleType)  # objects that are code, rather than of a class of it
_METHODS = (MethodType, property, staticmethod, classmethod)  # that have a function
# class -> the modules of its code, and the names there
_USES: WeakKeyDictionary[type, list[tuple[str, set[str]]]] = WeakKeyDictionary()


def functions_in(*roots: Any) -> dict[FunctionType, list[tuple[str, Any]]]:
    """Return the program's functions among some objects, and those that they name or hold, each with `named_by`."""
    found: dict[FunctionType, list[tuple[str, Any]]] = {}
    left = [*roots]
    while left:
        one = left.pop()
        one = _function_of(one) if isinstance(one, _METHODS) else one
        if isinstance(one, FunctionType) and one not in found and is_own(one.__module__):
            found[one] = named_by(one)
            left += [held for _, held in found[one]] + [cell.cell_contents for cell in cells_of(one).values()]
    return found


def named_by(value: Any) -> list[tuple[str, Any]]:
    """Return what the program's code of an object names in its module, and in modules and classes of the program there.

    The latter have names such as "augment.crop". Modules themselves are left out.

    value: a function, a generator that reads data, a frame, or an object, whose class has code.
    """
    uses = _uses(value)
    found = [(name, module[name]) for module, names in uses for name in sorted(names & module.keys())]
    names = set[str]().union(*(names for _, names in uses))
    for place, one in [*found]:
        kind = type(one)  # a lazy module, whose class is another one, is imported if isinstance asks it
        within: list[Any] = own_classes(one) if issubclass(kind, type) else []
        within += [one] if kind is ModuleType and is_own(one.__name__) else []
        found += [(f"{place}.{name}", vars(of)[name]) for of in within for name in sorted(names & vars(of).keys())]
    return [(name, one) for name, one in found if not issubclass(type(one), ModuleType)]


def _uses(value: Any) -> list[tuple[dict[str, Any], set[str]]]:
    """Return the variables of the modules of an object's code, and the names in this code."""
    if isinstance(value, FunctionType):
        return [(value.__globals__, names_in(value.__code__))] if is_own(value.__module__) else []
    if isinstance(value, GeneratorType):
        return [] if value.gi_frame is None else [(value.gi_frame.f_globals, names_in(value.gi_code))]
    if isinstance(value, FrameType):
        return [(value.f_globals, names_in(value.f_code))]
    if isinstance(value, CODE):
        return []
    if (kind := type(value)) not in _USES:
        held = [(of.__module__, one) for of in own_classes(kind) for one in vars(of).values()]
        methods = [(of, _function_of(one) if isinstance(one, _METHODS) else one) for of, one in held]
        inner = [(of, f) for of, one in methods if isinstance(one, FunctionType) for f in (one, inspect.unwrap(one))]
        _USES[kind] = [(of, names_in(f.__code__)) for of, f in dict.fromkeys(inner) if isinstance(f, FunctionType)]
    return [(vars(sys.modules[of]), names) for of, names in _USES[kind] if of in sys.modules]


def _function_of(method: Any) -> Any:
    return method.fget if isinstance(method, property) else method.__func__


def cells_of(function: FunctionType) -> dict[str, CellType]:
    """Return the variables of enclosing functions that a function uses, if they are set."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell for name, cell in cells if cell != CellType()}
