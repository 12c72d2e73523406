"""Asking: a policy's end, budgets that change, and budgets that nothing is charged to."""

import pytest
from told_rules import Scripted
from virtual import search, study
from worlds import Clock

from haltune import Budget, Finish, Float, HaltuneWarning, Maximize, Problem, Space, Study, Trial
from haltune.log.decisions import Action
from haltune.policies import EI, RandomSearch, Rollout
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide

SMALL = {"initial": 3, "paths": 8, "points": 12}


@pytest.mark.slow
def test_a_larger_budget_takes_up_a_search_that_its_policy_ended_for_want_of_budget():
    store = MemoryStore(Clock())
    first = search(study(Rollout(**SMALL), Budget(time=90), store=store))
    assert first.outcome.reason.startswith("nothing is affordable")
    same = study(Rollout(**SMALL), Budget(time=90), store=store)
    assert same.ask() == Finish(first.outcome.reason)
    larger = study(Rollout(**SMALL), Budget(time=150), store=store)
    assert not larger.outcome.over
    search(larger)
    assert len(larger.trials) > len(first.trials)
    assert larger.spent.time > 90
    assert larger.outcome.over
    assert [d for d in redecide(larger.problem, Rollout(**SMALL), larger.events()) if d[1] != d[2]] == []


def test_no_budget_takes_up_a_search_that_its_policy_ended_permanently():
    store = MemoryStore(Clock())
    search(study(RandomSearch(trials=2), Budget(time=900), store=store))
    assert isinstance(study(RandomSearch(trials=2), Budget(time=9000), store=store).ask(), Finish)


@pytest.mark.parametrize("policy", [RandomSearch(), EI(cost="per", initial=2)])
def test_a_budget_of_costs_that_are_not_reported_gives_one_warning(policy):
    found = study(policy, Budget(cost=100))
    with pytest.warns(HaltuneWarning, match=r"trial 0 reported none. Report it: trial.report\(value, cost=") as caught:
        for _ in range(3):
            with found.ask() as trial:
                trial.report(0.5, epoch=1)
    assert len(caught) == 1


class Counted(Scripted):
    """Counts its proposals."""

    proposals = 0

    def propose(self, state, history, rng):
        self.proposals += 1
        return super().propose(state, history, rng)


def test_the_policy_is_asked_once_for_each_decision_also_once_no_more_trials_may_start():
    policy = Counted({(0, 1): Action.PAUSE, (1, 1): Action.PAUSE})
    found = Study(Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 2), policy, seed=0, budget="2 trials")
    asked = 0
    while isinstance(trial := found.ask(), Trial):
        asked += 1
        with trial:
            for _ in trial.epochs():
                trial.report(0.5)
    assert [t.attempt for t in found.trials] == [2, 2]  # the second one resumes when no other may start
    assert asked == policy.proposals == 4
