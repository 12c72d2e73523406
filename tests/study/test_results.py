"""All answers of a study are of one log position: the one that this process has read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial
from haltune.errors import HaltuneError
from haltune.policies import GPUCB, Halting, RandomSearch, TruVaR
from haltune.report import summary
from haltune.store.memory import MemoryStore

PROBLEM = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc"), 2)
POLICIES: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSearch(),
    "truvar": lambda: TruVaR(initial=2, grid=12),
    "truvar-level-set": lambda: TruVaR(threshold=0.6, initial=2, grid=12, kernel="se"),
    "level-set-search": lambda: TruVaR(0.6, rule="gchk", initial=2, grid=12),
    "halting-truvar": lambda: Halting(TruVaR(threshold=0.6, initial=2, grid=12)),
}
QUESTIONS: dict[str, Callable[[Study], Any]] = {
    "events": lambda study: list(study.events()),
    "later events": lambda study: list(study.events(3)),
    "level set": lambda study: told(study.level_set(0.5)),
    "own level set": lambda study: told(study.level_set()),
    "maximisers": lambda study: told(study.maximisers()),
    "receipt": lambda study: [study.explain(t.id) for t in study.trials],
    "frame": lambda study: study.frame().to_csv(),
    "recommended": lambda study: study.recommend(),
    "best": lambda study: study.best,
    "spent": lambda study: study.spent,
}


def told(answer: Any) -> tuple[Any, ...]:
    """Every number of an answer."""
    arrays = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(answer).items() if k != "space"}
    return str(answer), repr(arrays)


def work(study: Study, trials: list[Trial]) -> None:
    """One step: an epoch of a trial that runs, or a new one."""
    if not trials:
        trials += [trial for trial in [study.ask()] if isinstance(trial, Trial)]  # or the search is over
        return
    trial = trials[0]
    trial.report(1.0 - (trial.config["x"] - 0.3) ** 2 - 0.1 / trial.epoch if trial.epoch else 0.2, seconds=1.0)
    if trial.epoch == PROBLEM.max_epochs:
        trial.finish()
        trials.clear()


def answered(question: Callable[[Study], Any], study: Study) -> Any:
    try:
        return question(study)
    except HaltuneError as error:
        return type(error), str(error)


class Prefix(MemoryStore):
    """The first events of another store's study, as a process finds them that opens it at that moment."""

    def __init__(self, store: MemoryStore, length: int) -> None:
        super().__init__()
        self.prefix = list(store.read("study", 0, length))

    def _log(self, name: str) -> list[Any]:
        return self.prefix


@settings(max_examples=many(8), deadline=None)
@given(
    name=st.sampled_from(sorted(POLICIES)),
    steps=st.lists(st.booleans(), min_size=12, max_size=40),
    ahead=st.integers(0, 12),
)
def test_all_answers_of_a_study_are_those_of_one_opened_at_its_position(
    name: str, steps: list[bool], ahead: int
) -> None:
    store, budget = MemoryStore(lambda: 1e6), Budget(trials=99)
    mine, other = (Study(PROBLEM, POLICIES[name](), store, seed=3, budget=budget) for _ in range(2))
    trials: tuple[list[Trial], list[Trial]] = ([], [])
    for own in steps:
        work(mine if own else other, trials[not own])
    for _ in range(ahead):
        work(other, trials[1])
    position = mine.history.position
    fresh = Study(PROBLEM, POLICIES[name](), Prefix(store, position), seed=3, budget=budget)
    assert fresh.history.position == position
    for what, question in QUESTIONS.items():
        assert answered(question, mine) == answered(question, fresh), what
    assert mine.history.position == position


def test_the_events_of_a_study_end_where_its_history_does_until_it_reads_on() -> None:
    store = MemoryStore()
    mine, other = (Study(PROBLEM, GPUCB(), store, seed=3, budget=Budget(trials=9)) for _ in range(2))
    trial = other.ask()
    assert isinstance(trial, Trial)
    assert [e.kind for e in mine.events()] == ["created"]
    assert list(mine.events(1)) == list(mine.events(9)) == []
    assert len(mine.trials) == 0
    summary(mine)  # whoever shows a study reads on first
    assert [e.kind for e in mine.events()] == ["created", "budgeted", "started"]
    assert len(mine.trials) == 1
