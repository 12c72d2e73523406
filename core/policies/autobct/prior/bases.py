"""Basis functions on the control cube [0, 1]^p: centred powers, or B-splines.

Powers are the paper's (AutoBCT, appendix D): 1, then (u_i - 1/2)^k for each coordinate, then, if asked for, the
products (u_i - 1/2)(u_j - 1/2) of each pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import numpy as np
from scipy.interpolate import BSpline

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput


class Basis(Protocol):
    """Functions of a control."""

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds it; of a function of the user's, its name."""
        ...

    def __call__(self, points: Array) -> Array:
        """(g, J) at points (g, p)."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Powers:
    """Centred powers up to `degree` of each coordinate, and the products of pairs."""

    degree: int = 3
    products: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or self.degree < 0:
            raise InvalidInput(f"Powers(degree={self.degree!r}): a whole number, at least 0")

    @property
    def spec(self) -> dict[str, Any]:
        """JSON."""
        return {"basis": "powers", "degree": self.degree, "products": self.products}

    def __call__(self, points: Array) -> Array:
        """1, the powers of the first coordinate, of the second, ..., then products."""
        v = points - 0.5
        powers = [v[:, i] ** k for i in range(v.shape[1]) for k in range(1, self.degree + 1)]
        pairs = combinations(range(v.shape[1]), 2) if self.products else ()
        products = [v[:, i] * v[:, j] for i, j in pairs]
        return np.stack([np.ones(len(v)), *powers, *products], axis=1)


@dataclass(frozen=True)
class Splines:
    """1 and, for each coordinate, cubic B-splines on `pieces` equal pieces of [0, 1], the first left out.

    With the first they would add up to 1, so that the constant was counted twice.
    """

    pieces: int = 4
    degree: int = 3

    def __post_init__(self) -> None:
        if self.pieces < 1 or self.degree < 1:
            raise InvalidInput(f"Splines(pieces={self.pieces}, degree={self.degree}): both at least 1")

    @property
    def spec(self) -> dict[str, Any]:
        """JSON."""
        return {"basis": "splines", "pieces": self.pieces, "degree": self.degree}

    def __call__(self, points: Array) -> Array:
        """The constant, then the splines of each coordinate."""
        ends = [0.0] * self.degree, [1.0] * self.degree
        knots = np.concatenate([ends[0], np.linspace(0.0, 1.0, self.pieces + 1), ends[1]])
        inside = np.clip(points, 0.0, 1.0)
        columns = [
            BSpline.design_matrix(inside[:, i], knots, self.degree).toarray()[:, 1:]
            for i in range(points.shape[1])
        ]
        return np.hstack([np.ones((len(points), 1)), *columns])


def basis_from(spec: Mapping[str, Any]) -> Basis:
    """The basis with this spec. Raises InvalidInput for a function of the user's, which a spec only names."""
    options = {name: value for name, value in spec.items() if name != "basis"}
    if spec.get("basis") == "powers":
        return Powers(**options)
    if spec.get("basis") == "splines":
        return Splines(**options)
    raise InvalidInput(f"the basis {spec.get('basis')!r} is a function: build the prior in your program")


def default_basis(dim: int) -> Basis:
    """The paper's: cubic in 1-D, quartic with products in 2-D; additive quadratics beyond."""
    if dim <= 1:
        return Powers(3)
    return Powers(4, products=True) if dim == 2 else Powers(2)
