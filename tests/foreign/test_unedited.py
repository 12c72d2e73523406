"""The page of programs that nobody edits: each of its examples, pasted and run."""

import re
import shlex
import sys

import pytest
from documents import ROOT
from typer.testing import CliRunner

from haltune import load_study

pytest.importorskip("typer", reason="the command line is not installed")
from haltune.cli.app import app

PAGE = (ROOT / "docs/howto/unedited.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
NEEDS = {
    "A script with argparse and a CSV log": (),
    "Lines that it prints": (),
    "Hydra and a JSON-lines log": ("hydra",),
    "Weights & Biases": ("wandb",),
    "A configuration file: LightningCLI": ("torch", "lightning", "jsonargparse", "yaml"),
}
NAMES = {"python": "train.py", "toml": "search.toml", "yaml": "conf/config.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("title", NEEDS)
def test_an_example_of_the_page_is_searched_as_it_is_pasted(title, tmp_path, monkeypatch):
    for package in NEEDS[title]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    for kind, text in re.findall(r"^```(python|toml|yaml)\n(.*?)^```", EXAMPLES[title], re.DOTALL | re.MULTILINE):
        text = text.replace('"python ', f'"{sys.executable} ')
        (tmp_path / NAMES[kind]).write_text(text, encoding="utf-8")
    (command,) = re.findall(r"^```sh\nhaltune (.*?)\n```", EXAMPLES[title], re.DOTALL | re.MULTILINE)
    done = CliRunner().invoke(app, [sys.executable if word == "python" else word for word in shlex.split(command)])
    assert done.exit_code == 0, (done.output, done.exception)
    study = load_study(tmp_path / "search.db")
    assert study.outcome.over
    assert study.best.epoch == study.problem.max_epochs
    for trial in study.trials:
        assert list(trial.epochs) == list(range(1, len(trial.epochs) + 1))


def test_the_page_has_every_key_of_both_tables():
    from dataclasses import fields

    from haltune.launch.metric_logs import Metrics
    from haltune.launch.programs import Program

    for title, kind in (("[metrics]", Metrics), ("[program]", Program)):
        keys = {f.name for f in fields(kind)} - {"metrics"}
        assert keys == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", EXAMPLES[title], re.MULTILINE))))
