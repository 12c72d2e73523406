"""A policy goes to other processes with the study that it decides for, at any moment of its life."""

from __future__ import annotations

import copy
import pickle

from everyone import everyone
from worlds import LAWFUL, small_study, train

from haltune import Trial


@everyone
def test_every_policy_that_has_decided_travels_to_another_process(name: str) -> None:
    study = small_study(LAWFUL[name](), trials=2)
    answer = study.ask()
    assert isinstance(answer, Trial)
    train(answer)
    arrived = pickle.loads(pickle.dumps(study.policy))
    assert arrived.spec == study.policy.spec == copy.deepcopy(study.policy).spec
