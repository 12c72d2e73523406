"""Optuna's own tests of samplers, on haltune's; and the properties that its tests of pruners check.

Tests of several objectives are left out, because HaltuneSampler refuses them, as the last test checks. Optuna ships no
tests of pruners: this file checks the properties of all pruners in its repository, for haltune's and Optuna's.
"""

import math

import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
cases = pytest.importorskip("optuna.testing.pytest_samplers", reason="this Optuna ships no tests")

from haltune.optuna import HaltunePruner, HaltuneSampler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning", "ignore:All-NaN slice")
EPOCHS = 8


class TestHaltuneSampler(cases.BasicSamplerTestCase, cases.RelativeSamplerTestCase, cases.SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return lambda: HaltuneSampler(seed=0, initial=1)  # the model chooses from the second trial on


@pytest.fixture(params=["haltune", "median"])
def pruner(request):
    """Ours, and one of Optuna's, which has to pass too."""
    return HaltunePruner(EPOCHS) if request.param == "haltune" else optuna.pruners.MedianPruner(0, 0)


def ended(study, top, state=optuna.trial.TrialState.COMPLETE):
    """A trial that is over, with such a curve."""
    curve = {epoch: top * (epoch + 1) / (epoch + 2) for epoch in range(EPOCHS)}
    value = curve[EPOCHS - 1] if math.isfinite(top) else None
    study.add_trial(optuna.create_trial(state=state, value=value, intermediate_values=curve))


def told(study, *values):
    """Return after each report whether a new trial should be pruned."""
    trial, answers = study.ask(), []
    for epoch, value in enumerate(values):
        trial.report(value, epoch)
        answers.append(trial.should_prune())
    return answers


def test_the_first_trial_is_not_pruned(pruner):
    study = optuna.create_study(direction="maximize", pruner=pruner)
    assert told(study, 0.1, 0.1, 0.1) == [False] * 3


def test_a_trial_without_intermediate_values_is_not_pruned(pruner):
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for top in (0.8, 0.9, 0.7):
        ended(study, top)
    assert not study.ask().should_prune()


def test_a_bad_trial_is_pruned_and_a_good_one_is_not(pruner):
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for top in (0.8, 0.9, 0.7):
        ended(study, top)
    assert told(study, 0.01, 0.01, 0.01, 0.01)[-1]
    assert told(study, 0.5, 0.66, 0.75, 0.8) == [False] * 4


def test_a_trial_of_nan_is_pruned_and_other_trials_of_nan_prune_none(pruner):
    study = optuna.create_study(direction="maximize", pruner=pruner)
    ended(study, math.nan, optuna.trial.TrialState.PRUNED)
    assert told(study, 0.1, 0.2) == [False] * 2
    for top in (0.8, 0.9):
        ended(study, top)
    assert told(study, math.nan, math.nan, math.nan)[-1]


def test_with_several_objectives_nothing_is_pruned(pruner):
    study = optuna.create_study(directions=["maximize", "minimize"], pruner=pruner)
    with pytest.raises(NotImplementedError, match="multi-objective"):
        study.ask().should_prune()
