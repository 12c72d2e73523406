"""launch.run: the trials of its workers, its errors, and the replay of its log."""

import os
import subprocess
import sys
from functools import partial

import pytest
from returning import squared
from trainings import PROBLEM, a_study, counts_threads, looks_around, saving, steady, wandering
from worlds import POLICIES, problem

from haltune import Budget, Float, Problem, Space, Study
from haltune.errors import InvalidInput, NotSupported
from haltune.launch import run
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Reported, Status
from haltune.policies import Hyperband, RandomSearch
from haltune.study.redecide import redecide

QUIET = {"progress": False, "gpus": None}


def check_the_log(study):
    """Check that decisions replay, and that no worker trained an epoch twice or the trial of another one."""
    assert [d for d in redecide(study.problem, study.policy, study.events()) if d[1] != d[2]] == []
    reports = [(e.trial, e.epoch) for e in study.events() if isinstance(e, Reported)]
    assert len(reports) == len(set(reports))
    assert study.session.replica.store.leases(study.name) == []
    assert not study.history.with_status(Status.RUNNING, Status.INTERRUPTED, Status.FAILED)


@pytest.mark.parametrize("name", ["asha", *(pytest.param(n, marks=pytest.mark.slow) for n in POLICIES if n != "asha")])
def test_a_search_of_four_workers_replays_to_the_same_decisions(name, tmp_path):
    study = a_study(tmp_path, 8, POLICIES[name](), problem=problem())
    assert run(study, saving, workers=4, **QUIET).over
    assert len(study.trials) >= 5 or study.history.finished
    check_the_log(study)


def test_workers_heed_the_budget_that_the_study_has_by_now(tmp_path):
    study = a_study(tmp_path, 3, RandomSearch(trials=3), problem=problem(), budget=Budget(epochs=100))
    study.budget = Budget(epochs=4)
    assert run(study, saving, workers=1, **QUIET).over
    assert sum(t.epoch for t in study.trials) == 4
    assert max(t.attempt for t in study.trials) == 1


@pytest.mark.slow
def test_workers_whose_training_changes_its_folder_write_where_the_launcher_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = Study(PROBLEM, RandomSearch(), "s.db", seed=3, budget=Budget(trials=3), checkpoints="ck")
    assert run(study, wandering, workers=1, logs="logs", **QUIET).over
    check_the_log(study)
    assert max(t.attempt for t in study.trials) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["ck", "elsewhere", "logs"]
    assert [path.name for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_runs_that_pause_continue_in_other_workers_from_their_checkpoints(tmp_path):
    study = a_study(tmp_path, 8, Hyperband(eta=2, rounds=9), problem=problem())
    assert run(study, saving, workers=2, **QUIET).over
    check_the_log(study)
    assert max(t.attempt for t in study.trials) > 1


@pytest.mark.slow
def test_each_worker_sees_one_device_and_shares_it_when_there_are_too_few(tmp_path):
    study = a_study(tmp_path, 3)
    assert run(study, partial(looks_around, tmp_path), workers=3, gpus=[5, "MIG-7"], progress=False).over
    assert sorted(path.read_text() for path in tmp_path.glob("seen.*")) == ["5", "5", "MIG-7"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ or os.environ["CUDA_VISIBLE_DEVICES"] != "MIG-7"


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [
        ([0, "MIG-7"], "0,MIG-7"),
        pytest.param("auto", "3", marks=pytest.mark.slow),
        pytest.param(None, "3,4", marks=pytest.mark.slow),
    ],
)
def test_a_worker_alone_sees_all_devices_that_the_user_names(gpus, seen, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    train = partial(looks_around, tmp_path, workers=1)
    assert run(a_study(tmp_path, 1), train, gpus=gpus, progress=False).over
    assert [path.read_text() for path in tmp_path.glob("seen.*")] == [seen]


def test_a_launcher_that_waits_without_a_trial_logs_once_why(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "haltune")
    answers = [Finish("it is over"), Wait("a worker is silent, and its lease lasts"), Wait("its lease lasts")]
    monkeypatch.setattr(Study, "ask", lambda study: answers.pop())
    run(a_study(tmp_path), steady, gpus=None)
    assert [text for text in caplog.messages if "Waiting" in text] == ["Waiting: its lease lasts"]


CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    ("workers", "own", "found"),
    [
        (2, {}, str(max(1, CPUS // 2))),
        pytest.param(1, {}, "None", marks=pytest.mark.slow),
        pytest.param(2, {"OMP_NUM_THREADS": "7"}, "7", marks=pytest.mark.slow),
        pytest.param(2, {"MKL_NUM_THREADS": "7"}, "None", marks=pytest.mark.slow),
    ],
)
def test_workers_share_the_cpus_unless_the_user_says_otherwise(workers, own, found, tmp_path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    study = a_study(tmp_path, 2)
    assert run(study, partial(counts_threads, tmp_path), workers=workers, **QUIET).over
    assert {path.read_text() for path in tmp_path.glob("threads.*")} == {found}
    assert os.environ.get("OMP_NUM_THREADS") == own.get("OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("options", "teaches"),
    [
        ({"workers": 0}, "workers=0 is not a number of workers"),
        ({"gpus": "all"}, "gpus='all': use 'auto', None, or a list"),
        ({"gpus": 2}, "gpus=2: use 'auto', None, or a list"),
        ({"gpus": ["cuda:0"]}, "not PyTorch's: cuda:0 is 0"),
        ({"trial_timeout": "soon"}, "Cannot read trial_timeout='soon'. Use a positive duration"),
        ({"retry_on": KeyboardInterrupt}, "retry_on="),
    ],
)
def test_an_option_that_does_not_fit_is_refused_before_anything_starts(options, teaches, tmp_path):
    study = a_study(tmp_path)
    with pytest.raises(InvalidInput, match=teaches):
        run(study, steady, **options)
    assert len(study.trials) == 0


def test_a_training_that_no_other_process_can_find_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="Define it with def at the top of a module"):
        run(a_study(tmp_path), lambda trial: steady(trial))
    with pytest.raises(InvalidInput, match="a function that trains"):
        run(a_study(tmp_path), 3)


def test_a_study_with_a_function_that_no_other_process_can_find_is_refused_before_a_trial_starts(tmp_path):
    space = Space(dict(PROBLEM.space.parameters), constraints=[lambda config: config["lr"] > 0.01])
    study = a_study(tmp_path, problem=Problem(space, PROBLEM.goal, 4))
    with pytest.raises(InvalidInput, match=r"cannot import a function of this study .*lambda.* at the top of a module"):
        run(study, steady, **QUIET)
    assert len(study.trials) == 0


@pytest.mark.slow
def test_a_training_of_a_program_that_is_no_file_is_refused(tmp_path):
    """As in a notebook, or at a prompt: the other processes could not import its function."""
    code = """
from haltune import Float, Study
def train(trial):
    trial.report(0.5)
Study({"x": Float(0.0, 1.0)}, "acc", "s.db", max_epochs=1, budget="1 trials").optimize(train, workers=2)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "because this program is not a file" in done.stderr
    assert "%%writefile training.py" in done.stderr


def test_a_study_in_memory_and_what_is_no_study_are_refused():
    with pytest.raises(NotSupported, match="Give it a file"):
        run(Study(PROBLEM, RandomSearch(trials=1)), steady)
    with pytest.raises(InvalidInput, match="is not a Study"):
        run("search.db", steady)


UNGUARDED = """
from trainings import a_study, steady
from pathlib import Path
from haltune.launch import run
run(a_study(Path("."), 2), steady, gpus=None)
"""


@pytest.mark.slow
def test_a_program_without_the_main_guard_gets_an_error_and_ends(tmp_path):
    (tmp_path / "program.py").write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("haltune.errors.TrainingFailed: A worker imports this program, which launches workers again")
    assert last.endswith("under `if __name__ == '__main__':`.")
    assert done.stderr.count("Traceback") == 1
    assert not a_study(tmp_path, 2).history.with_status(Status.FAILED)


def test_a_function_is_optimized_by_several_workers_that_report_what_it_returns(tmp_path):
    study = Study({"x": Float(-1.0, 1.0)}, "loss", tmp_path / "a.db", budget="4 trials", seed=0)
    assert study.optimize(squared, workers=2) is study
    assert [t.values[-1] for t in study.trials] == [t.config["x"] ** 2 for t in study.trials]
    assert [t.epoch for t in study.trials] == [1] * 4
