"""The README's programs run as they are pasted."""

import math
import os
import re
import tomllib

import pytest
from documents import ROOT, blocks

import haltune
import haltune.policies
from haltune.callbacks.loop import TrainingLoop

(WHOLE,) = blocks("README.md")


def test_the_whole_program_searches_and_gives_the_best_net_back(tmp_path, monkeypatch, capsys):
    for package in ("torch", "lightning", "sklearn"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    names = WHOLE.run({"__name__": "digits"}, {"max_epochs=30": "max_epochs=2", '"20 trials"': '"2 trials"'})
    study = names["study"]
    assert study.outcome.over
    assert len(study.trials) == 2
    assert names["best"].hparams == study.best.config
    assert not os.path.exists("lightning_logs")  # the folder is the user's


def form(line):
    """A line of the terminal without its numbers."""
    return re.sub(r"(\d[\d.:e-]*)(st|nd|rd|th)?", "#", line)


def test_the_lines_shown_are_such_as_a_search_says(caplog):
    """The lines come from a similar search, whose trainings are curves."""
    shown = re.search(r"```\n(Trial 0 paused.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    caplog.clear()
    space = {"lr": haltune.Float(1e-4, 1e-1, log=True), "width": haltune.Int(8, 128, log=True)}
    study = haltune.Study(space, "val_acc", max_epochs=30, budget="20 trials", seed=0)
    for trial in study:
        assert trial.checkpoint is None or trial.epoch > 0
        loop = TrainingLoop(trial, save=lambda path: path.write_text("weights"))
        for epoch in loop:
            loop.report(0.9 - 0.1 * abs(math.log10(trial.config["lr"]) + 2) - 0.5 / (epoch + 1))
    said = {form(record.getMessage()) for record in caplog.records if record.name == "haltune"}
    assert [line for line in shown[1].splitlines() if line != "..." and form(line) not in said] == []


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_lines_at_the_top_are_lines_of_the_whole_program():
    (core,) = re.findall(r"```py\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.removesuffix(")") for line in core.splitlines()]  # the whole one passes more to the trainer
    assert [line for line in lines if line not in WHOLE.text] == []


def test_the_badges_say_what_the_package_states():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    badges = re.findall(r"\[!\[(.*?)\]\(https://img\.shields\.io/badge/(.*?)\)\]\(([\w.]+)\)", README)
    assert [told for told, _, _ in badges] == [f"Python {' | '.join(versions)}", project["license"], "typed"]
    assert badges[0][1] == f"python-{'_%7C_'.join(versions)}-blue"
    assert all((ROOT / path).exists() for _, _, path in badges)


def test_the_number_of_the_comparison_is_on_the_page_that_measured_it():
    (number,) = re.findall(r"reaches after ([\d.]+) full trainings", README)
    measured = " ".join((ROOT / "docs/experiments/live.md").read_text(encoding="utf-8").split())
    assert f"reaches after {number} trainings what TPE with MedianPruner has after 20" in measured
