"""Write the reference pages that come from the code: the command line, and the keys of a study file.

    python docs/site/written.py

`tests/test_site.py` compares the pages with what this script writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import typer.main

from haltune import Budget, Checkpointing, Storage, policies
from haltune.cli import study_file
from haltune.cli.app import app

FOLDER = Path(__file__).parents[1] / "reference"
STUDY = {
    "store": "the log: a file, relative to the study file, or a URL. Default: the study file's name with `.db`",
    "name": 'name of the study in its store. Default: `"study"`',
    "max_epochs": "epochs of a full training",
    "max_steps": "steps of a full training, in a study that counts steps",
    "max_tokens": "tokens of a full training, in a study that counts tokens",
    "unit": "what `max_epochs` counts, such as `game`. Default: epoch",
    "judge_every": "a trial is judged once in so many epochs or steps. Default: at every report",
    "min_epochs": "no trial is stopped, paused or compared before this epoch. Default: 0",
    "seed": "seed of all decisions. Default: drawn, and recorded",
    "learn_from": 'prior studies: files, or `{ store = "all.db", name = "digits" }`',
    "checkpoints": 'folder of the checkpoints, or `{ folder = "models", keep = 3, disk_quota = "20GB" }`',
    "max_failures": "how many trials may fail in a row. Default: 5",
}
STORE = {
    "url": "the log, as above",
    "lease": "seconds after which a silent worker is lost. Default: 600",
    "max_retries": "how often a lost trial is offered again. Default: 2",
    "patience": "seconds to wait for a database server. Default: 600",
}
CHECKPOINTS = {
    "folder": "folder of the checkpoints, relative to the study file. Default: next to the store",
    "keep": "how many of the best trials keep their model. Default: 1",
    "disk_quota": 'what checkpoints may take, such as `"20GB"`',
}
BUDGET = {
    "trials": "trials that start",
    "epochs": "epochs of all trials; `steps`, `tokens` or the plural of `unit`, if the study counts these",
    "trials_without_gain": "trials that end or pause, one after the other, without a better result",
    "time": 'wall-clock time, such as `"2h"`',
    "worker_time": "time of all workers together",
    "money": "worker time times the worker's price",
    "price": "price of an hour of a worker that has none of its own (`HALTUNE_PRICE`)",
    "cost": "sum of the costs that trials report",
}


def command_line() -> str:
    """The page of all commands and their options."""
    group: Any = typer.main.get_command(app)
    lines = ["# The command line", "", _text(group.help), ""]
    for name, command in _commands(group):
        lines += [f"## haltune {name}", "", _text(command.help), ""]
        rows = [f"| {_names(option)} | {_cell(option)} |" for option in command.params if option.name != "help"]
        if rows:
            lines += ["| Option | Meaning |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def keys() -> str:
    """The page of all keys of a study file."""
    example = (study_file.__doc__ or "").partition("\n\n")[2].strip()
    lines = [
        "# The study file", "",
        "A study file describes a search in TOML, for [the command line](../howto/command_line.md).",
        "Only `[goal]` and `[space]` are necessary. An unknown key is an error that names the line.", "",
        "```toml", example, "```", "",
    ]  # fmt: skip
    tables = {"study": STUDY, "study.store": STORE, "study.checkpoints": CHECKPOINTS, "budget": BUDGET}
    for table, known in tables.items():
        lines += [f"## [{table}]", "", "| Key | Meaning |", "| --- | --- |"]
        lines += [f"| `{key}` | {meaning} |" for key, meaning in known.items()] + [""]
    lines += [
        "## [goal], [[goal]]", "", "| Key | Meaning |", "| --- | --- |",
        "| `maximize`, `minimize` | the metric; one of the two |",
        "| `bounds` | the smallest and the largest possible value |",
        '| `of` | `"last"` (default) or `"best"`: which epoch of a trial counts |',
        '| `smooth` | decide by an average of this width: `200`, or `["median", 200]` |',
        '| `rank_by` | another metric, which ranks trials that were trained in full |', "",
        "## [constraints]", "",
        "Each key is a metric: `params = { at_most = 5e6 }`, `recall = { at_least = 0.8, changes = true }`.", "",
        "## [space]", "", "| Value | Domain |", "| --- | --- |",
        "| `{ float = [low, high], log = true }` | a real number |",
        "| `{ int = [low, high], log = true }` | a whole number |",
        "| `{ choice = [...], ordered = true }` | one of several values |",
        '| `64`, `"adam"`, `{ constant = [1, 2] }` | a constant |', "",
        'Each table may have a condition: `when = { kernel = "poly" }`, `when = { kernel = ["a", "b"] }` or',
        '`when = { layers = [">", 2] }`.', "",
        "## [[start]]", "", "A configuration that is trained first; any number of these tables.", "",
        "## [policy]", "",
        "`name` is a policy; the other keys are its arguments. `Halting` has `[policy.policy]`. A policy of your own "
        "needs a program instead, `Study(..., policy=MyPolicy())`.", "",
        "| Name | Keys |", "| --- | --- |",
    ]  # fmt: skip
    for name in policies.POLICY_NAMES:
        kind = getattr(policies, name)
        needed = {f.name for f in fields(kind) if f.default is f.default_factory is MISSING}
        said = [f"`{f.name}`" + (" (needed)" if f.name in needed else "") for f in fields(kind) if f.init]
        lines.append(f"| `{name}` | {', '.join(said)} |")
    lines += [
        "", "## [program], [metrics]", "",
        "The keys of [`[program]`](../howto/unedited.md#program) and [`[metrics]`](../howto/unedited.md#metrics) "
        "are for programs that you do not edit.",
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def missing() -> set[str]:
    """Keys that a study file may have and that the page does not explain, and the reverse."""
    found = {*study_file._LENGTHS, *study_file._JUDGED, *study_file._GROUPS, *study_file._CHECKS} ^ set(STUDY)
    for kind, known in ((Storage, STORE), (Checkpointing, CHECKPOINTS), (Budget, BUDGET)):
        found |= {f.name for f in fields(kind)} ^ set(known)
    return found


def _commands(group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {inner}", made) for inner, made in command.commands.items())
        else:
            yield name, command


def _names(option: Any) -> str:
    shown = option.opts if option.param_type_name == "option" else [option.name.upper()]
    return ", ".join(f"`{name}`" for name in shown)


def _cell(option: Any) -> str:
    text = _text(getattr(option, "help", None) or "").replace("|", "\\|")
    default = option.default
    if option.required:
        return f"{text} (needed)"
    if default in (None, False, "", ()) or callable(default):
        return text
    return f"{text}. Default: `{getattr(default, 'value', default)}`".removeprefix(". ")


def _text(text: str | None) -> str:
    plain = re.sub(r"\[bold\](.*?)\[/\]", r"`\1`", (text or "").replace("\f", ""))  # Rich's marks
    return re.sub(r"\s*\n\s*(?=\S)", " ", plain.strip())


PAGES = {"command_line.md": command_line, "study_file.md": keys}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
