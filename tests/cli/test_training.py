"""haltune run, stop and resume: a search from the shell, over any program."""

import os
import signal
import subprocess
import sys

import pytest
from trainings import wait_for
from typer.testing import CliRunner

from haltune import Budget, load_study
from haltune.cli import doctor as frameworks
from haltune.cli.app import app
from haltune.cli.common import find
from haltune.cli.study_file import read
from haltune.log.events import Reported, Status
from haltune.store.studies import hold
from haltune.study.view import read_study

TOML = """
[study]
max_epochs = 4
seed = 5
[goal]
maximize = "acc"
bounds = [0, 1]
[space]
lr = { float = [1e-4, 1.0], log = true }
[policy]
name = "RandomSearch"
trials = 3
"""
TRAIN = """
import os, time
from pathlib import Path
import haltune

trial = haltune.current_trial({"lr": 0.1}, max_epochs=4)
gate = Path("gate")
with trial:
    assert trial.epoch == (int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0)
    for epoch in trial.epochs():
        if epoch == 2:
            Path(f"waits.{trial.id}").touch()
            end = time.monotonic() + 100
            while not gate.exists() and time.monotonic() < end:
                time.sleep(0.02)
        stops = trial.report(trial.config["lr"] * epoch / 4).stops
        trial.save(lambda path: path.write_text(str(epoch)))
        if stops:
            break
"""
PROGRAM = ["--", sys.executable, "train.py"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a study file and a program, and as the working directory."""
    (tmp_path / "digits.toml").write_text(TOML)
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return tmp_path


def haltune(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "haltune.cli", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process, code):
    """Return the output of a command on both channels; check its exit code."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == code, (out, errors)
    return out + errors


def told(*words, code=0):
    """Return the output of a command in this process; check its exit code."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def history(folder):
    return read_study(*find(str(folder / "digits.toml"))).history


def epochs_reported(folder):
    store, name = find(str(folder / "digits.toml"))
    return [(e.trial, e.epoch) for e in store.read(name) if isinstance(e, Reported)]


def waits(folder):
    return len(list(folder.glob("waits.*")))


@pytest.mark.slow
def test_a_search_is_stopped_from_another_shell_resumed_and_ends_where_it_would_have(folder):
    run = haltune("run", "--study", "digits.toml", "--workers", "2", *PROGRAM)
    wait_for(lambda: waits(folder) == 2)
    assert "stops: each trial ends after its current epoch" in ended(haltune("stop", "digits.toml"), 0)
    (folder / "gate").touch()
    assert "haltune resume" in ended(run, 4)
    assert [(t.status, t.epoch, t.checkpoint_epoch) for t in history(folder).trials] == [(Status.INTERRUPTED, 2, 2)] * 2
    resumed = ended(haltune("resume", "digits.db", *PROGRAM), 0)  # the log alone is enough
    assert "3 trials" in resumed
    assert [(t.status, t.epoch) for t in history(folder).trials] == [(Status.COMPLETED, 4)] * 3
    assert len(epochs_reported(folder)) == len(set(epochs_reported(folder))) == 12


@pytest.mark.slow
def test_a_held_search_starts_no_trial_until_it_is_lifted(folder):
    (folder / "gate").touch()
    (folder / "digits.toml").write_text(TOML + "\n[budget]\ntrials = 1\n")
    assert "1 trial:" in ended(haltune("run", "--study", "digits.toml", *PROGRAM), 0)
    hold(*find("digits.toml", writing=True), "stopped by `haltune stop`")
    (folder / "digits.toml").write_text(TOML)
    assert "stopped by" in ended(haltune("run", "--study", "digits.toml", *PROGRAM), 4)
    assert len(history(folder).trials) == 1
    assert "may continue" in ended(haltune("resume", "digits.toml"), 0)
    assert "was not stopped" in ended(haltune("resume", "digits.toml"), 0)
    assert "2 trials" in ended(haltune("resume", "digits.toml", "--trials", "2", *PROGRAM), 0)


def test_the_study_that_resume_names_trains_and_not_that_of_its_study_file(folder):
    (folder / "gate").touch()
    (folder / "digits.toml").write_text(TOML.replace("trials = 3", "trials = 1"))
    read("digits.toml").open(name="another")
    told("resume", "digits.toml", "--name", "another", *PROGRAM)
    assert [t.status for t in load_study("digits.db").trials] == [Status.COMPLETED]  # the only study there


@pytest.mark.slow
def test_a_study_file_with_a_wider_space_takes_the_search_on(folder, monkeypatch):
    monkeypatch.setattr(frameworks, "_CALLBACKS", {})  # the doctor would import them all
    (folder / "gate").touch()
    random = TOML.replace("trials = 3", "[budget]\ntrials = 2")
    (folder / "digits.toml").write_text(random)
    told("run", "--study", "digits.toml", *PROGRAM)
    before = [t.config for t in history(folder).trials]
    wide = random.replace("1.0]", "9.0]").replace("[policy]", 'kernel = { choice = ["a", "b"] }\n[policy]')
    (folder / "digits.toml").write_text(wide)
    assert "'kernel' is new" in told("run", "--study", "digits.toml", *PROGRAM, code=3)
    (folder / "digits.toml").write_text(wide.replace('{ choice = ["a", "b"] }', '"a"'))
    told("run", "--study", "digits.toml", *PROGRAM)
    (folder / "digits.toml").write_text(wide.replace("trials = 2", "trials = 4"))
    told("run", "--study", "digits.toml", "--price", "2.5", *PROGRAM)
    spent = history(folder).spent
    assert 0 < spent.money(None) == pytest.approx(spent.priced_time / 3600 * 2.5)
    assert "5 trials" in told("resume", "digits.db", "--trials", "5", "--trials-without-gain", "50", *PROGRAM)
    assert history(folder).recorded == Budget(trials=5, trials_without_gain=50)
    configs = [t.config for t in history(folder).trials]
    assert configs[:2] == [{**config, "kernel": "a"} for config in before]
    assert "b" in {config["kernel"] for config in configs}
    told("report", "digits.db")
    assert "kernel" in (folder / "digits.html").read_text()
    assert "decisions replayed" in told("doctor", "digits.db")


@pytest.mark.slow
def test_ctrl_c_saves_and_exits_with_4_and_twice_leaves_with_130(folder):
    run = haltune("run", "--study", "digits.toml", *PROGRAM)
    wait_for(lambda: waits(folder) == 1)
    run.send_signal(signal.SIGINT)
    assert any("Ctrl-C received" in line for line in run.stderr)
    run.send_signal(signal.SIGINT)
    assert "interrupted. To continue the search, run the same command again" in ended(run, 130)
    assert [(t.status, t.epoch) for t in history(folder).trials] == [(Status.INTERRUPTED, 1)]
    (folder / "waits.0").unlink()

    run = haltune("run", "--study", "digits.toml", *PROGRAM)
    wait_for(lambda: waits(folder) == 1)
    run.send_signal(signal.SIGINT)
    assert any("Ctrl-C received" in line for line in run.stderr)
    (folder / "gate").touch()
    assert "stopped by Ctrl-C" in ended(run, 4)
    assert [(t.status, t.epoch) for t in history(folder).trials] == [(Status.INTERRUPTED, 2)]


def test_each_failure_has_its_exit_code_and_a_sentence(folder):
    (folder / "broken.py").write_text("import no_such_package")
    said = ended(haltune("run", "--study", "digits.toml", "--", sys.executable, "broken.py"), 1)
    assert "No module named 'no_such_package'" in said
    said = told("run", "--study", "digits.toml", "--", "no-such-program", code=2)
    assert "Cannot start 'no-such-program'" in said
    (folder / "gate").touch()
    told("run", "--study", "digits.toml", *PROGRAM, code=0)  # what was reported holds to its problem
    (folder / "digits.toml").write_text(TOML.replace("max_epochs = 4", "max_epochs = 5"))
    assert "max_epochs" in told("run", "--study", "digits.toml", *PROGRAM, code=3)  # another problem


def test_what_is_not_there_has_its_exit_code_and_a_sentence(folder):
    for words, code, told in [
        (("run", "--study", "none.toml", *PROGRAM), 2, "there is no study file none.toml"),
        (("resume", "none.db", *PROGRAM), 3, "there is no file"),
    ]:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == code, (done.output, done.exception)
        assert told in done.stderr
