"""The notebooks of the documentation run from top to bottom, and print what they are shown to print."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from documents import ROOT

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

FOLDER = ROOT / "docs" / "notebooks"
SMALL = {  # what is put in the place of what takes longer
    "first_search": {'"20 trials"': '"4 trials"', '"24 trials"': '"5 trials"'},
    "why_stopped": {'"14 trials"': '"3 trials"', '"16 trials"': '"11 trials"'},
}


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return found


@pytest.mark.parametrize("name", ["first_search", pytest.param("why_stopped", marks=pytest.mark.slow)])
def test_a_notebook_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs in a plain namespace; the slow test runs it by a kernel."""
    shells = pytest.importorskip("IPython.core.inputtransformer2", reason="IPython is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "notebook"}
    left = dict(SMALL[name])
    for number, cell in enumerate(cells(name)):
        if cell["cell_type"] == "code":
            text = "".join(cell["source"])
            for ours in [ours for ours in left if ours in text]:
                text = text.replace(ours, left.pop(ours))
            exec(compile(shells.TransformerManager().transform_cell(text), f"{name} [{number}]", "exec"), names)
    assert left == {}
    assert names["study"].outcome.over
    assert {"first_search": "validation 0.", "why_stopped": "K1 p + q = "}[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", SMALL)
def test_the_first_cell_installs_haltune_from_the_package_index_where_it_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shells = pytest.importorskip("IPython.core.inputtransformer2", reason="IPython is not installed")
    first = "".join(next(cell for cell in cells(name) if cell["cell_type"] == "code")["source"])
    asked: list[Any] = []
    shell = SimpleNamespace(run_line_magic=lambda *line: asked.append(line))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(shells.TransformerManager().transform_cell(first), {"get_ipython": lambda: shell})
    ((magic, line),) = asked
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = re.fullmatch(r'install -q "([\w-]+)\[([\w-]+)\]" scikit-learn', line)
    assert magic == "pip"
    assert required is not None
    assert required[1] == project["name"]
    assert required[2] in project["optional-dependencies"]


def test_every_notebook_is_run_and_kept_as_it_was_run_whole() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SMALL)
    for name in SMALL:
        counted = [cell["execution_count"] for cell in cells(name) if cell["cell_type"] == "code"]
        assert counted == [*range(1, len(counted) + 1)]
        text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
        assert len(text) < 60_000
        assert not re.search(r"/(tmp|home|root|work)/", text)  # a folder of the user who ran it
        assert '"output_type": "error"' not in text


def forms(cell: dict[str, Any]) -> list[str]:
    """Return the output of a cell, without its numbers."""
    printed = ["".join(output.get("text", ())) for output in cell.get("outputs", ())]
    return [re.sub(r"[-+]?\d[\d.:e-]*|\s+", " ", text) for text in printed]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_kernel_prints_what_the_notebook_is_shown_to_print(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers may end otherwise on another machine."""
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    anew = importlib.import_module("cells").ran(FOLDER / f"{name}.ipynb")["cells"]
    assert [forms(cell) for cell in anew] == [forms(cell) for cell in cells(name)]
