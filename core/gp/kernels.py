"""Stationary ARD kernels: k(x, x') = variance * rho(s), s^2 = sum_k (x_k - x'_k)^2 / lengthscale_k^2.

Notation: rho is the correlation, and slope is h(s) = -rho'(s) / s. With h every derivative is a product:

    dk / d log lengthscale_k = variance * h * (x_k - x'_k)^2 / lengthscale_k^2
    dk / d x_k               = -variance * h * (x_k - x'_k) / lengthscale_k^2

(Rasmussen and Williams 2006, chapter 4). h is finite at s = 0.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

KernelName: TypeAlias = Literal["se", "matern32", "matern52"]


@dataclass(frozen=True, eq=False)
class Kernel:
    """An ARD kernel. Called with (n, d) and (m, d) points, it returns the (n, m) covariances.

    Args:
        kind: "matern52", "matern32" or "se".
        variance: Signal variance, in squared units of the target.
        lengthscales: (d,) in units of the inputs.

    Raises:
        InvalidInput: If the kind is unknown, or a number is not positive and finite.

    Example:
        >>> Kernel("se", 2.0, [0.5])(np.array([[0.0]]), np.array([[0.0], [0.5]])).round(3).tolist()
        [[2.0, 1.213]]
    """

    kind: KernelName
    variance: float  # in squared units of the target
    lengthscales: Array  # (d,), in units of the inputs

    def __post_init__(self) -> None:
        scales = np.array(self.lengthscales, dtype=np.float64)
        scales.setflags(write=False)
        object.__setattr__(self, "lengthscales", scales)
        check_kind(self.kind)
        if scales.ndim != 1 or not bool(np.all((scales > 0) & np.isfinite(scales))):
            raise InvalidInput(
                f"lengthscales={self.lengthscales} is not a vector of positive finite numbers. Give one."
            )
        if not 0 < self.variance < np.inf:
            raise InvalidInput(f"The kernel's variance is {self.variance}. Give a positive finite number.")

    def __call__(self, left: Array, right: Array | None = None) -> Array:
        """Return covariances (n, m) of the rows of left (n, d) and right (m, d), or of left and itself."""
        return self._blocks(left, right, 1)[0]

    def with_slope(self, left: Array, right: Array) -> tuple[Array, Array]:
        """Return covariances and variance * h, both (n, m), for `input_gradient`."""
        covariance, slope = self._blocks(left, right, 2)
        return covariance, slope

    def _blocks(self, left: Array, right: Array | None, count: int) -> list[Array]:
        """Return variance times the first `count` of rho and h, computed by blocks of rows that stay in the cache."""
        other = left if right is None else right
        centre = other.mean(axis=0) if len(other) else 0.0
        a, b = (left - centre) / self.lengthscales, (other - centre) / self.lengthscales
        filled = [np.empty((len(a), len(b))) for _ in range(count)]
        for rows in row_blocks(len(a), len(b)):
            squared = squared_distances(a[rows], b)
            if right is None:
                squared[:, rows.start :].flat[:: len(b) - rows.start + 1] = 0.0
            for whole, part in zip(filled, profile(self.kind, squared), strict=False):
                np.multiply(part, self.variance, out=whole[rows])
        return filled


def row_blocks(rows: int, columns: int) -> list[slice]:
    """Return slices of a (rows, columns) matrix of about 2^15 entries each, which stay in the cache."""
    height = max(32_768 // max(columns, 1), 8)
    return [slice(first, min(first + height, rows)) for first in range(0, rows, height)]


def squared_distances(left: Array, right: Array) -> Array:
    """Return squared Euclidean distances (n, m) between the rows of left (n, d) and right (m, d).

    By |a|^2 + |b|^2 - 2 a.b, one matrix product. Values that round below zero are set to 0, because their roots would
    be NaN. Both sides should be near the origin, where the rounding is smallest.
    """
    squared = (-2.0 * left) @ right.T
    squared += np.einsum("ij,ij->i", left, left)[:, None]
    squared += np.einsum("ij,ij->i", right, right)
    return np.maximum(squared, 0.0, out=squared)


def profile(kind: KernelName, squared: Array) -> tuple[Array, Array]:
    """Return correlation rho and slope h = -rho'(s)/s at squared scaled distances, in the shape of `squared`.

    se exp(-s^2/2); matern32 (1 + a) exp(-a), a = sqrt(3) s; matern52 (1 + a + a^2/3) exp(-a), a = sqrt(5) s.
    """
    if kind == "se":
        correlation = np.exp(-0.5 * squared)
        return correlation, correlation
    scaled = np.sqrt((3.0 if kind == "matern32" else 5.0) * squared)
    decay = np.exp(-scaled)
    scaled += 1.0
    if kind == "matern32":
        return scaled * decay, 3.0 * decay
    slope = scaled * decay
    slope *= 5.0 / 3.0
    scaled += (5.0 / 3.0) * squared
    scaled *= decay
    return scaled, slope


def input_gradient(weights: Array, points: Array, data: Array, lengthscales: Array) -> Array:
    """Return sum_i weights_mi * -(points_m - data_i) / lengthscales^2, (m, d).

    With weights (m, n) = w_mi * variance * h_mi it is the gradient of sum_i w_mi k(points_m, data_i) by points_m.
    """
    pulled = weights @ data - weights.sum(axis=1)[:, None] * points
    return np.asarray(pulled / lengthscales**2)


def check_kind(kind: str) -> None:
    if kind not in get_args(KernelName):
        raise InvalidInput(f"There is no kernel {kind!r}. Give one of {', '.join(get_args(KernelName))}.")


def as_points(points: ArrayLike, dim: int | None = None, name: str = "X") -> Array:
    """Return points as a float64 (n, d) array, checked: two axes, d columns if given, finite, at most 1e6 in size."""
    try:
        array = np.asarray(points, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} is not an array of numbers (points, coordinates): {error}. Give one.") from error
    wanted = "d" if dim is None else str(dim)
    if array.ndim != 2 or (dim is not None and array.shape[1] != dim):
        raise InvalidInput(f"{name} has shape {array.shape}. Give shape (n, {wanted}): one row per point.")
    if not bool(np.all(np.abs(array) <= 1e6)):
        raise InvalidInput(f"{name} has NaN, infinity or sizes above 1e6. Encode configurations into the unit cube.")
    return array
