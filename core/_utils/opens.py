"""Whether the program sets a value once, where it first needs it, such as data that it reads then: from its source.

A resumed trial does so again. A value that depends on the epoch, or on random numbers, counts as one that it keeps.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from functools import lru_cache
from types import CodeType

from .decides import methods_of, path_of, tree_of

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FILLS = {"append", "extend", "add", "insert", "update", "appendleft"}
_DRAWS = re.compile("rand|sample|normal|uniform|shuffle|choice|perm|next", re.IGNORECASE)


@lru_cache(200)
def opens(code: CodeType | None, held: str, kind: type | None) -> bool:
    """Return whether a value is set only where it is None, empty or False, and always to the same.

    code: of the function that has the variable, and the object; None: no function sets the object's attribute. held:
    the value, as it is written. kind: of the object that has it, or None.
    """
    with suppress(Exception):  # no source, or one that has changed
        attribute = held.rpartition(".")[2]
        parts: list[tuple[ast.AST, str]] = [] if code is None else [(tree_of(code), held)]
        if kind is not None:
            parts += [(tree, f"{of}.{attribute}") for tree, of in methods_of(kind) if tree.name != "__init__"]
        found = [_opens_by(tree, path, is_method=i > 0 or code is None) for i, (tree, path) in enumerate(parts)]
        return True in found and False not in found
    return False


def _opens_by(tree: ast.AST, held: str, is_method: bool) -> bool | None:
    asked = {_tests(one.test) for one in ast.walk(tree) if isinstance(one, ast.If)} - {None, held}
    flags = [flag for flag in sorted(map(str, asked)) if _opens(tree, flag, is_method)]
    found = {_opens(tree, held, is_method, flag) for flag in (None, *flags)}
    return True if True in found else None if None in found else False


def _opens(tree: ast.AST, held: str, is_method: bool, flag: str | None = None) -> bool | None:
    """Return whether a function sets a value so, each time; None: it does not set it.

    flag: another value, that is set so, and tells whether this one is.
    """
    around = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    changing = _changing(tree) if not is_method else {one.arg for one in ast.walk(tree) if isinstance(one, ast.arg)}
    changing.discard(held.partition(".")[0])
    opened = None
    for one in [one for one in ast.walk(tree) if _sets(one, held)]:
        ways = [one]
        while ways[-1] in around:
            ways.append(around[ways[-1]])
        in_loop = any(isinstance(way, _LOOPS) for way in ways)
        if not in_loop and not is_method:
            continue  # where it starts
        tests = [way for way in ways if isinstance(way, ast.If) and _tests(way.test) in (held, flag)]
        if not tests or tests[0].orelse or any(map(_draws, tests[0].body)) or _names(tests[0].body) & changing:
            return False
        opened = True
    return opened


def _changing(tree: ast.AST) -> set[str]:
    """Return the variables that a loop sets."""
    loops = [one for one in ast.walk(tree) if isinstance(one, _LOOPS)]
    nodes = [node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _sets(node: ast.AST, held: str) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS and path_of(node.func.value) == held
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(path_of(part) == held for target in targets for part in ast.walk(target))


def _tests(test: ast.AST) -> str | None:
    """Return the value of which a test asks whether it is None or empty, and nothing else."""
    match test:
        case (
            ast.UnaryOp(op=ast.Not(), operand=one)
            | ast.Compare(left=one, ops=[ast.Is()], comparators=[ast.Constant(value=None)])
        ):
            return path_of(one)
    return None


def _draws(node: ast.AST) -> bool:
    return _DRAWS.search(ast.unparse(node)) is not None


def _names(body: list[ast.stmt]) -> set[str]:
    nodes = [node for one in body for node in ast.walk(one) if isinstance(node, ast.Name)]
    stored = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes if isinstance(node.ctx, ast.Load)} - stored
