"""The controls that AutoBCT chooses from: configurations of a space, and where they lie in the cube."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput
from haltune.space import Space

from .prior.beliefs import Prior
from .value.valuation import nested

MOST_COORDINATES = 8  # coordinates: beyond, too little is learnt of any before the search ends
_LEVELS = {1: 33, 2: 7}  # of a grid
_SCATTERED = 96  # controls where there are more than two coordinates


@dataclass(frozen=True, eq=False)
class Controls:
    """g of them, spread evenly; the first few are spread evenly too."""

    configs: Sequence[dict[str, Any]]
    points: Array  # (g, p)


def check_space(space: Space) -> None:
    """Raises InvalidInput for a space of too many coordinates."""
    if space.dim > MOST_COORDINATES:
        raise InvalidInput(
            f"AutoBCT weighs score against cost over at most {MOST_COORDINATES} coordinates (a Choice without order "
            f"counts one for each option), this space has {space.dim}: its beliefs are additive, and a search so short "
            "learns little of each. Fix some parameters, or use BOBOS() or GPUCB() with a Budget"
        )


def check_prior(prior: Prior, space: Space) -> None:
    """Raises InvalidInput for a prior of another space."""
    if prior.space is not None and prior.space != space.to_json():
        raise InvalidInput(
            "AutoBCT(prior=...) was learnt from studies of another space: learn it from studies of this one; if it "
            "fits all the same, say so by dataclasses.replace(prior, space=None)"
        )


def controls_of(space: Space) -> Controls:
    """A grid in one or two coordinates, scattered points beyond, all configurations of a small space."""
    configs = _configs(space)
    points = space.encode_many(configs)
    order = nested(points) if points.shape[1] else np.arange(len(points))
    return Controls([configs[i] for i in order], points[order])


def _configs(space: Space) -> list[dict[str, Any]]:
    if space.size is not None and space.size <= 49:
        return space.enumerate()
    if space.dim in _LEVELS:
        axes = np.meshgrid(*[np.linspace(0.0, 1.0, _LEVELS[space.dim])] * space.dim, indexing="ij")
        found = space.decode_many(np.stack([axis.ravel() for axis in axes], axis=1))
        passing = {space.key_of_canonical(c): c for c in found if space.contains(c)}
        if len(passing) >= 9:
            return list(passing.values())
    scattered = space.sample_up_to(_SCATTERED, np.random.default_rng(0), design="sobol")
    return list({space.key_of_canonical(c): c for c in scattered}.values())
