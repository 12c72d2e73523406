"""Brackets against the paper: table 1, algorithm 1 word for word in exact numbers, figures 9 and 10."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import islice, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import many
from haltune.policies.hyperband.brackets import Bracket, Number, fewest_halvings, growing, halving, hyperband, infinite

TABLE_1 = {  # the paper's table 1, R = 81, eta = 3
    4: [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
    3: [(27, 3), (9, 9), (3, 27), (1, 81)],
    2: [(9, 9), (3, 27), (1, 81)],
    1: [(6, 27), (2, 81)],
    0: [(5, 81)],
}


def rungs(bracket: Bracket) -> list[tuple[int, float]]:
    return [(r.n, r.resource) for r in bracket.rungs]


def exact(x: Number) -> Fraction:
    return Fraction(repr(x)) if isinstance(x, float) else Fraction(x)


def floor_log(x: Fraction, base: Fraction) -> int:
    """The largest s with base^s <= x, by trying."""
    return max(s for s in range(200) if base**s <= x)


def algorithm_1(R: Number, eta: Number) -> dict[int, list[tuple[int, int]]]:
    """Lines 1 to 9 as printed, with the resource rounded down, at least 1."""
    r, e = exact(R), exact(eta)
    s_max = floor_log(r, e)
    B = (s_max + 1) * r
    brackets = {}
    for s in range(s_max, -1, -1):
        n = math.ceil(B / r * e**s / (s + 1))
        start = r / e**s
        brackets[s] = [(math.floor(n / e**i), max(1, math.floor(start * e**i))) for i in range(s + 1)]
    return brackets


def simulated(rows: list[tuple[int, float]], resume: bool) -> float:
    """Train one configuration after the other and count: the first n_{i} of a rung are promoted."""
    trained: dict[int, float] = {}
    spent = 0.0
    for n, resource in rows:
        for config in range(n):
            spent += resource - (trained.get(config, 0.0) if resume else 0.0)
            trained[config] = resource
    return spent


# -- table 1 and algorithm 1 --------------------------------------------------------------


def test_table_1_of_the_paper_comes_out_exactly() -> None:
    made = hyperband(81, 3, sizes="table1")
    assert {b.s: rungs(b) for b in made.brackets} == TABLE_1
    assert [b.s for b in made.brackets] == [4, 3, 2, 1, 0]


PAIRS: list[tuple[Number, Number]] = [
    (1, 3), (2, 3), (3, 3), (9, 3), (10, 3), (26, 3), (27, 3), (28, 3), (81, 3), (100, 3), (242, 3), (243, 3),
    (244, 3), (729, 3), (1000, 3), (3**10, 3), (3**15, 3), (3**15 - 1, 3), (16, 4), (64, 4), (100, 4), (256, 4),
    (300, 4), (600, 4), (1000, 10), (999, 10), (10**6, 10), (1024, 2), (1000, 2), (125, 5), (343, 7), (50, 2.5),
    (39.0625, 2.5), (100, math.e), (1000, math.e), (81, 3.5), (30.5, 3),
]  # fmt: skip


@pytest.mark.parametrize(("R", "eta"), PAIRS)
def test_algorithm_1_holds_for_other_resources_and_rates(R: Number, eta: Number) -> None:
    assert {b.s: rungs(b) for b in hyperband(R, eta).brackets} == algorithm_1(R, eta)


def test_n_max_limits_the_first_bracket_and_n_min_the_last() -> None:
    for n_max in (1, 2, 3, 10, 26, 27, 80, 81, 1000):
        made = hyperband(81, 3, n_max=n_max).brackets
        s_max = min(floor_log(Fraction(n_max), Fraction(3)), 4)
        assert [b.s for b in made] == list(range(s_max, -1, -1))
        assert all(b.rungs[0].n <= n_max for b in made)
        assert all(b.rungs[-1].resource == 81 for b in made)
        first = {b.s: b.rungs[0].n for b in made}
        assert first == {s: math.ceil(Fraction((s_max + 1) * 3**s, s + 1)) for s in first}
    for n_min in (1, 2, 3, 8, 9, 27, 80, 81):
        made = hyperband(81, 3, n_min=n_min).brackets
        assert [b.s for b in made] == list(range(4, floor_log(Fraction(n_min), Fraction(3)) - 1, -1))
    assert hyperband(81, 3, n_min=16).brackets[-1].rungs[0].n == 15  # as the docstring warns


numbers = st.one_of(st.integers(1, 2000), st.floats(1, 2000, allow_nan=False))
rates = st.one_of(st.integers(2, 12), st.floats(1.2, 9, allow_nan=False))


@settings(max_examples=many(150), deadline=None)
@given(R=numbers, eta=rates, sizes=st.sampled_from(["line2", "table1"]), whole=st.booleans())
def test_every_bracket_narrows_and_trains_its_winner_in_full(R: Number, eta: Number, sizes: str, whole: bool) -> None:
    made = hyperband(R, eta, sizes=sizes, whole=whole)  # type: ignore[arg-type]
    for bracket in made.brackets:
        rows = rungs(bracket)
        assert all(n >= 1 for n, _ in rows)
        assert all(r >= (1 if whole else 1 - 1e-9) for _, r in rows)
        assert all(a[0] >= b[0] and a[1] < b[1] for a, b in pairwise(rows))
        assert rows[-1][1] == (math.floor(R) if whole else pytest.approx(float(R)))
        for resume in (True, False):
            assert bracket.total(resume) == pytest.approx(simulated(rows, resume))
    assert made.total() == pytest.approx(sum(b.total() for b in made.brackets))


@settings(max_examples=many(100), deadline=None)
@example(R=78.0, eta=1.21875, n=284)  # whose last two rungs have three trials each
@given(R=numbers, eta=rates, n=st.integers(1, 500))
def test_successive_halving_starts_n_and_trains_the_last_in_full(R: Number, eta: Number, n: int) -> None:
    bracket = halving(n, 1, R, eta)
    rows, e = rungs(bracket), exact(eta)
    assert rows[0][0] == n
    assert rows[-1][1] == math.floor(R)
    assert all(a[0] >= b[0] and a[1] < b[1] for a, b in pairwise(rows))
    shapes = {(math.floor(n / e**i), max(1, math.floor(e**i))) for i in range(400) if n / e**i >= 1}
    assert set(rows[:-1]) <= shapes
    if len(rows) > 1 and rows[-1][0] > 1:  # no trial could be dropped, or the resource is reached
        last = [i for i in range(400) if math.floor(n / e**i) == rows[-1][0] and e ** (i + 1) >= min(R, n)]
        assert any(n / e ** (i + 1) < 1 or e**i >= exact(R) or math.floor(e**i) == math.floor(R) for i in last)


def test_one_bracket_of_successive_halving_is_the_first_of_hyperband() -> None:
    for R, eta in [(81, 3), (64, 4), (1024, 2), (125, 5)]:
        assert halving(R, 1, R, eta) == hyperband(R, eta).brackets[0]
    assert rungs(halving(27, 1, 81)) == [(27, 1), (9, 3), (3, 9), (1, 81)]
    assert rungs(halving(81, 1, 80)) == [(81, 1), (27, 3), (9, 9), (3, 27), (1, 80)]
    assert rungs(halving(1, 1, 81)) == [(1, 81)]
    assert rungs(halving(2, 1, 81)) == [(2, 81)]  # floor(2 / 3) = 0: a comparison would promote none


# -- figure 10 ------------------------------------------------------------------------------


@settings(max_examples=many(200), deadline=None)
@given(budget=st.integers(1, 5000), n=st.integers(1, 300), R=st.integers(1, 300), eta=st.sampled_from([2, 3, 4, 2.5]))
def test_the_halvings_of_figure_10_are_the_fewest_that_fit(budget: int, n: int, R: int, eta: Number) -> None:
    e = exact(eta)
    fits = [t for t in range(60) if e**t <= min(R, n) and n * R * (t + 1) / e**t <= budget]
    assert fewest_halvings(budget, n, R, eta) == (min(fits) if fits else None)


@pytest.mark.parametrize(("R", "eta"), [(81, 3), (64, 4), (100, 2), (20, 2.5), (1, 2)])
def test_growing_brackets_fit_their_budget_and_come_in_the_order_of_figure_10(R: int, eta: Number) -> None:
    e = exact(eta)
    s_max = floor_log(Fraction(R), e)
    expected = []
    for k in range(1, 13):
        for s in range(s_max, -1, -1):
            n = math.floor(2**k * e**s / (R * (s + 1)))
            fits = [t for t in range(60) if n and e**t <= min(R, n) and n * R * (t + 1) / e**t <= 2**k]
            if fits:
                t = min(fits)
                rows = [(math.floor(n / e**i), max(1, math.floor(R * e**i / e**t))) for i in range(t + 1)]
                assert simulated(rows, resume=False) <= 2**k
                expected.append(rows)
    assert len(expected) >= 12
    made = list(islice(growing(R, eta), len(expected)))
    assert [rungs(b) for b in made] == expected


def test_growing_budgets_count_in_units_of_the_smallest_resource() -> None:
    plain, scaled = islice(growing(16, 2), 40), islice(growing(160, 2, min_resource=10), 40)
    for a, b in zip(plain, scaled, strict=True):
        assert [(n, 10 * r) for n, r in rungs(a)] == rungs(b)


def test_a_unit_of_resource_counts_r_in_it() -> None:
    """Section 2.5: 100k iterations in units of 100 are R = 1000; rungs are in iterations again."""
    small, large = hyperband(1000, 3), hyperband(100_000, 3, min_resource=100)
    exactly = hyperband(1000, 3, whole=False)
    for a, b, c in zip(small.brackets, large.brackets, exactly.brackets, strict=True):
        assert [r.n for r in a.rungs] == [r.n for r in b.rungs]
        assert [math.floor(100 * r.resource + 1e-9) for r in c.rungs] == [r.resource for r in b.rungs]
    tenth = hyperband(8.1, 3, min_resource=0.1, whole=False)
    assert [r.resource for r in tenth.brackets[0].rungs] == [0.1, 0.3, 0.9, 2.7, 8.1]


# -- figure 9 -------------------------------------------------------------------------------


def figure_9(eta: int, budgets: list[int]) -> list[list[tuple[int, int]]]:
    """Figure 9 as printed, with eta in the place of 2."""
    brackets = []
    for B in budgets:
        for l in range(1, 60):  # noqa: E741 - the paper's letter
            if l * eta**l > B:  # k - l >= log_2(l)
                continue
            rows, alive, had = [], eta**l, 0
            for _ in range(l):  # ceil(log n) rounds
                had += B // (alive * l)
                rows.append((alive, had))
                alive //= eta
            brackets.append(rows)
    return brackets


def test_the_infinite_horizon_is_figure_9() -> None:
    expected = figure_9(2, [2**k for k in range(1, 15)])
    assert [rungs(b) for b in islice(infinite(), len(expected))] == expected
    assert expected[:3] == [[(2, 1)], [(2, 2)], [(2, 4)]]
    assert [(4, 1), (2, 3)] in expected  # B = 8, n = 4: 1 and 2 more


# -- what makes no sense ----------------------------------------------------------------------
