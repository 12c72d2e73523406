"""HaltunePruner decides as haltune's own optimal stopping, in all of Optuna's ways to call it."""

import math
import pickle
import warnings

import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

from haltune import Float, Maximize, Study  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402
from haltune.optuna import HaltunePruner  # noqa: E402
from haltune.policies import Halting, OptimalStopping, RandomSearch  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)
EPOCHS = 20
QUICK = OptimalStopping(paths=2000)


def curve(top, epoch):
    return top * epoch / (epoch + 1.5)


def searched(pruner, tops=(), trials=None, first=0, sign=1, value=curve, **options):
    """A study whose trials have such curves, in this order."""

    def objective(trial):
        top = trial.suggest_float("top", 0.0, 1.0)
        for epoch in range(1, EPOCHS + 1):
            trial.report(sign * value(top, epoch), epoch - 1 + first)
            if trial.should_prune():
                raise optuna.TrialPruned
        return sign * value(top, EPOCHS)

    jobs = options.pop("n_jobs", 1)
    direction = "maximize" if sign > 0 else "minimize"
    sampler = optuna.samplers.RandomSampler(0)
    study = optuna.create_study(direction=direction, pruner=pruner, sampler=sampler, **options)
    for top in tops:
        study.enqueue_trial({"top": top})
    study.optimize(objective, n_trials=trials or len(tops), n_jobs=jobs)
    return study


def ends(study):
    return [(t.state.name, len(t.intermediate_values)) for t in study.trials]


TOPS = (0.7, 0.2, 0.5, 0.75, 0.72, 0.1, 0.9, 0.6)


def test_it_stops_where_a_haltune_study_does():
    tops = (0.5, 0.2, 0.6, 0.75, 0.8, 0.1, 0.9, 0.65, 0.3)  # four trained in full: then configurations count
    goal = Maximize("value", bounds=(0, 1))
    policy = Halting(RandomSearch(), QUICK)
    study = Study({"top": Float(0, 1)}, goal, max_epochs=EPOCHS, policy=policy, seed=3, budget="9 trials", verbose=0,
                  start=[{"top": top} for top in tops])  # fmt: skip
    for trial in study:
        for epoch in trial.epochs():
            if trial.report(curve(trial.config["top"], epoch)).stops:
                break
    there = searched(HaltunePruner(EPOCHS, seed=3, bounds=(0, 1), stopping=QUICK), tops)
    assert [n for _, n in ends(there)] == [t.epoch for t in study.trials]
    stopped = [(t.verdict, o) for t, o in zip(study.trials, there.trials, strict=True) if t.verdict]
    assert len(stopped) >= 3
    for verdict, o in stopped:
        assert o.user_attrs["haltune:reason"] == verdict.reason
        assert o.user_attrs["haltune:p_beats"] == verdict.evidence["p_win"]
    assert "its configuration" in stopped[-1][0].reason


def test_the_first_trial_has_nothing_to_beat_and_a_bad_one_goes_early():
    study = searched(HaltunePruner(EPOCHS, stopping=QUICK), (0.7, 0.65, 0.68, 0.6, 0.1))
    assert ends(study)[0] == ("COMPLETE", EPOCHS)
    assert ends(study)[-1][0] == "PRUNED"
    assert ends(study)[-1][1] < EPOCHS / 2
    assert "P(beats 0.65" in study.trials[-1].user_attrs["haltune:reason"]


@pytest.mark.parametrize("violates", [True, False])
def test_a_trial_that_violates_a_constraint_prunes_no_other(violates):
    study = optuna.create_study(direction="maximize", pruner=HaltunePruner(EPOCHS, stopping=QUICK))
    for top, limit in ((0.9, violates), (0.85, violates), (0.2, False), (0.25, False)):
        study.add_trial(optuna.trial.create_trial(
            value=curve(top, EPOCHS), params={"top": top}, system_attrs={"constraints": [float(limit)]},
            distributions={"top": optuna.distributions.FloatDistribution(0.0, 1.0)},
            intermediate_values={epoch: curve(top, epoch) for epoch in range(1, EPOCHS + 1)},
        ))  # fmt: skip
    trial = study.ask({"top": optuna.distributions.FloatDistribution(0.4, 0.4)})
    for epoch in range(1, EPOCHS):
        trial.report(curve(0.4, epoch), epoch)
        if trial.should_prune():
            break
    assert (epoch == EPOCHS - 1) == violates


def test_no_trial_is_pruned_before_the_minimum_of_epochs():
    early = [n for state, n in ends(searched(HaltunePruner(EPOCHS, stopping=QUICK), TOPS)) if state == "PRUNED"]
    late = ends(searched(HaltunePruner(EPOCHS, stopping=QUICK, min_epochs=9), TOPS))
    assert min(early) < 9
    assert min(n for state, n in late if state == "PRUNED") == 9


@pytest.mark.slow
def test_steps_from_0_or_1_and_both_directions_are_alike():
    usual = searched(HaltunePruner(EPOCHS, stopping=QUICK), TOPS)
    assert ends(searched(HaltunePruner(EPOCHS, stopping=QUICK), TOPS, first=1, sign=-1)) == ends(usual)


def test_the_seed_alone_decides_and_asking_again_changes_nothing():
    one = HaltunePruner(EPOCHS, stopping=QUICK, seed=5)
    study = searched(one, TOPS)
    assert ends(study) == ends(searched(pickle.loads(pickle.dumps(one)), TOPS))
    trial = study.ask({"top": optuna.distributions.FloatDistribution(0, 1)})
    for epoch in range(3):
        trial.report(curve(0.3, epoch + 1), epoch)
    told = [trial.should_prune() for _ in range(3)]
    assert told[0] == told[1] == told[2]
    assert repr(one).startswith(f"HaltunePruner(max_epochs={EPOCHS}, seed=5")


def test_a_run_that_diverged_is_pruned():
    study = searched(HaltunePruner(EPOCHS, stopping=QUICK), (0.7, 0.6))
    trial = study.ask({"top": optuna.distributions.FloatDistribution(0, 1)})
    told = []
    for epoch in range(3):
        trial.report(math.nan, epoch)
        told.append(trial.should_prune())
    assert told[-1]
    reason = study.trials[-1].user_attrs["haltune:reason"]
    assert "no finite value" in reason


@pytest.mark.parametrize(("sign", "worse"), [(1, "falls well below"), (-1, "rises well above")])
def test_a_curve_that_falls_is_reported_once_in_the_words_of_an_optuna_program(sign, worse):
    study = searched(HaltunePruner(EPOCHS, stopping=QUICK), (0.7, 0.65), sign=sign)
    trial = study.ask()
    for epoch, value in enumerate((0.3, 0.6, 0.2, 0.1)):
        trial.report(sign * value, epoch)
    with pytest.warns(HaltuneWarning, match=rf"^A learning curve {worse} its best.*HaltunePruner\(of='best'\)"):
        trial.should_prune()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trial.should_prune()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_epochs": 0}, r"max_epochs=0\): use a whole number, at least 1"),
        ({"max_epochs": 9, "stopping": "robust"}, "an OptimalStopping"),
    ],
)
def test_arguments_that_do_not_fit_are_errors_in_words(arguments, said):
    with pytest.raises(InvalidInput, match=said):
        HaltunePruner(**arguments)
