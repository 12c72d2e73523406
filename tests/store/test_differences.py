"""Differences between two settings are named."""

from __future__ import annotations

from haltune import Choice, Float, Int, Maximize, Problem, Space
from haltune.log.events import plain
from haltune.store.studies import differences


def between(old: Problem, new: Problem) -> list[str]:
    return differences(plain(old.to_json()), plain(new.to_json()))


def problem(**parameters: object) -> Problem:
    return Problem(Space(parameters or {"lr": Float(0.1, 1.0), "n": Int(1, 4)}), Maximize("acc", (0, 1)), 10)  # type: ignore[arg-type]


def test_a_changed_bound_names_its_parameter() -> None:
    [said] = between(problem(), problem(lr=Float(0.1, 2.0), n=Int(1, 4)))
    assert said.startswith("space.parameters.lr.")
    assert "recorded 1.0, given 2.0" in said


def test_parameters_that_come_and_go_are_named() -> None:
    said = between(problem(), problem(lr=Float(0.1, 1.0), kind=Choice(["a", "b"])))
    assert [s.split(":")[0] for s in said] == ["space.parameters.n", "space.parameters.kind"]
    assert "now missing" in said[0]
    assert "was missing" in said[1]


def test_another_order_of_the_parameters_is_another_space() -> None:
    [said] = between(problem(), problem(n=Int(1, 4), lr=Float(0.1, 1.0)))
    assert "recorded in the order lr, n, given as n, lr" in said
