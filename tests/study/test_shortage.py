"""A training that runs out of memory is a failed trial with its reason, and no bug: the search continues."""

from __future__ import annotations

import pytest
from whims import PROBLEM, Whims

from haltune import Budget, Study, Trial


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's error."""


class ResourceExhaustedError(Exception):
    """Has the name of TensorFlow's error."""


SHORTAGES = [
    MemoryError(),
    OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
    ResourceExhaustedError("OOM when allocating tensor"),
]


def new_study(trials: int = 9, **options: int) -> Study:
    return Study(PROBLEM, Whims(), seed=1, budget=Budget(trials=trials), **options)  # type: ignore[arg-type]


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: type(error).__name__)
def test_the_first_trial_may_run_out_and_the_search_continues(error: Exception) -> None:
    study = new_study()
    with asked(study):
        raise error
    record = study.trials[0]
    assert record.status == "failed"
    assert str(record.error).startswith(f"out of memory: {type(error).__name__}")
    with asked(study) as second:
        second.report(0.5)
    assert study.best is not None


def test_what_it_caused_is_one_too_and_other_errors_are_not() -> None:
    study = new_study()
    with asked(study):
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("the epoch failed") from error
    with pytest.raises(ValueError, match="memory of elephants"), asked(study):
        raise ValueError("memory of elephants")
    assert [str(t.error).startswith("out of memory") for t in study.trials] == [True, False]


def test_where_nothing_ever_fits_it_is_raised() -> None:
    study = new_study(20, max_failures=1)
    for _ in range(3):
        with asked(study):
            raise MemoryError
    with pytest.raises(MemoryError) as caught, asked(study):
        raise MemoryError
    assert "4 trials ran out of memory and none has succeeded" in "".join(caught.value.__notes__)


def test_a_full_disk_on_which_tensorflow_saves_is_no_shortage_of_memory() -> None:
    study = new_study()
    with pytest.raises(ResourceExhaustedError), asked(study):
        raise ResourceExhaustedError("model/variables.data; No space left on device [Op:SaveV2]")
    assert study.trials[0].status == "interrupted"
