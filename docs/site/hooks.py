"""Hooks of the site: files of the repository, links to them, equations and figures in the page.

The pages are written to be read in the repository, too: links are paths there, an equation stands between dollars,
a figure is an SVG file. `on_config` sets the address, `on_files` adds files outside docs/, `on_page_markdown` rewrites
the links, and `on_page_content` writes equations as MathML and figures into the page, where they take its colours.
"""

from __future__ import annotations

import html
import logging
import posixpath
import re
import tomllib
from pathlib import Path

from cells import page as notebook
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "measured.md",
    "LICENSE": "licence.md",
    "examples": "examples/all.md",
}
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "benchmarks/README.md")
OUTSIDE = {MOVED[name]: name for name in (*PAGES, "LICENSE")}  # pages that lie there
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "sh"}
LINK = re.compile(r"(?<=\]\()([^)\s:]+)(?=\))")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r'<p><img alt="([^"]*)" src="([^"]*figures/[^"]+\.svg)" ?/?></p>')
EQUATION = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the site's address, as pyproject.toml has it, and let warnings count."""
    log = logging.getLogger("mkdocs")
    log.setLevel(min(log.level, logging.WARNING))  # --quiet hides warnings, and then a strict build passes with them
    config.site_url = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]["urls"]["Homepage"] + "/"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are files of the repository outside docs/, and those that notebooks are."""
    for path in (ROOT / "docs/notebooks").glob("*.ipynb"):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook(_text(path)) + _hosted(path)))
    for name in PAGES:
        files.append(File.generated(config, MOVED[name], content=_text(ROOT / name)))
    licence = f"---\nsearch: {{exclude: true}}\n---\n# Licence\n\n```\n{_text(ROOT / 'LICENSE')}\n```\n"
    files.append(File.generated(config, MOVED["LICENSE"], content=licence))
    shown = [path for path in sorted((ROOT / "examples").iterdir()) if path.suffix in LANGUAGES]
    for path in shown:
        files.append(File.generated(config, f"examples/{path.name}.md", content=_example(path)))
    files.append(File.generated(config, MOVED["examples"], content=_examples(shown)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that are paths of the repository into those of the site; code is left as it is."""
    there = OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pieces = FENCE.split(markdown)
    pieces[::2] = [LINK.sub(lambda found: _turned(found[1], there, page, files), text) for text in pieces[::2]]
    return "".join(pieces)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write equations as MathML, and figures into the page."""
    content = EQUATION.sub(_equation, content)
    return FIGURE.sub(lambda found: _figure(found, page, files), content)


def _turned(link: str, there: str, page: Page, files: Files) -> str:
    path, mark, anchor = link.partition("#")
    if not path:
        return link
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(there), path))
    if meant.startswith("docs/examples/"):
        return link  # of the page of examples, which is made here
    uri = MOVED.get(meant) or (f"{meant}.md" if meant.startswith("examples/") else meant.removeprefix("docs/")).replace(
        ".ipynb", ".md"
    )
    if files.get_file_from_path(uri) is None:
        return link  # the strict build reports it
    return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".") + mark + anchor


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _hosted(path: Path) -> str:
    """Return how to open a notebook elsewhere: its file, and its address at Colab where the repository has one."""
    words = f'\n<a href="{path.name}" download>Download this notebook</a> and open it in Jupyter, Colab or Kaggle.'
    repository = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]["urls"].get("Repository", "")
    if found := re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/?", repository):
        address = f"https://colab.research.google.com/github/{found[1]}/blob/main/docs/notebooks/{path.name}"
        words += f" Or [open it in Colab]({address})."
    return words + " Its first cell installs haltune from the package index.\n"


def _example(path: Path) -> str:
    return f"# {path.name}\n\n```{LANGUAGES[path.suffix]}\n{_text(path)}```\n"


def _examples(shown: list[Path]) -> str:
    """Return a table of the examples, each with its first sentence."""
    rows = [f"| [{path.name}]({path.name}.md) | {_sentence(path)} |" for path in shown]
    lines = [
        "# Examples",
        "",
        "Whole programs under 60 lines, run by the tests.",
        "",
        "| File | What it shows |",
        "| --- | --- |",
    ]
    return "\n".join([*lines, *rows, ""])


def _sentence(path: Path) -> str:
    text = _text(path)
    if path.suffix == ".py":
        found = re.match(r'"""(.*?)(?:\n\n|""")', text, re.DOTALL)
    else:
        found = re.search(r"^# (?!!)(.*?)$", text.removeprefix("#!/usr/bin/env bash\n"), re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _equation(found: re.Match[str]) -> str:
    inline, block = found[2], found[3]
    return convert(html.unescape(inline or block), display="inline" if inline else "block")


def _figure(found: re.Match[str], page: Page, files: Files) -> str:
    caption, source = html.unescape(found[1]), found[2]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), source))
    svg = re.sub(r"^<\?xml.*?\?>\s*", "", _text(ROOT / "docs" / path.removeprefix("../")))
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"
