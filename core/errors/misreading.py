"""A configuration that is read as what it is not: how it is read."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any


def explain_misreading(error: BaseException, config: dict[str, Any]) -> None:
    """Add to an error of reading a configuration as what it is not how it is read."""
    named = (
        f"haltune: a configuration is a dict, and it has {', '.join(map(repr, config)) or 'no parameters'}"
    )
    if isinstance(error, AttributeError) and error.obj is config:
        error.add_note(f"{named}: trial.config[{error.name!r}]" if error.name in config else named)
    elif isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        asked = error.args[0]
        alike = [name for name in config if asked in (name, _initials(name)) or name == _initials(asked)]
        near = alike or get_close_matches(asked, config, n=1)
        if near and near[0] != asked:
            error.add_note(f"{named}: trial.config[{near[0]!r}] is near to {asked!r}")


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))
