"""A configuration space of Syne Tune's as a space of haltune's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haltune.errors import InvalidSpace
from haltune.space import Space
from haltune.space.domains import Domain
from haltune.tuners.grids import MOST_VALUES
from haltune.tuners.sampled import choice_of, domain_of

from .library import config_space as theirs

_KNOWN = (
    "haltune knows uniform, loguniform, quniform, randint, lograndint, qrandint, finrange, logfinrange, ordinal and "
    "choice"
)


def space_of(given: Mapping[str, Any]) -> Space:
    """What is sampled. Raises InvalidSpace for a domain that haltune has not, and where there is none."""
    found = {name: _translated(name, d) for name, d in given.items() if isinstance(d, theirs.Domain)}
    if not found:
        raise InvalidSpace(
            "config_space has nothing to search: {'lr': syne_tune.config_space.loguniform(...)}"
        )
    return Space(found)


def fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The rest, which every configuration carries."""
    return {name: value for name, value in given.items() if not isinstance(value, theirs.Domain)}


def _translated(name: str, domain: Any) -> Domain:
    try:
        return _domain(domain)
    except InvalidSpace as error:
        raise InvalidSpace(f"Syne Tune's parameter {name!r}, {domain!r}: {error}") from error


def _domain(domain: Any) -> Domain:
    if isinstance(domain, theirs.FiniteRange):
        if domain.size > MOST_VALUES:
            raise InvalidSpace(
                f"more than {MOST_VALUES} values: write uniform or randint, and round in your training"
            )
        return choice_of(list(dict.fromkeys(domain.values)), theirs.Domain, _KNOWN, ordered=True)
    if isinstance(domain, theirs.Ordinal):
        return choice_of(domain.categories, theirs.Domain, _KNOWN, ordered=True)
    if theirs.is_reverse_log_space(domain):
        raise InvalidSpace(f"write 1 - x with loguniform; {_KNOWN}")
    return domain_of(domain, theirs, _KNOWN, open_above=False)
