"""run_script: any program as the training, and the trial that it finds in its environment."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
from curves import accuracy
from processes import ends
from trainings import PROBLEM, a_study

import haltune
from haltune import Budget, Maximize, Problem, Study
from haltune.errors import InvalidInput, NotSupported, StoreError, TrainingFailed
from haltune.launch import run_script
from haltune.log.events import Expired, Status
from haltune.policies import EI, RandomSearch, SuccessiveHalving
from haltune.study.loading import VARIABLE

TRAIN = """
import os, signal, sys
from pathlib import Path
import haltune
from curves import accuracy
from processes import ends

trial = haltune.current_trial({"lr": 0.01}, goal=haltune.Maximize("acc"), max_epochs=4)
assert haltune.current_trial() is trial
print(f"trial {trial.id} attempt {trial.attempt} of {trial.config}")
if MORTAL and trial.id == 1 and trial.attempt == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if MORTAL and trial.id == 2:
    sys.exit("no such data: pr\\u00e9cision")
if MORTAL and trial.id == 3:
    raise ValueError("outside")
with trial:
    if MORTAL and trial.id == 4:
        raise ValueError("inside")
    saved = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
    assert saved == trial.epoch
    for epoch in trial.epochs():
        stops = trial.report(accuracy(trial.config, epoch), seconds=1.0).stops
        trial.save(lambda path: path.write_text(str(epoch)))
        if stops:
            break
print("done", flush=True)
"""
QUIET = {"progress": False, "gpus": None}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a program; the command that starts it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def write(text=TRAIN, mortal=False):
        (tmp_path / "train.py").write_text(f"MORTAL = {mortal}\n{text}", encoding="utf-8")
        return [sys.executable, str(tmp_path / "train.py")]

    return write


def test_a_program_is_started_once_for_each_attempt_and_pauses_and_resumes(program, tmp_path):
    study = a_study(tmp_path, 2, SuccessiveHalving(n=2, eta=2, rounds=1))
    assert run_script(study, program(), workers=1, **QUIET).over
    for t in study.trials:
        assert list(t.values) == [accuracy(t.config, e) for e in t.epochs]
    attempts = sum(t.attempt for t in study.trials)
    printed = [path.read_text() for path in tmp_path.glob("search.logs/study-*/trial-*.log")]
    assert "".join(printed).count("done") == attempts > len(study.trials)


@pytest.mark.slow
def test_a_program_that_dies_or_fails_does_not_end_the_search_and_the_log_says_what_it_said(program, tmp_path):
    study = a_study(tmp_path, 6)
    with study.ask() as first:
        for epoch in first.epochs():
            first.report(0.5, epoch, seconds=1.0)
    assert run_script(study, program(mortal=True), workers=2, **QUIET).over
    assert [str(t.status) for t in study.trials] == [
        "completed", "completed", "failed", "failed", "failed", "completed",
    ]  # fmt: skip
    assert study.trials[1].attempt == 2
    assert study.trials[2].error == "ended with exit status 1: no such data: précision"
    assert study.trials[3].error == "ended with exit status 1: ValueError: outside"
    assert study.trials[4].error == "ValueError: inside"


def test_a_program_that_fails_at_once_ends_the_search_with_what_it_printed(program, tmp_path):
    study = a_study(tmp_path)
    with pytest.raises(TrainingFailed, match=r"(?s)this is no python.*SyntaxError"):
        run_script(study, program("this is no python"), **QUIET)
    assert [str(t.status) for t in study.trials] == ["failed"]


@pytest.mark.slow
def test_a_program_that_haltune_refuses_when_it_resumes_ends_the_search(program, tmp_path):
    study = a_study(tmp_path, 2, SuccessiveHalving(n=2, eta=2, rounds=1))
    loads_nothing = TRAIN.replace("saved == trial.epoch", "True").replace(
        "int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0", "0"
    )
    with pytest.raises(TrainingFailed, match=r"has not read trial\.checkpoint"):
        run_script(study, program(loads_nothing), workers=1, **QUIET)
    assert sorted(t.attempt for t in study.trials) == [1, 2]


def test_a_program_that_is_preempted_gives_its_trial_back_and_the_search_continues(program, tmp_path):
    study = a_study(tmp_path, 1)
    preempted = TRAIN.replace(
        "        if stops:",
        """        if trial.attempt == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if stops:""",
    )
    assert run_script(study, program(preempted), workers=1, **QUIET).over
    (t,) = study.trials
    assert (t.attempt, t.status, list(t.epochs)) == (2, Status.COMPLETED, [1, 2, 3, 4])


def test_a_program_that_a_signal_ended_under_a_shell_is_offered_again(tmp_path):
    study = a_study(tmp_path, 1)
    assert run_script(study, ["sh", "-c", "exit 143"], workers=1, **QUIET).over
    (t,) = study.trials
    assert (t.attempt, t.status) == (3, Status.FAILED)
    assert "was killed by SIGTERM" in t.error


def test_a_full_disk_when_a_program_has_died_does_not_keep_its_slot_for_ever(tmp_path, monkeypatch):
    study, full = a_study(tmp_path, 1, max_retries=0), []

    def append(name, events, **options):
        if isinstance(events[0], Expired) and not full:
            full.append(True)
            raise StoreError("database or disk is full")
        return type(study.store).append(study.store, name, events, **options)

    monkeypatch.setattr(study.store, "append", append)
    assert run_script(study, ["sh", "-c", "kill -9 $$"], workers=1, **QUIET).over
    assert full
    assert [t.status for t in study.trials] == [Status.FAILED]


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_ended_with_all_that_it_started(program, tmp_path):
    study = a_study(tmp_path, 2)
    text = """
import haltune, subprocess, sys
trial = haltune.current_trial()
for epoch in trial.epochs():
    trial.report(0.5)
if trial.id == 1:
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid, flush=True)
    import time; time.sleep(3600)
"""
    run_script(study, program(text), trial_timeout=9, **QUIET)
    assert [str(t.status) for t in study.trials] == ["completed", "failed"]
    assert study.trials[1].error.startswith("trial_timeout")
    assert ends(int(next(tmp_path.glob("search.logs/study-*/trial-1.log")).read_text()))


@pytest.mark.parametrize("code", [0, pytest.param(1, marks=pytest.mark.slow)])  # torchrun ends with 1 after a signal
def test_a_program_that_ends_at_the_signal_of_its_launcher_is_neither_complete_nor_failed(program, tmp_path, code):
    study = a_study(tmp_path, 1)
    text = (
        f"CODE = {code}"
        + """
import haltune, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(CODE))
haltune.current_trial().report(0.5, 1, seconds=1.0)
os.kill(os.getppid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
"""
    )
    with pytest.raises(SystemExit):
        run_script(study, program(text), **QUIET)
    assert [(t.status, t.epoch) for t in study.trials] == [(Status.INTERRUPTED, 1)]


@pytest.mark.slow
def test_two_programs_may_train_a_trial_one_after_the_other(program, tmp_path):
    study = a_study(tmp_path, 1)
    text = """
import haltune
trial = haltune.current_trial()
for epoch in (1, 2):
    trial.report(0.5, trial.epoch + 1, seconds=1.0)
"""
    once = " ".join(program(text))
    run_script(study, ["sh", "-c", f"{once} && {once}"], **QUIET)
    assert [(t.status, t.attempt, list(t.epochs)) for t in study.trials] == [(Status.COMPLETED, 1, [1, 2, 3, 4])]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_program_that_its_own_launcher_starts_again_continues_from_its_last_state(program, tmp_path):
    """As torchrun does with --max-restarts: twice here, each time after a report whose state was not saved."""
    study, again = a_study(tmp_path, 1), tmp_path / "again"
    text = f"""
import haltune, os, signal
from pathlib import Path
trial, killed = haltune.current_trial(), Path({str(again)!r})
assert trial.epoch == (int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0)
with trial:
    for epoch in trial.epochs():
        trial.report(epoch / 10, seconds=1.0)
        if epoch == 3 and (not killed.exists() or killed.read_text() == "1"):
            killed.write_text("2" if killed.exists() else "1")
            os.kill(os.getpid(), signal.SIGKILL)
        trial.save(lambda path: path.write_text(str(epoch)))
"""
    once = " ".join(program(text))
    run_script(study, ["sh", "-c", f"{once} || {once} || {once}"], **QUIET)
    (trial,) = study.trials
    assert (trial.status, trial.attempt, list(trial.epochs)) == (Status.COMPLETED, 3, [1, 2, 3, 4])
    assert not any(isinstance(event, Expired) for event in study.events())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_of_a_program_end_with_it_also_if_they_have_a_session_of_their_own(tmp_path):
    """As the ranks of torchrun."""
    study, rank = a_study(tmp_path, 1), tmp_path / "rank"
    command = f"setsid sh -c 'echo $$ > {rank}; sleep 1000' & sleep 1000"
    run_script(study, ["sh", "-c", command], trial_timeout=2, **QUIET)
    assert study.trials[0].error.startswith("trial_timeout")
    assert ends(rank.read_text().strip())


def test_a_command_that_cannot_be_started_is_an_error_and_its_trial_is_given_back(tmp_path):
    study = a_study(tmp_path)
    with pytest.raises(InvalidInput, match="Cannot start 'no-such-program': No such file"):
        run_script(study, ["no-such-program"], **QUIET)
    assert [t.status for t in study.trials] == [Status.INTERRUPTED]
    for command in ("python train.py", []):
        with pytest.raises(InvalidInput, match="a list of words"):
            run_script(study, command, **QUIET)
    with pytest.raises(NotSupported, match="Give it a file"):
        run_script(Study(PROBLEM, RandomSearch(trials=1)), ["true"])


# -- current_trial ------------------------------------------------------------------------------


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Puts the next trial of a study into the environment, as a launcher does."""
    monkeypatch.setattr(haltune.study.loading, "_trials", {})

    def tell(study):
        trial = study.ask()
        monkeypatch.setenv(VARIABLE, haltune.study.loading.handover_text(study, trial, tmp_path / "marker"))
        return trial

    return tell


def test_without_a_launcher_a_stand_in_trains_the_defaults(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    trial = haltune.current_trial({"lr": 0.1, "layers": [3, 4]}, goal=Maximize("acc"), max_epochs=2)
    assert trial.config == {"lr": 0.1, "layers": [3, 4]}
    with trial:
        assert [trial.report(0.5, epoch).stops for epoch in trial.epochs()] == [False, False]
    assert trial.ended is Status.COMPLETED
    with pytest.raises(InvalidInput, match=r"haltune run search\.toml"):
        haltune.current_trial()


def test_a_program_finds_the_trial_of_its_launcher_and_reports_under_its_lease(told, tmp_path):
    study = a_study(tmp_path)
    theirs = told(study)
    trial = haltune.current_trial({"lr": 0.5})
    assert haltune.current_trial() is trial
    assert (trial.id, trial.config, trial.max_epochs) == (theirs.id, theirs.config, 4)
    trial.report(0.5, seconds=1.0)
    study.sync()
    assert list(study.trials[0].epochs) == [1]
    (lease,) = study.session.replica.store.leases("study")
    assert lease.holder == study.session.holder


def test_the_marker_of_a_leaving_launcher_stops_the_run_resumably_at_its_next_report(told, tmp_path):
    study = a_study(tmp_path)
    told(study)
    trial = haltune.current_trial()
    assert not trial.report(0.5, seconds=1.0).stops
    (tmp_path / "marker").touch()
    verdict = trial.report(0.5, seconds=1.0)
    assert verdict.stops
    assert "asked to stop" in verdict.reason
    trial.finish()
    assert trial.ended is Status.INTERRUPTED


def test_a_study_that_its_log_cannot_rebuild_is_an_error_that_says_what_to_do(told, tmp_path):
    policy = partial(EI, cost="per", cost_function=lambda config: 1.0)
    study = a_study(tmp_path, 4, policy(), name="costs")
    told(study)
    with pytest.raises(NotSupported, match="uses the function"):
        haltune.current_trial()
    assert haltune.current_trial(policy=policy()).id == 0
    constrained = haltune.Space(dict(PROBLEM.space.parameters), constraints=[lambda c: c["lr"] > 0.01])
    problem = Problem(constrained, PROBLEM.goal, 4)
    told(Study(problem, RandomSearch(trials=2), f"sqlite:///{tmp_path / 'other.db'}", budget=Budget(trials=2)))
    with pytest.raises(NotSupported, match="constraints"):
        haltune.current_trial()


LEAVES_BEHIND = """
import subprocess, sys
from pathlib import Path
import haltune

trial = haltune.current_trial({"lr": 0.01}, goal=haltune.Maximize("acc"), max_epochs=4)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], stdout=subprocess.DEVNULL)
Path(f"left-{trial.id}").write_text(str(child.pid))
trial.report(0.5)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_what_a_program_leaves_running_ends_with_it(tmp_path, program, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = Study(PROBLEM, RandomSearch(), tmp_path / "search.db", seed=1, budget=Budget(trials=2))
    run_script(study, program(LEAVES_BEHIND), workers=1, **QUIET)
    for trial in range(2):
        assert ends((tmp_path / f"left-{trial}").read_text())


def changed(**keys):
    """Return a launcher's environment with changes; a key that is None is left out."""

    def change(said):
        told = json.loads(said) | keys
        return json.dumps({name: value for name, value in told.items() if name not in keys or value is not None})

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda said: said[:-9], "JSONDecodeError"),
        (changed(holder=None), "holder"),
        (changed(budget={"evil": 1}), "evil"),
        (changed(store={"url": "s.db", "path": 1}), "path"),
    ],
)
def test_an_environment_that_no_launcher_wrote_is_a_sentence(told, tmp_path, monkeypatch, change, says):
    told(a_study(tmp_path))
    monkeypatch.setenv(VARIABLE, change(os.environ[VARIABLE]))
    with pytest.raises(InvalidInput, match=f"environment variable {VARIABLE} .*{says}") as caught:
        haltune.current_trial()
    assert "haltune run search.toml" in str(caught.value)


@pytest.mark.parametrize(("keys", "says"), [({"trial": 99}, "no trial 99"), ({"attempt": 9}, "Attempt 9 .* is over")])
def test_an_environment_of_another_study_is_a_sentence(told, tmp_path, monkeypatch, keys, says):
    told(a_study(tmp_path))
    monkeypatch.setenv(VARIABLE, changed(**keys)(os.environ[VARIABLE]))
    with pytest.raises(haltune.errors.HaltuneError, match=says):
        haltune.current_trial()
