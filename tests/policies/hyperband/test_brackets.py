"""Brackets against the paper: table 1, algorithm 1 word for word in exact numbers, figures 9 and 10."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune.errors import InvalidInput
from haltune.policies.hyperband.brackets import (
    Bracket,
    Number,
    Schedule,
    fewest_halvings,
    growing,
    halving,
    hyperband,
    infinite,
    pulls,
)

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
    """Train one configuration after the other and count: the first n_{i} of a rung go on."""
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


def test_line_2_starts_other_numbers_than_table_1_prints() -> None:
    assert [b.rungs[0].n for b in hyperband(81, 3).brackets] == [81, 34, 15, 8, 5]


def test_the_totals_of_r_81_with_and_without_resume() -> None:
    line2, table1 = hyperband(81), hyperband(81, sizes="table1")
    assert (line2.total(resume=False), line2.total(resume=True)) == (1902, 1581)
    assert (table1.total(resume=False), table1.total(resume=True)) == (1701, 1404)


def test_a_schedule_is_printed_as_table_1_is() -> None:
    made = hyperband(81, 3, sizes="table1")
    lines = made.table().splitlines()
    assert lines[0].split() == ["s=4", "s=3", "s=2", "s=1", "s=0"]
    assert lines[1].split() == ["i", *["n_i", "r_i"] * 5]
    numbers = [list(map(int, line.split())) for line in lines[2:]]
    for i, row in enumerate(numbers):
        assert row == [i, *(x for b in TABLE_1.values() if i < len(b) for x in b[i])]
    assert str(made) == made.table()


PAIRS: list[tuple[Number, Number]] = [
    (1, 3), (2, 3), (3, 3), (9, 3), (10, 3), (26, 3), (27, 3), (28, 3), (81, 3), (100, 3), (242, 3), (243, 3),
    (244, 3), (729, 3), (1000, 3), (3**10, 3), (3**15, 3), (3**15 - 1, 3), (16, 4), (64, 4), (100, 4), (256, 4),
    (300, 4), (600, 4), (1000, 10), (999, 10), (10**6, 10), (1024, 2), (1000, 2), (125, 5), (343, 7), (50, 2.5),
    (39.0625, 2.5), (100, math.e), (1000, math.e), (81, 3.5), (30.5, 3),
]  # fmt: skip


@pytest.mark.parametrize(("R", "eta"), PAIRS)
def test_algorithm_1_holds_for_other_resources_and_rates(R: Number, eta: Number) -> None:
    assert {b.s: rungs(b) for b in hyperband(R, eta).brackets} == algorithm_1(R, eta)


@pytest.mark.parametrize(("R", "eta"), [p for p in PAIRS if p[0] < 10**5])
def test_totals_are_what_a_count_of_trainings_comes_to(R: Number, eta: Number) -> None:
    made = hyperband(R, eta)
    for resume in (True, False):
        counted = sum(simulated(list(rows), resume) for rows in algorithm_1(R, eta).values())
        assert made.total(resume) == counted


@pytest.mark.parametrize(("R", "eta", "s_max"), [(243, 3, 5), (1000, 10, 3), (3**15, 3, 15), (125, 5, 3)])
def test_no_bracket_is_lost_to_rounding_in_a_logarithm(R: int, eta: int, s_max: int) -> None:
    assert len(hyperband(R, eta).brackets) == s_max + 1
    assert hyperband(R, eta).brackets[0].rungs[0].resource == 1


def test_the_runs_of_section_3_1_have_five_brackets() -> None:
    assert len(hyperband(300, 4).brackets) == len(hyperband(600, 4).brackets) == 5


def test_a_unit_of_resource_counts_r_in_it() -> None:
    """Section 2.5: 100k iterations in units of 100 are R = 1000; rungs are in iterations again."""
    small, large = hyperband(1000, 3), hyperband(100_000, 3, min_resource=100)
    exactly = hyperband(1000, 3, whole=False)
    for a, b, c in zip(small.brackets, large.brackets, exactly.brackets, strict=True):
        assert [r.n for r in a.rungs] == [r.n for r in b.rungs]
        assert [math.floor(100 * r.resource + 1e-9) for r in c.rungs] == [r.resource for r in b.rungs]
    tenth = hyperband(8.1, 3, min_resource=0.1, whole=False)
    assert [r.resource for r in tenth.brackets[0].rungs] == [0.1, 0.3, 0.9, 2.7, 8.1]


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


def test_rungs_that_round_to_the_same_resource_are_one() -> None:
    """R = 10, eta = 1.5: r_i = 1.3, 1.97, 2.96, 4.4, 6.7, 10; nothing is new between the first two."""
    literal = algorithm_1(10, 1.5)[5]
    assert [r for _, r in literal] == [1, 1, 2, 4, 6, 10]
    assert rungs(hyperband(10, 1.5).brackets[0]) == [literal[0], *literal[2:]]
    assert rungs(halving(100, 1, 81, 1.5))[0] == (100, 1)
    assert rungs(halving(100, 0.25, 4, 2)) == [(100, 1), (12, 2), (6, 4)]


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
@given(R=numbers, eta=rates, n=st.integers(1, 500))
def test_successive_halving_starts_n_and_trains_the_last_in_full(R: Number, eta: Number, n: int) -> None:
    bracket = halving(n, 1, R, eta)
    rows, e = rungs(bracket), exact(eta)
    assert rows[0][0] == n
    assert rows[-1][1] == math.floor(R)
    assert all(a[0] >= b[0] and a[1] < b[1] for a, b in pairwise(rows))
    shapes = {(math.floor(n / e**i), max(1, math.floor(e**i))) for i in range(400) if n / e**i >= 1}
    assert set(rows[:-1]) <= shapes
    if len(rows) > 1 and rows[-1][0] > 1:  # nobody could be dropped any more, or the resource is reached
        i = next(i for i in range(400) if math.floor(n / e**i) == rows[-1][0] and e ** (i + 1) >= min(R, n))
        assert n / e ** (i + 1) < 1 or e**i >= exact(R) or math.floor(e**i) == math.floor(R)


def test_one_bracket_of_successive_halving_is_the_first_of_hyperband() -> None:
    for R, eta in [(81, 3), (64, 4), (1024, 2), (125, 5)]:
        assert halving(R, 1, R, eta) == hyperband(R, eta).brackets[0]
    assert rungs(halving(27, 1, 81)) == [(27, 1), (9, 3), (3, 9), (1, 81)]
    assert rungs(halving(81, 1, 80)) == [(81, 1), (27, 3), (9, 9), (3, 27), (1, 80)]
    assert rungs(halving(1, 1, 81)) == [(1, 81)]
    assert rungs(halving(2, 1, 81)) == [(2, 81)]  # floor(2 / 3) = 0: nobody would be compared for anything


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


def test_the_infinite_horizon_runs_with_eta_4_from_a_budget_of_2_r() -> None:
    R = 300
    expected = figure_9(4, [2 * R * 2**k for k in range(10)])
    assert [rungs(b) for b in islice(infinite(4, 2 * R), len(expected))] == expected


@pytest.mark.parametrize("budget", [2, 8, 16, 64, 1000])
def test_a_bracket_of_figure_9_stays_within_its_budget(budget: int) -> None:
    for n in (2, 4, 8, 16):
        rounds = n.bit_length() - 1
        if n * rounds <= budget:
            assert pulls(n, budget).total() <= budget
        else:
            with pytest.raises(InvalidInput, match=f"take {n * rounds} at least"):
                pulls(n, budget)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 100])
def test_rounding_down_leaves_nobody_unless_n_is_a_power(n: int) -> None:
    alive, rounds = n, math.ceil(math.log2(n))
    for _ in range(rounds):
        alive //= 2
    assert alive == 0  # S after the last round, the output of figure 9
    with pytest.raises(InvalidInput, match="no power of eta"):
        pulls(n, 1000)


def test_units_scale_a_bracket_and_whole_ones_are_rounded_down() -> None:
    bracket = next(b for b in infinite() if len(b.rungs) == 2)
    assert rungs(bracket.scaled(10)) == [(4, 10), (2, 30)]
    assert rungs(bracket.scaled(2.5)) == [(4, 2), (2, 7)]
    assert rungs(bracket.scaled(2.5, whole=False)) == [(4, 2.5), (2, 7.5)]


# -- what makes no sense ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hyperband(0), "above 0"),
        (lambda: hyperband(-1), "above 0"),
        (lambda: hyperband(math.nan), "not a finite number"),
        (lambda: hyperband(math.inf), "not a finite number"),
        (lambda: hyperband("81"), "not a finite number"),  # type: ignore[arg-type]
        (lambda: hyperband(True), "not a finite number"),
        (lambda: hyperband(81, 1), "above 1"),
        (lambda: hyperband(81, 0.5), "above 1"),
        (lambda: hyperband(81, math.nan), "not a finite number"),
        (lambda: hyperband(81, None), "not a finite number"),  # type: ignore[arg-type]
        (lambda: hyperband(81, min_resource=100), "the first at least the second"),
        (lambda: hyperband(81, min_resource=0), "above 0"),
        (lambda: hyperband(81, n_max=0), "n_max=0"),
        (lambda: hyperband(81, n_max=2.5), "a whole number"),  # type: ignore[arg-type]
        (lambda: hyperband(81, n_min=1000), "lower n_min"),
        (lambda: hyperband(81, n_max=9, n_min=27), "lower n_min"),
        (lambda: halving(0, 1, 81), "n=0"),
        (lambda: halving(True, 1, 81), "n=True"),
        (lambda: halving(27, 0, 81), "above 0"),
        (lambda: halving(27, 100, 81), "the first at least the second"),
        (lambda: halving(27, 1, math.inf), "not a finite number"),
        (lambda: pulls(4, 4), "take 8 at least"),
        (lambda: next(infinite(2.5)), "a whole number"),  # type: ignore[arg-type]
        (lambda: next(infinite(1)), "at least 2"),
        (lambda: next(growing(0)), "above 0"),
    ],
)  # fmt: skip
def test_numbers_that_make_no_schedule_are_refused_in_a_sentence(make, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=says):
        make()


def test_an_empty_bracket_never_comes_out() -> None:
    assert hyperband(1).brackets == (halving(1, 1, 1),)
    assert Schedule(hyperband(1).brackets).total() == 1
