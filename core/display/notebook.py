"""What a notebook shows of a study: small tables in HTML, in which nothing that a user typed is markup."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from haltune.display.terminal import in_notebook, visible


def escaped(text: object) -> str:
    """Text for HTML, attribute values included."""
    import html  # its table of entities would be a tenth of what `import haltune` takes

    return html.escape(visible(text), quote=True)


def facts(title: object, pairs: Iterable[tuple[object, object]]) -> str:
    """A title, and beneath it names with what they are; what is empty is left out."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escaped(name)}</th><td style="text-align:left">{escaped(told)}</td></tr>'
        for name, told in pairs
        if told != ""
    )
    return f"<b>{escaped(title)}</b><table>{rows}</table>"


def table(lines: Iterable[object], titles: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Lines, the first of them bold, and beneath them a table."""
    first, *others = map(escaped, lines)
    above = "<br>".join([f"<b>{first}</b>", *others])
    if not (rows := list(rows)):
        return f"<div>{above}</div>"
    head = "".join(f'<th style="text-align:left">{escaped(title)}</th>' for title in titles)
    cells = ("".join(f'<td style="text-align:left">{escaped(told)}</td>' for told in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<div>{above}</div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def lines(text: object) -> str:
    """Text whose lines and columns stay what they are."""
    return f"<pre>{escaped(text)}</pre>"


def display() -> Any:
    """IPython.display, where this program is a notebook's; else None."""
    return getattr(sys.modules["IPython"], "display", None) if in_notebook() else None
