"""The page in a notebook's cell: first as it is, then what changed, at the end as it is then."""

import html
import re

import pytest
from notebooks import notebook

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import RandomSearch
from haltune.report import live

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


def test_what_a_user_typed_ends_no_script_and_no_attribute(outputs):
    study = searched(metric=EVIL)
    with live(study), study.ask() as trial:
        trial.report(0.25)
    for shown in (*outputs[0], *outputs[1]):
        assert "<img" not in shown["text/html"]
        assert shown["text/html"].count("</script>") <= 1
        shown["text/html"].encode()
