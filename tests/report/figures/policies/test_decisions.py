"""The decisions on a trial, computed again from the log, against the log."""

import math
from functools import cache

import numpy as np
import pytest

from haltune import Budget, Float, HaltuneError, Maximize, Minimize, Problem, Space, Study
from haltune.log.events import Reported
from haltune.policies import Halting, OptimalStopping, RandomSearch
from haltune.policies.bobos.policy import Stopper
from haltune.report import decisions
from haltune.report.figures.decisions import decided, shown_report
from haltune.report.story import gives_p_win

EPOCHS = 12


@cache
def searched(sign=1.0, policy=None):
    goal = Maximize("acc", (0, 1)) if sign > 0 else Minimize("err", (0, 1))
    problem = Problem(Space({"lr": Float(0.0, 1.0)}), goal, EPOCHS)
    policy = policy or Halting(RandomSearch(), OptimalStopping(paths=5000))
    study = Study(problem, policy, seed=3, budget=Budget(trials=12), verbose=0)
    rng = np.random.default_rng(0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                value = trial.config["lr"] * (1 - 0.7 * math.exp(-epoch / 3)) + 0.01 * rng.random()
                if trial.report(value if sign > 0 else 1 - value, seconds=1.0).stops:
                    break
    return study


def judged(study):
    return [e for e in study.events() if gives_p_win(e)]


@pytest.mark.parametrize("sign", [pytest.param(1.0, marks=pytest.mark.slow), -1.0])
def test_every_decision_comes_out_as_it_was_recorded(sign):
    study = searched(sign)
    events = judged(study)
    assert any(e.verdict.stops for e in events)
    for event in [*events[::3], events[0]]:
        found = decided(study, study.policy.part(Stopper), event)
        decision = found.table.decide(found.posed.errors)
        assert decision.p_win == event.verdict.evidence["p_win"]
        assert (decision.d == "stop") == event.verdict.stops


def test_the_regions_are_what_the_table_decides_cell_by_cell():
    study = searched()
    table = decided(study, study.policy.part(Stopper), shown_report(study.events())).table
    for row, column in np.ndindex(table.visits.shape):
        p, ahead = table.p_win[row, column], table.next_value[row, column]
        losses = [table.losses.K1 * p, table.losses.K2 * (1 - p), table.losses.c + ahead]
        if not math.isinf(ahead):
            losses[0] += table.losses.missing
            losses[2] = min(losses[2], table.losses.c * (table.horizon - table.start - row))
        least = [-1.0, 1.0, 0.0][int(np.argmin(losses))]
        expected = least if table.visits[row, column] > table.min_visits else 0.0
        assert table.decided[row, column] == expected


def test_the_figure_walks_through_the_values_and_their_means_of_the_run_that_was_stopped_last():
    study = searched()
    event = [e for e in study.events() if isinstance(e, Reported) and gives_p_win(e) and e.verdict.stops][-1]
    figure = decisions(study)
    values = study.trials[event.trial].values
    curve, means = (t for t in figure.data if t.name == f"trial {event.trial}")
    assert list(curve.x) == list(range(1, len(values) + 1))
    assert list(curve.y) == pytest.approx(values)
    assert list(means.y) == pytest.approx([np.mean(values[: n + 1]) for n in range(len(values))])
    assert figure.layout.shapes[0].y0 == event.verdict.evidence["incumbent"]
    assert figure.layout.meta["title"] == f"Why trial {event.trial} was stopped"


def test_a_trial_may_be_chosen_and_one_that_was_not_judged_so_is_refused():
    study = searched()
    chosen = judged(study)[0].trial
    assert f"trial {chosen} " in decisions(study, chosen).layout.meta["title"]
    with pytest.raises(HaltuneError, match="never judged"):
        decisions(study, 0)


def test_a_search_that_decides_otherwise_is_refused():
    with pytest.raises(HaltuneError, match="Halting"):
        decisions(searched(policy=RandomSearch()))
