"""A search space of Ray Tune's as a space of haltune's: nested dicts flat, by names such as "optimizer/lr"."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from ray.tune.search import sample
from ray.tune.search.variant_generator import parse_spec_vars
from ray.tune.utils.util import flatten_dict, unflatten_dict

from haltune.errors import InvalidSpace
from haltune.space import Space
from haltune.space.domains import Domain
from haltune.tuners.sampled import domain_of

_KNOWN = "haltune knows tune.uniform, loguniform, quniform, randint, lograndint, qrandint and choice among plain values"


def space_of(given: Mapping[str, Any]) -> Space | None:
    """The space of what Tune would sample; what is fixed is no part of it. None where nothing is sampled.

    Raises InvalidSpace for a domain that haltune has not.
    """
    _, domains, grids = parse_spec_vars(deepcopy(dict(given)))
    if grids:
        raise InvalidSpace(
            f"tune.grid_search of {', '.join(map(_name, _paths(grids)))} says what to train, and here haltune chooses: "
            "write tune.choice([...]), or leave the search to Tune and take HaltuneScheduler(max_epochs=...)"
        )
    for path, _ in domains:
        if any(not isinstance(part, str) or "/" in part for part in path):
            raise InvalidSpace(
                f"Tune's parameter {_name(path)!r} lies in a list, or has a '/' in a key, which names a level of "
                "nested dicts: put it into a dict, by another name"
            )
    found = {_name(path): _translated(_name(path), domain) for path, domain in domains}
    return Space(found) if found else None


def is_haltunes(given: Mapping[str, Any]) -> bool:
    """Whether a mapping is in haltune's words."""
    return any(isinstance(domain, Domain) for domain in given.values())


def nested_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as Tune hands it on."""
    return dict(unflatten_dict(dict(config)))


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `nested_config`."""
    return dict(flatten_dict(dict(config)))


def fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    """What of a space is not sampled, as Tune hands it on."""
    flat = flatten_dict(dict(given), prevent_delimiter=True)
    return nested_config(
        {name: value for name, value in flat.items() if not isinstance(value, sample.Domain)}
    )


def _paths(found: Any) -> list[tuple[Any, ...]]:
    return [path for path, _ in found]


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))


def _translated(name: str, domain: Any) -> Domain:
    try:
        return domain_of(domain, sample, _KNOWN, open_above=True)
    except InvalidSpace as error:
        raise InvalidSpace(
            f"Tune's parameter {name!r}, {domain.get_sampler()} {domain.domain_str}: {error}"
        ) from error
