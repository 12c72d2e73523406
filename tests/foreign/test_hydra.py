"""The page of a program that Hydra configures: by itself, with overrides, and searched by haltune run."""

import re
import subprocess
import sys

import pytest
from documents import ROOT, blocks

from haltune import load_study

pytest.importorskip("hydra", reason="Hydra is not installed")
pytest.importorskip("typer", reason="the command line is not installed")

PAGE = ROOT / "docs/howto/hydra.md"


@pytest.fixture
def started(tmp_path):
    """The files of the page in a folder, and how to start a command there; it gives what is printed."""
    whole = PAGE.read_text(encoding="utf-8")
    (program,) = blocks(PAGE)
    (tmp_path / "conf").mkdir()
    for name, kind in (("conf/config.yaml", "yaml"), ("search.toml", "toml")):
        (text,) = re.findall(rf"^```{kind}\n(.*?)^```", whole, flags=re.DOTALL | re.MULTILINE)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "train.py").write_text(program.text + "print('trained')\n", encoding="utf-8")

    def start(*command):
        ran = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return start


def test_the_program_trains_by_itself_in_a_folder_of_hydras(started, tmp_path):
    assert started("train.py", "optim.lr=0.02", "epochs=2").endswith("trained\n")
    (told,) = tmp_path.glob("runs/*/*/.hydra/overrides.yaml")
    assert told.read_text(encoding="utf-8").split() == ["-", "optim.lr=0.02", "-", "epochs=2"]


@pytest.mark.slow
def test_haltune_run_searches_what_hydra_configures_and_runs_pause_and_resume(started, tmp_path):
    started("-m", "haltune", "run", "--study", "search.toml", "--", sys.executable, "train.py", "epochs=9")
    study = load_study(tmp_path / "search.db")
    assert len(study.trials) == 8
    assert any(t.attempt > 1 for t in study.trials)
    best = study.trials[study.best.trial]
    rate = best.config["optim.lr"] * best.config["model.width"]
    assert best.values.tolist() == pytest.approx([1 - 2.718281828 ** (-rate * n) for n in range(1, 10)])
    assert min(len(t.epochs) for t in study.trials) < 9
