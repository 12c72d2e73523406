"""The probability of a win by configurations: what it must know, and what it must not depend on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_expit
from worlds import problem, small_study

from haltune.log.events import Reported
from haltune.models.win_model import WinModel, calibrated
from haltune.policies import Halting, OptimalStopping, RandomSearch

HORIZON = 27
EPOCHS = np.arange(1, HORIZON + 1)


def errors_at(x: float, noise: np.ndarray) -> np.ndarray:
    """(HORIZON,) Configurations near 0.5 end best; all look alike at first."""
    end, share = 0.1 + 0.8 * abs(x - 0.5), EPOCHS / HORIZON
    return np.clip(0.7 - (0.7 - end) * share**0.7 + 0.01 * noise, 0.0, 1.0)


def recorded(rng: np.random.Generator, count: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Points (count, 2), of which the first coordinate matters, and errors (count, HORIZON): every third to the end."""
    points = rng.random((count, 2))
    errors = np.array([errors_at(x, rng.standard_normal(HORIZON)) for x, _ in points])
    for number, row in enumerate(errors):
        row[HORIZON if number % 3 == 0 else 6 :] = np.nan
    return points, errors


def test_of_equal_errors_those_near_a_good_configuration_are_likelier_to_win() -> None:
    points, errors = recorded(np.random.default_rng(0))
    model, best = WinModel.of(points, errors), np.nanmin(errors[:, -1])
    assert model is not None
    seen = errors_at(0.3, np.zeros(HORIZON))[:2]
    near, far = (model.log_odds(np.array([x, 0.5]), seen, best) for x in (0.5, 0.05))
    assert near > far + 1.0


def test_the_odds_do_not_depend_on_the_unit_of_the_errors() -> None:
    points, errors = recorded(np.random.default_rng(1))
    seen, best = errors_at(0.4, np.zeros(HORIZON))[:4], float(np.nanmin(errors[:, -1]))
    odds = []
    for scale, shift in ((1.0, 0.0), (0.25, 0.5)):
        model = WinModel.of(points, scale * errors + shift)
        assert model is not None
        odds.append(model.log_odds(np.array([0.4, 0.2]), scale * seen + shift, scale * best + shift))
    assert odds[0] == pytest.approx(odds[1], abs=1e-3)


@pytest.mark.parametrize(
    ("points", "errors"),
    [
        (np.random.default_rng(0).random((3, 2)), np.random.default_rng(1).random((3, HORIZON))),
        (
            np.random.default_rng(0).random((9, 2)),
            np.where(EPOCHS > 20, np.nan, np.random.default_rng(1).random((9, HORIZON))),
        ),
        (np.random.default_rng(0).random((8, 2)), np.full((8, HORIZON), 0.4)),
        (np.empty((8, 0)), np.random.default_rng(1).random((8, HORIZON))),
    ],
    ids=["too few", "none in full", "all equal", "no parameter"],
)
def test_without_anything_to_learn_there_is_no_model(points: np.ndarray, errors: np.ndarray) -> None:
    assert WinModel.of(points, errors) is None


def test_the_odds_tell_wins_from_losses_and_need_the_configuration_for_it() -> None:
    said, with_another, won = [], [], []
    for seed in range(15):
        rng = np.random.default_rng(seed)
        points, errors = recorded(rng, 20)
        middle, model = float(np.nanmedian(errors[:, -1])), WinModel.of(points, errors)
        assert model is not None
        for _ in range(10):
            x = rng.random()
            whole = errors_at(x, rng.standard_normal(HORIZON))
            said.append(model.log_odds(np.array([x, rng.random()]), whole[:3], middle))
            with_another.append(model.log_odds(rng.random(2), whole[:3], middle))
            won.append(bool(whole[-1] < middle))
    own, another = (-log_expit(np.where(won, odds, np.negative(odds))).mean() for odds in (said, with_another))
    assert own < 0.75 * another < 0.75 * math.log(2.0)
    p = expit(said)
    assert np.mean(np.array(won)[p < 0.1]) < 0.1
    assert np.mean(np.array(won)[p > 0.9]) > 0.9


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_calibrated_probability_rises_with_the_share_and_knows_none_and_all(a, b):
    assert (calibrated(0.0), calibrated(1.0)) == (0.0, 1.0)
    assert 0.0 <= calibrated(a) <= 1.0
    if a < b:
        assert calibrated(a) <= calibrated(b)


def test_the_map_rises_with_the_share_and_with_the_odds() -> None:
    shares, odds = np.linspace(0.001, 0.999, 40), np.linspace(-7.0, 7.0, 15)
    joined = np.array([[calibrated(float(s), float(o)) for o in odds] for s in shares])
    assert (np.diff(joined, axis=0) > 0).all()
    assert (np.diff(joined, axis=1) > 0).all()


@pytest.mark.slow
def test_a_receipt_says_that_the_configuration_counts() -> None:
    rule = Halting(RandomSearch(), OptimalStopping(paths=2000))
    study = small_study(rule, problem=problem(epochs=HORIZON), trials=9)
    for trial in study:
        rng = np.random.default_rng(trial.id)
        x = 0.1 + 0.08 * trial.id if trial.id < 5 else rng.random()  # the first five win one after the other
        for error in errors_at(x, rng.standard_normal(HORIZON)):
            if trial.report(1.0 - error).stops:
                break
        trial.finish()
    known = [e.verdict for e in study.events() if isinstance(e, Reported) and "p_model" in e.verdict.evidence]
    assert known
    assert all("its configuration" in v.reason for v in known)
    assert all(0.0 < v.evidence["p_model"] < 1.0 for v in known)
