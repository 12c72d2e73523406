"""Listings of real logs: for people, and for programs as strict JSON."""

import csv
import io
import json
import math
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest
from terminal import at_a_terminal
from trainings import PROBLEM
from typer.testing import CliRunner

from haltune import Budget, Choice, Float, Maximize, Minimize, Problem, Space, Study
from haltune.cli import listings
from haltune.cli.app import app
from haltune.policies import BOBOS, GPUCB, Ladder, RandomSearch, SuccessiveHalving
from haltune.store.open import open_store
from haltune.store.studies import hold
from haltune.study import view
from haltune.study.view import read_study

LISTINGS = ("status", "trials", "best", "explain", "export")


def haltune(*arguments, code=0):
    """Return the output of the command; check its exit code."""
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"})
    stands = code == 0 and arguments[0] == "status" and done.exit_code in (4, 5)  # their texts have their own tests
    assert done.exit_code == code or stands, (done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


def strict(text):
    """JSON without NaN and Infinity."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.fixture
def log(tmp_path):
    """A log of all kinds of trials and values, with text that markup and CSV could mistake."""
    space = Space({"lr": Float(1e-4, 1.0, log=True), "naïve": Choice(["[bold]é,\n[/]", "[red]"]), "w": [1, 2][0]})
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
    assert status["state"] == "continues"
    assert status["trials"] == {"running": 1, "completed": 3, "failed": 1}
    assert status["best"] == {
        "trial": 0, "metric": "[loss]", "value": 0.125, "epoch": 3.0, "checkpoint": None, "checkpoint_epoch": None,
    }  # fmt: skip
    (worker,) = status["workers"]
    assert (worker["trial"], worker["worker"]) == (4, study.session.holder)
    trials = strict(haltune("trials", path, "--format", "json"))
    assert [t["value"] for t in trials] == [0.125, "nan", 0.5, None, 0.75]
    assert [t["config"] for t in trials] == [dict(t.config) for t in study.trials]
    assert trials[3]["error"] == "ValueError: [/nonsense] «é»"
    best = strict(haltune("best", path, "--format", "json"))
    assert (best["trial"], best["value"], best["config"]) == (0, 0.125, dict(study.trials[0].config))
    told = strict(haltune("explain", path, 2, "--format", "json"))
    assert [e["kind"] for e in told] == ["started", "reported", "reported", "ended"]


@pytest.mark.parametrize("command", ["status", "explain", "report", "resume", "doctor"])
def test_of_several_studies_each_command_asks_which(command, tmp_path, monkeypatch):
    monkeypatch.setattr("haltune.cli.doctor._CALLBACKS", {})
    path = tmp_path / "several.db"
    for name in ("plain loop", "zwei [é]"):
        Study(PROBLEM, RandomSearch(trials=1), path, name)
    more = [0] if command == "explain" else ["--out", tmp_path / "page.html"] if command == "report" else []
    done = CliRunner().invoke(app, list(map(str, [command, path, *more])), env={"COLUMNS": "160"})
    assert done.exit_code == (1 if command == "doctor" else 3)
    assert "several.db has 2 studies: 'plain loop', 'zwei [é]'. Choose one with --name" in done.output
    named = CliRunner().invoke(app, list(map(str, [command, path, *more, "--name", "plain loop"])))
    assert "Say which" not in named.output


def test_the_tables_show_the_users_text_as_it_is(log):
    path, _ = log
    table = haltune("trials", path)
    assert "[loss]" in table.splitlines()[0]
    assert "ValueError: [/nonsense] «é»" in table
    assert "naïve=[red]" in table or "naïve=[bold]é," in table
    status = haltune("status", path)
    assert "continues" in status
    assert "trial 4 trains" in status
    assert "[loss] = 0.125 at epoch 3 of trial 0" in haltune("best", path)
    assert "epoch 2" in haltune("explain", path, 0, "--all")


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


@pytest.mark.parametrize("width", [80, pytest.param(100, marks=pytest.mark.slow)])
def test_on_a_terminal_a_table_fits_and_shows_all_parameters_and_in_a_pipe_nothing_is_cut(width, tmp_path):
    space = Space({f"parameter_{n}": Float(0.0, 1.0) for n in range(6)})
    study = Study(Problem(space, Maximize("acc"), 9), BOBOS(), tmp_path / "s.db", seed=0, budget=Budget(trials=6))
    for trial in study:
        for epoch in trial.epochs():
            trial.report((0.9 if trial.id == 0 else 0.1) - 0.1 / epoch, seconds=1.0)
    command = [sys.executable, "-m", "haltune", "trials", str(tmp_path / "s.db")]
    code, written = at_a_terminal(command, width)
    lines = re.sub(r"\x1b\[[\d;]*m", "", written).splitlines()
    assert code == 0, lines
    assert len(lines) > 6
    assert max(map(len, lines)) <= width
    whole = [f"parameter_0={t.config['parameter_0']:.3g}," for t in study.trials]
    assert [text for text in whole if not any(text in line for line in lines)] == []
    assert any("P(beats 0." in line for line in lines) == (width >= 100)  # haltune explain has the reasons
    piped = haltune("trials", tmp_path / "s.db").splitlines()
    assert len(piped) == 7
    assert all(
        f"parameter_5={t.config['parameter_5']:.3g}" in line for t, line in zip(study.trials, piped[1:], strict=True)
    )


def test_a_listing_writes_nothing_to_the_log(log, tmp_path):
    path, study = log
    before = len(list(study.events()))
    for command in ("status", "trials", "best", "export"):
        haltune(command, path)
    assert len(list(study.events())) == before


def test_what_is_not_there_exits_with_3_and_makes_no_file(tmp_path):
    for command in ("status", "trials", "best", "export", "report", "stop"):
        assert "there is no file" in haltune(command, tmp_path / "none.db", code=3)
        assert "there is no file" in haltune(command, f"sqlite:///{tmp_path / 'none.db'}", code=3)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text("this is no database, whatever its name says " * 100)
    assert "not a database" in haltune("status", tmp_path / "text.db", code=3)
    named = haltune("status", tmp_path / "text", code=3)
    assert f"there is no file {tmp_path / 'text'}. Give {tmp_path / 'text.db'}, which exists" in named


def test_wrong_usage_exits_with_2(log, tmp_path):
    path, _ = log
    assert "there is no trial 99" in haltune("explain", path, 99, code=2)
    haltune("explain", path, "nine", code=2)
    haltune("nonsense", code=2)
    named = haltune("run", path, "--", "python", "train.py", code=2)
    assert f"To continue the search in {path}: haltune resume {path} -- python train.py." in named
    haltune("trials", path, "--format", "yaml", code=2)
    (tmp_path / "bad.toml").write_text('[goal]\nmaximize = "acc"\n[space]\nx = { flot = [0, 1] }\n')
    error = haltune("status", tmp_path / "bad.toml", code=2)
    assert "line 4" in error
    assert "Traceback" not in error


def test_the_best_is_reported_with_the_path_to_its_model(tmp_path):
    study = Study(PROBLEM, RandomSearch(trials=1), tmp_path / "s.db")
    with study.ask() as trial:
        for _ in trial.epochs():
            trial.report(0.5)
        assert "its model" not in haltune("best", tmp_path / "s.db")
        trial.save(lambda path: path.write_text("1"))
    assert haltune("best", tmp_path / "s.db").splitlines()[-1] == f"its model: {study.best.checkpoint}"
    for told in (strict(haltune("status", tmp_path / "s.db", "--format", "json"))["best"],
                 strict(haltune("best", tmp_path / "s.db", "--format", "json"))):  # fmt: skip
        assert told["checkpoint_epoch"] == study.best.checkpoint_epoch > 0


def test_before_any_value_there_is_no_best_and_the_exit_code_says_so(tmp_path):
    study = Study(PROBLEM, RandomSearch(trials=1), tmp_path / "s.db")
    assert "No trial has reported" in haltune("best", tmp_path / "s.db", code=4)
    study.ask()
    assert "No trial has reported" in haltune("best", tmp_path / "s.db", code=4)
    assert "1 trial" in haltune("status", tmp_path / "s.db")


def test_a_held_search_says_so(tmp_path):
    study = Study(PROBLEM, RandomSearch(trials=9), tmp_path / "s.db", budget=Budget(trials=9))
    hold(study.store, "study", "stopped by somebody")
    told = haltune("status", tmp_path / "s.db")
    assert "stopped for now (stopped by somebody)" in told
    assert "the search is stopped for now: stopped by somebody" in told
    assert "over" not in told
    assert strict(haltune("status", tmp_path / "s.db", "--format", "json"))["reason"] == "stopped by somebody"


def test_help_says_what_each_command_does_and_what_it_exits_with():
    overview = haltune("--help")
    for command in (*LISTINGS, "run", "resume", "stop", "report", "doctor"):
        assert re.search(rf"│ {command} +\S", overview), command
        page = haltune(command, "--help")
        assert "Usage" in page
        assert len(page.splitlines()) > 8
    assert "Exit codes" in overview
    assert haltune("--version").strip() == version("haltune")
    assert "haltune run digits.toml -- python train.py --lr {lr}" in re.sub(
        r"\s*│\n│\s*", " ", haltune("run", "--help")
    )


def test_a_search_that_its_log_alone_cannot_continue_with_is_refused(tmp_path):
    space = Space({"x": Float(0, 1)}, constraints=[lambda c: c["x"] < 0.9])
    Study(Problem(space, Maximize("acc", (0, 1)), 1), RandomSearch(trials=2), tmp_path / "s.db")
    assert "Resume with your own program" in haltune("resume", tmp_path / "s.db", "--", "true", code=2)
    Study(PROBLEM, BOBOS(), tmp_path / "t.db", budget=Budget(trials=2))
    assert "Add --time 2h, --trials or --epochs" in haltune("resume", tmp_path / "t.db", "--", "true", code=2)


# a search that has not started

NOT_BEGUN = """
[study]
max_epochs = 3
[goal]
maximize = "acc"
[space]
lr = { float = [0, 1] }
[policy]
name = "RandomSearch"
trials = 2
"""


@pytest.mark.parametrize("command", ["status", "explain", "resume"])
def test_before_its_first_run_a_study_file_says_how_its_search_starts_and_makes_nothing(command, tmp_path):
    file = tmp_path / "the digits.toml"
    file.write_text(NOT_BEGUN)
    more = [0] if command == "explain" else []
    told = haltune(command, file, *more, code=3)
    assert f"The search 'study' of {file} has not started" in told
    assert f"Start it with haltune run '{file}' -- python train.py" in told
    assert list(tmp_path.iterdir()) == [file]
    Study(PROBLEM, RandomSearch(trials=1), tmp_path / "the digits.db", "another")
    assert "The search 'study' of" in haltune(command, file, *more, code=3)
    assert "it has 'another'" in haltune(command, file, *more, "--name", "third", code=3)


# a search that is over


def over(tmp_path, policy, most=math.inf, **budget):
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 3)
    study = Study(problem, policy, tmp_path / "a.db", seed=1, budget=Budget(**budget))
    for trial in study:
        with trial:
            assert trial.checkpoint is None or trial.epoch > 0
            for epoch in trial.epochs():
                trial.report(0.1 * epoch)
                if trial.id == 1:
                    break
                trial.save(lambda path: path.write_text("state"))
        if (most := most - 1) <= 0:
            break
    return study


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("policy", "budget"),
    [
        (RandomSearch(), {"epochs": 9}),
        (GPUCB(), {"worker_time": 1e-9}),
        (Ladder(2, 2, 3, min_trials_per_rung=2), {"trials": 4}),
    ],
)
def test_a_search_that_its_budget_ended_is_over_for_every_reader_of_the_log(policy, budget, tmp_path):
    study = over(tmp_path, policy, **budget)
    assert study.outcome.over
    status = strict(haltune("status", tmp_path / "a.db", "--format", "json"))
    assert (status["state"], status["reason"]) == ("over", study.outcome.reason)
    assert status["complete"] == sum(t.complete for t in study.trials)
    assert f"the search is over: {study.outcome.reason}" in haltune("status", tmp_path / "a.db")
    told = haltune("stop", tmp_path / "a.db")
    assert f"is over already: {study.outcome.reason}" in told
    told = haltune("resume", tmp_path / "a.db")
    assert f"is over: {study.outcome.reason}. To continue it, run haltune resume ... --trials 50 -- python" in told
    assert read_study(tmp_path / "a.db").history.position == study.history.position
    larger = over(tmp_path, policy, **dict.fromkeys(budget, 99.0), most=1)
    assert larger.history.position > study.history.position  # that is true


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("policy", "budget"), [(RandomSearch(trials=2), {}), (SuccessiveHalving(2, eta=2, rounds=1), {"trials": 2})]
)
def test_a_search_that_its_policy_ended_or_will_has_nothing_to_stop_or_resume(policy, budget, tmp_path):
    study = over(tmp_path, policy, **budget)
    assert strict(haltune("status", tmp_path / "a.db", "--format", "json"))["state"] == "over"
    position = study.history.position
    assert "is over already" in haltune("stop", tmp_path / "a.db")
    assert "is over: " in haltune("resume", tmp_path / "a.db")
    study.sync()
    assert study.history.position == position


def test_the_path_of_a_checkpoint_is_absolute_and_there_or_null(tmp_path, monkeypatch):
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 3)
    study = Study(problem, RandomSearch(), tmp_path / "a.db", budget=Budget(trials=1))
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(0.1 * epoch)
            trial.save(lambda path: path.write_text("state"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for command in ("best", "status"):
        told = strict(haltune(command, "../a.db", "--format", "json"))
        path = Path((told if command == "best" else told["best"])["checkpoint"])
        assert path.is_absolute()
        assert path.read_text() == "state"
    history = read_study(open_store(str(tmp_path / "a.db"))).history
    assert history.trial(0).checkpoint == history.best().checkpoint == str(path)
    path.unlink()
    told = strict(haltune("best", "../a.db", "--format", "json"))
    assert (told["checkpoint"], told["checkpoint_epoch"]) == (None, None)
    assert read_study(open_store(str(tmp_path / "a.db"))).history.trial(0).checkpoint is None


@pytest.mark.parametrize("command", ["status", "report", "stop"])
def test_the_file_of_another_program_is_refused_and_left_as_it_is(tmp_path, command):
    path = tmp_path / "places.sqlite"
    with closing(sqlite3.connect(path)) as c:
        c.execute("CREATE TABLE bookmarks (url)")
    before = path.read_bytes()
    more = ("0",) if command == "explain" else ("-o", tmp_path / "page.html") if command == "report" else ()
    assert "is not a store of haltune: it contains bookmarks" in haltune(command, path, *more, code=3)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["places.sqlite"]


def status_code(path):
    return CliRunner().invoke(app, ["status", str(path)]).exit_code


def test_status_exits_by_how_the_search_stands(tmp_path):
    path = tmp_path / "s.db"
    study = Study(PROBLEM, RandomSearch(trials=1), path, seed=0)
    assert ": no worker trains now\n" in haltune("status", path)
    trial = study.ask()
    assert ": continues (" in haltune("status", path)
    with trial:
        for _ in trial.epochs():
            trial.report(0.5)
    hold(study.store, study.name, "stopped by somebody")
    assert status_code(path) == 4
    hold(study.store, study.name, None)
    assert list(study) == []
    assert status_code(path) == 0
    assert CliRunner().invoke(app, ["status", str(path), "--format", "json"]).exit_code == 0


def test_status_names_workers_as_people_do_and_says_at_once_who_is_gone(tmp_path, monkeypatch):
    path = tmp_path / "s.db"
    study = Study(PROBLEM, RandomSearch(trials=2), path, seed=0)
    study.ask()
    host = study.session.holder.split("/")[0]
    assert f"ago: process {os.getpid()} on {host}" in haltune("status", path)
    monkeypatch.setattr(listings, "holder_is_gone", lambda _, holder: holder == study.session.holder)
    monkeypatch.setattr(view, "holder_is_gone", lambda _, holder: holder == study.session.holder)
    told = haltune("status", path)
    assert f"trial 0: lost, process {os.getpid()} on {host} is gone" in told
    assert ": no worker trains now\n" in told
    assert "1 trial: 1 lost, its worker is gone\n" in told
    assert "no process trains now, but the search is not over: start its program again to continue it" in told
    assert "running" not in told
    (listed,) = strict(haltune("trials", path, "--format", "json"))
    (exported,) = strict(haltune("export", path, "--of", "trials", "--format", "json"))
    assert listed["outcome"] == exported["outcome"] == "lost, its worker is gone"
    assert strict(haltune("status", path, "--format", "json"))["state"] == "idle"
    assert "stops: no trial trains now" in haltune("stop", path)
    (worker,) = strict(haltune("status", path, "--format", "json"))["workers"]
    assert worker["lost"] is True


@pytest.fixture
def ranked(tmp_path):
    """Three trials in full, of values 0.2, 0.6, 0.4, and one that failed."""
    study = Study(PROBLEM, RandomSearch(trials=4), tmp_path / "s.db", seed=0, max_failures=9)
    for trial, value in zip(study, (0.2, 0.6, 0.4, None), strict=False):
        if value is None:
            trial.fail(ValueError("no"))
            continue
        for _ in trial.epochs():
            trial.report(value)
    return tmp_path / "s.db"


def listed(*arguments):
    return [row["trial"] for row in strict(haltune(*arguments, "--format", "json"))]


def test_trials_are_sorted_cut_and_chosen_by_status(ranked):
    assert listed("trials", ranked) == [0, 1, 2, 3]
    assert listed("trials", ranked, "--sort", "value") == [1, 2, 0, 3]
    assert listed("trials", ranked, "--sort", PROBLEM.goal.metric) == [1, 2, 0, 3]
    assert listed("trials", ranked, "--sort", "value", "--top", 2) == [1, 2]
    assert listed("trials", ranked, "--top", 2) == [1, 2]
    assert listed("trials", ranked, "--top", 2, "--sort", "trial") == [0, 1]
    assert listed("trials", ranked, "--status", "failed") == [3]
    assert listed("trials", ranked, "--top", 1, "--status", "completed") == [1]
    assert listed("best", ranked, "--top", 2) == [1, 2]
    table = haltune("best", ranked, "--top", 2).splitlines()
    assert [line.split()[0] for line in table] == ["trial", "1", "2"]
    assert " 4 of 4 " in table[1]
    table = haltune("trials", ranked, "--sort", "lr")
    assert "trained in full" in table
    for word, ids in {"trained in full": [0, 1, 2], "Failed": [3], "not continued": []}.items():
        assert listed("trials", ranked, "--status", word) == ids
    said = haltune("trials", ranked, "--status", "happy", code=2)
    assert "not continued" in said
    assert "stopped early" in said
    by_lr = sorted(strict(haltune("trials", ranked, "--format", "json")), key=lambda row: row["config"]["lr"])
    assert listed("trials", ranked, "--sort", "lr") == [row["trial"] for row in by_lr]
    assert "--sort speed: use trial, value, or a parameter (lr" in haltune("trials", ranked, "--sort", "speed", code=2)
    haltune("trials", ranked, "--top", 0, code=2)


def test_what_is_best_is_one_rule_in_every_listing(tmp_path):
    """A trial that paused at a higher value than a complete one's is not the best: it may still fall."""
    study = Study(PROBLEM, SuccessiveHalving(n=9), tmp_path / "s.db", seed=0, budget=Budget(trials=9))
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(0.9 - trial.id / 20 - epoch / 10)
    values = {t.id: t.values[-1] for t in study.trials}
    assert max(values, key=values.get) != study.best.trial  # by its value alone another would be first
    ids = listed("trials", tmp_path / "s.db", "--sort", "value")
    assert ids == listed("best", tmp_path / "s.db", "--top", 9)
    assert ids[0] == study.best.trial
    assert listed("trials", tmp_path / "s.db", "--top", 1) == ids[:1]


def test_a_value_of_rank_by_stands_under_the_name_of_its_metric(tmp_path, caplog):
    goal, path = Minimize("loss", rank_by="eval_loss"), tmp_path / "s.db"
    study = Study({"x": Float(0.0, 1.0)}, goal, path, max_epochs=2, policy=RandomSearch(), budget="3 trials", seed=0)
    with caplog.at_level("INFO", "haltune"):
        for trial in study:
            for epoch in trial.epochs():
                trial.report({"loss": 0.125 * trial.id / epoch, "eval_loss": 9.5 - trial.id})
    assert "Trial 2 trained in full, 2 epochs: loss 0.125, eval_loss 7.5, the best eval_loss so far" in caplog.text
    assert "best eval_loss 7.5 (trial 2, epoch 2)" in haltune("status", path)
    assert haltune("best", path).startswith("eval_loss = 7.5 at epoch 2 of trial 2")
    best = strict(haltune("best", path, "--format", "json"))
    assert (best["metric"], best["value"]) == ("eval_loss", 7.5)
    page = study.report(tmp_path / "s.html").read_text()
    assert "<b>7.5</b> <small>lowest eval_loss after 2 epochs" in page
    assert "the best, trial 2, reaches eval_loss 7.5 at epoch 2" in page
    assert "The best eval_loss is 7.5, found after 6 epochs; the first was 9.5" in page
    assert study.recommend().trial == 2


def test_explain_is_short_first_and_whole_on_demand_and_knows_the_best(ranked):
    short = haltune("explain", ranked, "best")
    assert short == haltune("explain", ranked, 1)
    assert short.splitlines()[0] == "trial 1: trained in full"
    assert "acc            0.6, after epoch 4" in short
    assert re.search(r"proposed +drawn at random", short)
    assert "epoch 2" not in short
    assert "ended because  ValueError: no" in haltune("explain", ranked, 3)
    whole = haltune("explain", ranked, "best", "--all")
    assert [f"epoch {n}" in whole for n in (1, 2, 3, 4)] == [True] * 4
    assert "its number, or best" in haltune("explain", ranked, "worst", code=2)


def test_a_report_without_a_name_is_called_like_its_file_and_overwrites_nobodys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Study(PROBLEM, RandomSearch(trials=1), f"{name}.db")
        assert haltune("report", f"{name}.db").strip() == str(tmp_path / f"{name}.html")
    (tmp_path / "a.html").write_text("<html>of somebody else</html>")
    assert "no page of haltune's" in haltune("report", "a.db", code=2)
    assert "no page of haltune's" in haltune("report", "b.db", "-o", "a.html", code=2)
    assert (tmp_path / "a.html").read_text() == "<html>of somebody else</html>"
    haltune("report", "b.db")  # its own page is written again


def test_a_note_on_a_trial_is_in_its_explanation_until_it_is_removed(ranked):
    assert "trial 1 of study has this note" in haltune("note", ranked, "1", " too wide #rerun ")
    assert re.search(r"note +too wide #rerun\n", haltune("explain", ranked, "1"))
    haltune("note", ranked, "1", "")
    assert "too wide" not in haltune("explain", ranked, "1")
    assert "there is no trial 99" in haltune("note", ranked, "99", "x", code=2)
    assert "at most 2000 characters" in haltune("note", ranked, "1", "x" * 2001, code=2)


def test_a_configuration_is_enqueued_and_waits_in_the_status(tmp_path):
    path = tmp_path / "s.db"
    space = Space({"lr": Float(1e-4, 1.0, log=True), "opt": Choice(["adam", "sgd"])})
    study = Study(Problem(space, Maximize("acc"), 4), RandomSearch(), path, seed=0, budget=Budget(trials=3))
    assert "enqueued" in haltune("enqueue", path, "lr=1e-3", "opt=sgd")
    assert "Not enqueued" in haltune("enqueue", path, "lr=1e-3", "opt=sgd")
    assert "enqueued: lr=0.001, opt=sgd" in haltune("status", path)
    assert strict(haltune("status", path, "--format", "json"))["queue"] == [{"lr": 0.001, "opt": "sgd"}]
    first = study.ask()
    assert first.config == {"lr": 0.001, "opt": "sgd"}
    study.tell(first, 0.5)
    assert "name=value" in haltune("enqueue", path, "lr", code=2)
    assert "with spaces between them" in haltune("enqueue", path, "lr=1e-3,opt=sgd", code=2)
    haltune("enqueue", path, "lr=1", code=2)
    for trial in study:
        trial.report(0.5)
    told = haltune("enqueue", path, "lr=2e-3", "opt=sgd")
    assert "enqueued; the search is over" in told
    assert "run haltune resume ... --trials 50 -- python train.py" in told


def test_the_command_line_is_a_module_too():
    done = subprocess.run([sys.executable, "-m", "haltune", "--help"], capture_output=True, text=True, check=True)
    assert "Run a search for good hyperparameters" in done.stdout
