"""Command line, configuration file and environment of a program that haltune starts once for each trial.

Placeholders stand for a trial's values, `--lr {lr}`, in the words of the command, which no shell reads:

    {NAME}                  a parameter of the space; an inactive one is absent
    {options} {overrides}   all parameters: --NAME=VALUE each, or NAME=VALUE each as Hydra and OmegaConf read it
    {config}                path of a file with all parameters; see ConfigFile
    {folder} {trial}        the trial's folder, and its number
    {checkpoint}            the trial's own checkpoint to resume from; absent if it starts
    {max_epochs} {epochs}   length of a full training; {max_steps} {steps}, {max_tokens} {tokens} in those units

A word with an absent value is left out, together with an option before it: --resume {checkpoint}. A parameter of the
space hides a placeholder of haltune with its name. {{lr}} is the text {lr}; other braces are text.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput

CHECKPOINT, CONFIG, FOLDER, TRIAL, OPTIONS, OVERRIDES = (
    "checkpoint", "config", "folder", "trial", "options", "overrides",
)  # fmt: skip
ALL = (OPTIONS, OVERRIDES, CONFIG)  # each holds every parameter
_NAME = r"[A-Za-z_][\w./-]*"
_OPTION = re.compile(r"--?[A-Za-z][^\s=]*")  # an option whose value is the next word


class Texts:
    """Texts with placeholders, checked when made.

    Args:
        texts: The texts, such as the words of a command.
        parameters: Names of the space.
        own: Names of haltune's placeholders that have a value here.

    Raises:
        InvalidInput: For an unknown placeholder; it lists the known ones.
    """

    def __init__(self, texts: Iterable[str], parameters: Sequence[str], own: Iterable[str]) -> None:
        self._texts = list(texts)
        self._parameters = tuple(parameters)
        self._known = dict.fromkeys((*parameters, *own))
        names = "|".join((*(re.escape(name) for name in sorted(self._known, key=len, reverse=True)), _NAME))
        # OmegaConf and shells write ${name}
        self._place = re.compile(rf"(?<!\$)(?:\{{\{{({names})\}}\}}|\{{({names})\}})")
        self.used = set[str]()
        self.groups = list[tuple[str, set[str]]]()  # each text, and the names in it
        for text in self._texts:
            found = self._names(text)
            self.groups.append((text, set(found)))
            for name in found:
                if name not in self._known:
                    raise InvalidInput(
                        f"Unknown placeholder {{{name}}} in {text!r}. Use "
                        f"{', '.join(f'{{{known}}}' for known in self._known)}; for the text itself write "
                        f"{{{{{name}}}}}."
                    )
            lists = [f"{{{name}}}" for name in found if self._is_list(name)]
            if lists and text != lists[0]:
                raise InvalidInput(f"{lists[0]} stands for several words, so it cannot be a part of {text!r}.")
            self.used.update(found)

    def _is_list(self, name: str) -> bool:
        return name in (OPTIONS, OVERRIDES) and name not in self._parameters

    def _names(self, text: str) -> list[str]:
        return [found[2] for found in self._place.finditer(text) if found[2]]

    def words(self, config: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
        """Return the texts with a trial's values, as words of a command line."""
        given, words = self._given(config, own), list[str]()
        for text in self._texts:
            names = self._names(text)
            if names and self._is_list(names[0]):
                words += options(config) if names[0] == OPTIONS else overrides(config)
            elif (word := self._filled(text, given)) is not None:
                words.append(word)
            elif words and _OPTION.fullmatch(words[-1]):
                words.pop()
        return words

    def values(self, config: Mapping[str, Any], own: Mapping[str, Any]) -> list[Any]:
        """Return the texts with a trial's values. A placeholder alone keeps its value's type; None if it is absent."""
        given, found = self._given(config, own), list[Any]()
        for text in self._texts:
            alone = self._place.fullmatch(text)
            found.append(given.get(alone[2]) if alone and alone[2] else self._filled(text, given))
        return found

    def _given(self, config: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the placeholders that have one; a parameter hides one of haltune with its name."""
        ours = {name: value for name, value in own.items() if value is not None and name not in self._parameters}
        return ours | {name: config[name] for name in self._parameters if name in config}

    def _filled(self, text: str, given: Mapping[str, Any]) -> str | None:
        if not given.keys() >= {*self._names(text)}:
            return None
        return self._place.sub(lambda found: f"{{{found[1]}}}" if found[1] else plain(given[found[2]]), text)


def plain(value: Any) -> str:
    """Return a value as a word: texts and numbers as Python prints them, lists as JSON."""
    return json.dumps(value) if isinstance(value, (list, tuple, dict)) else str(value)


def options(config: Mapping[str, Any]) -> list[str]:
    """Return a word --NAME=VALUE for each parameter."""
    return [f"--{name}={'null' if value is None else plain(value)}" for name, value in config.items()]


def overrides(config: Mapping[str, Any]) -> list[str]:
    """Return a word NAME=VALUE for each parameter, in the grammar of Hydra's overrides and of OmegaConf's dot lists."""
    return [f"{name}={_override(value)}" for name, value in config.items()]


def _override(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_override, value))}]"
    if not isinstance(value, str):
        return repr(value)
    if re.fullmatch(r"[A-Za-z_][A-Za-z_/-]*", value) and value.lower() not in _WORDS:
        return value
    if "'" not in value and not value.endswith("\\"):
        return f"'{value}'"
    escaped = re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + ('\\"' if found[2] else ""), value)
    return f'"{escaped}"'


_WORDS = {"null", "none", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"}  # not texts in YAML

# The configuration file

FORMATS = ("yaml", "json", "toml")


@dataclass(frozen=True)
class ConfigFile:
    """A file with a trial's parameters: those of `base`, overlaid by the trial's and by `values`.

    A name with dots is nested, model.lr in the table model, unless the base has the name as it stands. A number in it
    is the index of a list in the base.
    """

    base: Path | None = None
    format: str | None = None  # None: by the base's ending, otherwise yaml
    values: Mapping[str, Any] = field(default_factory=dict)  # further entries; texts may have placeholders

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise InvalidInput(f"format = {self.format!r}: use one of {', '.join(FORMATS)}.")

    @property
    def kind(self) -> str:
        ending = "" if self.base is None else self.base.suffix.lower().lstrip(".")
        return self.format or {"yml": "yaml"}.get(ending, ending if ending in FORMATS else "yaml")

    def texts(self) -> list[str]:
        """Return the texts of the further entries, in order, which may have placeholders."""
        found: list[str] = []
        _each_text(dict(self.values), found.append)
        return found

    def filled(self, texts: Iterable[Any]) -> dict[str, Any]:
        """Return the further entries with these in place of their texts. An entry whose text is absent is left out."""
        given = iter(texts)
        filled: dict[str, Any] = _each_text(dict(self.values), lambda _: next(given))
        return filled

    def text(self, config: Mapping[str, Any], values: Mapping[str, Any]) -> str:
        """Return the file's text. Raises InvalidInput if the base cannot be read, or has a value where a table is."""
        try:
            data = {} if self.base is None else _parsed(self.base.read_text(encoding="utf-8-sig"), self.kind)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InvalidInput(f"Cannot read {self.base}: {why}. Check base under [program.config].") from error
        if not isinstance(data, dict):
            raise InvalidInput(
                f"{self.base} holds {data!r}, not a table of names and values. Use a file with a table as base."
            )
        # parameters go into the tables of `values`, and not the other way round
        for name, value in {**values, **config, **values}.items():
            _set(data, name, value, str(self.base))
        return _written(data, self.kind)


def _each_text(value: Any, change: Callable[[str], object]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        changed = {name: _each_text(part, change) for name, part in value.items()}
        return {name: part for name, part in changed.items() if part is not None}
    return [_each_text(part, change) for part in value] if isinstance(value, list) else value


def _set(data: Any, name: str, value: Any, where: str) -> None:
    parts = [name] if isinstance(data, dict) and name in data else name.split(".")
    for n, part in enumerate(parts):
        last = n + 1 == len(parts)
        if isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            key: Any = int(part)
        elif isinstance(data, dict):
            key = int(part) if part not in data and part.isdecimal() and int(part) in data else part
            if not last and data.get(key) is None:
                data[key] = {}
        else:
            raise InvalidInput(
                f"Cannot set {name} in {where}: {'.'.join(parts[:n])} is {data!r}, which has no {part!r}. "
                "Correct the name, or this entry of the file."
            )
        if last:
            data[key] = value
        else:
            data = data[key]


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise InvalidInput('A YAML file needs PyYAML: pip install pyyaml. Or write format = "json".') from None
    return yaml


_NUMBER = re.compile(r"(?:[-+.\d][\w.+-]*|0o[0-7]+)\Z")  # what some reader of YAML takes for a number


class _Unquoted(str):
    """A text of a base without quotes, such as 1e-3: a number to OmegaConf and jsonargparse, not to PyYAML."""


def _parsed(text: str, kind: str) -> Any:
    if kind == "yaml":
        yaml = _yaml()

        class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
            """Notes which texts have no quotes, so that they are written as they were."""

        Loader.add_implicit_resolver("!unquoted", _NUMBER, list("-+.0123456789"))
        Loader.add_constructor("!unquoted", lambda loader, node: _Unquoted(node.value))
        try:
            return yaml.load(text, Loader) or {}
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from error
    return tomllib.loads(text) if kind == "toml" else json.loads(text)


def _written(data: dict[str, Any], kind: str) -> str:
    if kind == "json":
        return json.dumps(data, indent=2) + "\n"
    if kind == "toml":
        return "\n".join(_tables(data, ())) + "\n"
    yaml = _yaml()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        """Quotes also the texts that are numbers to other readers of YAML, such as 1e-3."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="'" if _NUMBER.match(text) else None
        ),
    )
    Dumper.add_representer(_Unquoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text))
    return str(yaml.dump(data, Dumper=Dumper, sort_keys=False))


def _tables(data: Mapping[str, Any], above: tuple[str, ...]) -> list[str]:
    """Return the lines of a TOML table, its own values first."""
    lines = [f"[{'.'.join(map(_quoted, above))}]"] if above else []
    lines += [f"{_quoted(key)} = {_toml(value)}" for key, value in data.items() if not isinstance(value, dict)]
    for key, value in data.items():
        if isinstance(value, dict):
            lines += ["", *_tables(value, (*above, key))]
    return lines


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quoted(key)} = {_toml(part)}' for key, part in value.items())}}}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        raise InvalidInput('TOML has no null, and a value is None. Use format = "yaml" or "json".')
    return repr(value) if isinstance(value, int | float) else str(value)  # dates
