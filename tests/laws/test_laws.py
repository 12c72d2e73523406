"""The laws of haltune.log.policy, over every policy."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import accuracy
from everyone import QUICK, each_class, everyone
from worlds import (
    EPOCHS,
    LAWFUL,
    ONE_AT_A_TIME,
    POLICIES,
    SPACE,
    Clock,
    Crash,
    MortalStore,
    ending,
    problem,
    problem_for,
    search,
    small_study,
    told,
    train,
)

from examples import quickly
from haltune import (
    Budget,
    Choice,
    Constant,
    Constraint,
    Finish,
    Float,
    Int,
    Maximize,
    Minimize,
    Problem,
    Space,
    Study,
    Trial,
    Wait,
)
from haltune.log.decisions import Action
from haltune.log.events import OVER, Reported, Resumed, Started, Status, to_json
from haltune.log.policy import Wrapper
from haltune.policies import RandomSearch
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide


@cache
def searched(name: str, trials: int = 5) -> Study:
    """Return a whole search by this policy; read only."""
    return search(small_study(LAWFUL[name](), trials=trials))


def differences(study: Study, policy: Any) -> list[tuple[int, Any, Any]]:
    """The decisions that a replay finds otherwise than recorded; there must be decisions at all."""
    decisions = list(redecide(study.problem, policy, study.events()))
    assert len(decisions) >= 5
    return [d for d in decisions if d[1] != d[2]]


def used_up(study: Study, trials: int = 5) -> bool:
    """Return as many trials as the budget starts, and further ones of a policy that retrains winners."""
    begun = sum("of" not in t.tags for t in study.trials)
    return begun <= trials <= len(study.trials) and (begun == trials or study.policy.retrains)


@pytest.mark.parametrize("name", QUICK)
def test_a_form_is_large_enough_for_the_laws(name: str) -> None:
    study, form = searched(name), f"the form {name!r} in tests/support/worlds.py"
    assert len(study.trials) >= 5, f"{form} must start at least five trials"
    assert any(t.epoch >= EPOCHS for t in study.trials), f"{form} must train one of five trials for all {EPOCHS} epochs"


# law 1


@each_class
def test_every_decision_comes_out_again_when_its_log_prefix_is_replayed(name: str) -> None:
    assert differences(searched(name), LAWFUL[name]()) == []


@pytest.mark.parametrize("names", [QUICK, pytest.param(list(LAWFUL), marks=pytest.mark.slow)], ids=len)
def test_another_process_makes_the_same_decisions(names: list[str], tmp_path: Path) -> None:
    logs = {name: [to_json(e) for e in searched(name).events()] for name in names}
    (tmp_path / "logs").write_text(json.dumps(logs))
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[2])\n"
        "from worlds import *\n"
        "from haltune.log.events import from_json\n"
        "from haltune.study.redecide import redecide\n"
        "for name, log in json.load(open(sys.argv[1])).items():\n"
        "    decisions = list(redecide(problem_for(LAWFUL[name]()), LAWFUL[name](), map(from_json, log)))\n"
        "    assert len(decisions) > 5\n"
        "    assert [d for d in decisions if d[1] != d[2]] == [], name\n"
    )
    support = str(Path(__file__).parent.parent / "support")
    command = [sys.executable, "-c", script, str(tmp_path / "logs"), support]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@each_class
def test_the_same_seed_gives_the_same_search_and_another_seed_another(name: str) -> None:
    one, same = searched(name), search(small_study(LAWFUL[name]()))
    other = search(small_study(LAWFUL[name](), seed=8))
    assert ending(one) == ending(same)
    assert [t.config for t in one.trials] != [t.config for t in other.trials]


def test_a_study_reopened_before_each_trial_decides_as_one_that_stays_open() -> None:
    """All its trials break a constraint at their end, so under all weights they end with equal values."""
    goals = [Maximize("acc", (0, 1)), Minimize("ms", (0, 30))]
    posed = Problem(SPACE, goals, EPOCHS, constraints=[Constraint("gap", at_most=0.3, changes=True)])

    opened = partial(small_study, problem=posed, trials=4)

    def decided(reopens: bool) -> list[Any]:
        store = MemoryStore()
        study = opened(POLICIES["bobos"](), store)
        while isinstance(trial := study.ask(), Trial):
            for epoch in trial.epochs():
                reported = {"acc": accuracy(trial.config, epoch), "ms": 3.0 * trial.config["layers"], "gap": epoch / 15}
                trial.report(reported, seconds=1.0)
            trial.finish()
            study = opened(POLICIES["bobos"](), store) if reopens else study
        return [(e.config, e.evidence) for e in study.events() if isinstance(e, Started)]

    assert decided(True) == decided(False)


def test_a_constraint_on_a_smoothed_goal_limits_the_value_that_counts() -> None:
    """The policy and `study.best` see the same values; the last raw value alone would satisfy the limit."""
    posed = Problem(SPACE, Minimize("loss", smooth=3), EPOCHS, constraints=[Constraint("loss", at_most=0.5)])
    study = small_study(POLICIES["random"](), problem=posed, trials=1)
    trial = study.ask()
    assert isinstance(trial, Trial)
    for epoch in trial.epochs():
        trial.report(0.4 if epoch == EPOCHS else 0.9, seconds=1.0)
    trial.finish()
    record = study.trials[0]
    assert record.smoothed is not None
    assert record.values[-1] < 0.5 < record.smoothed[-1]
    for history in (study.history, study.judged):
        assert history.beyond(0)


# law 2


class Watched(Wrapper):
    """A policy that checks whether a question changes the log, the history or a state."""

    def __init__(self, policy: Any, store: MemoryStore) -> None:
        self.policy, self.store = policy, store
        self.questions = 0

    def as_recorded(self, spec: Any) -> Any:
        return self  # it counts its questions, which a copy would not

    def propose(self, state: Any, history: Any, rng: Any) -> Any:
        with self.unchanged(state, history):
            return self.policy.propose(state, history, rng)

    def judge(self, state: Any, history: Any, trial: Any, rng: Any) -> Any:
        assert not trial.epochs.flags.writeable or trial.epochs.base is None  # a copy: the study's own is safe
        with self.unchanged(state, history):
            return self.policy.judge(state, history, trial, rng)

    @contextmanager
    def unchanged(self, state: Any, history: Any) -> Iterator[None]:
        self.questions += 1
        look = lambda: (list(self.store.read("study")), history.position, repr(state), repr(history.trials))  # noqa: E731
        before = look()
        yield
        assert look() == before


@each_class
def test_propose_and_judge_change_nothing(name: str) -> None:
    store = MemoryStore()
    watched = Watched(LAWFUL[name](), store)
    search(small_study(watched, store, trials=6))
    assert watched.questions > 10


# law 3

DEAR = ("gp", "ei", "rollout", "truvar", "bobos", "halting-autobct")


@each_class
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead process's generator
def test_a_search_killed_at_any_append_and_reopened_reaches_the_same_end(name: str) -> None:
    """At one in three log positions, for expensive policies one in seven; the last append acknowledged or not."""
    whole = searched(name, trials=4)
    expected, appends = ending(whole), len(list(whole.events())) - 1
    stored = [(n, True) if n % 2 == 0 or n == appends else (n + 1, False) for n in range(1, appends + 1)]
    killed_and_reopened(name, expected, [(1, False), *stored][:: 7 if name.startswith(DEAR) else 3])


def killed_and_reopened(name: str, expected: Any, deaths: list[tuple[int, bool]]) -> None:
    """Searches that die at an append, before or after it is stored, each reopened."""
    for life, after in deaths:
        clock = Clock()
        store = MortalStore(life, after, clock)
        with pytest.raises(Crash):
            search(small_study(LAWFUL[name](), store, trials=4))
        store.revive()
        survived = list(store.read("study"))
        clock.now += 1e6  # the lease of the dead process has expired
        reopened = search(small_study(LAWFUL[name](), store, trials=4))
        assert list(reopened.events())[: len(survived)] == survived
        assert ending(reopened) == expected


# law 4


@each_class
def test_a_report_and_its_verdict_are_one_append(name: str) -> None:
    store = MemoryStore()
    study = small_study(LAWFUL[name](), store)
    appended = 0
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                before = len(list(store.read("study")))
                verdict = trial.report(told(trial, accuracy(trial.config, epoch)), seconds=1.0)
                new = list(store.read("study", before))
                assert [type(e) for e in new] == [Reported]
                assert new[0].verdict == verdict
                appended += 1
    assert appended > 5


# law 5


@each_class
def test_a_finished_search_stays_finished_with_the_same_reason(name: str) -> None:
    store = MemoryStore()
    study = search(small_study(LAWFUL[name](), store))
    answers = [study.ask(), study.ask(), small_study(LAWFUL[name](), store).ask()]
    assert all(isinstance(a, Finish) for a in answers)
    assert len({a.reason for a in answers if isinstance(a, Finish)}) == 1


# law 6


@each_class
def test_workers_that_ask_at_once_get_different_configurations_or_wait(name: str) -> None:
    store = MemoryStore()
    workers = [small_study(LAWFUL[name](), store) for _ in range(4)]
    for _ in range(2):  # something to believe in first
        trial = workers[0].ask()
        assert isinstance(trial, Trial)
        train(trial)
    held = [w.ask() for w in workers[:3]]
    trials = [t for t in held if isinstance(t, Trial)]
    assert len(trials) == (1 if name in ONE_AT_A_TIME else 3)
    assert all(isinstance(t, Trial | Wait) for t in held)
    assert len({SPACE.key(t.config) for t in trials}) == len(trials)


@each_class
def test_two_workers_on_one_store_share_one_search(name: str) -> None:
    store = MemoryStore()
    workers = [small_study(LAWFUL[name](), store) for _ in range(2)]
    held: list[Any] = [w.ask() for w in workers]
    for _ in range(200):
        for i, worker in enumerate(workers):
            trial = held[i]
            if not isinstance(trial, Trial):
                held[i] = worker.ask()
                continue
            epoch = next(trial.epochs(), None)
            if epoch is None:
                trial.finish()
                held[i] = worker.ask()
            else:
                trial.report(told(trial, accuracy(trial.config, epoch)), seconds=1.0)
    assert all(isinstance(h, Finish) for h in held)
    assert used_up(workers[0])
    assert all(t.status in OVER or t.status is Status.PAUSED for t in workers[0].trials)
    assert differences(workers[0], LAWFUL[name]()) == []


# law 7


@everyone
def test_no_epoch_is_trained_beyond_a_budget_of_epochs(name: str) -> None:
    study = search(small_study(LAWFUL[name](), budget=Budget(epochs=8, trials=5)))
    assert 1 <= study.spent.epochs <= 8
    assert study.outcome.over


@each_class
def test_what_is_over_a_budget_is_at_most_what_was_running(name: str) -> None:
    store = MemoryStore()
    workers = [small_study(LAWFUL[name](), store, budget=Budget(epochs=4)) for _ in range(3)]
    trials: list[Any] = [w.ask() for w in workers]
    while any(isinstance(t, Trial) for t in trials):
        for i, trial in enumerate(trials):
            if not isinstance(trial, Trial):
                continue
            if (epoch := next(trial.epochs(), None)) is not None:
                trial.report(told(trial, accuracy(trial.config, epoch)), seconds=1.0)
            else:
                trial.finish()
                trials[i] = workers[i].ask()
    workers[0].sync()
    assert 4 <= workers[0].spent.epochs <= 4 + len(trials) - 1
    assert isinstance(workers[0].ask(), Finish)


@each_class
def test_a_search_ends_after_a_budget_of_trials_without_gain_and_makes_the_same_decisions_again(name: str) -> None:
    store, budget = MemoryStore(), Budget(trials=30, trials_without_gain=3)
    study = search(small_study(LAWFUL[name](), store, budget=budget))
    spent = study.history.spent
    assert study.outcome.over
    assert spent.trials_without_gain >= 3 or len(study.trials) >= 30 or study.history.finished
    assert differences(study, LAWFUL[name]()) == []
    again = small_study(LAWFUL[name](), store, budget=budget)
    assert (again.history.spent, again.ask()) == (spent, study.ask())


# law 8

BAD = [
    (math.nan, True),
    (math.inf, False),
    *(pytest.param(bad, bounded, marks=pytest.mark.slow)
      for bad, bounded in [(math.nan, False), (math.inf, True), (-math.inf, True), (-math.inf, False)]),
]  # fmt: skip


@each_class
@pytest.mark.parametrize(("bad", "bounded"), BAD)
def test_what_is_not_finite_is_stored_and_never_the_incumbent(name: str, bad: float, bounded: bool) -> None:
    def value(config: dict[str, Any], epoch: float) -> float:
        return bad if config["layers"] > 2 or (config["kernel"] == "rbf" and epoch == 2) else accuracy(config, epoch)

    study = search(small_study(LAWFUL[name](), problem=problem(bounded=bounded), trials=6), value)
    values = np.concatenate([t.values for t in study.trials])
    assert not np.isfinite(values).all()
    assert study.best is None or math.isfinite(study.best.value)
    assert math.isnan(study.history.incumbent()) or math.isfinite(study.history.incumbent())
    assert differences(study, LAWFUL[name]()) == []


@each_class
@pytest.mark.filterwarnings("ignore:acc was NaN or infinite in all")
def test_a_search_without_one_finite_value_still_ends(name: str) -> None:
    study = search(small_study(LAWFUL[name](), problem=problem(bounded=False)), lambda c, e: math.nan)
    assert study.best is None
    assert study.recommend() is None
    assert used_up(study)


# law 9

ODD_PROBLEMS = {
    "coinciding bounds": problem(space=Space({"lr": Float(0.1, 0.1), "layers": Int(3, 3)})),
    "constants only": problem(space=Space({"lr": Constant(0.1)})),
    "one parameter of two values": problem(space=Space({"layers": Choice([1, 2])})),
    "one epoch": problem(epochs=1),
    "two epochs": problem(epochs=2),
    "a loss without bounds": Problem(SPACE, Minimize("loss"), 6),
}
USUAL_ELSEWHERE = ("two epochs", "a loss without bounds")  # one epoch is odder; other laws search without bounds


@each_class
@pytest.mark.parametrize(
    "odd", [pytest.param(odd, marks=pytest.mark.slow) if odd in USUAL_ELSEWHERE else odd for odd in ODD_PROBLEMS]
)
def test_odd_problems_are_searched_to_the_end(name: str, odd: str) -> None:
    study = search(small_study(LAWFUL[name](), problem=ODD_PROBLEMS[odd]))
    assert used_up(study) or study.history.finished is not None  # a policy may know all there is to know
    assert study.best is not None
    assert differences(study, LAWFUL[name]()) == []


@each_class
@pytest.mark.parametrize("bounded", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_constant_metric_works(name: str, bounded: bool) -> None:
    study = search(small_study(LAWFUL[name](), problem=problem(bounded=bounded)), lambda c, e: 0.5)
    assert study.best is not None
    assert study.best.value == 0.5


@everyone
def test_a_single_trial_works(name: str) -> None:
    single = search(small_study(LAWFUL[name](), trials=1))
    assert used_up(single, 1)
    assert single.trials[0].status in ("completed", "stopped", "paused")
    assert single.pareto_front() != []


# an attempt may start at a state that the training saved by itself


def by_own_means(study: Study, seed: int) -> dict[int, dict[float, float]]:
    """Trainings that save a state of their own after some epochs, unknown to haltune, and are interrupted again and
    again; the curve of each as the trainings saw it."""
    chance, curves, states = random.Random(seed), defaultdict(dict), defaultdict(int)  # type: ignore[var-annotated]
    for trial in study:
        curve, begins = curves[trial.id], states[trial.id]
        for epoch in [e for e in curve if e > begins]:
            del curve[epoch]  # it is trained again
        for epoch in range(begins + 1, trial.horizon + 1):
            curve[epoch] = accuracy(trial.config, epoch) - 0.001 * trial.attempt
            verdict = trial.report(told(trial, curve[epoch]), epoch, seconds=1.0)
            states[trial.id] = epoch if chance.random() < 0.6 else states[trial.id]
            if verdict.stops or (trial.attempt < 4 and chance.random() < 0.3):
                break
        if not verdict.stops and epoch < trial.horizon:
            trial.interrupt()
        trial.finish()
    return curves


@each_class
def test_what_was_reported_before_the_state_that_a_training_continued_from_stays_in_its_curve(name: str) -> None:
    for seed in (1,):
        study = small_study(LAWFUL[name]())
        curves = by_own_means(study, seed)
        for trial in study.trials:
            curve = curves[trial.id]
            assert dict(zip(trial.epochs.tolist(), trial.values.tolist(), strict=True)) == curve
        assert any(e.copied for e in study.events() if isinstance(e, Reported))
        assert differences(study, LAWFUL[name]()) == []


def test_what_is_kept_of_an_earlier_attempt_is_paid_for_once() -> None:
    study = small_study(RandomSearch(), trials=1)
    for epoch in (1, 2, 3):
        trial = study.ask()
        trial.report(0.1 * epoch, epoch, seconds=5.0, cost=2.0)
        trial.interrupt()
    record = study.trials[0]
    assert (record.epochs.tolist(), record.seconds.tolist()) == ([1.0, 2.0, 3.0], [5.0, 5.0, 5.0])
    assert (study.spent.epochs, study.spent.training, study.spent.cost) == (3.0, 15.0, 6.0)


def test_a_training_killed_while_its_earlier_reports_are_kept_keeps_them_in_the_attempt_after() -> None:
    for life in range(1, 12):
        clock = Clock()
        store = MortalStore(10**9, True, clock)
        study = small_study(RandomSearch(), store, trials=1)
        first = study.ask()
        for epoch in (1, 2, 3):
            first.report(0.1 * epoch, epoch)
        first.interrupt()
        store.life = life
        with suppress(Crash):
            trial = study.ask()
            for epoch in (3, 4):
                trial.report(0.2 * epoch, epoch)
            continue
        store.revive()
        clock.now += 1e6  # its lease has expired
        study = small_study(RandomSearch(), store, trials=1)
        study.ask().report(0.9, 4)
        assert study.trials[0].epochs.tolist() == [1.0, 2.0, 3.0, 4.0]


# law 10


@each_class
@pytest.mark.parametrize(
    "least", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(EPOCHS, marks=pytest.mark.slow)]
)
def test_no_trial_is_stopped_paused_or_compared_before_the_minimum_of_epochs(name: str, least: int) -> None:
    policy = LAWFUL[name]()
    study = search(small_study(policy, problem=replace(problem_for(policy), min_epochs=least), trials=5))
    assert study.outcome.over
    assert used_up(study)
    reports = [e for e in study.events() if isinstance(e, Reported)]
    early = [e for e in reports if e.epoch < least]
    assert early
    assert {e.verdict.action for e in early} == {Action.CONTINUE}
    announced = [e.pause_at for e in study.events() if isinstance(e, Started | Resumed)]
    announced += [e.verdict.pause_at for e in reports]
    assert [end for end in announced if end is not None and end < least] == []
    assert differences(study, LAWFUL[name]()) == []


@everyone
def test_every_policy_that_has_decided_travels_to_another_process(name: str) -> None:
    study = small_study(LAWFUL[name](), trials=2)
    answer = study.ask()
    assert isinstance(answer, Trial)
    train(answer)
    arrived = pickle.loads(pickle.dumps(study.policy))
    assert arrived.spec == study.policy.spec == copy.deepcopy(study.policy).spec


MINE = {"lr": 0.25, "layers": 2, "kernel": "rbf"}
OTHER = {"lr": 0.03, "layers": 4, "kernel": "poly", "degree": 3}
THIRD = {"lr": 0.9, "layers": 1, "kernel": "rbf"}
WITH_START = replace(problem(), start=[MINE, OTHER])


def started(name: str, store: Any = None, trials: int = 4) -> Study:
    return small_study(LAWFUL[name](), store, problem=WITH_START, trials=trials)


def begun(study: Study) -> list[Any]:
    """Return the started trials, without retrained winners."""
    return [dict(t.config) for t in study.trials if "of" not in t.tags]


@each_class
def test_every_policy_starts_with_the_users_own_and_reaches_its_end(name: str) -> None:
    study = started(name)
    train(study.ask())
    study.enqueue(THIRD)
    search(study)
    assert begun(study)[:3] == [MINE, OTHER, THIRD]
    assert len(begun(study)) == 4
    assert study.best is not None
    assert [d for d in redecide(study.problem, LAWFUL[name](), study.events()) if d[1] != d[2]] == []


@each_class
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead process's generator
def test_a_program_with_configurations_of_its_own_that_is_killed_and_run_again_reaches_the_same_end(name: str) -> None:
    """Some of the first states of a log, which has the user's configurations: the last stored, or not, in turn."""

    def program(store: Any = None) -> Study:
        study = started(name, store)
        study.enqueue(THIRD)
        return search(study)

    expected = ending(program())
    for life in (2, 7, 14):
        clock = Clock()
        store = MortalStore(life, life % 2 == 0, clock)
        with pytest.raises(Crash):
            program(store)
        store.revive()
        clock.now += 1e6  # the lease of the dead process has expired
        assert ending(program(store)) == expected


@each_class
def test_workers_that_ask_at_once_share_the_users_own(name: str) -> None:
    store = MemoryStore()
    held = [started(name, store).ask() for _ in range(3)]
    configs = [trial.config for trial in held if isinstance(trial, Trial)]
    assert configs[:2] == ([MINE] if name in ONE_AT_A_TIME else [MINE, OTHER])
    assert len(configs) == (1 if name in ONE_AT_A_TIME else 3)


# law 11


def ended_by_itself(study: Study, last: int) -> Study:
    """Search with trainings that end by themselves after `last` epochs, unless their verdict ends them before."""
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                verdict = trial.report(told(trial, accuracy(trial.config, epoch)), seconds=1.0 + trial.id % 3)
                if epoch == last or verdict.stops:
                    break
    return study


@each_class
@pytest.mark.parametrize("last", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
def test_no_more_trials_train_to_their_end_where_trainings_end_by_themselves(name: str, last: int) -> None:
    study = ended_by_itself(small_study(LAWFUL[name](), trials=9), last)
    whole = searched(name, trials=9)
    assert study.outcome.over
    assert len([t for t in study.trials if t.epoch >= last]) <= len([t for t in whole.trials if t.epoch >= last])
    ended = [t for t in study.trials if t.status is Status.COMPLETED and not t.partial]
    assert all(t.complete for t in ended)
    assert all(study.trials[best.trial].complete for best in study.pareto_front()) or not ended
    assert differences(study, LAWFUL[name]()) == []


@pytest.mark.parametrize("name", quickly(LAWFUL, "multifidelity", "hyperband"))
def test_a_training_that_ended_by_itself_counts_alike_if_its_worker_is_lost_before_it_ends_the_trial(name: str) -> None:
    def decided(lost: bool) -> list[Any]:
        study, over = small_study(LAWFUL[name](), MemoryStore(Clock()), trials=12), set()
        for trial in study:
            again = trial.id in over
            for epoch in () if again else trial.epochs():
                verdict = trial.report(told(trial, accuracy(trial.config, epoch)), seconds=1.0)
                trial.checkpointed(f"{trial.id}-{epoch}")
                if epoch == 2 and not verdict.stops:
                    over.add(trial.id)
                    break
            if lost and trial.id in over and not again:
                trial.interrupt()
            trial.finish()
        return [(dict(t.config), t.epochs.tolist(), t.status) for t in study.trials]

    assert decided(True) == decided(False)
