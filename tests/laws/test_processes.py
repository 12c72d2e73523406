"""A policy goes to other processes with the study that it decides for, at any moment of its life."""

from __future__ import annotations

import copy
import pickle
from typing import Any, ClassVar

from everyone import everyone
from worlds import LAWFUL, small_study, train

from haltune import Finish, Float, Minimize, Problem, Space, Study, Trial


@everyone
def test_every_policy_that_has_decided_travels_to_another_process(name: str) -> None:
    study = small_study(LAWFUL[name](), trials=2)
    answer = study.ask()
    assert isinstance(answer, Trial)
    train(answer)
    arrived = pickle.loads(pickle.dumps(study.policy))
    assert arrived.spec == study.policy.spec == copy.deepcopy(study.policy).spec


class ByItsMethods:
    """Decides as a policy does, and derives from none."""

    spec: ClassVar[dict[str, str]] = {"policy": "ByItsMethods"}

    def start(self, problem: Any) -> int:
        return 0

    def fold(self, state: int, event: Any) -> int:
        return state

    def propose(self, state: int, history: Any, rng: Any) -> Finish:
        return Finish("nothing to train")


def test_a_policy_recognised_by_its_methods_travels_to_another_process() -> None:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), 2)
    study = Study(problem, ByItsMethods(), budget="2 trials", seed=0)
    for arrived in (pickle.loads(pickle.dumps(study.policy)), copy.deepcopy(study.policy)):
        assert arrived.spec == study.policy.spec
        assert type(arrived).__name__ == "ByItsMethods"
        assert Study(problem, arrived, budget="2 trials", seed=0).ask() == study.ask()
