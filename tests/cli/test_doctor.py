"""haltune doctor: it finds each problem and advises; it confirms a healthy search."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from trainings import PROBLEM, a_study, steady
from typer.testing import CliRunner
from worlds import POLICIES, problem

from haltune import Float, Space, Study
from haltune.cli import doctor as frameworks
from haltune.cli.app import app
from haltune.log.problem import Problem
from haltune.policies import RandomSearch

TOML = """
[study]
store = "search.db"
max_epochs = 4
[goal]
maximize = "acc"
bounds = [0, 1]
[space]
lr = { float = [1e-4, 1.0], log = true }
[policy]
name = "RandomSearch"
trials = 2
"""
TRAIN = """
import random
from pathlib import Path
import haltune

trial = haltune.current_trial({"lr": 0.1}, max_epochs=4)
rng = random.Random(SEED)
saved = Path(trial.checkpoint).read_text().split() if trial.checkpoint else ["0", "0.0"]
for _ in range(int(saved[0])):
    rng.random()
state = float(saved[1])
with trial:
    for epoch in trial.epochs():
        state += trial.config["lr"] * rng.random()
        stops = trial.report(state / 10, metrics={"draw": state}).stops
        trial.save(lambda path: path.write_text(f"{epoch} {STATE}"))
        if stops:
            break
"""


@pytest.fixture
def doctor(tmp_path_factory, monkeypatch):
    """Runs the doctor, without importing the frameworks; the findings that match, and its exit code."""
    monkeypatch.setattr(frameworks, "_CALLBACKS", {})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def call(*arguments):
        done = CliRunner().invoke(app, ["doctor", *map(str, arguments)])
        assert "Traceback" not in done.output, done.output
        return done.stdout, done.exit_code

    return call


def trained(folder, **options):
    study = a_study(folder, 2, **options)
    for trial in study:
        with trial:
            steady(trial)
    return study


def test_a_healthy_search_is_well(doctor, tmp_path):
    trained(tmp_path)
    told, code = doctor(tmp_path / "search.db")
    assert code == 0
    for well in (
        "opens",
        "can be written to",
        "journal is WAL",
        "the file is whole",
        "of 2 trials folded",
        "replayed to the same",
    ):
        assert f"ok   {well}" in told.replace("store        ", "").replace("log          ", "") or well in told
    assert "BAD" not in told


def test_the_log_of_a_policy_with_a_model_replays(doctor, tmp_path):
    study = a_study(tmp_path, 4, POLICIES["bobos"](), problem=problem())
    for trial in study:
        with trial:
            steady(trial)
    told, code = doctor(tmp_path / "search.db")
    assert code == 0
    assert "decisions replayed to the same" in told


def test_findings_are_json_for_programs(doctor, tmp_path):
    trained(tmp_path)
    told, code = doctor(tmp_path / "search.db", "--format", "json")
    assert code == 0
    assert {finding["about"] for finding in json.loads(told)} == {"store", "log", "checkpoints", "frameworks"}


def test_a_study_file_before_its_first_run_is_well_and_nothing_is_made(doctor, tmp_path):
    (tmp_path / "digits.toml").write_text(TOML)
    told, code = doctor(tmp_path / "digits.toml")
    assert code == 0
    assert "--   store        The search 'study' of" in told
    assert "has not started" in told
    assert [path.name for path in tmp_path.iterdir()] == ["digits.toml"]


def test_a_damaged_file_is_found(doctor, tmp_path):
    study = trained(tmp_path)
    study.session.replica.store.close()
    path = tmp_path / "search.db"
    with sqlite3.connect(path) as c:
        c.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = c.execute("SELECT rootpage FROM sqlite_master WHERE name='haltune_events'").fetchone()
        size = c.execute("PRAGMA page_size").fetchone()[0]
    c.close()
    data = bytearray(path.read_bytes())
    data[size * (page - 1) : size * page] = os.urandom(size)
    path.write_bytes(data)
    told, code = doctor(path)
    assert code == 1
    assert "BAD  store" in told
    path.write_text("no database at all " * 999)
    told, code = doctor(path)
    assert (code, "not a database" in told) == (1, True)
    assert doctor(tmp_path / "none.db")[1] == 1


def test_an_event_that_is_gone_is_found(doctor, tmp_path):
    study = trained(tmp_path)
    study.session.replica.store.close()
    with sqlite3.connect(tmp_path / "search.db") as c:
        c.execute("DELETE FROM haltune_events WHERE seq = 2")  # the start of trial 0
    c.close()
    told, code = doctor(tmp_path / "search.db")
    assert code == 1
    assert "BAD  log          event 2 of the study 'study'" in told
    assert "it is missing; the next is event 3" in told


def test_a_decision_that_comes_out_otherwise_is_found(doctor, tmp_path, monkeypatch):
    trained(tmp_path)
    monkeypatch.setattr(RandomSearch, "propose", _others(RandomSearch.propose))
    told, code = doctor(tmp_path / "search.db")
    assert code == 1
    assert "decisions 2 differ now, the first at event 2" in told


def _others(propose):
    return lambda self, state, history, rng: propose(self, state, history, rng.spawn(1)[0])


LOSE = """
import os, sys
from pathlib import Path
from trainings import a_study
a_study(Path(sys.argv[1]), 2).ask()
os._exit(9)
"""


def test_a_lost_worker_is_found(doctor, tmp_path):
    subprocess.run([sys.executable, "-c", LOSE, tmp_path], check=False)
    told, code = doctor(tmp_path / "search.db")
    assert code == 1
    assert "the worker of trial 0, attempt 1" in told
    assert "-> start the search again" in told


def test_a_checkpoint_that_is_gone_is_found(doctor, tmp_path):
    study = a_study(tmp_path)
    trial = study.ask()
    trial.report(0.5)
    path = trial.save(lambda path: path.write_text("x"))
    trial.interrupt()
    assert doctor(tmp_path / "search.db")[1] == 0
    os.remove(path)
    told, code = doctor(tmp_path / "search.db")
    assert code == 1
    assert "the checkpoint of trial 0" in told


def test_what_a_log_cannot_keep_is_said_and_is_no_ailment(doctor, tmp_path):
    space = Space({"lr": Float(0, 1)}, constraints=[lambda c: c["lr"] < 0.9])
    for trial in Study(Problem(space, PROBLEM.goal, 2), RandomSearch(trials=1), tmp_path / "s.db"):
        with trial:
            steady(trial)
    told, code = doctor(tmp_path / "s.db")
    assert code == 0
    assert "cannot be replayed: the space has constraints" in told


LOSSY = {"{STATE}": "{state:.3f}"}, "a pause changes the training: the value of epoch 2 is", 1
TIMED = {"import random": "import random, time", '{"draw": state}': '{"draw": state, "took": time.perf_counter()}'}


@pytest.mark.parametrize(
    ("replaced", "finds", "code"),
    [
        ({}, "it reports exactly the same", 0),
        pytest.param(*LOSSY, marks=pytest.mark.slow),
        pytest.param({"SEED": "None"}, "two trainings without a pause differ", 1, marks=pytest.mark.slow),
        pytest.param(
            TIMED,
            "it reports exactly the same 3 epochs; the metric 'took' differs without a pause, too",
            0,
            marks=pytest.mark.slow,
        ),
        pytest.param(TIMED | LOSSY[0], *LOSSY[1:], marks=pytest.mark.slow),
        pytest.param({"trial.save(": "id("}, "nothing was saved at the pause", 1, marks=pytest.mark.slow),
        ({"import random": "import no_such_package"}, "No module named 'no_such_package'", 1),
    ],
    ids=["exact", "lossy", "unseeded", "timed", "timed and lossy", "unsaved", "broken"],
)
def test_a_program_is_rehearsed_with_a_pause(replaced, finds, code, doctor, tmp_path):
    (tmp_path / "digits.toml").write_text(TOML)
    program = TRAIN
    for old, new in [*replaced.items(), ("SEED", "7"), ("{STATE}", "{state!r}")]:
        program = program.replace(old, new)
    (tmp_path / "train.py").write_text(program)
    told, ended = doctor(tmp_path / "digits.toml", "--", sys.executable, tmp_path / "train.py")
    assert finds in told, told
    assert ended == code
    assert not (tmp_path / "search.db").exists()
    left = list(Path(tempfile.gettempdir()).glob("haltune-doctor-*"))
    assert [folder.exists() for folder in left] == [True] * code  # what the program printed, where that matters


SELDOM = """
from pathlib import Path
import haltune

trial = haltune.current_trial()
epoch, state = (Path(trial.checkpoint).read_text() if trial.checkpoint else "0 0.0").split()
state = float(state)
with trial:
    for epoch in range(int(epoch) + 1, 5):
        state += trial.config["lr"] / epoch
        if epoch % EVERY == 0:
            stops = trial.report(state / 10, epoch).stops
            trial.save(lambda path: path.write_text(f"{epoch} {state!r}"))
            if stops:
                break
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "finds"),
    [
        (2, "paused after epoch 2, it reports exactly the same 4 epochs"),
        (3, "reports nothing after epoch 3, so a pause cannot be judged"),
    ],
)
def test_a_program_that_does_not_report_each_epoch_is_rehearsed_by_its_reports(every, finds, doctor, tmp_path):
    (tmp_path / "search.toml").write_text(TOML)
    (tmp_path / "train.py").write_text(SELDOM.replace("EVERY", str(every)))
    told, ended = doctor(tmp_path / "search.toml", "--", sys.executable, tmp_path / "train.py")
    assert finds in told, told
    assert ended == 0


IN_STEPS = """
from pathlib import Path
import haltune

trial = haltune.current_trial()
step, state = (Path(trial.checkpoint).read_text() if trial.checkpoint else "0 0.0").split()
state = float(state)
with trial:
    for step in trial.steps():
        state += trial.config["lr"] / step
        if step % EVERY == 0:
            stops = trial.report(state, step=step).stops
            trial.save(lambda path: path.write_text(f"{step} {STATE}"))
            if stops:
                break
"""


@pytest.mark.parametrize(
    ("state", "every", "finds", "code"),
    [
        pytest.param(
            "{state!r}", 10, "paused after step 10, it reports exactly the same 30 steps", 0, marks=pytest.mark.slow
        ),
        pytest.param(
            "{state:.2f}", 10, "a pause changes the training: the value of step 20 is", 1, marks=pytest.mark.slow
        ),
        ("{state!r}", 40, "the program reports only at the end, at step 40", 0),
    ],
)
def test_a_program_that_counts_steps_is_rehearsed_by_its_reports(state, every, finds, code, doctor, tmp_path):
    toml = TOML.replace("max_epochs = 4", "max_steps = 40").replace("bounds = [0, 1]\n", "")
    (tmp_path / "search.toml").write_text(toml)
    (tmp_path / "train.py").write_text(IN_STEPS.replace("{STATE}", state).replace("EVERY", str(every)))
    told, ended = doctor(tmp_path / "search.toml", "--", sys.executable, tmp_path / "train.py")
    assert finds in told, told
    assert ended == code


@pytest.mark.slow
def test_a_program_that_counts_steps_and_continues_after_the_verdict_is_found(doctor, tmp_path):
    toml = TOML.replace("max_epochs = 4", "max_steps = 40").replace("bounds = [0, 1]\n", "")
    (tmp_path / "search.toml").write_text(toml)
    program = IN_STEPS.replace("{STATE}", "{state!r}").replace("EVERY", "10").replace("if stops:", "if False:")
    (tmp_path / "train.py").write_text(program.replace("trial.steps()", "range(int(step) + 1, 41)"))
    told, ended = doctor(tmp_path / "search.toml", "--", sys.executable, tmp_path / "train.py")
    assert "continued after the verdict to stop at step 10" in told, told
    assert ended == 1


@pytest.mark.slow
def test_each_framework_that_is_installed_is_imported_with_its_callback():
    found = list(frameworks.frameworks())
    assert all(finding.well is not False for finding in found), found
    assert sum(finding.well is True for finding in found) >= 1


def test_each_framework_that_has_a_callback_and_an_extra_is_looked_for():
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    callbacks = {path.stem for path in (root / "callbacks").iterdir()}
    known = {own for _, own in frameworks._CALLBACKS.values()}
    names = {*extras, *(re.match(r"[\w-]+", one)[0] for extra in extras.values() for one in extra)}
    lacking = ({name.replace("-", "_") for name in names} & callbacks) - known
    assert lacking == set(), "each needs a line in _CALLBACKS of cli/doctor.py"


def test_a_framework_that_cannot_be_imported_is_found(monkeypatch):
    monkeypatch.setattr(frameworks, "_CALLBACKS", {"pytest": ("pytest", "no_such_callback")})
    finding = next(iter(frameworks.frameworks()))
    assert finding.well is False
    assert "no_such_callback" in finding.text
