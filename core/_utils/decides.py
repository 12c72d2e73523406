"""What a loop of the program does with what it holds, such as a count or a list of losses: read from its source.

Most loops show or record such values, for a plot alone. One decides by them if they change what it trains, when it
ends, what it saves or what it reports. A value is followed through the variables and attributes that are set by it, and
through methods that return it, and no further. A function without source, as by `exec`, decides by nothing.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FunctionType

# functions and methods that show a value, or record it
_SHOWS = {"print", "debug", "info", "warning", "log", "write", "format", "append", "set_postfix", "set_description"}
_SHOWS |= {"add_scalar", "add_scalars", "log_metric", "log_metrics", "log_dict", "error", "exception", "critical"}
_SHOWS |= {"set_postfix_str", "set_description_str", "add_histogram", "add_image", "add_text", "writerow", "dump"}
_SHOWS |= {"extend", "add"}
# functions that only return something of their arguments; others may train by them
_PURE = {"float", "int", "bool", "str", "round", "min", "max", "abs", "sum", "len", "sorted", "list", "tuple", "dict"}
_PURE |= {"zip", "divmod", "isinstance", "any", "all", "timedelta"}
_MATHS = {"math", "np", "numpy", "jnp", "torch"}  # modules whose functions are pure, and `log` a logarithm
_OF_REPORT = {"metrics", "seconds", "validation", "cost"}  # by which nothing is judged
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SETS = (ast.Assign, ast.AugAssign, ast.AnnAssign)
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
        loop = _loop_in(_tree_of(code), inside, outside)
        return not _sets_first(loop, held) and any(_acts(one) for one, _ in _uses(loop, held))
    return False


@lru_cache(200)
def only_shows(codes: tuple[CodeType, ...], held: str, kind: type | None = None) -> bool:
    """Return whether functions do nothing with a number but show, record and count it.

    kind: of the object that has it, whose methods show it, too, and return it to what shows it; None: it is in a
    variable.
    """
    with suppress(Exception):  # as above
        owner = held.rpartition(".")[0]
        parts = [(_tree_of(code), owner) for code in codes] + ([] if kind is None else [*_methods_of(kind)])
        return _all_show(parts, held, kind)
    return False


@lru_cache(200)
def only_collects(code: CodeType, held: str, inside: int, outside: int | None) -> bool:
    """Return whether a loop only adds to data in a variable, or shows them; see `decides`.

    Functions within its function, or of its module, may read them, too.
    """
    with suppress(Exception):
        tree = _tree_of(code)
        functions = [one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.Lambda))]
        others = [one for one in functions if not _covers(one, inside)]
        return _all_show([(one, "") for one in (_loop_in(tree, inside, outside), *others)], held)
    return False


def _all_show(parts: Sequence[tuple[ast.AST, str]], held: str, kind: type | None = None) -> bool:
    """Return whether parts of the program only show what is held. parts: each with what it calls the owner, or ""."""
    attribute = held.rpartition(".")[2]
    names, left, shown = {attribute}, [attribute], kind is None
    while left:
        name = left.pop()
        for tree, of in parts:
            for use, handed in _uses(tree, f"{of}.{name}" if of else name):
                new, method = _set_in(use), None
                if handed and isinstance(use, (ast.Return, *_SETS)):
                    return False
                if isinstance(use, ast.Return) and isinstance(tree, ast.FunctionDef):
                    method = tree.name
                if method and method != "__str__":
                    new = {None if method.startswith("__") else f"{of}.{method}"}
                elif not isinstance(use, _SETS):
                    shown = True
                    if not (method or _shows(use)):
                        return False
                if not all(path and "[" not in path and path.rpartition(".")[0] in ("", of) for path in new):
                    return False
                fresh = {path.rpartition(".")[2] for path in new if path and "." in path} - names
                names, left = names | fresh, [*left, *fresh]
    # otherwise only its count reads it; what decays is read elsewhere, as by a function that gets the object
    return shown or (len(names) == 1 and not any(_scales(tree, f"{of}.{attribute}") for tree, of in parts))


def _scales(tree: ast.AST, held: str) -> bool:
    sets = [one for one in ast.walk(tree) if isinstance(one, _SETS) and held in _set_in(one)]
    return any(isinstance(part, (ast.Mult, ast.Div, ast.Pow)) for one in sets for part in ast.walk(one))


def _uses(tree: ast.AST, held: str) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the uses of what is held, and of the variables and attributes that are set by it.

    A use is the innermost part that shows it, or else the innermost statement. With each: whether it hands it to a
    function that may do something with it.
    """
    around, names, left = _around(tree), {held}, [held]
    while left:
        name = left.pop()
        for one in ast.walk(tree):
            if not isinstance(getattr(one, "ctx", None), ast.Load) or not _reads(one, name, around[one]):
                continue
            handed = False
            while not (isinstance(one, ast.stmt) or _is_shown(one)):
                one, part = around[one], one
                handed = handed or (isinstance(one, ast.Call) and part is not one.func and not _is_pure(one.func))
            yield one, handed
            new = {path for path in _set_in(one) if path} - names if isinstance(one, ast.stmt) else set()
            names, left = names | new, [*left, *new]


def _around(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}


def _reads(node: ast.AST, name: str, outer: ast.AST) -> bool:
    """Return whether a node is of that name, or a whole dict or list with it."""
    path = _path_of(node)
    return path == name or (path is not None and _within(name, path) and _path_of(outer) is None)


def _within(name: str, outer: str) -> bool:
    """Return whether a name is another one, or an entry of it."""
    return name == outer or name.startswith(f"{outer}[")


def _set_in(one: ast.AST) -> set[str | None]:
    """Return what a statement sets by what it reads; an `if`: what its branches set. None: an unknown place."""
    if isinstance(one, ast.If):
        return {path for part in ast.walk(one) if isinstance(part, _SETS) for path in _set_in(part)}
    if not isinstance(one, _SETS):
        return set()
    targets = one.targets if isinstance(one, ast.Assign) else [one.target]
    return {_path_of(part) for to in targets for part in (to.elts if isinstance(to, ast.Tuple) else [to])}


def _is_shown(node: ast.AST) -> bool:
    """Return whether a part of an expression is text, the last element, or an argument of what shows or records it."""
    if isinstance(node, ast.Call):
        return (
            not _is_pure(node.func) and (node.func.id if isinstance(node.func, ast.Name) else _method(node)) in _SHOWS
        )
    last = isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "-1"
    return last or isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in _OF_REPORT)


def _is_pure(function: ast.AST) -> bool:
    of_module = isinstance(function, ast.Attribute) and _path_of(function.value) in _MATHS
    return of_module or _path_of(function) in _PURE


def _shows(one: ast.AST) -> bool:
    """Return whether a use only shows something; an `if` may also set variables, such as a best value to print."""
    if isinstance(one, ast.If):
        return all(isinstance(part, (ast.Pass, *_SETS)) or _shows(part) for part in (*one.body, *one.orelse))
    return _is_shown(one.value if isinstance(one, ast.Expr) else one)


def _acts(one: ast.AST) -> bool:
    """Return whether a use leaves a loop, saves, steps, reports or sets a rate."""
    if isinstance(one, ast.If):
        inner = [part for branch in (*one.body, *one.orelse) for part in ast.walk(branch)]
        return any(isinstance(part, _LEAVES) or _method(part) in _ACTS for part in inner)
    rate = isinstance(one, ast.Assign) and any((path or "").endswith("['lr']") for path in _set_in(one))
    simple = isinstance(one, (ast.Expr, *_SETS))
    return rate or isinstance(one, ast.While) or (simple and any(_ACTS.get(_method(part)) for part in ast.walk(one)))


def _sets_first(loop: ast.AST, held: str) -> bool:
    """Return whether a loop sets or clears what is held on a line before all that read it."""
    around, sets, reads = _around(loop), [math.inf], [math.inf]
    for one in ast.walk(loop):
        if isinstance(one, _SETS) and any(path and _within(held, path) for path in _set_in(one)):
            (reads if isinstance(one, ast.AugAssign) else sets).append(one.end_lineno or 0)
        elif _path_of(one) == f"{held}.clear":
            sets.append(one.lineno)  # type: ignore[attr-defined]
        elif isinstance(getattr(one, "ctx", None), ast.Load) and _reads(one, held, around[one]):
            reads += [one.lineno] * (_path_of(around[one]) != f"{held}.clear")  # type: ignore[attr-defined]
    return min(sets) < min(reads)


def _methods_of(kind: type) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Yield the methods of a class, and what they call their object. A dataclass has some without source."""
    for method in [one for base in kind.__mro__ for one in vars(base).values()]:
        if isinstance(method, staticmethod | classmethod):
            continue
        method = method.fget if isinstance(method, property) else inspect.unwrap(method)
        if isinstance(method, FunctionType) and method.__name__ != "__repr__" and not _is_generated(method, kind):
            [function] = [one for one in _tree_of(method.__code__).body if isinstance(one, ast.FunctionDef)]
            yield function, function.args.args[0].arg


def _is_generated(method: FunctionType, kind: type) -> bool:
    special = method.__name__.startswith("__")
    return special and hasattr(kind, "__dataclass_fields__") and method.__code__.co_filename == "<string>"


def _tree_of(code: CodeType) -> ast.Module:
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    if code.co_name != "<module>":
        ast.increment_lineno(tree, code.co_firstlineno - 1)
    return tree


def _loop_in(tree: ast.AST, inside: int, outside: int | None) -> ast.stmt:
    """Return the outermost loop with a line, and without another one."""
    found = [one for one in ast.walk(tree) if isinstance(one, _LOOPS) and _covers(one, inside)]
    return next(one for one in found if outside is None or not _covers(one, outside))


def _covers(one: ast.stmt | ast.expr, line: int) -> bool:
    return one.lineno <= line <= (one.end_lineno or 0)


def _path_of(node: ast.AST) -> str | None:
    """Return how a variable, an attribute or an entry of a dict is written; None of other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (of := _path_of(node.value)) is not None:
        return f"{of}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return None if (of := _path_of(node.value)) is None else f"{of}[{node.slice.value!r}]"
    return None


def _method(node: ast.AST) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
