"""Hyperband as a search: what is spent, who goes on, and how it ends."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from halving_log import plan_of, recomputed
from laboratory import Lab, differences, problem, rising

from haltune import Budget, Checkpointing, Finish, Float, Minimize, OptimalStopping, Problem, Space, Study, Trial
from haltune.display import plural
from haltune.errors import InvalidInput, StoreError
from haltune.log.decisions import Action
from haltune.log.events import Resumed, Started, Status
from haltune.policies import Halting, Hyperband, InfiniteHyperband, SuccessiveHalving
from haltune.policies.hyperband.brackets import growing, infinite
from haltune.store.memory import MemoryStore

# -- what is spent ----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", ["line2", "table1"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_run_spends_what_the_schedule_says(sizes: Any, resume: bool) -> None:
    policy = Hyperband(schedule=sizes, resume=resume)
    lab = Lab(lambda: Hyperband(schedule=sizes, resume=resume), rising, epochs=27).run()
    assert lab.study.spent.epochs == lab.trained == policy.table(27).total(resume)
    for number, filling in recomputed(lab.log, plan_of(policy, 27), resume).items():
        sizes_seen = [r.n for r in policy.table(27).brackets[number].rungs]
        assert filling.closed
        assert [len(w) for w in filling.promoted] == [*sizes_seen[1:], 0]


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "totals"), [("line2", (1581, 1902)), ("table1", (1404, 1701))])
def test_the_totals_of_table_1_are_really_spent(sizes: Any, totals: tuple[int, int]) -> None:
    for resume, total in zip((True, False), totals, strict=True):
        lab = Lab(lambda resume=resume: Hyperband(81, schedule=sizes, resume=resume), rising, epochs=81).run(10**5)
        assert lab.study.spent.epochs == total


@pytest.mark.parametrize(
    ("policy", "R"),
    [
        (Hyperband(eta=2.5), 20), (Hyperband(eta=1.5), 10), (Hyperband(min_resource=2), 18),
        (Hyperband(eta=4), 20), (Hyperband(n_max=9), 27), (Hyperband(n_min=3), 27),
        (Hyperband(brackets="most_exploratory"), 27), (Hyperband(brackets=1), 27),
        (SuccessiveHalving(n=20, eta=2), 13), (SuccessiveHalving(n=2), 9), (SuccessiveHalving(n=10, min_resource=3), 9),
    ],
)  # fmt: skip
@pytest.mark.parametrize("workers", [1, 5])
def test_other_schedules_are_spent_to_the_epoch(policy: Any, R: int, workers: int) -> None:
    lab = Lab(lambda: policy, rising, epochs=R, workers=workers).run()
    assert lab.study.spent.epochs == policy.table(R).total()
    filled = recomputed(lab.log, plan_of(policy, R))
    assert all(f.closed for f in filled.values())
    assert len(filled) == len(policy.table(R).brackets)


def test_trainings_that_save_nothing_begin_anew_and_still_come_to_the_end() -> None:
    lab = Lab(Hyperband, rising, epochs=9, saves=False).run()
    at_least, at_most = Hyperband().table(9).total(True), Hyperband().table(9).total(False)
    assert at_least < lab.study.spent.epochs <= at_most
    assert all(f.closed for f in recomputed(lab.log, plan_of(Hyperband(), 9)).values())


def test_rounds_repeat_all_brackets() -> None:
    lab = Lab(lambda: Hyperband(rounds=3), rising, epochs=9).run()
    assert lab.study.spent.epochs == 3 * Hyperband().table(9).total()


@pytest.mark.parametrize("resume", [True, False])
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


# -- who goes on ------------------------------------------------------------------------------


def test_the_last_to_arrive_goes_on_at_once_when_it_wins_and_is_stopped_when_it_does_not() -> None:
    for last_is_best in (True, False):
        values = lambda trial, epoch, b=last_is_best: trial if b else -trial  # noqa: E731
        lab = Lab(lambda: SuccessiveHalving(n=3), values, epochs=9).run()
        reports = lab.reports(2)
        if last_is_best:
            assert reports[0].verdict.action is Action.CONTINUE
            assert reports[0].verdict.until == 9
            assert [r.epoch for r in reports] == list(range(1, 10))
            assert not any(isinstance(e, Resumed) for e in lab.log)
            assert lab.study.history.trial(2).checkpoint is None
        else:
            assert reports[0].verdict.action is Action.STOP
            resumed = [e.trial for e in lab.log if isinstance(e, Resumed)]
            assert resumed == [0]
            assert "3rd of 3 after" in reports[0].verdict.reason


def test_equal_values_are_ranked_by_the_number_of_the_trial() -> None:
    lab = Lab(lambda: SuccessiveHalving(n=9), lambda t, e: 0.5, epochs=9, workers=4).run()
    (filling,) = recomputed(lab.log, plan_of(SuccessiveHalving(n=9), 9)).values()
    assert filling.promoted == [[0, 1, 2], [0], []]


def test_a_loss_is_ranked_from_below() -> None:
    policy = SuccessiveHalving(n=9)
    study = Study(Problem(problem(9).space, Minimize("loss"), 9), policy, seed=1)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(10.0 * trial.id + epoch)
    assert [t.id for t in study.trials if t.epoch == 9] == [0]
    assert study.best is not None
    assert (study.best.trial, study.best.epoch, study.best.value) == (0, 9, 9.0)


def test_the_best_is_a_run_that_was_trained_in_full_not_the_luck_of_an_early_epoch() -> None:
    def value(trial: int, epoch: float) -> float:
        return 99.0 if (trial, epoch) == (4, 1) else -epoch if trial == 4 else trial / 100 - (epoch == 1)

    lab = Lab(lambda: SuccessiveHalving(n=9), value, epochs=9).run()
    best = lab.study.best
    assert best is not None
    assert lab.study.history.trial(best.trial).complete
    assert (best.epoch, best.value) == (9, best.trial / 100)


def test_a_rung_with_fewer_survivors_promotes_what_is_left() -> None:
    good = {2, 7}

    def value(trial: int, epoch: float) -> float:
        return float(trial) if trial in good else math.nan

    lab = Lab(lambda: SuccessiveHalving(n=9), value, epochs=9).run()
    (filling,) = recomputed(lab.log, plan_of(SuccessiveHalving(n=9), 9)).values()
    assert filling.promoted == [[7, 2], [7], []]
    nothing = Lab(lambda: SuccessiveHalving(n=9), lambda t, e: math.nan, epochs=9).run()
    assert nothing.study.best is None
    assert max(t.epoch for t in nothing.study.trials) == 1


def test_a_trial_that_the_user_ends_early_counts_with_its_last_value_in_all_rungs_to_come() -> None:
    lab = Lab(lambda: SuccessiveHalving(n=9), lambda t, e: -t, epochs=9)
    worker = lab.workers[0]
    worker.step(), worker.step()  # trial 0, the best, has one epoch
    worker.stop_early()
    lab.run()
    (filling,) = recomputed(lab.log, plan_of(SuccessiveHalving(n=9), 9)).values()
    assert filling.promoted == [[0, 1, 2], [0], []]
    assert [t.epoch for t in lab.study.trials][:3] == [1, 3, 3]


def test_no_worker_waits_while_brackets_are_left_and_all_wait_for_the_last() -> None:
    endless = Lab(lambda: Hyperband(rounds=None), rising, epochs=9, workers=7, budget=Budget(epochs=400)).run()
    before_the_end = [a for a in endless.answers if not isinstance(a, Finish)]
    assert all(isinstance(a, Trial) for a in before_the_end)
    once = Lab(Hyperband, rising, epochs=9, workers=13).run()
    assert once.waits > 0
    assert once.study.spent.epochs == Hyperband().table(9).total()


def test_a_waiting_worker_is_told_what_for() -> None:
    lab = Lab(lambda: SuccessiveHalving(n=3), rising, epochs=9, workers=4)
    for worker in lab.workers:
        worker.step()
    assert lab.workers[3].answer.reason == "rung 0 of bracket 0 waits for trials that are still trained"


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
    assert (report.verdict.action, report.verdict.until) == (Action.CONTINUE, 9)
    lab.run()
    assert lab.study.history.trial(0).epoch == 9
    assert not any(isinstance(e, Resumed) for e in lab.log)


@pytest.mark.parametrize("resume", [True, False])
def test_a_lost_trial_does_not_block_its_rung(resume: bool) -> None:
    lab = Lab(lambda: SuccessiveHalving(n=9, resume=resume), lambda t, e: t, epochs=9, workers=2)
    for _ in range(3):  # the lease of trial 0 expires three times: one more than it is offered again
        while lab.workers[0].trial is None or lab.workers[0].trial.id != 0:
            lab.workers[0].step()
        lab.kill(0)
    lab.run()
    assert lab.study.history.trial(0).status is Status.FAILED
    (filling,) = recomputed(lab.log, plan_of(SuccessiveHalving(n=9), 9), resume).values()
    assert filling.closed
    assert len(filling.promoted[0]) == 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_reported_after_a_trial_was_given_back_is_no_result(asynchronous: bool) -> None:
    lab = Lab(lambda: SuccessiveHalving(n=3, asynchronous=asynchronous), lambda t, e: t, epochs=9)
    worker = lab.workers[0]
    worker.step()
    trial = worker.trial
    assert trial is not None
    worker.interrupt()
    trial.report(1e6)  # far above all others, and in nobody's curve
    lab.run()
    assert [t.id for t in lab.study.trials if t.epoch == 9] == [2]


def test_a_trial_that_ends_at_its_checkpoint_counts_with_the_value_it_had_there() -> None:
    values = {(0, 1): 0.1, (0, 2): 99.0}
    make = lambda: SuccessiveHalving(n=3, min_resource=3)  # noqa: E731
    lab = Lab(make, lambda t, e: values.get((t, int(e)), 0.5), epochs=9)
    worker = lab.workers[0]
    worker.step(), worker.step()
    worker.save()
    worker.step()  # 99, in an attempt that is superseded
    worker.interrupt()
    worker.step()
    worker.stop_early()
    lab.run()
    assert [t.id for t in lab.study.trials if t.epoch == 9] == [1]


@pytest.mark.parametrize("end", ["fail", "stop_early"])
def test_a_winner_that_ends_before_it_goes_on_does_not_block_the_next_rung(end: str) -> None:
    lab = Lab(lambda: SuccessiveHalving(n=9), lambda t, e: -t, epochs=9, workers=2)
    first, other = lab.workers
    first.stuck = True
    first.step(), first.step()  # trial 0, the best, cannot pause
    while lab.study.history.trial(len(lab.study.trials) - 1).id < 8 or other.trial is not None:
        other.step()
    assert 0 not in {e.trial for e in lab.log if isinstance(e, Resumed)}
    getattr(first, end)()
    lab.run()
    (filling,) = recomputed(lab.log, plan_of(SuccessiveHalving(n=9), 9)).values()
    assert filling.closed
    assert filling.promoted == [[0, 1, 2], [0] if end == "stop_early" else [1], []]


def test_optimal_stopping_inside_ends_trials_before_their_rung_and_the_rungs_close_without_them() -> None:
    stopping = OptimalStopping(paths=2000, first=20, resolve_at=(30,))

    def value(trial: int, epoch: float) -> float:
        return 0.9 - 0.1 / epoch if trial % 4 == 0 else 0.2 - 0.1 / epoch

    lab = Lab(lambda: Halting(SuccessiveHalving(n=8, min_resource=12, eta=2), stopping), value, epochs=24).run()
    stopped = {t.id for t in lab.study.trials if t.epoch < 12}
    assert len(stopped) >= 2
    assert not any(e.trial in stopped for e in lab.log if isinstance(e, Resumed))
    (filling,) = recomputed(lab.log, plan_of(SuccessiveHalving(n=8, min_resource=12, eta=2), 24)).values()
    assert filling.closed
    assert filling.promoted[0]
    assert not stopped & {t for rung in filling.promoted for t in rung}


# -- budgets and ends -------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [1, 5, 9, 12, 16])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_spent_number_of_trials_lets_those_that_began_go_on_and_then_ends(trials: int, workers: int) -> None:
    make = lambda: Hyperband(rounds=1)  # noqa: E731
    lab = Lab(make, rising, epochs=9, workers=workers, budget=Budget(trials=trials)).run()
    study = lab.study
    assert len(study.trials) == trials
    assert study.outcome.over
    assert isinstance(study.ask(), Finish)
    assert study.ask().reason == study.outcome.reason
    filled = recomputed(lab.log, plan_of(Hyperband(), 9))
    assert all(f.closed for f in filled.values())  # with those that began
    full = sum(t.epoch == 9 for t in study.trials)
    assert full >= len(filled)
    assert study.outcome.reason == (
        f"the budget of {(begun := plural(trials, 'trial'))} is spent: {begun} begun, {full} trained in full"
    )
    assert differences(lab) == []


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
            for epoch in trial.epochs():
                trial.report(rising(trial.id, epoch))
            if trial.verdict is not None and trial.verdict.action is Action.PAUSE:
                trial.save(lambda path: path.write_bytes(b"state"))
        kept = {int(p.parent.name.removeprefix("trial-")) for p in tmp_path.rglob("trial-*/*")}
        paused = {t.id for t in study.trials if t.status is Status.PAUSED}
        assert kept <= paused
        seen.append((len(kept), len(paused)))
    assert max(kept for kept, _ in seen) >= 5
    if not asynchronous:  # nobody who lost comes back
        assert min(kept for kept, paused in seen if paused == 8) <= 3
    assert not list(tmp_path.rglob("trial-*/*"))


# -- a log that was edited ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Hyperband(rounds=None), InfiniteHyperband(), Hyperband(asynchronous=True)])
@pytest.mark.parametrize(
    "edit", [{"bracket": n} for n in (-1, 4, 2**31, 2**63, 1e300, True, None)] + [{"trial": 2**31}]
)
def test_a_number_that_no_log_can_have_come_to_is_told_as_damage(policy: Any, edit: dict[str, Any]) -> None:
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
