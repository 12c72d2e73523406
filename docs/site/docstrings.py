"""Prepare haltune's docstrings for mkdocstrings: `Example:` is a section of examples, and `::` starts a program."""

from __future__ import annotations

import re
from textwrap import dedent, indent
from typing import Any

from griffe import Extension, Object

SHOWN = re.compile(r" Default: (?:-?\d[\d.e+-]*|True|False)\.$", re.MULTILINE)  # the entry of an argument shows it
PROGRAM = re.compile(r"^( *)(.*?)::\n\n((?:\1 +\S.*\n?|\n)+)", re.MULTILINE)


def reworded(text: str) -> str:
    """A docstring with its section of examples named as Google's style does, programs fenced."""
    text = SHOWN.sub("", text)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return PROGRAM.sub(_fenced, text + "\n").rstrip("\n")


def _fenced(found: re.Match[str]) -> str:
    margin, before, code = found.groups()
    block = f"```python\n{dedent(code).strip()}\n```"
    return f"{margin}{before}:\n\n{indent(block, margin)}\n" if before else f"{indent(block, margin)}\n"


class Docstrings(Extension):
    """Rewords each docstring as it is loaded."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = reworded(obj.docstring.value)
