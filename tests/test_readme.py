"""The README's programs run as they are pasted."""

import math
import os
import re

import pytest
from documents import ROOT, blocks

import haltune
import haltune.policies
from haltune.callbacks.loop import TrainingLoop

WHOLE, LOOP = blocks("README.md")


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
    shown = re.search(r"```\n(A larger.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    caplog.clear()
    space = {"lr": haltune.Float(1e-4, 1e-1, log=True), "width": haltune.Int(8, 128, log=True)}
    study = haltune.Study(space, "val_acc", max_epochs=30, budget="20 trials", seed=0)
    for trial in study:
        loop = TrainingLoop(trial, save=lambda path: path.write_text("weights"))
        for epoch in loop:
            loop.report(0.9 - 0.1 * abs(math.log10(trial.config["lr"]) + 2) - 0.5 / (epoch + 1))
    said = {form(record.getMessage()) for record in caplog.records if record.name == "haltune"}
    assert [line for line in shown[1].splitlines() if line != "..." and form(line) not in said] == []
