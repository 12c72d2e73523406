"""TruVaR: its decisions against algorithms 1 and 2 written out, replays, levels, costs, workers, and what it finds."""

import math
import re
from functools import partial

import numpy as np
import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial
from haltune.gp import Kernel, condition_on
from haltune.log.events import Status
from haltune.policies import Level, TruVaR
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide

SPACE = Space({"x": Float(0.0, 1.0), "z": Float(0.0, 1.0)})
SIDE = 9
KERNEL = Kernel("se", 1.0, np.array([0.2, 0.2]))
GRID = SPACE.mesh(SIDE)
POINTS = SPACE.encode_many(GRID)
KEYS = SPACE.keys(GRID)
PROBLEM = Problem(SPACE, Maximize("value"), 1)


def truth(seed=0):
    root = np.linalg.cholesky(KERNEL(POINTS) + 1e-9 * np.eye(len(POINTS)))
    return root @ np.random.default_rng(seed).standard_normal(len(POINTS))


def search(policy, values, trials=25, store=None, problem=PROBLEM, noise=None, seed=3):
    """A study to its end; noise: variance by the level's name."""
    study = Study(problem, policy, store, seed=seed, budget=Budget(trials=trials))
    for trial in study:
        spread = math.sqrt((noise or {}).get(trial.level, 0.0))
        rng = np.random.default_rng([seed, trial.id])
        trial.report(values[KEYS.index(SPACE.key(trial.config))] + spread * rng.standard_normal(), seconds=1.0)
        trial.finish()
    return study


def started(study):
    return [e for e in study.events() if e.kind == "started"]


def by_the_book(values, noises, costs, steps, threshold=None, cost=None, monotone=False, a=0.5):
    """Algorithms 1 and 2 with dense posteriors: the (place, level) of each step, and the stage it was taken in."""
    n = len(POINTS)
    rows, members = [], np.ones(n, dtype=bool)
    stage, since, eta = 1, 1, 1.0
    seen_at, seen_y, seen_noise = [], [], []
    for t in range(steps + 1):
        belief = condition_on(KERNEL, POINTS[seen_at], seen_y, noise=0.0, point_noise=seen_noise)
        mean, variance = belief.predict(POINTS)
        beta = a * math.log(n * since**2)
        width = np.sqrt(beta * variance)
        among = members if monotone else np.ones(n, dtype=bool)
        if threshold is None:
            members = among & (mean + width >= (mean - width)[among].max())
        else:
            members = among & (mean + width >= threshold) & (mean - width <= threshold)
        if not members.any():
            return rows
        while eta > 1e-6 and math.sqrt(beta * variance[members].max()) <= eta:
            stage, since, eta = stage + 1, t + 1, eta * 0.1
            beta = a * math.log(n * since**2)
        before = np.maximum(beta * variance, eta**2)[members].sum()
        best = (-1.0, 0, 0)
        covariance = belief.covariance(POINTS)
        for level, noise in enumerate(noises):
            for j in range(n):
                after = variance - covariance[:, j] ** 2 / (noise + variance[j])
                drop = before - np.maximum(beta * after, eta**2)[members].sum()
                price = costs[level] * (1.0 if cost is None else cost(GRID[j], GRID[seen_at[-1]] if seen_at else None))
                if drop / price > best[0] * (1 + 1e-9):
                    best = (drop / price, level, j)
        rows.append((best[2], best[1], stage))
        seen_at.append(best[2])
        noise = noises[best[1]]
        rng = np.random.default_rng([3, t])
        seen_y.append(values[best[2]] + math.sqrt(noise) * rng.standard_normal())
        seen_noise.append(noise)
    return rows


@pytest.mark.parametrize("monotone", [None, False])
def test_it_takes_the_steps_of_algorithms_1_and_2_for_optimisation(monotone):
    values = truth()
    policy = TruVaR(kernel=KERNEL, noise=1e-4, grid=SIDE, initial=0, monotone=monotone)
    study = search(policy, values, 12, noise={None: 1e-4})
    expected = by_the_book(values, [1e-4], [1.0], 11, monotone=monotone is None)
    found = [(KEYS.index(SPACE.key(e.config)), 0, e.evidence["stage"]) for e in started(study)]
    assert found == expected


@pytest.mark.parametrize("moving", [False, True])
def test_it_takes_the_steps_of_algorithm_1_for_level_sets_with_levels_and_costs(moving):
    def cost(config, previous):
        return 1.0 + config["x"] + (2.0 * abs(config["z"] - previous["z"]) if previous else 0.0)

    values, levels = truth(1), [Level("rough", 0.4, 1.0), Level("fine", 1e-4, 3.0)]
    policy = TruVaR(threshold=0.8, kernel=KERNEL, levels=levels, grid=SIDE, initial=0, cost=cost if moving else None)
    study = search(policy, values, 40, noise={"rough": 0.4, "fine": 1e-4})
    expected = by_the_book(values, [0.4, 1e-4], [1.0, 3.0], 39, 0.8, cost if moving else None, True, a=1.0)
    names = [level.name for level in levels]
    found = [
        (KEYS.index(SPACE.key(e.config)), names.index(e.tags["level"]), e.evidence["stage"]) for e in started(study)
    ]
    assert found == expected[: len(found)]
    assert len(found) == min(40, len(expected))
    assert {level for _, level, _ in found} == {0, 1}


def differences(study, policy):
    return [d for d in redecide(study.problem, policy, study.events()) if d[1] != d[2]]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda: TruVaR(threshold=0.8, kernel=KERNEL, noise=1e-3, grid=SIDE, initial=0), marks=pytest.mark.slow
        ),
        lambda: TruVaR(kernel=KERNEL, noise=1e-3, grid=SIDE, monotone=True, anticipate=True),
        lambda: TruVaR(implicit=0.5, noise=1e-3, grid=SIDE, monotone=True, initial=2, beta="theorem"),
        pytest.param(lambda: TruVaR(0.8, rule="gchk", kernel=KERNEL, noise=1e-3, grid=SIDE), marks=pytest.mark.slow),
    ],
)
def test_a_process_that_only_has_the_log_finds_every_decision_again(make):
    study = search(make(), truth(), 60)
    assert differences(study, make()) == []
    fresh = make()  # asked about the last decision alone, without the way there in memory
    last = started(study)[-1]
    history, state = type(study.history)(study.problem), fresh.start(study.problem)
    for event in list(study.events())[: last.seen]:
        history.apply(event)
        state = fresh.fold(state, event)
    move = fresh.propose(state, history, history.rng("propose", history.moves))
    assert (dict(move.config), move.reason) == (dict(last.config), last.reason)


@pytest.mark.parametrize("anticipate", [False, True])
def test_a_reason_states_a_share_of_the_variance(anticipate):
    study = search(TruVaR(kernel=KERNEL, noise=1e-3, grid=SIDE, anticipate=anticipate), truth(), 40)
    shares = [float(found[1]) for e in started(study) if (found := re.search(r"variance by ([\d.e+-]+)%", e.reason))]
    assert len(shares) > 20
    assert all(0.0 <= share <= 100.0 for share in shares), max(shares)


def test_the_level_set_of_a_known_function_is_found_and_the_search_ends_by_itself():
    values = truth(2)
    study = search(TruVaR(threshold=0.5, kernel=KERNEL, noise=1e-6, grid=SIDE), values, 81)
    answer = study.level_set()
    assert study.history.finished == "all 81 configurations are classified"
    assert not answer.open.any()
    assert np.array_equal(answer.reaches, values >= 0.5)
    assert len(study.trials) < 75
    assert all(p > 0.9 for _, p in answer.high)
    assert "81 configurations" in str(answer)


def test_an_implicit_threshold_is_a_share_of_the_best():
    values = truth(2) + 5.0
    policy = TruVaR(implicit=0.8, kernel=KERNEL, mean=5.0, noise=1e-6, grid=SIDE)
    answer = search(policy, values, 81).level_set()
    assert answer.threshold == pytest.approx(0.8 * values.max(), abs=0.05)
    clear = np.abs(values - 0.8 * values.max()) > 0.1
    assert np.array_equal(answer.reaches[clear], (values >= 0.8 * values.max())[clear])


def test_the_maximum_is_found_and_epsilon_holds():
    for seed in range(2):
        values = truth(seed)
        study = search(TruVaR(kernel=KERNEL, noise=1e-6, grid=SIDE, accuracy=0.5), values, 81, seed=seed)
        assert "within" in study.history.finished
        found = study.maximisers()
        members = [KEYS.index(SPACE.key(c)) for c in found.configs]
        assert int(np.argmax(values)) in members
        assert values.max() - values[members].min() <= found.epsilon <= 0.5
        assert values.max() - values[members[0]] <= found.epsilon_at(0.99) + 1e-9
        assert found.probability.sum() <= 1.0 + 1e-12


def test_pending_trials_spread_and_count_as_seen():
    store = MemoryStore()
    policy = TruVaR(kernel=KERNEL, noise=1e-6, grid=SIDE, initial=0)
    workers = [Study(PROBLEM, policy, store, seed=1, budget=Budget(trials=9)) for _ in range(6)]
    held = [worker.ask() for worker in workers]
    assert all(isinstance(t, Trial) for t in held)
    points = np.array([SPACE.encode(t.config) for t in held])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2) + np.eye(6)
    assert apart.min() > 0.25
    expected = by_the_book(np.zeros(len(POINTS)), [1e-6], [1.0], 0)  # the first; the others greedy after it
    assert KEYS.index(SPACE.key(held[0].config)) == expected[0][0]


def test_an_observation_costs_what_was_learnt_of_its_seconds():
    study = Study(PROBLEM, TruVaR(grid=SIDE, noise=1e-4, initial=6, cost_model="gp"), seed=0, budget=Budget(trials=25))
    values = truth()
    for trial in study:
        trial.report(values[KEYS.index(SPACE.key(trial.config))], seconds=100.0 ** trial.config["x"])
        trial.finish()
    late = started(study)[14:]
    actual = [100.0 ** e.config["x"] for e in late]
    assert all(0.4 < e.evidence["cost"] / cost < 2.5 for e, cost in zip(late, actual, strict=True))


def test_unknown_noises_of_levels_are_learnt_from_repeats():
    levels = [Level("one"), Level("nine", cost=9.0)]
    policy = TruVaR(threshold=0.5, grid=SIDE, levels=levels, initial=5)
    study = search(policy, truth(), 40, noise={"one": 0.09, "nine": 0.01})
    first = [(e.tags["level"], SPACE.key(e.config)) for e in started(study)[:4]]
    assert [name for name, _ in first] == ["one", "one", "nine", "nine"]
    assert len({key for _, key in first}) == 1
    noise = started(study)[-1].evidence["noise"]
    assert noise[0] > noise[1]


@pytest.mark.parametrize("initial", [0, 1])
def test_each_level_of_unknown_noise_is_measured_twice_before_the_first_decision(initial):
    levels = [Level("one"), Level("nine", cost=9.0)]
    policy = TruVaR(threshold=0.5, grid=SIDE, levels=levels, initial=initial)
    study = search(policy, truth(), 5, noise={"one": 0.09, "nine": 0.01})
    assert [e.tags["level"] for e in started(study)[:4]] == ["one", "one", "nine", "nine"]
    assert ["stage" in e.evidence for e in started(study)] == [False, False, False, False, True]


def test_a_continuous_space_is_searched_everywhere():
    space = Space({"x": Float(0.0, 1.0), "z": Float(0.0, 1.0)})
    study = Study(Problem(space, Maximize("v"), 1), TruVaR(representers=100, initial=4, noise=1e-6), seed=0,
                  budget=Budget(trials=30))  # fmt: skip
    for trial in study:
        x, z = trial.config["x"], trial.config["z"]
        trial.report(-((x - 0.312) ** 2) - (z - 0.777) ** 2)
        trial.finish()
    assert study.best.value > -1e-3


def test_a_continuous_space_is_searched_alike_in_every_unit_of_the_metric():
    def tried(factor):
        space = Space({"x": Float(0.0, 1.0), "z": Float(0.0, 1.0)})
        policy = TruVaR(representers=64, initial=3)
        study = Study(Problem(space, Maximize("v"), 1), policy, seed=0, budget=Budget(trials=5), verbose=0)
        for trial in study:
            study.tell(trial, factor * (-((trial.config["x"] - 0.312) ** 2) - (trial.config["z"] - 0.777) ** 2))
        return [t.config for t in study.trials]

    assert tried(2.0**-12) == tried(1.0)


def test_the_reduction_over_a_continuous_space_has_the_gradient_it_says():
    from haltune.policies.truvar.choice import ReductionSurface

    rng = np.random.default_rng(5)
    belief = condition_on(KERNEL, rng.random((7, 2)), rng.standard_normal(7), noise=1e-3)
    representers = rng.random((40, 2))
    over = np.maximum(belief.variance(representers) - 0.05, 0.0)
    surface = ReductionSurface(belief, representers[over > 0], over[over > 0], 0.01, None, None)
    points = rng.random((6, 2))
    _, gradient = surface(points)
    for k in range(2):
        step = np.zeros(2)
        step[k] = 1e-6
        slope = (surface(points + step)[0] - surface(points - step)[0]) / 2e-6
        np.testing.assert_allclose(gradient[:, k], slope, rtol=1e-4, atol=1e-6)


def test_the_gradient_per_cost_follows_a_price_that_depends_on_the_previous_configuration():
    from haltune.policies.costs import KnownCost
    from haltune.policies.truvar.choice import ReductionSurface

    def cost(config, previous):
        return 1.0 + (3.0 * (config["x"] - previous["x"]) if previous else 0.0)

    rng = np.random.default_rng(5)
    belief = condition_on(KERNEL, rng.random((7, 2)), rng.standard_normal(7), noise=1e-3)
    representers = rng.random((40, 2))
    over = np.maximum(belief.variance(representers) - 0.05, 0.0)
    kept, points = over > 0, 0.1 + 0.8 * rng.random((6, 2))
    surface = ReductionSurface(belief, representers[kept], over[kept], 0.01, KnownCost(cost, SPACE), np.zeros(2))
    step = np.array([1e-4, 0.0])
    slope = (surface(points + step)[0] - surface(points - step)[0]) / 2e-4
    np.testing.assert_allclose(surface(points)[1][:, 0], slope, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rule", ["gchk", "straddle", "variance"])
def test_other_rules_choose_what_their_formula_says(rule):
    values = truth(4)
    policy = TruVaR(0.8, rule=rule, kernel=KERNEL, noise=1e-4, grid=SIDE, initial=0)
    study = search(policy, values, 15, noise={None: 1e-4})
    seen_at, seen_y, members = [], [], np.ones(len(POINTS), dtype=bool)
    for event, trial in zip(started(study), study.trials, strict=True):
        belief = condition_on(KERNEL, POINTS[seen_at], seen_y, noise=0.0, point_noise=np.full(len(seen_at), 1e-4))
        mean, variance = belief.predict(POINTS)
        sd = np.sqrt(variance)
        members &= (mean + 3 * sd >= 0.8) & (mean - 3 * sd <= 0.8)
        score = {
            "gchk": np.where(members, np.minimum(mean + 3 * sd - 0.8, 0.8 - mean + 3 * sd), -np.inf),
            "straddle": 1.96 * sd - np.abs(mean - 0.8),
            "variance": sd,
        }[rule]
        place = KEYS.index(SPACE.key(event.config))
        assert score[place] >= score.max() - 1e-7
        seen_at.append(place)
        seen_y.append(float(trial.values[-1]))


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("goal", [{}, {"threshold": 0.5}, {"implicit": 0.6}])
def test_a_search_ends_at_the_accuracy_of_definition_3_1(goal, seed):
    values, accuracy = truth(seed), 0.5
    policy = TruVaR(
        kernel=KERNEL, noise=1e-4, grid=SIDE, accuracy=accuracy, beta="theorem", r=0.5, slack=0.1, **goal
    )  # fmt: skip
    study = search(policy, values, 300, noise={None: 1e-4})
    assert 4 < len(study.trials) < 300
    assert re.search("of the (best|threshold)|classified", study.ask().reason)
    if not goal:
        assert "of the best" in study.ask().reason
        kept = [KEYS.index(SPACE.key(c)) for c in study.maximisers().configs]
        assert int(np.argmax(values)) in kept
        assert values[kept].min() >= values.max() - accuracy
        return
    found = study.level_set()
    threshold = goal.get("threshold", 0.6 * values.max())
    assert np.all(np.abs(values - threshold)[found.open] <= accuracy / 2)
    assert np.array_equal(found.reaches[~found.open], (values >= threshold)[~found.open])


@pytest.mark.parametrize(("options", "kernel"), [({}, "se"), ({"threshold": 0.5}, KERNEL)])
def test_exact_values_are_measured_once(options, kernel):
    values = truth(7)
    policy = TruVaR(kernel=kernel, noise=0.0, grid=SIDE, **options)
    study = search(policy, values, 81)
    keys = [SPACE.key(t.config) for t in study.trials]
    assert len(set(keys)) == len(keys)
    if options:
        assert len(keys) < 81
        assert np.mean(study.level_set().reaches == (values >= 0.5)) > 0.98
    else:
        assert study.best.value == values.max()


@pytest.mark.parametrize("make", [TruVaR, partial(TruVaR, rule="gchk")])
def test_exact_values_equal_to_the_threshold_stay_undecided(make):
    space = Space({"x": Float(0.0, 1.0)})
    study = Study(Problem(space, Maximize("v"), 1), make(threshold=0.7, noise=0.0, grid=12), seed=0,
                  budget=Budget(trials=40))  # fmt: skip
    for trial in study:
        trial.report(0.7)
        trial.finish()
    assert len(study.trials) <= 12
    assert len(study.level_set().undecided) == 12
    assert "of the threshold" in study.ask().reason


@pytest.mark.filterwarnings("ignore:value was NaN or infinite in all 3 trials:haltune.errors.HaltuneWarning")
@pytest.mark.parametrize(("kernel", "threshold"), [(KERNEL, 0.4), ("matern52", -60.0), ("matern52", 60.0)])
def test_a_training_that_fails_does_not_reach_any_threshold(kernel, threshold):
    noise = 1e-4 if isinstance(kernel, Kernel) else None
    study = Study(PROBLEM, TruVaR(threshold=threshold, kernel=kernel, noise=noise, grid=SIDE), seed=1,
                  budget=Budget(trials=40), max_failures=40)  # fmt: skip
    for trial in study:
        trial.report(math.nan)
        trial.finish()
    found = study.level_set()
    tried = {SPACE.key(t.config) for t in study.trials}
    assert not any(SPACE.key(c) in tried for c, _ in found.high)


@pytest.mark.parametrize(
    "policy", [TruVaR(implicit=0.9), pytest.param(TruVaR(threshold=0.5, rule="gchk"), marks=pytest.mark.slow)]
)
def test_a_search_keeps_away_from_where_trainings_fail(policy):
    study = Study(PROBLEM, policy, seed=1, budget=Budget(trials=24), max_failures=100, verbose=0)
    for trial in study:
        with trial:
            if trial.config["x"] > 0.7:
                raise ValueError("no such shape")
            trial.report(0.9 * trial.config["x"])
    failed = [t for t in study.trials if t.status is Status.FAILED]
    assert failed
    assert len(failed) <= 12  # they were all but a few of them
    assert len({SPACE.key(t.config) for t in failed}) == len(failed)  # none twice


@pytest.mark.parametrize(
    "policy",
    [
        TruVaR(0.5, rule="gchk", kernel=KERNEL, noise=1e-6, grid=SIDE),
        TruVaR(threshold=0.5, kernel=KERNEL, noise=1e-6, grid=SIDE),
    ],
)
def test_other_questions_are_answered_by_the_beliefs_of_the_policy(policy):
    values = truth(6)
    study = search(policy, values, 60)
    found = study.maximisers()
    assert {SPACE.key(c) for c in found.configs} <= set(KEYS)
    assert KEYS[int(np.argmax(values))] in {SPACE.key(c) for c in found.configs}
    other = study.level_set(0.2)
    assert len(other.configs) == len(KEYS)
    settled = ~other.open
    assert np.array_equal(other.reaches[settled], (values >= 0.2)[settled])
