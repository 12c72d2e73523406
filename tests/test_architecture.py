"""The architecture: which package may import which, without cycles.

An arrow A -> B is an import of B in A: at the top of a file, within a function, or only for types.
docs/architecture.md describes the packages.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOPS = {
    "core": "haltune", "callbacks": "haltune.callbacks", "launch": "haltune.launch", "report": "haltune.report",
    "bridges/optuna": "haltune.optuna", "bridges/trackers": "haltune.trackers", "bridges/tuners": "haltune.tuners",
    "bridges/ray_tune": "haltune.ray_tune", "bridges/keras_tuner": "haltune.keras_tuner",
    "bridges/syne_tune": "haltune.syne_tune", "cli": "haltune.cli",
}  # fmt: skip
GROUND = {"above", "display", "errors", "hints"}  # on which everything stands
LOG = {"log", "space", "_utils"}
MATH = LOG | {"gp"}
BAYES = MATH | {"policies.acquisition", "policies.bayesopt", "policies.costs", "policies.random"}
ARROWS: dict[str, set[str]] = {  # a policy without a row asks what BAYES has
    "display": set(),
    "errors": {"display"},
    "above": {"errors"},
    "hints": {"errors"},
    "_utils": set(),
    "space": {"_utils"},
    "gp": {"_utils"},
    "ranks": {"_utils"},
    "log": {"_utils", "space"},
    "store": LOG,
    "models": MATH,
    "policies.random": MATH,
    "policies.costs": MATH,
    "policies.acquisition": MATH,
    "policies.bayesopt": MATH | {"policies.acquisition", "policies.costs", "policies.random"},
    "policies.hyperband": MATH | {"policies.random"},
    "policies.multifidelity": BAYES | {"models", "policies.hyperband"},
    "policies.bobos": BAYES | {"models"},
    "policies.several_goals": LOG,
    "policies.autobct": MATH | {"models"},
}
ABOVE = {  # which may ask all that stands below, policies included
    "policies": set(),  # the face, and from_spec
    "study": {"store", "ranks"},
    "callbacks": {"store", "ranks", "study"},
    "launch": {"store", "ranks", "study"},
    "report": {"store", "ranks", "study"},
    "tuners": {"store", "ranks", "study"},
    "optuna": {"store", "ranks", "study", "tuners"},
    "syne_tune": {"store", "ranks", "study", "tuners"},
    "keras_tuner": {"store", "ranks", "study", "tuners", "callbacks"},
    "ray_tune": {"store", "ranks", "study", "tuners"},
    "trackers": {"store", "ranks", "study"},
    "cli": {"store", "ranks", "study", "callbacks", "launch", "report", "trackers"},
    "haltune": {"store", "study"},  # its face
    "__main__": {"cli"},
}


def modules() -> dict[str, Path]:
    """Every module of the package, and its file."""
    found = {}
    for top, name in TOPS.items():
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT / top).with_suffix("").parts
            found[".".join([name, *parts]).removesuffix(".__init__")] = path
    return found


MODULES = modules()
if not MODULES:
    pytest.skip("not a checkout", allow_module_level=True)


@cache
def trees() -> dict[str, ast.Module]:
    """Every module, parsed."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imported(name: str) -> Iterator[str]:
    """The modules of the package that a module imports, by a statement or by their names."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and node.args[0].value in MODULES:
                yield str(node.args[0].value)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield from (m for m in (whole if whole in MODULES else base,) if m in MODULES and m != name)


@cache
def imports() -> dict[str, set[str]]:
    """Return the imports of each module. Tests call it; at collection it would run in every worker."""
    return {name: set(imported(name)) for name in MODULES}


def room(module: str) -> str:
    """Return the package of a module."""
    parts = module.split(".")[1:]
    if not parts:
        return "haltune"
    if parts[0] == "policies":
        return ".".join(parts[:2]) if len(parts) > 1 and parts[1] != "from_spec" else "policies"
    return parts[0]


def allowed(asks: str) -> set[str]:
    """The rooms that a room may ask."""
    if asks in ARROWS or asks.startswith("policies."):
        return ARROWS.get(asks, BAYES) | (set() if asks in GROUND else GROUND)
    policies = {room(name) for name in MODULES if name.startswith("haltune.policies")}
    return ABOVE[asks] | GROUND | set(ARROWS) - {"store", "ranks"} | policies


def test_every_room_asks_only_what_stands_below_it() -> None:
    wrong = [
        f"{name} -> {other}"
        for name in MODULES
        for other in sorted(imports()[name])
        if room(other) != room(name) and room(other) not in allowed(room(name))
    ]
    assert wrong == []


def circles(arrows: dict[str, set[str]]) -> dict[str, list[str]]:
    """The arrows between nodes that lead back to themselves."""
    left = arrows.copy()
    while ready := [node for node, needs in left.items() if not needs & left.keys()]:
        left = {node: needs for node, needs in left.items() if node not in ready}
    while unneeded := [node for node in left if not any(node in needs for needs in left.values())]:
        left = {node: needs for node, needs in left.items() if node not in unneeded}
    return {node: sorted(needs & left.keys()) for node, needs in left.items()}


def test_no_module_leads_back_to_itself() -> None:
    assert circles(imports()) == {}


def test_no_folder_leads_back_to_itself() -> None:
    """Files and folders of one folder, each as a whole."""
    for folder in (name for name, path in MODULES.items() if path.name == "__init__.py"):
        arrows: dict[str, set[str]] = {}
        for name in MODULES:
            if name.startswith(f"{folder}."):
                inside = [part(other, folder) for other in imports()[name] if other.startswith(f"{folder}.")]
                arrows.setdefault(part(name, folder), set()).update(inside)
        assert circles({one: others - {one} for one, others in arrows.items()}) == {}, folder


def part(module: str, folder: str) -> str:
    """Return the part of a folder that a module is, or is in."""
    return module.removeprefix(f"{folder}.").partition(".")[0]


def test_nothing_is_imported_by_the_name_of_its_folder() -> None:
    wrong = []
    for name, tree in trees().items():
        for node in ast.walk(tree):
            base = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            wrong += [name] if (base or "").partition(".")[0] in TOPS else []
    assert wrong == []


def test_importing_haltune_imports_no_policy_and_no_framework() -> None:
    others = ("torch", "lightning", "keras", "tensorflow", "jax", "ray", "plotly", "rich", "typer", "pandas", "optuna")
    policy = "m.startswith('haltune.policies.') and m != 'haltune.policies.from_spec'"
    wrong = f"[m for m in sys.modules if {policy} or m in {others}]"
    code = f"import sys, haltune; print({wrong})"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_starts_without_figures_and_without_a_policy() -> None:
    pytest.importorskip("typer")
    wrong = "[m for m in sys.modules if m.startswith(('haltune.report.figures', 'scipy.optimize', 'scipy.special'))]"
    code = f"import sys, haltune.cli.app; print({wrong})"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


OF_FRAMEWORKS = {  # Accelerate, Lightning, TensorFlow, torch, TRL, Optuna
    "_models": "callbacks",
    "_results": "callbacks",
    "_seed": "_utils",
    "_version": "callbacks",
    "_step": "callbacks",
    "_contains": "optuna",
}


def test_no_package_uses_an_underscore_name_of_another() -> None:
    """What a package needs of a trial is in haltune.study.port and loops; of a study, in names of Study and Session."""
    defined: dict[str, set[str]] = {}
    for name, tree in trees().items():
        defined.setdefault(room(name), set()).update(own_names(tree))
    wrong = []
    for name, tree in trees().items():
        here = defined[room(name)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                used = [alias.name for alias in node.names if (node.module or "").startswith("haltune")]
            elif isinstance(node, ast.Attribute):
                used = [node.attr] if getattr(node.value, "id", "") not in ("self", "cls") else []  # of a base class
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
                used = [str(getattr(node.args[1], "value", ""))]
            else:
                continue
            for private in used:
                if not private.startswith("_") or private.startswith("__") or private == "_utils":
                    continue
                others = {other for other in defined if private in defined[other]} - {room(name)}
                if others and private not in here and OF_FRAMEWORKS.get(private) != room(name):
                    wrong.append(f"{name}:{node.lineno} uses {private} of {', '.join(sorted(others))}")
    assert wrong == []


def own_names(tree: ast.AST) -> Iterator[str]:
    """The names that a module defines: functions, classes, variables, and attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if getattr(node.value, "id", "") == "self" else []
