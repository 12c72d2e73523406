"""Space: what can be configured, and its map to the unit cube and back, which is exact.

    space = Space({
        "lr": Float(1e-4, 1e-1, log=True),
        "kernel": Choice(["rbf", "poly"]),
        "degree": Int(2, 5, when={"kernel": "poly"}),   # only where kernel is "poly"
        "k2": Int(5, 20), "k1": Int(5, "k2"),           # k1 up to k2
        "optimizer": "adam",                            # a constant
    }, constraints=[lambda c: c["k1"] * c["k2"] < 200])

A canonical configuration holds its active parameters, as plain Python values on the grids of the
space (`cube.decimals`), in the order of the space. For these decode(encode(c)) == c. Every point of the cube
decodes to one, except where bounds cross or a constraint fails; these `contains` tells apart.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array, Mask
from haltune.errors import InvalidInput, InvalidSpace
from haltune.foreign_words import KnowsArguments

from .constraints import Constraints, Predicate, constraints_from
from .cube.enumeration import MOST_ROWS, configurations, hull_size, is_product, mesh_axes
from .cube.layout import layout_of
from .cube.tables import Config, read_configs, read_cube, write_configs, write_cube
from .cube.widening import lacking, widened
from .designs import batches
from .domains import Domain, domain_from
from .parameters import as_domain

_TRIES = 100_000  # points that sampling tries for each one found, at least, before it gives up

_KEYS = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

Parameters = Mapping[str, Any] | Iterable[tuple[str, Any]]


class Space(KnowsArguments):
    """What can be configured: parameters by name, and predicates that configurations must pass.

    Args:
        parameters: {name: domain}, or pairs of them. A plain value is a Constant.
        constraints: Functions of a configuration that are true where it is allowed, {name: function}, or pairs
            (name, function). A parameter that is not active is absent from what they are given. Default: none.

    Raises:
        InvalidSpace: When the parameters do not make a space, such as a bound that names no parameter, or two
            constraints have one name.

    Example:
        >>> space = Space({"lr": Float(1e-4, 1e-1, log=True), "layers": Int(1, 4), "act": Choice(["relu", "gelu"])})
        >>> space.names, space.dim
        (('lr', 'layers', 'act'), 4)
        >>> space.contains({"lr": 0.01, "layers": 5, "act": "relu"})
        False
    """

    def __init__(self, parameters: Parameters, constraints: Constraints = ()) -> None:
        self.parameters: Mapping[str, Domain] = MappingProxyType(_domains(parameters))
        self.constraints = constraints_from(constraints)
        self._layout = layout_of(self.parameters)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in the order given."""
        return self._layout.names

    @property
    def dim(self) -> int:
        """Coordinates of the unit cube: one each for numbers and ordered choices, one an option else."""
        return self._layout.dim

    @property
    def columns(self) -> dict[str, slice]:
        """The coordinates of each parameter, as columns of points in the cube; none for constants."""
        return {p.name: p.columns for p in self._layout.coordinates}

    @cached_property
    def continuous(self) -> Mask:
        """(dim,) true for the coordinates of Floats; the others are steps."""
        flags = [np.full(p.axis.width, p.axis.continuous) for p in self._layout.coordinates]
        mask = np.concatenate([np.zeros(0, dtype=np.bool_), *flags])
        mask.flags.writeable = False
        return mask

    def canonical(self, config: Mapping[str, Any]) -> Config:
        """The configuration in canonical form: floats on their grid, constants filled in, options as given.

        Raises InvalidSpace if it is not of the space; constraints are left to `contains`.
        """
        return self.canonical_many([config])[0]

    def canonical_many(self, configs: Sequence[Mapping[str, Any]]) -> list[Config]:
        """`canonical` of each."""
        return write_configs(self._layout, read_configs(self._layout, configs))

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Whether the configuration is of the space and passes its constraints."""
        try:
            canonical = self.canonical(config)
        except InvalidSpace:
            return False
        return self._allows(canonical)

    def key(self, config: Mapping[str, Any]) -> str:
        """One text for each configuration: equal configurations, and only these, have equal keys."""
        return self.keys([config])[0]

    @staticmethod
    def key_of_canonical(config: Mapping[str, Any]) -> str:
        """`key` of a configuration that is known to be canonical, or was read from JSON: without the checks."""
        return _KEYS.encode(config)

    def keys(self, configs: Sequence[Mapping[str, Any]]) -> list[str]:
        """`key` of each, much faster than one by one."""
        return [self.key_of_canonical(c) for c in self.canonical_many(configs)]

    def encode(self, config: Mapping[str, Any]) -> Array:
        """(dim,) the configuration's point, inactive parameters in the middle. Raises InvalidSpace."""
        return self.encode_many([config]).reshape(self.dim)

    def encode_many(self, configs: Sequence[Mapping[str, Any]]) -> Array:
        """(n, dim) `encode` of each."""
        return write_cube(self._layout, read_configs(self._layout, configs))

    def decode(self, u: ArrayLike) -> Config:
        """The configuration at a point (dim,) of the cube. Raises InvalidInput for a bad shape or NaN."""
        return self.decode_many(np.asarray(u, dtype=np.float64)[None])[0]

    def decode_many(self, u: ArrayLike) -> list[Config]:
        """`decode` of each row of (n, dim); coordinates outside [0, 1] are moved to the nearer end."""
        return write_configs(self._layout, read_cube(self._layout, self._points(u)))

    def sample(self, n: int, rng: np.random.Generator, design: str = "uniform") -> list[Config]:
        """n configurations spread over the cube by a design: "uniform", "sobol" or "lhs".

        What fails a constraint, or has crossed bounds, is passed over. Raises InvalidSpace when too few pass.
        """
        found, tried = self._drawn(n, rng, design, max(_TRIES, 100 * n))
        if len(found) < n:
            raise InvalidSpace(self._scarce(n, len(found), tried))
        return found

    def sample_up_to(self, n: int, rng: np.random.Generator, design: str = "uniform") -> list[Config]:
        """`sample`, content with fewer where little passes: of some 20 n points, at least one configuration."""
        found, _ = self._drawn(n, rng, design, 20 * n)
        return found or self.sample(1, rng)

    def _drawn(
        self, n: int, rng: np.random.Generator, design: str, patience: int
    ) -> tuple[list[Config], int]:
        """At most n configurations that pass, of `patience` points or somewhat more; and the points tried."""
        found: list[Config] = []
        tried = 0
        for points in batches(design, n, len(self._layout.coordinates), rng):
            if len(found) >= n or tried >= patience:
                break
            found += self._passing(points)
            tried += len(points)
        return found[:n], tried

    @cached_property
    def size(self) -> int | None:
        """The number of configurations, where finite and cheap to count, else None."""
        product = hull_size(self._layout)
        if product is None or (is_product(self._layout) and not self.constraints):
            return product
        return len(self.enumerate()) if product <= MOST_ROWS else None

    def enumerate(self) -> list[Config]:
        """Every configuration, the last parameter fastest. Raises InvalidSpace beyond 100,000 of them."""
        return [config for config in configurations(self._layout) if self._allows(config)]

    def mesh(self, levels: int, most: int = MOST_ROWS) -> list[Config]:
        """The configurations of a mesh: `levels` values of each continuous parameter, at most as many of an Int.

        Of choices and short ranges all values; along a log scale in equal ratios. The last parameter is fastest.
        Raises InvalidInput when levels < 2 or the mesh has more than `most` nodes.
        """
        axes = mesh_axes(self._layout, levels, most)
        nodes = np.meshgrid(*axes, indexing="ij") if axes else []
        points = np.stack([node.ravel() for node in nodes], axis=1) if nodes else np.empty((1, 0))
        found = {self.key_of_canonical(config): config for config in self._passing(points)}
        return list(found.values())

    def to_json(self) -> dict[str, Any]:
        """The space as JSON; constraints by their names."""
        parameters = [{"name": name, **domain.spec()} for name, domain in self.parameters.items()]
        return {"parameters": parameters, "constraints": [c.name for c in self.constraints]}

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], constraints: Mapping[str, Predicate] | None = None
    ) -> "Space":
        """The inverse of `to_json`. Raises InvalidSpace unless its constraints are supplied."""
        supplied = dict(constraints or {})
        if set(supplied) != set(data["constraints"]):
            raise InvalidSpace(
                f"The space was recorded with the constraints {sorted(data['constraints'])}; supplied were "
                f"{sorted(supplied)}. Functions are kept by name only: pass constraints={{name: function}}."
            )
        pairs = [(spec["name"], domain_from(spec)) for spec in data["parameters"]]
        return cls(pairs, [(name, supplied[name]) for name in data["constraints"]])

    def lacking(self, older: "Space") -> list[str]:
        """What keeps a search in another space from going on in this one, in words; nothing when this contains it."""
        same = [c.name for c in self.constraints] == [c.name for c in older.constraints]
        return lacking(self._layout, older._layout) + ([] if same else ["the constraints are others"])

    def widening(self, older: "Space") -> "Space":
        """This space, which `older` was widened to: in it the configurations of that one keep their very values."""
        found = copy(self)
        found._layout = widened(self._layout, older._layout)
        return found

    def diff(self, other: "Space") -> list[str]:
        """How `other` differs from this space, a sentence for each difference; empty when they are equal."""
        mine, theirs = self.parameters, other.parameters
        said = [f"The parameter {n!r} is gone; it was {mine[n]!r}." for n in mine if n not in theirs]
        said += [f"The parameter {n!r} is new: {theirs[n]!r}." for n in theirs if n not in mine]
        shared = [n for n in mine if n in theirs]
        said += [f"{n!r} was {mine[n]!r} and is {theirs[n]!r}." for n in shared if mine[n] != theirs[n]]
        if shared != [n for n in theirs if n in mine]:
            said.append(f"The order was {', '.join(mine)} and is {', '.join(theirs)}.")
        old, new = [c.name for c in self.constraints], [c.name for c in other.constraints]
        said += [f"The constraint {name!r} is gone." for name in old if name not in new]
        said += [f"The constraint {name!r} is new." for name in new if name not in old]
        return said

    def __reduce__(self) -> tuple[Any, ...]:
        return Space, (list(self.parameters.items()), [(c.name, c.predicate) for c in self.constraints])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and not self.diff(other)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(self.parameters.items()))

    def __repr__(self) -> str:
        lines = [f"    {name!r}: {domain!r}," for name, domain in self.parameters.items()]
        named = f", constraints={[c.name for c in self.constraints]}" if self.constraints else ""
        return "\n".join(["Space({", *lines, "}" + named + ")"])

    def _allows(self, canonical: Config) -> bool:
        return all(constraint.allows(canonical) for constraint in self.constraints)

    def _points(self, u: ArrayLike) -> Array:
        points = np.asarray(u, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != self.dim:
            raise InvalidInput(
                f"Points of this space have {self.dim} coordinates; got the shape {points.shape}."
            )
        if np.isnan(points).any():
            raise InvalidInput("A point of the unit cube holds NaN. Coordinates are numbers from 0 to 1.")
        return np.clip(points, 0.0, 1.0)

    def _passing(self, points: Array) -> list[Config]:
        """One design coordinate a parameter, so that a one-hot choice is balanced too."""
        parts = [p.axis.spread(points[:, i]) for i, p in enumerate(self._layout.coordinates)]
        table = read_cube(self._layout, np.hstack([np.empty((len(points), 0)), *parts]))
        return [c for c in write_configs(self._layout, table.rows(table.valid)) if self._allows(c)]

    def _scarce(self, n: int, found: int, tried: int) -> str:
        named = ", ".join(repr(c.name) for c in self.constraints) or "bounds that cross"
        most = "nothing" if found == 0 else f"only {found:,} of {n:,} wanted"
        return (
            f"Of {tried:,} points of the space, {most} passed ({named}). Loosen this, or say it with bounds "
            f"that name other parameters and conditions, which need no luck."
        )


def _domains(parameters: Parameters) -> dict[str, Domain]:
    """By name, checked one by one."""
    pairs = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    found: dict[str, Domain] = {}
    for pair in pairs:
        name, value = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (pair, math.nan)
        if not isinstance(name, str) or not name or name != name.strip():
            raise InvalidSpace(
                f"A space maps names (text without spaces around it) to domains; got {name!r}."
            )
        if name in found:
            raise InvalidSpace(
                f"The parameter {name!r} is given twice. Names must differ: rename or drop one."
            )
        found[name] = as_domain(name, value)
    return found
