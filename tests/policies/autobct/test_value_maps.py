"""Value maps: what they promise, what they weigh, and files that are none."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import haltune.policies.autobct
from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.errors import InvalidInput
from haltune.policies import AutoBCT
from haltune.policies.autobct.prior import preset
from haltune.policies.autobct.value import (
    Effort,
    ahead,
    chosen,
    grid,
    grid_belief,
    load_map,
    nodes,
    one_branch,
    shipped,
    values,
)

FOLDER = Path(haltune.policies.autobct.__file__).parent / "maps"
NAMES = {"1d": ("D.1", "D.2", "D.5", "D.7"), "2d": ("D.4", "D.8")}


def states(name, count=12, seed=0):
    """Beliefs on the map's controls after 0 to 3 trainings of worlds drawn from the paper's priors."""
    rng = np.random.default_rng(seed)
    dim = int(name[0])
    for i in range(count):
        prior = preset(NAMES[name][i % len(NAMES[name])])
        alpha = prior.score.mean + prior.score.root @ rng.normal(size=len(prior.score.mean))
        beta = prior.cost.mean + prior.cost.root @ rng.normal(size=len(prior.cost.mean))
        for _ in range(i % 4):
            phi = prior.on(rng.uniform(size=(1, dim)))[0]
            prior = prior.observe(phi, float(phi @ alpha), float(phi @ beta))
        yield grid_belief(prior, prior.on(grid(dim)), 0.16)


@pytest.fixture
def small():
    """A map, and the file it is saved in."""
    return shipped("1d"), FOLDER / "1d.npz"


def of_three(x, dim):
    """V_3 of a state, without a map."""
    effort = Effort(score_nodes=9 if dim == 1 else 5, cost_nodes=5 if dim == 1 else 3, outer=9, best=6)
    shallow = values(x, 2)
    found = ahead(x, chosen(shallow, effort), lambda after: after.two(*nodes(3)), effort)
    return float(max(found.max(), shallow.max()))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_map_knows_the_value_of_three_trainings(name):
    known, dim = shipped(name), int(name[0])
    errors = [known.value(one_branch(x)).item() - of_three(x, dim) for x in states(name)]
    assert np.sqrt(np.mean(np.square(errors))) < 3 * known.header["error"] + 0.005


# h, t, u_1, u_2, the expected score at u, V
TABLE_6 = [
    (0.639, 0.166, 0.47, 0.36, 0.64, 0.936), (0.16, 0.18, 1, 0.44, 0.181, 0.9), (0.148, 0.186, 0, 0.44, 0.186, 0.807),
    (0.849, 0.198, 0.46, 0.51, 0.666, 0.86), (0.577, 0.109, 0.5, 0.89, 0.559, 0.847),
    (0.373, 0.154, 0.24, 0.71, 0.464, 0.831), (0.502, 0.155, 0.71, 0.71, 0.533, 0.765),
    (0.711, 0.135, 0.63, 1, 0.592, 0.679), (0.953, 0.439, 0.5, 0.15, 0.837, 0.776),
]  # fmt: skip


def test_table_6_has_the_expected_scores_the_first_values_and_nearly_the_length_of_prior_d_4():
    prior, means, three = preset("D.4"), [], []
    for h, t, *u, _, _ in TABLE_6:
        phi = prior.on(np.array([u]))[0]
        prior = prior.observe(phi, h, t)
        means.append(float(phi @ prior.score.mean))
        three.append(of_three(grid_belief(prior, prior.on(grid(2)), 0.16), 2))
    printed, values = np.array(TABLE_6)[:, 4:].T
    assert means == pytest.approx(printed, abs=0.032)
    assert three[:2] == pytest.approx(values[:2], abs=0.01)  # later its map overvalues states that are nearly certain
    ends = [mean >= value for mean, value in zip(means, three, strict=True)]
    assert ends.index(True) == 7  # a training before the paper's, so its map is not what makes its search long


@pytest.mark.parametrize("left", [None, 9, 3, 2])
def test_a_map_counts_as_long_as_more_trainings_are_left_than_it_looks_ahead(left):
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0.0, 1.0)), max_epochs=1)
    options = {"gamma": 0.16, "prior": "D.1", "worst": 0.0, "best": 1.0, "seconds": (0.0, 1.0), "initial": 1}

    def values(**more):
        study = Study(problem, policy := AutoBCT(**options, **more), seed=0, budget="9 trials", verbose=0)
        with study.ask() as trial:
            trial.report(0.6, seconds=0.3)
        assessment = policy.assess(study.history, [0])
        return policy.worth(study.problem, assessment)

    limited = {} if left is None else {"max_trainings": left + 1}  # one is done
    mapped, without = values(value_map="1d", **limited), values(**limited)
    same = left is not None and left <= 3
    assert np.array_equal(mapped, without) == same


@pytest.mark.parametrize("name", NAMES)
def test_a_map_shifts_with_the_score_and_scales_with_the_unit(name):
    for x in states(name, 4):
        value = shipped(name).value(one_branch(x))
        assert shipped(name).value(one_branch(replace(x, m=x.m + 0.3))) == pytest.approx(value + 0.3, abs=1e-5)
        scaled = replace(x, m=2 * x.m, c=4 * x.c, noise=4 * x.noise, t=2 * x.t, d=4 * x.d, jitter=4 * x.jitter)
        assert shipped(name).value(one_branch(scaled)) == pytest.approx(2 * value, abs=1e-4)


def test_a_search_with_a_map_ends():
    space = Space({"lr": Float(0, 1)})
    policy = AutoBCT(value_map="1d", seconds=(0.0, 10.0))
    study = Study(Problem(space, Maximize("acc", (0, 1)), 1), policy, seed=0, budget=Budget(trials=20))
    for trial in study:
        with trial:
            trial.report(0.9 - 2 * (trial.config["lr"] - 0.4) ** 2, seconds=3.0)
    assert study.history.finished
    assert abs(study.trials[-1].config["lr"] - 0.4) < 0.25


def damaged(path, tmp_path, **changes):
    with np.load(path, allow_pickle=False) as file:
        held = dict(file) | changes
    np.savez(tmp_path / "damaged.npz", **held)
    return tmp_path / "damaged.npz"


def test_a_map_that_a_disk_has_changed_is_the_map_or_a_sentence(small, tmp_path):
    whole, rng = small[1].read_bytes(), np.random.default_rng(3)
    for _ in range(200):
        raw = bytearray(whole[: rng.integers(1, len(whole))] if rng.random() < 0.2 else whole)
        for _ in range(rng.integers(1, 4)):
            at = rng.choice([rng.integers(len(raw)), max(0, len(raw) - 1 - rng.integers(1, 600))])  # or the directory
            raw[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "flipped.npz").write_bytes(raw)
        with suppress(InvalidInput):
            assert load_map(tmp_path / "flipped.npz").header == small[0].header


def test_files_that_are_no_maps_say_so(small, tmp_path):
    path = small[1]
    header = dict(small[0].header)
    (tmp_path / "text.npz").write_text("no map")
    wrong = [
        (tmp_path / "none.npz", "is not a value map"),
        (tmp_path / "text.npz", "is not a value map"),
        (damaged(path, tmp_path, header=np.array(json.dumps(header | {"format": 9}))), "of format 1"),
    ]
    for key, value in (("dim", "1"), ("dim", 7), ("dim", [1]), ("depth", None), ("depth", -3)):
        told = np.array(json.dumps(header | {key: value}))
        (tmp_path / f"{key}{value}").mkdir()
        wrong.append((damaged(path, tmp_path / f"{key}{value}", header=told), "do not fit its header"))
    told = np.array(json.dumps([1, 2]))
    (tmp_path / "list").mkdir()
    wrong.append((damaged(path, tmp_path / "list", header=told), "of format 1"))
    for file, says in wrong:
        with pytest.raises(InvalidInput, match=says):
            load_map(file)
    for changes in (
        {"w0": np.zeros((3, 32), np.float32)},
        {"b0": np.zeros(32)},
        {"w1": np.full((32, 32), np.nan, np.float32)},
    ):
        with pytest.raises(InvalidInput, match="do not fit its header"):
            load_map(damaged(path, tmp_path, **changes))
    with pytest.raises(InvalidInput, match="for 2 coordinates, but this space has 1"):
        AutoBCT(value_map="2d").start(Problem(Space({"x": Float(0, 1)}), Maximize("acc", (0, 1)), 1))
    with pytest.raises(InvalidInput, match="one or two coordinates"):
        grid(3)
