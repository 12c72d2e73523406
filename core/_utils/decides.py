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
_SHOWS |= {"add_scalar", "add_scalars", "log_metric", "log_metrics", "log_dict", "error", "exception", "critical"}
_SHOWS |= {"set_postfix_str", "set_description_str", "add_histogram", "add_image", "add_text", "writerow", "dump"}
_MATHS = {"math", "np", "numpy", "jnp", "torch"}  # modules whose `log` is a logarithm
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
        found = [one for one in ast.walk(tree_of(code)) if isinstance(one, _LOOPS) and _covers(one, inside)]
        loop = next(one for one in found if outside is None or not _covers(one, outside))
        return _first(loop, held) == "read" and _acts_on(loop, {held})
    return False


@lru_cache(200)
def only_shows(code: CodeType, held: str, kind: type | None) -> bool:
    """Return whether a function does nothing with a number but show, record and count it.

    kind: of the object that has it, whose methods show it, too, and return it to what shows it; None: it is in a
    variable.
    """
    with suppress(Exception):  # as above
        if kind is None:
            return _shows(tree_of(code), held, set()) is True
        owner, _, attribute = held.rpartition(".")
        parts, shows, names, left = [(tree_of(code), owner), *methods_of(kind)], False, {attribute}, [attribute]
        while left:
            name, more = left.pop(), set[str]()
            found = {_shows(tree, f"{of}.{name}", more, of) for tree, of in parts}
            if False in found:
                return False
            shows |= True in found
            names, left = names | more, [*left, *(more - names)]
        return shows
    return False


@lru_cache(200)
def in_module_only_shows(codes: tuple[CodeType, ...], held: str) -> bool:
    """Return whether the functions that name a variable of their module only show, record and count it."""
    with suppress(Exception):  # as above
        found = {_shows(tree_of(code), held, set()) for code in codes}
        return True in found and False not in found
    return False


def _shows(tree: ast.AST, held: str, more: set[str], of: str = "") -> bool | None:
    """Return whether code shows what is held, and does nothing else with it; None: it only counts it.

    more: takes attributes that are set by it, of an object `of`, and its method with this code, which returns it.
    """
    around = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    names, left, shows = {held}, [held], None
    while left:
        name = left.pop()
        for use in [one for one in ast.walk(tree) if path_of(one) == name]:
            if not isinstance(use.ctx, ast.Load):  # type: ignore[attr-defined]
                continue
            one: ast.AST = use
            while not (isinstance(one, ast.stmt) or _is_shown(one)):
                one = around[one]
            match one:
                case ast.Return() if isinstance(tree, ast.FunctionDef) and of:
                    shows = True if tree.name == "__str__" else shows
                    more |= {tree.name} - {"__str__"}
                    if tree.name.startswith("__") and tree.name != "__str__":
                        return False
                    continue
                case ast.Assign() | ast.AugAssign():
                    new = _set_in([one])
                case ast.If() if _records(one):
                    new, shows = _set_in([*one.body, *one.orelse]), True
                case ast.stmt():
                    return False
                case _:
                    shows = True
                    continue
            if isinstance(one, ast.Assign | ast.AugAssign) and not all(map(path_of, _targets(one))):
                return False
            for path in new - names:
                outer, _, inner = path.rpartition(".")
                if "[" in path or outer not in ("", of):
                    return False
                more |= {inner} if outer else set()
                names, left = names | {path}, [*left, path]
    return shows


def _records(one: ast.If) -> bool:
    """Return whether an `if` only shows something, and sets variables, such as a best value that is printed."""
    return all(
        (isinstance(part, ast.Expr) and _is_shown(part.value))
        or (isinstance(part, ast.Assign | ast.AugAssign) and all(map(path_of, _targets(part))))
        or (isinstance(part, ast.If) and _records(part))
        or isinstance(part, ast.Pass)
        for part in (*one.body, *one.orelse)
    )


def _targets(node: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]


def _is_shown(node: ast.AST) -> bool:
    """Return whether a part of an expression is text, an argument of what shows or records it, or a further metric."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "log" and path_of(node.func.value) in _MATHS:
            return False
        return (node.func.id if isinstance(node.func, ast.Name) else _method(node)) in _SHOWS
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "metrics")


@lru_cache(200)
def answers_by(kind: type, attribute: str) -> bool:
    """Return whether a method of a class returns a value, or none, depending on an attribute of its object."""
    with suppress(Exception):  # as above
        for function, of in methods_of(kind):
            reads = _taken(function, {f"{of}.{attribute}"})
            if any(_returns(one, reads) for one in ast.walk(function)):
                return True
    return False


def methods_of(kind: type) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Yield the methods of a class, and what they call their object. A dataclass has some without source."""
    for method in [one for base in kind.__mro__ for one in vars(base).values()]:
        if isinstance(method, staticmethod | classmethod):
            continue
        method = method.fget if isinstance(method, property) else inspect.unwrap(method)
        if isinstance(method, FunctionType) and method.__name__ != "__repr__" and not _is_generated(method, kind):
            [function] = [one for one in tree_of(method.__code__).body if isinstance(one, ast.FunctionDef)]
            yield function, function.args.args[0].arg


def _is_generated(method: FunctionType, kind: type) -> bool:
    special = method.__name__.startswith("__")
    return special and hasattr(kind, "__dataclass_fields__") and method.__code__.co_filename == "<string>"


def tree_of(code: CodeType) -> ast.Module:
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    if code.co_name != "<module>":
        ast.increment_lineno(tree, code.co_firstlineno - 1)
    return tree


def _covers(loop: ast.AST, line: int) -> bool:
    assert isinstance(loop, _LOOPS)
    return loop.lineno <= line <= (loop.end_lineno or 0)


def path_of(node: ast.AST) -> str | None:
    """Return how a variable, an attribute or an entry of a dict is written; None of other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (of := path_of(node.value)) is not None:
        return f"{of}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return None if (of := path_of(node.value)) is None else f"{of}[{node.slice.value!r}]"
    return None


def _uses(node: ast.AST | Iterable[ast.AST]) -> Iterator[tuple[str, bool]]:
    """Yield the paths in an expression, and whether each is read. None of text, the last element or a report."""
    if not isinstance(node, ast.AST):
        for one in node:
            yield from _uses(one)
    elif (path := path_of(node)) is not None:
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
            if isinstance(node, ast.AugAssign) and path_of(node.target) == held:
                return "read"
            parts: list[ast.AST] = [*([node.value] if node.value is not None else ()), *targets]
        case ast.For() | ast.AsyncFor():
            parts = [node.iter, node.target, *node.body, *node.orelse]
        case ast.FunctionDef() | ast.Lambda():
            return None
        case list():
            parts = [*node]
        case _ if (path := path_of(node)) is not None:
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
    return {path for one in nodes if isinstance(getattr(one, "ctx", None), ast.Store) and (path := path_of(one))}


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
            case ast.Assign(targets=[target], value=value) if (path_of(target) or "").endswith("['lr']"):
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
