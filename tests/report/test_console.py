"""The table in the terminal, and the summary."""

import io
import math
import sys
import threading

import numpy as np
import pytest
from told import REASON, a_search, tell_trial, told
from worlds import problem, search, small_study, train

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import RandomSearch
from haltune.report import live, summary
from haltune.report.summary import sparkline

rich_console = pytest.importorskip("rich.console")


def terminal(width=140):
    return rich_console.Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def paper():
    return rich_console.Console(file=io.StringIO(), force_terminal=False, width=60)


def test_a_terminal_ends_with_a_line_for_every_trial():
    study, console = small_study(RandomSearch(trials=3)), terminal()
    with live(study, console):
        search(study)
    final = console.file.getvalue().split("verdict")[-1]
    assert final.count("trained in full") == 3
    assert "█" in final


def test_a_pipe_gets_one_line_for_each_trial():
    study, console = small_study(RandomSearch(trials=3)), paper()
    with live(study, console):
        search(study)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[:2] for line in lines] == [["trial", "0"], ["trial", "1"], ["trial", "2"]]


def test_trials_of_other_workers_are_shown(tmp_path):
    store = f"sqlite:///{tmp_path}/shared.db"
    mine, other = (Study(problem(), RandomSearch(), store, budget=Budget(trials=2)) for _ in range(2))
    console = paper()
    with live(mine, console):
        search(other)
    assert console.file.getvalue().count("trained in full") == 2


def test_the_table_writes_nothing_to_the_log():
    study, console = small_study(RandomSearch(trials=2)), terminal()
    with live(study, console):
        search(study)
    alone = search(small_study(RandomSearch(trials=2)))
    assert [e.kind for e in study.events()] == [e.kind for e in alone.events()]


def test_no_thread_outlives_the_table():
    study = small_study(RandomSearch(trials=2))
    with pytest.raises(ZeroDivisionError), live(study, terminal()):
        train(next(iter(study)), lambda *_: 1 / 0)
    assert not any(t.name == "haltune-live" for t in threading.enumerate())


def test_what_a_user_typed_is_not_read_as_markup():
    metric = "[red]acc[/red]"
    one = Problem(Space({"lr": Float(0, 1)}), Maximize(metric, (0, 1)), 2)
    for console in (terminal(), paper()):
        study = Study(one, RandomSearch(trials=1))
        with live(study, console):
            search(study, lambda *_: 0.5)
        assert metric in console.file.getvalue()


def test_without_rich_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError, match="pip install rich"), live(small_study(RandomSearch(trials=1))):
        pass


def test_the_summary_has_the_best_and_what_was_saved():
    text = summary(a_search())
    assert "best acc 0.95 (trial 0, epoch 10)\n  lr=0.25" in text
    assert "3 trials: 1 trained in full, 1 stopped early, 1 failed" in text
    assert "15 epochs trained in 30 s; 8 epochs (35%) and about 16 s saved" in text


def test_a_summary_before_any_value_says_so():
    assert "no trial has reported a finite acc yet" in summary(told())
    assert REASON not in summary(told())


def test_a_sparkline_rises_with_the_score():
    record = tell_trial(told(), [n / 10 for n in range(1, 9)]).trial(0)
    assert sparkline(record, (0.1, 0.8), 8, 8) == "▁▂▃▄▅▆▇█"


def test_a_sparkline_has_a_column_for_its_share_of_the_horizon():
    record = tell_trial(told(), [0.0, 0.0, 1.0, 1.0]).trial(0)
    assert sparkline(record, (0.0, 1.0), 10, 5) == "▁█"  # epochs 1-2, 3-4 of 10, two a column
    assert sparkline(record, (0.0, 1.0), 4, 30) == "▁▁██"


def test_a_sparkline_is_blank_where_nothing_is_finite():
    record = tell_trial(told(), [0.5, math.nan, 0.5]).trial(0)
    assert sparkline(record, (0.5, 0.5), 3, 3)[1] == " "
    assert sparkline(tell_trial(told(), []).trial(0), (0.0, 1.0), 3, 3) == ""
    assert np.isnan(record.values[1])
