"""Domains of other tuners: a range or choice with its sampler, and the values of a range with steps."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from haltune.errors import InvalidSpace
from haltune.space.domains import Choice, Constant, Domain, Float, Int

MOST_VALUES = 1000  # values that are listed


def grid_values(low: float, high: float, step: float) -> tuple[float, ...] | None:
    """low, low + step, ... up to high, whole where all three are; None where they are too many."""
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
        values = range(low, high + 1, step)
        return tuple(values) if len(values) <= MOST_VALUES else None
    first, pace = Decimal(str(low)), Decimal(str(step))
    count = int((Decimal(str(high)) - first) / pace) + 1
    return tuple(float(first + k * pace) for k in range(count)) if count <= MOST_VALUES else None


def domain_of(domain: Any, words: Any, known: str, open_above: bool) -> Domain:
    """The counterpart of a domain.

    Args:
        domain: The other tuner's.
        words: The module of its classes: Float, Integer, Categorical, Uniform, LogUniform, Quantized.
        known: What has a counterpart, for the error.
        open_above: Whether whole numbers end before their upper bound, unless they come in steps.

    Raises:
        InvalidSpace: For a domain that haltune has not.
    """
    sampler, step = domain.get_sampler(), None
    if isinstance(sampler, words.Quantized):
        sampler, step = sampler.get_sampler(), sampler.q
    plain, log = isinstance(sampler, words.Uniform), isinstance(sampler, words.LogUniform)
    if isinstance(domain, words.Categorical) and plain and step is None:
        return choice_of(domain.categories, words.Domain, known)
    if isinstance(domain, words.Float) and (plain or log):
        if step is None:
            return Float(domain.lower, domain.upper, log=log)
        return _stepped(float(domain.lower), float(domain.upper), float(step), log)
    if isinstance(domain, words.Integer) and (plain or log):
        high = int(domain.upper) - (open_above and step is None)
        if step is None or step == 1:
            return Int(int(domain.lower), high, log=log)
        return _stepped(int(domain.lower), high, int(step), log)
    raise InvalidSpace(known)


def choice_of(options: Any, ranges: type, known: str, ordered: bool = False) -> Domain:
    """A choice; of one option a constant."""
    if any(isinstance(option, ranges) for option in options):
        raise InvalidSpace(f"a choice among ranges; {known}")
    return Choice(options, ordered=ordered) if len(options) > 1 else Constant(options[0])


def _stepped(low: float, high: float, step: float, log: bool) -> Domain:
    values = grid_values(low, high, step)
    if log or values is None:
        why = "steps on a log scale" if log else f"more than {MOST_VALUES} steps"
        raise InvalidSpace(f"{why}: write it without, and round in your training")
    return choice_of(values, type(None), "", ordered=True)
