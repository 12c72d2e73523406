"""Stages, confidence sets and levels of truncated variance reduction, by hand."""

import math

import numpy as np
import pytest

from haltune import HaltuneError, Level
from haltune.policies import TruVaR
from haltune.policies.truvar.belief import levels_from, noises
from haltune.policies.truvar.choice import Aim, Confidence, Stage, potential_maximisers, unclassified

MEAN = np.array([0.0, 1.0, 2.0, 3.0])
WIDTH = np.array([0.1, 2.5, 0.5, 1.2])
ALL = np.ones(4, dtype=bool)


def test_beta_and_eta_follow_the_paper():
    confidence = Confidence(0.5)
    assert confidence.beta_of(Stage(1, 1), 2500, 1.0) == 0.5 * math.log(2500)
    assert confidence.beta_of(Stage(3, 20), 2500, 50.0) == 0.5 * math.log(2500 * 400)
    assert confidence.eta_of(Stage(3, 20)) == pytest.approx(0.01)


def test_the_theorem_takes_the_cost_spent_for_the_end_of_the_stage():
    beta = Confidence(0.5, "theorem", delta=0.05).beta_of(Stage(2, 9), 100, 40.0)
    assert beta == pytest.approx(2 * math.log(100 * 1600 * math.pi**2 / (6 * 0.05)))


def test_a_stage_ends_when_the_widest_member_is_known_to_eta_and_the_next_uses_its_own_beta():
    confidence = Confidence(1.0)
    limit = 1.0 / math.sqrt(math.log(100))
    assert confidence.after(Stage(), 1.001 * limit, seen=7, size=100, spent=7.0) == Stage()
    assert confidence.after(Stage(), limit, seen=7, size=100, spent=7.0) == Stage(2, 8)
    # known to 0.1 under beta of stage 1, but not under the larger one of stage 2: the test uses the new beta
    narrow = 0.1 / math.sqrt(math.log(100))
    assert confidence.after(Stage(), narrow, seen=7, size=100, spent=7.0) == Stage(2, 8)
    later = 0.1 / math.sqrt(math.log(100 * 64))
    assert confidence.after(Stage(), later, seen=7, size=100, spent=7.0) == Stage(3, 8)


def test_slack_lets_a_stage_end_earlier():
    limit = 1.0 / math.sqrt(math.log(100))
    assert Confidence(1.0, slack=0.2).after(Stage(), 1.19 * limit, 7, 100, 7.0) == Stage(2, 8)


def test_exact_data_do_not_lower_eta_for_ever():
    stage = Confidence(1.0, floor=1e-6).after(Stage(), 0.0, 3, 100, 3.0)
    assert 6 <= stage.number <= 8


def test_pure_variance_reduction_has_one_stage():
    assert Confidence(1.0, eta=0.0).after(Stage(), 0.0, 3, 100, 3.0) == Stage()


def test_epsilon_is_that_of_the_last_stage_that_ended():
    confidence = Confidence(1.0, slack=0.5)
    assert confidence.accuracy(Stage(1)) == math.inf
    assert confidence.accuracy(Stage(3, 9)) == pytest.approx(4 * 1.5 * 0.1)


def test_potential_maximisers_reach_the_best_lower_bound():
    assert potential_maximisers(MEAN, WIDTH, ALL).tolist() == [False, True, True, True]
    without = np.array([True, True, True, False])
    assert potential_maximisers(MEAN, WIDTH, without).tolist() == [False, True, True, False]


def test_what_lies_wholly_on_one_side_is_classified():
    assert unclassified(MEAN, WIDTH, 2.6, 2.6, ALL).tolist() == [False, True, False, True]
    assert unclassified(MEAN, WIDTH, 0.05, 2.6, ALL).tolist() == [True, True, True, True]


def test_an_implicit_threshold_lies_between_shares_of_the_bounds_of_the_maximum():
    aim = Aim(share=0.5)
    assert aim.between(MEAN, WIDTH) == (0.5 * 1.8, 0.5 * 4.2)
    assert aim.open(MEAN, WIDTH, ALL).tolist() == [False, True, True, True]
    known = Aim(share=0.5).members(MEAN, np.array([0.1, 0.9, 0.1, 0.1]), ALL)
    assert known.tolist() == [False, True, False, True]  # the maximum stays while anything is open


def test_with_everything_settled_no_maximiser_is_kept():
    assert not Aim(share=0.5).members(MEAN, np.full(4, 1e-3), ALL).any()


def test_levels_survive_json():
    levels = levels_from([Level("1 seed"), Level("3 seeds", noise=0.1, cost=3.0)])
    assert levels_from(TruVaR(threshold=0.5, levels=levels).spec["levels"]) == levels


def test_levels_that_cannot_be_are_refused():
    for wrong in (lambda: Level(""), lambda: Level("a", noise=-1.0), lambda: Level("a", cost=0.0)):
        with pytest.raises(HaltuneError):
            wrong()
    with pytest.raises(HaltuneError, match="share a name"):
        levels_from([Level("a"), Level("a", cost=2.0)])


def test_a_given_noise_is_taken_at_its_word_and_an_unknown_one_falls_with_its_cost():
    levels = (Level("given", noise=0.25), Level("one", cost=1.0), Level("four", cost=4.0))
    assert noises(levels, {}, overall=0.1).tolist() == pytest.approx([0.25, 0.2, 0.05])


def test_repeats_teach_the_noise_of_a_level():
    rng = np.random.default_rng(0)
    groups = [centre + 0.3 * rng.standard_normal(3) for centre in rng.standard_normal(200)]
    found = noises((Level("one"),), {"one": groups}, overall=5.0)[0]
    assert found == pytest.approx(0.09, rel=0.35)
    pooled = (2 * 5.0 + sum(((g - g.mean()) ** 2).sum() for g in groups)) / (2 + 400)
    assert found == pytest.approx(pooled)
