"""The wheel is complete, works in an empty environment, and imports quickly."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from haltune.above import above
from haltune.errors import SITE, NotSupported

ROOT = Path(__file__).resolve().parents[1]
SHELVES = {"tests", "examples", "benchmarks", "docs", "build", "dist"}  # folders that are not part of the package
FRAMEWORKS = ["torch", "tensorflow", "keras", "jax", "lightning", "sklearn", "ray", "optuna", "mlflow", "wandb"]
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
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository's files: what was built, written or left here before neither helps nor harms."""
    folder = tmp_path_factory.mktemp("source") / "copy"
    if (ROOT / ".git").exists():
        for name in filter(None, run("git", "ls-files", "-z", cwd=ROOT).split("\0")):
            if (ROOT / name).is_file():  # not removed since the last commit
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        return folder
    junk = shutil.ignore_patterns(
        ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info", "*.db*"
    )
    shutil.copytree(ROOT, folder, ignore=junk)
    return folder


@pytest.fixture(scope="module")
def built(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `python -m build` makes: the source distribution, and the wheel that is built of it."""
    pytest.importorskip("build", reason="build is not installed")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    (found,) = built.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(found) as archive:
        archive.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    return top


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site-packages of an environment with only the wheel and its requirements."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", "empty", cwd=folder)
    python = python_of(folder)
    run(*pip("--python", python), "install", "--no-deps", "--no-index", wheel, cwd=folder)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (metadata,) = importlib.metadata.distributions(name="haltune", path=[str(site)])
    link_installed(metadata.requires or [], site)
    return site


def python_of(folder: Path) -> Path:
    (python,) = [*folder.glob("empty/bin/python"), *folder.glob("empty/Scripts/python.exe")]
    return python


def environment_of(site: Path) -> Path:
    return next(parent for parent in site.parents if parent.name == "empty").parent


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
    """Link only the packages of the requirements into the folder."""
    for found in closure(requirements):
        for name in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(found.locate_file(name))), (found.locate_file(name)).is_dir())


@pytest.mark.slow
def test_a_wheel_works_in_an_empty_environment_with_its_own_requirements_only(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    folder = environment_of(installed)
    where, right = run(python_of(folder), "-c", SEARCH, tmp_path / "search.db", cwd=tmp_path).split()
    assert Path(where) == installed / "haltune" / "__init__.py"
    assert right == "True"
    (command,) = [*folder.glob("empty/bin/haltune"), *folder.glob("empty/Scripts/haltune.exe")]
    for asks in ([command], [python_of(folder), "-m", "haltune"]):
        asked = subprocess.run([*asks, "--help"], capture_output=True, text=True, cwd=tmp_path)
        assert asked.returncode == 2
        assert f"haltune needs typer and rich here: pip install '{wheel}[cli]'" in asked.stderr


@pytest.mark.slow  # setuptools builds it
def test_the_source_distribution_holds_every_file_of_the_repository(copy: Path, unpacked: Path) -> None:
    made = {"PKG-INFO", "setup.cfg"}  # by setuptools

    def files(top: Path) -> set[str]:
        found = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}
        return {name for name in found if "__pycache__" not in name and ".egg-info/" not in name}

    assert files(unpacked) - made == files(copy)


TYPED = """
from typing import assert_type

from haltune import Budget, Float, Int, Space, Study, Trial, Verdict, load_study
from haltune.policies import BOBOS, Policy
from haltune.report import replay, summary

space = Space({"lr": Float(1e-4, 1.0, log=True), "width": Int(8, 64)})
study = Study(space, "val_acc", max_epochs=9, budget=Budget(trials=3), policy=BOBOS(K1=300.0))


def train(trial: Trial) -> None:
    for epoch in trial.epochs():
        verdict = trial.report(0.5, epoch)
        assert_type(verdict, Verdict)
        assert_type(verdict.stops, bool)


for trial in study:
    assert_type(trial, Trial)
    with trial:
        train(trial)
study.optimize(train, workers=2)
best = study.best
assert_type(best.value if best is not None else 0.0, float)
assert_type(load_study("search.db").trials[0].id, int)
assert_type(summary(study), str)
print(replay(load_study("search.db"), {"bold": BOBOS(K1=150)}))
"""
WRONG = """
from haltune import Float, load_study
from haltune.policies import BOBO

Float("low", 1.0, log=1j)
load_study("search.db").best.value + 1
"""


@pytest.fixture
def outside(installed: Path, tmp_path: Path) -> Path:
    """A user's project with the installed haltune, and the types that it expects."""
    (tmp_path / "right.py").write_text(TYPED)
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path


@pytest.mark.slow
def test_mypy_knows_the_types_in_a_project_of_somebody_elses(outside: Path, installed: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    python = python_of(environment_of(installed))
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    run(*mypy, "right.py", cwd=outside)
    told = subprocess.run([*mypy, "wrong.py"], cwd=outside, capture_output=True, text=True).stdout
    assert 'Argument "log" to "Float" has incompatible type "complex"' in told
    assert 'has no attribute "value"  [union-attr]' in told
    assert 'Module "haltune.policies" has no attribute "BOBO"' in told


@pytest.mark.slow
def test_pyright_knows_the_types_in_a_project_of_somebody_elses(outside: Path, installed: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    asks = [pyright, "--pythonpath", str(python_of(environment_of(installed)))]
    run(*asks, "right.py", cwd=outside)
    told = subprocess.run([*asks, "wrong.py"], cwd=outside, capture_output=True, text=True).stdout
    assert '"complex" cannot be assigned to parameter "log"' in told
    assert '"value" is not a known attribute of "None"' in told
    assert '"BOBO" is unknown import symbol' in told


@pytest.mark.slow  # setuptools builds it; that each folder is a package is tested below
def test_the_wheel_holds_every_file_of_the_package_its_licence_and_its_type_marker(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        f"{package.replace('.', '/')}/{file.name}"
        for folder, package in package_folders().items()
        for file in (ROOT / folder).glob("*.py")
    }
    value = "policies/autobct/maps"
    maps = {f"haltune/{value}/{file.name}" for file in (ROOT / "core" / value).glob("*.npz")}
    drawn = "haltune/report/page/assets"
    assets = {f"{drawn}/{file.name}" for file in (ROOT / "report/page/assets").iterdir()}
    assert (len(maps), len(assets)) == (2, 11)
    assert ours | maps | assets | {"haltune/py.typed"} == {name for name in inside if ".dist-info/" not in name}
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_every_folder_of_code_is_a_package_that_pyproject_lists() -> None:
    assert set(python_folders()) == set(package_folders())
    assert set(pyproject()["tool"]["setuptools"]["packages"]) == set(package_folders().values())
    assert all((ROOT / folder / "__init__.py").exists() for folder in package_folders())


def test_what_the_core_asks_for_above_it_is_there() -> None:
    doors = pyproject()["project"]["entry-points"]["haltune.above"]
    assert {f"{found.__module__}:{found.__name__}" for found in (above(door, "", "") for door in doors)} == {
        "haltune.launch.processes:run", "haltune.callbacks.keras.saving:load_model",
        "haltune.callbacks.keras.saving:load_best", "haltune.report.page:write",
    }  # fmt: skip
    with pytest.raises(
        NotSupported, match=r"study\.sing needs .*not installed as a package.* Call haltune\.song\(study\)"
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
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    if of := [tag for tag in tags.split() if re.fullmatch(r"v\d+(\.\d+)*", tag)]:  # this commit is a release
        assert of == [f"v{version}"]
        assert "unreleased" not in newest


def test_every_requirement_of_every_extra_is_pinned_in_the_constraints() -> None:
    project = pyproject()["project"]
    asked = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {pin.name: pin.specifier for pin in map(Requirement, filter(lambda line: line[:1] != "#", lines))}
    for requirement in map(Requirement, asked):
        if requirement.name != "haltune":
            (pin,) = pins[requirement.name]
            assert pin.operator == "=="
            assert requirement.specifier.contains(pin.version), requirement.name


def test_the_lowest_versions_are_those_that_are_tried() -> None:
    """The lowest versions for haltune, its command line and its pages; `make lowest` installs lowest.txt."""
    lines = (ROOT / "lowest.txt").read_text().splitlines()
    lowest = {r.name: r.specifier for r in map(Requirement, filter(lambda line: line[:1] != "#", lines))}
    project = pyproject()["project"]
    extras = [r for extra in ("cli", "report", "watch") for r in project["optional-dependencies"][extra]]
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        if requirement.name == "haltune":
            continue
        (least,) = requirement.specifier
        assert least.operator == ">="
        assert str(lowest[requirement.name]) == f"=={least.version}", requirement.name


@pytest.mark.slow
def test_the_description_for_the_package_index_links_to_pages_of_the_site(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        description = archive.read(name).decode().partition("\n\n")[2]
    assert description.startswith("# haltune")
    links = re.findall(r"\]\(([^)\s]+)\)", description)
    assert {link for link in links if not link.startswith("https://")} == set()
    pages = {link.partition("#")[0].removeprefix(f"{SITE}/") for link in links if link.startswith(f"{SITE}/")}
    assert len(pages) > 10
    elsewhere = {"contributing.html", "licence.html"}  # files of the repository outside docs/
    assert {p for p in pages - elsewhere if not (ROOT / "docs" / p.replace(".html", ".md")).exists()} == set()
