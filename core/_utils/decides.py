"""Whether a loop of the program decides by what it records, such as a list of losses: read from its source.

Most loops record values for a plot alone. One decides by them if they change what it trains, when it ends, what it
saves or what it reports. A function without source, as by `exec`, decides by nothing.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FunctionType

# functions and methods that show a value, or record it
_SHOWS = {"print", "debug", "info", "warning", "log", "write", "format", "append", "set_postfix", "set_description"}
_SHOWS |= {"add_scalar", "add_scalars", "log_metric", "log_metrics", "log_dict"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_ACTS = {"report": True, "step": True, "save": False}  # methods -> whether their arguments count, too


@lru_cache(200)
def decides(code: CodeType, held: str, inside: int, outside: int | None) -> bool:
    """Return whether a loop reads what it holds before it sets it, and decides by it.

    Args:
        code: Of the function with the loop.
        held: What it holds, as it is written: "losses", "state['bad']", "self.losses".
        inside: A line of the loop.
        outside: A line of the function that is not in the loop, or None.
    """
    with suppress(Exception):  # no source, or one that has changed
        found = [one for one in ast.walk(_tree(code)) if isinstance(one, _LOOPS) and _covers(one, inside)]
        loop = next(one for one in found if outside is None or not _covers(one, outside))
        return _first(loop, held) == "read" and _acts_on(loop, {held})
    return False


@lru_cache(200)
def only_shows(code: CodeType, held: str, kind: type | None) -> bool:
    """Return whether a function does nothing with a number but show, record and count it.

    kind: of the object that has it, whose methods show it, too; None: it is in a variable.
    """
    attribute = held.rpartition(".")[2]
    with suppress(Exception):  # as above
        parts = [] if kind is None else [(function, f"{of}.{attribute}") for function, of in _methods(kind)]
        found = {_shows(tree, one) for tree, one in ((_tree(code), held), *parts)}
        return True in found and False not in found
    return False


def _shows(tree: ast.AST, held: str) -> bool | None:
    """Return whether code shows what is held, and does nothing else with it; None: it only counts it."""
    around = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    names, left, shows = {held}, [held], None
    while left:
        name = left.pop()
        for use in [one for one in ast.walk(tree) if _path(one) == name]:
            if not isinstance(use.ctx, ast.Load):  # type: ignore[attr-defined]
                continue
            one: ast.AST = use
            while not (isinstance(one, ast.stmt) or _is_shown(one)):
                one = around[one]
            if not isinstance(one, ast.stmt):
                shows = True
            elif isinstance(one, ast.Assign | ast.AugAssign) and all(isinstance(t, ast.Name) for t in _targets(one)):
                new = _set_in([one]) - names
                names, left = names | new, [*left, *new]
            elif not isinstance(one, ast.AugAssign) or _path(one.target) != name:
                return False
    return shows


def _targets(node: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _is_shown(node: ast.AST) -> bool:
    """Return whether a part of an expression is text, an argument of what shows or records it, or a further metric."""
    if isinstance(node, ast.Call):
        return (node.func.id if isinstance(node.func, ast.Name) else _method(node)) in _SHOWS
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "metrics")


@lru_cache(200)
def answers_by(kind: type, attribute: str) -> bool:
    """Return whether a method of a class returns a value, or none, depending on an attribute of its object."""
    with suppress(Exception):  # as above
        for function, of in _methods(kind):
            reads = _taken(function, {f"{of}.{attribute}"})
            if any(_returns(one, reads) for one in ast.walk(function)):
                return True
    return False


def _methods(kind: type) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Yield the methods of a class, and what they call their object."""
    for method in [one for base in kind.__mro__ for one in vars(base).values()]:
        method = method.fget if isinstance(method, property) else inspect.unwrap(method)
        if isinstance(method, FunctionType) and method.__name__ != "__repr__":
            [function] = [one for one in _tree(method.__code__).body if isinstance(one, ast.FunctionDef)]
            yield function, function.args.args[0].arg


def _tree(code: CodeType) -> ast.Module:
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    if code.co_name != "<module>":
        ast.increment_lineno(tree, code.co_firstlineno - 1)
    return tree


def _covers(loop: ast.AST, line: int) -> bool:
    assert isinstance(loop, _LOOPS)
    return loop.lineno <= line <= (loop.end_lineno or 0)


def _path(node: ast.AST) -> str | None:
    """Return how a variable, an attribute or an entry of a dict is written; None of other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (of := _path(node.value)) is not None:
        return f"{of}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return None if (of := _path(node.value)) is None else f"{of}[{node.slice.value!r}]"
    return None


def _uses(node: ast.AST | Iterable[ast.AST]) -> Iterator[tuple[str, bool]]:
    """Yield the paths in an expression, and whether each is read. None of text, the last element or a report."""
    if not isinstance(node, ast.AST):
        for one in node:
            yield from _uses(one)
    elif (path := _path(node)) is not None:
        yield path, isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]
    elif not (isinstance(node, ast.JoinedStr | ast.Lambda) or _is_last(node) or _method(node) in _ACTS):
        yield from _uses(ast.iter_child_nodes(node))


def _is_last(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "-1"


def _of(path: str, held: str) -> bool:
    """Return whether a path is of what is held, or is a dict or a list around it. An object is asked by its methods."""
    return _within(path, held) or held.startswith(f"{path}[")


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _reads(node: ast.AST | Iterable[ast.AST], held: Iterable[str]) -> bool:
    return any(reads and any(_of(path, one) for one in held) for path, reads in _uses(node))


def _first(node: ast.AST | list[ast.stmt], held: str) -> str | None:
    """Return whether code reads or sets first what is held: "read", "set" or None. Of two branches, "read" counts."""
    match node:
        case ast.If(test=test, body=body, orelse=other):
            either = {_first(body, held), _first(other, held)}
            return _first(test, held) or ("read" if "read" in either else "set" if either == {"set"} else None)
        case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() | ast.AugAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node, ast.AugAssign) and _path(node.target) == held:
                return "read"
            parts: list[ast.AST] = [*([node.value] if node.value is not None else ()), *targets]
        case ast.For() | ast.AsyncFor():
            parts = [node.iter, node.target, *node.body, *node.orelse]
        case ast.FunctionDef() | ast.Lambda():
            return None
        case list():
            parts = [*node]
        case _ if (path := _path(node)) is not None:
            if isinstance(getattr(node, "ctx", None), ast.Load) and path != f"{held}.clear":
                return "read" if _of(path, held) else None
            return "set" if _within(held, path.removesuffix(".clear")) else None
        case _:
            parts = [*ast.iter_child_nodes(node)]
    return next((found for one in parts if (found := _first(one, held)) is not None), None)


def _taken(node: ast.AST, held: set[str]) -> set[str]:
    """Return what is held, and the variables and attributes that are set by it, or where a test reads it."""
    found = set(held)
    while True:
        before = len(found)
        for one in ast.walk(node):
            if isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and one.value is not None:
                found |= _set_in([one]) if _reads(one.value, found) else set()
            elif isinstance(one, ast.If) and _reads(one.test, found):
                found |= _set_in([*one.body, *one.orelse])
        if len(found) == before:
            return found


def _set_in(statements: Sequence[ast.AST]) -> set[str]:
    nodes = (one for statement in statements for one in ast.walk(statement))
    return {path for one in nodes if isinstance(getattr(one, "ctx", None), ast.Store) and (path := _path(one))}


def _acts_on(loop: ast.AST, held: set[str]) -> bool:
    """Return whether a loop leaves itself, saves, steps, reports or sets a rate by what it holds."""
    reads = _taken(loop, held)
    for one in ast.walk(loop):
        match one:
            case ast.While(test=test) if _reads(test, reads):
                return True
            case ast.If(test=test) if _reads(test, reads):
                inner = (part for branch in (*one.body, *one.orelse) for part in ast.walk(branch))
                if any(isinstance(part, _LEAVES) or _method(part) in _ACTS for part in inner):
                    return True
            case ast.Call(args=args, keywords=words) if _ACTS.get(_method(one)):
                if _reads([*args, *(word.value for word in words if word.arg in (None, "value"))], reads):
                    return True
            case ast.Assign(targets=[target], value=value) if (_path(target) or "").endswith("['lr']"):
                if _reads(value, reads):
                    return True
    return False


def _method(node: ast.AST) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _returns(node: ast.AST, reads: set[str]) -> bool:
    """Return whether a node returns a value by what is read, or where a test reads it."""
    if isinstance(node, ast.Return):
        return node.value is not None and _reads(node.value, reads)
    if isinstance(node, ast.If) and _reads(node.test, reads):
        inner = [part for branch in (*node.body, *node.orelse) for part in ast.walk(branch)]
        return any(isinstance(part, ast.Return) and part.value is not None for part in inner)
    return False
