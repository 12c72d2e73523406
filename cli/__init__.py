"""haltune.cli: the command `haltune`, over launch and report."""

from __future__ import annotations

import importlib.util
import io
import sys

from haltune.errors import installing

__all__ = ["main"]


def main() -> None:
    """Run the command line. Exits with 2 if Typer or Rich is missing."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        extra = "watch" if "watch" in sys.argv[1:2] else "cli"
        print(f"haltune needs {' and '.join(missing)} here: {installing(extra)}", file=sys.stderr)
        raise SystemExit(2)
    from .app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that it cannot encode are shown as their code
            stream.reconfigure(errors="backslashreplace")

    app()
