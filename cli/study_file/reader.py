"""A study written down: a TOML file of its space, goal, policy and budget.

[study]
store = "sqlite:///digits.db"    # beside this file
max_epochs = 30
min_epochs = 5    # no trial is stopped or paused before; 0 if it is left out
learn_from = ["earlier.db", { store = "all.db", name = "digits" }]    # earlier studies, beside it, too

[goal]
maximize = "val_acc"
bounds = [0, 1]
of = "best"    # runs count for their best epoch; "last" if it is left out

[constraints]    # metrics that runs keep within limits; several goals are a [[goal]] each
params = { at_most = 5e6 }

[space]
lr = { float = [1e-4, 1e-1], log = true }
kernel = { choice = ["rbf", "poly"] }
degree = { int = [2, 5], when = { kernel = "poly" } }
batch = 64

[[start]]    # trained first; as many of these as there are
lr = 1e-3
kernel = "rbf"

[policy]
name = "BOBOS"

[budget]
time = "30min"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from haltune import policies
from haltune._utils.checks import check_counts, check_seconds
from haltune._utils.words import one_line
from haltune.errors import HaltuneError, InvalidInput, InvalidSpace, old_names, warn
from haltune.log.problem import Budget, Constraint, Goal, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.space.domains import Domain
from haltune.store.checkpoints import bytes_of
from haltune.study import Study

from .lines import Lines, TablePath, meant
from .parameters import parameter

_TABLES = ("study", "goal", "constraints", "space", "policy", "budget", "start")
_GOAL = dict.fromkeys(("maximize", "minimize", "bounds", "of"), "goal")


@dataclass(frozen=True)
class StudyFile:
    """What a file says, read but not yet opened."""

    path: Path
    problem: Problem
    policy: Any
    budget: Budget
    options: Mapping[str, Any]  # of Study

    def open(self, budget: Budget | None = None) -> Study:
        """The study, made or reopened. Raises what Study raises, InvalidInput for a search that would never end."""
        if (budget or self.budget).unlimited and self.policy.endless:
            raise InvalidInput(
                f"{self.path}: {type(self.policy).__name__} never ends by itself: give a [budget], such as "
                'time = "2h" or trials = 50'
            )
        return Study(self.problem, self.policy, budget=budget or self.budget, **self.options)

    @property
    def store(self) -> str:
        """The URL of its store."""
        return str(self.options["store"])

    @property
    def name(self) -> str:
        """The study's name in its store."""
        return str(self.options.get("name", "study"))


def read(path: str | Path) -> StudyFile:
    """Read a study file. Raises InvalidInput that names the line for whatever it does not say well."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows begin files with a mark
        data = tomllib.loads(text)
        lines = Lines(path, text, data)
        _check_numbers(lines, data)
    except InvalidInput:
        raise
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: a study file is text in UTF-8, and no database: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{path}: lists or tables nested too deep for a study file") from error
    except (OSError, ValueError) as error:  # ValueError: of TOML, of a number or of a path
        raise InvalidInput(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return _TableReader(path, data, lines).read()


def _check_numbers(lines: Lines, value: Any, where: TablePath = ()) -> None:
    """Raises InvalidInput for a whole number beyond TOML's."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_numbers(lines, part, (*where, key))
    elif isinstance(value, list):
        for part in value:
            _check_numbers(lines, part, where)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise lines.error(where, f"a whole number of {value.bit_length()} bits: they have 64")


class _TableReader:
    """Turns tables into what they stand for."""

    def __init__(self, path: Path, data: dict[str, Any], lines: Lines) -> None:
        self._path, self._data, self._lines = path, data, lines

    def read(self) -> StudyFile:
        self._lines.known((), self._data, _TABLES, dict.fromkeys((*_EPOCHS, *_CHECKS), "study") | _GOAL)
        for table in ("goal", "space"):
            if table not in self._data:
                raise InvalidInput(f"{self._path}: there is no table [{table}]")
        study = self._table("study")
        if isinstance(given := study.get("budget"), str):
            raise self._lines.error(
                ("study", "budget"), f"a table [budget], not {given!r}{_EXAMPLES['budget']}"
            )
        self._lines.known(("study",), study, (*_EPOCHS, *_CHECKS), {t: t for t in _TABLES} | _GOAL)
        problem = self._problem(study.pop("max_epochs", None), study.pop("min_epochs", 0))
        policy = self._policy(("policy",), self._table("policy"))
        return StudyFile(self._path, problem, policy, self._budget(), self._options(study))

    def _problem(self, max_epochs: Any, min_epochs: Any) -> Problem:
        goal = self._lines.at(("goal",), self._goal)
        table = self._table("space")
        domains = {n: self._lines.at(("space", n), lambda v=v: parameter(v)) for n, v in table.items()}  # type: ignore[misc]
        space = self._space(domains)
        limits = [self._limit(name, table) for name, table in self._table("constraints").items()]
        problem = self._lines.at(("study", "max_epochs"), lambda: Problem(space, goal, max_epochs))
        problem = self._lines.at(("study", "min_epochs"), lambda: replace(problem, min_epochs=min_epochs))
        problem = self._lines.at(("constraints",), lambda: replace(problem, constraints=limits))
        return self._lines.at(("start",), lambda: replace(problem, start=self._data.get("start", ())))

    def _space(self, domains: dict[str, Domain]) -> Space:
        try:
            return Space(domains)
        except InvalidSpace as error:
            text = str(error)
            about = sorted((n for n in domains if repr(n) in text), key=lambda n: text.index(repr(n)))
            raise self._lines.error(("space", *about[:1]), text) from error

    def _limit(self, metric: str, table: Any) -> Constraint:
        """at_most, at_least and changes of one metric."""
        where = ("constraints", metric)
        if not isinstance(table, dict):
            raise self._lines.error(where, f"a table such as {metric} = {{ at_most = 5e6 }}, not {table!r}")
        self._lines.known(where, table, ("at_most", "at_least", "changes"))
        return self._lines.at(where, lambda: Constraint(metric, **table))

    def _goal(self) -> Goal | list[Goal]:
        """One table [goal], or several [[goal]]."""
        given = self._data["goal"]
        if isinstance(given, list) and all(isinstance(table, dict) for table in given):
            return [self._one_goal(dict(table)) for table in given]
        return self._one_goal(self._table("goal"))

    def _one_goal(self, table: dict[str, Any]) -> Goal:
        self._lines.known(("goal",), table, ("maximize", "minimize", "bounds", "of"))
        if ("maximize" in table) == ("minimize" in table):
            raise InvalidInput('say maximize = "val_acc" or minimize = "val_loss", one of them')
        kind = Maximize if "maximize" in table else Minimize
        metric: Any = table.get("maximize", table.get("minimize"))
        kind(metric)
        of: Any = table.get("of", "last")
        self._lines.at(("goal", "of"), lambda: kind(metric, of=of))
        return self._lines.at(("goal", "bounds"), lambda: kind(metric, table.get("bounds"), of))

    def _budget(self) -> Budget:
        table = self._table("budget")
        self._lines.known(("budget",), table, [f.name for f in fields(Budget)])
        for name, limit in table.items():
            alone = {name: limit} if name != "money" else {"money": limit, "price": 1.0}
            self._lines.at(("budget", name), lambda alone=alone: Budget(**alone))  # type: ignore[misc]
        return self._lines.at(("budget",), lambda: Budget(**table))

    def _options(self, study: dict[str, Any]) -> dict[str, Any]:
        """The other options of Study, each checked at its line."""
        for name, value in study.items():
            self._lines.at(("study", name), lambda n=name, v=value: _CHECKS[n](n, v))  # type: ignore[misc]
        options = study | {"store": self._beside(study.get("store", f"{self._path.stem}.db"))}
        if "learn_from" in study:
            options["learn_from"] = [self._earlier(given) for given in study["learn_from"]]
        if "checkpoints" in study:
            options["checkpoints"] = str(self._path.parent / study["checkpoints"])
        return options

    def _earlier(self, given: Any) -> Any:
        """The store of an earlier study, and its name where that is said."""
        return (
            self._beside(given) if isinstance(given, str) else (self._beside(given["store"]), given["name"])
        )

    def _policy(self, where: TablePath, table: dict[str, Any]) -> Any:
        name = table.pop("name", "MultiFidelity")
        if isinstance(name, str) and name in old_names.POLICIES:
            name, table = old_names.policy_now(was := name, table)
            warn(f"The policy {was} is called {name} now, with {old_names.POLICIES[was][1]}.")
        if name not in policies.POLICY_NAMES:
            raise self._lines.error(
                (*where, "name"),
                f"no policy {name!r}{meant(name, policies.POLICY_NAMES)}; there are {', '.join(policies.POLICY_NAMES)}",
            )
        kind = getattr(policies, name)
        before = getattr(kind.__init__, "old_names", ())
        self._lines.known(where, table, [*(f.name for f in fields(kind) if f.init), *before])
        needed = [f.name for f in fields(kind) if f.init and f.default is f.default_factory is MISSING]
        if "policy" in needed and "policy" not in table:
            inner = ".".join((*map(str, where), "policy"))
            raise self._lines.error(
                (*where, "name"),
                f'{name} is around another policy: write it below, [{inner}] and in it name = "RandomSearch"',
            )
        options = {key: self._option((*where, key), key, value) for key, value in table.items()}
        try:
            return kind(**options)
        except Exception as error:  # of whatever kind: the options come from outside
            about = [key for key in options if re.search(rf"\b{re.escape(key)}\b", str(error))] or list(
                options
            )
            ours = isinstance(error, (HaltuneError, TypeError, ValueError))
            told = str(error) if ours else f"{name} cannot be made of this: {one_line(error)}"
            raise self._lines.error((*where, *about[:1]), told) from error

    def _option(self, where: TablePath, key: str, value: Any) -> Any:
        if key == "stopping" and isinstance(value, dict):
            from haltune.policies.bobos.optimal_stopping import OptimalStopping  # with it half of scipy

            self._lines.known(where, value, [f.name for f in fields(OptimalStopping)])
            return self._lines.at(where, lambda: OptimalStopping.from_json(value))
        return self._policy(where, dict(value)) if isinstance(value, dict) and "name" in value else value

    def _beside(self, store: str) -> str:
        """A file's place is that of the study file, wherever the command is given."""
        scheme, found, file = store.partition("sqlite:///")
        if "://" in store and (not found or scheme):
            return store
        return "sqlite:///" + str((self._path.parent / (file if found else store)).absolute())

    def _table(self, name: str) -> dict[str, Any]:
        table = self._data.get(name, {})
        if not isinstance(table, dict):
            raise self._lines.error((name,), f"a table [{name}], not {table!r}{_EXAMPLES.get(name, '')}")
        return dict(table)


_EXAMPLES = {
    "goal": ', such as [goal] and below it maximize = "val_acc"; several are [[goal]] each',
    "constraints": ", such as [constraints] and below it params = { at_most = 5e6 }",
    "space": ", such as [space] and below it lr = [0.0001, 0.1]",
    "budget": ', such as [budget] and below it trials = 20, time = "2h", or both',
    "policy": ', such as [policy] and below it name = "BOBOS"',
}


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidInput(f"{name} = {value!r}: a text that is not empty, without the character 0")


def _studies(name: str, value: Any) -> None:
    given: Any
    for given in value if isinstance(value, list) else [None]:
        told = [given[key] for key in ("store", "name")] if _is_pair(given) else [given]
        if not all(isinstance(text, str) and text and "\0" not in text for text in told):
            raise InvalidInput(
                f'{name} = {value!r}: a list of stores such as ["earlier.db"], each '
                '{ store = "all.db", name = "digits" } where it holds several studies'
            )


def _is_pair(given: Any) -> bool:
    return isinstance(given, dict) and given.keys() == {"store", "name"}


def _count(name: str, value: Any) -> None:
    check_counts(**{name: value})


def _seconds(name: str, value: Any) -> None:
    check_seconds(**{name: value})


_EPOCHS = ("max_epochs", "min_epochs")
_CHECKS: dict[str, Any] = {
    "name": _text, "store": _text, "checkpoints": _text, "seed": _count, "max_failures": _count,
    "max_retries": _count, "keep_checkpoints": _count, "disk_quota": lambda name, value: bytes_of(value, name),
    "lease": _seconds, "patience": _seconds, "learn_from": _studies,
}  # fmt: skip
