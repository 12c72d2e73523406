"""Comparison of studies: the page's texts and figures, and the studies that it refuses."""

import json
import re

import pytest
from typer.testing import CliRunner

from haltune import Choice, Constraint, Float, Maximize, Minimize, Study
from haltune.cli.app import app
from haltune.errors import InvalidInput
from haltune.report import compare, edf

EVIL = "</script><img src=x onerror=alert(1)>\"'&%{y}"


def searched(name="study", best=0.9, goal="acc", space=None, most=4, store=None, trials=5):
    study = Study(space or {"lr": Float(0.01, 1.0)}, goal, store, name=name, max_epochs=most, seed=0,
                  budget=f"{trials} trials", verbose=0)  # fmt: skip
    for trial in study:
        with trial:
            for epoch in range(1, most + 1):
                value = best - trial.id / 20 - 0.1 / epoch
                if trial.report(dict.fromkeys(goal_names(goal), value), seconds=60.0).stops:
                    break
    return study


def goal_names(goal):
    goals = goal if isinstance(goal, list) else [goal]
    return [g if isinstance(g, str) else g.metric for g in goals]


def shown(studies, path):
    """The page, and its figures as data."""
    page = compare(studies, path).read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json" id="items">(.*?)</script>', page, re.S)
    return page, json.loads(text)["items"]


def test_the_page_names_the_best_study_and_shows_every_configuration(tmp_path):
    low, high = searched("low", 0.7), searched("high", 0.8, space={"lr": Float(0.01, 1.0), "kind": Choice(["a", "b"])})
    page, items = shown([low, high], tmp_path / "c.html")
    assert "<b>0.775</b> <small>highest acc, of high</small>" in page
    assert "The studies differ in the search space." in page
    for study in (low, high):
        config = json.dumps(dict(study.best.config), separators=(", ", ": "))
        assert f"data-config='{config}'" in page
    assert "The studies differ" not in shown([low, searched("other")], tmp_path / "c.html")[0]
    assert [line["name"] for line in items["figure/progress"]["data"]] == ["low", "high"]


def test_each_line_is_the_best_so_far_against_epochs_and_time(tmp_path):
    first, longer = searched("first", 0.7), searched("longer", 0.8, trials=9)
    figure = shown([first, longer], tmp_path / "c.html")[1]["figure/progress"]
    for line, study in zip(figure["data"], (first, longer), strict=True):
        assert line["y"][-1] == pytest.approx(study.best.value)
        assert line["x"][-1] == study.spent.epochs
        assert line["x"] == sorted(line["x"])
    buttons = figure["layout"]["updatemenus"][0]["buttons"]
    assert [button["label"] for button in buttons] == ["epochs", "time"]
    assert [len(x) for x in buttons[1]["args"][0]["x"]] == [len(line["x"]) for line in figure["data"]]


def test_final_values_are_those_of_each_study_alone(tmp_path):
    studies = [searched("first", 0.7), searched("second", 0.8)]
    figure = shown(studies, tmp_path / "c.html")[1]["figure/edf"]
    for line, study in zip(figure["data"], studies, strict=True):
        assert line["x"] == pytest.approx(list(edf(study).data[0].x))
        assert "ids" not in line  # both have a trial 0


def test_studies_that_cannot_be_compared_are_refused_in_words(tmp_path):
    one = searched()
    for studies, words in (
        ([one], "needs two or more studies. You gave 1."),
        ([one, searched("other", goal=Minimize("loss"))], "different goals (study: highest acc; other: lowest loss)"),
        ([one, searched("goals", goal=[Maximize("acc"), Minimize("ms")])], "'goals' has several goals"),
        ([one, one.history], "reads the log of a Study"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(words)):
            compare(studies, tmp_path / "c.html")
    assert not (tmp_path / "c.html").exists()
    (tmp_path / "mine.html").write_text("my own")
    with pytest.raises(InvalidInput, match="no page of haltune's"):
        compare([one, one], tmp_path / "mine.html")


def test_studies_without_a_value_or_with_another_unit_are_shown_as_far_as_they_can_be(tmp_path):
    none = Study({"lr": Float(0.01, 1.0)}, "acc", name="none", max_epochs=4, budget="2 trials", verbose=0)
    steps = Study({"lr": Float(0.01, 1.0)}, "acc", name="steps", max_steps=4, budget="1 trials", verbose=0)
    with steps.ask() as trial:
        trial.report(0.5, step=4, seconds=1.0)
    page, items = shown([searched(), none, steps], tmp_path / "c.html")
    assert "no value yet" in page
    assert "differ in the unit (epochs, steps)" in page
    assert [b["label"] for b in items["figure/progress"]["layout"]["updatemenus"][0]["buttons"]] == ["time"]
    page, items = shown([none, none], tmp_path / "c.html")
    assert "<h1>no value yet</h1>" in page
    assert items == {}


def test_a_study_without_a_full_training_has_no_value_of_the_metric_that_ranks_them(tmp_path):
    goal, studies = Minimize("loss", rank_by="eval"), []
    for name, epochs in (("full", 2), ("early", 1)):
        study = Study({"lr": Float(0.01, 1.0)}, goal, name=name, max_epochs=2, seed=0, budget="1 trial", verbose=0)
        trial = study.ask()
        for _ in range(epochs):
            trial.report({"loss": 0.3 * epochs, "eval": 0.7}, seconds=60.0)
        studies.append(study)
    page, _ = shown(studies, tmp_path / "c.html")
    assert "<b>0.7</b> <small>lowest eval, of full</small>" in page
    assert '<td>early</td><td data-of="eval">no value yet</td>' in page


def test_what_a_user_typed_is_text_and_never_markup(tmp_path):
    evil = searched(EVIL, goal=Maximize(EVIL), space={EVIL: Choice([EVIL, "b"])})
    page, _ = shown([evil, evil], tmp_path / "c.html")
    assert "<img" not in page
    assert page.count("</script>") == shown([searched(), searched()], tmp_path / "c.html")[0].count("</script>")


def test_the_command_compares_all_studies_of_a_database_and_names_files_apart(tmp_path):
    for file, names in (("a", ["x", "y"]), ("b", ["x"])):
        for name in names:
            searched(name, store=f"sqlite:///{tmp_path}/{file}.db")
    out = tmp_path / "c.html"
    told = CliRunner().invoke(app, ["compare", f"{tmp_path}/a.db", f"{tmp_path}/b.db", "-o", str(out)])
    assert (told.exit_code, told.output.strip()) == (0, str(out))
    assert [label for label in ("a", "y", "b") if f"<td>{label}</td>" in out.read_text()] == ["a", "y", "b"]
    (tmp_path / "other.db").write_text("not a log")
    both = CliRunner().invoke(app, ["compare", str(tmp_path), "-o", str(out)])
    assert (both.exit_code, both.output) == (told.exit_code, told.output)
    one = CliRunner().invoke(app, ["compare", f"{tmp_path}/b.db", "-o", str(out)])
    assert one.exit_code == 2
    assert "two or more studies. You gave 1." in one.output


def test_a_study_whose_best_is_beyond_its_limits_does_not_lead(tmp_path):
    studies = []
    for name, acc, ms in (("slow", 0.9, 20.0), ("fast", 0.8, 5.0)):
        study = Study({"lr": Float(0.01, 1.0)}, "acc", name=name, max_epochs=1, seed=0, budget="1 trial", verbose=0,
                      constraints=[Constraint("ms", at_most=10.0)])  # fmt: skip
        for trial in study:
            trial.report({"acc": acc, "ms": ms})
        studies.append(study)
    page, items = shown(studies, tmp_path / "c.html")
    assert "<b>0.8</b> <small>highest acc, of fast</small>" in page
    assert '<td>slow</td><td data-of="acc">0.9, beyond the limits</td>' in page
    assert [line["name"] for line in items["figure/progress"]["data"]] == ["fast"]
    page, _ = shown([studies[0]] * 2, tmp_path / "c.html")
    assert "<small>highest acc, of slow (1), beyond the limits</small>" in page
