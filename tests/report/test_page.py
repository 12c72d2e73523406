"""The page: self-contained, escaped, written at once."""

import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from told import a_search, tell_trial, told
from worlds import search, small_study

from haltune import Choice, Float, HaltuneError, Maximize, Problem, Space
from haltune.events import Status
from haltune.policies import RandomSearch
from haltune.report import write
from haltune.report.wording import duration


class Seen(HTMLParser):
    """What a browser would see: tags, attributes, and text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.handlers, self.text, self._inside = [], [], [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._inside = tag
        self.links += [v for k, v in attrs if k in ("src", "href", "srcset", "action", "data")]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data


def page_of(history, tmp_path):
    return write(history, tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_needs_no_network(tmp_path):
    page = page_of(a_search(), tmp_path)
    seen = Seen(page)
    assert seen.links == []
    assert "@import" not in page.split("<body>")[0]
    assert "Plotly.newPlot" in page
    assert "plotly.js v" in page  # the library itself


def test_the_page_offers_to_upload_nothing(tmp_path):
    drawn = page_of(a_search(), tmp_path).rsplit("Plotly.newPlot", 1)[1]  # data, layout, options
    assert '"showSendToCloud": false' in drawn
    assert "http" not in drawn


def test_the_page_tells_the_result_and_what_was_saved(tmp_path):
    text = re.sub(r"\s+", " ", Seen(page_of(a_search(), tmp_path)).text)
    assert "0.95 highest acc" in text
    assert "Best configuration trial 0, at epoch 10 lr0.25" in text
    assert "15 epochs trained" in text  # 10 + 2 + 3
    assert "8 epochs saved" in text  # of the one that was stopped; the one that failed saved nothing
    assert "about 16 s" in text  # 8 epochs of 2 seconds
    assert "35% saved" in text  # 8 of 23
    assert "RuntimeError: boom" in text


def test_what_a_user_typed_is_text_and_never_markup(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&%{y}"
    history = told(Problem(Space({evil: Choice(["plain", evil])}), Maximize(evil, (0, 1)), 10))
    tell_trial(history, [0.5] * 10, config={evil: "plain"}, proposed=evil, tags={"level": evil})
    tell_trial(history, [0.2, 0.1], Status.STOPPED, {evil: evil}, evil)
    tell_trial(history, [0.2], Status.FAILED, {evil: evil}, error=evil)
    page, harmless = page_of(history, tmp_path), page_of(a_search(), tmp_path)
    seen, expected = Seen(page), Seen(harmless)
    for tag in ("script", "img", "style", "tr"):
        assert seen.tags.count(tag) == expected.tags.count(tag)
    assert seen.links == seen.handlers == []
    assert evil in seen.text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.44, "0.4 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"),
        (2062, "34 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min"),
    ],
)  # fmt: skip
def test_durations_are_written_as_people_say_them(seconds, words):
    assert duration(seconds) == words


def test_many_parameters_share_one_column(tmp_path):
    names = [f"p{i}" for i in range(30)]
    history = told(Problem(Space({n: Float(0, 1) for n in names}), Maximize("acc"), 10))
    tell_trial(history, [0.1], config=dict.fromkeys(names, 0.5))
    seen = Seen(page_of(history, tmp_path))
    assert seen.tags.count("th") == 6
    assert "p29=0.5" in seen.text


@pytest.mark.parametrize(
    "history",
    [
        told(),
        tell_trial(told(), [], None),
        tell_trial(told(), [math.nan, -math.inf], Status.STOPPED),
        tell_trial(told(Problem(Space({"lr": Float(0, 1)}), Maximize("acc"), None)), [0.5, 0.6]),
        tell_trial(told(Problem(Space({"lr": Float(0, 1)}), Maximize("acc"), 1)), [0.5]),
    ],
    ids=["no trial", "no report", "nothing finite", "no horizon", "one epoch"],
)
def test_there_is_always_a_page(history, tmp_path):
    assert "Plotly.newPlot" in page_of(history, tmp_path)


def test_hundreds_of_trials_have_a_row_each(tmp_path):
    history = told()
    for i in range(300):
        tell_trial(history, [i / 1000, i / 500], Status.STOPPED)
    assert Seen(page_of(history, tmp_path)).tags.count("tr") == 301


def test_a_study_that_is_over_says_why(tmp_path):
    study = search(small_study(RandomSearch(trials=2)))
    text = Seen(page_of(study, tmp_path)).text
    assert "The search is over: all 2 random configurations were started." in text


def test_the_same_history_gives_the_same_page(tmp_path):
    assert page_of(a_search(), tmp_path) == page_of(a_search(), tmp_path)


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    target = write(told(), tmp_path / "page.html")
    before = target.read_bytes()

    def broken(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(HaltuneError, match=r"cannot write .*page\.html: the disk is gone; name a file"):
        write(a_search(), target)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(HaltuneError, match="no folder"):
        write(told(), tmp_path / "nowhere" / "page.html")


def test_importing_the_report_brings_neither_plotly_nor_rich():
    code = "import sys, haltune.report; print({'plotly', 'rich'} & {m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_each_trial_tells_why_it_was_chosen_and_how_carefully_it_was_measured(tmp_path):
    found = small_study(RandomSearch(trials=2))
    search(found)
    seen = Seen(page_of(found, tmp_path))
    assert found.trials[0].proposed
    assert seen.text.count(found.trials[0].proposed) == 2
    assert "level" not in seen.text
    assert "cross" not in seen.text  # nothing was stopped
    history = told()
    tell_trial(history, [0.5] * 10, tags={"level": "3 seeds"})
    seen = Seen(page_of(history, tmp_path))
    assert "level" in seen.text
    assert "3 seeds" in seen.text
