"""What a program imports, read from its text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from haltune.launch.imports import imports_of
from haltune.launch.warm import program_of


@pytest.fixture
def read(tmp_path: Path):
    """What is found of a program, whose own files are given by their names."""

    def read(text: str, **files: str) -> list[str]:
        for name, content in files.items():
            place = tmp_path / f"{name.replace('__', '/', 1)}.py"
            place.parent.mkdir(exist_ok=True)
            place.write_text(content)
        (tmp_path / "train.py").write_text(text)
        return imports_of(tmp_path / "train.py", tmp_path)

    return read


def test_imports_come_in_the_order_of_the_text_each_once(read):
    text = '"""Of it."""\nimport numpy as np, torch.nn\nfrom torch import optim, nn as n\nimport numpy'
    text += "\nfrom keras import *"
    assert read(text) == ["numpy", "torch.nn", "torch", "torch:optim", "torch:nn", "keras"]


def test_the_programs_own_files_are_followed_and_never_named(read):
    found = read(
        "import torch\nfrom nets.small import Net\nfrom nets import data\nimport helpers\nimport scipy",
        nets____init__="import lightning\nfrom .layers import Layer",
        nets__small="from . import layers\nfrom ..helpers import f\nimport einops",
        nets__layers="import timm",
        nets__data="import datasets",
        helpers="import train\nimport pandas",
    )
    assert found == ["torch", "lightning", "timm", "pandas", "einops", "datasets", "scipy"]


@pytest.mark.parametrize(
    "turn",
    ["import os\nos.environ['HF_HOME'] = '/data'", "import sys\nsys.path.insert(0, 'src')", "load_dotenv()",
     "import os\nif os.environ.get('A'):\n    pass", "import own"],
)  # fmt: skip
def test_nothing_counts_after_what_may_change_an_import(read, turn):
    found = read(f"import torch\n{turn}\nimport transformers", own="import os\nos.putenv('A', 'b')")
    assert [name for name in found if name not in ("os", "sys")] == ["torch"]


def test_what_may_not_be_imported_at_all_is_left_out(read):
    text = """
try:
    import torch
except ImportError:
    import jax
if torch is None:
    import tensorflow
def main():
    import ray, os
    os.environ["A"] = "b"
class Net:
    import pandas
import numpy
"""
    assert read(text) == ["torch", "numpy"]


def test_a_command_is_taken_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import numpy")
    Path("nets").mkdir()
    Path("nets/fit.py").write_text("import scipy")
    Path("nets/__main__.py").write_text("import numpy")
    found = program_of(["python3.11", "-uB", "-W", "error", "-Xdev", "train.py", "-m", "--lr", "1"])
    assert list(found.interpreter) == ["python3.11", "-uB", "-W", "error", "-Xdev"]
    assert (list(found.argv), found.module, found.root) == (["train.py", "-m", "--lr", "1"], None, tmp_path)
    found = program_of([sys.executable, "-m", "nets.fit", "2"])
    assert (list(found.argv), found.module, found.root) == (["-m", "2"], "nets.fit", tmp_path)
    assert list(found.modules) == ["scipy"]
    assert list(program_of(["python", "-m", "nets"]).modules) == ["numpy"]


@pytest.mark.parametrize(
    "command",
    ["./train.py", "torchrun train.py", "python", "python -m", "python -c pass", "python -i train.py", "python -",
     "python missing.py", "python -m torch.distributed.run train.py", "python wrong.py", "python bare.py",
     "python -W", "accelerate launch train.py"],
)  # fmt: skip
def test_a_command_that_is_none_of_a_program_in_python_or_imports_nothing_starts_fresh(
    tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import numpy")
    Path("wrong.py").write_text("import numpy as")
    Path("bare.py").write_text("import json, os.path")
    assert program_of(command.split()) is None
