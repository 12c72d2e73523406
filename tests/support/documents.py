"""The code on a page of documentation, pasted block after block into one program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


@dataclass(frozen=True)
class Block:
    """A block of Python, and its position."""

    page: Path
    line: int  # of the page, from 1, where its code begins
    text: str

    def __repr__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def run(self, names: dict[str, Any], instead: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run it among these names, with some of its text replaced; a replacement that finds nothing fails."""
        text = self.text
        for ours, theirs in (instead or {}).items():
            assert ours in text, f"{self!r} has no {ours!r}"
            text = text.replace(ours, theirs)
        exec(compile("\n" * (self.line - 1) + text, str(self.page), "exec"), names)
        return names


def blocks(page: Path | str, of: Callable[[str], bool] = lambda text: True) -> list[Block]:
    """The blocks of Python on a page, in their order."""
    page = ROOT / page
    whole = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", whole, flags=re.DOTALL | re.MULTILINE)
    return [Block(page, whole.count("\n", 0, m.start(1)) + 1, m[1]) for m in found if of(m[1])]
