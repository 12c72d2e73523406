"""A search for several goals as it is shown: the figure, the page, the lines, the command line."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from told import tell_trial, told

from haltune import Budget, Constraint, Float, Maximize, Minimize, Problem, Space, Study
from haltune.errors import InvalidInput
from haltune.policies import Halting, RandomSearch
from haltune.report import learning_curves, replay, summary
from haltune.report.digest import digest
from haltune.report.figures.results import front_spec
from haltune.report.page import page
from haltune.study.messages import ended_line, lead_of, standing_line

SPACE = Space({"<x>": Float(0.0, 1.0)})
ROWS = [(0.5, 3.0, 1.0), (0.9, 9.0, 1.0), (0.4, 4.0, 1.0), (math.nan, 1.0, 1.0), (0.99, 1.0, 6.0)]
GOALS = [Maximize("<acc>"), Minimize("ms"), Minimize("mb")]


def searched(goals: int = 2, store: Any = None) -> Study:
    problem = Problem(SPACE, GOALS[:goals], 2, constraints=[Constraint("params", at_most=5.0)])
    study = Study(problem, Halting(RandomSearch()), store, seed=0, budget=Budget(trials=6), verbose=0)
    for acc, ms, params in ROWS:
        trial: Any = study.ask()
        for epoch in (1, 2):
            if not trial.report({"<acc>": acc, "ms": ms, "mb": 10 - ms, "params": params}, epoch).stops:
                continue
            break
        trial.finish()
    return study


@cache
def known() -> Study:
    return searched()


def test_the_figure_has_the_front_and_all_others_in_their_places() -> None:
    cut, others, front = front_spec(digest(known()))["data"]
    assert front["ids"] == ["trial-0", "trial-1"]
    assert (front["x"], front["y"]) == ([3.0, 9.0], [0.5, 0.9])
    assert (others["ids"], cut["ids"]) == (["trial-2"], ["trial-4"])
    assert "&lt;acc&gt; 0.5, ms 3" in front["customdata"][0][1]
    assert front["customdata"][0][0] == "Trial 0: trained in full, on the front"


def test_a_third_goal_has_a_panel_of_its_own() -> None:
    spec = front_spec(digest(searched(3)))
    assert {t["xaxis"] for t in spec["data"]} == {"x", "x2"}
    assert spec["layout"]["xaxis2"]["title"]["text"] == "mb (smaller is better)"
    assert spec["layout"]["yaxis2"]["title"]["text"] == "&lt;acc&gt; (larger is better)"


def test_the_page_shows_the_front_and_nothing_of_a_single_goal() -> None:
    text = page(known())
    assert "<b>2 trials</b> <small>on the Pareto front of &lt;acc&gt; and ms</small>" in text
    assert "no trial is better in all goals" in text
    assert "<acc>" not in text
    assert '"front"' in text or "figure/front" in text
    assert "figure/progress" not in text
    assert "Another hour" not in text
    assert "params at most 5" in text


def test_it_is_said_in_a_few_lines() -> None:
    study = known()
    assert lead_of(study.history) == "front of 2 trials: <acc> 0.9 to 0.5, ms 9 to 3"
    told = summary(study).splitlines()
    assert told[0] == "front of 2 trials: <acc> 0.9 to 0.5, ms 9 to 3"
    assert told[1] == "  trial 1: <acc> 0.9, ms 9, params 1; <x>=" + f"{study.trials[1].config['<x>']:.4g}"
    assert "front of 2 trials" in standing_line(study.history, study.budget)
    ended = [ended_line(study.history, t)[0] for t in study.trials]
    assert ended[0] == "Trial 0 trained in full, 2 epochs: <acc> 0.5, ms 3, params 1, on the front"
    assert "on the front" not in ended[2]
    assert "; params = 6 breaks the constraint params at most 5, and training does not change it" in ended[4]


def test_what_is_of_one_goal_says_what_is_there_instead() -> None:
    plotly = pytest.importorskip("plotly.graph_objects")
    from haltune.report import front, progress

    assert isinstance(front(known()), plotly.Figure)
    with pytest.raises(InvalidInput, match=r"Use front\(study\)"):
        progress(known())
    with pytest.raises(InvalidInput, match="one goal without constraints"):
        replay(known(), Halting(RandomSearch()))
    alone = Study(SPACE, "loss", max_epochs=1, budget="1 trial", verbose=0)
    with pytest.raises(InvalidInput, match="this study has one, loss"):
        front(alone)


def test_the_command_line_lists_the_front(tmp_path: Path) -> None:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from haltune.cli.app import app

    store = str(tmp_path / "front.db")
    searched(2, store)

    def said(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words])
        assert done.exit_code == code, done.output
        return done.output

    lines = said("best", store).splitlines()
    assert lines[0] == "front of 2 trials: <acc> 0.9 to 0.5, ms 9 to 3"
    assert lines[1].split()[:7] == ["trial", "outcome", "attempt", "epochs", "<acc>", "ms", "params"]
    assert [line.split()[0] for line in lines[2:]] == ["1", "0"]
    found = json.loads(said("best", store, "--format", "json"))
    assert [run["values"] for run in found] == [
        {"<acc>": 0.9, "ms": 9.0, "params": 1.0},
        {"<acc>": 0.5, "ms": 3.0, "params": 1.0},
    ]
    status = json.loads(said("status", store, "--format", "json", code=5))
    assert [run["trial"] for run in status["front"]] == [1, 0]
    assert status["constraints"][0]["metric"] == "params"
    assert status["best"] is None
    assert "front of 2 trials" in said("status", store, code=5)
    said("trials", store)
    said("explain", store, "1")
    bad = CliRunner().invoke(app, ["explain", store, "best"])
    assert bad.exit_code != 0
    assert "lists the Pareto front" in bad.output


def test_of_many_trials_the_whole_front_is_shown_and_is_named_so() -> None:
    """The trial that is the worst in the first goal is on the front, because it is the best in the second."""
    history = told(Problem(Space({"lr": Float(0, 1)}), [Maximize("acc"), Minimize("ms")], 1))
    for acc, ms in [(0.01, 50.0), (0.0, 0.0), *((n / 40, 40.0 - n) for n in range(2, 40))]:
        tell_trial(history, [acc], metrics={"ms": [ms]})
    facts = digest(history, 4)
    assert [run.trial for run in facts.front] == [39, 1]
    assert next(t for t in front_spec(facts)["data"] if t["name"] == "the front")["ids"] == ["trial-1", "trial-39"]
    titles = {t.name: t.meta[1] for t in learning_curves(history).data if t.mode == "lines"}
    assert (titles["trial 1"], titles["trial 2"]) == (
        "Trial 1: trained in full, on the front", "Trial 2: trained in full"
    )  # fmt: skip
