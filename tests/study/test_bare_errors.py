"""What users hold wrongly is answered in haltune's words, and their own errors stay theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import haltune
from haltune import Float, Minimize, Problem, Space, Study, Trial, policies
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch

PROBLEM = Problem(Space({"lr": Float(0.0, 1.0)}), Minimize("loss"), 3)


def opened(store: Path | None = None, **options: Any) -> Study:
    return Study(PROBLEM, RandomSearch(), store, **{"seed": 0, "budget": "3 trials", "verbose": 0, **options})


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Numeric(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


def test_a_trial_of_another_study_is_refused_and_written_nowhere(tmp_path: Path) -> None:
    mine, other = opened(tmp_path / "a.db"), opened(tmp_path / "b.db", name="other")
    trial = asked(mine)
    with pytest.raises(InvalidInput, match=r"'study' in .*a\.db.*, not to 'other' in .*b\.db"):
        other.tell(trial, 0.5)
    assert len(mine.trials[0].values) == 0
    assert not other.trials


def test_a_trial_may_be_told_through_another_opening_of_its_study(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "a.db"), opened(tmp_path / "a.db")
    second.tell(asked(first), 0.25)
    second.sync()
    assert list(second.trials[0].values) == [0.25]


@pytest.mark.parametrize("error", [Mute(), Numeric()])
def test_an_error_that_has_no_text_is_recorded_by_its_class_and_raised(error: Exception) -> None:
    study = opened()
    with pytest.raises(type(error)), asked(study) as trial:
        trial.report(0.5)
        raise error
    assert study.trials[0].error == type(error).__name__
    asked(study).fail(error)
    assert study.trials[1].error == type(error).__name__


@pytest.mark.parametrize("name", [name for name in policies.__all__ if name not in haltune.__all__])
def test_a_policy_imported_from_haltune_is_answered_by_the_import_that_has_it(name: str) -> None:
    with pytest.raises(ImportError, match=f"from haltune.policies import {name}$"):
        exec(f"from haltune import {name}")


def test_a_parameter_read_by_its_long_name_is_answered_by_its_short_one() -> None:
    with pytest.raises(KeyError) as raised, asked(opened()) as trial:
        trial.config["learning_rate"]
    assert "it has 'lr': trial.config['lr'] is near to 'learning_rate'" in raised.value.__notes__[0]
