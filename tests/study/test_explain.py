"""Why a trial did not continue is its rank now: counted by hand from the reports of the log."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import haltune.policies as of
from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Study
from haltune.display import plural
from haltune.log.decisions import FULL, Action
from haltune.log.events import Event, Reported, Resumed, Started, Status
from haltune.policies import OptimalStopping

EPOCHS = 9
# policies of rungs, and whether trials are compared within a bracket alone
POLICIES: dict[str, tuple[Callable[[], Any], bool]] = {
    "halving": (lambda: of.SuccessiveHalving(n=6, eta=2, rounds=9), True),
    "hyperband": (lambda: of.Hyperband(eta=3, rounds=9), True),
    "hyperband-retrains": (lambda: of.Hyperband(eta=3, rounds=9, resume=False), True),
    "infinite": (lambda: of.InfiniteHyperband(), True),
    "asha": (lambda: of.SuccessiveHalving(n=6, eta=2, rounds=9, asynchronous=True), False),
    "asha-brackets": (lambda: of.Hyperband(eta=3, rounds=9, asynchronous=True), False),
    "asha-stops": (lambda: of.SuccessiveHalving(n=6, eta=2, rounds=9, asynchronous="stop"), False),
    "ladder": (lambda: of.Ladder(2, 2, 3, min_trials_per_rung=2), False),
    "multifidelity": (lambda: of.MultiFidelity(4, 1.0, 2, 2, min_trials_per_rung=2, candidates=12), False),
    "halting": (
        lambda: of.Halting(
            of.Ladder(2, 2, 3, min_trials_per_rung=2), OptimalStopping(paths=500, first=20, resolve_at=(30,))
        ),
        False,
    ),
}
NOW = re.compile(  # unlike the reason of the decision it counts those that continued
    r"(\d+)(?:st|nd|rd|th) of (\d+)(?: so far)? after (\d+) epochs?(?: in bracket.*)?"
    r"(?:; .* continued|: its configuration)"
)


def searched(name: str, goal: Any, rows: list[list[float]], saves: bool, endless: bool, left: int = 0) -> Study:
    """Train trials that each report a row; left: number of trainings after which all stop, if not 0."""
    problem = Problem(Space({"x": Float(0.0, 1.0)}), goal, None if endless else EPOCHS)
    study = Study(problem, POLICIES[name][0](), seed=3, budget=Budget(trials=len(rows)), verbose=0)
    for n, trial in enumerate(study):
        with trial:
            for epoch in range(int(trial.epoch) + 1, EPOCHS + 1):
                trial.report(rows[trial.id % len(rows)][epoch - 1], epoch=epoch, seconds=1.0)
                if trial.verdict and trial.verdict.stops:
                    break
            if saves and trial.verdict and trial.verdict.resumable:
                trial.checkpointed("saved")
        if n + 1 == left:
            break
    return study


def by_hand(study: Study, id: int, within_bracket: bool) -> tuple[int, int, int, int] | None:
    """Return (rank, of, epoch, continued) of a trial that was compared at its end, from the events; otherwise None."""
    events: list[Event] = list(study.events())
    sign = 1.0 if isinstance(study.problem.goal, Maximize) else -1.0
    tags: dict[int, Any] = {}
    ends: dict[int, tuple[float, Any]] = {}  # trial -> epoch and verdict of its last report
    values: dict[int, dict[float, float]] = {}  # trial -> epoch -> the last value reported
    furthest: dict[int, float] = {}  # trial -> the epoch to which it was sent
    first: dict[Any, Any] = {}  # bracket -> epochs of its first rung
    for e in events:
        if isinstance(e, Started):
            tags[e.trial], values[e.trial] = e.tags, {}
            if "of" not in e.tags:
                first[e.tags["bracket"]] = e.resource
        if isinstance(e, Started | Resumed):
            furthest[e.trial] = max(furthest.get(e.trial, 0.0), e.pause_at or math.inf)
        if isinstance(e, Reported):
            values[e.trial][e.epoch] = e.value
            ends[e.trial] = e.epoch, e.verdict
            if e.verdict.action is Action.CONTINUE:
                furthest[e.trial] = max(furthest[e.trial], e.verdict.pause_at or 0.0)
    epoch, verdict = ends[id]
    if study.trials[id].status not in (Status.STOPPED, Status.PAUSED) or FULL in verdict.evidence:
        return None
    if not math.isfinite(values[id][epoch]) or ("rank" not in verdict.evidence and verdict.evidence):
        return None
    retrains = any("of" in t for t in tags.values())

    def group(trial: int) -> Any:
        bracket = tags[trial]["bracket"]
        return (bracket if within_bracket else first[bracket]), retrains and tags[trial]["rung"]

    there = [t for t in tags if group(t) == group(id) and epoch in values[t]]
    key = {t: (-sign * v if math.isfinite(v := values[t][epoch]) else math.inf, t) for t in there}
    rank = 1 + sum(key[t] < key[id] for t in there)
    went = [t for t in there if furthest[t] > epoch or max(values[t]) > epoch]
    if retrains:
        went = [t for t in there if any(other.get("of") == t for other in tags.values())]
    return rank, len(there), int(epoch), len(went)


VALUES = st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, math.nan])
ROWS = st.lists(st.lists(VALUES, min_size=EPOCHS, max_size=EPOCHS), min_size=3, max_size=14)


QUICK = ("hyperband", "hyperband-retrains", "asha-stops", "guided")


@pytest.mark.parametrize("name", [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in POLICIES])
@pytest.mark.filterwarnings("ignore:acc (became|was) NaN", "ignore:loss (became|was) NaN")  # where all rows are
@settings(max_examples=12, deadline=None)
@given(rows=ROWS, smaller=st.booleans(), saves=st.booleans(), left=st.integers(0, 12))
def test_the_rank_of_a_trial_and_how_many_continued_are_those_of_the_whole_log(
    name: str, rows: list[list[float]], smaller: bool, saves: bool, left: int
) -> None:
    goal = Minimize("loss") if smaller else Maximize("acc", (0, 1))
    study = searched(name, goal, rows, saves, endless=name == "infinite", left=left)
    for t in study.trials:
        lines = study.explain(t.id, whole=False).splitlines()
        because = "".join(line for line in lines if "ended because" in line)
        expected = by_hand(study, t.id, POLICIES[name][1])
        if expected is None:
            assert not NOW.search(because)
            continue
        found = NOW.search(because)
        assert found, (because, expected)
        assert tuple(map(int, found.groups())) == expected[:3]
        assert (" so far" in because) == (not study.outcome.over)
        if any(other.tags.get("of") == t.id for other in study.trials):
            assert "its configuration continued as another trial" in because
        else:
            others = plural(expected[3], "other") if expected[3] else "none"
            assert f"; {others} continued" in because
        was = "when it paused" if t.status is Status.PAUSED else "when stopped"
        assert t.verdict is not None
        assert any(line.startswith(f"  {was:<14} ") and t.verdict.reason in line for line in lines)


def test_a_rank_gives_the_epoch_of_a_report_that_came_after_the_rung() -> None:
    """The third trial reports first at epoch 5, so it is compared at rung 3 by its value there."""
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), EPOCHS)
    policy = of.SuccessiveHalving(n=9, eta=3, asynchronous="stop", min_resource=3)
    study = Study(problem, policy, seed=0, budget=Budget(trials=3), verbose=0)
    for trial in study:
        with trial:
            for epoch in range(5 if trial.id == 2 else 1, EPOCHS + 1):
                if trial.report(float(trial.id), epoch=epoch).stops:
                    break
    because = {t.id: study.explain(t.id) for t in study.trials}
    assert "2nd of 3 after 3 epochs; 1 other continued" in because[1]
    assert "3rd of 3 after 3 epochs, counted at epoch 5; 1 other continued" in because[2]


def test_a_trial_that_is_stopped_late_did_not_continue_from_its_rung() -> None:
    """Its reports of epochs 3 to 5 are delivered late, so the decision of rung 3 comes at epoch 6."""
    from haltune.report.digest import digest

    problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), EPOCHS)
    policy = of.SuccessiveHalving(n=9, eta=3, asynchronous="stop", min_resource=3)
    study = Study(problem, policy, seed=0, budget=Budget(trials=3), verbose=0)
    for trial in study:
        with trial:
            for epoch in range(1, EPOCHS + 1):
                if trial.report(float(trial.id), epoch=epoch, judge=epoch not in (3, 4, 5)).stops:
                    break
    assert [t.epoch for t in study.trials] == [9, 6, 6]
    because = [study.explain(t.id) for t in study.trials]
    assert "2nd of 3 after 3 epochs; 1 other continued" in because[1]
    assert "3rd of 3 after 3 epochs; 1 other continued" in because[2]
    assert digest(study).comparisons.counts(3.0) == (1, 3)


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("value", [0.7, 0.05])
def test_a_verdict_that_comes_after_the_next_rung_is_explained_at_its_own(value: float, every: int) -> None:
    """The first three reports of trial 2 are delivered late, so at the fourth its first one is compared, at rung 1."""
    from haltune.report.digest import digest

    space = Space({"x": Float(0.0, 1.0)})
    problem = Problem(space, Minimize("loss"), EPOCHS * every, unit="step", judge_every=float(every))
    policy = of.SuccessiveHalving(n=9, eta=3, asynchronous="stop")
    study = Study(problem, policy, seed=0, budget=Budget(trials=3), verbose=0)
    for trial in study:
        with trial:
            for n in range(1, EPOCHS + 1):
                loss = (0.5, 0.1 if n < 3 else 0.9, value)[trial.id]
                if trial.report(loss, n * every, judge=trial.id < 2 or n > 3).stops:
                    break
    explained, there = study.explain(2), problem.amount(every)
    if value < 0.1:
        assert f"-> continue: 1st of 3 after {there}; the best 1 continues" in explained
        return
    assert f"-> stop: 3rd of 3 after {there}; the best 1 continues" in explained
    assert f"3rd of 3 after {there}; 2 others continued" in explained
    assert digest(study).comparisons.counts(float(every)) == (2, 3)


def test_the_first_that_paused_is_the_last_in_the_end_and_every_listing_says_so() -> None:
    """The reason that was given, 1st of 1, is of an old moment; the listing of trials and the page put it second."""
    from haltune.report.digest import digest

    rows = [[0.1 + 0.01 * n] * EPOCHS for n in range(11)]
    rows = [[value + 0.001 * e for e, value in enumerate(row)] for row in rows]
    study = searched("ladder", Maximize("acc", (0, 1)), rows, True, False)
    trial = study.trials[0]
    expected = by_hand(study, 0, False)
    assert expected is not None
    rank, count, epoch, continued = expected
    assert count > 3
    place = f"{count}th of {count} after {plural(epoch, 'epoch')}; {plural(continued, 'other')} continued"
    assert rank == count
    row = digest(study).rows[0]
    assert trial.verdict is not None
    assert row.reason == f"{place}; when it paused: {trial.verdict.reason}"
    assert place in study.explain(0)
    assert place in study.explain(0, whole=False)
