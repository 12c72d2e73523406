"""How two spaces differ, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .domains import Domain


def space_differences(
    mine: Mapping[str, Domain], old: Sequence[str], theirs: Mapping[str, Domain], new: Sequence[str]
) -> list[str]:
    """A sentence for each difference: of parameters, their order, and the names of constraints (old, new)."""
    said = [f"The parameter {n!r} is gone; it was {mine[n]!r}." for n in mine if n not in theirs]
    said += [f"The parameter {n!r} is new: {theirs[n]!r}." for n in theirs if n not in mine]
    shared = [n for n in mine if n in theirs]
    said += [f"{n!r} was {mine[n]!r} and is {theirs[n]!r}." for n in shared if mine[n] != theirs[n]]
    if shared != [n for n in theirs if n in mine]:
        said.append(f"The order was {', '.join(mine)} and is {', '.join(theirs)}.")
    said += [f"The constraint {name!r} is gone." for name in old if name not in new]
    said += [f"The constraint {name!r} is new." for name in new if name not in old]
    return said
