"""A haltune study, written where Optuna's tools open it."""

import math
import warnings
from datetime import datetime

import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402
from random_spaces import SEEDS, spaces  # noqa: E402

from haltune import Choice, Constraint, Float, Int, Maximize, Minimize, Problem, Study, load_study  # noqa: E402
from haltune.errors import InvalidInput, InvalidSpace  # noqa: E402
from haltune.log.decisions import Action  # noqa: E402
from haltune.log.events import Status  # noqa: E402
from haltune.optuna import from_study, to_study  # noqa: E402
from haltune.optuna.spaces import Translated, inward  # noqa: E402
from haltune.policies import BOBOS, Halting, RandomSearch, SuccessiveHalving  # noqa: E402
from haltune.space import Space  # noqa: E402
from haltune.store.open import open_store  # noqa: E402
from haltune.study.redecide import redecide  # noqa: E402

State = optuna.trial.TrialState
SPACE = {
    "lr": Float(1e-4, 1.0, log=True),
    "kernel": Choice(["rbf", "poly"]),
    "degree": Int(2, 5, when={"kernel": "poly"}),
    "size": Choice([(3, 3), (5, 5)]),
}


def searched(store=None, policy=None, goal=None, epochs=9, trials=8, **options):
    options = {"seed": 0, "budget": f"{trials} trials", "verbose": 0} | options
    study = Study(
        SPACE, goal or Maximize("acc", (0, 1)), store, max_epochs=epochs,
        policy=policy or RandomSearch(), **options,
    )  # fmt: skip
    for trial in study:
        for epoch in trial.epochs():
            value = 0.9 * epoch / (epoch + 3 * trial.config["lr"]) - 0.2 * (trial.config["lr"] > 0.1)
            trial.report(value, metrics={"loss": 1 - value})
        trial.checkpointed("nowhere") if trial.verdict.resumable else None
    return study


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("journal", marks=pytest.mark.slow)])
def test_a_search_is_copied_whole_to_any_storage(kind, tmp_path):
    study = searched(f"{tmp_path}/search.db", policy=Halting(RandomSearch()), epochs=20, trials=12)
    there = f"sqlite:///{tmp_path}/optuna.db"
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(f"{tmp_path}/optuna.log")
        there = optuna.storages.JournalStorage(backend)
    to_study(f"{tmp_path}/search.db", there, "digits")
    found = optuna.load_study(study_name="digits", storage=there)
    assert found.direction == optuna.study.StudyDirection.MAXIMIZE
    assert found.metric_names == ["acc"]
    assert found.best_value == study.best_value
    stopped = 0
    for t, o in zip(study.trials, found.trials, strict=True):
        assert {k: v for k, v in o.params.items() if k != "size"} == {k: v for k, v in t.config.items() if k != "size"}
        assert o.params["size"] == repr(t.config["size"])
        assert o.intermediate_values == dict(zip(t.epochs.astype(int).tolist(), t.values, strict=True))
        assert o.value == t.values[-1]
        assert math.isclose(o.datetime_start.timestamp(), t.started, abs_tol=1e-3)
        assert o.datetime_start <= o.datetime_complete
        assert o.user_attrs["loss"] == t.metrics["loss"][-1]
        if o.state is State.PRUNED:
            stopped += 1
            assert o.user_attrs["haltune:reason"] == t.verdict.reason
            assert o.user_attrs["haltune:p_beats"] == t.verdict.evidence["p_win"]
    assert stopped > 0
    assert found.user_attrs["haltune:over"]
    assert found.user_attrs["haltune:policy"] == "Halting"
    assert any("degree" in said for said in found.user_attrs["haltune:left_out"])


def test_paused_runs_are_pruned_open_ones_run_and_failed_ones_failed():
    study = searched(policy=SuccessiveHalving(n=9, rounds=1), trials=9)
    running = Study(SPACE, Minimize("loss"), max_epochs=4, budget="4 trials", seed=0, verbose=0)
    open_one, failed = running.ask(), running.ask()
    open_one.report(0.5)
    with pytest.raises(ZeroDivisionError), failed:
        raise ZeroDivisionError
    states = [t.state for t in to_study(running).trials]
    assert states == [State.RUNNING, State.FAIL]
    assert {t.state for t in to_study(study).trials} == {State.COMPLETE, State.PRUNED}
    paused = [t.id for t in study.trials if t.status == "paused"]
    assert paused
    assert {to_study(study).trials[id].user_attrs["haltune:status"] for id in paused} == {"paused"}


@pytest.mark.slow
def test_a_copy_is_written_again_and_nothing_of_others_is_overwritten(tmp_path):
    where = f"sqlite:///{tmp_path}/optuna.db"
    to_study(searched(f"{tmp_path}/search.db", trials=2), where)
    more = load_study(f"{tmp_path}/search.db", budget="4 trials")
    for trial in more:
        for epoch in trial.epochs():
            trial.report(epoch / 9)
    assert len(to_study(more, where).trials) == 4
    with pytest.raises(InvalidInput, match="is another"):
        to_study(searched(trials=1), where)
    optuna.load_study(study_name="study", storage=where).optimize(lambda trial: 0.5, n_trials=1)
    with pytest.raises(InvalidInput, match="Optuna has trained its own trials"):
        to_study(more, where)


def test_a_study_comes_back_with_its_very_space_goal_and_runs():
    study = searched(goal=Minimize("error", (0, 1), of="best"), policy=BOBOS(), trials=9)
    again = from_study(to_study(study))
    assert again.problem == Problem(study.problem.space, study.problem.goal, study.problem.max_epochs)
    assert [dict(t.config) for t in again.trials] == [dict(t.config) for t in study.trials]
    assert [t.status for t in again.trials] == [t.status for t in study.trials]
    assert [t.values.tolist() for t in again.trials] == [t.values.tolist() for t in study.trials]
    assert again.best.trial == study.best.trial
    stopped = [t.verdict.action for t in again.trials if t.verdict]
    assert set(stopped) <= {Action.STOP}


# What Optuna has found, as the past of a search


optuna.logging.set_verbosity(optuna.logging.ERROR)

EPOCHS = 9


def objective(trial):
    kernel = trial.suggest_categorical("kernel", ["rbf", "poly"])
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    layers = trial.suggest_int("layers", 1, 3)
    for i in range(layers):
        trial.suggest_int(f"units{i}", 8, 64, step=8)
    if kernel == "poly":
        trial.suggest_int("degree", 2, 5)
    value = 0.0
    for step in range(EPOCHS):
        value = (step + 1) / (step + 1 + 20 * lr)
        trial.report(value, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return value


def imported_searched(trials=30, function=objective, **options):
    study = optuna.create_study(
        direction="maximize", study_name="digits", sampler=optuna.samplers.RandomSampler(0),
        pruner=optuna.pruners.MedianPruner(5, 2), **options,
    )  # fmt: skip
    study.optimize(function, n_trials=trials)
    return study


def test_the_space_is_read_from_the_trials_with_its_conditions():
    units = range(8, 65, 8)
    assert dict(from_study(imported_searched()).problem.space.parameters) == {
        "kernel": Choice(["rbf", "poly"]),
        "lr": Float(1e-4, 1e-1, log=True),
        "layers": Int(1, 3),
        "units0": Choice(units, ordered=True),
        "units1": Choice(units, ordered=True, when={"layers": (">=", 2)}),
        "units2": Choice(units, ordered=True, when={"layers": (">=", 3)}),
        "degree": Int(2, 5, when={"kernel": ["poly"]}),
    }


def test_values_curves_states_and_times_are_those_of_optuna(tmp_path):
    there = imported_searched()
    from_study(there, tmp_path / "past.db")
    past = load_study(tmp_path / "past.db")
    assert (past.name, past.problem.goal, past.problem.max_epochs) == ("digits", Maximize("value"), EPOCHS)
    assert past.best_value == there.best_value
    status = {"COMPLETE": Status.COMPLETED, "PRUNED": Status.STOPPED}
    for t, o in zip(past.trials, there.trials, strict=True):
        assert t.status is status[o.state.name]
        assert dict(zip(t.epochs - 1, t.values, strict=True)) == o.intermediate_values
        assert t.started == o.datetime_start.timestamp()
        assert t.seconds.sum() == pytest.approx((o.datetime_complete - o.datetime_start).total_seconds(), abs=1e-6)
        assert {k: v for k, v in t.config.items() if k != "lr"} == {k: v for k, v in o.params.items() if k != "lr"}
        assert t.config["lr"] == pytest.approx(o.params["lr"], rel=1e-9)
    assert {t.status for t in past.trials} == set(status.values())
    assert {t.verdict.reason for t in past.trials if t.verdict} == {"pruned in Optuna"}


def test_the_log_is_one_of_haltunes_own_and_is_decided_again_as_it_is_written():
    past = from_study(imported_searched())
    again = list(redecide(past.problem, past.policy, past.events()))
    assert len(again) == 30
    assert [found for _, recorded, found in again if found != recorded] == []


def test_a_search_learns_from_it():
    past = from_study(imported_searched(60))
    study = Study(
        past.problem.space, "accuracy", max_epochs=EPOCHS, budget="8 trials", learn_from=[past], seed=0, verbose=0
    )  # fmt: skip
    for trial in study:
        for epoch in trial.epochs():
            trial.report(epoch / (epoch + 20 * trial.config["lr"]))
    assert any("trials of 'digits'" in t.proposed for t in study.trials)
    assert np.median([t.config["lr"] for t in study.trials[3:]]) < 1e-3  # the best lies at the lower end


def test_what_runs_waits_or_failed_is_shown_as_such():
    there = optuna.create_study()
    there.add_trial(optuna.create_trial(value=1.0, params={"x": 1.0}, distributions={"x": UNIT}))
    running = there.ask({"x": UNIT})
    running.report(0.5, 1)
    failed = there.ask({"x": UNIT})
    there.tell(failed, state=optuna.trial.TrialState.FAIL)
    there.enqueue_trial({"x": 0.25})
    there.enqueue_trial({})
    past = from_study(there)
    assert [t.status for t in past.trials] == [Status.COMPLETED, Status.INTERRUPTED, Status.FAILED]
    assert past.trials[1].values.tolist() == [0.5]
    assert list(past.history.queue) == [{"x": 0.25}]


UNIT = optuna.distributions.FloatDistribution(0, 1)


def made(curve, value, state="COMPLETE", params=None, **others):
    params = {"x": 0.5} if params is None else params
    return optuna.create_trial(
        state=optuna.trial.TrialState[state], value=value, params=params,
        distributions=others or dict.fromkeys(params, UNIT), intermediate_values=dict(enumerate(curve)),
    )  # fmt: skip


def of(*trials, **options):
    study = optuna.create_study(**options)
    study.add_trials(trials)
    return study


def test_a_trial_outside_a_range_with_steps_is_left_out(caplog):
    there = optuna.create_study()
    for x in (0.3, 0.9):
        there.enqueue_trial({"x": x})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Optuna: 0.9 is out of range
        there.optimize(lambda trial: trial.suggest_float("x", 0.1, 0.5, step=0.1), n_trials=2)
    assert [t.params for t in there.trials] == [{"x": 0.3}, {"x": 0.9}]
    with caplog.at_level("INFO", "haltune"):
        past = from_study(there)
    assert [t.config for t in past.trials] == [{"x": 0.3}]
    assert "1 trial left out: they lack a parameter or are outside the space" in caplog.text


def test_a_trial_during_which_the_clock_was_set_back_keeps_its_curve():
    trial = made([0.1, 0.3, 0.2], 0.2)
    trial.datetime_start, trial.datetime_complete = datetime(2026, 10, 25, 2, 50), datetime(2026, 10, 25, 2, 10)
    (t,) = from_study(of(trial, direction="maximize")).trials
    assert (t.status, list(t.epochs), list(t.values)) == (Status.COMPLETED, [1, 2, 3], [0.1, 0.3, 0.2])


@pytest.mark.parametrize(
    ("curves", "goal"),
    [
        ([([0.1, 0.3, 0.2], 0.2)], Maximize("value")),
        ([([0.1, 0.3, 0.2], 0.3), ([0.1, 0.2, 0.4], 0.4)], Maximize("value", of="best")),
    ],
)
def test_the_goal_counts_the_epoch_that_the_objective_returned(curves, goal):
    there = of(*(made(*pair) for pair in curves), direction="maximize")
    past = from_study(there)
    assert past.problem.goal == goal
    assert past.best_value == there.best_value


def test_a_parameter_that_nothing_explains_is_left_out_and_said(caplog):
    there = of(
        made([], 1.0), made([], 1.0, params={"x": 0.5, "y": 0.5}), made([], 1.0, params={"x": 0.1}),
        made([], 1.0, params={"x": 0.5, "n": 2}, x=UNIT, n=optuna.distributions.IntDistribution(1, 4)),
    )  # fmt: skip
    with caplog.at_level("INFO", "haltune"):
        past = from_study(there)
    assert past.problem.space.names == ("x",)
    assert "'y' is left out: 3 trials of 4 lack it" in caplog.text
    given = Space({"x": Float(0, 1), "y": Float(0, 1)})
    assert len(from_study(there, space=given).trials) == 1


def test_what_cannot_be_taken_is_an_error_in_words(tmp_path):
    with pytest.raises(InvalidInput, match=r"optuna.load_study\("):
        from_study(f"sqlite:///{tmp_path}/optuna.db")
    with pytest.raises(InvalidSpace, match="No ended trial of this Optuna study"):
        from_study(optuna.create_study())
    with pytest.raises(InvalidInput, match="Use max_epochs="):
        from_study(of(made([1.0] * 5, 1.0)), max_epochs=2)


# Studies of several goals and of constraints, to Optuna and from it


optuna.logging.set_verbosity(optuna.logging.ERROR)

several_objectives_State, Direction = optuna.trial.TrialState, optuna.study.StudyDirection

GOALS = [Maximize("acc", (0, 1)), Minimize("ms")]

SMALL = Constraint("params", at_most=5.0)


def several_objectives_searched(goal=GOALS, constraints=(SMALL,), trials=12, epochs=12):
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
    """Return trials on Optuna's front, and their values."""
    return {t.number: tuple(t.values) for t in study.best_trials}


def test_the_front_is_that_of_optuna(tmp_path):
    study = several_objectives_searched()
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
    assert {found.trials[t.id].state for t in cut} == {several_objectives_State.PRUNED}
    for t, o in zip(study.trials, found.trials, strict=True):
        assert o.values == list(t.results(study.problem).values())[:2]
        assert o.intermediate_values == dict(zip(t.epochs.astype(int).tolist(), t.values, strict=True))
        assert o.user_attrs["ms"] == t.metrics["ms"][-1]


def test_a_study_comes_back_with_its_goals_constraints_and_runs():
    study = several_objectives_searched()
    again = from_study(to_study(study))
    assert again.problem.goals == study.problem.goals
    assert again.problem.constraints == study.problem.constraints
    assert [t.results(again.problem) for t in again.trials] == [t.results(study.problem) for t in study.trials]
    assert [t.values.tolist() for t in again.trials] == [t.values.tolist() for t in study.trials]
    assert [f.trial for f in again.pareto_front()] == [f.trial for f in study.pareto_front()]


def bi_objective(trial):
    x, y = trial.suggest_float("x", 0, 3), trial.suggest_float("y", 0, 3)
    trial.set_user_attr("constraint", (x - 2.0, 0.2 - y))
    return 4 * x**2 + 4 * y**2, -((x - 5) ** 2) - (y - 5) ** 2


@pytest.mark.parametrize("named", [True])
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


def test_a_trial_without_a_constraint_satisfies_it_as_in_optuna(caplog):
    there = optuna.create_study()
    for x, limits in ((0.1, {"mb": 3.0}), (0.2, {}), (0.3, {"mb": -1.0}), (0.4, {"mb": -1.0, "ms": -1.0})):
        there.add_trial(optuna.create_trial(
            value=x, params={"x": x}, distributions={"x": UNIT},
            system_attrs={f"constraints:{name}": value for name, value in limits.items()},
        ))  # fmt: skip
    with caplog.at_level("INFO", "haltune"):
        past = from_study(there)
    assert past.best.trial == there.best_trial.number == 1
    assert "constraints without a value, in 3 trials" in caplog.text


# Each parameter has one counterpart, and values survive the way there and back


@given(space=spaces(), seed=SEEDS)
def test_a_configuration_of_any_space_survives_the_way_to_optuna_and_back(space, seed):
    translated = Translated.of_space(space)
    for config in space.decode_many(np.random.default_rng(seed).random((4, space.dim))):
        if not space.contains(config):  # bounds that cross
            continue
        there = translated.outward(config)
        for name, value in there.items():
            distribution = translated.counterparts[name].distribution
            assert distribution._contains(distribution.to_internal_repr(value))
        assert space.key(translated.inward(there)) == space.key(config)


@st.composite
def distributions(draw):
    kind = draw(st.sampled_from(["float", "log", "int", "log int", "float step", "int step", "choice"]))
    low, wide = draw(st.integers(-20, 20)), draw(st.integers(1, 40))
    if kind == "choice":
        options = st.one_of(st.none(), st.booleans(), st.integers(2, 9), st.text("abc", max_size=2))
        return CategoricalDistribution(draw(st.lists(options, min_size=1, max_size=4, unique_by=repr)))
    if kind == "int":
        return IntDistribution(low, low + wide)
    if kind == "log int":
        return IntDistribution(1 + abs(low), 1 + abs(low) + wide, log=True)
    if kind == "int step":
        step = draw(st.integers(2, 5))
        return IntDistribution(low, low + step * wide, step=step)
    if kind == "float step":
        step = draw(st.sampled_from([0.1, 0.25, 0.05, 3.0]))
        return FloatDistribution(low, round(low + step * wide, 10), step=step)
    return FloatDistribution(abs(low) / 7 + 0.001, abs(low) / 7 + wide / 3 + 0.001, log=draw(st.just(kind == "log")))


@given(distribution=distributions(), seed=SEEDS)
def test_a_distribution_of_any_kind_survives_the_way_here_and_back(distribution, seed):
    found = inward("x", distribution)
    assert Translated.of_space(Space({"x": found.domain})).counterparts["x"].distribution == distribution
    sampler, study = optuna.samplers.RandomSampler(seed=seed), optuna.create_study()
    value = sampler.sample_independent(study, None, "x", distribution)
    again = found.outward(found.inward(value))
    same = math.isclose(again, value, rel_tol=1e-9) if isinstance(value, float) else again == value
    assert same
    assert type(again) is type(value)


def test_what_optuna_cannot_keep_is_its_text_there():
    options = [(3, 3), "(3, 3)", True, 1, None, 2.5]
    found = Translated.of_space(Space({"kernel": Choice(options)})).counterparts["kernel"]
    assert found.distribution == CategoricalDistribution(["(3, 3)'", "(3, 3)", "True", "1", None, 2.5])
    assert [found.inward(found.outward(o)) for o in options] == options
    assert [type(found.inward(found.outward(o))) for o in options[2:4]] == [bool, int]


def test_a_study_that_could_not_be_read_again_is_refused_before_anything_is_written(tmp_path):
    there = optuna.create_study(study_name="far")
    there.add_trial(optuna.trial.create_trial(
        params={"x": 0.5}, distributions={"x": FloatDistribution(0.0, 1.0)}, value=0.5,
    ))  # fmt: skip
    later = there.trials[0]
    later.datetime_start = later.datetime_complete = datetime(9000, 1, 1)
    there.get_trials = lambda **_: [later]
    with pytest.raises(InvalidInput, match="at = "):
        from_study(there, tmp_path / "s.db")
    assert open_store(tmp_path / "s.db").names() == []
