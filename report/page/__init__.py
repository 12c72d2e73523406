"""The page about a search: one HTML file that needs no network, so that you can mail it.

Texts and tables are HTML. Figures are plain data, drawn by a small script in the page. The script draws only the subset
of Plotly's figures that haltune.report uses. So a page has some kilobytes and does not need Plotly.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from haltune._utils.disk import need_folder, write_text
from haltune.display import escaped
from haltune.errors import InvalidInput
from haltune.study.view import StudyView

from ..digest import Digest, Source
from ..figures.drawing import COLOURS
from . import words
from .items import Items, PageContents

ASSETS = Path(__file__).parent / "assets"
_DEFAULT = "study"  # the name of a study without a name
_MARK = '<meta name="generator" content="haltune">'
_SCRIPTS = (
    "scales.js", "sheet.js", "marks.js", "hand.js", "panel.js", "figure.js", "table.js", "compare.js",
    "page.js", "live.js",
)  # fmt: skip


def write(study: Source, path: str | os.PathLike[str] | None = None) -> Path:
    """Write the page about a search. The page is one file that needs no network.

    The file is replaced atomically: a reader sees either the old page or the new page.

    Args:
        study: A Study, or its history. A study is read up to its newest event.
        path: The file to write, in a folder that exists. Default: None, a file in the current folder named after the
            study, or after the store's file if the study has no name of its own.

    Returns:
        The full path of the page.

    Raises:
        InvalidInput: If the file cannot be written, if another file is there that is not a haltune page, or if `study`
            is not a study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> write(study).name
        'study.html'
    """
    if path is None:
        name, url = (study.name, study.store.url) if isinstance(study, StudyView) else ("", "")
        if name in ("", _DEFAULT) and url.startswith("sqlite:///"):
            name = Path(url.removeprefix("sqlite:///")).stem
        title = re.sub(r"[^\w. -]+", "_", name).strip(". ") or _DEFAULT
        path = f"{title.encode()[:100].decode(errors='ignore')}.html"  # a file's name has at most 255 bytes
    return keep_page(lambda: page(study), path)


def keep_page(make: Callable[[], str], path: str | os.PathLike[str]) -> Path:
    """Write a page atomically, over an older page or as a new file. Raises InvalidInput if any other file is there."""
    target = Path(path).absolute()
    need_folder(target)  # before the page is made, which takes time
    start = b""
    if os.path.isfile(target):  # a pipe would wait for a writer
        with suppress(OSError), target.open("rb") as file:  # if this fails, writing raises the error
            start = file.read(4096)
    if start and _MARK.encode() not in start:
        raise InvalidInput(
            f"{target} exists and is no page of haltune's. Name another file with -o page.html or report(path), "
            "or move this one away."
        )
    return write_text(make(), target)


def page(source: Source) -> str:
    """Return the page as HTML."""
    contents = PageContents(source)
    return shell(contents.facts, contents.items())


def shell(facts: Digest, items: Items, head: str = "", foot: str = "", bar: str = "") -> str:
    """Return the page of these items, with these parts for its head, its foot and its bar."""
    placed = {key: text for key, text in items.items() if "/" not in key}
    drawn = {key: item for key, item in items.items() if key.startswith(("figure/", "curve/", "form/", "order/"))}
    table = words.table(facts, [items[f"row/trial-{id}"] for id in items["order/"]])
    main = f"""<header id="head">{placed["head"]}</header>
<div id="stats">{placed["stats"]}</div>
<div id="outlook">{placed["outlook"]}</div>
<section id="best">{placed["best"]}</section>
<div class="figures" id="figures"></div>
<section id="audit">{placed["audit"]}</section>
{table}
<footer><div id="foot">{placed["foot"]}</div><div id="about">{placed["about"]}</div></footer>"""
    return document(f"{facts.name}: {facts.problem.goal.metric}", main, drawn, head, foot, bar)


def document(title: str, main: str, items: Items, head: str = "", foot: str = "", bar: str = "") -> str:
    """Return a page with these drawn items embedded. By default, head and foot embed the style and the script."""
    embedded = picture_json({"colours": COLOURS, "items": items})
    # JSON, escaped for a script element
    for letter, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u2028", "\\u2028")):
        embedded = embedded.replace(letter, code)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{_MARK}
<title>{escaped(title)}</title>
{head or f"<style>{style()}</style>"}
</head>
<body>
<main>
<div class="bar">{bar}<button type="button" id="theme" hidden>Dark</button></div>
{main}
<noscript><p>The figures need JavaScript; the rest of the page does not.</p></noscript>
</main>
<script type="application/json" id="items">{embedded}</script>
{foot or f"<script>{script()}</script>"}
</body>
</html>
"""


def picture_json(value: Any) -> str:
    """Return strict JSON with the digits that a figure needs. Numbers that are not finite become null."""
    return json.dumps(_round(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_round(item) for item in value]
    return value


@cache
def style() -> str:
    """Return the style sheet."""
    return (ASSETS / "page.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return all scripts as one that adds nothing to the global scope."""
    texts = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return f'(function () {{\n"use strict";\n{texts}\n}})();\n'
