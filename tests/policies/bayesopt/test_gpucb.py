"""GP-UCB and its surrogate, against enumeration and against a posterior computed at one go."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
from curves import accuracy
from virtual import SQUARE
from worlds import SPACE, begun, problem, search, small_study, train

from haltune import Budget, Float, Int, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.gp import Posterior, condition_on
from haltune.log.events import Status
from haltune.policies import BOBOS, EI, GPUCB, Hyperband, Rollout, Start, bayesopt
from haltune.policies.bayesopt import beta_t, epoch_coordinate, hallucinate
from haltune.policies.several_goals import lattice

GRID = Space({"lr": Float(0.01, 0.01), "layers": Int(1, 4), "width": Int(1, 15)})


def asked(study: Study) -> tuple[Start, object]:
    """The policy's next move and the posterior behind it."""
    replica = study.session.replica
    history = study.history
    move = study.policy.propose(replica.state, history, history.rng("propose", history.moves))
    return move, study.policy._surrogate.posterior(history, replica.state)


def test_beta_is_theorem_1_on_a_finite_space() -> None:
    expected = 2 * math.log(60 * 7**2 * math.pi**2 / (6 * 0.1))
    assert beta_t("theorem", GRID, 7, 0.1) == pytest.approx(expected)
    assert beta_t("scaled", GRID, 7, 0.1) == pytest.approx(expected / 5)
    assert beta_t(3.5, GRID, 7, 0.1) == 3.5


def test_beta_of_a_space_whose_size_is_no_float_is_the_same() -> None:
    space = Space({f"x{i}": Int(1, 10**6) for i in range(60)})
    expected = 2 * (360 * math.log(10) + math.log(7**2 * math.pi**2 / (6 * 0.1)))
    assert beta_t("theorem", space, 7, 0.1) == pytest.approx(expected)
    assert beta_t("scaled", space, 7, 0.1) == pytest.approx(expected / 5)


def test_workers_that_ask_before_trials_have_ended_start_random_configurations_and_say_so() -> None:
    study = small_study(GPUCB(initial=2), problem=problem(), trials=4)
    trials = [begun(study) for _ in range(4)]
    reasons = [study.trials[trial.id].proposed for trial in trials]
    assert [reason.startswith("initial design: one of 2 Sobol") for reason in reasons] == [True, True, False, False]
    assert reasons[2] == "initial design: drawn at random, because too few trials have values for a model"


@pytest.mark.parametrize("goal", [Maximize("acc", (0, 1)), Minimize("loss", (0, 20))])
def test_the_proposal_is_the_untried_configuration_of_highest_ucb(goal) -> None:
    trained = small_study(GPUCB(initial=4), problem=Problem(GRID, goal, 9), trials=13)
    study = search(trained, lambda c, e: c["width"] / 20)
    move, posterior = asked(study)
    free = [c for c in GRID.enumerate() if GRID.key(c) not in study.history.tried]
    mean, variance = posterior.predict(GRID.encode_many(free))
    ucb = mean + np.sqrt(move.evidence["beta"] * variance)
    chosen = int(np.argmax(ucb))
    assert GRID.key(move.config) == GRID.key(free[chosen])
    in_the_metric = study.history.scale.raw(np.array([ucb[chosen], mean[chosen]]))
    np.testing.assert_allclose([move.evidence["ucb"], move.evidence["mean"]], in_the_metric, atol=1e-9)
    assert move.evidence["sd"] == pytest.approx(math.sqrt(variance[chosen]) * (goal.bounds[1] - goal.bounds[0]))


def test_the_posterior_grown_trial_by_trial_is_the_one_computed_at_one_go() -> None:
    study = search(small_study(GPUCB(initial=3, refit_every=5), trials=14))
    _, grown = asked(study)
    x = SPACE.encode_many([t.config for t in study.trials])
    y = np.array([t.scores[-1] for t in study.trials])
    whole = condition_on(grown.kernel, x, y, noise=grown.noise, constant=grown.constant)
    points = SPACE.encode_many(SPACE.sample(50, np.random.default_rng(0)))
    np.testing.assert_allclose(grown.mean(points), whole.mean(points), atol=1e-8)
    np.testing.assert_allclose(grown.variance(points), whole.variance(points), atol=1e-8)


def test_hyperparameters_change_only_at_multiples_of_refit_every() -> None:
    study, kernels = small_study(GPUCB(initial=4, refit_every=4), trials=13), []
    for trial in study:
        train(trial)
        if len(study.trials) >= 4:
            kernels.append(tuple(asked(study)[1].kernel.lengthscales))
    changes = [4 + i for i in range(1, len(kernels)) if kernels[i] != kernels[i - 1]]
    assert set(changes) <= {8, 12}
    assert changes


def test_pending_points_keep_the_mean_and_lower_the_deviation() -> None:
    study = search(small_study(GPUCB(initial=4), trials=8))
    _, posterior = asked(study)
    points = SPACE.encode_many(SPACE.sample(5, np.random.default_rng(1)))
    believed = hallucinate(posterior, points[:2])
    np.testing.assert_allclose(believed.mean(points), posterior.mean(points), atol=1e-8)
    assert (believed.variance(points) <= posterior.variance(points) + 1e-12).all()
    assert (believed.variance(points[:2]) < 0.6 * posterior.variance(points[:2])).all()


def test_a_trial_that_failed_counts_as_the_worst_and_is_not_proposed_again() -> None:
    study = small_study(GPUCB(initial=2), problem=problem(space=GRID), trials=8)
    for trial in study:
        assert isinstance(trial, Trial)
        if trial.id == 3:
            trial.fail(RuntimeError("broken"))
        else:
            train(trial, lambda c, e: accuracy(c, e))
    assert len({GRID.key(t.config) for t in study.trials}) == 8
    assert study.session.replica.state == tuple(range(8))
    at = study.history.points[[t.id for t in study.trials]]
    means = study.policy._surrogate.posterior(study.history, study.session.replica.state).mean(at)
    assert int(np.argmin(means)) == 3


def test_every_doubling_of_one_plus_the_epochs_is_the_same_step() -> None:
    steps = np.diff(epoch_coordinate([0, 1, 3, 7, 15, 31, 63], 63))
    np.testing.assert_allclose(steps, 1 / 6)


def searched(policy: Any, goal: Any = None, room: float = 0.6, trials: int = 16) -> Study:
    """A search whose trials are the better the larger a is, and have no memory beyond `room`."""
    problem = Problem(SQUARE, goal or Maximize("acc", (0, 1)), 3)
    study = Study(problem, policy, seed=0, budget=Budget(trials=trials), max_failures=100, verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                if epoch == 2 and trial.config["a"] > room:
                    raise MemoryError("no room")
                trial.report(study.problem.goal.sign * (0.2 + 0.8 * trial.config["a"]) * epoch / 3)
            trial.save(lambda path: path.touch())
    return study


@pytest.mark.parametrize(
    "policy",
    [
        GPUCB(),
        pytest.param(EI(), marks=pytest.mark.slow),
        pytest.param(BOBOS(), marks=pytest.mark.slow),
        pytest.param(Rollout(points=24, paths=8), marks=pytest.mark.slow),
        Hyperband(resume=False, min_resource=3, sampler=GPUCB()),
    ],
)
def test_a_search_keeps_away_from_where_trainings_fail_though_they_were_good_until_then(policy: Any) -> None:
    failed = [t.id for t in searched(policy).trials if t.status is Status.FAILED]
    assert failed
    assert sum(id >= 10 for id in failed) <= 3  # of 6; they were all of them


def test_gpucb_keeps_the_last_fit_and_its_last_posterior_because_each_is_as_large_as_all_data() -> None:
    policy = GPUCB(initial=2, refit_every=4)
    before = {id(o) for o in gc.get_objects() if isinstance(o, Posterior)}
    study = search(small_study(policy, problem=problem(epochs=1), trials=15))
    gc.collect()
    kept = [o for o in gc.get_objects() if isinstance(o, Posterior) and id(o) not in before]
    assert len(study.trials) == 15
    assert len(kept) <= 2, [o.n for o in kept]


def test_one_fit_for_each_scalarization_of_several_goals_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict may ask all of them, and a fit takes longer than an epoch."""
    goals = [Maximize("acc", (0, 1)), Minimize("ms", (0, 30))]
    policy = GPUCB(initial=3, refit_every=3)
    study = search(small_study(policy, problem=Problem(SPACE, goals, 1), trials=8))
    state, history = study.session.replica.state, study.history
    views = [state.view(history, weights) for weights in lattice(2)]
    assert len(views) > 8
    finished = tuple(t.id for t in study.trials)
    fits: list[Any] = []
    surrogate = policy._surrogate
    first = [surrogate.posterior(view.history, finished) for view in views]
    monkeypatch.setattr(bayesopt, "fit", lambda *args, **options: fits.append(args))
    again = [surrogate.posterior(view.history, finished) for view in views]
    assert fits == []
    assert all(a is b for a, b in zip(first, again, strict=True))
