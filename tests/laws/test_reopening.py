"""What was appended can be read again: any argument of a public door is refused, or its event opens with the log."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from worlds import Clock

from examples import many
from haltune import Budget, Choice, Float, Int, Minimize, Problem, Space, Study, Trial
from haltune.errors import HaltuneError
from haltune.policies import Hyperband, MultiFidelity, RandomSearch
from haltune.store.open import open_sql
from haltune.store.studies import ask_of, hold, lift, note_on, raise_limits
from haltune.study.session import clocked
from haltune.study.view import read_study

SPACE = {"x": Float(0.0, 1.0), "n": Int(1, 9), "kind": Choice(["a", "\ud800", "\0"])}
LENGTHS: dict[str, tuple[int | None, str, Callable[[], Any]]] = {
    "default": (9, "epoch", MultiFidelity),
    "random, any length": (None, "step", RandomSearch),
    "hyperband, tokens": (10**12, "token", lambda: Hyperband(eta=3)),
}
TEXTS = st.sampled_from(["", "loss", "\0", "\ud800", "\x1b[1m", "a" * 9999, "ä"]) | st.text(max_size=3)
NUMBERS = (
    st.floats()
    | st.sampled_from([sum([0.1] * 10), 1, 1.0, 2, 0.5, 5e-324, 1e-12, 1e12, 1e60, 6e10, 10**400, 2**63, -1])
    | st.integers(0, 12)
)
ODD = NUMBERS | TEXTS | st.sampled_from(
    [None, True, b"1", [], [1.0], (0.5, 1), {}, 1j, np.float32(0.3), np.float64(math.nan), np.int64(3), np.array(0.5),
     np.array([0.5]), np.complex128(1 + 2j), np.ma.masked, Fraction(1, 3), Decimal("NaN"), Decimal("0.1"), Path("a")]
)  # fmt: skip
CLOCKS = st.floats() | st.floats(1e9, 2e9) | st.sampled_from([6e10, 1e300, math.inf, -math.inf, math.nan, -1e11])
ACTS = st.one_of(
    st.tuples(st.just("report"), NUMBERS, st.none() | NUMBERS, st.fixed_dictionaries({}, optional={
        "seconds": ODD, "validation": ODD, "cost": ODD, "metrics": st.dictionaries(TEXTS, ODD, max_size=2),
    })),
    st.tuples(st.just("report"), ODD, ODD, st.just({})),
    st.tuples(st.just("checkpointed"), TEXTS, ODD),
    st.tuples(st.just("end"), st.sampled_from(["completed", "interrupted", "failed", None]), TEXTS),
    st.tuples(st.just("enqueue"), st.dictionaries(st.sampled_from(["x", "n", "kind", "\0"]), ODD, max_size=4)),
    st.tuples(st.just("tell"), st.fixed_dictionaries({"x": NUMBERS, "n": NUMBERS, "kind": TEXTS}), ODD),
    st.tuples(st.just("budget"), st.dictionaries(st.sampled_from(["trials", "time", "cost", "epochs"]), ODD)),
    st.tuples(st.just("raise"), st.dictionaries(st.sampled_from(["trials", "time", "cost", "\0"]), ODD)),
    st.tuples(st.just("wish"), st.sampled_from(["stop", "pause", "continue", "fly"]), TEXTS),
    st.tuples(st.just("note"), TEXTS),
    st.tuples(st.just("hold"), TEXTS),
    st.tuples(st.just("clock"), CLOCKS),
)  # fmt: skip


def act(study: Study, trial: Trial, clock: Clock, what: str, *given: Any) -> None:
    match what, given:
        case "report", (value, position, further):
            trial.report(value, position, **further)
        case "checkpointed", (path, seconds):
            trial.checkpointed(path, seconds)
        case "end", (status, text):
            trial.fail(ValueError(text)) if status == "failed" else trial.finish(status)
        case "enqueue", (config,):
            study.enqueue(config, again=True)
        case "tell", (config, value):
            study.tell(config, value)
        case "budget", (limits,):
            study.budget = Budget(**{"trials": 40, **limits})
        case "raise", (limits,):
            view = read_study(study.store)
            raise_limits(study.store, "study", view.history, limits)
        case "wish", (wish, reason):
            ask_of(study.store, "study", read_study(study.store).history, trial.id, wish, reason)
        case "note", (text,):
            note_on(study.store, "study", read_study(study.store).history, trial.id, text)
        case "hold", (reason,):
            hold(study.store, "study", reason)
            lift(study.store, "study", read_study(study.store).history)
        case "clock", (now,):
            clock.now = now


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * kind.startswith("hyperband")) for kind in LENGTHS]
)
@settings(max_examples=many(40), deadline=None)
@given(acts=st.lists(ACTS, min_size=1, max_size=9))
@example(acts=[("report", 0.5, sum([0.1] * 10), {}), ("report", 0.5, 1, {}), ("report", 0.5, 2, {})])
@example(acts=[("report", 0.5, 5e-324, {}), ("report", 0.5, 1, {})])
@example(acts=[("clock", 6.1e10), ("report", 0.5, 1, {})])
@example(acts=[("clock", math.nan), ("report", 0.5, 1, {}), ("end", "completed", "")])
@example(acts=[("clock", math.inf), ("hold", "a"), ("wish", "stop", "b")])
@example(acts=[("checkpointed", "\0", 0.0), ("checkpointed", "", 0.0), ("checkpointed", "a", math.nan)])
@example(acts=[("report", 0.5, 1e300, {}), ("report", 0.5, 1.1e12, {})])
def test_after_any_arguments_the_study_opens_again_and_goes_on(kind: str, acts: list[Any]) -> None:
    length, unit, policy = LENGTHS[kind]
    problem = Problem(Space(SPACE), Minimize("loss"), length, unit=unit)
    clock, ticks = Clock(), Clock(0.0)
    with TemporaryDirectory() as folder, clocked(ticks, lambda seconds: None), warnings.catch_warnings():
        url = f"sqlite:///{folder}/search.db"

        def opened() -> Study:
            return Study(problem, policy(), open_sql(url, clock), seed=1, budget=Budget(trials=40), verbose=0)

        study = opened()
        trial = study.ask()
        for one in acts:
            try:
                if trial.ended is not None:
                    trial = study.ask()
                act(study, trial, clock, *one)
            except HaltuneError:
                pass
        clock.now = 3e9
        study.sync()  # the study goes on
        for again in (opened(), opened()):
            trial = again.ask()
            trial.report(0.5, min(trial.epoch + 1, length or 1e12))  # it may resume
            trial.finish()
            assert again.history.trial(trial.id).epoch == trial.epoch > 0
        assert len(read_study(open_sql(url, clock)).trials) == len(again.trials)
