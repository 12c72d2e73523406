"""Brackets of successive halving: how many configurations train how far (Li et al. 2018, Hyperband).

A bracket is a list of rungs (n_i, r_i): n_i configurations train to the resource r_i, and the best n_{i+1} of them
continue. All numbers are exact fractions: in floating point log(243) / log(3) is 4.99..., which would lose a bracket.
Rungs whose r_i round to the same whole resource are joined to the first of them, because they compare the same values.

Symbols: R largest resource of one configuration; eta the rate of reduction; s the number of halvings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, cycle, islice
from math import ceil, floor
from typing import Literal

from haltune._utils.signals import undisturbed
from haltune.display import plural
from haltune.errors import InvalidInput, StoreError
from haltune.log.events import ADVICE, Started
from haltune.log.history import History

Number = float | int | Fraction
Sizes = Literal["line2", "table1"]


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung: n configurations train to `resource`."""

    n: int
    resource: float  # r_i, cumulative; epochs, seconds or a user's unit


@dataclass(frozen=True)
class Bracket:
    """Successive halving, from the first rung to the last."""

    rungs: tuple[Rung, ...]
    s: int  # halvings, as the paper counts them: len(rungs) - 1, or more where rungs are joined

    def total(self, resume: bool = True) -> float:
        """Return the resource that the bracket spends; without `resume` each rung trains from the start."""
        befores = [0.0, *(r.resource for r in self.rungs[:-1])]
        return sum(r.n * (r.resource - b * resume) for r, b in zip(self.rungs, befores, strict=True))

    def cut(self, n: int) -> Bracket:
        """Scale the bracket down to n configurations; the same share of each rung continues, at least one."""
        whole = self.rungs[0].n
        return Bracket(tuple(Rung(max(1, rung.n * n // whole), rung.resource) for rung in self.rungs), self.s)

    def scaled(self, unit: Number, whole: bool = True) -> Bracket:
        """Multiply resources by `unit`; whole: round down to whole numbers, at least 1."""
        return _joined([(r.n, exact(r.resource) * exact(unit)) for r in self.rungs], self.s, whole)


@dataclass(frozen=True)
class Schedule:
    """The brackets of one round of Hyperband, in order; print it to see table 1."""

    brackets: tuple[Bracket, ...]

    def total(self, resume: bool = True) -> float:
        return sum(b.total(resume) for b in self.brackets)

    def table(self) -> str:
        """Format the brackets side by side, as in table 1."""
        depth = max(len(b.rungs) for b in self.brackets)
        head = "   " + "".join(f"{f's={b.s}':>14}" for b in self.brackets)
        units = "  i" + "".join(f"{'n_i':>6}{'r_i':>8}" for _ in self.brackets)

        def cell(bracket: Bracket, i: int) -> str:
            if i >= len(bracket.rungs):
                return " " * 14
            return f"{bracket.rungs[i].n:>6}{bracket.rungs[i].resource:>8g}"

        rows = [f"{i:>3}" + "".join(cell(b, i) for b in self.brackets) for i in range(depth)]
        return "\n".join(line.rstrip() for line in (head, units, *rows))

    __str__ = table


class Plan:
    """The brackets of a search by number, made on demand and cached.

    source: an endless iterator of brackets. ends: how many of them to run; None: until the study's budget ends.
    once: how many to run if the study has no budget; None: as with a budget.
    """

    def __init__(self, source: Iterator[Bracket], ends: int | None = None, once: int | None = None) -> None:
        self._source, self.ends, self.once = source, ends, once
        self._made: list[Bracket] = []

    def __call__(self, number: int) -> Bracket:
        if number >= len(self._made):
            with undisturbed:  # Ctrl-C within a generator would end it
                self._made.extend(islice(self._source, number + 1 - len(self._made)))
        return self._made[number]

    @classmethod
    def repeated(cls, made: tuple[Bracket, ...], rounds: int | None) -> Plan:
        """Repeat brackets, `rounds` times if given."""
        return cls(cycle(made), None if rounds is None else rounds * len(made), len(made))

    @staticmethod
    def number(event: Started) -> int:
        """Return the bracket in a trial's tag. Raises StoreError for a number that is not possible yet."""
        number = event.tags["bracket"]
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= event.trial:
            text = f"Trial {event.trial} has bracket {str(number)[:80]}, but each bracket before it needs a trial"
            raise StoreError(f"{text}: a bracket is a whole number from 0 to {event.trial}. {ADVICE}")
        return number

    def has(self, number: int, history: History) -> bool:
        """Return True if a bracket with this number may run."""
        unlimited = history.budget is None or history.budget.unlimited
        last = self.once if self.ends is None and unlimited else self.ends
        return last is None or number < last


def hyperband(
    max_resource: Number,
    eta: Number = 3,
    *,
    min_resource: Number = 1,
    n_max: int | None = None,
    n_min: int | None = None,
    sizes: Sizes = "line2",
    whole: bool = True,
) -> Schedule:
    """Return algorithm 1: brackets s = s_max, ..., 0, all of about the same total.

    With R in units of `min_resource` (section 2.5): s_max = floor(log_eta R), or floor(log_eta n_max) if that is less;
    n = ceil((s_max + 1) eta^s / (s + 1)) (line 2), n_i = floor(n eta^-i), r_i = R eta^(i-s). sizes="table1" uses
    n = floor((s_max + 1) / (s + 1)) eta^s, as in the paper's table 1.
    n_min: only brackets down to s = floor(log_eta n_min) (section 2.6); the last of them may start with fewer than
    n_min configurations, by line 2. whole: r_i is rounded down to a whole number, at least 1.

    Raises InvalidInput for numbers that leave no bracket.
    """
    R, base = _unit(max_resource, min_resource), _eta(eta)
    s_max = _log(R, base)
    if n_max is not None:
        s_max = min(s_max, _log(_whole("n_max", n_max), base))
    s_min = 0 if n_min is None else _log(_whole("n_min", n_min), base)
    if s_min > s_max:
        raise InvalidInput(
            f"n_min={n_min} needs brackets of {s_min} or more halvings, but there are at most {s_max}. Lower n_min, or "
            "raise n_max or the resource."
        )
    unit, made = exact(min_resource, "min_resource"), []
    for s in range(s_max, s_min - 1, -1):
        if sizes == "table1":
            n = ceil(((s_max + 1) // (s + 1)) * base**s)
        else:
            n = ceil((s_max + 1) * base**s / (s + 1))
        made.append(bracket_of(n, s, R, base, unit, whole))
    return Schedule(tuple(made))


def halving(n: int, min_resource: Number, max_resource: Number, eta: Number = 3, *, whole: bool = True) -> Bracket:
    """Return one bracket: n configurations at `min_resource`, n_i = floor(n eta^-i) at min_resource eta^i.

    The last rung is the one that reaches `max_resource` or after which n_{i+1} would be 0. It trains to `max_resource`,
    so that the winner trains in full. Raises InvalidInput for numbers that leave no rung.
    """
    base, ratio = _eta(eta), _unit(max_resource, min_resource)
    _whole("n", n)
    rungs: list[tuple[int, Fraction]] = []
    for i in range(_log(n, base) + 1):
        rungs.append((floor(n / base**i), exact(min_resource) * base**i))
        if rungs[-1][0] == 1 or base**i >= ratio:
            break
    rungs[-1] = (rungs[-1][0], exact(max_resource))
    return _joined(rungs, len(rungs) - 1, whole)


def growing(
    max_resource: Number, eta: Number = 3, *, min_resource: Number = 1, whole: bool = True
) -> Iterator[Bracket]:
    """Yield figure 10: rounds k = 1, 2, ... of brackets s_max, ..., 0, each with the budget 2^k units, without end.

    n = floor(2^k eta^s / (R (s + 1))); the figure prints the ceiling, with which s halvings exceed the budget.
    Halvings of a bracket: the fewest t with n R (t + 1) eta^-t <= 2^k and t <= log_eta min(R, n). Brackets without such
    an n or t, in the first rounds, are left out. R is in units of min_resource.
    """
    R, base, unit = _unit(max_resource, min_resource), _eta(eta), exact(min_resource, "min_resource")
    s_max = _log(R, base)
    for k in count(1):
        for s in range(s_max, -1, -1):
            n = floor(2**k * base**s / (R * (s + 1)))
            if n >= 1 and (t := fewest_halvings(2**k, n, R, base)) is not None:
                yield bracket_of(n, t, R, base, unit, whole)


def fewest_halvings(budget: Number, n: int, max_resource: Number, eta: Number) -> int | None:
    """Return s of figure 10: min{t : n R (t + 1) eta^-t <= B, t <= log_eta min(R, n)}; None if no t fits."""
    R, base = exact(max_resource), _eta(eta)
    for t in range(_log(min(R, Fraction(n)), base) + 1):
        if n * R * (t + 1) / base**t <= exact(budget):
            return t
    return None


def pulls(n: int, budget: Number, eta: Number = 2) -> Bracket:
    """Return successive halving of figure 9: log_eta n rounds that each pull floor(B / (|S| rounds)) more units.

    The best floor(|S| / eta) stay. Raises InvalidInput if n is no power of eta, because the figure's last round would
    leave no configuration, and if the budget does not suffice for one unit per round.
    """
    base = _eta(eta)
    power = _log(_whole("n", n), base)
    if base**power != n:
        raise InvalidInput(
            f"n={n} is no power of eta={eta}, so the last round would leave no configuration. Give a power of eta."
        )
    rungs, alive, resource, rounds = [], n, 0, max(1, power)
    for _ in range(rounds):
        more = floor(exact(budget) / (alive * rounds))
        if more < 1:
            planned = f"{plural(rounds, 'round')} of {plural(n, 'configuration')} and their best"
            raise InvalidInput(f"budget={budget} is too small: {planned} take {n * rounds} or more. Raise the budget.")
        resource += more
        rungs.append(Rung(alive, float(resource)))
        alive = max(1, floor(alive / base))
    return Bracket(tuple(rungs), rounds - 1)


def infinite(eta: int = 2, start: Number = 2) -> Iterator[Bracket]:
    """Yield figure 9: budgets start 2^(k-1), k = 1, 2, ...; for each all n = eta^l with l eta^l <= budget, l >= 1.

    With start = 2 and eta = 2 the budgets are 2^k, as printed. Section 3.1 uses eta = 4 and start = 2 R.
    """
    if isinstance(eta, bool) or not isinstance(eta, int) or eta < 2:
        raise InvalidInput(f"eta={eta!r} is not a whole number of 2 or more. Give one, because n is a power of eta.")
    first = exact(start, "start")
    for k in count():
        budget = first * 2**k
        for power in count(1):
            if power * eta**power > budget:
                break
            yield pulls(eta**power, budget, eta)


def bracket_of(n: int, s: int, R: Fraction, eta: Fraction, unit: Fraction = Fraction(1), whole: bool = True) -> Bracket:
    """Return n_i = floor(n eta^-i) configurations at r_i = R eta^(i - s) units, i = 0, ..., s."""
    return _joined([(floor(n / eta**i), R * eta**i / eta**s * unit) for i in range(s + 1)], s, whole)


def _joined(rungs: Iterable[tuple[int, Fraction]], s: int, whole: bool) -> Bracket:
    """Return the bracket of these rungs; those that round to the same resource are joined."""
    made: list[Rung] = []
    for n, resource in rungs:
        rounded = _rounded(resource, whole)
        if not made or made[-1].resource < rounded:
            made.append(Rung(n, rounded))
    return Bracket(tuple(made), s)


def _log(x: Fraction | int, base: Fraction) -> int:
    """Return floor(log_base x) for x >= 1."""
    power, s = base, 0
    while power <= x:
        power, s = power * base, s + 1
    return s


def _rounded(resource: Fraction, whole: bool) -> float:
    try:
        return float(max(1, floor(resource))) if whole else float(resource)
    except OverflowError:
        raise InvalidInput(
            f"A rung has a resource of 10**{len(str(floor(resource))) - 1}, which is too large. Lower the resource."
        ) from None


def exact(number: Number, what: str = "") -> Fraction:
    """Return the number that the user typed, exactly: 0.1 is a tenth. Raises InvalidInput if it is not finite."""
    if isinstance(number, Fraction):
        return number
    try:
        if isinstance(number, bool | str):
            raise ValueError
        return Fraction(str(number))
    except (ValueError, ZeroDivisionError):
        raise InvalidInput(f"{what}{'=' * bool(what)}{number!r} is not a finite number.") from None


def _unit(max_resource: Number, min_resource: Number) -> Fraction:
    """Return R in units of the smallest resource."""
    R, unit = exact(max_resource, "max_resource"), exact(min_resource, "min_resource")
    if not 0 < unit <= R:
        raise InvalidInput(
            f"max_resource={max_resource} and min_resource={min_resource} are not allowed. Both must be above 0, and "
            "max_resource at least min_resource."
        )
    return R / unit


def _eta(eta: Number) -> Fraction:
    base = exact(eta, "eta")
    if base <= 1:
        raise InvalidInput(f"eta={eta!r} is not above 1. Common values are 3 and 4.")
    return base


def _whole(what: str, n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidInput(f"{what}={n!r} is not a whole number of 1 or more.")
    return n
