"""Pages that are programs: their blocks run from top to bottom, as a reader would paste them, with a small budget."""

import os
import subprocess
import sys

import pytest
from documents import ROOT, blocks

FEW = {'"12 trials"': '"2 trials"'}
SHORT = {**FEW, "max_epochs=9": "max_epochs=1"}
PROGRAMS = {  # the packages that a page needs, and what makes it short, block by block
    "start.md": (["sklearn"], {'"20 trials"': '"3 trials"', "explain(4)": "explain(1)"}),
    "cheatsheet.md": ([], {'"12 trials"': '"3 trials"'}),
    "troubleshooting.md": ([], {}),
    "howto/spaces.md": ([], {}),
    "howto/goals.md": ([], FEW),
    "howto/several_goals.md": ([], {'"12 trials"': '"4 trials"'}),
    "howto/stop_early.md": (["rich"], {}),
    "howto/earlier.md": ([], {}),
    "howto/deadline.md": (
        [], {'9, budget="5s")': '9, budget="5 trials")', 'budget="5s", policy': 'budget="4 trials", policy'}
    ),
    "howto/good_settings.md": ([], {'"30 trials"': '"9 trials"'}),
    "howto/noise.md": ([], {'"16 trials"': '"8 trials"', '"8 trials", policy': '"4 trials", policy'}),
    "howto/after.md": ([], {}),
    "howto/cross_validation.md": (["sklearn", "skops"], {'"20 trials"': '"2 trials"'}),
    "howto/compare.md": ([], {'"60 epochs"': '"20 epochs"', "range(3)": "range(2)"}),
    "howto/results.md": (["plotly", "rich"], {}),
    "howto/resume.md": ([], {}),
    "howto/preemption.md": ([], {}),
    "howto/workers.md": ([], {"workers=2": "workers=1"}),  # tests/launch trains in processes
    "howto/command_line.md": ([], {}),
    "howto/trackers.md": (["tensorboard"], {}),
    "concepts/checkpoints.md": ([], {}),
    "loops/lightning.md": (["torch", "lightning"], SHORT),
    "loops/transformers.md": (["torch", "transformers", "accelerate"], {**FEW, "max_epochs=4": "max_epochs=1"}),
    "loops/plain.md": ([], {'"12 trials"': '"3 trials"'}),
    "loops/boosting.md": (["xgboost", "lightgbm", "catboost"], {"max_epochs=60": "max_epochs=6", **FEW}),
    "loops/others.md": (["torch", "fastai", "accelerate", "sklearn", "skops"], {'"6 trials"': '"2 trials"'}),
    "loops/reinforcement.md": (
        ["stable_baselines3"],
        {"20_000": "256", "eval_freq=1000": "eval_freq=64", "20 trials": "1 trial"},
    ),
    "howto/schedules.md": (["torch"], {'"8 trials"': '"2 trials"'}),
    "howto/fine_tune.md": (["trl", "peft"], {'"6 trials"': '"2 trials"', "range(0, 99, 2)": "range(0, 99, 24)"}),
    "howto/pretrain.md": (["torch", "transformers", "accelerate"], {'"8 trials"': '"1 trial"', "32_768": "8_192"}),
    "scale/distributed.md": ([], {}),
    "scale/sharded.md": (["torch"], {'"6 trials"': '"3 trials"', "max_epochs=9": "max_epochs=3"}),
    "policies.md": ([], {}),
    "reference/port.md": ([], FEW),
}  # fmt: skip
ALIKE = {  # a quick test runs its program, or one of the same loop
    "loops/reinforcement.md": "tests/callbacks/test_stable_baselines3.py",
    "howto/fine_tune.md": "loops/transformers.md",
    "howto/pretrain.md": "loops/transformers.md",
}
IN_A_PROCESS = {
    "loops/keras.md": ("keras", SHORT),
    "howto/own_callbacks.md": ("keras", {}),
    "howto/steps.md": ("keras", {'"8 trials"': '"3 trials"'}),
    "scale/ray.md": ("ray", {}),
    "scale/ray_train.md": ("ray.train", {"ray.init()": "ray.init(num_cpus=2, include_dashboard=False)"}),
}
ELSEWHERE = {"howto/hydra.md", "howto/unedited.md", "coming_from.md"}  # tests/foreign/test_*.py, tests/test_docs.py
SHOWN = {  # part of the page's output on the terminal
    "start.md": "trial 1: ",
    "howto/stop_early.md": "bold",
    "howto/good_settings.md": "val_acc at least 0.9: ",
    "howto/resume.md": "killed after 7 epochs, at trial and epoch (",
    "howto/compare.md": "(3 searches, 5 seeds each)",
    "concepts/checkpoints.md": "agree to the last digit",
}


@pytest.mark.parametrize("page", [pytest.param(p, marks=[pytest.mark.slow] * (p in ALIKE)) for p in PROGRAMS])
def test_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    packages, instead = PROGRAMS[page]
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    names, left = {"__name__": "__main__"}, set(instead)
    for block in blocks(f"docs/{page}"):
        here = {ours: theirs for ours, theirs in instead.items() if ours in block.text}
        block.run(names, here)
        left -= set(here)
        if page.startswith("loops/") and page != "loops/plain.md" and "best" in names:
            assert os.path.exists(names["study"].best.checkpoint)
    assert left == set()
    assert "study" not in names or names["study"].outcome.over
    assert SHOWN.get(page, "") in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("page", IN_A_PROCESS)
def test_a_page_that_wants_a_process_of_its_own_runs(page, tmp_path):
    package, instead = IN_A_PROCESS[page]
    pytest.importorskip(package, reason=f"{package} is not installed")
    text = "\n".join(program.text for program in blocks(f"docs/{page}"))
    for ours, theirs in instead.items():
        assert ours in text
        text = text.replace(ours, theirs)
    (tmp_path / "search.py").write_text(text)
    environment = {"KERAS_BACKEND": "torch", **os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "search.py"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "he search is over" in done.stderr + done.stdout


def test_every_page_with_a_program_is_run():
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md") if blocks(page)}
    assert pages == set(PROGRAMS) | set(IN_A_PROCESS) | ELSEWHERE
