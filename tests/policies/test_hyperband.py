"""Hyperband as a search: what is spent, who goes on, and that nothing keeps it from its end."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from halving_log import Filling, recomputed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import Lab, Worker, problem, rough

from haltune import Budget, Finish, Minimize, OptimalStopping, Problem, Study, Trial
from haltune.decisions import Action, stop
from haltune.errors import InvalidInput, StudyMismatch
from haltune.events import Resumed, Started, Status
from haltune.policies import Halting, Hyperband, InfiniteHyperband, SuccessiveHalving
from haltune.replay import replay
from haltune.schedules import Bracket, growing, infinite


def rising(trial: int, epoch: float) -> float:
    """Later epochs are better, and the order of the trials never changes."""
    return float(np.random.default_rng(trial).random()) - 1.0 / epoch


def plan_of(policy: Hyperband | SuccessiveHalving, R: float, rounds: int = 1) -> list[Bracket]:
    return list(policy.table(R).brackets) * rounds


def differences(lab: Lab) -> list[Any]:
    return [d for d in replay(lab.problem, lab.make(), lab.log) if d[1] != d[2]]


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


@pytest.mark.parametrize(("sizes", "totals"), [("line2", (1581, 1902)), ("table1", (1404, 1701))])
def test_the_totals_of_table_1_are_really_spent(sizes: Any, totals: tuple[int, int]) -> None:
    for resume, total in zip((True, False), totals, strict=True):
        lab = Lab(lambda resume=resume: Hyperband(81, schedule=sizes, resume=resume), rising, epochs=81).run(
            10**5
        )
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
    lab = Lab(
        lambda: Hyperband(schedule="growing", resume=resume), rising, epochs=9, budget=Budget(epochs=300)
    ).run()
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
            assert "rank 3 of 3" in reports[0].verdict.reason


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
    assert (study.best.trial, study.best.epoch, study.best.value) == (
        0,
        1,
        1.0,
    )  # smallest loss seen: line 11


def test_the_best_value_is_the_best_at_any_epoch_of_any_trial() -> None:
    def value(trial: int, epoch: float) -> float:
        return 99.0 if (trial, epoch) == (4, 1) else -epoch if trial == 4 else trial / 100 - (epoch == 1)

    lab = Lab(lambda: SuccessiveHalving(n=9), value, epochs=9).run()
    best = lab.study.best
    assert best is not None
    assert (best.trial, best.epoch, best.value) == (4, 1, 99.0)


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
    endless = Lab(
        lambda: Hyperband(rounds=None), rising, epochs=9, workers=7, budget=Budget(epochs=400)
    ).run()
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


def test_what_a_lost_worker_reports_late_is_no_result() -> None:
    lab = Lab(lambda: SuccessiveHalving(n=3), lambda t, e: t, epochs=9, workers=2)
    with pytest.warns(match="lease"):
        lab.workers[0].step()
        lab.kill(0)
        lab.workers[1].step()  # finds the lease expired; trial 0 is its own now
        assert lab.workers[1].trial is not None
        lab.workers[1].interrupt()
        lab.late()  # a value far above all others
    lab.run()
    assert [t.id for t in lab.study.trials if t.epoch == 9] == [2]


def test_optimal_stopping_inside_ends_trials_before_their_rung_and_the_rungs_close_without_them() -> None:
    stopping = OptimalStopping(paths=2000, first=20, resolve_at=(30,))

    def value(trial: int, epoch: float) -> float:
        return 0.9 - 0.1 / epoch if trial % 4 == 0 else 0.2 - 0.1 / epoch

    lab = Lab(
        lambda: Halting(SuccessiveHalving(n=8, min_resource=12, eta=2), stopping), value, epochs=24
    ).run()
    stopped = {t.id for t in lab.study.trials if t.epoch < 12}
    assert len(stopped) >= 2
    assert not any(e.trial in stopped for e in lab.log if isinstance(e, Resumed))
    (filling,) = recomputed(lab.log, plan_of(SuccessiveHalving(n=8, min_resource=12, eta=2), 24)).values()
    assert filling.closed
    assert filling.promoted[0]
    assert not stopped & {t for rung in filling.promoted for t in rung}


# -- anything may happen ----------------------------------------------------------------------

MADE: dict[str, tuple[Any, int, int]] = {  # name -> (policy, epochs, rounds)
    "hyperband": (lambda: Hyperband(), 9, 1),
    "eta 2, twice": (lambda: Hyperband(eta=2, rounds=2), 4, 2),
    "halving": (lambda: SuccessiveHalving(n=9), 9, 1),
    "below the horizon": (lambda: SuccessiveHalving(n=6, max_resource=4, eta=2), 7, 1),
    "retrains": (lambda: Hyperband(eta=2, resume=False), 4, 1),
}
ACTIONS = (
    ["step"] * 12 + ["race"] * 4 + ["save", "fail", "early", "kill", "interrupt", "stuck", "late", "mourn"]
)


class Whimsical:
    """STOP at some epochs for no reason, as a stopping rule inside the rungs might say it."""

    def __init__(self, policy: Any, seed: int) -> None:
        self.policy, self.seed = policy, seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def judge(self, state: Any, history: Any, trial: Any, rng: Any) -> Any:
        whim = np.random.default_rng([self.seed, trial.id, int(trial.epoch)]).random() < 0.1
        return stop("a whim") if whim else self.policy.judge(state, history, trial, rng)


def act(lab: Lab, number: int, other: int, action: str) -> None:
    worker: Worker = lab.workers[number]
    if action == "race":
        worker.policy.meanwhile = lab.workers[other].step if other != number else None
        worker.step()
        worker.policy.meanwhile = None
    elif action == "kill":
        lab.kill(number)
    elif action == "mourn":  # one worker fewer for good
        if len(lab.workers) > 1:
            lab.kill(number)
            del lab.workers[number]
    elif action == "late":
        lab.late()
    elif action == "stuck":
        worker.stuck = not worker.stuck
    else:
        {"step": worker.step, "save": worker.save, "fail": worker.fail, "early": worker.stop_early,
         "interrupt": worker.interrupt}[action]()  # fmt: skip


def checked(lab: Lab, policy: Any, epochs: int, rounds: int) -> dict[int, Filling]:
    """The invariants that hold for every log; `recomputed` asserts that nobody went on who had not won."""
    resume = policy.resume
    filled = recomputed(lab.log, plan_of(policy, policy.max_resource or epochs, rounds), resume)
    for trial in lab.study.trials:
        if trial.tags["rung"] and resume:
            assert trial.status is not Status.RUNNING or trial.attempt > 1
    for e in lab.log:
        if isinstance(e, Resumed) and e.by_policy:
            assert resume
    return filled


@pytest.mark.parametrize("name", list(MADE))
@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(ACTIONS)), min_size=10, max_size=100
    ),
    seed=st.integers(0, 10**6),
    bad=st.sampled_from([0.0, 0.1, 0.5]),
    halts=st.booleans(),
)
def test_whatever_happens_only_winners_go_on_and_the_search_ends(
    name: str, steps: list[tuple[int, int, str]], seed: int, bad: float, halts: bool
) -> None:
    make, epochs, rounds = MADE[name]
    wrapped = (lambda: Whimsical(make(), seed)) if halts else make
    lab = Lab(wrapped, rough(seed, bad), epochs=epochs, workers=4)
    for number, other, action in steps:
        act(lab, number % len(lab.workers), other % len(lab.workers), action)
    for worker in lab.workers:
        worker.stuck = False
    lab.clock.now += 1e5  # nobody who is not here any more holds anything
    lab.run()
    filled = checked(lab, make(), epochs, rounds)
    assert len(filled) == len(plan_of(make(), epochs, rounds))
    assert all(f.closed for f in filled.values())
    assert all(t.status is not Status.RUNNING for t in lab.study.trials)
    assert differences(lab) == []


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(ACTIONS)), min_size=10, max_size=100
    ),
    seed=st.integers(0, 10**6),
    limits=st.lists(st.integers(5, 80), min_size=1, max_size=4),
)
def test_a_budget_is_kept_whatever_happens_and_a_larger_one_goes_on(
    steps: list[tuple[int, int, str]], seed: int, limits: list[int]
) -> None:
    lab = Lab(Hyperband, rough(seed), epochs=9, workers=4, budget=Budget(epochs=limits[0]))
    for number, other, action in steps:
        act(lab, number % len(lab.workers), other % len(lab.workers), action)
    for limit in sorted(limits):
        lab.budget = Budget(epochs=limit)
        for worker in lab.workers:
            worker.study.budget, worker.answer, worker.stuck = lab.budget, None, False
        lab.clock.now += 1e5
        for worker in lab.workers:
            if worker.trial is not None:
                worker.trial.heartbeat()
        lab.run()
        assert lab.study.spent.epochs <= max(limit, limits[0]) + 3  # what three others were training
        assert lab.study.outcome.over
        checked(lab, Hyperband(), 9, 1)
    assert differences(lab) == []


# -- budgets and ends -------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [1, 5, 9, 12, 16])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_spent_number_of_trials_lets_those_that_began_go_on_and_then_ends(
    trials: int, workers: int
) -> None:
    lab = Lab(Hyperband, rising, epochs=9, workers=workers, budget=Budget(trials=trials)).run()
    study = lab.study
    assert len(study.trials) == trials
    assert study.outcome.over
    assert isinstance(study.ask(), Finish)
    assert study.ask().reason == study.outcome.reason
    filled = recomputed(lab.log, plan_of(Hyperband(), 9))
    complete = [f for f in filled.values() if f.rung or f.closed]
    assert len(complete) >= (trials >= 9) + (trials >= 14)
    assert not any(f.winners for f in complete)  # whoever won went on


def test_a_search_without_a_budget_finishes_when_its_brackets_are_complete() -> None:
    lab = Lab(Hyperband, rising, epochs=9).run()
    assert lab.study.ask() == Finish("all 3 brackets are complete")
    assert lab.study.outcome.over
    assert not Hyperband().endless
    assert Hyperband(rounds=None).endless
    assert Hyperband(schedule="growing").endless
    assert InfiniteHyperband().endless
    with pytest.raises(InvalidInput, match="never ends by itself"):
        Study(problem(9), Hyperband(rounds=None), seed=1).ask()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoints_of_trials_that_lost_their_rung_are_deleted(tmp_path: Any, asynchronous: bool) -> None:
    study = Study(problem(9), SuccessiveHalving(n=9, asynchronous=asynchronous), seed=1, checkpoints=tmp_path)
    seen = []
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(rising(trial.id, epoch))
            if trial.verdict is not None and trial.verdict.action is Action.PAUSE:
                trial.save(lambda path: path.write_bytes(b"state"))
        kept = {int(p.parent.name.removeprefix("trial-")) for p in tmp_path.glob("trial-*/*")}
        paused = {t.id for t in study.trials if t.status is Status.PAUSED}
        assert kept <= paused
        seen.append((len(kept), len(paused)))
    assert max(kept for kept, _ in seen) >= 5
    if not asynchronous:  # nobody who lost comes back
        assert min(kept for kept, paused in seen if paused == 8) <= 3
    assert not list(tmp_path.glob("trial-*/*"))


# -- resources --------------------------------------------------------------------------------


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


def test_a_failed_training_on_samples_is_not_promoted_and_its_place_is_not_lost() -> None:
    lab = Lab(lambda: SuccessiveHalving(9, 1, 9, resource="samples"), lambda t, e: t, epochs=1)
    worker = lab.workers[0]
    while worker.trial is None or worker.trial.id != 8:
        worker.step()
    worker.fail()
    lab.run()
    of = [e.tags["of"] for e in lab.log if isinstance(e, Started) and e.tags["rung"] == 1]
    assert sorted(of) == [5, 6, 7]


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


@pytest.mark.parametrize("saved", [True, False])
def test_seconds_of_an_attempt_that_is_superseded_count_once(saved: bool) -> None:
    policy = SuccessiveHalving(n=1, min_resource=5, max_resource=5, resource="seconds")
    lab = Lab(lambda: policy, rising, epochs=100)
    worker = lab.workers[0]
    for _ in range(3):  # asked, and two epochs of a second
        worker.step()
    if saved:
        worker.save()
    for _ in range(2):
        worker.step()
    worker.interrupt()  # after four
    lab.run()
    (trial,) = lab.study.trials
    assert trial.seconds.sum() == 5.0
    assert len(trial.epochs) == 5
    assert lab.trained == (4 + 3 if saved else 4 + 5)


def test_seconds_of_a_vanished_checkpoint_are_trained_again(tmp_path: Any) -> None:
    policy = SuccessiveHalving(n=1, min_resource=5, max_resource=5, resource="seconds")
    lab = Lab(lambda: policy, rising, epochs=100, checkpoints=tmp_path)
    worker = lab.workers[0]
    for _ in range(4):
        worker.step()
    assert worker.trial is not None
    path = worker.trial.save(lambda p: p.write_bytes(b"state"))
    worker.interrupt()
    tmp_path.joinpath(path).unlink()
    with pytest.warns(match="begins anew"):
        worker.step()
    worker.step()
    worker.interrupt()  # once more, and there is no checkpoint now that could vanish
    lab.run()
    (trial,) = lab.study.trials
    assert trial.seconds.sum() == 5.0


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


def test_seconds_of_a_long_epoch_count_in_all_rungs_that_they_reach() -> None:
    policy = SuccessiveHalving(n=9, min_resource=0.1, max_resource=8.1, resource="seconds")
    assert [r.resource for r in policy.table().brackets[0].rungs] == pytest.approx([0.1, 0.3, 8.1])
    lab = Lab(lambda: policy, lambda t, e: t, epochs=1000).run()
    assert [len(t.epochs) for t in lab.study.trials] == [*[1] * 8, 9]


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Hyperband(0), "above 0"),
        (lambda: Hyperband(81, 1), "above 1"),
        (lambda: Hyperband(eta=1), "above 1"),
        (lambda: Hyperband(eta="3"), "not a finite number"),
        (lambda: Hyperband(n_max=0), "n_max=0"),
        (lambda: Hyperband(n_max=3, n_min=9), "lower n_min"),
        (lambda: Hyperband(min_resource=-1), "above 0"),
        (lambda: Hyperband(schedule="table2"), "'line2', 'table1' or 'growing'"),
        (lambda: Hyperband(schedule="growing", n_max=9), "n_max=9"),
        (lambda: Hyperband(schedule="growing", rounds=2), "rounds=2"),
        (lambda: Hyperband(schedule="growing", brackets=1), "brackets=1"),
        (lambda: Hyperband(81, schedule="growing").table(), "no round"),
        (lambda: Hyperband(brackets="best"), "'most_exploratory'"),
        (lambda: Hyperband(brackets=True), "brackets=True"),
        (lambda: Hyperband(81, brackets=5), "s = 4, 3, 2, 1, 0"),
        (lambda: Hyperband(rounds=0), "rounds=0"),
        (lambda: Hyperband(resource=""), "trial.resource"),
        (lambda: Hyperband(resource=3), "trial.resource"),
        (lambda: Hyperband(resume=None), "resume=None"),
        (lambda: Hyperband(asynchronous="soon"), "'promote' or 'stop'"),
        (lambda: Hyperband(asynchronous=True, resume=False), "needs epochs or seconds"),
        (lambda: Hyperband(9, asynchronous=True, resource="samples"), "needs epochs or seconds"),
        (lambda: Hyperband(sampler="halton"), "random, sobol, lhs"),
        (lambda: Hyperband(sampler=Hyperband), "or a policy"),
        (lambda: Hyperband().table(), "give max_resource"),
        (lambda: SuccessiveHalving(n=0), "n=0"),
        (lambda: SuccessiveHalving(min_resource=0), "above 0"),
        (lambda: SuccessiveHalving(min_resource=10, max_resource=9), "the first at least the second"),
        (lambda: SuccessiveHalving(rounds=True), "rounds=True"),
        (lambda: InfiniteHyperband(eta=1), "at least 2"),
        (lambda: InfiniteHyperband(eta=2.5), "whole number"),
        (lambda: InfiniteHyperband(start_budget=0), "above 0"),
        (lambda: InfiniteHyperband(min_resource=math.nan), "not a finite number"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused_in_a_sentence(make: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        make()


@pytest.mark.parametrize(
    ("policy", "epochs", "says"),
    [
        (Hyperband(), None, "needs max_resource"),
        (Hyperband(81), 27, "lower it to 27"),
        (Hyperband(resource="samples"), 5, "needs max_resource, in samples"),
        (Hyperband(resource="seconds"), 5, "needs max_resource, in seconds"),
        (Hyperband(brackets=4), 27, "s = 3, 2, 1, 0"),
        (SuccessiveHalving(min_resource=10), 9, "the first at least the second"),
        (SuccessiveHalving(), None, "needs max_resource"),
    ],
)
def test_a_problem_that_does_not_suit_is_refused_when_the_study_is_made(
    policy: Any, epochs: int | None, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        Study(problem(epochs), policy, seed=1)


def test_a_study_reopened_with_another_rate_says_so() -> None:
    lab = Lab(Hyperband, rising, epochs=9)
    with pytest.raises(StudyMismatch, match=r"policy\.eta: recorded 3, given 4"):
        Study(lab.problem, Hyperband(eta=4), lab.store)
    with pytest.raises(StudyMismatch, match=r"policy\.asynchronous: recorded False, given 'stop'"):
        Study(lab.problem, Hyperband(asynchronous="stop"), lab.store)


@pytest.mark.parametrize(
    "policy",
    [
        Hyperband(81, 4, n_max=16, n_min=2, schedule="table1", rounds=None, sampler="lhs"),
        Hyperband(9.5, min_resource=0.5, resource="seconds", asynchronous="stop"),
        SuccessiveHalving(n=12, max_resource=4, eta=2, resume=False),
        InfiniteHyperband(eta=4, start_budget=600, min_resource=2),
    ],
)
def test_the_spec_is_json_that_makes_the_same_policy_again(policy: Any) -> None:
    spec = json.loads(json.dumps(policy.spec))
    name = spec.pop("policy")
    again = {"Hyperband": Hyperband, "SuccessiveHalving": SuccessiveHalving}.get(name, InfiniteHyperband)(
        **spec
    )
    assert again == policy
    assert again.spec == policy.spec
