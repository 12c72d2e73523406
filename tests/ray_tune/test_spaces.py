"""Ray Tune's domains as haltune's: what the one draws lies in the other, and what has no counterpart is named."""

import numpy as np
import pytest

tune = pytest.importorskip("ray.tune", reason="Ray Tune is not installed")

from haltune import Choice, Float, Int, Space  # noqa: E402
from haltune.errors import InvalidSpace  # noqa: E402
from haltune.ray_tune import fixed, nested_config, space_of  # noqa: E402

SAME = [
    (tune.uniform(0.1, 0.9), Float(0.1, 0.9)),
    (tune.loguniform(1e-4, 1e-1), Float(1e-4, 1e-1, log=True)),
    (tune.quniform(0.0, 1.0, 0.1), Choice([k / 10 for k in range(11)], ordered=True)),
    (tune.randint(2, 9), Int(2, 8)),
    (tune.lograndint(2, 65), Int(2, 64, log=True)),
    (tune.qrandint(4, 64, 4), Choice(range(4, 65, 4), ordered=True)),
    (tune.qrandint(4, 9), Int(4, 9)),
    (tune.choice(["a", 3, None, True, [1, 2], (1, 3)]), Choice(["a", 3, None, True, [1, 2], (1, 3)])),
]


@pytest.mark.parametrize(("theirs", "ours"), SAME, ids=[str(ours) for _, ours in SAME])
def test_each_domain_has_its_counterpart_and_what_either_draws_lies_in_both(theirs, ours):
    space = space_of({"x": theirs})
    assert space == Space({"x": ours})
    drawn = [theirs.sample(random_state=seed) for seed in range(60)]
    for value in drawn:
        value = value.item() if hasattr(value, "item") else value
        space.canonical(
            {"x": round(value, 9) if isinstance(value, float) else value}
        )  # Tune's 0.6 is 0.6 + 1e-16
    values = [config["x"] for config in space.sample(200, np.random.default_rng(0))]
    if isinstance(ours, Choice):
        assert all(
            any(value == option and type(value) is type(option) for option in ours.options)
            for value in values
        )
    else:
        assert all(theirs.is_valid(value) for value in values)
    if isinstance(theirs.get_sampler(), type(tune.choice([1]).get_sampler())):
        assert {repr(value) for value in values} == {repr(value) for value in drawn}


def test_nested_dicts_are_named_by_their_path_and_nested_again():
    given = {"opt": {"lr": tune.uniform(0, 1), "name": "adam"}, "depth": tune.randint(1, 4), "seed": 3}
    space = space_of(given)
    assert sorted(space.names) == ["depth", "opt/lr"]
    assert fixed(given) == {"opt": {"name": "adam"}, "seed": 3}
    assert nested_config({"opt/lr": 0.5, "depth": 2}) == {"opt": {"lr": 0.5}, "depth": 2}
    assert space_of({"seed": 3}) is None


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        (tune.grid_search([1, 2]), "tune.grid_search of x chooses every configuration.*tune.choice"),
        (tune.randn(0, 1), "Tune's parameter 'x', Normal.*haltune knows tune.uniform"),
        (tune.sample_from(lambda spec: 1), "haltune knows tune.uniform"),
        (tune.qloguniform(1e-4, 1e-1, 1e-4), "steps on a log scale"),
        (tune.quniform(0, 1, 1e-5), "more than 1000 steps"),
        (tune.choice([tune.uniform(0, 1), 3]), "a choice among ranges"),
        (tune.choice([{"a": 1}, {"a": 2}]), "JSON cannot keep"),
        (tune.loguniform(1e-4, 1e-4).quantized(1e-5), "steps on a log scale"),
    ],
)
def test_what_has_no_counterpart_is_named_with_what_has(domain, said):
    with pytest.raises(InvalidSpace, match=said):
        space_of({"x": domain})


@pytest.mark.parametrize("given", [{"a/b": tune.uniform(0, 1)}, {"sizes": [tune.uniform(0, 1), 3]}])
def test_a_parameter_without_a_name_of_its_own_is_refused(given):
    with pytest.raises(InvalidSpace, match="Put it into a dict, by another name"):
        space_of(given)
