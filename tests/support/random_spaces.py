"""Random spaces of every kind: conditions, bounds that name parameters, single values."""

import json
import math

from hypothesis import strategies as st

from haltune import Choice, Float, Int
from haltune.space import Space

SEEDS = st.integers(0, 2**32 - 1)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(-3, 3), st.text(max_size=3), st.tuples(st.integers(0, 3))
)


@st.composite
def floats(draw, when=None):
    log = draw(st.booleans())
    ends = st.floats(5e-324, 1e300) if log else st.floats(-1e300, 1e300)
    small = st.floats(1e-8, 1e3) if log else st.floats(-1e3, 1e3)
    low, high = sorted([draw(ends | small), draw(ends | small)])
    if draw(st.booleans()):
        high = math.nextafter(low, math.inf) if draw(st.booleans()) else low
    return Float(low, min(high, 1e300), log=log, when=when)


@st.composite
def ints(draw, when=None):
    log = draw(st.booleans())
    low = draw(st.integers(1 if log else -(2**33), 2**33))
    width = draw(st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 2**34)))
    return Int(low, low + width, log=log, when=when)


@st.composite
def choices(draw, when=None):
    unique = st.lists(PLAIN, min_size=1, max_size=5, unique_by=lambda v: json.dumps(_number(v)))
    return Choice(draw(unique), ordered=draw(st.booleans()), when=when)


@st.composite
def spaces(draw):
    parameters = {}
    for index in range(draw(st.integers(1, 6))):
        when = draw(_when(parameters))
        bound = draw(st.sampled_from([None, *[n for n, d in parameters.items() if isinstance(d, Float | Int)]]))
        kind = draw(st.sampled_from([floats, ints, choices, None]))
        if bound is not None and draw(st.booleans()):
            parameters[f"p{index}"] = _bounded(draw(st.booleans()), bound, parameters[bound], when)
        else:
            parameters[f"p{index}"] = "fixed" if kind is None else draw(kind(when=when))
    order = draw(st.permutations(list(parameters)))
    return Space({name: parameters[name] for name in order})


@st.composite
def _when(draw, parameters):
    if not parameters or draw(st.booleans()):
        return None
    parent = draw(st.sampled_from(sorted(parameters)))
    domain = parameters[parent]
    if isinstance(domain, Choice):
        return {parent: draw(st.lists(st.sampled_from(domain.options), min_size=1))}
    if isinstance(domain, Float | Int) and not isinstance(domain.low, str) and not isinstance(domain.high, str):
        return {parent: draw(st.sampled_from([(">=", domain.low), ("<=", domain.high), domain.low]))}
    return None


def _bounded(below, bound, other, when):
    kind = type(other)
    if isinstance(other.low, str) or isinstance(other.high, str):
        return kind(bound, bound, when=when)
    return kind(other.low, bound, log=other.log, when=when) if below else kind(bound, other.high, when=when)


def _number(value):
    return int(value) if isinstance(value, float) and value.is_integer() else value
