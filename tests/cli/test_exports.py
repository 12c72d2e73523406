"""Taking a search elsewhere: tables, TensorBoard and figures hold what the log does."""

import csv
import io
import json
import math
import os
import subprocess
import sys
from types import ModuleType

import pytest
from typer.testing import CliRunner

from haltune import Budget, Choice, Float, Maximize, Minimize, Problem, Space, Study
from haltune.cli.app import app
from haltune.policies import RandomSearch, TruVaR


def haltune(*arguments, code=0):
    """Return the output of the command; check its exit code."""
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"})
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("exports") / "a.db"
    space = Space({"lr": Float(0.01, 1.0), "kind": Choice(["a", 1, None]), "flag": Choice([True, False])})
    study = Study(
        Problem(space, Maximize("acc", (0, 1)), 3), RandomSearch(), f"sqlite:///{path}", seed=0,
        budget=Budget(trials=8), verbose=0,
    )  # fmt: skip
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                value = math.nan if (trial.id, epoch) == (3, 2) else trial.id / 10 + epoch / 100
                trial.report(value, seconds=1.0, metrics={"loss": 1 / epoch})
    return path, study


def test_a_row_for_each_trial_with_its_configuration_and_its_last_metrics(log):
    path, study = log
    rows = list(csv.DictReader(io.StringIO(haltune("export", path, "--of", "trials"))))
    assert [int(row["trial"]) for row in rows] == [t.id for t in study.trials]
    assert [float(row["value"]) for row in rows] == [t.values[-1] for t in study.trials]
    assert [float(row["config.lr"]) for row in rows] == [t.config["lr"] for t in study.trials]
    assert {row["metric.loss"] for row in rows} == {str(1 / 3)}
    assert json.loads(haltune("export", path, "--of", "trials", "--format", "json"))[0]["config.flag"] in (True, False)


def test_the_values_of_several_goals_have_a_column_each(tmp_path):
    goals, path = [Maximize("acc"), Minimize("ms")], tmp_path / "goals.db"
    study = Study({"x": Float(0.0, 1.0)}, goals, path, max_epochs=1, seed=0, budget="2 trials", verbose=0)
    for trial in study:
        trial.report({"acc": 0.5, "ms": 3.0 + trial.id})
    rows = list(csv.DictReader(io.StringIO(haltune("export", path, "--of", "trials"))))
    assert [(row["value.acc"], row["value.ms"]) for row in rows] == [("0.5", "3.0"), ("0.5", "4.0")]
    assert "values" not in rows[0]


def test_parquet_holds_the_same_as_json_each_column_of_one_type(log, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path, _ = log
    for of, count in (("reports", 24), ("trials", 8)):
        out = tmp_path / f"{of}.parquet"
        assert haltune("export", path, "--of", of, "--format", "parquet", "--out", out) == ""
        rows, table = (json.loads(haltune("export", path, "--of", of, "--format", "json")), pd.read_parquet(out))
        assert len(table) == len(rows) == count
        for name in rows[0]:
            told = [None if v is None else str(v) for v in (row[name] for row in rows)]
            if table[name].dtype.kind == "f":
                expected = [float("nan" if row[name] is None else row[name]) for row in rows]
                assert table[name].tolist() == pytest.approx(expected, abs=0, nan_ok=True)
            else:
                assert [None if pd.isna(v) else str(v) for v in table[name]] == told


def test_each_trial_is_a_run_of_tensorboard_with_its_curve_and_configuration(log, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))  # otherwise it imports TensorFlow
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    path, study = log
    said = haltune("export", path, "--format", "tensorboard", "--out", tmp_path / "runs")
    assert said.strip() == f"tensorboard --logdir {tmp_path / 'runs'}"
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [f"trial-{n}" for n in range(8)]
    run = EventAccumulator(str(tmp_path / "runs" / "trial-3"))
    run.Reload()
    assert [(e.step, round(e.value, 5)) for e in run.Scalars("acc")] == [(1, 0.31), (3, 0.33)]  # NaN is left out
    assert [e.step for e in run.Scalars("loss")] == [1, 2, 3]
    content = run.PluginTagToContent("hparams")
    told = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG]).hparams
    config = study.trials[3].config
    assert told["lr"].number_value == config["lr"]
    assert told["flag"].bool_value == config["flag"]
    again = haltune("export", path, "--format", "tensorboard", "--out", tmp_path / "runs", code=2)
    assert "already has a run trial-0" in again
    (tmp_path / "a file").touch()
    no_folder = haltune("export", path, "--format", "tensorboard", "--out", tmp_path / "a file", code=2)
    assert f"Cannot write {tmp_path / 'a file'}: File exists" in no_folder


@pytest.mark.parametrize("to", ["parquet", "tensorboard"])
def test_what_is_no_text_needs_a_place(log, to):
    assert "--out is missing" in haltune("export", log[0], "--format", to, code=2)


def test_the_ending_of_a_file_names_the_format_of_an_export_and_another_one_is_refused(log, tmp_path):
    haltune("export", log[0], "-o", tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text())
    assert "Write .csv, .json or .parquet" in haltune("export", log[0], "-o", tmp_path / "rows.xls", code=2)
    assert not (tmp_path / "rows.xls").exists()


def test_a_figure_is_a_page_of_its_own_or_data(log, tmp_path):
    path, _ = log
    for what in (
        "learning_curves",
        "metrics",
        "progress",
        "edf",
        "budget",
        "parallel",
        "rank",
        "importance",
        "slices",
        "contour",
        "timeline",
    ):
        haltune("figure", path, what, "-o", tmp_path / f"{what}.json")
        assert json.loads((tmp_path / f"{what}.json").read_text(encoding="utf-8"))["data"]
    haltune("figure", path, "progress", "-o", tmp_path / "a.html")
    assert "Plotly.newPlot" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "ends in .html, .json, .png, .svg or .pdf" in haltune("figure", path, "progress", "-o", "a.gif", code=2)


def test_the_figures_of_a_front_and_of_a_level_set_are_files_too(log, tmp_path):
    goals = [Maximize("acc", (0, 1)), Minimize("ms")]
    study = Study({"x": Float(0.0, 1.0)}, goals, tmp_path / "goals.db", max_epochs=1, budget="3 trials", verbose=0)
    for trial in study:
        with trial:
            trial.report({"acc": trial.config["x"], "ms": trial.config["x"]})
    policy = TruVaR(threshold=0.5, rule="gchk", grid=6, initial=4)
    study = Study(
        {"x": Float(0.0, 1.0)}, "acc", tmp_path / "sets.db", max_epochs=1, budget="6 trials", policy=policy, verbose=0
    )
    for trial in study:
        with trial:
            trial.report(trial.config["x"])
    for what, store in (("front", "goals.db"), ("region", "sets.db")):
        haltune("figure", tmp_path / store, what, "-o", tmp_path / f"{what}.json")
        assert json.loads((tmp_path / f"{what}.json").read_text(encoding="utf-8"))["data"]
    assert "region(study.level_set(0.9))" in haltune("figure", log[0], "region", "-o", tmp_path / "a.json", code=2)


def test_no_cell_is_a_formula_and_numbers_are_as_they_are(tmp_path):
    """A user's text may start like a formula; a spreadsheet would run it."""
    path, evil = tmp_path / "evil.db", '=HYPERLINK("http://x","y")'
    space = Space({evil: Choice(["@SUM(A1)", "+1+1", "-2", "plain"]), "x": Float(-1.0, -0.5)})
    study = Study(
        Problem(space, Maximize("-acc"), 1), RandomSearch(), f"sqlite:///{path}", seed=0, budget=Budget(trials=12),
        verbose=0,
    )  # fmt: skip
    for trial in study:
        with trial:
            trial.report(-1e-17 if trial.id else -math.inf)
    for of in ("trials", "reports"):
        rows = list(csv.DictReader(io.StringIO(haltune("export", path, "--of", of))))
        kinds = {row[f"config.{evil}"] for row in rows}
        assert kinds == {"'@SUM(A1)", "'+1+1", "-2", "plain"}
        assert [float(row["config.x"]) for row in rows] == [t.config["x"] for t in study.trials]
        assert [row["value"] for row in rows] == ["-inf", *["-1e-17"] * 11]


def test_into_a_file_or_a_pipe_csv_is_as_it_was_recorded_and_json_is_ascii(tmp_path):
    name = "\x1b[31mred\x07\x9b2J\u202e"
    study = Study({"opt": Choice([name, "sgd"])}, "acc", tmp_path / "s.db", max_epochs=1, policy=RandomSearch(trials=4))
    study.optimize(lambda trial: 0.5)
    recorded = [t.config["opt"] for t in study.trials]
    assert name in recorded

    def exported(*arguments):
        done = CliRunner().invoke(app, list(map(str, ["export", tmp_path / "s.db", *arguments])))
        assert done.exit_code == 0
        return done.stdout_bytes.decode("utf-8")

    assert [row["config.opt"] for row in csv.DictReader(io.StringIO(exported(), newline=""))] == recorded
    exported("-o", tmp_path / "s.csv")
    with open(tmp_path / "s.csv", encoding="utf-8", newline="") as file:
        assert [row["config.opt"] for row in csv.DictReader(file)] == recorded
    told = exported("--format", "json")
    assert [row["config.opt"] for row in json.loads(told)] == recorded
    assert told.replace("\n", "").isprintable()
    assert told.isascii()


@pytest.mark.slow
def test_a_pipe_gets_an_export_and_a_page_and_stays_a_pipe(log, tmp_path):
    path, _ = log
    os.mkfifo(pipe := tmp_path / "pipe")
    reading = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        haltune("export", path, "--format", "csv", "--out", pipe)
        assert pipe.is_fifo()
        assert os.read(reading, 2**16).decode().replace("\r\n", "\n") == haltune("export", path)
    finally:
        os.close(reading)
    command = [sys.executable, "-m", "haltune.cli", "report", path, "--out", "/dev/stdout"]
    assert "<h1><b>" in subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("of", ["reports", "trials"])
def test_an_export_of_a_study_without_trials_has_the_columns_of_one_with_trials(log, tmp_path, of):
    path, study = log
    assert Study(study.problem, RandomSearch(trials=1), tmp_path / "new.db", verbose=0).trials == []
    header = haltune("export", tmp_path / "new.db", "--of", of).splitlines()[0].split(",")
    whole = haltune("export", path, "--of", of).splitlines()[0].split(",")
    assert header == [name for name in whole if not name.startswith(("metric.", "tag."))]
    assert (
        json.loads(haltune("export", tmp_path / "new.db", "--of", of, "--format", "json")) == []
    )  # a row has the names


@pytest.mark.parametrize("of", ["reports", "trials"])
def test_a_parquet_file_without_rows_has_the_columns_of_csv(tmp_path, of):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path, out = tmp_path / "new.db", tmp_path / "new.parquet"
    assert Study({"lr": Float(0.01, 1.0)}, "acc", path, max_epochs=3, budget="1 trial", verbose=0).trials == []
    assert haltune("export", path, "--of", of, "--format", "parquet", "--out", out) == ""
    assert list(pd.read_parquet(out).columns) == haltune("export", path, "--of", of).splitlines()[0].split(",")


@pytest.mark.parametrize("of", ["reports", "trials"])
def test_each_row_of_json_has_the_columns_of_csv(tmp_path, of):
    path = tmp_path / "s.db"
    study = Study({"lr": Float(0.01, 1.0)}, "acc", path, max_epochs=1, budget="2 trials", verbose=0)
    for trial in study:
        trial.report(0.5, metrics={"loss": 1.0} if trial.id else {})
    columns = haltune("export", path, "--of", of).splitlines()[0].split(",")
    rows = json.loads(haltune("export", path, "--of", of, "--format", "json"))
    assert [list(row) for row in rows] == [columns] * 2
    assert [row["metric.loss"] for row in rows] == [None, 1.0]
