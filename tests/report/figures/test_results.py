"""Final values: as dots with the best so far, as an empirical distribution, and over pairs of parameters."""

import math
from itertools import combinations

import numpy as np
import pytest
from told import tell_trial, told

from haltune import Budget, Choice, Constraint, Float, Int, Maximize, Minimize, Problem, Space, Study
from haltune.policies import RandomSearch
from haltune.report import contour, edf, progress
from haltune.report.digest import digest
from haltune.report.figures.results import budget_spec, edf_spec

SPACE = Space({"lr": Float(1e-4, 1.0, log=True), "width": Int(8, 64), "kind": Choice(["a", "b"])})


def searched(trials=12, epochs=3):
    """Every third run ends after its first epoch by itself."""
    study = Study(
        Problem(SPACE, Minimize("loss"), epochs), RandomSearch(), seed=0, budget=Budget(trials=trials), verbose=0
    )
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(math.log10(trial.config["lr"]) ** 2 + 1 / epoch, seconds=1.0, cost=2.0)
                if trial.id % 3 == 0:
                    break
    return study


def test_a_dot_stands_where_its_run_had_ended_whatever_progress_is_measured_against():
    study = searched()
    results = progress(study).data[0]
    epochs = np.cumsum([t.epoch for t in study.trials])
    assert list(results.x) == epochs.tolist()
    assert list(results.y) == [t.values[-1] for t in study.trials]
    by = {b.label: b.args[0]["x"][0] for b in progress(study).layout.updatemenus[0].buttons}
    assert by["cost"] == (2.0 * epochs).tolist()
    assert sorted(by["time"]) == list(by["time"])


def test_the_best_so_far_never_falls_where_the_value_of_the_leader_does():
    study = Study(Problem(SPACE, Maximize("acc"), 3), RandomSearch(), seed=0, budget=Budget(trials=3), verbose=0)
    for trial in study:
        for epoch in trial.epochs():
            trial.report(0.9 - 0.2 * epoch + 0.05 * trial.id, seconds=1.0)
    line = progress(study).data[1]
    assert list(line.y) == sorted(line.y)
    assert line.y[0] == pytest.approx(0.7)
    assert study.best_value == pytest.approx(0.4)


def test_the_distribution_is_numpys():
    study = searched(20)
    (line,) = edf(study).data  # no run was cut
    values = np.array([t.values[-1] for t in study.trials])
    for x, y in zip(line.x, line.y, strict=True):
        assert y == pytest.approx((values <= x).mean())
    alt = edf(study).layout.meta["alt"]
    assert alt.startswith(f"Half of 20 trials have a final loss of {np.sort(values)[10]:.4g} or better")
    assert (values <= np.sort(values)[10]).mean() >= 0.5


def test_a_contour_without_names_offers_every_pair_and_each_is_that_of_its_names():
    study = searched(14)
    figure = contour(study)
    buttons = figure.layout.updatemenus[0].buttons
    assert {frozenset(b.label.split(" and ")) for b in buttons} == {frozenset(p) for p in combinations(SPACE.names, 2)}
    for button in buttons:
        across, along = button.args[1]["xaxis.title.text"], button.args[1]["yaxis.title.text"]
        alone = contour(study, across, along)
        assert not alone.layout.updatemenus
        heat, dots = alone.data
        changed = button.args[0]
        np.testing.assert_allclose(np.array(changed["z"][0], float), np.array(heat.z, float))
        assert [list(changed["x"][0]), list(changed["y"][1])] == [list(heat.x), list(dots.y)]
        assert button.args[1]["meta.alt"] == alone.layout.meta["alt"] == f"The expected loss over {across} and {along}."
        assert button.args[1]["xaxis.type"] == (alone.layout.xaxis.type or "linear")
    assert list(figure.data[0].x) == list(buttons[0].args[0]["x"][0])


def test_where_a_sample_is_drawn_the_distribution_and_the_bars_are_of_all_trials():
    history = told()
    for n in range(400):
        tell_trial(history, [n / 400] * (1 + n % 3))
    facts = digest(history, 200)
    spec = edf_spec(facts)
    (line,) = spec["data"]
    assert len(line["x"]) == 200
    assert line["y"] == pytest.approx([x + 1 / 400 for x in line["x"]])
    assert spec["layout"]["meta"]["alt"].startswith("Half of 400 trials have a final acc of 0.4975 or better")
    trained = budget_spec(facts)["data"][0]
    assert np.mean(trained["y"][:-1]) == pytest.approx(np.mean([t.epoch for t in history.trials]), rel=0.02)


def test_the_best_so_far_forgets_a_trial_beyond_the_limits_when_one_is_within_them():
    limit = [Constraint("ms", at_most=10.0)]
    study = Study({"lr": Float(0.0, 1.0)}, "acc", max_epochs=1, seed=0, budget="3 trials", constraints=limit, verbose=0)
    for trial, ms in zip(study, (20.0, 5.0, 5.0), strict=False):
        trial.report({"acc": 0.9 - trial.id / 10, "ms": ms})
    assert study.best.value == pytest.approx(0.8)
    assert list(progress(study).data[1].y) == pytest.approx([0.9, 0.8, 0.8])
