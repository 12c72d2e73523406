"""A study opened from only its log: its content, how it continues, and what only its program has."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from haltune import Budget, Float, Int, Maximize, Problem, Space, Study, load_study
from haltune.errors import InvalidInput, InvalidSpace, NotSupported, StoreError, StudyMismatch
from haltune.policies import BOBOS, EI, MultiFidelity, RandomSearch
from haltune.report import live

X: dict[str, Any] = {"x": Float(0.0, 1.0), "n": Int(1, 4)}


def value(trial: Any) -> float:
    return float(trial.config["x"])


def dear(config: Any) -> float:
    return 1.0 + float(config["x"])


def small(config: Any) -> bool:
    return bool(config["x"] < 0.9)


def test_a_search_continues_without_its_space_said_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    whole = Study(X, "acc", max_epochs=4, seed=3, budget="6 trials").optimize(value)
    Study(X, "acc", path, max_epochs=4, seed=3, budget="3 trials").optimize(value)
    study = load_study(path)
    assert isinstance(study.policy, MultiFidelity)
    assert (study.problem, study.budget) == (Problem(Space(X), Maximize("acc"), 4), Budget(trials=3))
    assert study.outcome.over
    study.budget = "6 trials"
    for trial in study:
        with trial:
            trial.report(value(trial), 4)
    assert [t.config for t in study.trials] == [t.config for t in whole.trials]


def test_names_are_listed_where_one_must_be_said(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with pytest.raises(StoreError):
        load_study(path)
    assert not path.exists()
    for name in ("one", "two"):
        Study(X, "acc", path, name, max_epochs=4, policy=BOBOS())
    with pytest.raises(StoreError, match="'one', 'two'"):
        load_study(path)
    with pytest.raises(StoreError, match="'one', 'two'"):
        load_study(path, "three")
    assert load_study(path, "two").policy.spec == BOBOS().spec


def test_constraints_are_functions_and_without_them_a_search_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    space = Space(X, constraints=[small])
    made = Study(space, "acc", path, max_epochs=4, policy=RandomSearch(), budget="2 trials").optimize(value)
    shown = load_study(path)
    assert (shown.best, len(shown.trials), shown.outcome.over) == (made.best, 2, True)
    assert "acc" in repr(shown.problem.goal)
    assert shown.best_params == made.best_params
    told = r"cannot continue. Its space has the constraints 'small'.*constraints=\{name: function\}"
    for going_on in (shown.ask, lambda: next(iter(shown)), lambda: shown.enqueue({"x": 0.5, "n": 1})):
        with pytest.raises(NotSupported, match=told):
            going_on()
    with live(shown, Console(file=StringIO())):  # a table of it may be shown
        assert shown.store.url.endswith("a.db")
    study = load_study(path, constraints=[small])
    assert study.enqueue({"x": 0.5, "n": 1})
    for wrong in (["small"], {"other": small}):
        with pytest.raises(InvalidSpace):
            load_study(path, constraints=wrong)  # type: ignore[arg-type]


def test_a_search_that_is_only_looked_at_may_have_no_best_trial_yet(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Study(Space(X, constraints=[small]), "acc", path, max_epochs=4, policy=RandomSearch())
    shown = load_study(path)
    assert shown.best is None
    with pytest.raises(InvalidInput, match="no best trial: no trial has reported a finite acc yet"):
        _ = shown.best_value


def test_a_policy_with_a_function_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Study(
        X, "acc", path, max_epochs=4, policy=EI(cost="per", cost_function=dear, initial=2), budget="2 trials"
    ).optimize(value)
    with pytest.raises(NotSupported, match=r"policy=\.\.\."):
        load_study(path, budget="4 trials").optimize(value)
    study = load_study(path, policy=EI(cost="per", cost_function=dear, initial=2), budget="4 trials")
    assert len(study.optimize(value).trials) == 4
    with pytest.raises(StudyMismatch):
        load_study(path, policy=RandomSearch())
