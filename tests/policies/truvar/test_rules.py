"""Rules find boxes that were hidden."""

import numpy as np

from haltune import Choice, Float, Int, Space
from haltune.policies.truvar.answers import describe

SPACE = Space(
    {
        "lr": Float(1e-4, 1e-1, log=True),
        "layers": Int(1, 6),
        "norm": Choice(["batch", "layer", "none"]),
        "momentum": Float(0, 1, when={"norm": "batch"}),
    }
)
CONFIGS = SPACE.sample(3000, np.random.default_rng(0), "sobol")


def inside(config):
    return 1e-3 <= config["lr"] <= 2e-2 and config["layers"] >= 3 and config["norm"] != "none"


def test_a_hidden_box_is_found_in_few_words():
    truth = np.array([float(inside(c)) for c in CONFIGS])
    rule = describe(SPACE, CONFIGS, truth)[0]
    assert set(rule.conditions) == {"lr", "layers", "norm"}
    assert set(rule.conditions["norm"]) == {"batch", "layer"}
    assert rule.conditions["layers"] == (3, None)
    assert rule.coverage > 0.9
    assert rule.precision > 0.9
    assert "layers >= 3" in str(rule)


def test_coverage_and_precision_are_what_counting_gives():
    truth = np.array([float(inside(c)) for c in CONFIGS])
    for rule in describe(SPACE, CONFIGS, truth):
        holds = np.array([rule.holds(c) for c in CONFIGS])
        assert np.isclose(rule.coverage, truth[holds].sum() / truth.sum())
        assert np.isclose(rule.precision, truth[holds].mean())


def test_two_boxes_get_a_rule_each():
    truth = np.array([float(c["lr"] < 3e-4 or (c["lr"] > 3e-2 and c["layers"] == 6)) for c in CONFIGS])
    rules = describe(SPACE, CONFIGS, truth)
    assert len(rules) == 2
    assert rules[0].conditions["lr"][0] is None
    assert rules[1].conditions["layers"] == (6, None)


def test_options_that_are_numbers_or_pairs_are_options():
    space = Space({"batch": Choice([64, 16, 32, 128]), "kernel": Choice([(3, 3), (5, 5), (7, 7)]), "lr": Float(0, 1)})
    configs = space.sample(1000, np.random.default_rng(0), "sobol")
    truth = np.array([float(c["batch"] in (16, 64) and c["kernel"] != (5, 5)) for c in configs])
    (rule,) = describe(space, configs, truth)
    assert sorted(rule.conditions["batch"]) == [16, 64]
    assert sorted(rule.conditions["kernel"]) == [(3, 3), (7, 7)]
    assert [rule.holds(c) for c in configs] == [bool(t) for t in truth]
    assert "batch is 16 or 64" in str(rule) or "batch is 64 or 16" in str(rule)
