"""Studies of several goals and of constraints, to Optuna and from it."""

import math

import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

from haltune import Constraint, Float, Maximize, Minimize, Study  # noqa: E402
from haltune.log.events import Status  # noqa: E402
from haltune.optuna import from_study, to_study  # noqa: E402
from haltune.policies import Halting, RandomSearch  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)
State, Direction = optuna.trial.TrialState, optuna.study.StudyDirection
GOALS = [Maximize("acc", (0, 1)), Minimize("ms")]
SMALL = Constraint("params", at_most=5.0)


def searched(goal=GOALS, constraints=(SMALL,), trials=12, epochs=12):
    """Wide networks are better, slower and larger; a learning rate above a half helps none."""
    study = Study(
        {"width": Float(1, 8), "lr": Float(0, 1)}, goal, max_epochs=epochs, policy=Halting(RandomSearch()), seed=2,
        constraints=constraints, budget=f"{trials} trials", verbose=0,
    )  # fmt: skip
    for trial in study:
        width, lr = trial.config["width"], trial.config["lr"]
        for epoch in trial.epochs():
            acc = (1 - 0.5 / width - 0.8 * max(0.0, lr - 0.5)) * epoch / (epoch + 1)
            trial.report({"acc": acc, "ms": 2 * width + lr, "params": width})
    return study


def sets(study):
    """Trials on Optuna's front, and what they came to."""
    return {t.number: tuple(t.values) for t in study.best_trials}


def test_the_front_is_that_of_optuna(tmp_path):
    study = searched()
    there = f"sqlite:///{tmp_path}/optuna.db"
    to_study(study, there)
    found = optuna.load_study(study_name="study", storage=there)
    assert found.directions == [Direction.MAXIMIZE, Direction.MINIMIZE]
    assert found.metric_names == ["acc", "ms"]
    front = {f.trial: (f.values["acc"], f.values["ms"]) for f in study.pareto_front()}
    assert len(front) > 1
    assert sets(found) == front
    cut = [t for t in study.trials if t.status is Status.STOPPED]
    assert cut
    assert {found.trials[t.id].state for t in cut} == {State.PRUNED}
    for t, o in zip(study.trials, found.trials, strict=True):
        assert o.values == list(t.results(study.problem).values())[:2]
        assert o.intermediate_values == dict(zip(t.epochs.astype(int).tolist(), t.values, strict=True))
        assert o.user_attrs["ms"] == t.metrics["ms"][-1]


def test_what_is_beyond_a_limit_is_infeasible_there():
    study = searched(GOALS[0], [SMALL, Constraint("ms", at_most=9.0, at_least=3.0)])
    there = to_study(study)
    assert there.best_value == study.best_value
    beyond = {
        t.id for t in study.trials if t.metrics["params"][-1] > 5.0 or not 3 <= t.metrics["ms"][-1] <= 9
    }
    assert 0 < len(beyond) < len(study.trials)
    infeasible = {t.number for t in there.trials if max(t.system_attrs["constraints"]) > 0}
    assert infeasible == beyond


def test_a_run_without_a_value_in_some_goal_failed_and_one_without_what_is_limited_is_infeasible():
    study = Study(
        {"x": Float(0, 1)}, GOALS, max_epochs=1, constraints=[SMALL], seed=0, budget="3 trials", verbose=0
    )
    for report in ({"acc": 0.5, "ms": 1.0, "params": math.nan}, {"acc": 0.5, "ms": math.nan, "params": 1.0}):
        study.tell(study.ask(), report)
    there = to_study(study)
    assert [t.state for t in there.trials] == [State.COMPLETE, State.FAIL]
    (limit,) = there.trials[0].system_attrs["constraints"]
    assert 0 < limit < math.inf  # as a JSON of browsers has it


def test_a_study_comes_back_with_its_goals_constraints_and_runs():
    study = searched()
    again = from_study(to_study(study))
    assert again.problem.goals == study.problem.goals
    assert again.problem.constraints == study.problem.constraints
    assert [t.results(again.problem) for t in again.trials] == [
        t.results(study.problem) for t in study.trials
    ]
    assert [t.values.tolist() for t in again.trials] == [t.values.tolist() for t in study.trials]
    assert [f.trial for f in again.pareto_front()] == [f.trial for f in study.pareto_front()]


def bi_objective(trial):
    x, y = trial.suggest_float("x", 0, 3), trial.suggest_float("y", 0, 3)
    trial.set_user_attr("constraint", (x - 2.0, 0.2 - y))
    return 4 * x**2 + 4 * y**2, -((x - 5) ** 2) - (y - 5) ** 2


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning", "ignore::FutureWarning")
def test_objectives_and_constraints_of_optuna_are_goals_and_constraints(named, caplog):
    sampler = optuna.samplers.NSGAIISampler(
        seed=0, population_size=8, constraints_func=lambda trial: trial.user_attrs["constraint"]
    )
    there = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
    if named:
        there.set_metric_names(["cost", "gain"])
    there.optimize(bi_objective, n_trials=40)
    past = from_study(there)
    assert past.problem.goals == (
        (Minimize("cost"), Maximize("gain")) if named else (Minimize("value_0"), Maximize("value_1"))
    )
    assert past.problem.max_epochs == 1
    front = {f.trial: tuple(f.values[g.metric] for g in past.problem.goals) for f in past.pareto_front()}
    assert front == sets(there)
    assert len(front) > 3


def test_a_search_for_the_first_objective_learns_from_several():
    there = optuna.create_study(directions=["minimize", "maximize"], sampler=optuna.samplers.RandomSampler(0))
    there.optimize(bi_objective, n_trials=30)
    past = from_study(there)
    study = Study(past.problem.space, Minimize("cost"), max_epochs=1, budget="3 trials", learn_from=[past], seed=0,
                  verbose=0)  # fmt: skip
    study.optimize(lambda trial: 4 * trial.config["x"] ** 2 + 4 * trial.config["y"] ** 2)
    assert study.best.value < 5.0  # the median of 3 that are drawn at random is above 10


def test_a_constrained_study_of_one_objective_has_its_best_within():
    there = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    for x, limit in ((0.1, 0.5), (0.4, -0.5), (0.7, -0.1)):
        there.add_trial(
            optuna.create_trial(
                value=x, params={"x": x}, distributions={"x": optuna.distributions.FloatDistribution(0, 1)},
                system_attrs={"constraints": [limit]},
            )
        )  # fmt: skip
    past = from_study(there)
    assert past.problem.constraints == (Constraint("constraint_0", at_most=0.0, changes=True),)
    assert past.best.trial == there.best_trial.number == 1
