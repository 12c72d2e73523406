"""The page in a real browser: Chromium, by Playwright, without a screen."""

import ast
import csv
import json
import math
import re
import socket
import sys
import threading
from xml.etree import ElementTree

import numpy as np
import pytest
from notebooks import notebook
from told import a_search, tell_trial, told

from haltune import Budget, Choice, Float, Int, Maximize, Minimize, Problem, Space, Study
from haltune.log.events import Status
from haltune.policies import Ladder, RandomSearch
from haltune.report import compare, write
from haltune.report.console import Cell
from haltune.report.watch.app import Board, Location, application
from haltune.report.watch.serve import server
from haltune.store.open import open_store

EVIL = '</script><img src=x onerror="document.body.dataset.ran=1"><b>bold</b>"\'&%{y}<br>${1}'


MADE = {}  # function that makes a search -> its page, made once


def written(source, path):
    """The file of the page of a search, or of a function that makes one."""
    if not callable(source):
        return write(source, path)
    if source not in MADE:
        MADE[source] = write(source(), path).read_bytes()
    path.write_bytes(MADE[source])
    return path


@pytest.fixture
def opened(browser, tmp_path):
    """Open the page of a search; any error in the browser fails the test."""
    said, contexts = [], []

    def open_(source, width=1280, scheme="light"):
        path = written(source, tmp_path / "page.html")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("figure[data-figure=curves] .panel svg text", state="attached")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []


def many(others=None):
    """Thirty trials of ten epochs. others: of an epoch's value, further metrics by their names."""
    space = Space({"lr": Float(1e-4, 1.0, log=True), "width": Int(8, 64), "kind": Choice(["a", "b"])})
    history = told(Problem(space, Maximize("acc", (0, 1)), 10))
    for n in range(30):
        config = {"lr": 10 ** (-4 + 4 * n / 30), "width": 8 + n, "kind": "ab"[n % 2]}
        curve = [0.9 - 0.5 / epoch - abs(n - 12) / 60 for epoch in range(1, 11)]
        curve = curve if n % 3 else curve[:3]
        tell_trial(
            history,
            curve,
            Status.COMPLETED if n % 3 else Status.STOPPED,
            config,
            "too slow",
            metrics={name: [other(value) for value in curve] for name, other in (others or {}).items()},
        )
    return history


def rows(page):
    """The numbers of the trials that are seen in the table, from top to bottom."""
    return page.eval_on_selector_all(
        ".trials tbody tr:not(.why)", "rows => rows.map(row => +row.dataset.trial.slice(6))"
    )


def test_pointing_at_a_curve_shows_its_reason_and_lights_its_row(opened):
    page = opened(a_search)
    box = page.locator("figure[data-figure=curves] .panel > svg[role=img]").bounding_box()
    tip = page.locator("figure[data-figure=curves] .tip")
    found = None
    for y in range(int(box["y"]) + 20, int(box["y"] + box["height"]) - 50, 8):  # epoch 2 of 10: a fifth of the way
        page.mouse.move(box["x"] + 40 + (box["width"] - 60) * 0.195, y)
        if tip.is_visible() and "stopped early" in tip.inner_text():
            found = tip.inner_text()
            break
    assert found is not None
    assert "P(beats 0.9) = 0.01 at epoch 2" in found
    assert page.locator("tr.lit:not(.why)").get_attribute("data-trial") == "trial-1"


def test_the_keyboard_walks_along_the_points_and_opens_a_row(opened):
    page = opened(a_search)
    page.locator("figure[data-figure=curves] .panel > svg[role=img]").focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator("figure[data-figure=curves] .tip")
    assert tip.is_visible()
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() != first
    page.keyboard.press("Enter")
    assert page.locator("tr.why.open pre").is_visible()
    page.locator("figure[data-figure=curves] .panel > svg[role=img]").focus()
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_trials_stand_best_first_and_are_sorted_and_filtered(opened):
    history = many()
    page = opened(many)
    assert rows(page) == [id for group in history.ranked() for id in group]
    for order in (list(range(30)), list(range(30))[::-1]):
        page.get_by_role("button", name="lr", exact=True).click()
        assert rows(page) == order
    page.locator("th").get_by_role("button", name="acc", exact=True).click()
    values = {t.id: float(t.values[-1]) for t in history.trials}
    assert [values[n] for n in rows(page)] == sorted(values.values(), reverse=True)
    page.get_by_label("Filter trials by outcome").select_option("stopped")
    words = page.get_by_label("Filter trials by words")
    for text, expected in (("", range(0, 30, 3)), ("too slow", range(0, 30, 3)), ("no such word", [])):
        words.fill(text)
        assert sorted(rows(page)) == list(expected)
    assert "0 of 30" in page.locator(".filters output").inner_text()
    page.get_by_label("Filter trials by outcome").select_option("")
    for text, holds in (
        ("lr<0.001", lambda t: t.config["lr"] < 0.001),
        ("LR>=0.01 kind=a", lambda t: t.config["lr"] >= 0.01 and t.config["kind"] == "a"),
        ("width=20", lambda t: t.config["width"] == 20),
        ("epochs>3 acc<0.7", lambda t: t.epoch > 3 and t.values[-1] < 0.7),
        ("epochs<=3", lambda t: t.epoch <= 3),
    ):
        words.fill(text)
        expected = [t.id for t in history.trials if holds(t)]
        assert sorted(rows(page)) == expected
        assert expected


@pytest.mark.slow
def test_brushing_parallel_coordinates_filters_the_whole_page(opened):
    page = opened(many)
    axis = page.locator("figure[data-figure=parallel] .axis-hit").nth(1)  # width, from 8 to 64
    axis.scroll_into_view_if_needed()
    box = axis.bounding_box()
    x, low = box["x"] + box["width"] / 2, box["y"] + box["height"] - 12
    page.mouse.move(x, low + 8)
    page.mouse.down()
    page.mouse.move(x, low - (box["height"] - 24) * (10.5 / 56 + 0.02) / 1.04, steps=4)
    page.mouse.up()
    page.wait_for_function("document.querySelector('.filters output').textContent !== ''")
    assert sorted(rows(page)) == list(range(11))  # widths 8 to 18
    marks = page.evaluate("document.querySelectorAll('figure[data-figure=curves] .panel svg path').length")
    assert marks >= 1
    page.mouse.click(x, low - 100)  # lets go
    page.wait_for_function("document.querySelector('.filters output').textContent === ''")
    assert len(rows(page)) == 30


@pytest.fixture
def touched(browser, tmp_path):
    """Opens a page on a phone."""
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)

    def open_(source):
        page = context.new_page()
        page.goto(written(source, tmp_path / "page.html").as_uri())
        page.wait_for_selector("figure[data-figure=curves] .panel svg text", state="attached")
        return page

    yield open_
    context.close()


@pytest.mark.slow
def test_a_touch_shows_the_reason_and_a_second_one_opens_the_row(touched):
    page = touched(a_search)
    figure = page.locator("figure[data-figure=curves]")
    figure.scroll_into_view_if_needed()
    box = figure.locator(".panel > svg[role=img]").bounding_box()
    x, tip = box["x"] + 40 + (box["width"] - 60) * 0.195, figure.locator(".tip")
    for y in range(int(box["y"]) + 20, int(box["y"] + box["height"]) - 50, 8):
        page.evaluate("document.activeElement.blur()")  # it points again
        page.touchscreen.tap(x, y)
        if tip.is_visible() and "stopped early" in tip.inner_text():
            break
    assert "P(beats 0.9) = 0.01 at epoch 2" in tip.inner_text()
    page.touchscreen.tap(x, y)
    page.wait_for_selector("tr.why.open[data-trial=trial-1]")


def test_a_row_opens_its_receipt_and_says_whether_it_is_open(opened):
    page = opened(a_search)
    row = page.locator("tr[data-trial=trial-2]:not(.why)")
    receipt = page.locator("tr.why[data-trial=trial-2] pre")
    for opens, hand in ((True, row.click), (False, row.click), (True, lambda: row.press("Enter"))):
        assert row.get_attribute("aria-expanded") == str(not opens).lower()
        hand()
        assert receipt.is_visible() == opens
        assert row.get_attribute("aria-expanded") == str(opens).lower()
    assert "RuntimeError: boom" in receipt.inner_text()


@pytest.mark.slow
def test_a_legend_entry_hides_its_curves_and_shows_them_again(opened):
    page = opened(a_search)
    drawn = "document.querySelectorAll('figure[data-figure=curves] .panel > svg > g path').length"
    before = page.evaluate(drawn)
    entry = page.locator("figure[data-figure=curves]").get_by_role("button", name="stopped early (1)")
    entry.click()
    assert page.evaluate(drawn) < before
    entry = page.locator("figure[data-figure=curves]").get_by_role("button", name="stopped early (1)")
    assert entry.get_attribute("aria-pressed") == "false"
    entry.click()
    assert page.evaluate(drawn) == before


@pytest.mark.slow
def test_dragging_zooms_and_a_double_click_shows_the_whole(opened):
    page = opened(many)
    svg = page.locator("figure[data-figure=curves] .panel > svg[role=img]")
    texts = "figure[data-figure=curves] .panel svg text"
    ticks = f"[...document.querySelectorAll('{texts}')].map(t => t.textContent).join()"
    before, box = page.evaluate(ticks), svg.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 250, steps=4)
    page.mouse.up()
    assert page.evaluate(ticks) != before
    svg.dblclick()
    assert page.evaluate(ticks) == before


def test_colours_follow_the_system_and_the_button(opened):
    page = opened(a_search, scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Light colours").click()
    assert page.evaluate(paper) == "rgb(255, 255, 255)" != dark
    page.get_by_role("button", name="Dark colours").click()
    assert page.evaluate(paper) == dark


@pytest.mark.slow
def test_on_a_phone_nothing_is_off_the_screen(opened, tmp_path):
    def wide():
        return page.evaluate("document.documentElement.scrollWidth")

    page = opened(many, width=390)
    assert wide() <= 390
    for box in (e.bounding_box() for e in page.locator("tr.why .because").all()[:5]):
        assert box is None or 0 <= box["x"] <= box["x"] + box["width"] <= 390
    space = Space({f"parameter_{n}": Float(0.0, 1.0) for n in range(4)})
    goals = [Maximize("acc", (0, 1)), Minimize("milliseconds")]
    study = Study(Problem(space, goals, 1), RandomSearch(trials=4), seed=0, verbose=0)
    for trial in study:
        with trial:
            trial.report({"acc": trial.config["parameter_0"], "milliseconds": trial.config["parameter_0"]})
    page = opened(study, width=390)
    assert wide() <= 390
    folder = tmp_path / ("checkpoints-of-the-second-stage" * 4)
    problem = Problem(Space({"lr": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 9)
    study = Study(problem, Ladder(), seed=0, budget=Budget(trials=4), checkpoints=folder, verbose=0)
    for trial in study:
        with trial:
            assert trial.checkpoint is None or trial.epoch > 0
            for epoch in trial.epochs():
                if trial.report(trial.config["lr"] * epoch / 9).stops:
                    trial.save(lambda path: path.write_text("12345"))
                    break
    page = opened(study, 390)
    assert folder.name in page.locator("footer").inner_text()
    assert wide() <= 390


def test_what_a_user_typed_is_shown_and_never_run(opened):
    space = Space({EVIL: Choice(["plain", EVIL]), "lr": Float(0.01, 1.0)})
    history = told(Problem(space, Maximize(EVIL, (0, 1)), 10))
    for n in range(8):
        config = {EVIL: ["plain", EVIL][n % 2], "lr": 0.1 + n / 10}
        metrics = {EVIL: [0.1, 0.2, 0.3], f"={EVIL}": [1.0, 2.0, 3.0]}
        tell_trial(history, [0.5 + n / 50] * 3, Status.STOPPED, config, EVIL, proposed=EVIL, metrics=metrics)
    tell_trial(history, [0.2], Status.FAILED, {EVIL: EVIL, "lr": 0.3}, error=EVIL)
    page = opened(history)
    svg = page.locator("figure[data-figure=curves] .panel > svg[role=img]")
    svg.focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    assert "<img" in page.locator("figure[data-figure=curves] .tip").inner_text()
    for row in page.locator(".trials tbody tr:not(.why)").all():
        row.locator("td").nth(1).click()
    for trial in (2, 3, 8):
        page.get_by_label(f"Compare trial {trial}", exact=True).check()
    assert "<img" in page.get_by_role("region", name="Trials side by side").locator("table").inner_text()
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.body.dataset.ran") is None
    assert EVIL in page.locator("tr.why .because").first.inner_text().replace("\n", "")


def test_a_search_without_a_value_has_a_page(opened, browser, tmp_path):
    path = write(tell_trial(told(), [], None), tmp_path / "empty.html")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("figure[data-figure=curves] .panel svg text", state="attached")
    assert "No trial has reported a finite value yet" in page.locator("figure[data-figure=curves]").inner_text()
    page.close()


# -- following a search that runs ------------------------------------------------------------------


@pytest.fixture
def watched(browser, tmp_path):
    """A search with a trial, a server for it that can restart, and the errors in browsers."""
    problem = Problem(Space({"lr": Float(0.01, 1.0)}), Maximize("acc", (0, 1)), 4)
    study = Study(problem, RandomSearch(), f"sqlite:///{tmp_path}/a.db", seed=0, budget=Budget(trials=50), verbose=0)
    served = Served(tmp_path / "a.db")
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(90_000)  # a machine that is busy with other tests
    yield study, served, context
    context.close()
    served.end()


class Served:
    """The server of a study, in a thread."""

    def __init__(self, path):
        self._board = Board(lambda: [Location(open_store(str(path), reading=True), "study", str(path))])
        self.port = 0
        self.begin()

    def begin(self, token="token-of-the-test"):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self._server = server(application(self._board, token))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self.port}/{token}/0/"

    def end(self):
        self._server.should_exit = True
        self._thread.join(30)


def visit(context, served, said):
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(served.address)
    page.wait_for_selector("figure[data-figure=curves] .panel svg text", state="attached")
    page.wait_for_function("document.getElementById('live').textContent === 'live'")
    return page


def shows(page, text):
    page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


@pytest.mark.slow
def test_several_open_pages_follow_a_running_search_without_a_complaint(watched):
    study, served, context = watched
    with study.ask() as trial:
        trial.report(0.1234, seconds=1.0)
        said = []
        pages = [visit(context, served, said) for _ in range(5)]
        trial.report(0.4321, seconds=1.0)
        for page in pages:
            shows(page, "0.4321 highest acc")
        assert pages[0].locator("tr[data-trial=trial-0]:not(.why)").count() == 1
        trial.report(0.5, seconds=1.0)
        pages[0].close()  # the one that listened for all, if the browser has one
        trial.report(0.7, seconds=1.0)
        for page in pages[1:]:
            shows(page, "0.7 highest acc")
    assert said == []


@pytest.mark.slow
def test_a_page_connects_again_after_its_server_was_away_and_misses_nothing(watched):
    study, served, context = watched
    with study.ask() as trial:
        trial.report(0.1, seconds=1.0)
        page = visit(context, served, [])
        served.end()
        shows(page, "not connected")
        for value in (0.2, 0.3, 0.6789):
            trial.report(value, seconds=1.0)
    served.begin()
    shows(page, "0.6789 highest acc")
    page.wait_for_function("document.getElementById('live').textContent === 'live'")
    assert page.locator("tr[data-trial=trial-0]:not(.why)").inner_text().startswith("0")
    assert "4 of 4" in page.locator("tr[data-trial=trial-0]:not(.why)").inner_text()


@pytest.mark.slow
def test_a_page_that_followed_a_search_draws_what_a_new_one_does(watched):
    study, served, context = watched
    page, said = visit(context, served, []), []
    for n in range(8):
        with study.ask() as trial:
            for epoch in range(1, 2 + n % 4):
                trial.report(0.1 * (5 * n % 8) + epoch / 100, seconds=1.0)
    drawn = """() => dispatchEvent(new Event('beforeprint')) && dispatchEvent(new Event('afterprint')) &&
        [...document.querySelectorAll('figure')].map((f) => f.innerHTML).join() +
        document.querySelector('tbody').innerText"""
    shows(page, "0.7")
    for _ in range(8):  # models come when they are made
        page.wait_for_timeout(500)
        anew = visit(context, served, said)
        found = page.evaluate(drawn), anew.evaluate(drawn)
        anew.close()
        if found[0] == found[1]:
            break
    assert found[0] == found[1]
    assert said == []


def test_buttons_stop_the_search_let_it_continue_and_enqueue(watched):
    study, served, context = watched
    with study.ask() as trial:
        trial.report(0.5, seconds=1.0)
        page = visit(context, served, [])
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Stop", exact=True).click()
        shows(page, "The search is stopped for now")
        page.get_by_role("button", name="Resume", exact=True).click()
        shows(page, "The search continues")
        page.get_by_role("button", name="Enqueue").click()
        page.get_by_role("textbox", name="lr").fill("0.0625")
        page.get_by_role("button", name="Enqueue", exact=True).click()
        shows(page, "The configuration waits for training")
        page.get_by_role("button", name="Budget\N{HORIZONTAL ELLIPSIS}").click()
        page.get_by_role("textbox", name="trials").fill("60")
        page.get_by_role("button", name="Raise", exact=True).click()
        shows(page, "The budget is trials 60 now")
        page.locator("tr[data-trial=trial-0]:not(.why)").click()
        page.get_by_role("button", name="End this trial").click()
        shows(page, "Trial 0 ends at its next report")
        page.get_by_role("button", name="Pause this trial").click()
        shows(page, "Trial 0 pauses at its next report")
        page.get_by_role("button", name="End this trial").click()
        shows(page, "Trial 0 ends at its next report")
        assert trial.report(0.6, seconds=1.0).stops
        study.sync()
        assert [dict(config) for config in study.history.queue] == [{"lr": 0.0625}]


def test_the_output_of_a_trial_is_read_on_its_page(watched):
    study, served, context = watched
    with study.ask() as trial:
        trial.report(0.5, seconds=1.0)
    page = visit(context, served, [])
    page.locator("tr[data-trial=trial-0]:not(.why)").click()
    file = study.checkpoints.output_of(0)
    for shown in ("There is no file", "before", EVIL):
        if shown != "There is no file":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{'x' * 70_000}\n10%\r{shown}\n")
        page.get_by_role("button", name="Output").click()
        page.wait_for_function("(text) => document.querySelector('.output pre').textContent.includes(text)", arg=shown)
        assert len(page.locator(".output pre").text_content()) <= 65_536
        page.get_by_role("button", name="Close").click()
    assert page.evaluate("document.body.dataset.ran") is None


def test_the_files_of_a_trial_are_listed_and_opened_and_no_other_file_is(watched, tmp_path):
    study, served, context = watched
    (tmp_path / "secret.txt").write_text("secret")
    with study.ask() as trial:
        (trial.folder / "plots").mkdir()
        (trial.folder / "plots" / f"{EVIL.replace('/', '')}.txt").write_text("3,0")
        (trial.folder / "own.html").write_text("<script>1</script>")
        (trial.folder / "link.txt").symlink_to(tmp_path / "secret.txt")
        trial.report(0.5, seconds=1.0)
    page = visit(context, served, [])
    page.locator("tr[data-trial=trial-0]:not(.why)").click()
    links = page.locator(".files a")
    assert [link.split("/")[1] for link in links.all_inner_texts()] == ["own.html", "plots"]
    addresses = [link.evaluate("(a) => a.href") for link in links.all()]
    answers = [context.request.get(address) for address in addresses]
    assert [answer.text() for answer in answers] == ["<script>1</script>", "3,0"]
    assert answers[0].headers["content-disposition"].startswith("attachment")  # its scripts never run here
    assert answers[1].headers["content-type"].startswith("text/plain")
    root = addresses[0].partition("/files/")[0]
    for path in ("files/link.txt", "..%2F..%2Fa.db", "files/none.txt"):
        assert context.request.get(f"{root}/files/0/{path}").status == 404
    assert page.evaluate("document.body.dataset.ran") is None
    written = study.report(tmp_path / "page.html").read_text()
    assert (trial.folder / "own.html").as_uri() in written


@pytest.mark.slow
def test_a_note_on_a_trial_is_shown_found_by_the_filter_and_changed(watched):
    study, served, context = watched
    for value in (0.5, 0.4):
        with study.ask() as trial:
            trial.report(value, seconds=1.0)
    page = visit(context, served, [])
    row = page.locator("tr[data-trial=trial-1]:not(.why)")
    row.click()
    for text in (f"#rerun {EVIL}", "7 #later"):
        page.get_by_role("button", name="Note", exact=True).click()
        page.get_by_role("textbox", name="note").fill(text)
        page.get_by_role("button", name="Save", exact=True).click()
        page.wait_for_function("(text) => document.querySelector('.noted')?.textContent === text", arg=text)
        assert [*study.store.read(study.name)][-1].text == text
    assert page.evaluate("document.body.dataset.ran") is None
    page.get_by_role("searchbox").or_(page.locator(".filters input")).first.fill("#later")
    page.wait_for_function("document.querySelectorAll('.trials tbody tr:not(.why)').length === 1")
    assert rows(page) == [1]
    page.get_by_role("button", name="Note", exact=True).click()
    assert page.get_by_role("textbox", name="note").input_value() == "7 #later"
    page.get_by_role("textbox", name="note").fill("")
    page.get_by_role("button", name="Save", exact=True).click()
    shows(page, "Trial 1 has no note")


@pytest.mark.slow
def test_a_form_says_what_is_wrong_and_keeps_what_was_typed(watched):
    study, served, context = watched
    with study.ask() as trial:
        trial.report(0.5, seconds=1.0)
    page = visit(context, served, [])
    page.get_by_role("button", name="Enqueue").click()
    page.get_by_role("textbox", name="lr").fill("77")
    page.get_by_role("button", name="Enqueue", exact=True).click()
    shows(page, "'lr' is 77.0")
    assert page.get_by_role("textbox", name="lr").input_value() == "77"
    page.get_by_role("textbox", name="lr").fill("0.0625")
    page.keyboard.press("Enter")
    shows(page, "The configuration waits for training")
    page.locator("dialog").wait_for(state="detached")
    page.get_by_role("button", name="Budget\N{HORIZONTAL ELLIPSIS}").click()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")


def test_what_comes_while_a_page_is_open_is_shown_and_never_run(browser, tmp_path):
    """Names, metrics, options, errors and configurations that are markup, quotes, controls and right-to-left marks."""
    evil = EVIL + "\u202e\x1b[31m\u2028</td>"
    space = Space({EVIL: Choice(["plain", evil]), "lr": Float(0.01, 1.0)})
    path = tmp_path / "a.db"
    study = Study(
        Problem(space, Maximize(EVIL, (0, 1)), 4), RandomSearch(), f"sqlite:///{path}", seed=0, verbose=0,
        budget=Budget(trials=9), max_failures=9,
    )  # fmt: skip
    served, said = Served(path), []
    context = browser.new_context()
    context.set_default_timeout(90_000)
    page = visit(context, served, said)
    study.enqueue({EVIL: evil, "lr": 0.5})
    with study.ask() as trial:
        for value in (0.25, 0.5, 0.75, 0.875):
            trial.report(value, metrics={EVIL: 0.5, evil: 0.25}, seconds=1.0)
    with study.ask() as trial:
        trial.report(0.0625, seconds=1.0)
        raise RuntimeError(evil)
    shows(page, "0.875")
    page.wait_for_function("() => document.querySelectorAll('tr[data-kind=failed]').length === 1")
    for row in page.locator(".trials tbody tr:not(.why)").all():
        row.click()
    page.get_by_role("button", name="Enqueue").click()
    page.keyboard.press("Escape")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.body.dataset.ran") is None
    assert EVIL in page.locator("tr.why .because").all_inner_texts()[-1].replace("\n", "")
    assert said == []
    context.close()
    served.end()


@pytest.mark.slow
def test_a_hidden_trial_leaves_the_table_and_the_figures_until_the_filter_names_the_tag(watched):
    study, served, context = watched
    for value in (0.5, 0.4):
        with study.ask() as trial:
            trial.report(value, seconds=1.0)
    page = visit(context, served, [])
    page.locator("tr[data-trial=trial-1]:not(.why)").click()
    page.get_by_role("button", name="Hide", exact=True).click()
    page.wait_for_function("() => document.querySelectorAll('.trials tbody tr:not(.why)').length === 1")
    drawn = "() => document.querySelectorAll('[data-figure=parallel] svg path[fill=none]').length"
    assert rows(page) == [0]
    assert "1 of 2; 1 hidden, see #hidden" in page.locator(".filters output").inner_text()
    assert [*study.store.read(study.name)][-1].text == "#hidden"
    study.sync()
    assert len(study.trials) == 2  # nothing recorded is lost
    alone = page.evaluate(drawn)
    page.locator(".filters input").fill("#hidden")
    page.wait_for_function("() => document.querySelector('.trials tbody tr')?.dataset.trial === 'trial-1'")
    page.wait_for_timeout(100)
    assert page.evaluate(drawn) == alone + 1
    page.get_by_role("button", name="Show again", exact=True).click()
    shows(page, "Trial 1 has no note")
    page.locator(".filters input").fill("")
    page.wait_for_function("() => document.querySelectorAll('.trials tbody tr:not(.why)').length === 2")


# -- in a notebook's cell --------------------------------------------------------------------------


def test_the_page_in_a_cell_follows_the_search_and_its_frame_reaches_nothing(browser, monkeypatch):
    outputs = notebook(monkeypatch)
    problem = Problem(Space({"lr": Float(0.01, 1.0)}), Maximize("acc", (0, 1)), 4)
    study, said = Study(problem, RandomSearch(), budget=Budget(trials=4), verbose=0), []
    cell, page = Cell(sys.modules["IPython"].display, study), browser.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_content(outputs[0][0]["text/html"])
    frame = page.frame_locator("iframe")
    frame.locator("figure[data-figure=curves] .panel svg text").first.wait_for(state="attached")
    with study.ask() as trial:
        for value in (0.1234, 0.4321):
            trial.report(value, seconds=1.0)
            cell._watched._rest = 0.0
            cell.show(cell.look())
            handed = outputs[1][-1]["text/html"].removeprefix("<script>").removesuffix("</script>")
            page.evaluate(f"() => {{ {handed} }}")
            frame.get_by_role("heading", name=f"{value} highest acc").wait_for()
    assert frame.locator("tr[data-trial=trial-0]:not(.why)").count() == 1
    assert page.frames[1].evaluate("() => { try { return parent.document.title; } catch { return 'kept out'; } }") == (
        "kept out"
    )
    page.close()
    assert said == []


# -- choosing, sending on, saving ------------------------------------------------------------------


def beside(page):
    """The comparison as {row: [a text a trial]}, and which rows differ."""
    section = page.get_by_role("region", name="Trials side by side")
    read = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    told_of = section.locator("tbody tr").evaluate_all(read)
    differ = section.locator("tr.differs th").all_inner_texts()
    return {name: values for name, *values in told_of}, differ


@pytest.mark.slow
def test_trials_that_are_chosen_stand_side_by_side(opened):
    history = many({"loss": lambda value: 1.0 - value})
    page = opened(history)
    assert not page.get_by_role("region", name="Trials side by side").is_visible()
    for trial in (12, 13):
        page.get_by_label(f"Compare trial {trial}", exact=True).check()
    found, differ = beside(page)
    one, other = history.trials[12], history.trials[13]
    assert [float(v) for v in found["lr"]] == pytest.approx([one.config["lr"], other.config["lr"]], rel=1e-5)
    assert [float(v) for v in found["acc"]] == pytest.approx([one.values[-1], other.values[-1]], rel=1e-5)
    assert [float(v) for v in found["loss"]] == pytest.approx([1 - one.values[-1], 1 - other.values[-1]], rel=1e-5)
    assert found["outcome"][0] == "stopped early"
    assert found["reason"][0] == "too slow"
    assert found["kind"] == ["a", "b"]
    assert "kind" in differ
    page.get_by_label("Compare trial 14", exact=True).check()
    page.get_by_label("Compare trial 13", exact=True).uncheck()
    found, differ = beside(page)
    assert found["kind"] == ["a", "a"]
    assert "kind" not in differ
    figure = page.locator("figure[data-figure=compared]")
    figure.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('figure[data-figure=compared] .panel').length === 2")
    figure.get_by_text("trial 14").first.wait_for()  # it is drawn again when it is on the screen
    assert sorted(figure.locator(".key-entry").all_inner_texts()) == ["trial 12", "trial 14"]


@pytest.mark.slow
def test_an_address_leads_to_what_was_on_the_screen(opened, browser):
    page = opened(many)
    for trial in (20, 3):
        page.get_by_label(f"Compare trial {trial}", exact=True).check()
    assert page.url.endswith("#compare=20,3")
    again = page.context.new_page()
    again.goto(page.url)
    again.wait_for_selector(".comparison tbody tr")
    assert beside(again)[0]["epochs"] == beside(page)[0]["epochs"]
    assert again.get_by_label("Compare trial 20", exact=True).is_checked()
    again.get_by_role("button", name="Clear").click()
    assert "#" not in again.url
    again.locator("tr[data-trial=trial-7]:not(.why)").click()
    assert again.url.endswith("#trial-7")
    third = page.context.new_page()
    third.goto(again.url)
    assert third.locator("tr.why[data-trial=trial-7] pre").is_visible()
    third.goto(again.url.replace("#trial-7", "#figure-parallel"))
    third.wait_for_function("document.querySelector('figure[data-figure=parallel]').getBoundingClientRect().top < 200")
    third.get_by_role("link", name="Budget").click()
    assert third.url.endswith("#figure-budget")
    for wrong in ("#trial-999", "#compare=1,999,x", "#figure-__proto__", '#trial-"><img>'):
        third.goto(page.url.split("#")[0] + wrong)
    assert third.locator(".trials tbody tr").count() == 60


@pytest.mark.slow
def test_the_rows_that_are_shown_are_saved_as_csv(opened):
    space = Space({f"p{k}": Float(0.0, 1.0) for k in range(8)} | {"=cmd()": Choice(["=1+1", 'a,b\n"c"', "-2"])})
    history = told(Problem(space, Maximize("acc", (0, 1)), 10))
    for n, kind in enumerate(["=1+1", 'a,b\n"c"', "-2"]):
        config = {f"p{k}": (k + n) / 100 for k in range(8)} | {"=cmd()": kind}
        tell_trial(history, [0.1, 0.2 + n / 10], Status.STOPPED, config, "because", metrics={"loss": [2.0, 1.0 / 3]})
    page = opened(history)
    page.get_by_placeholder("Filter").fill("acc<0.35")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    with open(download.value.path(), encoding="utf-8-sig", newline="") as file:
        saved = list(csv.DictReader(file))
    assert [row["trial"] for row in saved] == ["1", "0"]
    assert [row["'=cmd()"] for row in saved] == ['a,b\n"c"', "'=1+1"]
    assert [float(row["p3"]) for row in saved] == [0.04, 0.03]
    assert [float(row["loss"]) for row in saved] == [1 / 3, 1 / 3]
    assert [float(row["acc"]) for row in saved] == [history.trials[1].values[-1], history.trials[0].values[-1]]
    assert {row["reason"] for row in saved} == {"because"}
    assert "configuration" not in saved[0]
    assert download.value.suggested_filename.endswith(".csv")


# -- copying a configuration, saving a figure, a filter that names no column ------------------------


MIXED = {"lr": 1.2345678901e-05, "width": 2**49 + 1, "amp": True, 'say "true"\u2028\x9f\'': "null, \\ </div>"}


def mixed():
    space = Space({"lr": Float(1e-6, 1.0, log=True), "width": Int(1, 2**49 + 9), "amp": Choice([True, False, None]),
                   'say "true"\u2028\x9f\'': Choice(["null, \\ </div>", "b"])})  # fmt: skip
    history = tell_trial(told(Problem(space, Maximize("acc", (0, 1)), 10)), [0.5, 0.6], Status.STOPPED, MIXED)
    return tell_trial(history, [0.4], Status.STOPPED, MIXED | {"amp": None})


def pasted(page):
    """Return the text of the clipboard."""
    return page.evaluate("() => navigator.clipboard.readText()")


@pytest.mark.slow
def test_a_configuration_is_copied_whole_as_python_and_as_json(opened):
    page = opened(mixed())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    best = page.locator("#best")
    best.get_by_role("button", name="Copy as Python").focus()
    page.keyboard.press("Enter")
    best.get_by_role("button", name="Copied").wait_for()
    assert ast.literal_eval(pasted(page)) == MIXED
    best.get_by_role("button", name="Copy as Python").wait_for()  # it says its name again
    best.get_by_role("button", name="Copy as JSON").click()
    best.get_by_role("button", name="Copied").wait_for()
    best.get_by_role("button", name="Copy as JSON").wait_for()
    assert json.loads(pasted(page)) == MIXED
    row = page.locator("tr[data-trial=trial-1]:not(.why)")
    row.press("Enter")
    receipt = page.locator("tr.why[data-trial=trial-1]")
    receipt.get_by_role("button", name="Copy as Python").click()
    receipt.get_by_role("button", name="Copied").wait_for()
    assert ast.literal_eval(pasted(page)) == MIXED | {"amp": None}
    assert row.get_attribute("aria-expanded") == "true"  # the button is no click on the row


@pytest.mark.slow
def test_a_configuration_that_python_and_json_write_alike_has_one_button_also_without_a_clipboard(opened):
    page = opened(a_search)
    page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined })")  # as over http
    page.evaluate("() => document.addEventListener('copy', () => { window.held = document.activeElement.value; })")
    page.locator("#best").get_by_role("button", name="Copy", exact=True).click()
    page.locator("#best").get_by_role("button", name="Copied").wait_for()
    assert json.loads(page.evaluate("() => window.held")) == {"lr": 0.25}


@pytest.mark.slow
def test_a_figure_is_saved_as_svg_that_needs_no_page(opened, browser, tmp_path):
    space = Space({EVIL: Float(1e-4, 1.0), "kind": Choice(["a", "b"])})
    history = told(Problem(space, Maximize(EVIL, (0, 1)), 10))
    for n in range(12):
        curve = [0.9 - 0.5 / epoch - n / 60 for epoch in range(1, 11 if n % 3 else 4)]
        tell_trial(
            history, curve, Status.COMPLETED if n % 3 else Status.STOPPED, {EVIL: 0.1 + n / 20, "kind": "ab"[n % 2]}
        )
    page, seen = opened(history, scheme="dark"), browser.new_page()
    for figure, title in (
        ("curves", "Learning_curves"),
        ("contour", "Two_parameters"),
        ("parallel", "Parameters"),
        ("slices", "Slices"),
    ):
        with page.expect_download() as download:
            page.locator(f"figure[data-figure={figure}]").get_by_role("button", name="as SVG").click()
        assert download.value.suggested_filename.endswith(f"_{title}.svg")
        path = tmp_path / f"{figure}.svg"
        download.value.save_as(path)
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"var\(|oklab|class=|style=", text)
        texts = "".join(ElementTree.fromstring(text).itertext())
        assert title.replace("_", " ") in texts
        assert "<img" in texts if figure != "parallel" else "<im" in texts
        seen.goto(path.as_uri())
        box = seen.locator("svg").first.bounding_box()
        assert 300 < box["width"] <= 1280
        assert seen.evaluate(
            "[...document.querySelectorAll('path')].some((path) => path.getBoundingClientRect().width > 50)"
        )
        assert seen.evaluate("[...document.querySelectorAll('rect')][0].getAttribute('fill')") == "#14181d"
    seen.close()


def test_a_condition_on_no_column_is_answered_with_the_nearest_name(opened):
    page = opened(many)
    from playwright.sync_api import expect

    words, hint = page.get_by_label("Filter trials by words"), page.locator(".hint")
    words.fill("widht<20")
    expect(hint).to_have_text(
        "widht<20: no column is called widht. The nearest name is width. "
        "Columns: trial, epochs, acc, lr, width, kind, outcome, seconds."
    )
    assert rows(page) == []
    words.fill("lr<ten")
    expect(hint).to_have_text("lr<ten: ten is not a number.")
    for fine in ("lr<0.01 kind=a", "seconds>10", "slow", ""):
        words.fill(fine)
        expect(hint).to_have_text("")
    words.fill("seconds>10")
    assert len(rows(page)) == 20


@pytest.mark.slow
def test_a_condition_may_name_a_parameter_without_a_column_of_its_own(opened):
    space = Space({f"p{k}": Float(0.0, 1.0) for k in range(9)})
    history = told(Problem(space, Maximize("acc", (0, 1)), 10))
    for n in range(4):
        tell_trial(
            history, [0.5], Status.STOPPED, {f"p{k}": (k + n) / 20 for k in range(9)}, metrics={"loss": [float(n)]}
        )
    page = opened(history)
    for text, left in (("p3<0.21", [0, 1]), ("loss>=2", [2, 3]), ("p3<0.21 loss=1", [1])):
        page.get_by_label("Filter trials by words").fill(text)
        assert sorted(rows(page)) == left


@pytest.mark.slow
def test_the_page_of_several_studies_draws_and_copies(browser, tmp_path):
    problem = Problem(Space({"lr": Float(0.01, 1.0)}), Maximize("acc", (0, 1)), 2)
    studies = []
    for name in ("first", "second"):
        studies.append(Study(problem, RandomSearch(), name=name, seed=0, budget=Budget(trials=6), verbose=0))
        studies[-1].optimize(lambda trial: [trial.report(trial.config["lr"] / 2, seconds=1.0) for _ in trial.epochs()])
    said, page = [], browser.new_page(viewport={"width": 390, "height": 800})
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(compare(studies, tmp_path / "c.html").as_uri() + "#compare=1,2")
    for figure in ("progress", "edf"):
        page.wait_for_selector(f"figure[data-figure={figure}] .panel svg path", state="attached")
    page.get_by_role("button", name="time", exact=True).click()
    page.get_by_role("button", name="Copy", exact=True).first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
    assert said == []


@pytest.mark.slow
def test_a_whole_study_is_hidden_and_shown_again_by_keyboard_by_legend_and_by_address(browser, tmp_path):
    problem = Problem(Space({"lr": Float(0.01, 1.0)}), Maximize("acc", (-9, 1)), 2)
    studies = []
    for name, low in (("first", 0.0), ("second", 0.1), ("awful", 8.0)):
        studies.append(Study(problem, RandomSearch(), name=name, seed=0, budget=Budget(trials=6), verbose=0))
        studies[-1].optimize(
            lambda trial, low=low: [trial.report(trial.config["lr"] / 2 - low, seconds=1.0) for _ in trial.epochs()]
        )
    said, page = [], browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(compare(studies, tmp_path / "c.html").as_uri())
    progress = page.locator("figure[data-figure=progress]")

    def lines(figure="progress"):
        return page.locator(f"figure[data-figure={figure}] svg[role=img] g[clip-path] path").count()

    def ticks():
        return [
            float(text.replace("\u2212", "-"))
            for text in progress.locator("svg text[text-anchor=end]").all_text_contents()
        ]

    page.wait_for_function("document.querySelectorAll('figure[data-figure=progress] g[clip-path] path').length === 3")
    assert min(ticks()) < -5
    hide = page.get_by_role("button", name="Hide awful")
    hide.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('figure[data-figure=progress] g[clip-path] path').length === 2")
    assert min(ticks()) > -1  # the axis shows the others
    assert page.url.endswith("#hide=2")
    assert page.locator("#best tbody tr:visible").count() == 2
    assert page.locator(".key-entry[aria-pressed=false]").all_inner_texts() == ["awful", "awful"]  # of both figures
    page.reload()
    page.wait_for_function("document.querySelectorAll('figure[data-figure=progress] g[clip-path] path').length === 2")
    progress.get_by_role("button", name="first").press("Space")
    page.wait_for_function("document.querySelectorAll('figure[data-figure=progress] g[clip-path] path').length === 1")
    page.get_by_role("button", name="Show again awful").press("Space")
    page.get_by_role("button", name="Show again first").press("Enter")
    page.wait_for_function("document.querySelectorAll('figure[data-figure=progress] g[clip-path] path').length === 3")
    assert lines("edf") >= 3
    assert page.locator("#best tbody tr:visible").count() == 3
    assert "#" not in page.url
    page.close()
    assert said == []


def twenty():
    """Twenty trials of the default search; the first ones are far below the others."""
    space = {"lr": Float(1e-4, 1e-1, log=True), "width": Int(8, 128, log=True)}
    study = Study(space, Maximize("acc"), max_epochs=30, budget="20 trials", seed=0, verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                low = 2.0 if trial.id < 2 else 0.1
                reached = 0.9 - low * abs(math.log10(trial.config["lr"]) + 2) - 0.5 / epoch
                if trial.report(reached, epoch, seconds=1.0).stops:
                    break
    return study


SIZES = """() => [...document.querySelectorAll("main *")].filter((e) =>
  [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && e.getBoundingClientRect().width).map(
  (e) => parseFloat(getComputedStyle(e).fontSize))"""


@pytest.mark.slow
def test_twenty_trials_fit_on_three_screens_in_letters_that_can_be_read(opened):
    page = opened(twenty)
    assert page.evaluate("document.documentElement.scrollHeight") <= 3000
    # the first of them shows the best, its cost and what to do next
    assert page.evaluate("document.getElementById('outlook').getBoundingClientRect().bottom") <= 900
    assert page.locator("#outlook").inner_text() != ""
    assert min(page.evaluate(SIZES)) >= 13
    assert not page.locator("tr.why").first.is_visible()
    page.get_by_role("button", name="Reasons").click()
    assert page.locator("tr.why").first.is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_all_without_scrolling_sideways(opened, scheme):
    page = opened(twenty, width=390, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert min(page.evaluate(SIZES)) >= 13


@pytest.mark.slow
def test_the_spread_of_folds_can_be_read_too(opened):
    study = Study({"lr": Float(0.0, 1.0)}, Maximize("acc"), max_epochs=2, policy=RandomSearch(), budget="6 trials",
                  seed=0, verbose=0)  # fmt: skip
    for trial in study:
        for fold in trial.folds(2):
            for epoch in fold.epochs():
                fold.report(trial.config["lr"] * epoch + fold.index, seconds=1.0)
    page = opened(study)
    assert page.locator(".trials td small").count() == 6
    assert min(page.evaluate(SIZES)) >= 13


@pytest.mark.slow
def test_a_trial_outside_the_axes_is_marked_at_their_edge(opened):
    page = opened(twenty)
    card = page.locator("figure[data-figure=progress]")
    card.scroll_into_view_if_needed()
    assert "triangle: outside the axis" in card.inner_text()
    frame = card.locator(".panel > svg[role=img]").bounding_box()
    assert all(
        frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"] + 1
        for path in card.locator(".panel g[clip-path] path").all()[1:]
        if (box := path.bounding_box()) and box["width"] < 12
    )


@pytest.mark.slow
def test_a_line_that_leaves_the_axes_is_marked_too(opened, browser, tmp_path):
    page = opened(lambda: many({"loss": lambda value: 1e3 if value < 0.12 else value}))  # of one trial, at its start
    card = page.locator("figure[data-figure=metrics]")
    card.scroll_into_view_if_needed()
    assert "triangle: outside the axis" in card.inner_text()
    studies = []
    for name in ("first", "second"):
        studies.append(Study({"lr": Float(0.0, 1.0)}, "acc", name=name, budget="9 trials", verbose=0))
        studies[-1].optimize(lambda trial: trial.id / 10 if trial.id else -100.0)
    page = browser.new_page()
    page.goto(compare(studies, tmp_path / "c.html").as_uri())
    page.wait_for_selector("figure[data-figure=progress] .edge")
    page.close()


@pytest.mark.slow
def test_what_the_trials_do_not_show_is_left_out(opened):
    """Values at random: no parameter has an effect, so there is no map and no slice; the ranks need no model."""
    history = told(Problem(Space({"lr": Float(0.0, 1.0), "width": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 1))
    chance = np.random.default_rng(0)
    for _ in range(20):
        config = {"lr": float(chance.random()), "width": float(chance.random())}
        tell_trial(history, [float(chance.random())], Status.COMPLETED, config)
    page = opened(lambda: history)
    assert page.locator("figure[data-figure=importance]").count() == 1
    assert page.locator("figure[data-figure=contour], figure[data-figure=slices]").count() == 0
    assert page.locator("figure[data-figure=rank]").count() == 1
