"""The programs of docs/loops.md run as they are pasted, over small data."""

import numpy as np
import pytest
from documents import blocks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4))
Y = (X[:, 0] + X[:, 1] ** 2 > 0.8).astype(int)
DATA = {"x": X[:60], "y": Y[:60], "x_val": X[60:], "y_val": Y[60:]}
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


def test_every_program_of_the_page_is_run():
    assert [
        b.text.partition("\n")[0] for b in blocks("docs/loops.md") if not b.text.startswith(tuple(PROGRAMS))
    ] == []
