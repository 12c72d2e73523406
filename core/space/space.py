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
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array, Mask
from haltune.errors import InvalidSpace
from haltune.errors.foreign_words import KnowsArguments

from .constraints import Constraints, Predicate, constraints_from
from .cube.enumeration import MOST_ROWS, configurations, hull_size, is_product, mesh_axes
from .cube.layout import layout_of
from .cube.tables import Config, cube_points, read_configs, read_cube, write_configs, write_cube
from .cube.widening import lacking, widened
from .differences import space_differences
from .domains import Domain, domain_from
from .parameters import Parameters, domains_from
from .sampling import spread_out, spread_out_up_to

_KEYS = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


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
        self.parameters: Mapping[str, Domain] = MappingProxyType(domains_from(parameters))
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

        Args:
            config: A value for each active parameter; others, and constants, may be left out.

        Raises:
            InvalidSpace: When it is not of the space. Constraints are left to `contains`.

        Example:
            >>> Space({"lr": Float(1e-4, 1e-1, log=True), "optimizer": "adam"}).canonical({"lr": 0.01})
            {'lr': 0.01, 'optimizer': 'adam'}
        """
        return self.canonical_many([config])[0]

    def canonical_many(self, configs: Sequence[Mapping[str, Any]]) -> list[Config]:
        """`canonical` of each."""
        return write_configs(self._layout, read_configs(self._layout, configs))

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration, as `canonical` takes it, is of the space and passes its constraints."""
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
        """The point of a configuration in the unit cube; `decode` brings it back exactly.

        Args:
            config: As `canonical` takes it.

        Returns:
            (dim,) coordinates from 0 to 1, inactive parameters in the middle.

        Raises:
            InvalidSpace: When it is not of the space.

        Example:
            >>> Space({"dropout": Float(0.0, 0.5)}).encode({"dropout": 0.125}).tolist()
            [0.25]
        """
        return self.encode_many([config]).reshape(self.dim)

    def encode_many(self, configs: Sequence[Mapping[str, Any]]) -> Array:
        """(n, dim) `encode` of each."""
        return write_cube(self._layout, read_configs(self._layout, configs))

    def decode(self, u: ArrayLike) -> Config:
        """The configuration at a point of the unit cube.

        Args:
            u: (dim,) coordinates; those outside [0, 1] are moved to the nearer end.

        Raises:
            InvalidInput: For another shape, or NaN.

        Example:
            >>> Space({"layers": Int(1, 4), "act": Choice(["relu", "gelu"])}).decode([0.9, 0.2, 0.7])
            {'layers': 4, 'act': 'gelu'}
        """
        return self.decode_many(np.asarray(u, dtype=np.float64)[None])[0]

    def decode_many(self, u: ArrayLike) -> list[Config]:
        """`decode` of each row of (n, dim); coordinates outside [0, 1] are moved to the nearer end."""
        return write_configs(self._layout, read_cube(self._layout, cube_points(u, self.dim)))

    def sample(self, n: int, rng: np.random.Generator, design: str = "uniform") -> list[Config]:
        """Configurations spread over the unit cube; what a constraint or crossed bounds refuse is passed over.

        Args:
            n: How many.
            rng: What draws them, such as np.random.default_rng(0).
            design: "uniform", independent points; "sobol", that fill the space evenly; or "lhs", a Latin
                hypercube. Default: "uniform".

        Raises:
            InvalidSpace: When too few points pass.
            InvalidInput: For another design.

        Example:
            >>> [c["layers"] for c in Space({"layers": Int(1, 4)}).sample(4, np.random.default_rng(0), "lhs")]
            [1, 3, 2, 4]
        """
        return spread_out(n, rng, design, len(self._layout.coordinates), self._passing, self._named)

    def sample_up_to(self, n: int, rng: np.random.Generator, design: str = "uniform") -> list[Config]:
        """`sample`, content with fewer where little passes: of some 20 n points, at least one configuration."""
        found = spread_out_up_to(n, rng, design, len(self._layout.coordinates), self._passing)
        return found or self.sample(1, rng)

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
        """The configurations of a mesh, the last parameter fastest: of choices and short ranges all values.

        Args:
            levels: Values of each continuous parameter, along a log scale in equal ratios; at most as many of an Int.
            most: Nodes that it may have. Default: 100,000.

        Raises:
            InvalidInput: For levels < 2, and for more nodes.

        Example:
            >>> [c["lr"] for c in Space({"lr": Float(0.01, 1.0, log=True)}).mesh(3)]
            [0.01, 0.1, 1.0]
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
        return space_differences(self.parameters, self._named, other.parameters, other._named)

    @property
    def _named(self) -> list[str]:
        return [constraint.name for constraint in self.constraints]

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

    def _passing(self, points: Array) -> list[Config]:
        """One design coordinate a parameter, so that a one-hot choice is balanced too."""
        parts = [p.axis.spread(points[:, i]) for i, p in enumerate(self._layout.coordinates)]
        table = read_cube(self._layout, np.hstack([np.empty((len(points), 0)), *parts]))
        return [c for c in write_configs(self._layout, table.rows(table.valid)) if self._allows(c)]
