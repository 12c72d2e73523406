"""Levels: how precisely a configuration is measured, at what cost.

For deep learning a level is what can be chosen without bias: the number of seeds, of cross-validation folds, of
validation samples. Fewer epochs bias the value, and are no level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

_PRIOR = 2.0  # degrees of freedom that the guess from costs counts for, against repeats


@dataclass(frozen=True)
class Level:
    """One way of measuring: how precisely, and at what cost.

    Args:
        name: what `trial.level` tells the training, such as "3 seeds".
        noise: variance of one value around the truth, squared units of the metric. Default: None, estimated from
            repeats.
        cost: relative to the other levels; it multiplies the configuration's own cost. Default: 1.

    Raises:
        InvalidInput: for a name that is no text, and for a noise or a cost that cannot be.

    Example:
        >>> from haltune import Level
        >>> from haltune.policies import TruVaR
        >>> policy = TruVaR(threshold=0.9, levels=[Level("1 seed", cost=1), Level("5 seeds", cost=5)])
        >>> [level["name"] for level in policy.spec["levels"]]
        ['1 seed', '5 seeds']
    """

    name: str
    noise: float | None = None
    cost: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInput(f"Level({self.name!r}): its name is a text, such as '3 seeds'")
        if self.noise is not None and not (self.noise >= 0.0 and math.isfinite(self.noise)):
            raise InvalidInput(
                f"Level({self.name!r}, noise={self.noise!r}): a variance, 0 or more, or None to estimate it"
            )
        if not (self.cost > 0.0 and math.isfinite(self.cost)):
            raise InvalidInput(f"Level({self.name!r}, cost={self.cost!r}): a positive number")


ONLY = Level("only")


def levels_from(given: Iterable[Level | Mapping[str, Any]]) -> tuple[Level, ...]:
    """Levels, as given or from their JSON. Raises InvalidInput when two share a name."""
    try:
        found = tuple(level if isinstance(level, Level) else Level(**level) for level in given)
    except TypeError as error:
        raise InvalidInput(f"levels={given!r}: a list of Level('3 seeds', noise=..., cost=3)") from error
    if len({level.name for level in found}) < len(found):
        raise InvalidInput(f"two levels share a name: {', '.join(level.name for level in found)}")
    return found


def levels_to_json(levels: Iterable[Level]) -> list[dict[str, Any]]:
    """The inverse of `levels_from`."""
    return [asdict(level) for level in levels]


def noises(levels: Sequence[Level], repeats: Mapping[str, Sequence[Array]], overall: float) -> Array:
    """(k,) variances of the levels: those given, and estimates of the others.

    repeats: level name -> values of each configuration measured there more than once. overall: what a fit says
    of the noise of all values together. The guess that a mean of c runs costs c and has a c-th of the variance,
    overall at the mean cost, counts as two repeats beside those there are.
    """
    typical = float(np.mean([level.cost for level in levels]))
    return np.array(
        [_noise(level, repeats.get(level.name, ()), overall * typical / level.cost) for level in levels]
    )


def _noise(level: Level, groups: Sequence[Array], guess: float) -> float:
    if level.noise is not None:
        return level.noise
    squares = sum(float(np.sum((group - group.mean()) ** 2)) for group in groups)
    freedom = sum(len(group) - 1 for group in groups)
    return (_PRIOR * guess + squares) / (_PRIOR + freedom)
