"""Docstrings of public names describe each argument, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import haltune

DOORS = {
    "haltune": [
        "Budget", "Choice", "Constant", "Float", "Int", "Maximize", "Minimize", "Problem", "Space",
        "Space.canonical", "Space.decode", "Space.encode", "Space.mesh", "Space.sample", "Study",
        "Study.ask", "Study.audit", "Study.enqueue", "Study.events", "Study.explain", "Study.frame",
        "Study.level_set", "Study.maximisers", "Study.optimize", "Study.outlook", "Study.recommend", "Study.report",
        "Study.tell", "Trial", "Trial.epochs", "Trial.fail", "Trial.finish", "Trial.interrupt", "Trial.load_model",
        "Trial.report", "Trial.save", "Verdict", "current_trial", "load_study",
    ],
    "haltune.gp": ["Kernel", "LogNormal", "condition_on", "fit", "sample", "subset"],
    "haltune.policies": ["Hyperband.table", "Resume", "Start"],
    "haltune.store.open": ["open_store"],
    "haltune.callbacks": ["check_resume"],
    "haltune.callbacks.loop": ["TrainingLoop", "write_later"],
    "haltune.callbacks.sharded": ["ShardedLoop", "consolidate"],
    "haltune.callbacks.sklearn": ["fit"],
    "haltune.report": ["learning_curves", "live", "region", "replay", "summary", "write"],
    "haltune.launch": ["run", "run_script"],
    "haltune.launch.ray": ["run"],
    "haltune.optuna": ["HaltunePruner", "HaltuneSampler", "from_study", "to_study"],
    "haltune.keras_tuner": ["Tuner"],
    "haltune.syne_tune": ["HaltuneScheduler"],
    "haltune.ray_tune": ["HaltuneScheduler", "HaltuneSearch"],
    "haltune.trackers": ["MLflow", "TensorBoard", "WandB", "track"],
    "haltune.callbacks.xgboost": ["HaltuneCallback"],
    "haltune.callbacks.lightgbm": ["HaltuneCallback"],
    "haltune.callbacks.catboost": ["HaltuneCallback"],
    "haltune.callbacks.accelerate": ["AcceleratedLoop"],
    "haltune.callbacks.fastai": ["HaltuneCallback"],
    "haltune.callbacks.stable_baselines3": ["HaltuneCallback"],
    "haltune.callbacks.lightning": ["HaltuneCallback"],
    "haltune.callbacks.transformers": ["HaltuneCallback", "hyperparameter_search"],
    "haltune.callbacks.keras": ["HaltuneCallback", "load_best", "load_model"],
}  # fmt: skip
RAISES_NOTHING = {"Resume", "Start", "Trial.epochs", "Verdict", "write_later"}
ALL = [(module, name) for module, names in DOORS.items() for name in names]
FRAMEWORKS = {
    "haltune.keras_tuner": "keras_tuner",
    "haltune.launch.ray": "ray",
    "haltune.callbacks.xgboost": "xgboost",
    "haltune.callbacks.lightgbm": "lightgbm",
    "haltune.callbacks.catboost": "catboost",
    "haltune.callbacks.accelerate": "accelerate",
    "haltune.callbacks.sharded": "torch",
    "haltune.callbacks.fastai": "fastai",
    "haltune.callbacks.stable_baselines3": "stable_baselines3",
    "haltune.callbacks.lightning": "lightning",
    "haltune.callbacks.transformers": "transformers",
    "haltune.callbacks.keras": "keras",
}
NEEDS = {
    **FRAMEWORKS,
    "haltune.optuna": "optuna",
    "haltune.callbacks.sklearn": "skops",
    "haltune.ray_tune": "ray",
    "haltune.syne_tune": "syne_tune",
    "haltune.trackers": "tensorboard",
}  # whose examples are run all the same
SECTIONS = "Args:|Returns:|Raises:|Example:"


def door(module: str, name: str) -> Any:
    if (framework := NEEDS.get(module)) and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    with pytest.MonkeyPatch.context() as patch:  # Keras would import TensorFlow, which takes seconds; torch is there
        patch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "torch"))
        return attrgetter(name)(importlib.import_module(module))


def section(thing: Any, title: str) -> str:
    """One section of a docstring, without its title."""
    found = re.search(rf"^{title}\n(.*?)(?:^(?:{SECTIONS})|\Z)", inspect.getdoc(thing) or "", re.S | re.M)
    assert found, f"{thing} has no section {title}"
    return dedent(found[1])


EXPENSIVE = {"haltune.keras_tuner": [pytest.mark.slow]}  # Keras Tuner imports TensorFlow


@pytest.mark.parametrize(("module", "name"), [pytest.param(m, n, marks=EXPENSIVE.get(m, [])) for m, n in ALL])
def test_a_docstring_names_every_argument_and_what_is_raised(module: str, name: str) -> None:
    thing = door(module, name)
    first = (inspect.getdoc(thing) or "").splitlines()[0]
    assert first.endswith("."), first
    asked = {n: p for n, p in inspect.signature(thing).parameters.items() if n != "self"}
    told = section(thing, "Args:") if asked else ""
    entries = dict(re.findall(r"^(\w+): (\S.*?)(?=^\w+: |\Z)", told, re.M | re.S))
    assert list(entries) == list(asked)
    defaults = [n for n, p in asked.items() if p.default is not p.empty]
    assert [n for n in defaults if "default" not in entries[n].lower()] == []
    assert name in RAISES_NOTHING or re.match(r"\w+Error|\w+", section(thing, "Raises:"))


@pytest.mark.parametrize(("module", "name"), [door for door in ALL if door[0] not in FRAMEWORKS])
def test_an_example_without_a_framework_runs(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing = door(module, name)
    if ">>>" not in (example := section(thing, "Example:")):
        pytest.skip("a program of its own")
    monkeypatch.chdir(tmp_path)
    names = {**vars(sys.modules[thing.__module__]), **{n: getattr(haltune, n) for n in haltune.__all__}}
    test = doctest.DocTestParser().get_doctest(example, names, f"{module}.{name}", None, None)
    told: list[str] = []
    assert doctest.DocTestRunner().run(test, out=told.append).failed == 0, "".join(told)


PROGRAMS = [
    ("haltune.launch", "run"),
    pytest.param("haltune.launch", "run_script", marks=pytest.mark.slow),
    *(pytest.param(module, DOORS[module][0], marks=pytest.mark.slow) for module in FRAMEWORKS),
]


@pytest.mark.parametrize(("module", "name"), PROGRAMS)
def test_an_example_that_is_a_program_runs(module: str, name: str, tmp_path: Path) -> None:
    example = dedent(section(door(module, name), "Example:").replace("::\n", "", 1))
    (tmp_path / "search.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "search.py"], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
