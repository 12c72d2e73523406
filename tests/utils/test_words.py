"""Counts in words, and what a training that raised is recorded as."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune.display import amount, chance, counted, one_line, plural, short


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 epochs"), (1, "1 epoch"), (1.0, "1 epoch"), (2.5, "2.5 epochs"), (14, "14 epochs"), (0.5, "0.5 epochs"),
     (9999, "9999 epochs"), (1_266_704, "1,266,704 epochs"), (float("inf"), "inf epochs")],
)  # fmt: skip
def test_one_is_told_as_one_and_all_else_as_several(count, told):
    assert plural(count, "epoch") == told


def test_what_is_not_formed_by_an_s_is_said():
    assert [plural(n, "study", "studies") for n in (1, 3)] == ["1 study", "3 studies"]
    assert [plural(n, "continues", "continue") for n in (1, 3)] == ["1 continues", "3 continue"]
    assert counted(100_000) == "100,000"


@pytest.mark.parametrize(
    ("count", "unit", "told"),
    [(1.0, "epochs", "1 epoch"), (27.0, "epochs", "27 epochs"), (1e6, "epochs", "1e+06 epochs"),
     (1, "seconds", "1 second"), (1, "of cost", "1 of cost"), (1, "GPU hours", "1 GPU hours"),
     (1.04, "trials", "1.04 trials")],
)  # fmt: skip
def test_a_unit_is_told_of_one_where_its_word_is_known(count, unit, told):
    assert amount(count, unit) == told


def test_what_rounds_to_one_is_told_as_one():
    assert amount(1.0004, "epochs", 3) == "1 epoch"


@pytest.mark.parametrize(
    ("p", "of", "told"),
    [(0.0383, 4000, "= 0.04"), (0.0648, 4000, "= 0.06"), (0.4, 4000, "= 0.40"), (0.4, 150, "= 0.40"),
     (0.4, 20, "= 0.4"), (0.00192, 4000, "= 0.002"), (0.0096, 4000, "= 0.01"), (0.0003, 4000, "= 0.0003"),
     (0.0, 4000, "< 0.0008"), (0.0, 62, "< 0.05"), (0.0, 2, "< 1.0"), (0.9986, 4000, "> 0.99"), (0.0, 0, "= 0.00")],
)  # fmt: skip
def test_a_probability_is_told_to_two_decimals_and_a_small_one_to_its_first_digit(p, of, told):
    assert chance(p, of) == told


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_a_probability_is_told_to_no_digit_beyond_the_first_of_its_error(wins: int, paths: int) -> None:
    p = min(wins, paths) / paths
    sign, number = chance(p, paths).split()
    said, unit = float(number), 10.0 ** -len(number.split(".")[1])
    error = np.sqrt(max(p * (1.0 - p), 1.0 / paths) / paths)
    assert 0.0 <= said <= 1.0
    if sign == "=":
        assert abs(said - p) <= 0.5 * unit + 1e-12
        assert unit >= 0.1 * error or p < 0.05
    elif sign == "<":
        assert p == 0.0
        assert min(1.0, 3.0 / paths) <= said + 1e-12 <= max(1.0, 6.0 / paths)
    else:
        assert p > said


def test_an_error_is_one_line_of_kind_and_message() -> None:
    assert one_line(ValueError("shapes differ\nsecond line")) == "ValueError: shapes differ"
    assert one_line(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    ("value", "digits", "told"),
    [(0.91344, 4, "0.9134"), (1.23e-05, 3, "1.23e-05"), (3310.0, 3, "3310"), (13310.4, 4, "13310"),
     (-13310.4, 4, "-13310"),
     (1.25e8, 3, "1.25e+08"), (float("nan"), 4, "nan"), (13310, 3, "13310"), ("adam", 3, "adam")],
)  # fmt: skip
def test_a_number_of_up_to_seven_digits_is_written_out(value, digits, told):
    assert short(value, digits) == told
