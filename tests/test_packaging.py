"""What users install: the wheel is complete, works in an empty environment, and is quick to import."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from haltune.above import above
from haltune.errors import NotSupported

ROOT = Path(__file__).resolve().parents[1]
SHELVES = {
    "tests",
    "examples",
    "benchmarks",
    "docs",
    "build",
    "dist",
}  # folders that are not part of the package
FRAMEWORKS = [
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "lightning",
    "sklearn",
    "ray",
    "optuna",
    "mlflow",
    "wandb",
]
HEAVY = [*FRAMEWORKS, "sqlalchemy", "plotly", "rich", "pandas", "scipy.stats"]

SEARCH = """
import sys
from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import RandomSearch
import haltune.callbacks.loop, haltune.cli, haltune.gp, haltune.launch, haltune.report

problem = Problem(Space({"rate": Float(1e-3, 1.0, log=True)}), Maximize("accuracy", bounds=(0, 1)), max_epochs=3)
study = Study(problem, RandomSearch(trials=4), store=f"sqlite:///{sys.argv[1]}", seed=1)
for trial in study:
    with trial:
        for epoch in trial.epochs():
            trial.report(trial.config["rate"] * epoch / 3)
assert len(study.trials) == 4, study.trials
print(haltune.__file__, study.best.value == max(trial.config["rate"] for trial in study.trials))
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_folders() -> dict[str, str]:
    """The package of each folder, as pyproject.toml lists and maps them."""
    setuptools = pyproject()["tool"]["setuptools"]
    mapped = sorted(setuptools["package-dir"].items(), key=lambda pair: -len(pair[0]))
    found = {}
    for package in setuptools["packages"]:
        top, folder = next((top, folder) for top, folder in mapped if f"{package}.".startswith(f"{top}."))
        found["/".join([folder, *package.removeprefix(top).split(".")[1:]])] = package
    return found


def python_folders() -> Iterator[str]:
    """Every folder of the repository that holds Python files, apart from the shelves."""
    for top in ROOT.iterdir():
        if top.is_dir() and top.name not in SHELVES and not top.name.startswith((".", "_")):
            yield from {file.parent.relative_to(ROOT).as_posix() for file in top.rglob("*.py")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the repository, so that nothing built here before can help."""
    copy, out = tmp_path_factory.mktemp("source") / "copy", tmp_path_factory.mktemp("wheel")
    junk = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "*.db*")
    shutil.copytree(ROOT, copy, ignore=junk)
    run(*pip(), "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, copy, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def pip(*options: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *options]


def closure(requirements: list[str]) -> Iterator[importlib.metadata.Distribution]:
    """The installed distributions that the requirements bring here, without any extra."""
    todo, seen = [Requirement(text) for text in requirements], set[str]()
    while todo:
        wanted = todo.pop()
        if wanted.name in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(wanted.name)
        found = importlib.metadata.distribution(wanted.name)
        todo += [Requirement(text) for text in found.requires or []]
        yield found


def link_installed(requirements: list[str], folder: Path) -> None:
    """Put what the requirements bring, and nothing else of this environment, into the folder."""
    for found in closure(requirements):
        for name in {
            file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")
        }:
            (folder / name).symlink_to(Path(str(found.locate_file(name))), (found.locate_file(name)).is_dir())


def test_a_wheel_works_in_an_empty_environment_with_its_own_requirements_only(
    wheel: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", "empty", cwd=tmp_path)
    (python,) = [*tmp_path.glob("empty/bin/python"), *tmp_path.glob("empty/Scripts/python.exe")]
    run(*pip("--python", python), "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    (metadata,) = importlib.metadata.distributions(name="haltune", path=[str(site)])
    link_installed(metadata.requires or [], site)
    where, right = run(python, "-c", SEARCH, tmp_path / "search.db", cwd=tmp_path).split()
    assert Path(where) == site / "haltune" / "__init__.py"
    assert right == "True"
    (command,) = [*tmp_path.glob("empty/bin/haltune"), *tmp_path.glob("empty/Scripts/haltune.exe")]
    asked = subprocess.run([command, "--help"], capture_output=True, text=True)
    assert asked.returncode == 2
    assert f"haltune needs typer and rich here: pip install '{wheel}[cli]'" in asked.stderr


def test_the_wheel_holds_every_file_of_the_package_its_licence_and_its_type_marker(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        f"{package.replace('.', '/')}/{file.name}"
        for folder, package in package_folders().items()
        for file in (ROOT / folder).glob("*.py")
    }
    value = "policies/autobct/value/maps"
    maps = {f"haltune/{value}/{file.name}" for file in (ROOT / "core" / value).glob("*.npz")}
    drawn = "haltune/report/page/assets"
    assets = {f"{drawn}/{file.name}" for file in (ROOT / "report/page/assets").iterdir()}
    assert (len(maps), len(assets)) == (2, 11)
    assert ours | maps | assets | {"haltune/py.typed"} == {
        name for name in inside if ".dist-info/" not in name
    }
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_every_folder_of_code_is_a_package_that_pyproject_lists() -> None:
    assert set(python_folders()) == set(package_folders())
    assert set(pyproject()["tool"]["setuptools"]["packages"]) == set(package_folders().values())
    assert all((ROOT / folder / "__init__.py").exists() for folder in package_folders())


def test_what_the_core_asks_for_above_it_is_there() -> None:
    doors = pyproject()["project"]["entry-points"]["haltune.above"]
    assert {f"{found.__module__}:{found.__name__}" for found in (above(door, "", "") for door in doors)} == {
        "haltune.launch.local:run", "haltune.callbacks.keras.callback:load_model",
        "haltune.callbacks.keras.callback:load_best", "haltune.report.page.page:write",
    }  # fmt: skip
    with pytest.raises(
        NotSupported, match=r"study\.sing: .*not installed as a package.*; call haltune\.song\(study\)"
    ):
        above("song", "study.sing", "haltune.song(study)")


def test_import_haltune_brings_nothing_heavy() -> None:
    code = f"import sys, haltune; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(sys.executable, "-P", "-c", code, cwd=ROOT).strip() == "[]"


def test_the_version_is_the_same_in_the_code_the_metadata_and_the_changelog() -> None:
    version = pyproject()["project"]["version"]
    said = run(sys.executable, "-P", "-c", "import haltune; print(haltune.__version__)", cwd=ROOT).strip()
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert said == version
    assert newest.split()[1] == version


def test_every_requirement_of_every_extra_is_pinned_in_the_constraints() -> None:
    project = pyproject()["project"]
    asked = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {pin.name: pin.specifier for pin in map(Requirement, filter(lambda line: line[:1] != "#", lines))}
    for requirement in map(Requirement, asked):
        if requirement.name != "haltune":
            (pin,) = pins[requirement.name]
            assert pin.operator == "=="
            assert requirement.specifier.contains(pin.version), requirement.name
