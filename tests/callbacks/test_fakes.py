"""The trial that tests of callbacks use in place of a study's: it is a port, and nothing of it is left to a session."""

import inspect

import pytest
from callback_fakes import FakeTrial

from haltune.study.loops import LoopPort

VERBS = sorted(n for n in dir(LoopPort) if not n.startswith("_") and inspect.isfunction(getattr(LoopPort, n)))


@pytest.mark.parametrize("name", VERBS)
def test_the_fake_takes_what_a_port_takes_and_answers_without_a_session(name):
    real, fake = inspect.signature(getattr(LoopPort, name)), inspect.signature(vars(FakeTrial)[name])
    assert list(fake.parameters) == list(real.parameters)
    required = [p.name for p in real.parameters.values() if p.default is p.empty]
    assert [p.name for p in fake.parameters.values() if p.default is p.empty] == required


def test_the_fake_has_all_facts_of_a_port():
    facts = {name for name in dir(LoopPort) if not name.startswith("_")} - set(VERBS)
    trial = FakeTrial()
    assert {name for name in facts if hasattr(trial, name)} == facts
