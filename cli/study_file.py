"""Study files: a TOML file holds the space, goal, policy and budget of a study.

[study]
store = "sqlite:///digits.db"    # relative to this file; or { url = "sqlite:///digits.db", lease = 120 }
max_epochs = 30    # or max_steps, or max_tokens; unit = "game" for your own unit
min_epochs = 5    # no trial is stopped or paused before; default 0
learn_from = ["earlier.db", { store = "all.db", name = "digits" }]    # prior studies, relative to this file

[goal]
maximize = "val_acc"
bounds = [0, 1]
of = "best"    # trials count with their best epoch; default "last"

[constraints]    # limits on metrics; for several goals, one [[goal]] each
params = { at_most = 5e6 }

[space]
lr = { float = [1e-4, 1e-1], log = true }
kernel = { choice = ["rbf", "poly"] }
degree = { int = [2, 5], when = { kernel = "poly" } }
batch = 64

[[start]]    # trained first; any number of these tables
lr = 1e-3
kernel = "rbf"

[policy]
name = "BOBOS"

[budget]
time = "30min"

[program]    # trains each trial, if it is not given after --; see haltune.launch.placeholders
command = "python train.py --lr {lr} --batch {batch} --out {folder} --resume {checkpoint}"
checkpoint = "epoch-{epoch}.pt"    # its own checkpoints, in the trial's folder
grace = 30    # seconds from SIGTERM to SIGKILL
config = { base = "base.yaml", values = { output_dir = "{folder}" } }    # the file {config}

[metrics]    # read from what an unedited program writes
csv = "log.csv"    # or jsonl, tensorboard, mlflow, wandb, pattern
position = "epoch"
"""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from haltune import policies
from haltune._utils.checks import check_counts
from haltune.display import one_line
from haltune.errors import HaltuneError, InvalidInput, InvalidSpace, documented
from haltune.launch.metric_logs import Metrics
from haltune.launch.placeholders import ConfigFile
from haltune.launch.programs import Program
from haltune.log.problem import Budget, Constraint, Goal, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.space.domains import Choice, Constant, Domain, Float, Int
from haltune.store.checkpoints import Checkpointing
from haltune.store.open import Storage
from haltune.study import Study
from haltune.study.arguments import length_of

T = TypeVar("T")
TablePath = tuple[str, ...]  # the outermost table first

_TABLES = ("study", "goal", "constraints", "space", "policy", "budget", "start", "program", "metrics")
_METRICS = tuple(f.name for f in fields(Metrics))
_LENGTHS = ("max_epochs", "max_steps", "max_tokens", "unit")
_JUDGED = ("min_epochs", "judge_every")
_GOAL = ("maximize", "minimize", "bounds", "of", "smooth", "rank_by")
_EXAMPLES = {
    "goal": ', such as [goal] and below it maximize = "val_acc"; several are [[goal]] each',
    "constraints": ", such as [constraints] and below it params = { at_most = 5e6 }",
    "space": ", such as [space] and below it lr = { float = [0.0001, 0.1], log = true }",
    "budget": ', such as [budget] and below it trials = 20, time = "2h", or both',
    "policy": ', such as [policy] and below it name = "BOBOS"',
}


@dataclass(frozen=True)
class StudyFile:
    """The contents of a study file, read but not yet opened."""

    path: Path
    problem: Problem
    policy: Any
    budget: Budget
    options: Mapping[str, Any]  # of Study
    program: Program  # without a command, if the file has none

    def program_of(self, command: Sequence[str]) -> Program:
        """Return the program of the file, or this command in its place. Raises InvalidInput if there is none."""
        if not command and not self.program.command:
            raise InvalidInput(
                "No program is named. Write it after --: haltune run search.toml -- python train.py, or in the study "
                'file: [program] and below it command = "python train.py".'
            )
        return replace(self.program, command=list(command)) if command else self.program

    def open(self, budget: Budget | None = None, name: str | None = None) -> Study:
        """Create or reopen the study. Raises as Study does, and InvalidInput for a search that would never end.

        budget, name: in place of those of the file.
        """
        if (budget or self.budget).unlimited and self.policy.endless:
            raise InvalidInput(
                f"{self.path}: {type(self.policy).__name__} never ends by itself. Add a [budget], such as "
                'time = "2h" or trials = 50.'
            )
        options = {**self.options, "name": name or self.name}
        return Study(self.problem, self.policy, budget=budget or self.budget, **options)

    @property
    def store(self) -> str:
        return str(self.options["store"].url)

    @property
    def folder(self) -> str | None:
        """The folder of the checkpoints, if the file names one."""
        return None if (kept := self.options["checkpoints"]).folder is None else str(kept.folder)

    @property
    def name(self) -> str:
        return str(self.options.get("name", "study"))


def read(path: str | Path) -> StudyFile:
    """Read a study file. Raises InvalidInput that names the line of the error."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors start a file with a byte order mark
        reader = _Reader(path, text, tomllib.loads(text))
        reader.check_numbers((), reader.data)
    except InvalidInput:
        raise
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not a study file, which is text in UTF-8: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{path}: lists or tables are nested too deep.") from error
    except FileNotFoundError as error:
        how = documented("reference/study_file")
        raise InvalidInput(f"there is no study file {path}. Give the path of one, or write it: {how}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: wrong number or path
        raise InvalidInput(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return reader.read()


class _Located(InvalidInput):
    """An error that names its line."""


def _meant(word: Any, known: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(word).lower(), by_lower, 1)
    return f" Perhaps you mean {by_lower[near[0]]!r}." if near else ""


def _holds(data: Any, where: TablePath) -> bool:
    for key in where:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True


class _Reader:
    """Converts the tables of one file; errors name the file and the line."""

    def __init__(self, path: Path, text: str, data: dict[str, Any]) -> None:
        self.path, self.lines, self.data = path, text.split("\n"), data

    def line(self, where: TablePath) -> int:
        """Return the line, from 1, on which a key starts; if it is missing, that of the innermost table around it.

        The first lines that are valid TOML and hold the key end with it; the last valid ones without it end before it.
        So a text or list over several lines is not mistaken for a key.
        """
        while where and not _holds(self.data, where):
            where = where[:-1]
        before = 0
        for count in range(1, len(self.lines) + 1) if where else ():
            try:
                found = tomllib.loads("\n".join(self.lines[:count]))
            except tomllib.TOMLDecodeError:
                continue
            if _holds(found, where):
                break
            before = count
        return before + 1

    def error(self, where: TablePath, text: str) -> InvalidInput:
        return _Located(f"{self.path}, line {self.line(where)}: {'.'.join(where)}: {text}")

    def at(self, where: TablePath, make: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call `make`; an error gets the line of this key."""
        try:
            return make(*args, **options)
        except _Located:
            raise
        except (HaltuneError, TypeError, ValueError) as error:
            raise self.error(where, str(error)) from error

    def known(
        self, where: TablePath, table: Mapping[str, Any], known: Iterable[str], homes: Mapping[str, str] = {}
    ) -> None:
        """Raise InvalidInput for an unknown key. homes: key -> the table where it belongs."""
        known = list(known)
        for key in table:
            if key not in known:
                home = f" It belongs under [{homes[key]}]." if key in homes else _meant(key, known)
                if where and key in _TABLES and isinstance(table[key], dict):  # [program.metrics]
                    home = f" Write the table as [{key}]."
                raise self.error((*where, key), f"unknown key.{home} Known keys: {', '.join(known)}.")

    def table(self, name: str) -> dict[str, Any]:
        table = self.data.get(name, {})
        if not isinstance(table, dict):
            raise self.error((name,), f"use a table [{name}], not {table!r}{_EXAMPLES.get(name, '')}")
        return dict(table)

    def check_numbers(self, where: TablePath, value: Any) -> None:
        """Raise InvalidInput for a whole number beyond TOML's."""
        if isinstance(value, dict):
            for key, part in value.items():
                self.check_numbers((*where, key), part)
        elif isinstance(value, list):
            for part in value:
                self.check_numbers(where, part)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self.error(where, f"a whole number of {value.bit_length()} bits. TOML allows 64.")

    def read(self) -> StudyFile:
        options = (*_LENGTHS, *_JUDGED, *_GROUPS, *_CHECKS)
        goals = dict.fromkeys(_GOAL, "goal")
        self.known((), self.data, _TABLES, dict.fromkeys(options, "study") | goals)
        for name in ("goal", "space"):
            if name not in self.data:
                raise InvalidInput(f"{self.path}: the table [{name}] is missing. Add it{_EXAMPLES[name]}.")
        study = self.table("study")
        if isinstance(given := study.get("budget"), str):
            raise self.error(("study", "budget"), f"use a table [budget], not {given!r}{_EXAMPLES['budget']}")
        self.known(("study",), study, options, {t: t for t in _TABLES} | goals)
        problem = self.problem({name: study.pop(name) for name in (*_LENGTHS, *_JUDGED) if name in study})
        policy = self.policy(("policy",), self.table("policy"))
        budget = self.table("budget")
        limits = {problem.units if f.name == "epochs" else f.name: f.name for f in fields(Budget)}
        self.known(("budget",), budget, list(limits))
        for name, limit in budget.items():
            self.at(("budget", name), Budget, **{limits[name]: limit})
        whole = self.at(("budget",), Budget, **{limits[name]: limit for name, limit in budget.items()})
        return StudyFile(self.path, problem, policy, whole, self.options(study), self.program())

    def options(self, study: dict[str, Any]) -> dict[str, Any]:
        groups = {name: self.group(study, name, kind) for name, kind in _GROUPS.items()}
        options = study | groups
        for name, value in options.items():
            if name in _CHECKS:
                self.at(("study", name), _CHECKS[name], name, value)
        store, kept = groups["store"], groups["checkpoints"]
        options["store"] = replace(store, url=self.next_to(store.url or f"{self.path.stem}.db"))
        if "learn_from" in study:
            options["learn_from"] = [
                self.next_to(given) if isinstance(given, str) else (self.next_to(given["store"]), given["name"])
                for given in study["learn_from"]
            ]
        if kept.folder:
            options["checkpoints"] = replace(kept, folder=str(self.path.parent / kept.folder))
        return options

    def program(self) -> Program:
        table = self.table("program")
        known = [f.name for f in fields(Program) if f.name != "metrics"]
        self.known(("program",), table, known, dict.fromkeys(_METRICS, "metrics"))
        command = table.pop("command", [])
        split: Callable[..., list[str]] = shlex.split if isinstance(command, str) else _words
        table["command"] = self.at(("program", "command"), split, command)
        if "config" in table:
            table["config"] = self.config(table["config"])
        for key, value in table.items():
            if key not in ("config", "saves_on_sigterm"):
                self.at(("program", key), Program, **({"command": []} | {key: value}))
        if "metrics" in self.data:
            metrics = self.table("metrics")
            self.known(("metrics",), metrics, _METRICS, dict.fromkeys(known, "program"))
            table["metrics"] = self.at(("metrics",), Metrics, **metrics)
        return self.at(("program",), Program, **table)

    def config(self, given: Any) -> ConfigFile:
        where = ("program", "config")
        if not isinstance(given, dict):
            raise self.error(where, f'use a table such as {{ base = "base.yaml" }}, not {given!r}')
        self.known(where, given, [f.name for f in fields(ConfigFile)])
        if not isinstance(given.get("values", {}), dict):
            raise self.error((*where, "values"), f"use a table of names and values, not {given['values']!r}")
        if "base" in given:
            self.at((*where, "base"), _text, "base", given["base"])
            given = given | {"base": self.path.parent / given["base"]}
        return self.at(where, ConfigFile, **given)

    def group(self, study: Mapping[str, Any], name: str, kind: type) -> Any:
        """Return the Storage or Checkpointing of a study, from a text or a table."""
        where, given = ("study", name), study.get(name, {})
        first, *_ = keys = [f.name for f in fields(kind)]
        table = dict(given) if isinstance(given, dict) else {first: given}
        self.known(where, table, keys)
        if first in table:
            self.at(where, _text, name, table[first])
        for key, value in table.items():
            self.at((*where, key), kind, **{key: value})
        return self.at(where, kind, **table)

    def next_to(self, store: str) -> str:
        """Return the URL of a store; the path of a file is relative to the study file."""
        scheme, found, file = store.partition("sqlite:///")
        if "://" in store and (not found or scheme):
            return store
        return "sqlite:///" + str((self.path.parent / (file if found else store)).absolute())

    def problem(self, given_length: dict[str, Any]) -> Problem:
        given = self.data["goal"]
        if isinstance(given, list) and all(isinstance(table, dict) for table in given):
            goal: Any = [self.at(("goal",), self.goal, table) for table in given]
        else:
            goal = self.at(("goal",), lambda: self.goal(self.table("goal")))
        domains = {n: self.at(("space", n), _domain, v) for n, v in self.table("space").items()}
        try:
            space = Space(domains)
        except InvalidSpace as error:
            text = str(error)
            about = sorted((n for n in domains if repr(n) in text), key=lambda n: text.index(repr(n)))
            raise self.error(("space", *about[:1]), text) from error
        limits = []
        for metric, table in self.table("constraints").items():
            where = ("constraints", metric)
            if not isinstance(table, dict):
                raise self.error(where, f"use a table such as {metric} = {{ at_most = 5e6 }}, not {table!r}")
            self.known(where, table, ("at_most", "at_least", "changes"))
            limits.append(self.at(where, Constraint, metric, **table))
        lengths = [given_length.get(name) for name in _LENGTHS]
        last = next((name for name in reversed(_LENGTHS) if name in given_length), "max_epochs")
        length, unit = self.at(("study", last), length_of, *lengths)
        problem = self.at(("study", last), Problem, space, goal, length, unit=unit or "epoch")
        for name in _JUDGED:
            if name in given_length:
                problem = self.at(("study", name), replace, problem, **{name: given_length[name]})
        problem = self.at(("constraints",), replace, problem, constraints=limits)
        if isinstance(start := self.data.get("start", ()), dict):
            raise self.error(("start",), "write each configuration as a table with two brackets, [[start]].")
        found: Problem = self.at(("start",), replace, problem, start=start)
        return found

    def goal(self, table: dict[str, Any]) -> Goal:
        self.known(("goal",), table, _GOAL)
        if ("maximize" in table) == ("minimize" in table):
            raise InvalidInput('write either maximize = "val_acc" or minimize = "val_loss".')
        kind: Any = Maximize if "maximize" in table else Minimize
        metric: Any = table.get("maximize", table.get("minimize"))
        kind(metric)
        options = {key: table[key] for key in ("of", "smooth", "rank_by", "bounds") if key in table}
        for key, value in options.items():
            self.at(("goal", key), kind, metric, **{key: value})
        found: Goal = kind(metric, **options)
        return found

    def policy(self, where: TablePath, table: dict[str, Any]) -> Any:
        name, names = table.pop("name", "MultiFidelity"), policies.POLICY_NAMES
        if name not in names:
            raise self.error(
                (*where, "name"), f"there is no policy {name!r}.{_meant(name, names)} Policies: {', '.join(names)}."
            )
        kind = getattr(policies, name)
        self.known(where, table, [f.name for f in fields(kind) if f.init])
        needed = [f.name for f in fields(kind) if f.init and f.default is f.default_factory is MISSING]
        if "policy" in needed and "policy" not in table:
            inner = ".".join((*map(str, where), "policy"))
            raise self.error(
                (*where, "name"),
                f'{name} wraps another policy. Add a table [{inner}] with it, such as name = "RandomSearch".',
            )
        options = {key: self.policy_option((*where, key), key, value) for key, value in table.items()}
        try:
            return kind(**options)
        except Exception as error:  # of any type, because the options come from outside
            about = [key for key in options if re.search(rf"\b{re.escape(key)}\b", str(error))]
            ours = isinstance(error, (HaltuneError, TypeError, ValueError))
            why = str(error) if ours else f"{name} does not accept these options: {one_line(error)}"
            raise self.error((*where, *(about or list(options))[:1]), why) from error

    def policy_option(self, where: TablePath, key: str, value: Any) -> Any:
        if key == "stopping" and isinstance(value, dict):
            from haltune.policies.bobos.optimal_stopping import OptimalStopping  # imports much of scipy

            self.known(where, value, [f.name for f in fields(OptimalStopping)])
            return self.at(where, OptimalStopping.from_json, value)
        return self.policy(where, dict(value)) if isinstance(value, dict) and "name" in value else value


# A parameter: { float = [low, high] }, { int = ... }, { choice = [...] }, or a constant.

_DOMAINS = {
    "float": ("log", "when"), "int": ("log", "when"), "choice": ("ordered", "when"), "constant": ("when",),
}  # fmt: skip
_SAY = "{ float = [low, high] }, { int = [low, high] }, { choice = [...] } or { constant = ... }"
_SIGNS = (">", ">=", "<", "<=", "==", "!=")


def _domain(value: Any) -> Domain:
    if isinstance(value, list):
        raise InvalidInput(f"{value!r} is ambiguous. Write {_SAY}.")
    if not isinstance(value, dict):
        return Constant(value)
    kinds = [kind for kind in _DOMAINS if kind in value]
    if len(kinds) != 1:
        raise InvalidInput(f"{value!r} must have exactly one type. Write {_SAY}.")
    (kind,) = kinds
    options, allowed = {name: option for name, option in value.items() if name != kind}, _DOMAINS[kind]
    for name, option in options.items():
        if name not in allowed:
            raise InvalidInput(
                f"unknown option {name!r}.{_meant(name, allowed)} Options of {kind}: {', '.join(allowed)}."
            )
        if name != "when" and not isinstance(option, bool):
            raise InvalidInput(f"{name} = {option!r}: use true or false.")
    if isinstance(when := options.get("when"), Mapping):
        options["when"] = {name: _condition(values) for name, values in when.items()}
    what = value[kind]
    if kind == "choice":
        if not isinstance(what, list):
            raise InvalidInput(f"choice = {what!r}: use a list of options.")
        return Choice(what, **options)
    if kind == "constant":
        return Constant(what, **options)
    if not (isinstance(what, list) and len(what) == 2):
        raise InvalidInput(f"{kind} = {what!r}: use two bounds, [low, high].")
    return (Float if kind == "float" else Int)(*what, **options)


def _condition(values: Any, alternatives: bool = True) -> Any:
    """Convert a condition: [">", 2] is a comparison, [[">", 2], 1] and ["a", "b"] are alternatives."""
    if not isinstance(values, list):
        return values
    if len(values) == 2 and values[0] in _SIGNS and not isinstance(values[1], str):
        return tuple(values)
    return [_condition(value, False) for value in values] if alternatives else values


# Checks of the other options of Study.


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidInput(f"{name} = {value!r}: use a text that is not empty, without the character 0.")


def _studies(name: str, value: Any) -> None:
    given: Any
    for given in value if isinstance(value, list) else [None]:
        pair = isinstance(given, dict) and given.keys() == {"store", "name"}
        for text in given.values() if pair else [given]:
            if not isinstance(text, str) or not text or "\0" in text:
                raise InvalidInput(
                    f'{name} = {value!r}: use a list of stores, such as ["earlier.db"]. For a store with several '
                    'studies, write { store = "all.db", name = "digits" }.'
                )


def _words(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise InvalidInput(f"{given!r}: use a text, or a list of words.")
    return given


def _count(name: str, value: Any) -> None:
    check_counts(**{name: value})


_GROUPS: dict[str, type] = {"store": Storage, "checkpoints": Checkpointing}
_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "name": _text, "seed": _count, "max_failures": _count, "learn_from": _studies,
}  # fmt: skip
