"""What the command line shows of real logs: for people, and for programs as strict JSON."""

import csv
import io
import json
import re

import pytest
from trainings import PROBLEM
from typer.testing import CliRunner
from worlds import accuracy

from haltune import Budget, Choice, Float, Maximize, Minimize, Problem, Space, Study
from haltune.cli.app import app
from haltune.holding import hold
from haltune.policies import BOBOS, RandomSearch

LISTINGS = ("status", "trials", "best", "explain", "export")


def haltune(*arguments, code=0):
    """What the command prints; its exit code is checked."""
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"})
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


def strict(text):
    """JSON without NaN and Infinity."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.fixture
def log(tmp_path):
    """A log of all kinds of trials and values, with text that markup and CSV could mistake."""
    space = Space(
        {"lr": Float(1e-4, 1.0, log=True), "naïve": Choice(["[bold]é,\n[/]", "[red]"]), "w": [1, 2][0]}
    )
    problem = Problem(space, Minimize("[loss]"), 3)
    path = tmp_path / "précision.db"
    study = Study(problem, RandomSearch(trials=5), f"sqlite:///{path}", seed=1, max_failures=9)
    values = [[0.5, 0.25, 0.125], [float("nan")], [float("inf"), 0.5], []]
    for trial, told in zip(study, values, strict=False):
        if trial.id == 3:
            trial.fail(ValueError("[/nonsense] «é»"))
            break
        with trial:
            for value in told:
                trial.report(value, seconds=1.5, metrics={"accuracy": value / 2, "größe": 1.0})
    running = study.ask()
    running.report(0.75, seconds=2.0)
    return path, study


def test_every_listing_is_strict_json_for_programs(log):
    path, study = log
    status = strict(haltune("status", path, "--format", "json"))
    assert status["study"] == "study"
    assert status["state"] == "goes on"
    assert status["trials"] == {"running": 1, "completed": 3, "failed": 1}
    assert status["best"] == {"trial": 0, "value": 0.125, "epoch": 3.0}
    (worker,) = status["workers"]
    assert (worker["trial"], worker["worker"]) == (4, study.holder)
    trials = strict(haltune("trials", path, "--format", "json"))
    assert [t["value"] for t in trials] == [0.125, "nan", 0.5, None, 0.75]
    assert [t["config"] for t in trials] == [dict(t.config) for t in study.trials]
    assert trials[3]["error"] == "ValueError: [/nonsense] «é»"
    best = strict(haltune("best", path, "--format", "json"))
    assert (best["trial"], best["value"], best["config"]) == (0, 0.125, dict(study.trials[0].config))
    told = strict(haltune("explain", path, 2, "--format", "json"))
    assert [e["kind"] for e in told] == ["started", "reported", "reported", "ended"]


def test_the_tables_show_the_users_text_as_it_is(log):
    path, _ = log
    table = haltune("trials", path)
    assert "[loss]" in table.splitlines()[0]
    assert "ValueError: [/nonsense] «é»" in table
    assert "naïve=[red]" in table or "naïve=[bold]é," in table
    status = haltune("status", path)
    assert "goes on" in status
    assert "trial 4 trains" in status
    assert "[loss] = 0.125 at epoch 3 of trial 0" in haltune("best", path)
    assert "epoch 2" in haltune("explain", path, 0)


def test_reports_are_exported_a_row_each_and_both_forms_say_the_same(log, tmp_path):
    path, _ = log
    rows = strict(haltune("export", path, "--format", "json"))
    assert [r["trial"] for r in rows] == [0, 0, 0, 1, 2, 2, 4]
    assert [r["value"] for r in rows] == [0.5, 0.25, 0.125, "nan", "inf", 0.5, 0.75]
    assert rows[1]["metric.accuracy"] == 0.125
    assert rows[1]["metric.größe"] == 1.0
    assert haltune("export", path, "--out", tmp_path / "rows.csv") == ""
    with open(tmp_path / "rows.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    as_text = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    assert [{k: v for k, v in row.items() if v} for row in table] == [
        {k: v for k, v in row.items() if v} for row in as_text
    ]
    assert list(csv.DictReader(io.StringIO(haltune("export", path)))) == table


def test_a_report_is_one_page(log, tmp_path):
    path, _ = log
    assert haltune("report", path, "-o", tmp_path / "page.html").strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1_000_000  # Plotly is in it


def test_a_listing_writes_nothing_to_the_log(log, tmp_path):
    path, study = log
    before = len(list(study.events()))
    for command in ("status", "trials", "best", "export"):
        haltune(command, path)
    assert len(list(study.events())) == before


def test_a_study_is_named_by_its_file_its_database_or_its_url(log, tmp_path):
    path, _ = log
    toml = tmp_path / "digits.toml"
    toml.write_text(
        f'[study]\nstore = "{path.name}"\n[goal]\nminimize = "[loss]"\n[space]\nx = 1\n', encoding="utf-8"
    )
    told = {haltune("best", where) for where in (path, f"sqlite:///{path}", toml)}
    assert len(told) == 1


def test_of_several_studies_one_must_be_named(tmp_path):
    for name in ("one", "zwei [é]"):
        study = Study(PROBLEM, RandomSearch(trials=1), tmp_path / "s.db", name)
        for trial in study:
            with trial:
                for epoch in trial.epochs():
                    trial.report(accuracy(trial.config, epoch))
    error = haltune("status", tmp_path / "s.db", code=3)
    assert "it holds: 'one', 'zwei [é]'" in error
    assert "zwei [é] in " in haltune("status", tmp_path / "s.db", "--name", "zwei [é]")


def test_what_is_not_there_exits_with_3_and_makes_no_file(tmp_path):
    for command in ("status", "trials", "best", "export", "report", "stop"):
        assert "there is no file" in haltune(command, tmp_path / "none.db", code=3)
        assert "there is no file" in haltune(command, f"sqlite:///{tmp_path / 'none.db'}", code=3)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text("this is no database, whatever its name says " * 100)
    assert "not a database" in haltune("status", tmp_path / "text.db", code=3)


def test_wrong_usage_exits_with_2(log, tmp_path):
    path, _ = log
    assert "there is no trial 99" in haltune("explain", path, 99, code=2)
    haltune("explain", path, "nine", code=2)
    haltune("nonsense", code=2)
    haltune("trials", path, "--format", "yaml", code=2)
    (tmp_path / "bad.toml").write_text('[goal]\nmaximize = "acc"\n[space]\nx = { flot = [0, 1] }\n')
    error = haltune("status", tmp_path / "bad.toml", code=2)
    assert "line 4" in error
    assert "Traceback" not in error


def test_before_any_value_there_is_no_best_and_the_exit_code_says_so(tmp_path):
    study = Study(PROBLEM, RandomSearch(trials=1), tmp_path / "s.db")
    assert "no trial has reported" in haltune("best", tmp_path / "s.db", code=4)
    study.ask()
    assert "no trial has reported" in haltune("best", tmp_path / "s.db", code=4)
    assert "1 trial" in haltune("status", tmp_path / "s.db")


def test_a_held_search_says_so(tmp_path):
    study = Study(PROBLEM, RandomSearch(trials=9), tmp_path / "s.db", budget=Budget(trials=9))
    hold(study._replica.store, "study", "stopped by somebody")
    assert "held (stopped by somebody)" in haltune("status", tmp_path / "s.db")
    assert strict(haltune("status", tmp_path / "s.db", "--format", "json"))["reason"] == "stopped by somebody"


def test_help_says_what_each_command_does_and_what_it_exits_with():
    overview = haltune("--help")
    for command in (*LISTINGS, "run", "resume", "stop", "report", "doctor"):
        assert re.search(rf"│ {command} +\S", overview), command
        page = haltune(command, "--help")
        assert "Usage" in page
        assert len(page.splitlines()) > 8
    assert "Exit codes" in overview
    assert "haltune run --study digits.toml -- python train.py" in re.sub(
        r"\s*│\n│\s*", " ", haltune("run", "--help")
    )


def test_a_log_whose_space_has_constraints_and_whose_policy_is_unknown_can_be_looked_at(tmp_path):
    class Mine(RandomSearch):
        pass

    space = Space({"x": Float(0, 1)}, constraints=[lambda c: c["x"] < 0.9])
    study = Study(Problem(space, Maximize("acc", (0, 1)), 1), Mine(trials=2), tmp_path / "s.db")
    for trial in study:
        with trial:
            trial.report(trial.config["x"])
    assert "2 trials" in haltune("status", tmp_path / "s.db")


def test_a_search_that_its_log_alone_cannot_go_on_with_is_refused(tmp_path):
    space = Space({"x": Float(0, 1)}, constraints=[lambda c: c["x"] < 0.9])
    Study(Problem(space, Maximize("acc", (0, 1)), 1), RandomSearch(trials=2), tmp_path / "s.db")
    assert "by your own program" in haltune("resume", tmp_path / "s.db", "--", "true", code=2)
    Study(PROBLEM, BOBOS(), tmp_path / "t.db", budget=Budget(trials=2))
    assert "give --time 2h, --trials or --epochs" in haltune(
        "resume", tmp_path / "t.db", "--", "true", code=2
    )
