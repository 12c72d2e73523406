"""What a notebook shows of a study, its trials and its answers; and that nothing a user typed is markup there."""

import logging
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from notebooks import notebook

from haltune import Budget, Choice, Float, Maximize, Problem, Space, Study, display
from haltune.display import notebook as shown_in
from haltune.policies import RandomSearch, TruVaR

EVIL = "<script>alert('x')</script><b>&\x1b[2J\u202e\""
TAGS = re.compile(r"</?(div|b|br|table|thead|tbody|tr|th|td|pre)( style=\"text-align:left\")?>")


def harmless(html):
    """What is left of it without the tags of haltune's own holds no tag, quote, or character that is obeyed."""
    rest = TAGS.sub(" ", html)
    assert not set(rest) & set("<>\"'\x1b\u202e"), rest
    return rest


@pytest.fixture
def study():
    space = Space({f"opt{EVIL}": Choice([f"a{EVIL}", f"b{EVIL}"]), "lr": Float(0.25, 0.5)})
    study = Study(
        Problem(space, Maximize(f"acc{EVIL}"), 3), RandomSearch(trials=3), name=EVIL, seed=1, verbose=0
    )
    with study.ask() as trial:
        for _ in trial.epochs():
            trial.report(0.5)
    failed = study.ask()
    failed.report(0.125)
    failed.fail(ValueError(f"error{EVIL}"))
    return study


def test_a_study_shows_its_trials_and_how_it_stands(study):
    shown = harmless(study._repr_html_())
    assert "best acc&lt;script&gt;" in shown
    assert " 2 trials, 4 epochs, " in shown
    assert re.search(r" 0 +trained in full +3 +0\.5 +opt&lt;script&gt;", shown)
    assert re.search(r" 1 +failed +1 +0\.125 ", shown)


def test_a_study_that_is_not_begun_is_shown_as_such():
    assert harmless(Study({"lr": Float(0, 1)}, "val_acc", budget="3 trials", verbose=0)._repr_html_()).count(
        "not begun"
    )


def test_trials_and_the_best_show_what_they_are(study):
    full, failed = study.trials
    assert "Trial 0: completed at epoch 3" in harmless(full._repr_html_())
    assert "drawn at random" in full._repr_html_()
    assert "ValueError: error&lt;script&gt;" in harmless(failed._repr_html_())
    assert "Best value 0.5 (trial 0, epoch 3)" in harmless(study.best._repr_html_())
    trial = study.ask()
    assert "Trial 2, attempt 1" in harmless(trial._repr_html_())
    trial.report(0.5)
    assert re.search("epochs reported +1 ", harmless(trial._repr_html_()))


def test_a_level_set_and_maximisers_show_their_words():
    problem = Problem(Space({"lr": Choice([0.1, 0.2, 0.3])}), Maximize(f"acc{EVIL}", (0, 1)), 1)
    study = Study(problem, TruVaR(threshold=0.5, initial=2), seed=0, budget=Budget(trials=3), verbose=0)
    for trial in study:
        with trial:
            trial.report(trial.config["lr"] * 2)
    assert " reach it" in harmless(study.level_set()._repr_html_())
    assert harmless(study.maximisers()._repr_html_()).strip()


def test_a_terminal_of_ipython_is_no_notebook(monkeypatch):
    assert shown_in() is None
    ipython = ModuleType("IPython")
    ipython.get_ipython = SimpleNamespace
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert shown_in() is None


def test_a_study_without_trials_shows_no_empty_table():
    study = Study({"lr": Float(0, 1)}, "val_acc", max_epochs=3, budget="3 trials", verbose=0)
    assert "<table" not in study._repr_html_()


def test_what_the_log_says_is_no_error_there_but_its_warnings(monkeypatch, capsys):
    notebook(monkeypatch)
    monkeypatch.setattr(display, "is_set_up", lambda: False)
    for level in (logging.INFO, logging.WARNING):
        display._stderr.emit(logging.makeLogRecord({"msg": f"at {level}", "levelno": level}))
    assert capsys.readouterr() == ("at 20\n", "at 30\n")
