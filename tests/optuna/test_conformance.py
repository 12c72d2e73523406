"""Optuna's own tests of samplers, on ours.

Left out are those for several objectives, which it refuses as the last of these ask; Optuna ships none for pruners.
"""

import pytest

pytest.importorskip("optuna", reason="Optuna is not installed")
cases = pytest.importorskip("optuna.testing.pytest_samplers", reason="this Optuna ships no tests")

from haltune.optuna import HaltuneSampler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


class TestHaltuneSampler(
    cases.BasicSamplerTestCase, cases.RelativeSamplerTestCase, cases.SingleOnlySamplerTestCase
):
    @pytest.fixture
    def sampler(self):
        return lambda: HaltuneSampler(seed=0, initial=1)  # the model chooses from the second trial on
