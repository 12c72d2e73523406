"""BO-BOS and Halting: costs over trials, condition C2, and what a verdict rests on."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from rising import ALONE, HORIZON, SOLVER, Pausing, curve
from worlds import begun, problem, search, small_study, train

from haltune import (
    Action,
    Budget,
    Float,
    HaltuneWarning,
    Int,
    Maximize,
    Minimize,
    Problem,
    Space,
    Study,
    Trial,
    Verdict,
)
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.errors import StudyMismatch
from haltune.log.events import Checkpointed, Reported, Status
from haltune.log.policy import fold_finished
from haltune.models.curves import ReferenceCurves, reference_trials
from haltune.policies import BOBOS, Halting, OptimalStopping, RandomSearch
from haltune.policies.bayesopt import Surrogate
from haltune.store.memory import MemoryStore


def verdicts(study: Study) -> list[Reported]:
    """The reports that a decision table judged."""
    reports = [e for e in study.events() if isinstance(e, Reported)]
    return [e for e in reports if "p_win" in e.verdict.evidence]


def judged_search(policy: Any, trials: int = 12) -> Study:
    return search(small_study(policy, problem=problem(epochs=HORIZON), trials=trials))


def judge_curve(policy: Any, incumbent: float, values: list[float], seconds: float = 1.0) -> Verdict:
    """The verdict after `values` when one trial before ended at `incumbent`."""
    study = small_study(policy, problem=problem(epochs=HORIZON), trials=2)
    for trial in study:
        if trial.id == 0:
            train(trial, lambda c, e: curve(incumbent, e))
            continue
        for value in values:
            verdict = trial.report(value, seconds=seconds)
            if verdict.stops:
                break
        trial.interrupt()
        return verdict
    raise AssertionError("the search ended early")


# the costs


@pytest.mark.slow
def test_k1_grows_by_the_factor_of_the_paper_each_trial() -> None:
    study = judged_search(BOBOS(initial=3, K1=200.0, stopping=None), trials=8)
    seen = {e.trial: e.verdict.evidence["K1"] for e in verdicts(study)}
    assert len(seen) > 5
    for trial, k1 in seen.items():
        assert k1 == pytest.approx(200.0 / 0.95**trial)


@pytest.mark.slow
def test_the_faithful_mode_trains_the_initial_trials_in_full_and_counts_t_after_them() -> None:
    """The initial points are those of GP-UCB; K1 and beta begin with the first trial that the search itself chose."""
    settings = OptimalStopping("faithful", K1=150.0, paths=4000)
    assert (settings.cells, settings.slopes) == (100, 1)
    study = small_study(BOBOS(initial=5, stopping=settings, growth=2.0), problem=problem(epochs=HORIZON), trials=8)
    for trial in study:
        train(trial, lambda c, e, n=trial.id: curve(0.9 - 0.1 * n, e))
    assert all(len(trial.epochs) == HORIZON for trial in study.trials[:5])
    seen = {e.trial: e.verdict.evidence["K1"] for e in verdicts(study)}
    assert seen == {5: 150.0, 6: 300.0, 7: 600.0}


@pytest.mark.parametrize("finite", [True, False])
def test_the_faithful_beta_is_theorem_1_on_a_finite_space_and_scaled_on_another(finite: bool) -> None:
    space = Space({"x": Int(1, 40) if finite else Float(0.0, 1.0)})
    study = small_study(BOBOS("faithful", initial=2), problem=Problem(space, Maximize("a"), 3), trials=4)
    for trial in study:
        train(trial, lambda c, e: curve(0.5, e))
    found = [e.evidence["beta"] for e in study.events() if e.kind == "started" and "beta" in e.evidence]
    expected = [2 * math.log(40 * t**2 * math.pi**2 / 0.6) if finite else 0.2 * math.log(2 * t) for t in (1, 2)]
    assert found == pytest.approx(expected)


def test_nothing_is_stopped_from_the_trial_on_at_which_k1_is_infinite() -> None:
    study = judged_search(BOBOS(initial=3, certain_from=8, kappa=math.inf, stopping=ALONE))
    status = [t.status for t in study.trials]
    assert "stopped" in status[:7]
    assert set(status[7:]) == {"completed"}


def test_c_is_weighed_by_the_seconds_of_this_trials_epochs() -> None:
    values = [curve(0.5, n) for n in range(1, 9)]
    plain = judge_curve(Halting(RandomSearch(), SOLVER), 0.52, values, seconds=3.0)
    weighed = judge_curve(Halting(RandomSearch(), SOLVER, epoch_cost="seconds"), 0.52, values, seconds=3.0)
    assert plain.evidence["c"] == 1.0
    assert weighed.evidence["c"] == pytest.approx(round(3.0 / np.median([1.0, 3.0]), 1))


def test_a_trial_that_completed_without_a_report_is_no_row_of_the_surrogate() -> None:
    study = small_study(BOBOS(initial=2), problem=problem(epochs=HORIZON), trials=4)
    train(begun(study), lambda c, e: curve(0.5, e))
    begun(study).finish("completed")
    for trial in study:
        train(trial, lambda c, e: curve(0.5, e))
    assert [len(t.epochs) > 0 for t in study.trials] == [True, False, True, True]


# the verdict


def test_a_verdict_is_what_the_solver_says_of_the_errors_so_far() -> None:
    values = [curve(0.72, n) for n in range(1, 7)]
    policy = Halting(RandomSearch(), SOLVER)
    verdict = judge_curve(policy, 0.72, values)
    rng = small_study(policy).history.rng("stopping", 1, verdict.evidence["solved_at"])
    with undisturbed, one_thread, undisturbed.heard:  # as every decision is made
        before = ReferenceCurves.of([1.0 - np.array([curve(0.72, n) for n in range(1, HORIZON + 1)])], HORIZON)
        oracle = SOLVER.judge(1.0 - np.array(values), HORIZON, 1.0 - curve(0.72, HORIZON), rng=rng, reference=before)
    assert 0.0 < oracle.p_win < 1.0
    assert verdict.evidence["p_win"] == pytest.approx(oracle.p_win, abs=1e-12)
    assert verdict.evidence["loss_continue"] == pytest.approx(oracle.loss_continue, abs=1e-9)
    assert verdict.stops == (oracle.d == "stop")


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")  # far outside the bounds
def test_a_run_of_values_that_are_no_measurements_is_stopped_in_words() -> None:
    verdict = judge_curve(Halting(RandomSearch(), SOLVER), 0.9, [0.3, math.nan, -1e300, math.nan])
    assert verdict.action is Action.STOP
    assert "no finite value" in verdict.reason


def test_a_falling_curve_is_judged_by_its_last_values_with_one_warning() -> None:
    rising = [curve(0.85, n) for n in range(1, 9)]
    policy = Halting(RandomSearch(), SOLVER)
    with pytest.warns(HaltuneWarning, match="but the last value counts") as caught:
        fallen = judge_curve(policy, 0.84, [*rising, *[0.4] * 12])
    held = judge_curve(policy, 0.84, [*rising, *[rising[-1]] * 12])
    assert len(caught) == 1
    assert fallen.evidence["p_win"] < held.evidence["p_win"] / 2


def test_validating_every_second_epoch_gives_the_decision_of_the_curve_between() -> None:
    study = small_study(Halting(RandomSearch(), SOLVER), problem=problem(epochs=HORIZON), trials=2)
    for trial in study:
        if trial.id == 0:
            train(trial, lambda c, e: curve(0.9, e))
            continue
        stopped_at = next(n for n in range(2, HORIZON, 2) if trial.report(curve(0.3, n), epoch=n).stops)
        trial.finish()
    assert stopped_at <= 12
    assert study.trials[1].status is Status.STOPPED


# condition C2


def test_a_stop_needs_the_surrogate_to_be_sure_enough_of_the_end() -> None:
    study = judged_search(BOBOS(initial=3, kappa=1.05, stopping=ALONE), trials=14)
    tested = [e.verdict for e in verdicts(study) if "sd_end" in e.verdict.evidence]
    assert {v.action for v in tested} == {Action.STOP, Action.CONTINUE}
    for v in tested:
        assert (v.action is Action.STOP) == (v.evidence["sd_end"] <= 1.05 * v.evidence["sd_now"])


@pytest.mark.slow
def test_c2_is_asked_of_the_trials_before_without_this_trials_own_epochs() -> None:
    study = judged_search(BOBOS(initial=3, refit_every=4, stopping=SOLVER), trials=9)
    report = [e for e in verdicts(study) if "sd_end" in e.verdict.evidence][-1]
    fresh = BOBOS(initial=3, refit_every=4, stopping=SOLVER)
    finished: tuple[int, ...] = ()
    for event in list(study.events())[: report.seen]:
        finished = fold_finished(finished, event)
    assert report.trial not in finished
    before = Surrogate(fresh._surrogate.rows, 4, 3).posterior(study.history, finished)
    x = study.problem.space.encode(study.trials[report.trial].config)
    rows, _ = fresh._surrogate.rows(study.history, study.trials[report.trial])
    last = rows[-1]
    assert before is not None
    np.testing.assert_allclose(last[:-1], x)
    now = math.sqrt(before.variance(last[None])[0])
    if study.trials[report.trial].epoch == report.epoch:
        assert report.verdict.evidence["sd_now"] == pytest.approx(now, rel=1e-9)


# Halting


def test_a_stop_wins_over_a_pause_and_a_pause_over_going_on() -> None:
    settings = OptimalStopping(paths=4000, first=3, K1=500)
    ends = [0.9, 0.15, 0.88, 0.2]
    policy = Halting(Pausing(), settings)
    study = Study(problem(epochs=12), policy, seed=3, budget=Budget(epochs=100))
    for _ in range(8):
        trial = study.ask()
        if not isinstance(trial, Trial):
            break
        if trial.attempt > 1:
            trial.epoch = 3.0  # as if a checkpoint had been loaded
            saved = Checkpointed(at=0.0, trial=trial.id, attempt=1, epoch=3.0, path="state")
            study.history._trials[trial.id].saved = saved
        with trial:
            for epoch in trial.epochs():
                trial.report(curve(ends[trial.id], epoch), epoch=epoch)
    status = {t.id: t.status for t in study.trials}
    assert status[1] is Status.STOPPED
    assert status[3] is Status.STOPPED
    assert status[0] is Status.COMPLETED
    resumed = {e.trial for e in study.events() if e.kind == "resumed"}
    assert resumed == {0, 2}


# horizons

HORIZONS = [10, 1_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (50, 500, 5_000, 100_000))]
MOST_REPORTS = 50  # of a trial, evenly spaced


def stopped_at(horizon: int, policy: object, ends: list[float]) -> list[float]:
    """The share of a full training after which each trial ends; curves rise to `ends`."""
    problem = Problem(Space({"x": Float(0, 1)}), Maximize("acc", bounds=(0, 1)), horizon)
    study = Study(problem, policy, seed=1, budget=Budget(trials=len(ends)), verbose=0)
    for trial in study:
        reports = min(horizon, MOST_REPORTS)
        for k in range(1, reports + 1):
            share = k / reports
            value = ends[trial.id] * (1 - math.exp(-4 * share)) / (1 - math.exp(-4))
            if trial.report(value, epoch=round(share * horizon), seconds=1.0).stops:
                break
        trial.finish()
    return [t.epoch / horizon for t in study.trials]


@pytest.mark.parametrize("make", [BOBOS, lambda: Halting(RandomSearch())], ids=["bobos", "halting"])
@pytest.mark.parametrize("horizon", HORIZONS)
def test_a_hopeless_trial_is_stopped_before_half_of_its_training_and_a_winner_is_not(make: Any, horizon: int) -> None:
    shares = stopped_at(horizon, make(), [0.9, 0.1, 0.95, 0.3])
    assert shares[0] == shares[2] == 1.0
    assert max(shares[1], shares[3]) <= 0.5


def test_the_same_curve_is_stopped_at_the_same_share_of_its_training() -> None:
    rule = Halting(RandomSearch(), OptimalStopping(K1=500))
    first = stopped_at(50, rule, [0.9, 0.6])[1]
    for horizon in (500, 5_000, 100_000):
        assert stopped_at(horizon, rule, [0.9, 0.6])[1] == pytest.approx(first, abs=0.1)


# a fine-tuning whose loss stays where it started for five epochs, and then drops
DROPS = [0.686, 0.672, 0.667, 0.678, 0.681, 0.648, 0.570, 0.524]


def fine_tuned(curves: list[list[float]], stopping: OptimalStopping) -> Study:
    """A study of these runs in turn, each trained until it is stopped."""
    space = problem().space
    goal = Problem(space, Minimize("loss", (0.0, 1.0)), max_epochs=len(DROPS))
    study = Study(goal, Halting(RandomSearch(), stopping), seed=0, budget=Budget(trials=len(curves)))
    for trial in study:
        with trial:
            for value in curves[trial.id]:
                if trial.report(value).stops:
                    break
    return study


def reports(study: Study, trial: int) -> list[Reported]:
    return [e for e in study.events() if isinstance(e, Reported) and e.trial == trial]


def test_a_plateau_is_not_stopped_where_the_best_run_itself_had_stood() -> None:
    others = [[v + d for v in DROPS] for d in (0.03, 0.02, 0.01)]
    study = fine_tuned([*others, DROPS, [0.687, 0.675, 0.667, 0.670, 0.672, 0.64, 0.56, 0.51]], SOLVER)
    assert [t.status for t in study.trials] == [Status.COMPLETED] * 5


def test_runs_that_are_each_a_little_better_than_all_before_are_hardly_stopped() -> None:
    better = [[v - 0.004 * k for v in DROPS] for k in range(13)]
    stopped = [sum(t.status is Status.STOPPED for t in fine_tuned(better, s).trials) for s in (SOLVER, ALONE)]
    assert stopped[0] <= 1, stopped


def test_a_trial_far_behind_many_others_is_stopped_before_its_own_curve_would_decide() -> None:
    good = [[curve(0.9 - 0.01 * k, n) for n in range(1, HORIZON + 1)] for k in range(6)]
    slow = [0.1 + 0.004 * n for n in range(1, HORIZON + 1)]
    ends = {}
    for name, stopping in (("beside", SOLVER), ("alone", ALONE)):
        study = small_study(Halting(RandomSearch(), stopping), problem=problem(epochs=HORIZON), trials=7)
        for trial in study:
            values = [*good, slow][trial.id]
            train(trial, lambda c, e, values=values: values[int(e) - 1])
        assert study.trials[0].status is Status.COMPLETED
        ends[name] = study.trials[6].epoch
    assert ends["beside"] < ends["alone"]


def test_the_receipt_names_the_epochs_and_the_runs_that_it_rests_on() -> None:
    study = small_study(Halting(RandomSearch(), SOLVER), problem=problem(epochs=HORIZON), trials=3)
    for trial in study:
        train(trial, lambda c, e, end=(0.9, 0.85, 0.3)[trial.id]: curve(end, e))
    first, last = (e.verdict for e in (reports(study, 0)[-1], reports(study, 2)[-1]))
    assert "p_win" not in first.evidence
    solved, beyond = int(last.evidence["solved_at"]), int(last.evidence["reference"])
    known = [t.epoch for t in study.trials[:2]]
    assert beyond == sum(n > solved for n in known)
    assert last.evidence["reference_full"] == sum(n == HORIZON for n in known)
    assert re.search(
        rf"from its own {solved} epochs? and {beyond} trials? trained (further, \w+ of them )?to the end", last.reason
    )


def judged(curves: list[list[float]], epochs: int) -> list[Verdict]:
    """The verdicts on the last of some runs; those before it are only recorded."""
    study = small_study(RandomSearch(), problem=problem(epochs=epochs), trials=len(curves))
    rule, said = Halting(RandomSearch(), OptimalStopping(paths=1000)), []
    for trial in study:
        for epoch, value in enumerate(curves[trial.id], 1):
            trial.report(value)
            if trial.id == len(curves) - 1 and epoch < len(curves[-1]):
                history = study.history
                said.append(
                    rule.judge(rule.start(study.problem), history, history.trial(trial.id), np.random.default_rng(0))
                )
        trial.finish("stopped" if len(curves[trial.id]) < epochs else None)
    return said


def test_runs_on_fewer_samples_are_no_company() -> None:
    class Partial(RandomSearch):
        def propose(self, state: Any, history: Any, rng: Any) -> Any:
            from dataclasses import replace

            move = super().propose(state, history, rng)
            return replace(move, resource=0.5) if len(history) == 0 else move

    study = small_study(Partial(), problem=problem(epochs=3), trials=3)
    for trial in study:
        train(trial, lambda c, e: 0.5)
    history = study.history
    assert [t.id for t in reference_trials(history.trials, history.trial(2))] == [1]


@pytest.mark.slow  # a law tests that no policy changes: test_propose_and_judge_change_nothing
def test_one_policy_that_serves_two_studies_learns_in_each_from_its_own_runs() -> None:
    """Their trials are alike by number, length and configuration."""
    policy = Halting(RandomSearch(), SOLVER)

    def lived(policy: Any, ends: tuple[float, ...]) -> list[tuple[float, str]]:
        study = small_study(policy, problem=problem(epochs=HORIZON), trials=len(ends))
        for trial in study:
            train(trial, lambda c, e, end=ends[trial.id]: curve(end, e))
        return [(e.epoch, e.verdict.reason) for e in study.events() if isinstance(e, Reported)]

    tasks = ((0.5, 0.6, 0.7, 0.65), (0.9, 0.91, 0.92, 0.65))
    assert [lived(policy, ends) for ends in tasks] == [lived(Halting(RandomSearch(), SOLVER), ends) for ends in tasks]


def test_other_options_of_the_stopping_rule_are_another_study() -> None:
    store = MemoryStore()
    small_study(Halting(RandomSearch()), store, trials=1).ask().report(0.5)  # a study without a report would make way
    small_study(Halting(RandomSearch()), store, trials=1)
    with pytest.raises(StudyMismatch, match="slopes"):
        small_study(Halting(RandomSearch(), OptimalStopping(slopes=4)), store, trials=1)


@pytest.mark.parametrize("goal", [Minimize("valid/mae"), Minimize("valid/mae", of="best")], ids=["last", "best"])
def test_advice_for_a_loss_that_rises_late_is_this_studys_goal_and_not_given_where_it_was_followed(goal: Any) -> None:
    study = Study(Problem(Space({"x": Float(0.0, 1.0)}), goal, 9), BOBOS(), seed=0, budget=Budget(trials=4), verbose=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for trial in study:
            with trial:
                for epoch in trial.epochs():
                    if trial.report(1 / epoch + trial.config["x"] + 2.0 * (epoch > 5)).stops:
                        break
    advice = [str(w.message) for w in caught if "best value" in str(w.message)]
    assert len(advice) == (goal.of == "last")
    assert all("use Minimize('valid/mae', of='best')" in text for text in advice)
