"""Random search."""

import pytest
from worlds import SPACE, problem, search, small_study

from haltune import Choice, Finish, Int, Space
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch


def test_every_configuration_is_of_the_space_and_trained_in_full() -> None:
    study = search(small_study(RandomSearch(), trials=12))
    assert all(SPACE.contains(t.config) for t in study.trials)
    assert [t.epoch for t in study.trials] == [6.0] * 12


def test_no_configuration_is_drawn_twice_while_others_are_left() -> None:
    space = Space({"a": Int(1, 3), "b": Choice(["x", "y"])})
    study = search(small_study(RandomSearch(), problem=problem(space=space), trials=6))
    assert len({space.key(t.config) for t in study.trials}) == 6


def test_it_finishes_after_the_number_of_trials_asked_for() -> None:
    study = search(small_study(RandomSearch(trials=3), trials=99))
    answer = study.ask()
    assert isinstance(answer, Finish)
    assert "all 3" in answer.reason
    assert len(study.trials) == 3


@pytest.mark.parametrize("trials", [0, -1, True])
def test_a_number_of_trials_below_one_is_refused(trials: int) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        RandomSearch(trials=trials)
