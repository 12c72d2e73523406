"""The README: its length, and its moving picture, which shows all of the search where nothing moves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT

FILM = ROOT / "docs" / "figures" / "film.svg"


def shown(browser: Any, motion: str) -> Any:
    context = browser.new_context(viewport={"width": 760, "height": 360}, reduced_motion=motion, offline=True)
    page = context.new_page()
    page.goto(FILM.as_uri())
    return page


def seen(page: Any, seconds: float) -> list[str]:
    """The parts that are there so many seconds after its start, lines that have begun among them."""
    page.evaluate(f"document.getAnimations().forEach((a) => {{ a.pause(); a.currentTime = {1000 * seconds}; }})")
    there: list[str] = page.evaluate("""[...document.querySelectorAll(".film > *")].filter((part) => {
        const look = getComputedStyle(part);
        return look.opacity === "1" && parseFloat(look.strokeDashoffset) < 1;
    }).map((part) => part.outerHTML)""")
    return there


def test_it_is_still_and_whole_for_a_reader_who_prefers_less_motion(browser: Any) -> None:
    still, moving = shown(browser, "reduce"), shown(browser, "no-preference")
    assert still.evaluate("document.getAnimations().length") == 0
    whole = seen(still, 0)
    first, later, last = (seen(moving, seconds) for seconds in (0, 5, 19.9))
    assert len(first) < len(later) < len(last)
    assert last == whole
    assert [part for part in whole if "The search is over" in part] != []
    for page in (still, moving):
        page.context.close()


def test_the_best_that_it_shows_never_falls() -> None:
    values = [float(value) for value in re.findall(r" epochs, best ([\d.]+)<", FILM.read_text(encoding="utf-8"))]
    assert len(values) > 9
    assert values == sorted(values)


def test_its_words_are_the_alternative_texts_of_the_pages() -> None:
    text = FILM.read_text(encoding="utf-8")
    assert len(text) < 500_000
    words = re.findall(r'<svg [^>]*aria-label="([^"]*)"', text)
    for page in ("README.md", "docs/index.md"):
        assert re.findall(r"!\[([^\]]*)\]\([\w/]*film\.svg\)", (ROOT / page).read_text(encoding="utf-8")) == words


COLUMN = """<!DOCTYPE html><base href="{}/"><style>/* that of a repository's page */
body {{ width: 830px; margin: 0; font: 16px/1.5 Helvetica, sans-serif; }}
h1, h2 {{ margin: 24px 0 16px; padding-bottom: 0.3em; line-height: 1.25; }} h1:first-of-type {{ margin-top: 0; }}
h1 {{ font-size: 2em; }} h2 {{ font-size: 1.5em; }}
p, pre, ul, details {{ margin: 0 0 16px; }} ul {{ padding-left: 2em; }} li + li {{ margin-top: 4px; }}
pre {{ padding: 16px; font: 13.6px/1.45 monospace; overflow: auto; }} pre code {{ font: inherit; }}
img {{ max-width: 100%; }} img[src^=http] {{ width: 110px; height: 20px; }}
</style>"""


def test_the_readme_takes_at_most_a_screen_and_a_half(browser: Any, tmp_path: Path) -> None:
    markdown = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")
    text = markdown.MarkdownIt().render((ROOT / "README.md").read_text(encoding="utf-8"))
    shown = tmp_path / "readme.html"
    shown.write_text(COLUMN.format(ROOT.as_uri()) + text, encoding="utf-8")
    page = browser.new_page(viewport={"width": 830, "height": 1080})
    page.goto(shown.as_uri(), wait_until="domcontentloaded")  # the badges are on another host
    page.wait_for_function("document.querySelector('p > img[src*=film]').complete")
    assert page.evaluate("document.body.scrollHeight") <= 1620
    page.close()
