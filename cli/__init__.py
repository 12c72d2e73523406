"""haltune.cli: the command `haltune`, over launch and report."""

from __future__ import annotations

import importlib.util
import io
import sys
import warnings

from haltune.errors import HaltuneWarning, installing

__all__ = ["main"]


def main() -> None:
    """Run the command line. Exits with 2 if Typer or Rich is missing."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        extra = "watch" if "watch" in sys.argv[1:2] else "cli"
        print(f"haltune needs {' and '.join(missing)} here: {installing(extra)}", file=sys.stderr)
        raise SystemExit(2)
    from .app import app

    with_place = warnings.formatwarning

    def without_place(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if issubclass(category, HaltuneWarning):
            return f"haltune: {message}\n"
        return with_place(message, category, filename, lineno, line)

    warnings.formatwarning = without_place  # no line of a user's program caused it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that it cannot encode are shown as their code
            stream.reconfigure(errors="backslashreplace")

    app()
