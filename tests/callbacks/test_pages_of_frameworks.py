"""The pages of the frameworks, docs/loops: each program runs as it is pasted, with a few short trials."""

import os
import subprocess
import sys

import pytest
from documents import blocks

FEW = {'"12 trials"': '"2 trials"'}
PAGES = {
    "loops/lightning.md": (["torch", "lightning"], {**FEW, "max_epochs=9": "max_epochs=1"}),
    "loops/transformers.md": (
        ["torch", "transformers", "accelerate"],
        {**FEW, "max_epochs=4": "max_epochs=1"},
    ),
    "loops/xgboost.md": (["xgboost"], {**FEW, "max_epochs=60": "max_epochs=4"}),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_program_of_a_page_searches_and_keeps_the_best_model(page, tmp_path, monkeypatch):
    packages, instead = PAGES[page]
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(f"docs/{page}")
    study = program.run({"__name__": "page"}, instead)["study"]
    assert study.outcome.over
    assert len(study.trials) == 2
    assert os.path.exists(study.best.checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "package", "instead"),
    [("loops/keras.md", "keras", {**FEW, "max_epochs=9": "max_epochs=1"}), ("scale/ray.md", "ray", {})],
)
def test_a_program_that_wants_a_process_of_its_own_runs(page, package, instead, tmp_path):
    pytest.importorskip(package, reason=f"{package} is not installed")
    (program,) = blocks(f"docs/{page}")
    text = program.text
    for ours, theirs in instead.items():
        assert ours in text
        text = text.replace(ours, theirs)
    (tmp_path / "search.py").write_text(text)
    environment = {"KERAS_BACKEND": "torch", **os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "search.py"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "he search is over" in done.stderr + done.stdout
