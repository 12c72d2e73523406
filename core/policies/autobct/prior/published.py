"""The priors of the paper's eight examples (AutoBCT, appendix D.1 to D.8), ready to use by name.

In D.2 and D.3 times are divided by 7.5, as (4.22) says and the tables confirm (the appendix prints 1.5). Costs are
in seconds: where the paper counts minutes they are sixty times its numbers. In D.4 the appendix has its coefficients
twice, for powers of u - 0.5 and, written out, for powers of u; they are taken for the former, as in all the others.
"""

from __future__ import annotations

import numpy as np

from haltune.errors import InvalidInput

from .bases import Powers
from .beliefs import Prior, belief

_ONES = np.ones(4)
_WIDE = np.array([0.64, 4.0, 4.0, 4.0])
_IDC, _IDC_MINUTES = (0.45, 0.8), (0.0, 7.5)
_FRAUD = np.diag([4.0, 0.6, 0.62, 0.65, 0.70, 0.6, 0.62, 0.65, 0.70, 0.6])
_FRAUD[0, 1:] = _FRAUD[1:, 0] = -0.1
_QUARTIC = np.array([0.6] * 8 + [0.001, 0.6])

# score mean and covariance, cost mean and covariance, score noise, raw score and cost (s or min) at 0 and 1
_LINES = {
    "D.1": ((0.4, 0.1, -0.2, 0.1), _ONES, (1, 1, 2, 2), _WIDE, 0.05, (0.5, 1.0), (0.0, 0.6 / 60)),
    "D.2": ((0.4, -0.1, -0.2, -0.1), _ONES, (1, -1, 2, -2), _WIDE, 0.15, _IDC, _IDC_MINUTES),
    "D.3": (
        (0.4, -0.1, -0.8, -0.1),
        _ONES,
        (0.48, 0, 0, 0),
        np.array([0.64, 0, 0, 0]),
        0.15,
        _IDC,
        _IDC_MINUTES,
    ),
    "D.4": (
        (0.4, 0.3, -0.4, 0, 0, 0.2, -0.4, 0, 0, 0),
        np.full(10, 0.6),
        (3, 0, 0, 0, 0, -3.5, 0.45, 0, 0.5, 0),
        _QUARTIC,
        0.15,
        _IDC,
        _IDC_MINUTES,
    ),
    "D.5": ((0.5, 0.3, -0.2, 0), _ONES, (1.4, 4, 6, 6), _ONES, 0.05, (0.6, 0.8), (0.035, 5.0)),
    "D.6": ((0.9, 0.4, -2, 0), _ONES, (0.8, 1.5, 0, 0), _ONES, 0.15, (0.0, 1.0), (0.1, 12.0)),
    "D.7": ((0.9, 0, -2, 0), _ONES, (1.1, 0.6, 0, 0), _ONES, 0.15, (0.0, 0.75), (5.0, 25.0)),
    "D.8": (
        (0.8, 0, -0.8, 0, 0, 0, -0.8, 0, 0, 0),
        _FRAUD,
        (1.325, 0.75, 0.25, 0, 0, 0.75, 0.25, 0, 0, 0),
        np.ones(10),
        0.15,
        _IDC,
        _IDC_MINUTES,
    ),
}
PRESETS = tuple(_LINES)


def preset(name: str) -> Prior:
    """A prior of the paper. Raises InvalidInput for a name that is none of `PRESETS`."""
    if name not in _LINES:
        raise InvalidInput(f"there is no prior {name!r}: the paper's are {', '.join(PRESETS)}")
    score, score_cov, cost, cost_cov, noise, score_map, minutes = _LINES[name]
    basis = Powers(3) if len(score) == 4 else Powers(4, products=True)
    seconds = (60.0 * minutes[0], 60.0 * minutes[1])
    return Prior(belief(score, score_cov), belief(cost, cost_cov), basis, noise, 0.1, score_map, seconds)
