"""Rules replayed on curves: the answers by hand, and by a simple simulation."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from told_rules import At, Behind, Scripted, Told, written

from haltune import HaltuneError, Maximize, Study
from haltune.errors import InvalidInput
from haltune.log.decisions import Action
from haltune.log.events import to_json
from haltune.policies import RandomSearch
from haltune.report import replay
from haltune.report.replay import RuleOutcome

RISING, LATE, FLAT, LOW = (0.1, 0.2, 0.3, 0.4), (0.1, 0.1, 0.2, 0.6), (0.5,) * 4, (0.0, 0.0, 0.0, 0.1)
CURVES = [RISING, LATE, FLAT, LOW]
STOP, PAUSE = Action.STOP, Action.PAUSE


def only(study: Study, policy: Scripted) -> RuleOutcome:
    (rule,) = replay(study, policy)
    return rule


def ended(rule: RuleOutcome) -> list[float | None]:
    return [r.ended for r in rule.runs]


# -- by hand ---------------------------------------------------------------------------


def test_a_rule_that_stops_everything_at_one_epoch() -> None:
    rule = only(written(CURVES), At(2))
    assert ended(rule) == [2, 2, 2, 2]
    assert (rule.recorded, rule.trained, rule.saved) == (16, 8, 8)
    assert [r.incumbent for r in rule.runs][1:] == [0.2, 0.2, 0.5]  # the values that the rule left
    assert math.isnan(rule.runs[0].incumbent)
    assert [r.wrong for r in rule.runs] == [False, True, True, False]  # the first had nothing to beat
    assert (rule.wrong, rule.winners, rule.unknown) == (2, 2, 0)
    assert rule.best is not None
    assert (rule.best.trial, rule.best.value) == (2, 0.5)
    assert rule.regret == pytest.approx(0.1)


def test_a_rule_sees_the_runs_that_it_stopped_as_it_left_them() -> None:
    rule = only(written(CURVES), Behind(2))
    assert ended(rule) == [None, 2, None, 2]
    assert [r.reason for r in rule.runs] == ["", "0.1 is behind 0.4", "", "0 is behind 0.5"]
    assert [r.wins for r in rule.runs] == [False, True, True, False]  # 0.5 beats 0.4: the 0.6 was not seen
    assert (rule.wrong, rule.winners, rule.saved, rule.unknown) == (1, 2, 4, 0)


def test_a_rule_that_never_stops_changes_nothing() -> None:
    study = written(CURVES)
    rule = only(study, Scripted())
    assert (rule.stopped, rule.saved, rule.wrong, rule.unknown, rule.beyond, rule.regret) == (0, 0, 0, 0, 0, 0)
    assert (rule.winners, rule.best) == (1, study.best)


def test_where_runs_count_for_their_best_epoch_a_stop_after_it_costs_nothing() -> None:
    curves = [(0.3, 0.3, 0.3), (0.1, 0.9, 0.2)]
    rule = only(written(curves, goal=Maximize("acc", (0, 1), of="best")), At(2))
    assert [r.wrong for r in rule.runs] == [False, True]
    assert rule.regret == 0.0
    rule = only(written(curves), At(2))  # for their last
    assert [r.wrong for r in rule.runs] == [False, False]


# -- what the log does not hold ----------------------------------------------------------


def test_a_run_that_the_log_ended_before_is_unknown_from_there_on() -> None:
    study = written(CURVES, {(1, 2): STOP})
    rule = only(study, At(3))
    assert ended(rule) == [3, None, 3, 3]
    late = rule.runs[1]
    assert (late.trained, late.recorded, late.wins, late.wrong, late.beyond) == (2, 2, None, None, 2)
    assert (rule.unknown, rule.unjudged, rule.beyond) == (1, 0, 2)
    assert (rule.recorded, rule.saved) == (14, 3)


def test_a_run_that_is_still_trained_is_unknown() -> None:
    study = written(CURVES[:2])
    study.budget = type(study.budget)(trials=3)
    study.ask().report(0.9, seconds=1.0)  # type: ignore[union-attr]
    rule = only(study, Scripted())
    assert (rule.runs[2].wins, rule.runs[2].beyond, rule.unknown) == (None, 3, 1)


# -- pauses ----------------------------------------------------------------------------


def test_a_pause_where_the_log_has_none_ends_the_run() -> None:
    rule = only(written(CURVES), Behind(2, PAUSE))
    assert ended(rule) == [None, 2, None, 2]
    assert rule.saved == 4


def test_a_pause_of_the_log_continues_as_there() -> None:
    study = written(CURVES, told := {(1, 2): PAUSE, (3, 3): PAUSE})
    assert [t.attempt for t in study.trials] == [1, 2, 1, 2]
    for rule in replay(study, Scripted(told), Scripted()):
        assert (rule.stopped, rule.saved, rule.unknown) == (0, 0, 0)


def test_epochs_that_were_trained_twice_count_twice() -> None:
    study = written(CURVES, {(1, 2): PAUSE}, saves=False)  # it starts again
    rule = only(study, Scripted())
    assert [r.recorded for r in rule.runs] == [4, 6, 4, 4]
    assert [r.trained for r in only(study, At(1)).runs] == [1, 1, 1, 1]


# -- what is given, and what is printed ---------------------------------------------------


def test_the_table_states_the_result_of_each_rule_and_what_is_unknown() -> None:
    text = str(replay(written(CURVES, {(1, 2): STOP}), {"early": At(1), "patient": Scripted()}))
    head, _, titles, log, early, patient, *notes = text.splitlines()
    assert head == "4 trials and 14 epochs recorded, 3 trials in full"
    assert " ".join(titles.split()) == "rule stopped trained saved wrong stops unknown best acc regret"
    assert " ".join(log.split()) == "as recorded 1 of 4 14 0 (0%) 0 of 1 winner 1 trial 0.5 0"
    assert " ".join(early.split()) == "early 4 of 4 4 10 (71%) 1 of 1 winner 1 trial 0.5 0"
    assert " ".join(patient.split()) == "patient 0 of 4 at least 14 at most 0 (0%) 0 of 1 winner 1 trial 0.5 0"
    assert len({len(line) for line in (titles, log, early, patient)}) == 1
    assert [note.partition(":")[0] for note in notes] == ["", "saved", "wrong stops", "regret", "early", "patient"]


def test_it_is_printed_as_json() -> None:
    found = replay(written(CURVES, {(1, 2): STOP}), At(2))
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["metric"] == "acc"
    assert told["log"]["name"] == "as recorded"
    (rule,) = told["rules"]
    assert (rule["name"], rule["stopped"], rule["saved"], rule["unknown"]) == ("At", 4, 6, 1)
    assert rule["runs"][0]["incumbent"] is None


def test_a_study_without_runs_has_a_table_too() -> None:
    study = Study(written(CURVES).problem, RandomSearch())
    rule = only(study, At(1))
    assert (rule.runs, rule.best) == ((), None)
    assert math.isnan(rule.regret)
    assert "0 trials and 0 epochs recorded" in str(replay(study, At(1)))


def test_a_file_is_read_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    study = written(CURVES, store=str(path))
    before, log = {p.name: p.read_bytes() for p in tmp_path.iterdir()}, list(map(to_json, study.events()))
    found, of_study = replay(path, At(2)), replay(study, At(2))
    assert json.dumps(found.to_dict()) == json.dumps(of_study.to_dict())
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    study.sync()
    assert list(map(to_json, study.events())) == log


def test_what_is_no_study_and_no_rule_is_refused(tmp_path: Path) -> None:
    study = written(CURVES)
    for study_, rules in ((study, ()), (study, (At,)), (study, ({1: At(1)},)), (7, (At(1),))):
        with pytest.raises(InvalidInput, match="replay"):
            replay(study_, *rules)  # type: ignore[arg-type]
    with pytest.raises(HaltuneError):
        replay(tmp_path / "none.db", At(1))


# -- properties --------------------------------------------------------------------------

VALUES = st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0, math.nan])
TABLES = st.integers(1, 5).flatmap(
    lambda epochs: st.lists(st.lists(VALUES, min_size=epochs, max_size=epochs), min_size=1, max_size=6)
)
TOLD = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(1, 4)), st.sampled_from([STOP, PAUSE, Action.CONTINUE]), max_size=8
)


def never_twice(curves: list[list[float]]) -> bool:
    """Return the curves without two epochs in a row that end a trial under a rule."""
    return not any(math.isnan(a) and math.isnan(b) for curve in curves for a, b in pairwise(curve))


@pytest.mark.filterwarnings("ignore:acc (was|became) NaN or infinite in all:haltune.errors.HaltuneWarning")
@given(TABLES, TOLD, TOLD, st.booleans(), st.booleans())
def test_what_is_saved_and_trained_is_what_was_recorded(
    curves: list[list[float]], log: Told, told: Told, obeys: bool, saves: bool
) -> None:
    study = written(curves, log, obeys, saves)
    never, rule = replay(study, Scripted(), Scripted(told))
    if never_twice(curves):  # otherwise every rule stops a run there
        assert (never.saved, never.stopped, never.wrong) == (0, 0, 0)
        assert never.best == study.best
    spent = study.spent.epochs
    for found in (never, rule):
        assert found.recorded == spent
        assert found.saved + found.trained == found.recorded
        assert all(0 <= r.saved <= r.recorded and r.trained >= 0 for r in found.runs)
        assert all(r.ended is None or r.saved > 0 or r.wins is None for r in found.runs)


@pytest.mark.filterwarnings("ignore:acc (was|became) NaN or infinite in all:haltune.errors.HaltuneWarning")
@given(TABLES.filter(never_twice), TOLD)
def test_complete_curves_give_the_result_of_a_plain_simulation(curves: list[list[float]], told: Told) -> None:
    """One trial after the other: the incumbent is the best last value of the earlier ones under the rule."""
    rule, left, epochs = only(written(curves), Scripted(told)), [], len(curves[0])
    for trial, curve in enumerate(curves):
        stops = [n for n in range(1, epochs) if told.get((trial, n)) in (STOP, PAUSE)]
        until = min(stops, default=epochs)
        incumbent = max((v for v in left if math.isfinite(v)), default=-math.inf)
        run = rule.runs[trial]
        assert run.ended == (until if stops else None)
        assert run.trained == until
        assert run.wins == (math.isfinite(curve[-1]) and curve[-1] > incumbent > -math.inf)
        left.append(curve[until - 1])
    assert rule.unknown == 0
