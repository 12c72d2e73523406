"""Shared parts of the figures of TruVaR: fields over a mesh, as areas above a few values."""

from collections.abc import Sequence

import numpy as np
from drawn import Panel


def field(panel: Panel, values: Sequence[float], side: int, cuts: Sequence[float], name: str = "three") -> None:
    """Draw the areas above each of these values, darker above the next; values (side * side,), the first axis slow.

    Neighbours along the first axis are one rectangle: a file of 2,500 of them would be large.
    """
    mesh = np.asarray(values).reshape(side, side)
    across, up = (np.linspace(*ends, side + 1) for ends in (panel.x, panel.y))
    for cut in cuts:
        above = np.pad((mesh >= cut).astype(int), ((1, 1), (0, 0)))
        for j in range(side):
            turns = np.flatnonzero(np.diff(above[:, j])).reshape(-1, 2)
            for begin, end in turns:
                panel.cell((across[begin], across[end]), (up[j], up[j + 1]), name, 0.8 / len(cuts))
