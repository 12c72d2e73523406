"""Space: the parameters of a configuration, and their exact map to the unit cube and back.

    space = Space({
        "lr": Float(1e-4, 1e-1, log=True),
        "kernel": Choice(["rbf", "poly"]),
        "degree": Int(2, 5, when={"kernel": "poly"}),   # only if kernel is "poly"
        "k2": Int(5, 20), "k1": Int(5, "k2"),           # k1 is at most k2
        "optimizer": "adam",                            # a constant
    }, constraints=[lambda c: c["k1"] * c["k2"] < 200])

A canonical configuration contains its active parameters, as plain Python values on the grids of the space (`cube`), in
the order of the space. For canonical configurations, decode(encode(c)) == c. Every point of the cube decodes to one,
unless bounds cross or a constraint fails; `contains` detects these cases.

Constraints are named predicates of a configuration. A space can check them but cannot solve them. Samples are points of
a design that fills the unit cube, in balanced batches: `uniform`, independent points; `sobol`, scrambled Sobol points,
where each batch continues the previous one; `lhs`, one Latin hypercube per batch.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array, Mask
from haltune.errors import InvalidInput, InvalidSpace
from haltune.hints import KnowsArguments

from . import cube
from .cube import Config, Table
from .domains import Domain, Parameters, domain_from, domains_from

Predicate = Callable[[Config], bool]
Constraints = Iterable[Predicate | tuple[str, Predicate]] | Mapping[str, Predicate]
DESIGNS = ("uniform", "sobol", "lhs")
_LARGEST_BATCH = 16_384
_TRIES = 100_000  # at least so many points are tried before sampling gives up
_KEYS = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class NamedPredicate:
    name: str
    predicate: Predicate

    def allows(self, config: Config) -> bool:
        """Return whether a canonical configuration passes. Raises InvalidSpace if the predicate raises."""
        try:
            return bool(self.predicate(dict(config)))
        except Exception as error:
            raise InvalidSpace(
                f"The constraint {self.name!r} raised {type(error).__name__}({error}) for {config!r}. It must work for "
                f"every configuration. An inactive parameter is absent: use config.get(name)."
            ) from error


def constraints_from(given: Constraints) -> tuple[NamedPredicate, ...]:
    found: dict[str, NamedPredicate] = {}
    if not isinstance(given, Iterable):
        raise InvalidSpace(
            f"constraints={given!r} is not a list. Use a list of functions of a configuration, such as "
            "constraints=[lambda config: config['a'] < config['b']], or {name: function}."
        )
    for item in given.items() if isinstance(given, Mapping) else given:
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and callable(item[1]):
            constraint = NamedPredicate(*item)
        elif callable(item):
            constraint = NamedPredicate(getattr(item, "__qualname__", type(item).__qualname__), item)
        else:
            raise InvalidSpace(
                f"A constraint must be a function of a configuration, or a pair (name, function); got {item!r}."
            )
        if constraint.name in found:
            raise InvalidSpace(
                f"Two constraints have the name {constraint.name!r}, and JSON stores constraints by name. "
                f"Name them: constraints=[('wide enough', function), ...]."
            )
        found[constraint.name] = constraint
    return tuple(found.values())


def batches(design: str, n: int, width: int, rng: np.random.Generator) -> Iterator[Array]:
    """Yield endless batches of points (size, width): the first has at least n, each next one doubles the total.

    The number of Sobol points stays a power of two, because only then they are balanced. Batches grow up to 16,384.
    Raises InvalidInput for an unknown design.
    """
    if design not in DESIGNS:
        raise InvalidInput(f"The design {design!r} is unknown. Use one of {', '.join(map(repr, DESIGNS))}.")
    engine: Any = None
    if design != "uniform" and width:
        from scipy.stats import qmc  # imported here: it takes half a second, and only designs need it

        kind: Any = qmc.Sobol if design == "sobol" else qmc.LatinHypercube
        keyword = "rng" if "rng" in inspect.signature(kind).parameters else "seed"  # renamed in SciPy 1.15
        engine = kind(width, **{keyword: rng})
    size = 1 << max(n - 1, 0).bit_length() if design == "sobol" else n
    first, total = size, 0
    while True:
        yield rng.random((size, width)) if engine is None else engine.random(size)
        total += size
        size = min(total, max(_LARGEST_BATCH, first))


class Space(KnowsArguments):
    """Search space: parameters by name, and constraints that configurations must satisfy.

    Args:
        parameters: {name: domain}, or pairs. A plain value is a Constant.
        constraints: Functions that return True for an allowed configuration, {name: function}, or pairs
            (name, function). The configuration does not contain inactive parameters. Default: none.

    Raises:
        InvalidSpace: If the parameters do not make a space. For example, a bound names no parameter, or two
            constraints have the same name.

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
        self._layout = cube.layout_of(self.parameters)
        self._whole: Space | None = None  # of a narrowed space; see `narrowed_to`
        self._inner: Space | None = None

    @property
    def whole(self) -> Space:
        """The space that contains all configurations of a search, also those from before it was narrowed."""
        return self._whole or self

    @property
    def inside(self) -> Space:
        """The space as it was declared: of new configurations, if a search was narrowed to it."""
        return self._inner or self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in the order given."""
        return self._layout.names

    @property
    def dim(self) -> int:
        """Number of coordinates: one per number or ordered choice, one per option of other choices."""
        return self._layout.dim

    @property
    def columns(self) -> dict[str, slice]:
        """The columns of each parameter in points of the cube; constants have none."""
        return {p.name: p.columns for p in self._layout.coordinates}

    @cached_property
    def continuous(self) -> Mask:
        """(dim,) true for the coordinates of Floats; the others have steps."""
        inner = self.inside._layout.by_name
        flags = [
            np.full(p.axis.width, p.axis.continuous and (p.name not in inner or inner[p.name].count != 1))
            for p in self._layout.coordinates
        ]
        mask = np.concatenate([np.zeros(0, dtype=np.bool_), *flags])
        mask.flags.writeable = False
        return mask

    @cached_property
    def free(self) -> bool:
        """True if each point is a configuration: all parameters are Floats, without conditions or bounds by name."""
        simple = all(p.axis.continuous and p.fixed and not p.conditions for p in self._layout.ordered)
        return simple and self._inner is None  # neighbours of earlier trials may lie outside a narrower one

    @cached_property
    def box(self) -> Array:
        """(2, dim) the lowest and the highest coordinates of new configurations: 0 and 1, or less if it is narrowed."""
        box = cube.inner_box(self._layout, None if self._inner is None else self._inner._layout)
        box.flags.writeable = False
        return box

    def canonical(self, config: Mapping[str, Any]) -> Config:
        """Return the canonical configuration: floats on their grid, constants filled in, options as declared.

        Args:
            config: A value for each active parameter. You may omit constants.

        Raises:
            InvalidSpace: If the configuration is not in the space. Constraints are not checked; see `contains`.

        Example:
            >>> Space({"lr": Float(1e-4, 1e-1, log=True), "optimizer": "adam"}).canonical({"lr": 0.01})
            {'lr': 0.01, 'optimizer': 'adam'}
        """
        return self.canonical_many([config])[0]

    def canonical_many(self, configs: Sequence[Mapping[str, Any]]) -> list[Config]:
        """Return the canonical form of each configuration."""
        return cube.write_configs(self._layout, cube.read_configs(self._layout, configs))

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Return whether a configuration is in the space and satisfies the constraints."""
        try:
            canonical = self.canonical(config)
            if self._inner is not None:
                self._inner.canonical(canonical)
        except InvalidSpace:
            return False
        return self._allows(canonical)

    def key(self, config: Mapping[str, Any]) -> str:
        """Return a text that is equal for equal configurations and differs for different ones."""
        return self.keys([config])[0]

    @staticmethod
    def key_of_canonical(config: Mapping[str, Any]) -> str:
        """Return the key of a configuration that is already canonical or comes from JSON, without checks."""
        return _KEYS.encode(config)

    def keys(self, configs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the key of each configuration, much faster than one by one."""
        return [self.key_of_canonical(c) for c in self.canonical_many(configs)]

    def encode(self, config: Mapping[str, Any]) -> Array:
        """Return the point of a configuration in the unit cube. `decode` is the exact inverse.

        Args:
            config: A configuration as for `canonical`.

        Returns:
            (dim,) coordinates from 0 to 1, with inactive parameters in the middle.

        Raises:
            InvalidSpace: If the configuration is not in the space.

        Example:
            >>> Space({"dropout": Float(0.0, 0.5)}).encode({"dropout": 0.125}).tolist()
            [0.25]
        """
        return self.encode_many([config]).reshape(self.dim)

    def encode_many(self, configs: Sequence[Mapping[str, Any]]) -> Array:
        """Return the points (n, dim) of the configurations."""
        return cube.write_cube(self._layout, cube.read_configs(self._layout, configs))

    def decode(self, u: ArrayLike) -> Config:
        """Return the configuration at a point of the unit cube.

        Args:
            u: (dim,) coordinates, clipped to [0, 1].

        Raises:
            InvalidInput: If the shape is wrong or a coordinate is NaN.

        Example:
            >>> Space({"layers": Int(1, 4), "act": Choice(["relu", "gelu"])}).decode([0.9, 0.2, 0.7])
            {'layers': 4, 'act': 'gelu'}
        """
        return self.decode_many(np.asarray(u, dtype=np.float64)[None])[0]

    def decode_many(self, u: ArrayLike) -> list[Config]:
        """Return the configuration at each row of (n, dim), clipped to [0, 1]."""
        return cube.write_configs(self._layout, self._at(u))

    def decode_valid(self, u: ArrayLike) -> Config | None:
        """Return the configuration at a point (dim,), or None if its bounds cross or a constraint fails."""
        found = self._valid(self._at(np.asarray(u, dtype=np.float64)[None]))
        return found[0] if found else None

    def snap(self, u: ArrayLike) -> Array:
        """Return the points (n, dim) of the configurations at these points."""
        return cube.write_cube(self._layout, self._at(u))

    def sample(self, n: int, rng: np.random.Generator, design: str = "uniform") -> list[Config]:
        """Return configurations spread over the unit cube, all valid: constraints hold and no bounds cross.

        Args:
            n: Number of configurations.
            rng: Random generator, such as np.random.default_rng(0).
            design: "uniform", independent points; "sobol", points that fill the space evenly; or "lhs", a Latin
                hypercube. Default: "uniform".

        Raises:
            InvalidSpace: If too few points are valid.
            InvalidInput: If the design is unknown.

        Example:
            >>> [c["layers"] for c in Space({"layers": Int(1, 4)}).sample(4, np.random.default_rng(0), "lhs")]
            [1, 3, 2, 4]
        """
        if self._inner is not None:
            return self.canonical_many(self._inner.sample(n, rng, design))
        found, tried = self._drawn(n, rng, design, max(_TRIES, 100 * n))
        if len(found) < n:
            named = ", ".join(map(repr, self._named)) or "bounds that cross"
            passed = "none are" if not found else f"only {len(found):,} of {n:,} wanted are"
            raise InvalidSpace(
                f"Of {tried:,} points of the space, {passed} valid ({named}). Loosen the constraint, or replace it by "
                f"conditions and by bounds that name other parameters, which every point satisfies."
            )
        return found

    def sample_up_to(self, n: int, rng: np.random.Generator, design: str = "uniform") -> list[Config]:
        """Return up to n configurations, but at least one, from about 20 n points: fewer if few points are valid."""
        if self._inner is not None:
            return self.canonical_many(self._inner.sample_up_to(n, rng, design))
        return self._drawn(n, rng, design, 20 * n)[0] or self.sample(1, rng)

    @cached_property
    def size(self) -> int | None:
        """The number of configurations if it is finite and cheap to count, else None."""
        if self._inner is not None:
            return self._inner.size
        product = self._layout.size
        dependent = any(p.conditions or any(p.bounds) for p in self._layout.ordered)
        if product is None or not (dependent or self.constraints):
            return product
        return len(self.enumerate()) if product <= cube.MOST_ROWS else None

    def enumerate(self) -> list[Config]:
        """Return every configuration; the last parameter varies fastest. Raises InvalidSpace beyond 100,000."""
        if self._inner is not None:
            return self.canonical_many(self._inner.enumerate())
        return [config for config in cube.configurations(self._layout) if self._allows(config)]

    def mesh(self, levels: int, most: int = cube.MOST_ROWS) -> list[Config]:
        """Return the configurations of a mesh; the last parameter varies fastest.

        Choices and short ranges contribute all their values.

        Args:
            levels: Values per continuous parameter, in equal ratios on a log scale. An Int contributes at most this
                many.
            most: Largest number of nodes. Default: 100,000.

        Raises:
            InvalidInput: If levels < 2, or the mesh has too many nodes.

        Example:
            >>> [c["lr"] for c in Space({"lr": Float(0.01, 1.0, log=True)}).mesh(3)]
            [0.01, 0.1, 1.0]
        """
        if self._inner is not None:
            return self.canonical_many(self._inner.mesh(levels, most))
        axes = cube.mesh_axes(self._layout, levels, most)
        nodes = np.meshgrid(*axes, indexing="ij") if axes else []
        points = np.stack([node.ravel() for node in nodes], axis=1) if nodes else np.empty((1, 0))
        found = {self.key_of_canonical(config): config for config in self._passing(points)}
        return list(found.values())

    def to_json(self) -> dict[str, Any]:
        """Return the space as JSON, with the names of constraints."""
        parameters = [{"name": name, **domain.spec()} for name, domain in self.inside.parameters.items()]
        return {"parameters": parameters, "constraints": [c.name for c in self.constraints]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], constraints: Mapping[str, Predicate] | None = None) -> Space:
        """Return the space of `to_json`. Raises InvalidSpace if its constraints are not supplied."""
        supplied = {c.name: c.predicate for c in constraints_from(constraints or {})}
        if set(supplied) != set(data["constraints"]):
            raise InvalidSpace(
                f"The space was recorded with the constraints {sorted(data['constraints'])}, but you supplied "
                f"{sorted(supplied)}. A log stores only names of functions: pass constraints={{name: function}}."
            )
        pairs = [(spec["name"], domain_from(spec)) for spec in data["parameters"]]
        return cls(pairs, [(name, supplied[name]) for name in data["constraints"]])

    def lacking(self, older: Space) -> list[str]:
        """Return the reasons why a search in `older` cannot continue in this space; empty if it can."""
        same = [c.name for c in self.constraints] == [c.name for c in older.constraints]
        return cube.lacking(self._layout, older._layout) + ([] if same else ["the constraints differ"])

    def widening(self, older: Space) -> Space:
        """Return this space as a widening of `older`: configurations of `older` keep their exact values."""
        found = copy(self)
        found._layout = cube.widened(self._layout, older._layout)
        return found

    def covering(self, older: Space) -> Space:
        """Return the smallest space that contains both; if there is none, `lacking(older)` of the result says why."""
        try:
            return Space(cube.cover(self._layout, older._layout), [(c.name, c.predicate) for c in self.constraints])
        except InvalidSpace:  # an older parameter depends on one that is missing
            return self

    def narrowed_to(self, inner: Space) -> Space:
        """Return the space for a search that continues in an inner one, with this one for what was tried before.

        Configurations of both keep their values, and points are those of this space. Samples, listings and points that
        are decoded lie inside; `contains` is about the inner space.
        """
        whole = copy(self)
        whole._layout = cube.holding(self._layout, inner._layout)
        found = Space.__new__(Space)
        found.parameters = MappingProxyType({**self.parameters, **inner.parameters})
        found.constraints = self.constraints
        found._layout, found._whole, found._inner = whole._layout, whole, inner
        return found

    def diff(self, other: Space) -> list[str]:
        """Return how `other` differs from this space, one sentence per difference; empty if they are equal."""
        mine, theirs, old, new = self.inside.parameters, other.inside.parameters, self._named, other._named
        found = [f"The parameter {n!r} is gone; it was {mine[n]!r}." for n in mine if n not in theirs]
        found += [f"The parameter {n!r} is new: {theirs[n]!r}." for n in theirs if n not in mine]
        shared = [n for n in mine if n in theirs]
        found += [f"{n!r} was {mine[n]!r} and is {theirs[n]!r}." for n in shared if mine[n] != theirs[n]]
        if shared != [n for n in theirs if n in mine]:
            found.append(f"The order was {', '.join(mine)} and is {', '.join(theirs)}.")
        found += [f"The constraint {name!r} is gone." for name in old if name not in new]
        return found + [f"The constraint {name!r} is new." for name in new if name not in old]

    @property
    def _named(self) -> list[str]:
        return [constraint.name for constraint in self.constraints]

    def __reduce__(self) -> tuple[Any, ...]:
        return Space, (list(self.inside.parameters.items()), [(c.name, c.predicate) for c in self.constraints])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space) or self.diff(other):
            return False
        return dict(self.whole.parameters) == dict(other.whole.parameters)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(self.inside.parameters.items()))

    def __repr__(self) -> str:
        lines = [f"    {name!r}: {domain!r}," for name, domain in self.inside.parameters.items()]
        named = f", constraints={[c.name for c in self.constraints]}" if self.constraints else ""
        return "\n".join(["Space({", *lines, "}" + named + ")"])

    def _allows(self, canonical: Config) -> bool:
        return all(constraint.allows(canonical) for constraint in self.constraints)

    def _drawn(self, n: int, rng: np.random.Generator, design: str, most: int) -> tuple[list[Config], int]:
        """Return at most n valid configurations from about `most` points, and the number of points tried."""
        found: list[Config] = []
        tried = 0
        for points in batches(design, n, len(self._layout.coordinates), rng):
            if len(found) >= n or tried >= most:
                break
            found += self._passing(points)
            tried += len(points)
        return found[:n], tried

    def _passing(self, points: Array) -> list[Config]:
        """Return the valid configurations. Each parameter has one design coordinate, which balances one-hot choices."""
        parts = [p.axis.spread(points[:, i]) for i, p in enumerate(self._layout.coordinates)]
        table = cube.read_cube(self._layout, np.hstack([np.empty((len(points), 0)), *parts]))
        return self._valid(table)

    def _at(self, u: ArrayLike) -> Table:
        inner = None if self._inner is None else self._inner._layout
        return cube.read_cube(self._layout, cube.cube_points(u, self._layout.dim), inner)

    def _valid(self, table: Table) -> list[Config]:
        """Return the configurations whose bounds do not cross and that satisfy the constraints."""
        found = cube.write_configs(self._layout, table.rows(table.valid))
        return [c for c in found if self._allows(c)] if self.constraints else found


class Points:
    """Points in the unit cube of a list of configurations that only grows. Each is encoded once."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: Array = np.empty((0, space.dim))

    def upto(self, count: int, config: Callable[[int], Mapping[str, Any]]) -> Array:
        """Return (count, dim), read-only. `config` returns the configurations that are not encoded yet."""
        if count > len(self._known):
            new = self._space.encode_many([config(i) for i in range(len(self._known), count)])
            self._known = np.vstack([self._known, new])
            self._known.flags.writeable = False
        return self._known[:count]
