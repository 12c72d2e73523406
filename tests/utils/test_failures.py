"""What a training that raised is recorded as."""

import pytest

from haltune._utils.failures import interrupts, one_line


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


def test_ctrl_c_and_exits_interrupt_and_exceptions_fail() -> None:
    assert interrupts(KeyboardInterrupt())
    assert interrupts(SystemExit(1))
    assert not interrupts(ValueError("x"))
