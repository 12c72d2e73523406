"""What a new user types, and is answered: swapped arguments, answers that are no trial, loops that save nothing."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest

from haltune import Budget, Checkpointing, Finish, Float, Maximize, Problem, Space, Storage, Study, Trial, Wait
from haltune.errors import HaltuneWarning, InvalidInput
from haltune.log.outcomes import outcome_of
from haltune.policies import (
    BOBOS,
    Halting,
    Hyperband,
    InfiniteHyperband,
    Ladder,
    MultiFidelity,
    RandomSearch,
    SuccessiveHalving,
)


def study(trials: int = 1, epochs: int = 9, policy: Any = None, **more: Any) -> Study:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), epochs)
    more = {"seed": 0, "budget": Budget(trials=trials), "verbose": 0} | more
    return Study(problem, policy or RandomSearch(), **more)


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def test_a_loop_that_saves_nothing_is_told_of_its_pauses_once(caplog: Any) -> None:
    for verbose, times in ((0, 0), (1, 1)):
        for trial in study(12, policy=Hyperband(), verbose=verbose):
            for _ in trial.epochs():
                trial.report(trial.config["x"])
        assert sum("nothing was saved" in r.getMessage() for r in caplog.records) == times


@pytest.mark.parametrize("first", [0, 1])
def test_a_report_of_epoch_and_value_is_told_that_they_are_swapped(first: int) -> None:
    trial = asked(study())
    with pytest.raises(InvalidInput, match=r"The value comes first: trial.report\(0.9, 1\)"):
        trial.report(first, 0.9)
    trial.report(float(first), 0.9)  # as the answer says, where it is meant so
    assert trial.epoch == 0.9


def test_what_is_no_trial_says_what_to_ask_it() -> None:
    trial = asked(one := study())
    wait = one.ask()
    assert isinstance(wait, Wait)
    trial.finish("failed")
    over = one.ask()
    assert isinstance(over, Finish)
    for answer in (wait, over):
        with pytest.raises(AttributeError, match=r"while isinstance\(trial := study.ask\(\), Trial\)"):
            answer.config  # noqa: B018
        assert pickle.loads(pickle.dumps(answer)) == copy.copy(answer) == answer


def test_who_waits_for_nobody_but_itself_is_told_for_which_trials() -> None:
    one = study(2)
    first, second = asked(one), asked(one)
    wait = one.ask()
    assert isinstance(wait, Wait)
    assert wait.reason.endswith(
        "; trials 0, 1 are open in this process: study.tell(trial, value) or trial.finish() ends one"
    )
    one.tell(first, 0.5)
    assert "trial 1 is open" in one.ask().reason
    one.tell(second, 0.5)
    assert isinstance(one.ask(), Finish)


def test_a_record_prints_in_a_line() -> None:
    one = study()
    one.tell(asked(one), 0.5)
    x = one.best_params["x"]
    assert repr(one.best_trial) == f"TrialRecord(0, completed, epoch=9, value=0.5, config={{'x': {x}}})"


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        ([5], "trained to its last validation, at epoch 5 of 9"),
        ([2, 4, 6, 8], "trained to its last validation, at epoch 8 of 9"),
        ([2, 4, 6], "ended by itself at epoch 6 of 9"),
        ([8.0, 8.5], "ended by itself at epoch 8.5 of 9"),
        ([3, 6, 9], "trained in full"),
    ],
)
def test_a_run_whose_next_validation_lay_beyond_its_end_did_not_end_by_itself(
    reported: list[float], words: str, caplog: Any
) -> None:
    one = study(verbose=1)
    for trial in one:
        for epoch in reported:
            trial.report(0.5, epoch)
    assert outcome_of(one.trials[0], one.problem).words == words
    assert [r for r in caplog.records if r.getMessage().startswith(f"Trial 0 {words}")]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (SuccessiveHalving(4), "what continues trains again what was not saved"),
        (MultiFidelity(initial=12), "from now on the search stops runs for good"),
        (Halting(MultiFidelity(initial=12)), "from now on the search stops runs for good"),
    ],
)
def test_what_a_pause_that_saved_nothing_costs_is_told_by_what_the_policy_does(
    policy: Any, words: str, caplog: Any
) -> None:
    for trial in study(12, policy=policy, verbose=1):
        for epoch in trial.epochs():
            if trial.report(trial.config["x"] * epoch / 9).stops:
                break
    (told,) = [r.getMessage() for r in caplog.records if "nothing was saved" in r.getMessage()]
    assert words in told


def test_a_loop_that_saves_nothing_has_its_runs_stopped_for_good_from_then_on() -> None:
    one = study(12, policy=MultiFidelity(initial=12))
    for trial in one:
        for epoch in trial.epochs():
            if trial.report(trial.config["x"] * epoch / 9).stops:
                break
    later = [t.verdict.reason for t in one.trials if t.status == "stopped" and t.verdict and t.epoch < 9]
    assert later
    assert all("stopped for good, for runs cannot pause here" in reason for reason in later)


def returned(value: Any, goal: Any = None) -> Any:
    def train(trial: Trial) -> Any:
        for epoch in trial.epochs():
            trial.report((0.3, 0.9, 0.6)[epoch - 1])
        return value

    goal = goal or Maximize("acc", (0, 1))
    return Study({"x": Float(0.0, 1.0)}, goal, max_epochs=3, policy=RandomSearch(trials=2), seed=0).optimize(train)


@pytest.mark.parametrize(
    ("value", "goal", "words"),
    [
        (0.95, None, "returned 0.95 after it had reported its epochs: trial 0 counts for what it reported, acc 0.6"),
        ({"acc": 0.95}, None, "Report what counts, or return it and report nothing"),
        (0.9, None, "where the best epoch counts, Maximize('acc', of='best')"),
        (0.9, Maximize("acc", (0, 1), of="best"), ""),
        (0.6, None, ""),
        (None, None, ""),
        (True, None, ""),
        ("done", None, ""),
    ],
)  # fmt: skip
def test_a_number_that_is_returned_after_reports_and_counts_for_nothing_is_told_so_once(
    value: Any, goal: Any, words: str, caplog: Any
) -> None:
    returned(value, goal)
    told = [r.getMessage() for r in caplog.records if "returned" in r.getMessage()]
    assert len(told) == bool(words)
    assert words in "".join(told)


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (lambda config: config.x, r"trial.config['x']"),
        (lambda config: config.lr, "it has 'x'"),
        (lambda config: config["xx"], "and it has 'x'"),
    ],
)
def test_a_configuration_that_is_read_as_what_it_is_not_says_how_it_is_read(wrong: Any, answer: str) -> None:
    with pytest.raises((AttributeError, KeyError)) as raised, asked(study()) as trial:
        wrong(trial.config)
    assert answer in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("policy", "budget", "words"),
    [
        (SuccessiveHalving(), None, "until SuccessiveHalving has nothing more to train, or until Ctrl-C"),
        (MultiFidelity(), Budget(epochs=float("inf")), "continues until Ctrl-C"),
        (RandomSearch(trials=2), None, ""),
        (MultiFidelity(), Budget(trials=2), ""),
    ],
)
def test_a_search_that_no_budget_ends_says_so_as_it_begins(policy: Any, budget: Any, words: str, caplog: Any) -> None:
    asked(one := study(policy=policy, budget=budget, verbose=1))
    asked(one)
    told = [r.getMessage() for r in caplog.records if "No budget is set" in r.getMessage()]
    assert len(told) == bool(words)
    assert words in "".join(told)


@pytest.mark.parametrize(
    ("path", "told"), [("/nowhere/state.pt", 1), ("runs/state.pt", 0), ("s3://mine/state.pt", 0), ("row-3", 0)]
)
def test_a_checkpoint_that_is_nowhere_is_told(path: str, told: int, caplog: Any) -> None:
    trial = asked(study(verbose=1))
    trial.report(0.5)
    with catch_warnings():
        simplefilter("ignore", HaltuneWarning)
        trial.checkpointed(path)
        trial.checkpointed(path)
    assert sum("nothing lies there" in r.getMessage() for r in caplog.records) == told
    assert trial.checkpoint is not None


def test_a_checkpoint_that_is_there_is_believed_silently(tmp_path: Any) -> None:
    (tmp_path / "state.pt").write_text("weights")
    trial = asked(study(verbose=1))
    trial.report(0.5)
    trial.checkpointed(tmp_path / "state.pt")
    assert trial.checkpoint == str(tmp_path / "state.pt")


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    n = np.int64
    budget = Budget(trials=n(2), epochs=n(40), time=n(60))
    assert json.loads(json.dumps(budget.to_json())) == {"trials": 2, "epochs": 40, "time": 60.0}
    one = Study(
        {"x": Float(0.0, 1.0)}, Maximize("acc"), max_epochs=n(9), seed=n(3), budget=budget, verbose=n(0),
        max_failures=n(3), store=Storage(max_retries=n(2), patience=n(9)), checkpoints=Checkpointing(keep=n(1)),
        policy=MultiFidelity(initial=n(4), eta=np.float32(3), min_trials_per_rung=n(3), candidates=n(30)),
    )  # fmt: skip
    same = Study({"x": Float(0.0, 1.0)}, Maximize("acc"), max_epochs=9, seed=3, budget=Budget(trials=2), verbose=0)
    assert one.policy.spec == MultiFidelity(initial=4, min_trials_per_rung=3, candidates=30).spec | {"eta": 3.0}
    assert type(one.problem.max_epochs) is int
    assert asked(one).config == asked(same).config
    for policy in (Hyperband(rounds=n(1)), Hyperband(brackets=n(1)), SuccessiveHalving(n=n(9)), BOBOS(initial=n(3))):
        assert json.dumps(policy.spec)
    for what in (True, np.bool_(True), 3.0, np.array([3, 4]), "3"):
        with pytest.raises(InvalidInput, match="max_epochs is a whole number"):
            Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc"), what)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["a", None, [1], float("nan")])
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (SuccessiveHalving, "eta"), (SuccessiveHalving, "min_resource"),
        (Hyperband, "eta"), (Hyperband, "min_resource"),
        (InfiniteHyperband, "start_budget"), (InfiniteHyperband, "min_resource"), (Ladder, "eta"),
        (Ladder, "first_cut"), (MultiFidelity, "eta"), (MultiFidelity, "first_cut"),
    ],
)  # fmt: skip
def test_an_option_of_a_ladder_that_is_no_number_is_named(kind: Any, option: str, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=option):
        kind(**{option: wrong})


@pytest.mark.parametrize(
    ("bounds", "value", "percent"), [((0, 1), 62.0, True), ((0, 0.5), 2.3, False), ((0, 1), 300.0, False)]
)
def test_percent_is_asked_of_what_may_be_one(bounds: tuple[float, float], value: float, percent: bool) -> None:
    made = Study({"x": Float(0.0, 1.0)}, Maximize("acc", bounds), max_epochs=2, policy=RandomSearch(), budget="1 trial")
    with pytest.warns(HaltuneWarning, match="lies outside the goal's bounds") as told:
        asked(made).report(value)
    assert any("Is it in percent?" in str(one.message) for one in told) == percent
