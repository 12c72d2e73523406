"""Sources of a schedule's configurations: random, designs, or a policy that sees one rung."""

from __future__ import annotations

import math
from typing import Any

import pytest
from laboratory import Lab, Value, rough

from haltune import Finish, Float, Maximize, Problem, Space, Study, Wait
from haltune.log.events import Started, Status
from haltune.log.policy import Policy
from haltune.policies import GPUCB, Hyperband, Start, SuccessiveHalving
from haltune.study.redecide import redecide

PLANE = Problem(Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}), Maximize("acc", (-2, 1)), 9)


def peak(config: dict[str, float], epoch: float) -> float:
    """Highest at (0.3, 0.7)."""
    return 1.0 - (config["x"] - 0.3) ** 2 - (config["y"] - 0.7) ** 2 - 0.5 / epoch


def searched(policy: Any, problem: Problem = PLANE, seed: int = 2, store: Any = None, **options: Any) -> Study:
    study = Study(problem, policy, store, seed=seed, **options)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(peak(trial.config, epoch))
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"memory of {trial.id}")
    return study


def firsts(study: Study, bracket: int) -> list[dict[str, float]]:
    return [dict(t.config) for t in study.trials if t.tags == {"bracket": bracket, "rung": 0} or
            t.tags["bracket"] == bracket]  # fmt: skip


# -- designs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_latin_hypercube_has_one_configuration_of_the_bracket_in_every_slice(asynchronous: bool) -> None:
    study = searched(SuccessiveHalving(n=27, sampler="lhs", rounds=2, asynchronous=asynchronous))
    for bracket in (0, 1):
        points = firsts(study, bracket)
        assert len(points) == 27
        for axis in ("x", "y"):
            assert sorted(math.floor(27 * p[axis]) for p in points) == list(range(27))
    assert firsts(study, 0) != firsts(study, 1)


def test_sobol_configurations_of_a_bracket_are_balanced() -> None:
    points = firsts(searched(SuccessiveHalving(n=16, eta=2, sampler="sobol")), 0)
    assert len(points) == 16
    for across in (1, 2, 4, 8, 16):  # a (0, 4, 2)-net: 16 boxes of any shape hold a point each
        boxes = {(math.floor(across * p["x"]), math.floor(16 // across * p["y"])) for p in points}
        assert len(boxes) == 16


@pytest.mark.parametrize(
    "sampler", [pytest.param("random", marks=pytest.mark.slow), "sobol", pytest.param("lhs", marks=pytest.mark.slow)]
)
def test_configurations_depend_on_the_seed_and_their_place_alone(sampler: Any) -> None:
    alone = searched(Hyperband(sampler=sampler))
    again, other = searched(Hyperband(sampler=sampler)), searched(Hyperband(sampler=sampler), seed=3)
    assert [t.config for t in alone.trials] == [t.config for t in again.trials]
    assert [t.config for t in alone.trials] != [t.config for t in other.trials]
    crowd = Lab(lambda: Hyperband(sampler=sampler), rough(1), epochs=9, workers=5).run()
    single = Lab(lambda: Hyperband(sampler=sampler), rough(1), epochs=9).run()
    for bracket in range(3):
        assert firsts(crowd.study, bracket) == firsts(single.study, bracket)


# -- policies that propose --------------------------------------------------------------------


class Spy(Policy[tuple[int, ...]]):
    """Proposes in the middle, and notes what it is shown."""

    spec: dict[str, Any] = {"policy": "Spy"}  # noqa: RUF012

    def __init__(self, answer: Any = None) -> None:
        self.shown: list[dict[int, list[float]]] = []
        self.pending: list[list[int]] = []
        self.answer = answer

    def start(self, problem: Problem) -> tuple[int, ...]:
        return ()

    def fold(self, state: tuple[int, ...], event: Any) -> tuple[int, ...]:
        assert event.status is Status.COMPLETED
        return (*state, event.trial)

    def propose(self, state: tuple[int, ...], history: Any, rng: Any) -> Any:
        seen = {id: list(history.trial(id).values) for id in state}
        assert all(len(history.trial(id).scores) == len(v) for id, v in seen.items())
        self.shown.append(seen)
        self.pending.append([t.id for t in history.pending])
        return self.answer or Start({"x": float(rng.random())}, reason="spied")

    def judge(self, *question: Any) -> Any:
        raise AssertionError("a sampler is never asked to judge")


def value(trial: int, epoch: float) -> float:
    return 100.0 * trial + epoch


def spied(policy: Any, spy: Spy, workers: int = 1, values: Value = value) -> Lab:
    return Lab(lambda: policy, values, epochs=9, workers=workers).run()


def test_a_sampler_sees_the_trials_at_the_highest_rung_that_enough_have_reached_cut_there() -> None:
    spy = Spy()
    lab = spied(Hyperband(sampler=spy), spy)  # brackets 9, 5, 3 of rungs 1-3-9, 3-9, 9
    counts = [(len(s), {len(v) for v in s.values()}) for s in spy.shown]
    # bracket 0: six trials at epoch 1 first; bracket 1 sees 3 that reached epoch 3, until three more have
    assert counts[:3] == [(6, {1}), (7, {1}), (8, {1})]
    after = counts[3:]
    assert all(epochs in ({3}, {9}, {1}) for _, epochs in after)
    assert {3} in [epochs for _, epochs in after]
    for seen in spy.shown:
        for id, values in seen.items():
            assert values == [value(id, n) for n in range(1, len(values) + 1)]
        assert list(seen) == sorted(seen)
        assert len(seen) >= 6
    reasons = [e.reason for e in lab.log if isinstance(e, Started)]
    assert all("drawn at random: too few trials" in r for r in reasons[:6])
    assert "spied; from 6 trials at 1 epoch" in reasons[6]


@pytest.mark.parametrize("answer", [Wait("not now"), Finish("enough")])
def test_a_sampler_that_proposes_nothing_is_replaced_by_chance(answer: Any) -> None:
    spy = Spy(answer)
    lab = spied(SuccessiveHalving(n=9, sampler=spy), spy)
    assert len(lab.study.trials) == 9
    reasons = [e.reason for e in lab.log if isinstance(e, Started)]
    assert f"the sampler returned {type(answer).__name__}" in reasons[-1]


@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_search_with_a_model_is_replayed_bit_for_bit_although_rungs_change(asynchronous: bool) -> None:
    """The same trials are seen at epoch 1, then at epoch 3: a model of the one must not pass for the other's."""

    def make() -> Any:
        return Hyperband(sampler=GPUCB(refit_every=3), rounds=2, asynchronous=asynchronous)

    study = searched(make())
    log = list(study.events())
    assert len(study.trials) == 34
    assert [d for d in redecide(PLANE, make(), log) if d[1] != d[2]] == []
    fresh = [d for d in list(redecide(PLANE, make(), log))[-20:] if d[1] != d[2]]
    assert fresh == []
