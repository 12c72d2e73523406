"""What a search survives: policies with bugs, curves that fall, rare constraints, files that go away."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from worlds import SPACE, problem, search, small_study, train

from haltune import Action, Budget, Float, HaltuneWarning, Maximize, OptimalStopping, Problem, Space, Study, Trial
from haltune.errors import InvalidInput, StoreError
from haltune.log.events import Reported, Status
from haltune.policies import BOBOS, GPUCB, Halting, RandomSearch


def begun(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


class Broken(RandomSearch):
    """Cannot judge epoch 2."""

    def judge(self, state: Any, history: Any, trial: Any, rng: Any) -> Any:
        return super().judge(state, history, trial, rng) if trial.epoch != 2 else 1 / 0


def test_a_report_that_the_policy_chokes_on_is_stored_before_the_error_is_raised() -> None:
    study = small_study(Broken())
    trial = begun(study)
    trial.report(0.1)
    with pytest.raises(ZeroDivisionError):
        trial.report(0.2)
    trial.report(0.3)
    assert list(study.history.trial(0).values) == [0.1, 0.2, 0.3]
    actions = [e.verdict.action for e in study.events() if isinstance(e, Reported)]
    assert actions == ["continue", "unjudged", "continue"]


class Forgetful(RandomSearch):
    """Its fold fails once."""

    fails = True

    def fold(self, state: Any, event: Any) -> Any:
        if isinstance(event, Reported) and event.epoch == 2 and self.fails:
            object.__setattr__(self, "fails", False)
            raise KeyboardInterrupt
        return super().fold(state, event)


def test_a_fold_that_is_interrupted_is_taken_up_again() -> None:
    study = small_study(Forgetful())
    trial = begun(study)
    trial.report(0.1)
    with pytest.raises(KeyboardInterrupt):
        trial.report(0.2)
    study.sync()
    assert study.history.position == len(list(study.events()))
    assert list(study.history.trial(0).values) == [0.1, 0.2]


def test_a_trial_that_was_never_handed_out_is_offered_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    study = small_study(RandomSearch())

    def interrupted(*_: Any) -> Trial:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("haltune.study.study.Trial", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study.ask()
    again = begun(study)
    assert (again.id, again.attempt) == (0, 2)


def falling(peak: float, epoch: float) -> float:
    return peak - 0.02 * abs(epoch - 15)


@pytest.mark.parametrize(("of", "incumbent"), [("best", 0.8), ("last", 0.3)])
def test_curves_that_fall_are_compared_by_what_the_goal_says_counts(of: Any, incumbent: float) -> None:
    policy = Halting(RandomSearch(), OptimalStopping(paths=4000))
    goal = Maximize("acc", bounds=(0, 1), of=of)
    study = small_study(policy, problem=Problem(SPACE, goal, 40), trials=2)
    train(begun(study), lambda c, e: falling(0.8, e))
    assert study.history.incumbent(exclude=1) == pytest.approx(incumbent)


def test_a_curve_that_falls_and_cannot_win_is_stopped_where_the_best_epoch_counts() -> None:
    policy = Halting(RandomSearch(), OptimalStopping(paths=4000))
    study = small_study(policy, problem=Problem(SPACE, Maximize("acc", bounds=(0, 1), of="best"), 40), trials=2)
    train(begun(study), lambda c, e: falling(0.8, e))
    train(begun(study), lambda c, e: falling(0.5, e))
    assert study.trials[1].status is Status.STOPPED


def test_the_incumbent_is_the_end_of_a_curve_that_only_wavers_and_never_that_of_a_run_in_progress() -> None:
    study = small_study(RandomSearch())
    train(begun(study), lambda c, e: 0.62 if e == 3 else 0.6)
    begun(study).report(0.9)
    assert study.history.incumbent() == 0.6


@pytest.mark.parametrize("policy", [GPUCB(initial=3), BOBOS(initial=3)])
def test_constraints_that_almost_nothing_passes_do_not_end_a_search(policy: Any) -> None:
    space = Space({"x": Float(0.0, 1.0)}, constraints=[("low", lambda c: c["x"] < 0.004)])
    study = search(small_study(policy, problem=problem(space=space), trials=6), lambda c, e: c["x"])
    assert len(study.trials) == 6
    assert all(t.config["x"] < 0.004 for t in study.trials)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_deleted_or_replaced_is_noticed(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "a.db"
    study = small_study(RandomSearch(), path)
    trial = begun(study)
    trial.report(0.5)
    for file in tmp_path.glob("a.db*"):
        file.unlink()
    if replaced:
        search(small_study(RandomSearch(), path, name="other", trials=1))
        log = list(small_study(RandomSearch(), path, name="other").events())
    with pytest.raises(StoreError, match="deleted or replaced"):
        trial.report(0.6)
    if replaced:
        assert list(small_study(RandomSearch(), path, name="other").events()) == log


def test_a_training_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    study = small_study(RandomSearch(), "sqlite:///a.db", trials=3)
    for trial in study:
        monkeypatch.chdir(tmp_path / "elsewhere")
        with trial:
            for epoch in trial.epochs():
                trial.report(0.1 * epoch)
                trial.save(lambda path: Path(path).write_text("weights"))
    other = pickle.loads(pickle.dumps(study.store))
    assert [*map(type, other.read(study.name, 0))] == [*map(type, study.events())]
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == []


def test_an_epoch_beyond_the_horizon_is_refused() -> None:
    study = small_study(RandomSearch())
    trial = begun(study)
    for epoch in (7, 1e300):
        with pytest.raises(InvalidInput, match="max_epochs=6"):
            trial.report(0.5, epoch)
    assert len(study.history.trial(0).epochs) == 0


@pytest.mark.parametrize("status", ["running", "paused", "bogus"])
def test_a_trial_finishes_only_in_ways_that_end_it(status: str) -> None:
    study = small_study(RandomSearch())
    trial = begun(study)
    with pytest.raises(InvalidInput, match="completed, stopped, interrupted, failed"):
        trial.finish(status)
    trial.report(0.5)
    trial.finish("completed")
    assert study.trials[0].status is Status.COMPLETED


def test_values_outside_the_bounds_give_one_warning() -> None:
    study = small_study(RandomSearch())
    trial = begun(study)
    with pytest.warns(HaltuneWarning, match="percent") as caught:
        verdicts = [trial.report(v) for v in (97.0, 98.0)]
    assert len(caught) == 1
    assert [v.action for v in verdicts] == [Action.CONTINUE] * 2
    assert list(study.history.trial(0).values) == [97.0, 98.0]


def test_shares_under_bounds_in_percent_give_one_warning_when_the_first_run_has_ended() -> None:
    goal = Maximize("acc", bounds=(0, 100))
    study = small_study(RandomSearch(), problem=Problem(SPACE, goal, 3), trials=3)
    with begun(study) as low:  # in percent, and bad
        for value in (0.4, 0.9, 2.0):
            low.report(value)
    with pytest.warns(HaltuneWarning, match=r"a share it wants bounds=\(0, 1\)") as caught:
        train(begun(study), lambda c, e: 0.3 * e)
        train(begun(study), lambda c, e: 0.3 * e)
    assert len(caught) == 1


def test_a_trial_that_the_budget_cut_short_is_taken_up_by_a_larger_one() -> None:
    from haltune.store.memory import MemoryStore

    store = MemoryStore()
    first = search(small_study(RandomSearch(), store, budget=Budget(epochs=9, trials=4)))
    assert [t.status for t in first.trials] == ["completed", "interrupted"]
    assert first.best is not None
    assert first.best.trial == 0
    again = search(small_study(RandomSearch(), store, budget=Budget(epochs=99, trials=4)))
    assert [t.status for t in again.trials] == ["completed"] * 4
    assert again.trials[1].attempt == 2


def test_a_database_that_cannot_be_opened_keeps_its_password_to_itself() -> None:
    with pytest.raises(StoreError) as caught:
        small_study(RandomSearch(), "postgresql+nosuchdriver://ann:sesame@localhost/x")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("metrics", [[1], "loss", {"loss": "high"}])
def test_metrics_are_named_numbers(metrics: Any) -> None:
    with pytest.raises(InvalidInput, match="metric"):
        begun(small_study(RandomSearch())).report(0.5, metrics=metrics)


def test_a_loop_that_does_not_heed_its_verdicts_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    study = Study({"x": Float(0.0, 1.0)}, "acc", max_epochs=9, seed=0, budget="4 trials")
    for trial in study:
        for epoch in range(1, 10):
            trial.report(trial.config["x"], epoch)
    told = [r.getMessage() for r in caplog.records if "trains on" in r.getMessage()]
    assert len(told) == 1
    assert told[0].endswith("to pause after epoch 1 and trains on: a loop ends where trial.report(value).stops")


def test_a_loop_that_leaves_after_its_first_report_is_told_once_what_a_verdict_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    study = Study({"x": Float(0.0, 1.0)}, "acc", max_epochs=9, seed=0, budget="4 trials", policy=BOBOS())
    for trial in study:
        for _ in trial.epochs():
            if trial.report(trial.config["x"]):  # always true
                break
    told = [r.getMessage() for r in caplog.records if "after 1 epoch of 9" in r.getMessage()]
    assert len(told) == 1
    assert "where trial.report(value).stops, for a verdict by itself is always true" in told[0]


def test_a_callback_whose_fit_was_one_epoch_is_told_by_the_callback_alone(caplog: pytest.LogCaptureFixture) -> None:
    study = Study({"x": Float(0.0, 1.0)}, "acc", max_epochs=9, seed=0, budget="1 trial", policy=BOBOS())
    for trial in study:
        trial._patient = False  # as callbacks have it
        trial.report(0.5)
    assert not [r for r in caplog.records if "after 1 epoch of 9" in r.getMessage()]


@pytest.mark.parametrize("error", ["the data is gone", None])
def test_a_failure_is_an_exception(error: Any) -> None:
    trial = begun(small_study(RandomSearch()))
    with pytest.raises(InvalidInput, match="takes the exception"):
        trial.fail(error)


def test_the_best_is_explained_and_what_is_no_trial_is_named() -> None:
    study = Study({"x": Float(0.0, 1.0)}, "acc", max_epochs=2, seed=0, budget="2 trials", verbose=0)
    study.optimize(lambda trial: trial.config["x"])
    best = study.best
    assert best is not None
    assert study.explain(best) == study.explain(best.trial)
    for wrong in ("0", None, True, 0.5):
        with pytest.raises(InvalidInput, match=r"takes a trial, its number or study\.best"):
            study.explain(wrong)  # type: ignore[arg-type]
