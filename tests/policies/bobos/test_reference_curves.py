"""A run is judged by what it has shown and by the runs beside it, and the receipt says so."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from rising import HORIZON, SOLVER, curve
from worlds import problem, small_study, train

from haltune import Budget, Minimize, OptimalStopping, Problem, Study, Verdict
from haltune.errors import InvalidInput, StudyMismatch
from haltune.log.events import Reported, Status
from haltune.policies import Halting, RandomSearch
from haltune.policies.bobos.curves import ReferenceCurves
from haltune.policies.bobos.policy import reference_trials
from haltune.store.memory import MemoryStore

# a fine-tuning whose loss stays where it began for five epochs, and then drops
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


ALONE = OptimalStopping(paths=4000, beside=False)


def test_what_lies_far_behind_many_runs_is_stopped_before_one_curve_alone_would_tell() -> None:
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
    solved, beyond = int(last.evidence["solved_at"]), int(last.evidence["beside"])
    known = [t.epoch for t in study.trials[:2]]
    assert beyond == sum(n > solved for n in known)
    assert last.evidence["beside_full"] == sum(n == HORIZON for n in known)
    assert re.search(
        rf"from its own {solved} epochs? and {beyond} runs? trained (further, \w+ of them )?to the end", last.reason
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


def test_the_receipt_counts_the_runs_that_were_used_not_all_there_are() -> None:
    ends = np.linspace(0.5, 0.9, 70)
    others = [[curve(end, n) for n in range(1, (8 if k % 2 else 4) + 1)] for k, end in enumerate(ends)]
    last = judged([*others, [curve(0.6, n) for n in range(1, 8)]], 8)[1]  # at epoch 2
    told = last.evidence
    assert (told["beside"], told["beside_known"]) == (64, 70)
    assert 32 <= told["beside_full"] <= 35
    assert f"2 epochs and 64 of 70 runs trained further, {told['beside_full']} of them to the end" in last.reason


def test_a_receipt_says_where_its_curves_were_drawn() -> None:
    others = [[curve(end, n) for n in range(1, 31)] for end in (0.9, 0.85, 0.8)]
    for epoch, verdict in enumerate(judged([*others, others[0]], 30), 1):
        at = verdict.evidence.get("solved_at", epoch)
        drawn = f"from its own {epoch} epochs, by curves drawn at epoch {at} from 3 runs trained to the end;"
        here = f"from its own {epoch} epochs and 3 runs trained to the end;"
        if verdict.evidence.get("basis") == "solved" and "likely" not in verdict.reason:
            assert (drawn if at < epoch else here) in verdict.reason


def test_a_long_training_is_judged_by_its_last_epoch_and_those_that_come_before_it_by_steps() -> None:
    """250 epochs are looked at by threes: 4, 7, ... 250."""
    whole, short = ([0.3 + 0.001 * n for n in range(1, last + 1)] for last in (250, 249))
    said = judged([whole, whole, short, [0.2] * 12], 250)
    assert [v.evidence.get("solved_at") for v in said] == [None] * 6 + [7, 7, 7, 10, 10]
    assert {(v.evidence["beside"], v.evidence["beside_full"]) for v in said[6:]} == {(3, 2)}
    assert "from its own 7 epochs and 3 runs trained further, 2 of them to the end" in said[6].reason
    assert "from its first 7 epochs and 3 runs" in said[7].reason


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
    assert [t.id for t in reference_trials(history, history.trial(2))] == [1]


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


def test_a_study_of_an_earlier_version_is_opened_with_todays_settings() -> None:
    class Earlier(Halting):
        @property
        def spec(self) -> dict[str, Any]:
            spec = super().spec
            known = {k: v for k, v in spec["stopping"].items() if k not in ("slopes", "missing", "beside")}
            return {**spec, "policy": "Halting", "stopping": {**known, "cells": 100}}

    store = MemoryStore()
    small_study(Earlier(RandomSearch()), store, trials=1).ask().report(0.5)  # a study without a report would make way
    small_study(Halting(RandomSearch()), store, trials=1)
    with pytest.raises(StudyMismatch, match="slopes"):
        small_study(Halting(RandomSearch(), OptimalStopping(slopes=4)), store, trials=1)


def test_who_says_when_the_first_decision_comes_waits_for_it_with_others_beside_too() -> None:
    beside = ReferenceCurves.of([np.full(51, 0.5)] * 5, 51)
    assert OptimalStopping().plan(51, beside).first_decision == 2
    assert OptimalStopping(first=20, resolve_at=(30,)).plan(51, beside).solve_at == (20, 30)


@pytest.mark.parametrize(
    "options",
    [{"missing": -1.0}, {"missing": float("nan")}, {"slopes": 1.5}, {"cells": 2.5}, {"paths": True}, {"beside": 1}],
)
def test_what_is_no_setting_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        OptimalStopping(**options)


def test_faithful_looks_at_one_curve_alone() -> None:
    assert OptimalStopping("faithful").beside is False
    with pytest.raises(InvalidInput, match="one curve alone"):
        OptimalStopping("faithful", beside=True)
