"""The words of other tools are answered with haltune's; signatures stay what they are."""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import haltune
from haltune import Budget, Choice, Float, Int, Space, Study, Trial, policies
from haltune.callbacks.base import Reporting
from haltune.callbacks.lightning import HaltuneCallback
from haltune.errors import InvalidInput, UnknownArgument, installing
from haltune.hints import ARGUMENTS, ATTRIBUTES
from haltune.log.records import Best, TrialRecord
from haltune.policies import Hyperband, RandomSearch

ROOT = Path(__file__).parents[1]
X = {"x": Float(0.0, 1.0)}


def a_trial() -> Trial:
    trial = Study(X, "acc", max_epochs=3, policy=RandomSearch(), budget="3 trials").ask()
    assert isinstance(trial, Trial)
    return trial


def ended() -> Study:
    return Study(X, "acc", policy=RandomSearch(), budget="1 trials").optimize(lambda trial: 0.5)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Float(0.0, 1.0, lgo=True), r"did you mean log=\?"),  # type: ignore[call-arg]
    (lambda: Study(X, "acc", max_steps=100, min_steps=3), "min_epochs=, which counts in the study's unit"),  # type: ignore[call-arg]
    (lambda: Int(1, 10, step=2), r"Int has no argument step=: there are no steps. Choice\("),  # type: ignore[call-arg]
    (lambda: Choice(categories=["a", "b"]), r"one list: Choice\(\["),  # type: ignore[call-arg]
    (lambda: Choice("a", "b"), r"you gave 2: the options are one list: Choice\(\["),  # type: ignore[call-arg]
    (lambda: Choice("act", ["a", "b"]), r"you gave 2: the space has the names: Study\(\{'lr'"),  # type: ignore[call-arg]
    (lambda: Float("lr", 1e-4, 1e-1), r"you gave 3: the space has the names"),  # type: ignore[call-arg, arg-type]
    (lambda: Hyperband(max_epochs=9), "max_epochs=30 belongs to the study"),  # type: ignore[call-arg]
    (lambda: Float(0.0, 1.0, 0.1), "Float takes 2 values without a name, and you gave 3: pass others by name, log="),  # type: ignore[call-arg]
    (lambda: Study(X, "acc", max_epoch=3), "Study has no argument max_epoch=: use max_epochs="),  # type: ignore[call-overload]
    (lambda: ended().optimize(lambda trial: 0.5, n_jobs=4), r"workers=4 .* 'search.db'.*not in a notebook's cell"),  # type: ignore[call-arg]
    (lambda: ended().optimize(lambda trial: 0.5, 20), r"takes 1 value .*, and you gave 2: .*budget='100 trials'"),  # type: ignore[call-arg]
    (lambda: ended().enqueue({"x": 0.5}, 2, 3, 4), "enqueue takes . values? without a name, and you gave 4"),  # type: ignore[call-arg]
    (lambda: Space(x=Float(0.0, 1.0)), r"one dict: Space\("),  # type: ignore[call-arg]
    (lambda: Budget(n_trials=20), "trials=20"),  # type: ignore[call-arg]
    (lambda: Study(X, direction="maximize"), r"Maximize\('val_acc'\)"),  # type: ignore[call-overload]
    (lambda: Study(X, "acc", storage="a.db"), "store='search.db'"),  # type: ignore[call-overload]
    (lambda: Study(X, "acc", n_trials=20), "budget='20 trials'"),  # type: ignore[call-overload]
    (lambda: RandomSearch(seed=3), r"Study\(..., seed=0\)"),  # type: ignore[call-arg]
    (lambda: ended().enqueue(params={"x": 0.5}), r"one dict: study\.enqueue\("),  # type: ignore[call-arg]
    (lambda: a_trial().report(val_acc=0.5), "with the goal's metric, other metrics by metrics="),  # type: ignore[call-arg]
    (
        lambda: haltune.load_study(study_name="a", storage="a.db"),
        r"load_study has no argument st\w+=: (use name=|store='search.db')",
    ),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("mistake", "answer"), MISTAKES)
def test_an_argument_of_another_tool_is_answered_with_the_word_for_it(mistake: Callable[[], Any], answer: str) -> None:
    with pytest.raises(UnknownArgument, match=answer) as caught:
        mistake()
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, InvalidInput)
    assert caught.value.__context__ is None  # the traceback shows one error


@pytest.mark.parametrize(
    ("has", "name", "answer"),
    [
        (a_trial, "suggest_float", r"no attribute 'suggest_float': .*trial.config\['lr'\]"),
        (a_trial, "on_exception", r"callbacks=\[HaltuneCallback\(trial\)\]"),  # in a Trainer's callbacks
        (lambda: Study(X, "acc", max_epochs=3), "trials_dataframe", r"study.frame\(\)"),
        (lambda: ended().trials[0], "x", r"use \.config\['x'\]"),
        (lambda: ended().best, "params", r": use \.config$"),
        (lambda: ended().best, "model", r"study\.best\.checkpoint is its file"),
        (lambda: ended().best, "id", r": use study\.best\.trial$"),
        (lambda: ended().best, "acc", r": use \.value$"),
        (lambda: ended().best, "curve", r"study\.best_trial is its record$"),
        (lambda: ended().best, "nonsense", r": it has trial, config, value, epoch, checkpoint, "),
        (lambda: ended().outcome, "status", r": it has over, reason, held, interrupted$"),
        (ended, "best_score_", r": use study\.best$"),
        (ended, "get_best_config", r": use study\.best_params$"),
        (lambda: ended().trials[0], "duration", r"record\.seconds\.sum\(\)"),
        (a_trial, "value", r"trial\.report\(value\) records it"),
        (lambda: ended().best, "step", r"\.epoch, in the study's unit"),
        (lambda: haltune, "create_study", r"Study\(\.\.\.\)"),
        (lambda: policies, "ASHA", r"asynchronous=True"),
        (lambda: policies, "HyperBand", r": use Hyperband\(\)$"),
        (a_trial, "hp", r": use \.config$"),
        (lambda: Study(X, "acc", max_epochs=3), "epochs", r": a trial has it: for trial in study:"),
    ],
)
def test_an_attribute_of_another_tool_is_answered_with_the_word_for_it(
    has: Callable[[], Any], name: str, answer: str
) -> None:
    with pytest.raises(AttributeError, match=answer):
        getattr(has(), name)


@pytest.mark.parametrize("answer", [haltune.Wait("others train"), haltune.Finish("it is over")])
def test_what_is_asked_for_is_no_trial_where_there_is_none(answer: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{type(answer).__name__}\(reason='.*is no trial\. study.ask\(\)"), answer:
        pass


def test_a_trial_that_is_told_to_another_study_is_refused_with_both_names() -> None:
    mine = Study(X, "acc", max_epochs=3, policy=RandomSearch(), budget="3 trials", name="mine")
    with pytest.raises(InvalidInput, match=r"Trial 0 belongs to another study: to 'study' in memory, not to 'mine'"):
        mine.tell(a_trial(), 0.5)


def test_a_trial_of_another_study_of_the_same_name_is_refused_in_words_that_tell_the_two_apart() -> None:
    with pytest.raises(InvalidInput, match=r"Trial 0 belongs to another study: both are 'study' in memory\."):
        Study(X, "acc", max_epochs=3, policy=RandomSearch(), budget="3 trials").tell(a_trial(), 0.5)


class Installed:
    """A distribution as pip has left it."""

    def __init__(self, told: Any) -> None:
        self.told = told

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.told and json.dumps(self.told)


@pytest.mark.parametrize(
    ("told", "command"),
    [
        (None, "pip install 'haltune[cli]'"),
        ({"url": ROOT.as_uri(), "dir_info": {"editable": True}}, f"pip install '{ROOT}[cli]'"),
        (
            {"url": "https://a.org/h.git", "vcs_info": {"vcs": "git"}},
            "pip install 'haltune[cli] @ git+https://a.org/h.git'",
        ),
    ],
)
def test_an_extra_comes_from_where_haltune_came_from(told: Any, command: str, monkeypatch: Any) -> None:
    left = Installed(None)  # in the working directory, by a build
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: [left, Installed(told)])
    assert installing("cli") == command


def test_an_attribute_that_no_tool_has_is_missing_as_usual() -> None:
    trial = a_trial()
    assert not hasattr(trial, "nonsense")
    assert not hasattr(Study(X, "acc", max_epochs=3), "nonsense")
    assert copy.copy(trial).config == trial.config
    with pytest.raises(AttributeError, match=r"^module 'haltune' has no attribute 'nonsense'$"):
        haltune.nonsense  # noqa: B018


def test_every_answer_is_for_something_that_is_not_there() -> None:
    owners: dict[str, Any] = {**vars(haltune), **{n: getattr(policies, n) for n in policies.__all__}}
    owners |= {
        "TrialRecord": TrialRecord,
        "Best": Best,
        "HaltuneCallback": HaltuneCallback.__init__,
        "Reporting": Reporting,
    }
    for names, words, _ in ARGUMENTS:
        for owner in names.split():
            kind, _, method = owner.partition(".")
            asked = getattr(owners[kind], method) if method else owners[kind]
            assert not set(inspect.signature(asked).parameters).intersection(words.split()), owner
    for names, words, _ in ATTRIBUTES:
        for owner in names.split():
            if not owner.startswith("haltune"):
                assert not set(dir(owners[owner])).intersection(words.split()), owner


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda: Study(), r"needs a space and a goal.*Study\(.*load_study"),  # type: ignore[call-overload]
        (lambda: Study(X, "val_los"), r"Write Maximize.*or 'val_loss' if you mean that"),
        (lambda: Study(X, "acc", policy="BOBS"), r"Perhaps you mean BOBOS\(\)"),  # type: ignore[call-overload]
        (lambda: Study(X, "acc", budget="20 trails"), r"Perhaps you mean 'trials'. Write '30min'"),
    ],
)
def test_what_is_missing_or_misspelt_is_answered(call: Callable[[], Any], answer: str) -> None:
    with pytest.raises(InvalidInput, match=answer):
        call()


@pytest.mark.parametrize("hook", ["on_batch_end", "on_exception", "on_init_end"])  # Keras, Lightning, transformers
def test_the_callback_of_another_framework_says_where_the_right_one_is(hook: str) -> None:
    from haltune.callbacks.lightgbm import HaltuneCallback  # of a framework whose callbacks have no base class

    with pytest.raises(AttributeError, match=r"of another framework. Import it .* haltune\.callbacks\.lightning"):
        getattr(HaltuneCallback(a_trial()), hook)
    assert not hasattr(HaltuneCallback(a_trial()), "anything")
