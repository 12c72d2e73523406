"""Kernels against scikit-learn's, and their derivatives against finite differences."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, Matern

from haltune.errors import InvalidInput
from haltune.gp import Kernel
from haltune.gp.kernels import input_gradient, squared_distances

KINDS = ["se", "matern32", "matern52"]
SCALES = np.array([0.3, 0.7, 2.0])


def peer(kind):
    if kind == "se":
        return RBF(SCALES)
    return Matern(SCALES, nu=1.5 if kind == "matern32" else 2.5)


@pytest.mark.parametrize("kind", KINDS)
def test_covariances_agree_with_scikit_learn(kind):
    rng = np.random.default_rng(0)
    left, right = rng.random((7, 3)), rng.random((5, 3))
    kernel = Kernel(kind, 1.7, SCALES)
    np.testing.assert_allclose(kernel(left, right), 1.7 * peer(kind)(left, right), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel(left), 1.7 * peer(kind)(left), rtol=1e-12, atol=1e-13)
    many = rng.random((700, 3))  # more than one block of rows
    np.testing.assert_allclose(kernel(many), 1.7 * peer(kind)(many), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel(many, many[5:]), 1.7 * peer(kind)(many, many[5:]), rtol=1e-12, atol=1e-12)


def log_derivatives(kernel, points):
    """dK / d log(lengthscales..., variance) at points (n, d), as (d + 1, n, n)."""
    covariance, slope = kernel.with_slope(points, points)
    apart = (points[:, None, :] - points[None, :, :]) / kernel.lengthscales
    return np.concatenate([slope * np.moveaxis(apart**2, 2, 0), covariance[None]])


@pytest.mark.parametrize("kind", KINDS)
def test_log_derivatives_agree_with_finite_differences(kind):
    points, step = np.random.default_rng(1).random((6, 3)), 1e-6
    theta = np.log([*SCALES, 1.7])

    def at(logs):
        return Kernel(kind, float(np.exp(logs[-1])), np.exp(logs[:-1]))(points)

    found = log_derivatives(Kernel(kind, 1.7, SCALES), points)
    for position, direction in enumerate(np.eye(4) * step):
        expected = (at(theta + direction) - at(theta - direction)) / (2 * step)
        np.testing.assert_allclose(found[position], expected, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_input_gradients_agree_with_finite_differences_also_at_a_data_point(kind):
    rng = np.random.default_rng(2)
    data, weights = rng.random((5, 3)), rng.standard_normal(5)
    points, step = np.vstack([rng.random((3, 3)), data[:1]]), 1e-6
    kernel = Kernel(kind, 1.7, SCALES)
    _, slope = kernel.with_slope(points, data)
    found = input_gradient(slope * weights, points, data, kernel.lengthscales)
    for column, direction in enumerate(np.eye(3) * step):
        expected = (kernel(points + direction, data) - kernel(points - direction, data)) @ weights / (2 * step)
        np.testing.assert_allclose(found[:, column], expected, atol=1e-7)


def test_distances_of_near_duplicates_far_from_the_origin_are_not_negative():
    points = 1000.0 + np.array([[0.0, 0.0], [1e-9, 0.0], [1e-9, 1e-9]])
    assert (squared_distances(points, points) >= 0).all()
    for kind in KINDS:
        np.testing.assert_allclose(Kernel(kind, 1.0, np.full(2, 0.02))(points), 1.0, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "rbf"}, "unknown kernel 'rbf'"),
        ({"variance": 0.0}, "variance must be positive"),
        ({"variance": np.inf}, "variance must be positive"),
        ({"lengthscales": np.array([1.0, -1.0])}, "lengthscales must be"),
        ({"lengthscales": np.array([1.0, np.nan])}, "lengthscales must be"),
    ],
)
def test_a_kernel_that_is_none_is_refused(change, said):
    good = {"kind": "se", "variance": 1.0, "lengthscales": SCALES}
    with pytest.raises(InvalidInput, match=said):
        Kernel(**{**good, **change})
