"""AutoBCT: when it continues, when it ends, and its reasons."""

import json
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from held_out import foretold
from worlds import quick, search

from haltune import Budget, Float, Int, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.errors import HaltuneWarning, InvalidInput
from haltune.log.events import Started, Status
from haltune.policies import AutoBCT, Halting, RandomSearch
from haltune.policies.autobct.policy import controls_of, trainings
from haltune.policies.autobct.prior import from_studies, prior_from_json

LINE = Space({"lr": Float(1e-4, 1.0, log=True)})
PLANE = Space({"lr": Float(1e-4, 1.0, log=True), "batch": Int(8, 256, log=True)})
ACCURACY = Problem(LINE, Maximize("acc", (0, 1)), 1)
KNOWN = {"prior": "D.1", "worst": 0.0, "best": 1.0}


def hill(config, middle=-2.0):
    """One peak, in the middle of the range of lr."""
    return 0.95 - 0.12 * (math.log10(config["lr"]) - middle) ** 2


def trained(policy, score=hill, seconds=lambda config: 5.0, what=ACCURACY, trials=40, **options):
    """A study searched to its end."""
    study = Study(what, policy, seed=options.pop("seed", 3), budget=Budget(trials=trials), **options)
    for trial in study:
        with trial:
            for _ in trial.epochs():
                trial.report(score(trial.config), seconds=seconds(trial.config))
    return study


def reason(study):
    return study.ask().reason


def test_it_ends_by_itself_near_the_peak_with_a_sentence_that_weighs():
    study = trained(AutoBCT())
    assert len(study.trials) <= 6
    assert study.history.finished
    assert hill(study.trials[-1].config) > 0.85
    said = reason(study)
    for words in (
        "trainings for 15 s, worth ",
        " of acc, led from 0.9107 with the first configuration to ",
        "with the last (expected of repeats: ",
        "). Continuing does not pay: its expected gain is ",
        "and another training takes",
        "(by gamma=0.16; score_per_hour= sets your own)",
        "Keep the last configuration, of trial",
    ):
        assert words in said
    assert f"the best value seen is {study.best.value:.4g}" in said


def test_the_more_expensive_an_hour_is_the_sooner_it_ends():
    lengths = [len(trained(AutoBCT(gamma=gamma)).trials) for gamma in (1e-3, 0.05, 2.0)]
    assert lengths[0] >= lengths[1] >= lengths[2]
    assert lengths[0] > lengths[2]


def test_with_every_map_given_the_prior_proposes_the_first_training_too():
    study = trained(AutoBCT(seconds=(0.0, 20.0), **KNOWN))
    started = next(e for e in study.events() if isinstance(e, Started))
    assert "continuing has the value 0.24" in started.reason
    assert started.evidence["value"] == pytest.approx(0.2433, abs=2e-3)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_there_are_never_more_trainings_than_max_trainings(most):
    for method in ("exact", "relaxed"):
        study = trained(AutoBCT(gamma=1e-6, max_trainings=most, method=method, min_trainings=most))
        assert len(study.trials) == most
        assert f"max_trainings={most}" in reason(study)


def test_repeats_count_as_one_training_by_their_median_and_their_total_cost():
    scores = iter([0.2, 0.9, 0.6] * 20)
    study = trained(AutoBCT(repeats=3, gamma=1e-3, max_trainings=3), lambda config: next(scores))
    configs = [t.config for t in study.trials]
    assert len(configs) == 9
    assert configs[0] == configs[1] == configs[2] != configs[3]
    (first, *_) = trainings(study.history, range(9))
    assert (first.value, first.seconds, first.trials) == (0.6, 15.0, (0, 1, 2))


def test_a_failed_or_diverged_training_counts_as_the_worst_seen_and_costs():
    study = Study(ACCURACY, AutoBCT(seconds=(0.0, 20.0), **KNOWN), seed=1, budget=Budget(trials=3))
    trial = study.ask()
    with trial:
        trial.report(math.nan, seconds=4.0)
    assessment = study.policy.assess(study.history, [0])
    assert assessment.heights[0] == pytest.approx(0.0, abs=0.02)  # the prior expects 0.4 there
    assert assessment.paid == 4.0
    assert isinstance(study.ask(), Trial)


def test_a_training_that_fails_at_once_does_not_teach_what_trainings_cost():
    scores = iter([math.nan, math.nan, *[0.7] * 40])
    seconds = iter([1e-3, 1e-3, *[600.0] * 40])
    study = trained(AutoBCT(), lambda config: next(scores), lambda config: next(seconds))
    assert study.policy.assess(study.history, [0, 1]) is None
    assert study.policy.assess(study.history, [0, 1, 2]).ruler.unit > 100.0


def test_losses_may_count_by_their_logarithms():
    def loss(config):
        return 10.0 ** (-3.0 + (math.log10(config["lr"]) + 2) ** 2)

    study = trained(
        AutoBCT(worst=10.0, best=1e-3, score_scale="log", seconds=(0.0, 50.0)),
        loss,
        what=Problem(LINE, Minimize("loss"), 1),
    )
    assert study.history.finished
    assert loss(study.trials[-1].config) < 3e-3


@pytest.mark.parametrize(("factor", "offset"), [(1e12, 0.0), (1e-12, 0.0), (1.0, 1e6), (-1e3, 0.0)])
def test_the_units_of_the_score_change_no_decision(factor, offset):
    def search(factor, offset):
        goal = (Maximize if factor > 0 else Minimize)("s")
        study = trained(AutoBCT(), lambda c: factor * hill(c) + offset, what=Problem(LINE, goal, 1), trials=20)
        assert study.history.finished
        return [t.config for t in study.trials]

    assert search(factor, offset) == search(1.0, 0.0)


def test_an_observation_far_outside_the_maps_warns():
    policy = AutoBCT(worst=0.0, best=0.01, seconds=(0.0, 20.0), min_trainings=3)
    with pytest.warns(HaltuneWarning, match=r"far outside the range 0 to 0.01 .* worst= and best="):
        trained(policy)


def test_runs_stopped_early_count_with_what_they_were_heading_for_and_uncertainly():
    def rising(config, epoch):
        return hill(config) * (1 - 0.6 * 0.9**epoch)

    what = Problem(LINE, Maximize("acc", (0, 1)), 40)
    study = Study(what, Halting(AutoBCT(gamma=1e-3, min_trainings=9), quick()), seed=3, budget=Budget(trials=9))
    search(study, rising)
    stopped = [t for t in study.trials if t.status is Status.STOPPED]
    assert stopped
    for trial in stopped:
        (training,) = trainings(study.history, [trial.id])
        assert training.value >= float(trial.values[-1]) - 0.05
        assert training.spread > 0
        assert training.seconds == pytest.approx(training.paid * 40 / trial.epoch)


def test_a_long_curve_is_extrapolated_from_as_many_steps_as_it_is_judged_at():
    what = Problem(LINE, Maximize("acc", (0, 1)), 3000)
    study = Study(what, RandomSearch(), seed=3, budget=Budget(trials=1), verbose=0)
    trial = study.ask()
    for epoch in range(1, 601):
        trial.report(0.5 - 0.4 / epoch, epoch)
    trial.finish("stopped")
    tracemalloc.start()
    (training,) = trainings(study.history, [0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert training.value == pytest.approx(0.5, abs=0.05)
    assert training.spread > 0
    assert peak < 200e6


def test_two_hyperparameters_are_searched_three_trainings_ahead():
    def score(config):
        return hill(config) - 0.01 * (math.log2(config["batch"]) - 5) ** 2

    study = trained(AutoBCT(), score, lambda config: 200 / config["batch"], Problem(PLANE, Maximize("acc", (0, 1)), 1))
    assert study.history.finished
    assert len(study.trials) <= 10
    assert score(study.trials[-1].config) > 0.8


def earlier(count, seed=0):
    """Studies of one space whose peaks are near each other."""
    rng = np.random.default_rng(seed)
    middles = rng.normal(-2.5, 0.2, count)
    return [trained(RandomSearch(trials=8), lambda c, m=m: hill(c, m) - 0.0 * m, seed=i) for i, m in enumerate(middles)]


def test_a_prior_learnt_from_studies_predicts_and_saves_trainings():
    studies = earlier(6)
    within, scores, costs = foretold(studies)
    assert within >= 0.6  # of nine in ten, and better than knowing nothing
    assert min(scores, costs) > 0.0
    prior = from_studies(studies)
    peak = controls_of(LINE).points[int(np.argmax(prior.on(controls_of(LINE).points) @ prior.score.mean)), 0]
    assert peak == pytest.approx(1.5 / 4.0, abs=0.1)
    informed = trained(AutoBCT(prior=prior), lambda c: hill(c, -2.5))
    assert len(informed.trials) <= len(trained(AutoBCT(), lambda c: hill(c, -2.5)).trials)
    assert hill(informed.trials[-1].config, -2.5) > 0.9


def test_a_learnt_prior_is_for_its_own_space_unless_said_otherwise():
    prior = from_studies(earlier(2))
    again = prior_from_json(json.loads(json.dumps(prior.to_json())))
    other = Problem(Space({"lr": Float(1e-3, 1.0, log=True)}), Maximize("acc", (0, 1)), 1)
    AutoBCT(prior=again).start(ACCURACY)
    with pytest.raises(InvalidInput, match="studies of another space"):
        AutoBCT(prior=again).start(other)
    AutoBCT(prior=replace(again, space=None)).start(other)


@pytest.mark.parametrize("bounds", [None, (0.0, 10.0), (1e-4, 10.0)])
def test_a_prior_on_a_log_scale_tells_losses_apart_whose_orders_differ(bounds):
    def loss(config):
        return 10.0 ** (-3.0 + 0.5 * (math.log10(config["lr"]) + 2.0) ** 2)

    what = Problem(LINE, Minimize("loss", bounds), 1)
    studies = [trained(RandomSearch(trials=8), loss, what=what, seed=seed) for seed in (0, 1)]
    prior = from_studies(studies, score_scale="log")
    worst, best = prior.score_map
    assert 0.0 < best < worst
    points = controls_of(LINE).points
    expected = prior.on(points) @ prior.score.mean
    assert points[int(np.argmax(expected)), 0] == pytest.approx(0.5, abs=0.15)
    assert np.ptp(expected) > 0.2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"worst": 1.0}, r"^from_studies got only one of worst= and best=\."),
        ({"worst": 1.0, "best": 0.0, "score_scale": "log"}, r"^from_studies\(worst=1\.0, best=0\.0\) .*positive"),
        ({"score_scale": "square"}, r"^from_studies\(score_scale='square'\)"),
    ],
)
def test_a_map_that_is_none_is_refused_where_a_prior_is_learnt(given, message):
    with pytest.raises(InvalidInput, match=message):
        from_studies(earlier(2), **given)
