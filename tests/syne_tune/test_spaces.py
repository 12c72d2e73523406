"""Syne Tune's domains as haltune's: what the one draws lies in the other, and what has no counterpart is named."""

import numpy as np
import pytest

theirs = pytest.importorskip("syne_tune.config_space", reason="Syne Tune is not installed")

from haltune import Choice, Constant, Float, Int, Space  # noqa: E402
from haltune.errors import InvalidSpace  # noqa: E402
from haltune.syne_tune import fixed, space_of  # noqa: E402

SAME = [
    (theirs.uniform(0.1, 0.9), Float(0.1, 0.9)),
    (theirs.loguniform(1e-4, 1e-1), Float(1e-4, 1e-1, log=True)),
    (theirs.quniform(0.0, 1.0, 0.25), Choice([0.0, 0.25, 0.5, 0.75, 1.0], ordered=True)),
    (theirs.randint(2, 9), Int(2, 9)),
    (theirs.lograndint(2, 64), Int(2, 64, log=True)),
    (theirs.qrandint(4, 12, 4), Choice([4, 8, 12], ordered=True)),
    (theirs.choice(["a", "b"]), Choice(["a", "b"])),
    (theirs.ordinal([1, 2, 8], kind="equal"), Choice([1, 2, 8], ordered=True)),
    (theirs.logordinal([1, 2, 8]), Choice([1, 2, 8], ordered=True)),
    (theirs.finrange(0.0, 1.0, 5), Choice([0.0, 0.25, 0.5, 0.75, 1.0], ordered=True)),
    (theirs.logfinrange(1, 8, 4, cast_int=True), Choice([1, 2, 4, 8], ordered=True)),
    (theirs.finrange(1, 2, 5, cast_int=True), Choice([1, 2], ordered=True)),  # rounded, each once
    (theirs.choice(["a"]), Constant("a")),
]


@pytest.mark.parametrize(("domain", "ours"), SAME, ids=[repr(domain) for domain, _ in SAME])
def test_each_domain_has_its_counterpart_and_what_it_draws_lies_in_it(domain, ours):
    space = space_of({"x": domain, "seed": 3})
    assert space == Space({"x": ours})
    assert fixed({"x": domain, "seed": 3}) == {"seed": 3}
    state = np.random.RandomState(0)
    for _ in range(50):
        value = domain.sample(random_state=state)
        space.canonical({"x": value.item() if hasattr(value, "item") else value})
    for config in space.sample(50, np.random.default_rng(0)):
        values = getattr(domain, "values", None)  # a finite range
        assert domain.is_valid(config["x"]) if values is None else config["x"] in values


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        (theirs.reverseloguniform(0.5, 0.99), "write 1 - x with loguniform"),
        (theirs.qloguniform(1e-4, 1e-1, 1e-4), "steps on a log scale"),
        (theirs.finrange(0, 1, 5000), "more than 1000 values"),
        (theirs.uniform(0, 1).__class__(0, 1).normal(0.5, 0.1), "haltune knows uniform"),
    ],
)
def test_what_has_no_counterpart_is_named_with_what_has(domain, said):
    with pytest.raises(InvalidSpace, match=f"'x'.*{said}"):
        space_of({"x": domain})


def test_constants_alone_are_nothing_to_search():
    with pytest.raises(InvalidSpace, match="nothing to search"):
        space_of({"seed": 3})
