"""Progress of a launcher: trials, epochs, the spent budget, the incumbent, and the running trials."""

import io
import re
import sys

import pytest

from haltune import Budget, Choice, Float, Maximize, Problem, Space, Study
from haltune.launch.crew import progress_of
from haltune.policies import RandomSearch

rich_console = pytest.importorskip("rich.console")


def shown(study, busy, over):
    """Return the last state of the table as plain text."""
    file = io.StringIO()
    with progress_of(study, True, rich_console.Console(file=file, width=120)) as show:
        show(busy, over)
    return file.getvalue()


def test_the_table_shows_how_the_search_stands_and_what_each_worker_trains():
    space = Space({"lr": Float(1e-4, 1.0, log=True), "[b]": Choice(["[red]é[/]"])})
    study = Study(
        Problem(space, Maximize("[acc]", (0, 1)), 6), RandomSearch(trials=9), name="[i]search[/]",
        budget=Budget(trials=7, epochs=40), seed=1,
    )  # fmt: skip
    first = study.ask()
    with first:
        for epoch in first.epochs():
            first.report(epoch / 10, seconds=1.0)
    second = study.ask()
    second.report(0.25, seconds=1.0)
    text = shown(study, [(0, second), (1, None)], "[over]")
    assert re.search(r"\[i\]search\[/\]  29%, about [\d.]+ s left: 2 of 7 trials, 7 of 40 epochs", text)
    assert "best: 0.6 at epoch 6 of trial 0" in text
    assert "[acc]" in text
    (row,) = [line for line in text.splitlines() if "[red]é[/]" in line]
    assert row.split()[:6] == ["0", "1", "1", "of", "6", "0.25"]
    assert "idle" in text
    assert "[over]" in text


def test_the_table_counts_in_the_unit_of_the_study():
    study = Study({"lr": Float(1e-4, 1.0)}, "acc", max_steps=600, budget="2 trials", policy=RandomSearch(), verbose=0)
    study.ask().report(0.5, step=600)
    text = shown(study, [(0, study.ask())], None)
    assert "best: 0.5 at step 600 of trial 0" in text
    assert "epoch" not in text


@pytest.mark.parametrize("rich", [True, False])
def test_the_title_of_the_window_shows_the_search_with_and_without_rich(rich, monkeypatch):
    monkeypatch.setattr("haltune.study.messages._BETWEEN_TITLES", 0.0)
    study = Study({"lr": Float(1e-4, 1.0)}, "acc", max_epochs=6, budget="2 trials", policy=RandomSearch(), seed=0)
    study.ask().report(0.5)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    if not rich:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with progress_of(study, None) as show:
        show([], None)
    found = re.findall(r"\x1b\]2;(.*?)\x07", terminal.getvalue())
    assert re.fullmatch(r"haltune 50%, about [\d.]+ s left: 1 of 2 trials, 1 epoch, 0:00; best acc 0.5 .*", found[-1])
    assert ("worker" in terminal.getvalue()) is rich
    assert terminal.getvalue().endswith("\x1b[23;2t")  # the former title
    monkeypatch.setattr(sys, "stderr", None)  # of a process that was started with it closed
    with progress_of(study, None) as show:
        show([], None)
