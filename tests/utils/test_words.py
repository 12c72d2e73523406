"""Counts in words, and what a training that raised is recorded as."""

import pytest

from haltune._utils.words import amount, counted, one_line, plural


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 epochs"), (1, "1 epoch"), (1.0, "1 epoch"), (2.5, "2.5 epochs"), (14, "14 epochs"), (0.5, "0.5 epochs"),
     (9999, "9999 epochs"), (1_266_704, "1,266,704 epochs"), (float("inf"), "inf epochs")],
)  # fmt: skip
def test_one_is_told_as_one_and_all_else_as_several(count, told):
    assert plural(count, "epoch") == told


def test_what_is_not_formed_by_an_s_is_said():
    assert [plural(n, "study", "studies") for n in (1, 3)] == ["1 study", "3 studies"]
    assert [plural(n, "goes on", "go on") for n in (1, 3)] == ["1 goes on", "3 go on"]
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


class OutOfMemoryError(RuntimeError):
    """torch's."""


class ResourceExhaustedError(Exception):
    """tensorflow's."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("RESOURCE_EXHAUSTED: XLA"),
        OutOfMemoryError("no"),
        ResourceExhaustedError("OOM when allocating"),
    ],
)
def test_running_out_of_memory_says_so_whatever_the_framework_calls_it(error: Exception) -> None:
    assert one_line(error).startswith(f"out of memory: {type(error).__name__}")


def test_other_errors_are_one_line_of_kind_and_message() -> None:
    assert one_line(ValueError("shapes differ\nsecond line")) == "ValueError: shapes differ"
    assert one_line(KeyError()) == "KeyError"
