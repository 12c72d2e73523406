"""The page in a notebook's cell: first as it is, then what changed, at the end as it is then."""

import html
import json
import re

import pytest
from notebooks import notebook

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import RandomSearch
from haltune.report import live
from haltune.report.console import Cell

EVIL = "</script><img src=x onerror=alert(1)>\u2028\udcff"


@pytest.fixture
def outputs(monkeypatch):
    return notebook(monkeypatch)


def searched(metric="acc", trials=3):
    problem = Problem(Space({"lr": Float(0.01, 1.0)}), Maximize(metric, (0, 1)), 2)
    return Study(problem, RandomSearch(), seed=0, budget=Budget(trials=trials), verbose=0)


def page(output):
    """The page in the frame of what was shown."""
    (frame,) = re.findall(r'<iframe .*? srcdoc="([^"]*)"></iframe>', output["text/html"], re.DOTALL)
    return html.unescape(frame)


def news(output):
    """What the script of what was shown hands to the frame."""
    (text,) = re.findall(r"postMessage\((.*), \"\*\"\)</script>$", output["text/html"], re.DOTALL)
    return json.loads(text)


def test_the_cell_shows_the_page_and_keeps_it_as_it_is_at_the_end(outputs):
    study = searched()
    with live(study):
        for trial in study:
            with trial:
                for epoch in trial.epochs():
                    trial.report(0.25 * epoch)
    framed, told = outputs
    assert "no value yet" in page(framed[0])
    assert "<b>0.5</b>" in page(framed[-1])
    assert 'data-trial="trial-2"' in page(framed[-1])
    assert "0.5" in framed[-1]["text/plain"]
    assert told[-1]["text/html"] == ""  # nothing that would run when the notebook is opened again


def test_what_changed_is_handed_to_the_frame(outputs):
    import IPython

    study = searched()
    cell = Cell(IPython.display, study)
    assert cell.look() == ""
    first = re.search(r'haltune-mark" content="([^"]*)"', page(outputs[0][0]))[1]
    with study.ask() as trial:
        trial.report(0.25)
    cell._watched._rest = 0.0
    cell.show(cell.look())
    found = news(outputs[1][-1])
    assert found["after"] == first
    assert "row/trial-0" in found["items"]
    frame = re.search(r'id="(haltune-[0-9a-f]+)"', outputs[0][0]["text/html"])[1]
    assert f'document.getElementById("{frame}")' in outputs[1][-1]["text/html"]


def test_now_and_then_everything_is_told_for_a_frame_that_was_made_anew(outputs):
    import IPython

    study = searched(trials=60)
    cell, afters = Cell(IPython.display, study), []
    for n in range(25):
        with study.ask() as trial:
            trial.report(n / 100)
        cell._watched._rest = 0.0
        afters.append(json.loads(cell.look())["after"])
    assert None in afters
    assert afters.count(None) < 5


def test_what_a_user_typed_ends_no_script_and_no_attribute(outputs):
    study = searched(metric=EVIL)
    with live(study), study.ask() as trial:
        trial.report(0.25)
    for shown in (*outputs[0], *outputs[1]):
        assert "<img" not in shown["text/html"]
        assert shown["text/html"].count("</script>") <= 1
        shown["text/html"].encode()
