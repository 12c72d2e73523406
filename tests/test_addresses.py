"""The addresses that messages name: pages of the site, which an installed package lacks."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from haltune.errors import SITE, documented

ROOT = Path(__file__).parents[1]
FOLDERS = ("core", "callbacks", "launch", "report", "bridges", "cli")
PLACED = ("pyproject.toml", "CITATION.cff", ".ci/conda/recipe.yaml", ".github/ISSUE_TEMPLATE/config.yml")


def nodes(pattern: str) -> Iterator[tuple[str, ast.AST]]:
    """What the files of the package hold that have this pattern; to parse all of them takes seconds."""
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        if re.search(pattern, text := path.read_text(encoding="utf-8")):
            name = path.relative_to(ROOT).as_posix()
            yield from ((name, node) for node in ast.walk(ast.parse(text)))


NOT_INSTALLED = r"\bdocs/\S|\b\w+\.md\b"


def test_no_text_of_the_package_names_a_file_that_is_not_installed() -> None:
    texts = ((path, n) for path, n in nodes(NOT_INSTALLED) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    named = [(path, n) for path, n in texts if re.search(NOT_INSTALLED, str(n.value))]
    assert [f"{path}:{n.lineno}" for path, n in named] == []


def test_each_page_that_a_message_names_is_there_with_its_anchor() -> None:
    calls = ((path, n) for path, n in nodes(r"documented\(") if isinstance(n, ast.Call))
    naming = [(path, n) for path, n in calls if getattr(n.func, "id", "") == "documented"]
    assert naming
    for file, call in naming:
        (page,) = call.args
        where = f"{file}:{call.lineno}"
        assert isinstance(page, ast.Constant), f"{where}: a page is a literal, so that this test reads it"
        path, _, anchor = page.value.partition("#")
        text = (ROOT / "docs" / f"{path}.md").read_text(encoding="utf-8")
        heads = re.findall(r"^#+ (.*?)(?: *\{ *#([\w-]+) *\})?$", text, re.MULTILINE)
        anchors = {
            given or re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head.lower()).strip()) for head, given in heads
        }
        assert not anchor or anchor in anchors, where
        assert documented(page.value) == f"{SITE}/{path}.html" + (f"#{anchor}" if anchor else ""), where


def test_the_address_of_the_site_is_the_same_wherever_it_is_written() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Homepage"] == SITE
    host = SITE.split("/")[2]
    for name in PLACED:
        written = re.findall(r"https://[^\s\"'<>)]+", (ROOT / name).read_text(encoding="utf-8"))
        ours = [url for url in written if url.startswith(SITE)]
        assert ours, name
        assert [url for url in written if host in url and url not in ours] == [], name
