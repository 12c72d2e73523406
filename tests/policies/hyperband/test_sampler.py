"""Where a schedule's configurations come from: at random, from designs, or from a policy that sees one rung."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from laboratory import Lab, Value, rough

from haltune import Budget, Finish, Float, Maximize, Problem, Space, Start, Study, Trial, Wait
from haltune.errors import InvalidInput
from haltune.log.events import Started, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.policies import BOBOS, GPUCB, Hyperband, SuccessiveHalving
from haltune.policies.hyperband.engine import Sampler, highest_rung
from haltune.study.replay import replay

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


def test_a_view_at_a_rung_is_a_history_cut_there_and_asked_like_one() -> None:
    history = searched(SuccessiveHalving(n=9, sampler="random", rounds=1)).history
    view = highest_rung(history, SuccessiveHalving(n=9).table(9).brackets[0], "epochs", 5)
    assert isinstance(view, History)
    assert (view.resource, view.ids, len(view)) == (1.0, list(range(9)), 9)
    assert {t.status for t in (view.trial(id) for id in view.ids)} == {Status.COMPLETED}
    assert [view.trial(id).epoch for id in view.ids] == [1.0] * 9
    assert max(history.trial(id).epoch for id in view.ids) == 9.0
    assert (view.problem, view.spent, view.tried) == (history.problem, history.spent, history.tried)
    assert list(view.points[4]) == list(history.points[4])
    assert view.rng("propose", 3).random() == history.rng("propose", 3).random()


# -- designs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
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


def test_random_configurations_follow_neither() -> None:
    points = firsts(searched(SuccessiveHalving(n=27, sampler="random")), 0)
    assert sorted(math.floor(27 * p["x"]) for p in points) != list(range(27))
    assert len({(p["x"], p["y"]) for p in points}) == 27


@pytest.mark.parametrize("sampler", ["random", "sobol", "lhs"])
def test_configurations_depend_on_the_seed_and_their_place_alone(sampler: Any) -> None:
    alone = searched(Hyperband(sampler=sampler))
    again, other = searched(Hyperband(sampler=sampler)), searched(Hyperband(sampler=sampler), seed=3)
    assert [t.config for t in alone.trials] == [t.config for t in again.trials]
    assert [t.config for t in alone.trials] != [t.config for t in other.trials]
    crowd = Lab(lambda: Hyperband(sampler=sampler), rough(1), epochs=9, workers=5).run()
    single = Lab(lambda: Hyperband(sampler=sampler), rough(1), epochs=9).run()
    for bracket in range(3):
        assert firsts(crowd.study, bracket) == firsts(single.study, bracket)


def test_one_policy_object_may_search_two_spaces() -> None:
    policy = SuccessiveHalving(n=9, sampler="lhs")
    searched(policy)
    wide = Problem(Space({"x": Float(5.0, 6.0), "y": Float(5.0, 6.0)}), Maximize("acc"), 9)
    assert all(t.config["x"] >= 5 for t in searched(policy, wide).trials)


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


def test_trials_under_way_are_pending_for_a_sampler_unless_they_have_passed_its_rung() -> None:
    spy = Spy()
    spied(SuccessiveHalving(n=12, rounds=3, sampler=spy), spy, workers=4)
    assert any(spy.pending)
    for seen, pending in zip(spy.shown, spy.pending, strict=True):
        assert not set(seen) & set(pending)


def test_a_sampler_sees_the_rungs_of_resources_that_the_user_counts() -> None:
    spy = Spy()
    lab = Lab(lambda: Hyperband(9, resource="samples", sampler=spy), value, epochs=1).run()
    resources = {t.id: t.resource for t in lab.study.trials}
    for seen in spy.shown:
        assert len(seen) >= 6
        smallest = min(resources[id] for id in seen)  # type: ignore[type-var]
        assert {id for id, r in resources.items() if r >= smallest and id <= max(seen)} == set(seen)  # type: ignore[operator]


@pytest.mark.parametrize("answer", [Wait("not now"), Finish("enough")])
def test_a_sampler_that_proposes_nothing_is_replaced_by_chance(answer: Any) -> None:
    spy = Spy(answer)
    lab = spied(SuccessiveHalving(n=9, sampler=spy), spy)
    assert len(lab.study.trials) == 9
    reasons = [e.reason for e in lab.log if isinstance(e, Started)]
    assert f"the sampler says {type(answer).__name__}" in reasons[-1]


@pytest.mark.parametrize("make", [lambda: GPUCB(), lambda: BOBOS()])
def test_a_model_in_the_schedule_proposes_better_than_chance(make: Any) -> None:
    def distances(sampler: Any) -> float:
        study = searched(SuccessiveHalving(n=9, rounds=2, sampler=sampler))
        found = [math.hypot(t.config["x"] - 0.3, t.config["y"] - 0.7) for t in study.trials[9:]]
        return float(np.median(found))

    assert distances(make()) < 0.5 * distances("random")


@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_search_with_a_model_is_replayed_bit_for_bit_although_rungs_change(asynchronous: bool) -> None:
    """The same trials are seen at epoch 1, then at epoch 3: a model of the one must not pass for the other's."""

    def make() -> Any:
        return Hyperband(sampler=GPUCB(refit_every=3), rounds=2, asynchronous=asynchronous)

    study = searched(make())
    log = list(study.events())
    assert len(study.trials) == 34
    assert [d for d in replay(PLANE, make(), log) if d[1] != d[2]] == []
    fresh = [d for d in list(replay(PLANE, make(), log))[-20:] if d[1] != d[2]]
    assert fresh == []


def test_a_model_does_not_mistake_one_rung_for_another() -> None:
    """One policy object asked about six trials at rung 1, then about the same six at rung 2, and a fresh one."""

    def shown(policy: Any, epochs: int) -> Any:
        study = Study(PLANE, SuccessiveHalving(n=6, max_resource=9), seed=1)
        sampler = Sampler(policy)
        trials = [study.ask() for _ in range(6)]
        for t in trials:
            assert isinstance(t, Trial)
            for n in range(1, 4):
                sign = -1.0 if n == 3 else 1.0
                t.report(sign * peak(t.config, 1.0), epoch=n, judge=False)
        bracket = SuccessiveHalving(n=6, min_resource=epochs, max_resource=epochs + 1).table().brackets[0]
        first = type(bracket)(bracket.rungs[:1], 0)
        return sampler.draw(study.history, 5, first, 0, "epochs")

    policy = GPUCB()
    one, three = shown(policy, 1), shown(policy, 3)
    assert one == shown(GPUCB(), 1)
    assert three == shown(GPUCB(), 3)
    assert one.config != three.config


def test_a_sampler_that_does_not_suit_the_problem_is_refused_when_the_study_is_made() -> None:
    with pytest.raises(InvalidInput, match="needs a horizon"):
        Study(Problem(PLANE.space, PLANE.goal), Hyperband(9, sampler=BOBOS()), seed=1)
    with pytest.raises(InvalidInput, match="finitely many"):
        Study(PLANE, Hyperband(sampler=GPUCB(beta="theorem")), seed=1)


def test_a_space_that_is_smaller_than_a_bracket_is_repeated() -> None:
    tiny = Problem(Space({"x": Float(0.5, 0.5), "y": Float(0.1, 0.1)}), Maximize("acc", (-2, 1)), 9)
    for sampler in ("random", "sobol", "lhs", GPUCB()):
        study = searched(Hyperband(sampler=sampler, rounds=1), tiny, budget=Budget(trials=20))
        assert len(study.trials) == 17
