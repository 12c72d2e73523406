"""Whatever ends a worker, the search goes on, and the log says what happened."""

import re

import pytest
from trainings import a_study, buggy, greedy, mortal, steady

from haltune import Budget
from haltune.errors import TrainingFailed
from haltune.launch import run
from haltune.log.events import Ended, Expired, Status
from haltune.study.replay import replay


@pytest.fixture(scope="module")
def survived(tmp_path_factory):
    """A search in which one run in each way to die ended so, the first having gone well."""
    study = a_study(tmp_path_factory.mktemp("survived"), 8, max_retries=1)
    first = study.ask()
    with first:
        steady(first)
    outcome = run(study, mortal, workers=2, retry_on=ConnectionError, progress=False, gpus=None)
    return study, outcome


def losses(study, trial):
    return [e.reason for e in study.events() if isinstance(e, Expired) and e.trial == trial]


def test_the_search_ends_as_if_no_worker_had_died(survived):
    study, outcome = survived
    assert outcome.over
    assert [str(t.status) for t in study.trials] == [
        "completed", "completed", "failed", "completed", "failed", "completed", "completed", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("trial", "why"), [(1, "killed by SIGSEGV (a fault in compiled code)"), (3, "ended with exit status 3")]
)
def test_a_run_whose_process_died_is_offered_again_and_the_log_says_how_it_died(survived, trial, why):
    study, _ = survived
    (reason,) = losses(study, trial)
    assert why in reason
    assert study.trials[trial].attempt == 2
    assert list(study.trials[trial].epochs) == [1, 2, 3, 4]


def test_a_run_that_dies_each_time_has_failed_after_its_last_retry(survived):
    study, _ = survived
    assert len(losses(study, 2)) == 2  # max_retries=1
    assert "SIGKILL (out of memory?)" in study.trials[2].error


def test_an_exception_is_recorded_with_its_traceback_and_not_tried_again(survived):
    study, _ = survived
    (ended,) = [e for e in study.events() if isinstance(e, Ended) and e.trial == 4]
    assert ended.status is Status.FAILED
    assert ended.error == "ValueError: [bold]this learning rate[/] is no good"
    assert "in mortal" in ended.traceback


def test_an_exception_of_retry_on_and_an_exit_of_the_training_are_tried_again(survived):
    study, _ = survived
    assert losses(study, 5) == ["ConnectionError: the data server was away"]
    assert losses(study, 6) == ["the training called sys.exit(2)"]


def test_what_a_run_prints_is_in_a_file_of_its_trial_whose_name_the_log_gives(survived):
    study, _ = survived
    path = re.search(r"see (\S+)", study.trials[2].error)[1]
    with open(path) as file:
        assert file.read() == "trial 2 attempt 1 prints\ntrial 2 attempt 2 prints\n"


def test_nothing_is_leased_when_the_launcher_returns_and_its_log_replays(survived):
    study, _ = survived
    assert study.session.replica.store.leases(study.name) == []
    assert [d for d in replay(study.problem, study.policy, study.events()) if d[1] != d[2]] == []


def test_runs_beyond_their_time_or_memory_have_failed_with_that_reason(tmp_path):
    study = a_study(tmp_path, 4)
    limits = {"trial_timeout": "9s", "memory_limit": "500MB"}
    assert run(study, greedy, workers=2, progress=False, gpus=None, **limits).over
    assert [str(t.status) for t in study.trials] == ["completed", "failed", "failed", "completed"]
    assert re.match(r"trial_timeout: it ran for \d+ s, and 9 s are allowed", study.trials[1].error)
    assert re.match(r"memory_limit: it took .*B, and 500 MB are allowed", study.trials[2].error)


def test_an_exception_before_any_run_succeeded_is_a_bug_and_ends_the_search_with_its_traceback(tmp_path):
    study = a_study(tmp_path)
    with pytest.raises(TrainingFailed, match=r"(?s)in buggy.*KeyError: 'batch_sise of trial 0'"):
        run(study, buggy, progress=False, gpus=None)
    assert [str(t.status) for t in study.trials] == ["failed"]


def test_too_many_failures_in_a_row_end_the_search(tmp_path):
    study = a_study(tmp_path, 20, max_failures=2, budget=Budget(trials=20))
    first = study.ask()
    with first:
        steady(first)
    with pytest.raises(TrainingFailed, match="batch_sise of trial 2"):
        run(study, buggy, progress=False, gpus=None)
    assert len(study.trials) == 3
