"""Designs: points that fill the unit cube, drawn in batches that stay balanced.

`uniform`  independent points
`sobol`    scrambled Sobol points: each batch goes on where the last one ended
`lhs`      Latin hypercubes, one a batch
"""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

DESIGNS = ("uniform", "sobol", "lhs")
_LARGEST_BATCH = 16_384


def batches(design: str, n: int, width: int, rng: np.random.Generator) -> Iterator[Array]:
    """Endless batches of points, (size, width): the first at least n, the next as large as all before.

    So the number of Sobol points stays a power of two; only then are they balanced. Batches grow up to
    16,384. Raises InvalidInput for an unknown design.
    """
    if design not in DESIGNS:
        raise InvalidInput(
            f"The design {design!r} is unknown. Choose one of {', '.join(map(repr, DESIGNS))}."
        )
    return _batches(design, n, width, rng)


def _batches(design: str, n: int, width: int, rng: np.random.Generator) -> Iterator[Array]:
    size = 1 << max(n - 1, 0).bit_length() if design == "sobol" else n
    engine = None if design == "uniform" or width == 0 else _engine(design, width, rng)
    first, total = size, 0
    while True:
        yield rng.random((size, width)) if engine is None else engine.random(size)
        total += size
        size = min(total, max(_LARGEST_BATCH, first))


def _engine(design: str, width: int, rng: np.random.Generator) -> Any:
    from scipy.stats import qmc  # here: it takes half a second, and only designs need it

    kind: Any = qmc.Sobol if design == "sobol" else qmc.LatinHypercube
    keyword = "rng" if "rng" in inspect.signature(kind).parameters else "seed"  # renamed in SciPy 1.15
    return kind(width, **{keyword: rng})
