"""Misuse: haltune's errors explain it, the user's own errors pass through, and the search survives."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import begun, problem, search, small_study

from haltune import Budget, Choice, Finish, Float, HaltuneWarning, Maximize, Minimize, Problem, Space, Study, Wait
from haltune import policies as of
from haltune.errors import InvalidInput, StoreError
from haltune.log.events import Reported
from haltune.policies import BOBOS, GPUCB, MultiFidelity, RandomSearch, SuccessiveHalving

X: dict[str, Any] = {"x": Float(0.0, 1.0)}


def study(trials: int = 1, policy: Any = None, store: Any = None, **more: Any) -> Study:
    more = {"seed": 0, "budget": Budget(trials=trials), "verbose": 0} | more
    return Study(Problem(Space(X), Maximize("acc", (0, 1)), 9), policy or RandomSearch(), store, **more)


def said(caplog: Any, part: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if part in r.getMessage()]


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "answer"),
    [
        ((of.RandomSearch(), problem()), {}, "Problem"),
        ((problem(), RandomSearch), {}, r"Use RandomSearch\(\)"),
        ((problem(), RandomSearch(), "search.txt"), {}, r"\.db"),
        ((problem(), RandomSearch(), None, "s", -1), {}, "seed"),
        ((problem(),), {"max_failures": -2}, "max_failures"),
        ((problem(), BOBOS()), {"policy": RandomSearch()}, "two policies"),
        ((problem(), BOBOS()), {"max_epochs": 3}, "max_epochs=, .* is given after a Problem"),
        ((problem(), "acc"), {}, "which has its goal Maximize.*, the second argument is a policy.*got 'acc'"),
        ((X, "score"), {}, r"Write Maximize\('score'\) or Minimize\('score'\)"),
        ((X,), {}, "Name the metric after the space"),
        ((X, BOBOS()), {"max_epochs": 3}, r"policy=BOBOS\("),
        ((X, "acc"), {"policy": "bobos"}, r"Pass the policy itself: haltune\.policies\.BOBOS\(\)"),
        ((X, "acc", BOBOS()), {"max_epochs": 3}, r"a policy as its store=. Pass it by keyword: policy=BOBOS\(\)"),
        (
            (X, "acc", "x.db", BOBOS()),
            {"max_epochs": 3},
            r"a policy as its name=. Pass it by keyword: policy=BOBOS\(\)",
        ),
        (("acc", X), {}, "The space comes before the goal"),
        ((X, "x.db", "acc"), {}, r"The goal comes before the store: Study\(space, 'val_acc', 'x.db', ...\)"),
        ((X, "acc"), {"max_epochs": 3, "min_epochs": 4}, "min_epochs=4 is above max_epochs=3.*Lower"),
        ((X, "acc"), {"max_epochs": 10**400}, r"^max_epochs is above 10\*\*12"),
        ((X, "acc"), {"max_epochs": 3.0}, "max_epochs must be a whole number"),
        ((X, "acc"), {"max_steps": "2000"}, "^max_steps must be a whole number"),
        ((X, "acc"), {"max_tokens": 3, "min_epochs": 4}, "min_epochs=4 is above max_tokens=3.*raise max_tokens"),
        ((X, "acc"), {"max_epochs": 3, "budget": 20}, "has no unit.*'20 trials'"),
        ((X, "acc"), {"max_epochs": 3, "budget": ("20 trials", "2h")}, "is not a text.*several as '20 trials, 2h'"),
        ((X, "acc"), {"max_epochs": 3, "budget": "2h, 3h"}, "limits time twice"),
        ((X, "acc"), {"max_epochs": 3, "budget": "20 trails"}, "Perhaps you mean 'trials'"),
        ((X, "acc"), {"max_epochs": 3, "budget": "-3 trials"}, "'-3 trials' is negative"),
        ((X, "acc"), {"max_epochs": 3, "budget": "patience 10"}, "'10 trials without gain'"),
        (
            (X, "acc"),
            {"max_epochs": 3, "budget": "10 epochs without gain"},
            "A limit without gain is a number of trials",
        ),
        ((X, "acc"), {"max_epochs": 3, "budget": "1.5 trials without gain"}, "a whole number"),
        ((X, "acc"), {"max_epochs": 3, "budget": "$50 at 2 EUR/h"}, "two currencies"),
        ((X, "acc"), {"max_epochs": 3, "budget": "50"}, "Use a number with a unit"),
    ],
)
def test_what_does_not_go_together_is_answered_with_what_does(arguments: Any, options: Any, answer: str) -> None:
    with pytest.raises(InvalidInput, match=answer):
        Study(*arguments, **options)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    n = np.int64
    budget = Budget(trials=n(2), epochs=n(40), time=n(60))
    assert json.loads(json.dumps(budget.to_json())) == {"trials": 2, "epochs": 40, "time": 60.0}
    policy = MultiFidelity(initial=n(4), eta=np.float32(3), min_trials_per_rung=n(3), candidates=n(30))
    one = Study(X, Maximize("acc"), max_epochs=n(9), seed=n(3), budget=budget, verbose=n(0), policy=policy)
    same = Study(X, Maximize("acc"), max_epochs=9, seed=3, budget=Budget(trials=2), verbose=0)
    assert type(one.problem.max_epochs) is int
    assert json.dumps(one.policy.spec)
    assert begun(one).config == begun(same).config


def test_a_policy_imported_from_haltune_is_answered_by_the_import_that_has_it() -> None:
    for name in ("Policy", *of.POLICY_NAMES):
        with pytest.raises(ImportError, match=f"from haltune.policies import {name}$"):
            exec(f"from haltune import {name}")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["mine"], r"contains mine\. Use another file"),
        (["studies", "trials", "version_info"], r"haltune\.optuna\.from_study\(study\) reads its studies"),
    ],
)
def test_a_file_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path, names: list[str], words: str) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as database:
        for name in names:
            database.execute(f"CREATE TABLE {name} (x)")
    with pytest.raises(StoreError, match=words):
        study(store=path)
    with closing(sqlite3.connect(path)) as database:
        assert [name for (name,) in database.execute("SELECT name FROM sqlite_master ORDER BY name")] == names


# -- reports and answers ---------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1])
def test_a_report_with_epoch_and_value_exchanged_is_an_error(first: int) -> None:
    trial = begun(study())
    with pytest.raises(InvalidInput, match=r"The value comes first: write trial.report\(0.9, 1\)"):
        trial.report(first, 0.9)
    trial.report(float(first), 0.9)  # as the answer says, where it is meant so
    assert trial.epoch == 0.9


@pytest.mark.parametrize(
    ("position", "hinted"),
    [
        (lambda epoch: epoch + 1, "reports epoch 2 within epoch 1 of trial.epochs(), which counts from 1"),
        (lambda epoch: 0.5 / epoch, "reports epoch 0.25 within epoch 2 of trial.epochs()"),  # the loss
        (lambda epoch: epoch, None),
        (lambda epoch: epoch - 0.5, None),
        (lambda epoch: None, None),
    ],
)
@pytest.mark.filterwarnings("ignore:Trial 0 had reported:haltune.errors.HaltuneWarning")
def test_a_report_of_another_epoch_than_that_of_its_loop_is_hinted_at(position: Any, hinted: Any, caplog: Any) -> None:
    trial = begun(study(verbose=1))
    for epoch in trial.epochs():
        trial.report(trial.config["x"], position(epoch))
    assert len(said(caplog, hinted or "of trial.epochs(), which")) == (hinted is not None)


def test_what_is_no_trial_says_what_to_ask_it_and_for_which_trials_it_waits() -> None:
    one = study(2)
    trial, second = begun(one), begun(one)
    wait = one.ask()
    assert isinstance(wait, Wait)
    assert (
        "trials 0, 1 are open in this process. End a trial with study.tell(trial, value) or trial.finish()"
        in wait.reason
    )
    one.tell(trial, 0.5)
    second.finish("failed")
    over = one.ask()
    assert isinstance(over, Finish)
    for answer in (wait, over):
        with pytest.raises(AttributeError, match=r"while isinstance\(trial := study.ask\(\), Trial\)"):
            answer.config  # noqa: B018
        assert pickle.loads(pickle.dumps(answer)) == copy.copy(answer) == answer


def test_a_trial_of_another_study_is_refused_and_written_nowhere(tmp_path: Path) -> None:
    mine, other = study(store=tmp_path / "a.db"), study(store=tmp_path / "b.db", name="other")
    with pytest.raises(InvalidInput, match=r"'study' in .*a\.db.*, not to 'other' in .*b\.db"):
        other.tell(begun(mine), 0.5)
    assert len(mine.trials[0].values) == len(other.trials) == 0


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [(lambda config: config.x, r"trial.config['x']"), (lambda config: config["xx"], "and it has 'x'")],
)
def test_a_configuration_that_is_read_as_what_it_is_not_says_how_it_is_read(wrong: Any, answer: str) -> None:
    with pytest.raises((AttributeError, KeyError)) as raised, begun(study()) as trial:
        wrong(trial.config)
    assert answer in raised.value.__notes__[0]


def test_a_parameter_whose_condition_does_not_hold_is_named_as_conditional() -> None:
    space = {"kind": Choice(["a", "b"]), "rate": Float(0.0, 1.0, when={"kind": "b"})}
    one = Study(space, "acc", policy=RandomSearch(), budget="9 trials", start=[{"kind": "a"}])
    with pytest.raises(KeyError) as raised, begun(one) as trial:
        trial.config["rate"]
    assert "'rate' is conditional, and its condition does not hold in this trial" in raised.value.__notes__[0]


def test_a_parameter_that_the_program_has_removed_is_not_named_as_conditional() -> None:
    with pytest.raises(KeyError) as raised, begun(study()) as trial:
        trial.config.pop("x")
        trial.config["x"]
    assert "The program has removed 'x': do so in a copy, config = dict(trial.config)" in raised.value.__notes__[0]
    assert "conditional" not in raised.value.__notes__[0]


def test_a_program_that_changes_a_list_of_its_configuration_resumes_with_the_original() -> None:
    options = [[8], [8, 8], [4, 4, 4]]
    one = Study({"hidden": Choice(options)}, "acc", max_epochs=9, seed=0, policy=SuccessiveHalving(3), verbose=0)
    began: dict[int, list[list[int]]] = {}
    for trial in one:
        hidden = trial.config["hidden"]
        began.setdefault(trial.id, []).append([*hidden])
        hidden.append(10)  # the output of a network
        for epoch in trial.epochs():
            if trial.report(epoch / 9 - 0.1 * trial.id).stops:
                break
    assert [len(lists) for lists in began.values()] == [2, 1, 1]  # the first trial resumed
    assert began[0][0] == began[0][1] == one.best_params["hidden"]
    one.best_params["hidden"].append(10)
    assert one.best is not None
    one.best.config["hidden"].append(10)
    assert sorted(t.config["hidden"] for t in one.trials) == sorted(options)
    assert len(one.history.points) == 3


def test_each_fold_has_a_configuration_of_its_own() -> None:
    one = Study({"hidden": Choice([[8], [8, 8]])}, "acc", max_epochs=1, policy=RandomSearch(trials=1), seed=0)
    for trial in one:
        for fold in trial.folds(3):
            fold.config["hidden"].append(10)
            fold.report(0.1 * len(fold.config.pop("hidden")))
    assert one.best is not None
    assert len(set(one.best.folds)) == 1


@pytest.mark.parametrize(
    ("came_to", "answer"),
    [(None, "Return the value"), ({"f1": 0.5}, "The report has no .acc."), ([0.4, 0.8], "or the mean")],
)
def test_a_function_that_reports_nothing_gets_advice(came_to: Any, answer: str) -> None:
    one = Study(X, "acc", budget="5 trials")
    with pytest.raises(InvalidInput, match=answer):
        one.optimize(lambda trial: came_to)
    assert [t.status for t in one.trials] == ["interrupted"]


def test_a_function_may_end_its_trial_itself_without_a_report() -> None:
    found = study(3)
    found.optimize(lambda trial: trial.finish("stopped") if trial.id else trial.report(0.5, 9))
    assert [t.status for t in found.trials] == ["completed", "stopped", "stopped"]


# -- loops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (SuccessiveHalving(4), "When it resumes, it trains the unsaved epochs again"),
        (MultiFidelity(initial=12), "trains again from its start, so trials that have trained 40% stop instead"),
    ],
)
def test_what_a_pause_that_saved_nothing_costs_is_reported_once_by_what_the_policy_does(
    policy: Any, words: str, caplog: Any
) -> None:
    one = study(12, policy, verbose=1)
    for trial in one:
        for epoch in trial.epochs():
            if trial.report(trial.config["x"] * epoch / 9).stops:
                break
    (told,) = said(caplog, "no checkpoint was saved")
    assert words in told


@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        (False, "End the loop when trial.report(value).stops is true"),
        (True, "End the loop if trial.report(value).stops, not if trial.report(value), which is always true"),
    ],
)
def test_a_loop_that_does_not_heed_its_verdicts_or_always_leaves_is_reported_once(
    leaves: bool, words: str, caplog: Any
) -> None:
    one = Study(X, "acc", max_epochs=9, seed=0, budget="4 trials", policy=BOBOS() if leaves else MultiFidelity())
    for trial in one:
        for epoch in range(1, 10):
            if trial.report(trial.config["x"], epoch) and leaves:  # always true
                break
    assert len(said(caplog, words)) == 1


@pytest.mark.parametrize(
    ("policy", "budget", "words"),
    [
        (SuccessiveHalving(), None, "until SuccessiveHalving has nothing more to train, or until Ctrl-C"),
        (MultiFidelity(), Budget(epochs=float("inf")), "continues until Ctrl-C"),
        (RandomSearch(trials=2), None, ""),
    ],
)
def test_a_search_that_no_budget_ends_says_so_as_it_starts(policy: Any, budget: Any, words: str, caplog: Any) -> None:
    begun(one := study(policy=policy, budget=budget, verbose=1))
    begun(one)
    told = said(caplog, "No budget is set")
    assert len(told) == bool(words)
    assert words in "".join(told)


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@pytest.mark.parametrize(("path", "told"), [("/nowhere/state.pt", 1), ("s3://mine/state.pt", 0), (__file__, 0)])
def test_a_checkpoint_that_is_nowhere_is_reported_once(path: str, told: int, caplog: Any) -> None:
    trial = begun(study(verbose=1))
    trial.report(0.5)
    trial.checkpointed(path)
    trial.checkpointed(path)
    assert len(said(caplog, "nothing exists at this path")) == told
    assert trial.checkpoint == path


def test_a_relative_checkpoint_that_exists_is_found_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trial = begun(study())
    trial.report(0.5)
    trial.checkpointed("a key of my own")
    assert trial.checkpoint == "a key of my own"
    trial.report(0.6)
    Path("state.pt").write_text("weights")
    trial.checkpointed("state.pt")
    monkeypatch.chdir("/")
    assert Path(str(trial.checkpoint)).read_text() == "weights"


# -- values ----------------------------------------------------------------------------------------


def test_values_outside_the_bounds_give_one_warning() -> None:
    trial = begun(one := small_study(RandomSearch()))
    with pytest.warns(HaltuneWarning, match="percent") as caught:
        verdicts = [trial.report(v) for v in (97.0, 98.0)]
    assert len(caught) == 1
    assert not any(v.stops for v in verdicts)
    assert list(one.history.trial(0).values) == [97.0, 98.0]


def test_an_error_that_is_reported_with_its_sign_reversed_is_warned_of_once() -> None:
    def reporting(metric: str) -> None:
        trial = begun(Study(X, metric, max_epochs=9, policy=RandomSearch(), budget="1 trial", verbose=0))
        trial.report(-0.4)
        trial.report(-0.3)

    with pytest.warns(HaltuneWarning, match="val_rmse = -0.4 is negative, and the study minimizes it") as caught:
        reporting("val_rmse")  # the score of cross_val_score(scoring="neg_root_mean_squared_error")
    assert len(caught) == 1
    for metric in ("val_loss", "log10_mse", "mse_db"):
        reporting(metric)  # warnings are errors here


def test_an_estimate_over_folds_that_is_negative_is_not_taken_for_an_error_with_its_sign_reversed() -> None:
    one = Study(X, "rmse", max_epochs=2, policy=RandomSearch(trials=1), verbose=0)
    for trial in one:
        for fold in trial.folds(2):
            for epoch in fold.epochs():
                fold.report(1.0 / 10.0 ** (epoch - 1) if fold.index == 0 else 0.1)
    assert min(one.trials[0].values) < 0.0


@pytest.mark.parametrize("goal", [Minimize("val_acc"), Maximize("train/loss")])
def test_a_goal_the_wrong_way_round_is_doubted_once(goal: Any, tmp_path: Path) -> None:
    with pytest.warns(HaltuneWarning, match="is the best. If you do not mean this, write") as caught:
        one = Study(X, goal, tmp_path / "a.db", max_epochs=3, budget="1 trial")
    begun(one)
    assert caught[0].filename == __file__
    Study(Problem(Space(X), goal, 3), store=tmp_path / "a.db")  # warnings are errors here


# -- what breaks -----------------------------------------------------------------------------------


class Broken(RandomSearch):
    """Cannot judge epoch 2."""

    def judge(self, state: Any, history: Any, trial: Any, rng: Any) -> Any:
        return super().judge(state, history, trial, rng) if trial.epoch != 2 else 1 / 0


def test_a_report_that_the_policy_chokes_on_is_stored_before_the_error_is_raised() -> None:
    trial = begun(one := small_study(Broken()))
    trial.report(0.1)
    with pytest.raises(ZeroDivisionError):
        trial.report(0.2)
    trial.report(0.3)
    assert list(one.history.trial(0).values) == [0.1, 0.2, 0.3]
    actions = [e.verdict.action for e in one.events() if isinstance(e, Reported)]
    assert actions == ["continue", "unjudged", "continue"]


@pytest.mark.parametrize("policy", [GPUCB(initial=3), BOBOS(initial=3)])
def test_constraints_that_almost_nothing_passes_do_not_end_a_search(policy: Any) -> None:
    space = Space(X, constraints=[("low", lambda c: c["x"] < 0.004)])
    one = search(small_study(policy, problem=problem(space=space), trials=6), lambda c, e: c["x"])
    assert len(one.trials) == 6
    assert all(t.config["x"] < 0.004 for t in one.trials)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_deleted_or_replaced_is_noticed(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "a.db"
    trial = begun(small_study(RandomSearch(), path))
    trial.report(0.5)
    for file in tmp_path.glob("a.db*"):
        file.unlink()
    if replaced:
        log = list(search(small_study(RandomSearch(), path, name="other", trials=1)).events())
    with pytest.raises(StoreError, match="deleted or replaced"):
        trial.report(0.6)
    if replaced:
        assert list(small_study(RandomSearch(), path, name="other").events()) == log


def test_a_training_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    one = small_study(RandomSearch(), "sqlite:///a.db", trials=3)
    for trial in one:
        monkeypatch.chdir(tmp_path / "elsewhere")
        with trial:
            for epoch in trial.epochs():
                trial.report(0.1 * epoch)
                trial.save(lambda path: Path(path).write_text("weights"))
    other = pickle.loads(pickle.dumps(one.store))
    assert [*map(type, other.read(one.name, 0))] == [*map(type, one.events())]
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == []


def test_a_trial_that_the_budget_cut_short_is_taken_up_by_a_larger_one(tmp_path: Path) -> None:
    def within(**limits: Any) -> Study:
        return search(small_study(RandomSearch(), tmp_path / "a.db", budget=Budget(trials=4, **limits)))

    first = within(epochs=9)
    assert [t.status for t in first.trials] == ["completed", "interrupted"]
    assert first.best is not None
    assert first.best.trial == 0
    again = within(epochs=99)
    assert [(t.status, t.attempt) for t in again.trials] == [("completed", n) for n in (1, 2, 1, 1)]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_records_and_the_history_are_pickled_and_copied(tmp_path: Path, copied: Any) -> None:
    study(store=tmp_path / "a.db").optimize(lambda trial: trial.report(0.5, 9, metrics={"loss": 0.25}))
    one = study(store=tmp_path / "a.db")  # as in the log
    record, history = copied(one.trials[0]), copied(one.history)
    assert record.config == one.trials[0].config
    assert list(record.metrics["loss"]) == list(history.trial(0).metrics["loss"]) == [0.25]
    assert copied(one.best).value == 0.5


def test_a_best_that_is_asked_for_too_early_is_explained_once(caplog):
    study = Study({"lr": Float(0.1, 1)}, "acc", max_epochs=2, budget="1 trials")
    with pytest.raises(AttributeError):
        _ = study.best.checkpoint
    assert study.best is None
    said = [record.getMessage() for record in caplog.records if "study.best" in record.getMessage()]
    assert said == ["study.best is None: no trial has reported a finite acc yet (0 trials started)."]


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
def test_a_search_in_which_every_value_is_nan_says_what_to_do_from_the_third_trial_on(caplog):
    study = Study({"lr": Float(1e-4, 0.1, log=True)}, "val_loss", max_epochs=6, budget="5 trials", seed=1)
    does = r"NaN or infinite in all {} trials.* Check the data and the loss .* lower the upper bound of 'lr'"
    warned = []
    for trial in study:
        warned.append(bool(re.search(does.format(3), caplog.text)))
        for _ in trial.epochs():
            if trial.report(math.nan).stops:
                break
    assert warned == [False, False, False, True, True]
    assert study.outcome.reason.endswith("5 trials started, none with a finite val_loss")
    assert study.best is None
    assert re.search(r"study\.best is None: val_loss was " + does.format(5), caplog.text)
    with pytest.raises(InvalidInput, match=does.format(5)):
        _ = study.best_value


# -- objects of haltune that Python itself refuses --------


def test_a_range_over_the_method_epochs_gets_a_note_with_the_number() -> None:
    with pytest.raises(TypeError) as caught, study().ask() as trial:  # type: ignore[union-attr]
        range(trial.epochs)  # type: ignore[arg-type]
    assert "trial.max_epochs is their number" in caught.value.__notes__[0]


def test_an_exception_of_optuna_gets_a_note_to_leave_the_loop() -> None:
    pruned = type("TrialPruned", (Exception,), {})
    with pytest.raises(pruned) as caught, study().ask():  # type: ignore[union-attr]
        raise pruned
    assert "leave the loop: if trial.report(value).stops: break" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (lambda trial: [trial.report(0.5) for _ in trial.epochs()], 1),
        (lambda trial: [trial.report(trial.config["x"]) for _ in trial.epochs()], 0),
        (lambda trial: [fold.report(fold.config["x"]) for fold in trial.folds(2) for _ in fold.epochs()], 0),
    ],
)
def test_a_program_that_never_reads_the_configuration_is_told_once(train: Any, told: int, caplog: Any) -> None:
    caplog.set_level("INFO", "haltune")
    study(3, verbose=1).optimize(train)
    assert len(said(caplog, "its program has not read trial.config")) == told


def test_an_item_of_a_study_is_one_of_its_trials() -> None:
    with pytest.raises(TypeError, match=r"study\.trials\[0\]"):
        study()[0]  # type: ignore[index]


def test_a_report_of_nothing_names_the_usual_cause() -> None:
    with pytest.raises(InvalidInput, match="got None, as from a function without `return`"):
        begun(study()).report(None)  # type: ignore[arg-type]
