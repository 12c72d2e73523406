"""What a program imports, read from its text: nothing is imported or run to find out.

In the order of the text, the program's own files followed, until something may change what an import does: a mention
of os.environ or of sys.path. Imports within functions and under conditions are left out.
"""

from __future__ import annotations

import ast
from pathlib import Path

_TURNS = frozenset({"environ", "putenv", "unsetenv", "load_dotenv", "meta_path", "path_hooks"})
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def imports_of(program: Path, root: Path) -> list[str]:
    """Modules of others that a program imports; "a:b" for `from a import b`.

    root: the folder that its own modules are imported from.

    Raises OSError, SyntaxError and ValueError for a file that is no program.
    """
    reading = _ImportScan(root)
    reading.file(program)
    return list(dict.fromkeys(reading.found))


class _ImportScan:
    def __init__(self, root: Path) -> None:
        self.found: list[str] = []
        self._root, self._seen = root, set[Path]()

    def file(self, path: Path) -> bool:
        """Read a file; False where nothing after it counts."""
        if path in self._seen:
            return True
        self._seen.add(path)
        return self._block(ast.parse(path.read_bytes()).body, path)

    def _block(self, statements: list[ast.stmt], path: Path) -> bool:
        return all(self._statement(s, path) for s in statements)

    def _statement(self, s: ast.stmt, path: Path) -> bool:
        if isinstance(s, ast.Import):
            return all(self._module(alias.name, []) for alias in s.names)
        if isinstance(s, ast.ImportFrom):
            names = [alias.name for alias in s.names if alias.name != "*"]
            return self._module(self._absolute(s, path), names)
        if isinstance(s, ast.Try):
            return self._block(s.body, path)
        return isinstance(s, _DEFINES) or not any(map(_turns, ast.walk(s)))

    def _absolute(self, s: ast.ImportFrom, path: Path) -> str:
        if not s.level:
            return s.module or ""
        package = path.relative_to(self._root).parts[: -s.level]
        return ".".join([*package, *([s.module] if s.module else [])])

    def _module(self, name: str, members: list[str]) -> bool:
        own = [*self._own(name), *(f for m in members for f in self._own(f"{name}.{m}"))]
        if own:
            return all(self.file(path) for path in own)
        self.found += [name, *(f"{name}:{m}" for m in members)] if name else []
        return True

    def _own(self, name: str) -> list[Path]:
        """The program's own files that an import of this name runs."""
        parts, found = [part for part in name.split(".") if part], []
        for n in range(1, len(parts) + 1):
            place = self._root.joinpath(*parts[:n])
            found += [p for p in (place / "__init__.py", place.with_name(f"{place.name}.py")) if p.is_file()][
                :1
            ]
        return found


def _turns(node: ast.AST) -> bool:
    """Whether a piece of a program may change what imports after it do."""
    if isinstance(node, ast.Attribute):
        return node.attr in _TURNS or (node.attr == "path" and getattr(node.value, "id", "") == "sys")
    return isinstance(node, ast.Name) and node.id in _TURNS
