"""Earlier studies as evidence: what of them is kept, what a search makes of it, and what stays when it is reopened."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haltune import Budget, Constant, Float, Maximize, Problem, Space, Study, load_study
from haltune.errors import HaltuneWarning, InvalidInput, StoreError
from haltune.log.events import Started
from haltune.models.stage_process import Stages
from haltune.policies import BOBOS, Halting, Hyperband, MultiFidelity, RandomSearch
from haltune.policies.multifidelity.prior_studies import RUNS_KEPT, EarlierStudy, PriorValues
from haltune.store.memory import MemoryStore

SPACE = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})
EPOCHS = 9


def quality(config: dict[str, Any], epoch: float) -> float:
    """Highest at (0.3, 0.7), ranked from the first epoch on."""
    return (0.9 - 0.8 * (config["x"] - 0.3) ** 2 - 0.8 * (config["y"] - 0.7) ** 2) * epoch / (epoch + 1)


def searched(policy: Any = None, space: Any = SPACE, goal: Any = None, value: Any = quality, **options: Any) -> Study:
    problem = Problem(
        Space(space) if isinstance(space, dict) else space, goal or Maximize("acc"), options.pop("epochs", EPOCHS)
    )
    options = {"seed": 1, "budget": Budget(epochs=60), "verbose": 0, **options}
    return trained(Study(problem, policy or MultiFidelity(candidates=40), **options), value)


def trained(study: Study, value: Any = quality) -> Study:
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(value(trial.config, epoch), seconds=1.0)
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed("saved")
    return study


@cache
def before() -> Study:
    """Return a prior study with the same optimum; read only."""
    return searched(RandomSearch(trials=12), budget=None, name="before")


# -- what is kept of an earlier study ------------------------------------------------------------------------


def test_the_evidence_is_plain_json_that_makes_it_again() -> None:
    evidence = EarlierStudy.of(before())
    assert (evidence.name, evidence.horizon, evidence.trials, len(evidence.runs)) == ("before", 9.0, 12, 12)
    assert EarlierStudy.from_json(json.loads(json.dumps(evidence.to_json(), allow_nan=False))) == evidence
    best = evidence.runs[0]
    assert dict(best.config) == before().best_params
    assert best.epochs == (1.0, 3.0, 9.0)
    pairs = sorted(
        (quality(dict(r.config), e), t) for r in evidence.runs for e, t in zip(r.epochs, r.targets, strict=True)
    )
    targets = [target for _, target in pairs]
    assert targets == sorted(targets)  # in the order of the values
    assert targets[0] < 0.0 < targets[-1] == best.targets[-1]


@pytest.mark.slow
def test_of_many_runs_the_best_the_furthest_and_a_spread_are_kept() -> None:
    def value(config: dict[str, Any], epoch: float) -> float:
        return math.nan if config["y"] < 0.1 else quality(config, epoch)

    study = searched(RandomSearch(trials=3 * RUNS_KEPT), budget=None, epochs=1, value=value)
    evidence = EarlierStudy.of(study)
    assert (evidence.trials, len(evidence.runs)) == (3 * RUNS_KEPT, RUNS_KEPT)
    assert len(json.dumps(evidence.to_json())) < 200 * RUNS_KEPT
    assert dict(evidence.runs[0].config) == study.best_params
    far = EarlierStudy.of(searched(MultiFidelity(candidates=20), budget=Budget(epochs=5 * RUNS_KEPT)))
    assert sum(run.epochs[-1] == EPOCHS for run in far.runs) > 10


@pytest.mark.parametrize(
    "study",
    [
        lambda: Study(Problem(SPACE, Maximize("acc"), EPOCHS), RandomSearch(), seed=0, budget="1 trial", verbose=0),
        lambda: searched(RandomSearch(trials=3), budget=None, value=lambda c, e: math.nan),
    ],
    ids=["empty", "all diverged"],
)
@pytest.mark.filterwarnings("ignore:acc was NaN or infinite in all")
def test_a_study_that_found_nothing_teaches_nothing(study: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "haltune"):
        found = searched(learn_from=[study()], verbose=1)
    assert "learns from 0 trials of 'study'" in caplog.messages
    assert [t.config for t in found.trials] == [t.config for t in searched().trials]


@pytest.mark.slow
def test_a_study_without_trials_in_this_space_changes_nothing_among_others(caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = searched(RandomSearch(trials=3), SPACE.parameters | {"x": Float(1.5, 2.0)}, budget=None)
    with caplog.at_level("INFO", "haltune"):
        found = searched(learn_from=[elsewhere, before()], verbose=1)
    assert "learns from 0 trials of 'study'; 3 more lie outside this space, or lack one of its parameters" in (
        caplog.messages
    )
    one, other = (
        [(e.reason, e.evidence) for e in s.events() if isinstance(e, Started)] for s in (found, search_with_transfer())
    )
    assert one == other


def test_stores_of_earlier_studies_are_read_when_the_study_is_made(tmp_path: Path) -> None:
    first, url = tmp_path / "first.db", f"sqlite:///{tmp_path / 'all.db'}"
    searched(RandomSearch(trials=3), budget=None, store=first, name="one")
    for name in ("other", "digits"):
        searched(RandomSearch(trials=4), budget=None, store=url, name=name)
    given: dict[str, Any] = {"learn_from": [first, (url, "digits"), str(first), before()]}
    store = tmp_path / "new.db"
    study = searched(**given, store=store, budget=Budget(epochs=20))
    learnt = study.policy.learn_from
    assert [(e.name, e.trials) for e in learnt] == [("one", 3), ("digits", 4), ("one", 3), ("before", 12)]
    first.unlink()
    again = searched(**given, store=store, budget=Budget(epochs=30))  # kept what it took
    assert again.policy == study.policy


def test_a_study_learns_from_the_other_one_in_its_file_also_if_it_starts_again_before_its_first_report(
    tmp_path: Path,
) -> None:
    store = tmp_path / "all.db"
    searched(RandomSearch(trials=4), budget=None, store=store, name="the first")
    for _ in range(2):  # the second time the file has both
        study = Study(
            Problem(SPACE, Maximize("acc"), EPOCHS), MultiFidelity(candidates=40), store=store, name="another", seed=1,
            budget=Budget(epochs=20), verbose=0, learn_from=[store],
        )  # fmt: skip
        assert [(e.name, e.trials) for e in study.policy.learn_from] == [("the first", 4)]
        study.ask()


def test_a_store_that_cannot_be_learnt_from_says_why(tmp_path: Path) -> None:
    for name in ("one", "two"):
        searched(RandomSearch(trials=2), budget=None, store=tmp_path / "all.db", name=name)
    for wrong, why in (
        ([tmp_path / "none.db"], "none.db.*there is no"),
        ([tmp_path / "all.db"], r"holds 2 studies: 'one', 'two'. Name one: \('.*all.db', 'one'\)"),
        ([(tmp_path / "all.db", "three")], "no study 'three'"),
        (["earlier.txt"], "that ends in .db"),
    ):
        with pytest.raises((StoreError, InvalidInput), match=f"learn_from=.*{why}"):
            searched(learn_from=wrong)
    with pytest.raises(InvalidInput, match="list of studies"):
        searched(learn_from="earlier.db")


@pytest.mark.parametrize("policy", [Hyperband, BOBOS, lambda: Halting(RandomSearch())])
def test_a_policy_that_cannot_learn_from_others_says_which_can(policy: Any) -> None:
    with pytest.raises(InvalidInput, match=r"learns only from its own study.*MultiFidelity\(\)"):
        searched(policy(), learn_from=[before()])


# -- another space, another horizon, another metric ----------------------------------------------------------


def prior_values(space: Any, epochs: tuple[int, ...] = (1, 3, 9), earlier: Study | None = None) -> PriorValues:
    space = Space(space)
    return PriorValues.of([EarlierStudy.of(earlier or before())], space, Stages(epochs, space.dim))


def test_parameters_that_both_have_are_mapped_and_runs_outside_are_left_out() -> None:
    found = prior_values({"y": Float(0.0, 2.0), "x": Float(0.0, 0.5), "new": Constant(3)})
    inside = [t.config for t in before().trials if t.config["x"] <= 0.5]
    assert 0 < len(inside) < 12
    assert found.studies == ({"name": "before", "runs": len(inside), "left_out": 12 - len(inside)},)
    assert sorted(found.every[0].points[:, 0]) == pytest.approx(sorted(c["y"] / 2 for c in inside))
    said = f"learns from {len(inside)} trials of 'before'; {12 - len(inside)} more lie outside this space"
    assert found.remarks()[0].startswith(said)


@pytest.mark.parametrize("epochs", [(1,), (1, 2), (1, 3, 9), (1, 3, 9, 27, 50)])
def test_a_full_training_there_is_one_here_however_many_epochs_either_has(epochs: tuple[int, ...]) -> None:
    seen = prior_values(SPACE.parameters, epochs).every[0]
    ends = {round(v, 5) for v in seen.value[seen.stage == len(epochs) - 1]}
    assert ends == {r.targets[-1] for r in EarlierStudy.of(before()).runs}
    assert seen.study is not None
    assert set(seen.study) == {1}
    if epochs == (1, 3, 9):
        assert np.bincount(seen.stage).tolist() == [12, 12, 12]


# -- what a search makes of it -------------------------------------------------------------------------------


@cache
def search_with_transfer() -> Study:
    """Return a search that learnt from another; read only."""
    return searched(learn_from=[before()])


def test_a_prior_study_improves_the_first_trials() -> None:
    earlier = searched(RandomSearch(trials=30), budget=None, epochs=1)

    def found(seed: int, **options: Any) -> float:
        study = searched(seed=seed, budget=Budget(epochs=30), **options)
        return max(quality(dict(t.config), EPOCHS) for t in study.trials[:6])

    alone, told = (np.mean([found(s, **o) for s in range(4)]) for o in ({}, {"learn_from": [earlier]}))
    assert told > alone + 0.02


def test_the_reasons_name_the_evidence_and_its_meaning() -> None:
    started = [e for e in search_with_transfer().events() if isinstance(e, Started) and "earlier" in e.evidence]
    assert len(started) > 3
    for event in started:
        (earlier,) = event.evidence["earlier"]
        assert (earlier["name"], earlier["runs"], earlier["left_out"]) == ("before", 12, 0)
        assert 0.0 <= earlier["relevance"] < 1.0
        assert f"12 trials of 'before' (estimated relevance {earlier['relevance']:.2f})" in event.reason


# -- laws ----------------------------------------------------------------------------------------------------


@cache
def opened_twice() -> Study:
    """Return it reopened with the same prior studies; read only."""
    store = MemoryStore()
    searched(learn_from=[before()], store=store, budget=Budget(epochs=20))
    return searched(learn_from=[before()], store=store)


def test_prior_studies_that_come_too_late_are_answered_with_a_warning() -> None:
    store = MemoryStore()
    searched(store=store, budget=Budget(epochs=20))
    with pytest.warns(HaltuneWarning, match="without prior studies. To use them, choose another name="):
        searched(learn_from=[before()], store=store, verbose=1)


@pytest.mark.parametrize("again", ["loaded", *(pytest.param(a, marks=pytest.mark.slow) for a in ("without", "grown"))])
def test_reopened_it_decides_by_what_its_log_recorded(tmp_path: Path, again: str) -> None:
    whole, store = opened_twice(), tmp_path / "two.db"
    searched(learn_from=[before()], store=store, budget=Budget(epochs=20))
    given: dict[str, Any] = {
        "without": {},
        "grown": {"learn_from": [searched(RandomSearch(trials=30), budget=None, name="before")]},
        "loaded": {},
    }[again]
    if again == "loaded":
        study = trained(load_study(store, budget=Budget(epochs=60)))
    else:
        study = searched(store=store, **given)
    assert study.policy == whole.policy
    assert study.session.settings.policy == whole.policy
    moves = [[t.config for t in s.trials] for s in (study, whole)]
    assert moves[0] == moves[1]


@pytest.mark.slow
def test_several_studies_are_weighed_each_by_itself() -> None:
    misleading = searched(RandomSearch(trials=20), budget=None, name="reversed", value=lambda c, e: 1 - quality(c, e))
    study = searched(learn_from=[before(), misleading], budget=Budget(epochs=150))
    evidence = [e.evidence for e in study.events() if isinstance(e, Started) and "earlier" in e.evidence]
    learnt = next(e["earlier"] for e in evidence if e["rows"] >= 16)
    relevance = {earlier["name"]: earlier["relevance"] for earlier in learnt}
    assert relevance["reversed"] < 0.3 < relevance["before"]
