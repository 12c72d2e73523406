"""The programs of docs/loops.md run as they are pasted, over small data."""

import numpy as np
import pytest
from documents import blocks
from paused_studies import pausing_study

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4))
Y = (X[:, 0] + X[:, 1] ** 2 > 0.8).astype(int)
DATA = {"x": X[:60], "y": Y[:60], "x_val": X[60:], "y_val": Y[60:]}
FSDP = "import torch.distributed.checkpoint as dcp"
PROGRAMS = {  # what each begins with, the packages that it needs, and what makes it short
    "import lightgbm": (["lightgbm"], {"max_epochs=300": "max_epochs=6"}),
    "from catboost": (["catboost"], {"max_epochs=300": "max_epochs=6"}),
    "import fastai": (["fastai"], {"max_epochs=30": "max_epochs=4"}),
    "import torch\nfrom accelerate": (
        ["torch", "accelerate"],
        {"max_epochs=30": "max_epochs=4", "Accelerator()": "Accelerator(cpu=True)"},
    ),
    "from sklearn.linear_model": (["sklearn", "skops"], {"max_epochs=30": "max_epochs=4"}),
}


def networks():
    """What a program with PyTorch has."""
    import torch
    from torch.utils.data import DataLoader

    rows = [(torch.tensor(x).float(), torch.tensor([y]).float()) for x, y in zip(X, Y, strict=True)]
    return {
        "train_loader": DataLoader(rows[:60], 20, shuffle=True), "valid_loader": DataLoader(rows[60:], 30),
        "make_model": lambda: torch.nn.Linear(4, 1), "loss_function": torch.nn.functional.mse_loss,
    }  # fmt: skip


@pytest.mark.parametrize("start", PROGRAMS)
def test_a_program_of_the_page_searches(start, tmp_path, monkeypatch):
    packages, instead = PROGRAMS[start]
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    data = DATA | networks() if {"fastai", "torch"} & {*packages} else DATA
    (program,) = blocks("docs/loops.md", lambda text: text.startswith(start))
    names = program.run({"__name__": "loops", **data}, {'"20 trials"': '"2 trials"', **instead})
    assert names["study"].outcome.over
    assert len(names["study"].trials) == 2
    assert names["best"] is not None


def test_the_lines_of_fsdp_pause_and_go_on(tmp_path):
    """In one process; sharded.py has two."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    (program,) = blocks("docs/loops.md", lambda text: text.startswith(FSDP))
    study, trained = pausing_study(tmp_path / "search.db", keep_checkpoints=1, verbose=0), []
    for trial in study:
        with trial:
            torch.manual_seed(trial.attempt)
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.AdamW(model.parameters())

            def train_one_epoch(model, optimizer):
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                trained.append(model.weight.item())

            given = {"train_one_epoch": train_one_epoch, "validate": lambda model: model.weight.item()}
            program.run({"trial": trial, "model": model, "optimizer": optimizer, **given})
    assert (study.trials[0].attempt, study.trials[0].values.tolist()) == (2, trained)
    assert trained[2] == pytest.approx(trained[1] - 0.001, abs=1e-4)  # from where it was


def test_importing_the_loops_imports_no_framework(in_a_process):
    frameworks = ["lightgbm", "catboost", "sklearn", "fastai", "accelerate"]
    modules = ", ".join(f"haltune.callbacks.{name}" for name in frameworks)
    found = in_a_process(
        f"import sys, {modules}; print([f for f in ({frameworks} + ['torch']) if f in sys.modules])"
    )
    assert found == "[]\n"


def test_every_program_of_the_page_is_run():
    assert [
        b.text.partition("\n")[0] for b in blocks("docs/loops.md") if not b.text.startswith((FSDP, *PROGRAMS))
    ] == []
