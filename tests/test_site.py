"""The site of documentation, built as `make docs` does: whole, without a warning, and asking no other host."""

from __future__ import annotations

import ast
import importlib
import os
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from documents import PAGES, ROOT, blocks

INNER = {
    "haltune.cli",
    "haltune.log.problem",
    "haltune.ranks",
    "haltune.report.page",
    "haltune.space",
    "haltune.study",
}  # shown elsewhere
ASKS = {  # what a browser fetches by itself
    ("img", "src"), ("script", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src"),
    ("embed", "src"), ("object", "data"), ("image", "href"), ("use", "href"),
}  # fmt: skip
SHEETS = {"stylesheet", "preload", "preconnect", "dns-prefetch", "icon", "modulepreload", "prefetch"}


class Read(HTMLParser):
    """The links, automatic requests and anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.asked: list[str] = []
        self.anchors: set[str] = set()
        self.tags: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.asked += [value for name, value in given.items() if (tag, name) in ASKS]
        if tag == "link" and SHEETS & set(given.get("rel", "").split()):
            self.asked.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed")
    pytest.importorskip("material", reason="Material for MkDocs is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    folder = tmp_path_factory.mktemp("site") / "built"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def read(site: Path) -> dict[str, Read]:
    """The pages by their paths."""
    return {page.relative_to(site).as_posix(): Read(page) for page in site.rglob("*.html")}


def elsewhere(link: str) -> bool:
    return link.startswith(("http:", "https:", "//", "mailto:"))


@pytest.mark.slow  # mkdocs builds it
def test_every_link_leads_to_a_file_and_an_anchor(site: Path, read: dict[str, Read]) -> None:
    wrong = []
    for page, found in read.items():
        for link in found.links:
            path, _, anchor = unquote(link).partition("#")
            if elsewhere(link) or page == "404.html":  # whose links are those of a server's root
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            there = (site / target).is_file() and (not anchor or anchor in read[target].anchors)
            wrong += [] if there else [f"{page}: {link}"]
    assert wrong == []


@pytest.mark.slow  # mkdocs builds it
def test_no_page_asks_another_host(site: Path, read: dict[str, Read]) -> None:
    assert {f"{page}: {url}" for page, found in read.items() for url in found.asked if elsewhere(url)} == set()
    sheets = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    assert {name for name, text in sheets.items() if re.search(r"(url\(|@import\s*)[\"']?(https?:)?//", text)} == set()
    # what Material's script could load from elsewhere is asked for by these alone
    texts = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert not any('class="mermaid"' in text or "data-md-component=source" in text for text in texts)


@pytest.mark.slow  # mkdocs builds it
def test_every_public_name_has_its_entry(site: Path, read: dict[str, Read]) -> None:
    anchors = set().union(*(found.anchors for page, found in read.items() if page.startswith("reference/")))
    names = {f"{module}.{name}" for module, listed in shown() for name in listed}
    errors = importlib.import_module("haltune.errors")
    raised = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception | Warning)
    }
    names |= {f"haltune.{name}" if f"haltune.{name}" in names else f"haltune.errors.{name}" for name in raised}
    assert len(names) > 100
    assert names - anchors == set(), "each needs a line `::: its.name` on a page of docs/reference/"
    pages = (site / "reference").glob("*.html")  # a function and its module may have one name
    assert [page.name for page in pages if "doc-symbol-module" in page.read_text(encoding="utf-8")] == []
    assert {anchor for anchor in anchors if re.match(r"haltune[\w.]*\._", anchor)} == set()  # nothing that is private


def shown() -> Iterator[tuple[str, list[str]]]:
    """The modules that are for users, and their public names; from the files: some frameworks are slow to import."""
    package = Path(str(importlib.import_module("haltune").__file__)).parent
    for path in package.rglob("__init__.py"):
        name = ".".join(["haltune", *path.parent.relative_to(package).parts])
        for listed in re.findall(r"^__all__ = (\[.*?\])", path.read_text(encoding="utf-8"), re.M | re.S):
            if name not in INNER:
                yield name, re.findall(r'"(\w+)"', listed)
    inner = re.compile("base|behind|boosting|changes|functions|objects|reporter|resume_check|schedules|trainer_state")
    for path in (p for p in (package / "callbacks").glob("[!_]*.py") if not inner.fullmatch(p.stem)):
        told = re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.M)
        yield f"haltune.callbacks.{path.stem}", told


@pytest.mark.slow  # mkdocs builds it
def test_what_the_pages_import_has_its_entry(read: dict[str, Read]) -> None:
    anchors = set().union(*(found.anchors for page, found in read.items() if page.startswith("reference/")))
    imported = set()
    for page in PAGES:
        for block in blocks(page):
            for module, names in re.findall(r"^from (haltune[\w.]*) import (\([^)]*\)|[^\n]*)", block.text, re.M):
                imported |= {f"{module}.{name}" for name in re.findall(r"\w+", re.sub(r"#.*", "", names))}
    assert len(imported) > 30
    assert imported - anchors == set(), "each needs a line `::: its.name` on a page of docs/reference/"


FIGURES = ROOT / "docs" / "figures"
EXPERIMENTS, GALLERY = ROOT / "docs" / "experiments", ROOT / "docs" / "gallery"
ZOO = ROOT / "tests" / "foreign" / "zoo"


def test_each_figure_is_small_and_drawn_by_a_script_for_a_page() -> None:
    drawn = {path.stem for path in FIGURES.glob("*.svg")}
    measured = {path.stem for path in (EXPERIMENTS / "figures").glob("*.svg")}
    assert _shown([page for page in PAGES if page.parent not in (EXPERIMENTS, GALLERY)]) - measured == drawn
    assert {path.stem for path in FIGURES.glob("*.py")} == {*drawn, "drawing"} - {"film"}  # of the README's program
    assert _shown(list(EXPERIMENTS.glob("*.md"))) == measured
    runs = {path.stem for path in (GALLERY / "figures").glob("*.svg")}
    assert _shown(list(GALLERY.glob("*.md"))) == runs
    assert runs <= {path.stem for path in ZOO.glob("*.py")}
    folders = (FIGURES, EXPERIMENTS / "figures", GALLERY / "figures")
    sizes = [path.stat().st_size for folder in folders for path in folder.glob("*.svg")]
    assert max(sizes) < 60_000


def test_the_programs_of_the_gallery_are_those_of_the_zoo_each_with_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    gallery = importlib.import_module("gallery")
    page = (GALLERY / "index.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^## (\w+)$.*?^```py\n(.*?)^```", page, re.M | re.S))
    assert tuple(shown) == gallery.NAMES
    for name, text in shown.items():
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(gallery.program(name))), f"make gallery, for {name}"
        zoo, _ = gallery.program(name).split("\n\n\nstudy = ")
        assert zoo.replace(", Study\n", "\n", 1) in (ZOO / f"{name}.py").read_text(encoding="utf-8")
    files = re.findall(r"^Files: (.*)$", page, re.M)
    assert max(map(len, files)) < 400  # kinds, not single files
    assert "of='best'" not in re.sub(r"```py.*?```", "", page, flags=re.S)  # no log has advice that was not taken


def _shown(pages: list[Path]) -> set[str]:
    return {name for page in pages for name in re.findall(r"figures/(\w+)\.svg", page.read_text(encoding="utf-8"))}


@pytest.mark.slow  # mkdocs builds it
def test_pages_open_from_disk_and_are_searched_without_a_network(site: Path, browser: Any) -> None:
    said: list[str] = []
    for width, scheme in ((1280, "light"), (390, "dark")):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.append(asked.url) if elsewhere(asked.url) else None)
        for name in ("index", "how/default", "how/truvar", "reference/policies", "examples/digits.toml"):
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, width)
            scheme_shown = page.evaluate("document.body.dataset.mdColorScheme")
            assert scheme_shown == {"light": "default", "dark": "slate"}[scheme]
        if width == 1280:
            page.wait_for_load_state("load")
            page.click("input[name=query]")
            page.locator("input[name=query]").press_sequentially("deadline", delay=20)  # it listens to keys
            page.wait_for_selector(".md-search-result__link", state="attached")
            first = page.query_selector(".md-search-result__link")
            assert "howto/deadline.html" in str(first and first.get_attribute("href"))
        context.close()
    assert said == []


def test_the_pages_of_commands_and_keys_are_written_from_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("typer", reason="the command line is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    written = importlib.import_module("written")
    assert written.missing() == set()
    for name, page in written.PAGES.items():
        shown = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        assert shown == page(), "python docs/site/written.py"
