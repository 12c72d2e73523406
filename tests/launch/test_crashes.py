"""After any end of a worker the search continues, and the log has the reason."""

import re
from functools import partial
from pathlib import Path

import pytest
from trainings import a_study, buggy, dying, dying_once, greedy, mortal, preempted, smaller, steady, struck

from haltune import Budget
from haltune.errors import StoreError, TrainingFailed
from haltune.launch import crew, run
from haltune.log.events import Ended, Expired, Status
from haltune.study.redecide import redecide


def test_whatever_ends_a_worker_the_search_continues_and_the_log_says_what_happened(tmp_path):
    """One run in each way to die ends so, the first having gone well."""
    study = a_study(tmp_path, 8, max_retries=1)
    with study.ask() as first:
        steady(first)
    assert run(study, mortal, workers=2, retry_on=ConnectionError, progress=False, gpus=None).over
    assert [str(t.status) for t in study.trials] == [
        "completed", "completed", "failed", "completed", "failed", "completed", "completed", "completed",
    ]  # fmt: skip
    losses = {n: [e.reason for e in study.events() if isinstance(e, Expired) and e.trial == n] for n in range(8)}
    for trial, why in ((1, "killed by SIGSEGV (a fault in compiled code)"), (3, "ended with exit status 3")):
        assert why in losses[trial][0]  # and is offered again
        assert (study.trials[trial].attempt, list(study.trials[trial].epochs)) == (2, [1, 2, 3, 4])
    assert len(losses[2]) == 2  # max_retries=1
    assert "SIGKILL (perhaps out of memory)" in study.trials[2].error
    (ended,) = [e for e in study.events() if isinstance(e, Ended) and e.trial == 4]  # not tried again
    assert (ended.status, ended.error) == (Status.FAILED, "ValueError: [bold]this learning rate[/] is no good")
    assert "in mortal" in ended.traceback
    assert losses[5] == ["ConnectionError: the data server was away"]  # of retry_on
    assert losses[6] == ["the training called sys.exit(2)"]
    printed = Path(re.search(r"see (\S+)", study.trials[2].error)[1]).read_text()
    assert printed == "trial 2 attempt 1 prints\ntrial 2 attempt 2 prints\n"
    assert study.session.replica.store.leases(study.name) == []
    assert [d for d in redecide(study.problem, study.policy, study.events()) if d[1] != d[2]] == []


@pytest.mark.slow
def test_runs_beyond_their_time_or_memory_have_failed_with_that_reason(tmp_path):
    study = a_study(tmp_path, 4)
    limits = {"trial_timeout": "9s", "memory_limit": "500MB"}
    assert run(study, greedy, workers=2, progress=False, gpus=None, **limits).over
    assert [str(t.status) for t in study.trials] == ["completed", "failed", "failed", "completed"]
    assert re.match(r"trial_timeout: it ran for \d+ s; 9 s are allowed", study.trials[1].error)
    assert re.match(r"memory_limit: it used .*B; 500 MB are allowed", study.trials[2].error)


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


def test_a_store_that_is_away_when_a_worker_dies_is_tried_again_after_a_pause(tmp_path, monkeypatch):
    study, tries, waits = a_study(tmp_path, 1, max_retries=0), [], []
    read, wait = study.store.read, crew.wait

    def away(*arguments, **options):
        if (tmp_path / "gone").exists() and len(tries) < 3:
            tries.append(len(waits))
            raise StoreError("the server is away")
        return read(*arguments, **options)

    monkeypatch.setattr(study.store, "read", away)
    monkeypatch.setattr(crew, "wait", lambda *arguments: waits.append(1) or wait(*arguments))
    assert run(study, partial(dying, tmp_path), progress=False, gpus=None).over
    assert tries == [tries[0]] * 3  # a process that has ended is ready at once, so nothing waits for it
    assert [str(t.status) for t in study.trials] == ["failed"]


@pytest.mark.slow
def test_a_worker_that_is_lost_does_not_end_a_search_whose_trials_failed_in_a_row_before(tmp_path):
    study = a_study(tmp_path, 2, max_failures=1)
    with pytest.raises(TrainingFailed):
        run(study, buggy, progress=False, gpus=None)
    assert run(study, partial(dying_once, tmp_path), progress=False, gpus=None).over
    assert [(str(t.status), t.attempt) for t in study.trials] == [("failed", 1), ("completed", 2)]


@pytest.mark.slow
def test_a_training_that_starts_again_in_its_worker_is_not_lost_as_the_launcher_asks_for_another_trial(tmp_path):
    study = a_study(tmp_path, 3, max_retries=0)
    assert run(study, partial(smaller, tmp_path), workers=2, progress=False, gpus=None).over
    assert [(str(t.status), t.attempt, t.epoch) for t in study.trials] == [
        ("completed", 2, 4), ("completed", 1, 4), ("completed", 1, 4),
    ]  # fmt: skip
    assert not any(isinstance(event, Expired) for event in study.events())


@pytest.mark.parametrize("preempted", [preempted, pytest.param(struck, marks=pytest.mark.slow)])
def test_a_worker_that_the_signal_of_its_launcher_ends_too_is_not_lost(tmp_path, preempted):
    study = a_study(tmp_path, 1, max_retries=0)
    with pytest.raises(SystemExit):
        run(study, preempted, progress=False, gpus=None)
    assert [str(t.status) for t in study.trials] == ["interrupted"]
    assert run(study, steady, progress=False, gpus=None).over
    assert [(str(t.status), t.attempt, t.epoch) for t in study.trials] == [("completed", 2, 4)]
