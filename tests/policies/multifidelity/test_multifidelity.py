"""The search as a whole: where it compares, what it chooses, and what it does where nothing can pause."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune import Budget, Choice, Float, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.errors import StudyMismatch
from haltune.log.decisions import Action
from haltune.log.events import Ended, Reported, Resumed, Started, Status
from haltune.log.history import History
from haltune.models.curve_rows import CurveRows
from haltune.policies import Halting, MultiFidelity, RandomSearch
from haltune.policies.from_spec import policy_from
from haltune.policies.multifidelity.policy import FIRST, LadderState, first_rung
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide

SPACE = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})
LONG = Problem(SPACE, Maximize("acc", (0, 1)), 27)


def quality(config: dict[str, Any]) -> float:
    """Highest, 0.9, at (0.3, 0.7)."""
    return 0.9 - 0.8 * (config["x"] - 0.3) ** 2 - 0.8 * (config["y"] - 0.7) ** 2


def early(config: dict[str, Any], epoch: float) -> float:
    """Ranked from the first epoch on."""
    return quality(config) * epoch / (epoch + 1)


def late(config: dict[str, Any], epoch: float) -> float:
    """Until epoch 9 its values have nothing to do with the end."""
    return quality(config) if epoch > 9 else 0.3 + 0.1 * np.sin(37 * config["x"] + 17 * config["y"])


def searched(curve: Any = early, problem: Problem = LONG, *, saves: bool = True, **options: Any) -> Study:
    policy = options.pop("policy", MultiFidelity(initial=10))
    study = Study(problem, policy, **{"seed": 3, "budget": Budget(epochs=400), **options})
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(curve(trial.config, epoch), seconds=1.0)
            if saves and trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"memory of {trial.id}")
    return study


@cache
def seeded(seed: int) -> Study:
    """Return a search of curves with early final ranks; read only."""
    return searched(early, seed=seed)


def test_without_a_policy_a_study_runs_it() -> None:
    study = Study(LONG, budget=Budget(trials=2), seed=0)
    assert study.policy == MultiFidelity()
    assert policy_from(study.policy.spec) == MultiFidelity()


def known_of(curve: Any) -> tuple[LadderState, History]:
    """Return the kernel learnt from twenty random trials, all trained in full."""
    history, rows = History(LONG), CurveRows(LONG.goal)
    for event in searched(curve, policy=RandomSearch(trials=20)).events():
        history.apply(event)
        rows.take(event)
    return replace(MultiFidelity().start(LONG), rows=rows), history


@pytest.mark.parametrize(("curve", "first"), [(early, 1), (late, 27)])
def test_runs_are_compared_where_they_can_be_distinguished(curve: Any, first: int) -> None:
    policy, (state, history) = MultiFidelity(), known_of(curve)
    assert (
        policy.rungs(27)[policy._promotion(state, history, state.model.kernel(history, state.rows.table)).base] == first
    )


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "least", "most"), [(5, 3, 5), (60, 5, 40)])
def test_of_few_trials_most_train_in_full_and_of_many_by_far_not_all(trials: int, least: int, most: int) -> None:
    study = searched(policy=MultiFidelity(), budget=Budget(trials=trials))
    assert len(study.trials) == trials
    assert least <= sum(t.epoch == 27 for t in study.trials) <= most


def test_what_is_said_of_the_first_rung_means_the_same_in_every_receipt() -> None:
    study = seeded(3)
    epochs = study.policy.rungs(27)
    started = [e.evidence for e in study.events() if isinstance(e, Started) and "first_rung" in e.evidence]
    judged = [e.verdict for e in study.events() if isinstance(e, Reported) and "first_rung" in e.verdict.evidence]
    assert started
    assert judged
    assert all(epochs[evidence["first_rung"]] == evidence["compared_from"] for evidence in started)
    assert all(epochs[verdict.evidence["first_rung"]] == verdict.pause_at for verdict in judged)


@pytest.mark.slow
def test_it_finds_more_than_random_configurations_trained_in_full() -> None:
    found = np.mean([seeded(s).best.value for s in (3, 4, 5, 6)])
    rng = np.random.default_rng(0)
    draws = [{"x": a, "y": b} for a, b in rng.random((400, 2))]
    at_random = np.mean([max(early(c, 27) for c in draws[k : k + 400 // 27]) for k in range(0, 380, 20)])
    assert found > at_random


@pytest.mark.parametrize("curve", [early, pytest.param(late, marks=pytest.mark.slow)])
def test_no_trial_starts_where_three_are(curve: Any) -> None:
    """Within n^(-1 / d) / 2 of n trials in d dimensions. Else a search tries its best configuration for ever."""
    started = [e for e in searched(curve, seed=4).events() if isinstance(e, Started)]
    points = np.array([[e.config["x"], e.config["y"]] for e in started])
    near = [
        (np.sqrt(((points[:n] - points[n]) ** 2).sum(axis=1)) < n**-0.5 / 2).sum()
        for n, e in enumerate(started)
        if "ucb" in e.evidence
    ]
    assert len(near) >= 10
    assert max(near) < 3


def test_a_small_space_is_tried_whole() -> None:
    space = Space({"x": Choice([n / 11 for n in range(12)], ordered=True), "y": Choice([0.0, 0.5, 1.0], ordered=True)})
    study = searched(problem=Problem(space, Maximize("acc", (0, 1)), 9), budget=Budget(trials=36))
    assert len({tuple(t.config.values()) for t in study.trials}) == 36


@pytest.mark.parametrize(
    ("horizon", "rungs"), [(50, (1, 3, 9, 27, 50)), pytest.param(200, (4, 12, 36, 108, 200), marks=pytest.mark.slow)]
)
def test_the_rungs_of_a_training_are_shares_of_it_in_whatever_unit_it_counts(
    horizon: int, rungs: tuple[int, ...]
) -> None:
    assert MultiFidelity().rungs(horizon) == rungs
    study = searched(problem=Problem(SPACE, Minimize("loss"), horizon), budget=Budget(epochs=6 * horizon))
    judged = [e for e in study.events() if isinstance(e, Reported) and "rank" in e.verdict.evidence]
    assert judged
    assert {e.epoch for e in judged} <= set(rungs)


def test_a_log_keeps_the_options_that_were_the_defaults_of_its_time() -> None:
    store = MemoryStore()
    searched(policy=MultiFidelity(initial=20, deviations=3.0), budget=Budget(trials=4), store=store)
    assert Study(LONG, MultiFidelity(), store).policy == MultiFidelity(initial=20, deviations=3.0)
    with pytest.raises(StudyMismatch, match=r"deviations: recorded 3.0, given 1.0"):
        Study(LONG, MultiFidelity(deviations=1.0), store)


@pytest.mark.parametrize("min_share", [0.0, 0.02])
def test_a_study_that_goes_on_mentions_prior_studies_only_if_it_has_some(min_share: float, caplog: Any) -> None:
    store = MemoryStore()
    searched(policy=MultiFidelity(min_share=min_share), budget=Budget(trials=2), store=store)
    with caplog.at_level("INFO", "haltune"):
        searched(policy=MultiFidelity(), budget=Budget(trials=3), store=store)
    assert "3 of 3 trials" in caplog.text
    assert "prior studies" not in caplog.text


@pytest.mark.parametrize("horizon", [1, 2, 10])
def test_any_horizon_has_a_ladder_that_ends_in_a_full_training(horizon: int) -> None:
    rungs = MultiFidelity().rungs(horizon)
    assert rungs[-1] == horizon
    assert list(rungs) == sorted(set(rungs))
    study = searched(problem=Problem(SPACE, Minimize("loss"), horizon), budget=Budget(trials=15))
    assert len(study.trials) == 15
    assert any(t.epoch == horizon for t in study.trials)


def test_a_new_configuration_says_from_where_on_runs_are_compared_and_what_is_expected() -> None:
    study = seeded(3)
    chosen = [e for e in study.events() if isinstance(e, Started) and "correlation" in e.evidence]
    assert chosen
    for t in chosen:
        assert t.evidence["compared_from"] in (1, 3, 9, 27)
        epoch = t.evidence["compared_from"]
        since = "only at the end" if epoch == study.problem.max_epochs else f"from epoch {epoch}:"
        assert f"trials are compared {since}" in t.reason
        assert abs(t.evidence["mean"]) <= 2.0
        assert t.evidence["sd"] > 0


def test_if_the_best_epoch_counts_a_later_nan_does_not_make_a_configuration_bad() -> None:
    problem = Problem(SPACE, Maximize("acc", (0, 1), of="best"), 9)
    study = Study(problem, MultiFidelity(candidates=40), seed=0, budget=Budget(trials=24), verbose=0)
    for trial in study:
        for epoch in trial.epochs():
            trial.report(early(trial.config, epoch) if epoch < 9 else math.nan, seconds=1.0)
    chosen = [e for e in study.events() if isinstance(e, Started) and "mean" in e.evidence]
    least = min(t.values[np.isfinite(t.values)].min() for t in study.trials)
    assert chosen
    assert all(e.evidence["mean"] > least for e in chosen)


@pytest.mark.slow
def test_without_checkpoints_promoted_trials_train_again_from_their_start_and_late_ones_stop() -> None:
    study = searched(late, Problem(SPACE, Maximize("acc", (0, 1)), 50), saves=False, budget=Budget(epochs=900))
    events = list(study.events())
    resumed = {(e.trial, e.attempt) for e in events if isinstance(e, Resumed)}
    firsts = {(e.trial, e.attempt): e.epoch for e in reversed(events) if isinstance(e, Reported)}
    assert resumed
    assert {firsts[attempt] for attempt in resumed} == {1.0}
    cut = [e for e in events if isinstance(e, Reported) and "rank" in e.verdict.evidence and e.verdict.stops]
    assert {e.verdict.action for e in cut if e.epoch < 20} == {Action.PAUSE}
    stops = [e for e in cut if e.epoch >= 20]
    assert stops
    assert all(e.verdict.action is Action.STOP and "no checkpoint is saved" in e.verdict.reason for e in stops)
    assert study.best.epoch == 50


def test_where_a_trial_trains_on_instead_of_pausing_later_ones_stop() -> None:
    study = Study(LONG, MultiFidelity(initial=10), seed=3, budget=Budget(epochs=400), verbose=0)
    for trial in study:
        with trial:
            for epoch in range(1, 28):
                if trial.report(early(trial.config, epoch), epoch, seconds=1.0).action is Action.STOP:
                    break
    events = list(study.events())
    assert {e.trial for e in events if isinstance(e, Reported) and e.verdict.action is Action.PAUSE} == {0}
    stopped = [t for t in study.trials if t.status is Status.STOPPED and t.epoch < 27]
    assert stopped
    assert all(t.verdict and "trials cannot pause in this study" in t.verdict.reason for t in stopped)
    assert not any(isinstance(e, Resumed) for e in events)
    assert study.best.epoch == 27


@pytest.mark.slow
def test_while_a_disk_is_full_trials_train_on_and_later_ones_pause_again() -> None:
    study = Study(LONG, MultiFidelity(initial=10), seed=3, budget=Budget(epochs=400), verbose=0)
    refused = set()
    for trial in study:
        with trial:
            for epoch in range(round(trial.epoch) + 1, 28):
                if not trial.report(early(trial.config, epoch), epoch, seconds=1.0).resumable:
                    continue
                if trial.id in (4, 5):
                    refused.add(trial.id)
                    trial.decline_pause()
                    continue
                trial.checkpointed(f"memory of {trial.id}")
                break
    assert refused == {4, 5}
    assert len({t.id for t in study.trials if t.id > 5 and t.status is Status.PAUSED}) > 5
    assert not any(t.status is Status.STOPPED for t in study.trials)


def test_trials_that_report_again_before_they_pause_can_pause() -> None:
    study = Study(LONG, MultiFidelity(initial=10), seed=3, budget=Budget(epochs=300), verbose=0)
    for trial in study:
        with trial:
            over = False
            for epoch in range(round(trial.epoch) + 1, 28):
                if trial.report(early(trial.config, epoch), epoch, seconds=1.0).resumable and over:
                    trial.checkpointed(f"memory of {trial.id}")  # the state that it saves as it is asked to end
                    break
                over = trial.verdict is not None and trial.verdict.stops
    paused = {t.id for t in study.trials if t.status is Status.PAUSED}
    assert len(paused) > 5
    reasons = [e.verdict.reason for e in study.events() if isinstance(e, Reported)]
    assert not any("trials cannot pause in this study" in reason for reason in reasons)


@pytest.mark.parametrize(
    "epochs", [pytest.param(5, marks=pytest.mark.slow), 50]
)  # runs are first compared after 1 epoch, after 3
@pytest.mark.parametrize("saves", [True, False], ids=["saves", "saves nothing"])
@pytest.mark.parametrize("before_saving", [True, False])
def test_a_kill_before_a_trial_has_paused_does_not_show_whether_trials_can_pause(
    epochs: int, saves: bool, before_saving: bool
) -> None:
    study = Study(Problem(SPACE, Maximize("acc", (0, 1)), epochs), seed=3, budget=Budget(trials=12), verbose=0)
    killed = False
    for trial in study:
        for epoch in trial.epochs():
            trial.report(early(trial.config, epoch), seconds=1.0)
        pauses = trial.verdict is not None and trial.verdict.resumable
        if saves and pauses and (killed or not before_saving):
            trial.checkpointed(f"memory of {trial.id}")
        if pauses and not killed:
            killed = True
            trial.mark_lost("killed")
        else:
            trial.finish()
    assert killed
    assert study.trials[0].attempt > 1
    reasons = [e.verdict.reason for e in study.events() if isinstance(e, Reported)]
    assert any("no checkpoint is saved" in reason for reason in reasons) is not saves
    assert not any("trials cannot pause in this study" in reason for reason in reasons)


def test_a_loop_that_never_leaves_has_trained_in_full_and_nothing_is_trained_twice() -> None:
    study = Study(LONG, MultiFidelity(initial=4), seed=0, budget=Budget(trials=12))
    trained = 0
    for trial in study:
        with trial:
            for epoch in range(1, 28):
                trained += 1
                trial.report(early(trial.config, epoch), epoch)
    assert trained == 12 * 27
    assert {t.status for t in study.trials} <= {Status.COMPLETED, Status.STOPPED}


def test_the_first_configuration_that_the_user_enqueues_trains_in_full() -> None:
    start = [{"x": 1.0, "y": 0.0}, {"x": 0.9, "y": 0.0}]  # the worst there are
    study = searched(problem=Problem(SPACE, Maximize("acc", (0, 1)), 27, start=start))
    first, second = study.trials[:2]
    assert (first.config["x"], second.config["x"]) == (1.0, 0.9)
    assert first.epoch == 27
    assert first.status is Status.COMPLETED
    assert second.epoch < 27
    ranked = [e for e in study.events() if isinstance(e, Reported) and e.trial == 0 and "rank" in e.verdict.evidence]
    assert all("the first trial that you enqueued trains in full" in e.verdict.reason for e in ranked)


EPOCHS = (1, 3, 9, 27, 50)
told = st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5)


@pytest.mark.parametrize("horizon", [6, 10, *(pytest.param(n, marks=pytest.mark.slow) for n in (27, 50))])
@pytest.mark.parametrize("curve", [early, late])
def test_one_training_is_complete_within_the_price_of_two(curve: Any, horizon: int) -> None:
    found = searched(curve, replace(LONG, max_epochs=horizon), budget=Budget(epochs=4 * horizon))
    reports = [e for e in found.events() if isinstance(e, Reported)]
    assert next(n for n, e in enumerate(reports, 1) if e.epoch == horizon) <= 2 * horizon


def test_the_first_that_trains_in_full_leads_and_says_so() -> None:
    horizon = 50
    events = list(searched(early, replace(LONG, max_epochs=horizon), budget=Budget(epochs=3 * horizon)).events())
    at, first = next((n, e) for n, e in enumerate(events) if isinstance(e, Resumed) and "first trial" in e.reason)
    assert first.pause_at == horizon
    reports = [e for e in events[:at] if isinstance(e, Reported)]
    assert horizon <= len(reports) < 2 * horizon
    reached = max(e.epoch for e in reports)
    assert first.trial == max((e for e in reports if e.epoch == reached), key=lambda e: e.value).trial
    verdicts = [e.verdict for e in events[at:] if isinstance(e, Reported) and e.trial == first.trial]
    assert {v.action for v in verdicts} == {Action.CONTINUE}
    assert any("the first that trains in full" in v.reason for v in verdicts)


@pytest.mark.parametrize("rung", range(4))
def test_it_finds_what_a_simulated_search_finds_best(rung: int) -> None:
    """The rung of best expected end, by Monte Carlo: n runs seen there, the one that leads trained on."""
    rng = np.random.default_rng(rung)
    correlations = np.where(np.arange(5) < rung, 0.15, 0.9)
    correlations[-1] = 1.0
    found = []
    for told, epochs in zip(correlations, EPOCHS, strict=True):
        n = int(8 * EPOCHS[-1] / epochs)
        end = rng.standard_normal((4000, n))
        seen = told * end + np.sqrt(1 - told**2) * rng.standard_normal((4000, n))
        found.append(end[np.arange(4000), seen.argmax(axis=1)].mean())
    assert first_rung(correlations, EPOCHS) == int(np.argmax(found)) == rung


@settings(max_examples=many(100), deadline=None)
@given(correlations=told, rung=st.integers(0, 4), more=st.floats(0.0, 1.0))
def test_a_rung_that_predicts_more_is_not_given_up_for_it(correlations: list[float], rung: int, more: float) -> None:
    before = np.array(correlations)
    chosen = first_rung(before, EPOCHS)
    after = before.copy()
    after[rung] = min(1.0, after[rung] + more)
    assert first_rung(after, EPOCHS) in (chosen, rung)


@pytest.mark.parametrize("seed", range(4))
def test_the_first_trial_that_trains_in_full_does_not_pause_where_it_would_resume_at_once(seed: int) -> None:
    space = Space({"x": Float(0.0, 1.0)})
    study = Study(Problem(space, Maximize("acc"), 9), seed=seed, budget=Budget(epochs=60), verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                verdict = trial.report(trial.config["x"] + trial.id - 0.5**epoch, epoch, seconds=1.0)
                if verdict.resumable:
                    trial.checkpointed(f"{trial.id} at {epoch}")
                if verdict.stops:
                    break
    log = [e for e in study.events() if isinstance(e, Ended | Resumed | Started)]
    first = [e for e in study.events() if isinstance(e, Reported) and e.verdict.evidence.get(FIRST)]
    assert first  # the newest trial leads, so it continues
    assert {e.verdict.pause_at for e in first} == {9.0}
    assert not any(isinstance(a, Ended) and isinstance(b, Resumed) and a.trial == b.trial and b.tags.get(FIRST)
                   for a, b in pairwise(log))  # fmt: skip
    assert study.trials[first[0].trial].epoch == 9
    assert [d for d in redecide(study.problem, study.policy, study.events()) if d[1] != d[2]] == []


@pytest.mark.parametrize("budget", ["1 trial", "1 trial, 1 h"])
def test_a_single_trial_does_not_pause_where_it_would_resume_at_once(budget: str) -> None:
    study = Study(Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc"), 9), seed=0, budget=budget, verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(0.1 * epoch, epoch, seconds=1.0)
    assert (study.spent.epochs, study.trials[0].attempt) == (9, 1)
    assert [d for d in redecide(study.problem, study.policy, study.events()) if d[1] != d[2]] == []


@pytest.mark.parametrize("policy", [MultiFidelity(), Halting(MultiFidelity())], ids=["alone", "halting"])
def test_a_trial_that_equals_the_paused_ones_does_not_pause_where_it_would_resume_at_once(policy: Any) -> None:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc"), 6)
    study = Study(problem, policy, seed=0, budget=Budget(epochs=60), verbose=0)
    slow = study.ask()
    assert isinstance(slow, Trial)
    for trial in (study.ask() for _ in range(5)):  # with the epoch of the slow one they spend a full training
        assert isinstance(trial, Trial)
        with trial:
            assert trial.report(0.5, 1, seconds=1.0).action is Action.PAUSE
            trial.checkpointed(f"{trial.id} at 1")
    verdict = slow.report(0.5, 1, seconds=1.0)
    assert verdict.action is Action.CONTINUE
    assert verdict.evidence[FIRST]
