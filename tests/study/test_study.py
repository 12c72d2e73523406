"""Studies: reopening, budgets, several workers, answers."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from worlds import SPACE, Clock, problem, search, small_study, train

from haltune import Budget, Choice, Finish, Float, Int, Maximize, Problem, Space, Study, Trial, Wait
from haltune.errors import InvalidInput, StudyMismatch
from haltune.log.events import Status
from haltune.policies import BOBOS, GPUCB, RandomSearch
from haltune.store.memory import MemoryStore

SUPPORT = str(Path(__file__).parents[1] / "support")


def begun(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


# opening and reopening


def test_a_reopened_study_continues_where_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/search.db"
    first = search(small_study(RandomSearch(), url, trials=3))
    again = small_study(RandomSearch(), url, trials=5)
    assert [t.config for t in again.trials] == [t.config for t in first.trials]
    assert again.best == first.best
    assert len(search(again).trials) == 5


def test_reopening_with_other_settings_lists_what_differs() -> None:
    store = MemoryStore()
    Study(problem(), GPUCB(), store, seed=1, budget=Budget(trials=1)).ask().report(0.5)
    other = Problem(
        Space({"lr": Float(1e-4, 2.0, log=True), "layers": Int(1, 4), "kernel": Choice(["rbf", "poly"])}),
        Maximize("acc", (0, 1)),
        8,
    )
    with pytest.raises(StudyMismatch) as caught:
        Study(other, GPUCB(delta=0.2), store, seed=2)
    text = str(caught.value)
    for words in ("lr.high: recorded 1.0, given 2.0", "degree", "max_epochs: recorded 6, given 8", "policy.delta"):
        assert words in text
    assert "seed: recorded 1, given 2" in text
    assert "another name= or store= for the new study. With learn_from=[('memory', 'study')] the new study" in text
    assert text.endswith("In a wider or narrower space of the same parameters the same study continues")
    with pytest.raises(StudyMismatch, match=r"goal\.metric"):
        Study(Problem(SPACE, Maximize("f1", (0, 1)), 6), GPUCB(), store)
    with pytest.raises(StudyMismatch, match=r"policy\.policy"):
        Study(problem(), RandomSearch(), store)


def test_a_search_that_would_never_end_is_refused_at_the_first_ask() -> None:
    with pytest.raises(InvalidInput, match="never ends"):
        Study(problem(), BOBOS()).ask()
    assert isinstance(Study(problem(), RandomSearch(trials=1)).ask(), Trial)


# budgets


def test_a_larger_budget_lifts_the_end() -> None:
    store = MemoryStore()
    first = search(small_study(RandomSearch(), store, trials=2))
    assert first.outcome.reason == "the budget of 2 trials is spent: 2 trials started, 2 trained in full"
    assert len(search(small_study(RandomSearch(), store, trials=4)).trials) == 4


class Ticking(Clock):
    """Every look at the clock takes a while."""

    def __init__(self, tick: float) -> None:
        super().__init__()
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def test_a_budget_of_time_ends_a_running_trial_with_its_reason() -> None:
    study = small_study(RandomSearch(), MemoryStore(Ticking(1.0)), budget=Budget(time=33.0))
    search(study)
    assert study.outcome.reason.startswith("the budget of 33 s of time is spent: ")
    assert 33 <= study.spent.time <= 45
    assert "budget" in study.trials[-1].verdict.reason  # type: ignore[union-attr]


def test_worker_time_sums_over_workers_and_time_does_not() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    workers = [small_study(RandomSearch(), store, budget=Budget(money=10.0, price=2.0)) for _ in range(3)]
    trials = [begun(w) for w in workers]
    clock.now += 600
    for trial in trials:
        trial.report(0.5, seconds=600.0)
        trial.finish()
    workers[0].sync()
    spent = workers[0].spent
    assert spent.time == pytest.approx(600, abs=1)
    assert spent.worker_time == pytest.approx(1800, abs=1)
    assert spent.money(2.0) == pytest.approx(1.0, abs=0.01)


def test_interrupted_trials_are_finished_within_a_budget_of_trials() -> None:
    study = small_study(RandomSearch(), trials=2)
    trials = [begun(study), begun(study)]
    trials[0].interrupt()
    train(trials[1])
    again = begun(study)
    assert again.id == 0
    other = study.ask()
    assert isinstance(other, Wait)
    train(again)
    assert isinstance(study.ask(), Finish)


# several processes


def run(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A worker process that has the test worlds at hand."""
    head = f"import sys; sys.path.insert(0, {SUPPORT!r})\n"
    head += "from haltune.policies import RandomSearch\nfrom worlds import *\n"
    command = [sys.executable, "-c", head + textwrap.dedent(script), *arguments]
    pipe = subprocess.PIPE  # for what it reads, too, so that who waits for more waits
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_the_trial_of_a_killed_process_is_offered_again_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/search.db"
    script = """
    study = small_study(RandomSearch(), sys.argv[1], trials=2)
    trial = study.ask()
    trial.report(0.5)
    print("reported", flush=True)
    sys.stdin.read()
    """
    worker = run(script, url)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "reported\n"
    study = small_study(RandomSearch(), url, trials=2)
    assert begun(study).id == 1
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    again = begun(study)
    assert (again.id, again.attempt) == (0, 2)


# answers


def test_best_is_the_best_last_value_of_the_runs_that_were_not_cut() -> None:
    ends = [0.5, 0.7, 0.6]
    study = small_study(RandomSearch(), trials=3)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                value = 0.99 if (trial.id, epoch) == (0, 3) else math.nan if trial.id == 2 else ends[trial.id]
                trial.report(value)
    best = study.best
    assert best is not None
    assert (best.trial, best.value, best.epoch) == (1, 0.7, 6.0)


def test_an_explanation_states_each_decision_and_the_saved_epochs() -> None:
    study = search(small_study(BOBOS(initial=2), problem=problem(epochs=30), trials=6))
    stopped = next(t for t in study.trials if t.status is Status.STOPPED)
    text = study.explain(stopped.id)
    assert f"trial {stopped.id}: stopped" in text
    assert "proposed" in text
    assert "p_win" in text
    assert "bound" in text
    assert stopped.verdict is not None
    assert stopped.verdict.reason in text
    assert f"{30 - stopped.epoch:g} of 30 epochs" in text
    assert text == study.explain(stopped)
    with pytest.raises(InvalidInput, match="there is no trial 99"):
        study.explain(99)
