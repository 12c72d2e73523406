"""HaltuneSampler chooses by the model of the default search, in all of Optuna's ways to call it."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402
from haltune.models import search_model  # noqa: E402
from haltune.models.stage_process import learn_kernel_and_scale  # noqa: E402
from haltune.optuna import HaltunePruner, HaltuneSampler  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)
UNIT = optuna.distributions.FloatDistribution(0, 1)
State = optuna.trial.TrialState


def bowl(trial):
    x, y = trial.suggest_float("x", -3, 3), trial.suggest_float("y", 0.01, 10, log=True)
    return (x - 1) ** 2 + np.log10(y) ** 2


def searched(sampler, trials=30, function=bowl, n_jobs=1, **options):
    study = optuna.create_study(sampler=sampler, **options)
    study.optimize(function, n_trials=trials, n_jobs=n_jobs)
    return study


@pytest.mark.slow
def test_it_finds_what_random_search_does_not():
    ours = [searched(HaltuneSampler(seed=seed)).best_value for seed in range(3)]
    drawn = [searched(optuna.samplers.RandomSampler(seed)).best_value for seed in range(9)]
    assert max(ours) < 0.01 < np.median(drawn)


def test_the_first_trials_are_drawn_and_the_seed_decides_all():
    params = [t.params for t in searched(HaltuneSampler(seed=1), 14).trials]
    again = pickle.loads(pickle.dumps(HaltuneSampler(seed=1)))
    assert [t.params for t in searched(again, 14).trials] == params
    other = [t.params for t in searched(HaltuneSampler(seed=1, deviations=0.0), 14).trials]
    assert other[:10] == params[:10]
    assert other[10:] != params[10:]
    assert [t.params for t in searched(HaltuneSampler(seed=2), 2).trials] != params[:2]


def test_a_name_that_a_space_refuses_is_drawn_by_the_other_sampler():
    def objective(trial):
        return trial.suggest_float("lr ", 0, 1) + trial.suggest_float("", 0, 1) + trial.suggest_float("x", 0, 1)

    found = searched(HaltuneSampler(seed=0, initial=2), 4, objective).trials
    assert len({tuple(t.params.values()) for t in found}) == 4
    assert {t.state for t in found} == {State.COMPLETE}


def learning(trial):
    lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
    value = 0.0
    for step in range(9):
        value = (np.log10(lr) + 2) ** 2 + 1 / (step + 1)
        trial.report(value, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return value


def test_the_model_is_fitted_at_fixed_counts_of_values_not_at_every_trial(monkeypatch):
    fits = []
    monkeypatch.setattr(
        search_model, "learn_kernel_and_scale", lambda *of: fits.append(of) or learn_kernel_and_scale(*of)
    )
    searched(HaltuneSampler(seed=0), 41)
    assert len(fits) == 4  # at 16, 24, 32 and 40 values


def test_pruned_trials_teach_it():
    sampler = optuna.samplers.RandomSampler(0)
    pruned = searched(sampler, 30, learning, pruner=optuna.pruners.MedianPruner(2, 1))
    some = [t for t in pruned.trials if t.state is State.PRUNED]
    study = optuna.create_study(sampler=HaltuneSampler(seed=0, max_epochs=9, deviations=0.0))
    study.add_trials(some)  # none was trained in full
    assert len(some) > 10
    assert study.ask().suggest_float("lr", 1e-4, 1.0, log=True) == pytest.approx(0.01, rel=0.5)


def test_it_avoids_what_violates_a_constraint():
    def objective(trial):
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        trial.storage.set_trial_system_attr(trial._trial_id, "constraints", [0.5 - x])
        return x + y

    study = searched(HaltuneSampler(seed=0), 30, objective)
    assert sum(trial.params["x"] < 0.5 for trial in study.trials[10:]) < 10
    assert study.best_trial.params["x"] == pytest.approx(0.55, abs=0.06)


@pytest.mark.slow
def test_with_the_pruner_it_is_a_search_of_one_line_each():
    study = searched(HaltuneSampler(seed=0), 25, learning, pruner=HaltunePruner(9))
    assert study.best_params["lr"] == pytest.approx(0.01, rel=0.3)
    assert any(t.state is State.PRUNED for t in study.trials)


def test_parameters_that_some_trials_lack_are_drawn_independently_of_the_shared_ones():
    def objective(trial):
        x = trial.suggest_float("x", -3, 3)
        if trial.suggest_categorical("kind", ["a", "b"]) == "a":
            return (x - 1) ** 2 + trial.suggest_float("only_a", 0, 1)
        return (x - 1) ** 2 + 2 + trial.suggest_int("only_b", 1, 9, step=2)

    study = searched(HaltuneSampler(seed=0), 30, objective)
    assert [t.params["kind"] for t in study.trials[-8:]].count("a") >= 6
    assert np.median([abs(t.params["x"] - 1) for t in study.trials[-10:]]) < 0.5
    fixed = optuna.samplers.RandomSampler(0)
    sampler = HaltuneSampler(seed=0, independent_sampler=fixed)
    assert sampler.sample_independent(study, study.trials[0], "z", UNIT) != 0
    sampler.reseed_rng()


def test_choices_of_another_type_and_steps_come_as_optuna_has_them():
    def objective(trial):
        width = trial.suggest_int("width", 16, 128, step=16)
        fine = trial.suggest_float("fine", 0, 1, step=0.0001)
        assert fine == pytest.approx(round(fine, 4))
        flag = trial.suggest_categorical("flag", [True, False, None, "True"])
        assert type(width) is int
        return abs(width - 64) + fine + (flag is None)

    study = searched(HaltuneSampler(seed=0), 25, objective)
    assert study.best_value < 1.0


def test_what_another_worker_will_train_is_known_before_it_is_suggested():
    study = searched(HaltuneSampler(seed=0), 20)
    space = study.sampler.infer_relative_search_space(study, None)
    numbers = [study.ask().number for _ in range(6)]
    chosen = [study.sampler.sample_relative(study, study.trials[n], space) for n in numbers]
    assert len({tuple(params.values()) for params in chosen}) == 6


def test_threads_share_one_sampler():
    study = searched(HaltuneSampler(seed=0), 24, n_jobs=4)
    assert [t.state for t in study.trials] == [State.COMPLETE] * 24
    assert len({tuple(t.params.values()) for t in study.trials}) == 24


WORKER = """
import optuna
from haltune.optuna import HaltuneSampler
study = optuna.load_study(study_name="shared", storage={storage!r}, sampler=HaltuneSampler(seed=0))
study.optimize(lambda t: (t.suggest_float("x", -3, 3) - 1) ** 2, n_trials=10)
"""


@pytest.mark.slow
def test_processes_on_one_storage_choose_different_trials(tmp_path):
    storage = f"sqlite:///{tmp_path}/optuna.db"
    study = optuna.create_study(storage=storage, study_name="shared")
    code = WORKER.format(storage=storage)
    workers = [subprocess.Popen([sys.executable, "-P", "-c", code]) for _ in range(2)]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    assert len({t.params["x"] for t in study.trials}) >= 18  # who choose at the same moment may choose the same
    assert study.best_value < 0.01


@pytest.mark.parametrize("wrong", [{"max_epochs": 0}, {"seed": -1}])
def test_arguments_that_do_not_fit_are_errors_in_words(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        HaltuneSampler(**wrong)


def test_where_all_shared_values_were_tried_the_best_ones_are_chosen_again():
    def conditional(trial):
        kind = trial.suggest_categorical("kind", ["good", "bad", "worse"])
        return {"good": 1.0, "bad": 0.0, "worse": -1.0}[kind] - 0.1 * trial.suggest_float(f"x_{kind}", 0, 1)

    study = searched(HaltuneSampler(seed=0), 40, conditional, direction="maximize")
    chosen = [t.params["kind"] for t in study.trials[12:]]
    assert chosen.count("good") >= 20


def test_pruned_trials_do_not_crowd_in_one_place():
    def shifted(trial):  # the pruned trials' place is worth a new look each time, because they do not show how they end
        x = trial.suggest_float("x", 0, 1)
        for step in range(9):
            trial.report(x + (step + 1) / 10, step)
            if step == 0 and trial.number >= 6:
                raise optuna.TrialPruned
        return x + 0.9

    study = searched(HaltuneSampler(seed=0, max_epochs=9), 40, shifted, direction="maximize")
    places = np.array([t.params["x"] for t in study.trials if t.state is State.PRUNED])
    radius = 0.5 / len(places)
    chosen = places[6:]  # after the random ones
    assert max((np.abs(places - x) < radius).sum() for x in chosen) <= 6  # three on either side


def test_a_pruner_warns_once_that_trainings_are_longer_than_it_knows():
    with pytest.warns(HaltuneWarning, match="max_epochs=5") as caught:
        searched(optuna.samplers.RandomSampler(0), 3, learning, pruner=HaltunePruner(max_epochs=4))
    assert sum("not pruned" in str(w.message) for w in caught) == 1


def test_a_sampler_warns_once_that_trainings_are_longer_than_it_knows():
    with pytest.warns(HaltuneWarning, match=r"max_epochs=9\) or more") as caught:
        searched(HaltuneSampler(max_epochs=4), 3, learning)
    assert sum("sampler ignores" in str(w.message) for w in caught) == 1
