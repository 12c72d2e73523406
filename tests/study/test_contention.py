"""A store in which another worker always moves first: what is tried again hears Ctrl-C between two tries."""

import os
import signal

import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study, load_study
from haltune.policies import RandomSearch
from haltune.store.base import Conflict
from haltune.store.memory import MemoryStore


class Contended(MemoryStore):
    """From `appends = 0` on no append succeeds, and at the third a user presses Ctrl-C."""

    appends = -1

    def append(self, *args, **named):
        if self.appends < 0:
            return super().append(*args, **named)
        self.appends += 1
        if self.appends == 3:
            os.kill(os.getpid(), signal.SIGINT)
        assert self.appends < 9, "retried without end"
        raise Conflict


def study(store, high=1.0):
    problem = Problem(Space({"x": Float(0.0, high)}), Maximize("acc"), 3)
    return Study(problem, RandomSearch(), store, budget=Budget(trials=9), seed=1, verbose=0)


ACTIONS = {
    "ask": lambda s, trial: s.ask(),
    "enqueue": lambda s, trial: s.enqueue({"x": 0.5}),
    "enqueue where nobody trains": lambda s, trial: load_study(s.store).enqueue({"x": 0.5}),
    "report": lambda s, trial: trial.report(0.5),
    "finish": lambda s, trial: trial.finish(),
    "fail": lambda s, trial: trial.fail(ValueError("a bug")),
    "interrupt": lambda s, trial: trial.interrupt(),
    "open in a wider space": lambda s, trial: study(s.store, high=2.0),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_ctrl_c_ends_what_others_come_before_without_end_and_the_study_goes_on(action):
    store = Contended()
    s = study(store)
    trial = s.ask()
    trial.report(0.1)
    store.appends = 0
    with pytest.raises(KeyboardInterrupt):
        action(s, trial)
    assert store.appends == 3
    store.appends = -1
    action(s, trial)
    assert isinstance(s.ask().id, int)
