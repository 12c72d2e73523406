"""Hyperband as a search: its cost, promoted trials, and its end."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from halving_log import plan_of, recomputed
from laboratory import Lab, problem, rising, rough

from haltune import Budget, Checkpointing, Finish, Float, Minimize, Problem, Space, Study, Trial
from haltune.errors import HaltuneWarning, InvalidInput, StoreError
from haltune.log.decisions import Action
from haltune.log.events import Resumed, Started, Status
from haltune.policies import Hyperband, InfiniteHyperband, SuccessiveHalving
from haltune.policies.hyperband.brackets import growing, infinite
from haltune.store.memory import MemoryStore

# -- what is spent ----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [pytest.param("line2", marks=pytest.mark.slow), "table1"])
@pytest.mark.parametrize("resume", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_spends_what_the_schedule_says(sizes: Any, resume: bool) -> None:
    policy = Hyperband(schedule=sizes, resume=resume)
    lab = Lab(lambda: Hyperband(schedule=sizes, resume=resume), rising, epochs=27).run()
    assert lab.study.spent.epochs == lab.trained == policy.table(27).total(resume)
    for number, filling in recomputed(lab.log, plan_of(policy, 27), resume).items():
        sizes_seen = [r.n for r in policy.table(27).brackets[number].rungs]
        assert filling.closed
        assert [len(w) for w in filling.promoted] == [*sizes_seen[1:], 0]


@pytest.mark.parametrize(
    ("policy", "R"),
    [
        pytest.param(Hyperband(eta=2.5), 20, marks=pytest.mark.slow),  (Hyperband(min_resource=2), 18),
         (Hyperband(n_max=9), 27),
        pytest.param(Hyperband(brackets="most_exploratory"), 27, marks=pytest.mark.slow),
        (SuccessiveHalving(n=20, eta=2), 13),  (SuccessiveHalving(n=10, min_resource=3), 9),
    ],
)  # fmt: skip
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_other_schedules_are_spent_to_the_epoch(policy: Any, R: int, workers: int) -> None:
    lab = Lab(lambda: policy, rising, epochs=R, workers=workers).run()
    assert lab.study.spent.epochs == policy.table(R).total()
    filled = recomputed(lab.log, plan_of(policy, R))
    assert all(f.closed for f in filled.values())
    assert len(filled) == len(policy.table(R).brackets)


def test_trainings_that_save_nothing_start_again_and_still_reach_the_end() -> None:
    lab = Lab(Hyperband, rising, epochs=9, saves=False).run()
    at_least, at_most = Hyperband().table(9).total(True), Hyperband().table(9).total(False)
    assert at_least < lab.study.spent.epochs <= at_most
    assert all(f.closed for f in recomputed(lab.log, plan_of(Hyperband(), 9)).values())


@pytest.mark.parametrize("resume", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_growing_brackets_run_as_figure_10_lists_them(resume: bool) -> None:
    lab = Lab(lambda: Hyperband(schedule="growing", resume=resume), rising, epochs=9, budget=Budget(epochs=300)).run()
    plan = list(islice(growing(9, 3), 40))
    filled = recomputed(lab.log, plan, resume)
    done = [b.total(resume) for number, b in enumerate(plan) if number in filled and filled[number].closed]
    assert sum(done) <= 300 < sum(b.total(resume) for b in plan[: len(filled)])


def test_the_infinite_horizon_runs_figure_9_without_and_with_a_largest_epoch() -> None:
    for epochs in (None, 4):
        lab = Lab(InfiniteHyperband, rising, epochs=epochs, budget=Budget(epochs=200)).run()
        filled = recomputed(lab.log, list(islice(infinite(), 40)))
        assert sum(f.closed for f in filled.values()) >= 8
        longest = max(t.epoch for t in lab.study.trials)
        assert longest == 4 if epochs else longest > 4


def test_a_rung_that_started_before_a_report_showed_its_size_is_complete_with_those_that_started() -> None:
    """In steps the first rung has 729 places; reports every 250 of 1000 steps leave 3 of them."""
    space = Space({"x": Float(0.0, 1.0)})
    study = Study(space, "acc", max_steps=1000, policy=Hyperband(), seed=0, budget=Budget(epochs=8000), verbose=0)
    held = [study.ask() for _ in range(8)]
    while held:
        trial = held.pop(0)
        assert isinstance(trial, Trial)
        step = int(trial.epoch) + 250
        verdict = trial.report(trial.config["x"] * step / 1000, step=step)
        if step < 1000 and not verdict.stops:
            held.append(trial)
            continue
        if verdict.resumable:
            trial.checkpointed(f"memory of {trial.id} at {step}")
        trial.finish()
        if isinstance(following := study.ask(), Trial):
            held.append(following)
    assert [t.tags["bracket"] for t in study.trials[:9]] == [0] * 8 + [1]
    assert max(study.trials[:8], key=lambda t: t.config["x"]).epoch == 1000.0


# -- who continues ----------------------------------------------------------------------------


def test_the_rank_at_the_end_of_a_bracket_is_among_all_that_came_to_it() -> None:
    """Where it ends before max_epochs, which the policy does not judge."""
    lab = Lab(lambda: Hyperband(3, brackets=0), lambda trial, epoch: -float(trial), epochs=9).run()
    ends = [lab.reports(trial)[-1].verdict for trial in (0, 1)]
    assert [(v.action, v.evidence["rank"], v.evidence["arrived"]) for v in ends] == [
        (Action.STOP, 1, 1),
        (Action.STOP, 2, 2),
    ]
    assert ends[1].reason == "2nd of 2 after 3 epochs, the end of its bracket"


def test_the_last_to_arrive_continues_at_once_when_it_wins_and_is_stopped_when_it_does_not() -> None:
    for last_is_best in (True, False):
        values = lambda trial, epoch, b=last_is_best: trial if b else -trial  # noqa: E731
        lab = Lab(lambda: SuccessiveHalving(n=3), values, epochs=9).run()
        reports = lab.reports(2)
        if last_is_best:
            assert reports[0].verdict.action is Action.CONTINUE
            assert reports[0].verdict.pause_at == 9
            assert [r.epoch for r in reports] == list(range(1, 10))
            assert not any(isinstance(e, Resumed) for e in lab.log)
            assert lab.study.history.trial(2).checkpoint is None
        else:
            assert reports[0].verdict.action is Action.STOP
            resumed = [e.trial for e in lab.log if isinstance(e, Resumed)]
            assert resumed == [0]
            assert "3rd of 3 after" in reports[0].verdict.reason


def test_a_rung_with_fewer_survivors_promotes_what_is_left() -> None:
    good = {2, 7}

    def value(trial: int, epoch: float) -> float:
        return float(trial) if trial in good else math.nan

    lab = Lab(lambda: SuccessiveHalving(n=9), value, epochs=9).run()
    (filling,) = recomputed(lab.log, plan_of(SuccessiveHalving(n=9), 9)).values()
    assert filling.promoted == [[7, 2], [7], []]
    with pytest.warns(HaltuneWarning, match="acc was NaN or infinite in all 3 trials"):
        nothing = Lab(lambda: SuccessiveHalving(n=9), lambda t, e: math.nan, epochs=9).run()
    assert nothing.study.best is None
    assert max(t.epoch for t in nothing.study.trials) == 1


@pytest.mark.slow
def test_no_worker_waits_while_brackets_are_left_and_all_wait_for_the_last() -> None:
    endless = Lab(lambda: Hyperband(rounds=None), rising, epochs=9, workers=7, budget=Budget(epochs=400)).run()
    before_the_end = [a for a in endless.answers if not isinstance(a, Finish)]
    assert all(isinstance(a, Trial) for a in before_the_end)
    once = Lab(Hyperband, rising, epochs=9, workers=13).run()
    assert once.waits > 0
    assert once.study.spent.epochs == Hyperband().table(9).total()


def test_a_pause_that_cannot_be_saved_trains_on_until_its_rung_decides() -> None:
    lab = Lab(lambda: SuccessiveHalving(n=3), lambda t, e: -t, epochs=9, workers=2)
    first, other = lab.workers
    first.stuck = True
    first.step()
    for _ in range(4):
        first.step()
    assert [r.verdict.action for r in lab.reports(0)] == [Action.PAUSE] * 4
    while len({r.trial for r in lab.reports()}) < 3:
        other.step()
    first.step()
    report = lab.reports(0)[-1]
    assert (report.verdict.action, report.verdict.pause_at) == (Action.CONTINUE, 9)
    lab.run()
    assert lab.study.history.trial(0).epoch == 9
    assert not any(isinstance(e, Resumed) for e in lab.log)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_reported_after_a_trial_was_given_back_is_no_result(asynchronous: bool) -> None:
    lab = Lab(lambda: SuccessiveHalving(n=3, asynchronous=asynchronous), lambda t, e: t, epochs=9)
    worker = lab.workers[0]
    worker.step()
    trial = worker.trial
    assert trial is not None
    worker.interrupt()
    trial.report(1e6)  # far above all others, and in no curve
    lab.run()
    assert [t.id for t in lab.study.trials if t.epoch == 9] == [2]


# -- budgets and ends -------------------------------------------------------------------------


def test_a_search_without_a_budget_finishes_when_its_brackets_are_complete() -> None:
    lab = Lab(Hyperband, rising, epochs=9).run()
    assert lab.study.ask() == Finish("all 3 brackets are complete")
    assert lab.study.outcome.over
    assert not Hyperband().endless
    assert not Hyperband(rounds=None).endless
    assert Hyperband(schedule="growing").endless
    assert InfiniteHyperband().endless
    with pytest.raises(InvalidInput, match="never ends by itself"):
        Study(problem(9), Hyperband(schedule="growing"), seed=1).ask()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoints_of_trials_that_lost_their_rung_are_deleted(tmp_path: Any, asynchronous: bool) -> None:
    policy = SuccessiveHalving(n=9, asynchronous=asynchronous, rounds=1)
    study = Study(problem(9), policy, seed=1, checkpoints=Checkpointing(tmp_path, keep=0))
    seen = []
    for trial in study:
        with trial:
            assert trial.checkpoint is None or trial.epoch > 0
            for epoch in trial.epochs():
                trial.report(rising(trial.id, epoch))
            if trial.verdict is not None and trial.verdict.action is Action.PAUSE:
                trial.save(lambda path: path.write_bytes(b"state"))
        kept = {int(p.parent.name.removeprefix("trial-")) for p in tmp_path.rglob("trial-*/*")}
        paused = {t.id for t in study.trials if t.status is Status.PAUSED}
        assert kept <= paused
        seen.append((len(kept), len(paused)))
    assert max(kept for kept, _ in seen) >= 5
    if not asynchronous:  # no losing trial resumes
        assert min(kept for kept, paused in seen if paused == 8) <= 3
    assert not list(tmp_path.rglob("trial-*/*"))


# -- a log that was edited ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Hyperband(rounds=None), InfiniteHyperband(), Hyperband(asynchronous=True)])
@pytest.mark.parametrize("edit", [{"bracket": n} for n in (-1, 2**31, None)] + [{"trial": 2**31}])
def test_a_number_that_no_log_can_have_is_reported_as_damage(policy: Any, edit: dict[str, Any]) -> None:
    space, store = Space({"x": Float(0.0, 1.0)}), MemoryStore()
    study = Study(Problem(space, Minimize("loss"), 9), policy, store, seed=1, budget=Budget(trials=4), verbose=0)
    for _ in range(4):
        study.ask()
    first, *rest = store.read("study")
    last = max(i for i, e in enumerate(rest) if isinstance(e, Started))
    fields = edit if "trial" in edit else {"tags": {**rest[last].tags, **edit}}
    rest[last] = replace(rest[last], **fields)
    edited = MemoryStore()
    edited.create("study", first)
    edited.append("study", rest, seen=1, about=None, lease=None)
    with pytest.raises(StoreError, match="damaged"):
        Study(study.problem, policy, edited, seed=1, budget=Budget(trials=4), verbose=0)


# -- resources --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_a_resource_of_the_users_own_trains_each_rung_as_a_trial_of_its_own(workers: int) -> None:
    policy = Hyperband(27, resource="samples")
    lab = Lab(lambda: policy, rough(5, steps=10**6), epochs=2, workers=workers).run()
    started = [e for e in lab.log if isinstance(e, Started)]
    assert Counter(e.resource for e in started if e.tags["bracket"] == 0) == {1: 27, 3: 9, 9: 3, 27: 1}
    assert sum(e.resource or 0.0 for e in started) == policy.table().total(resume=False)
    final = {t.id: t.values[-1] for t in lab.study.trials}
    for e in started:
        if e.tags["rung"]:
            parent = lab.study.history.trial(e.tags["of"])
            assert dict(e.config) == dict(parent.config)
            same = [s.trial for s in started if (s.tags["bracket"], s.tags["rung"]) ==
                    (e.tags["bracket"], e.tags["rung"] - 1)]  # fmt: skip
            places = policy.table().brackets[e.tags["bracket"]].rungs[e.tags["rung"]].n
            assert parent.id in sorted(same, key=lambda t: (-final[t], t))[:places]
    assert all(t.status is Status.COMPLETED for t in lab.study.trials)


def test_a_whole_number_of_samples_cuts_an_array() -> None:
    study = Study(problem(epochs=1), SuccessiveHalving(3, 25, 75, resource="samples"), seed=0)
    cut = []
    for trial in study:
        cut.append(len(np.arange(100)[: trial.resource]))
        trial.report(0.1 * trial.id)
    assert cut == [25, 25, 25, 75]


class Slow(Lab):
    """Epochs take 0.5, 1 or 1.5 seconds, by the trial."""

    def seconds(self, trial: int, epoch: float) -> float:
        return 0.5 + 0.5 * (trial % 3)


def test_rungs_in_seconds_are_reached_by_measured_time() -> None:
    policy = SuccessiveHalving(n=9, min_resource=1.2, max_resource=10.8, resource="seconds")
    lab = Slow(lambda: policy, rising, epochs=1000).run()
    for t in lab.study.trials:
        had = np.cumsum(t.seconds)
        rung = next((r for r in (10.8, 3.6, 1.2) if had[-1] >= r), None)
        assert rung is not None
        assert len(had) == 1 or had[-2] < rung  # it ended at the first report beyond the rung
    sizes = [sum(np.sum(t.seconds) >= r for t in lab.study.trials) for r in (1.2, 3.6, 10.8)]
    assert sizes == [9, 3, 1]


def test_a_report_beyond_several_rungs_counts_in_each_of_them() -> None:
    """Validated every five epochs, rungs 1 and 3 are both reached at 5: nothing is trained twice for them."""
    study = Study(problem(27), SuccessiveHalving(n=27), seed=1)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                if epoch % 5 == 0 or epoch == 27:
                    trial.report(float(trial.id), epoch)
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"memory of {trial.id} at {epoch}")
    assert sorted((t.epoch for t in study.trials), reverse=True) == [27, 10, 10, *[5] * 24]
    assert [t.epoch for t in study.trials][-3:] == [10, 10, 27]
    assert study.outcome.over


# -- options ----------------------------------------------------------------------------------
