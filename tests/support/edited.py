"""What a page does with an edit that it is told, as `edited` of page.js does it."""

from typing import Any


def edited(old: Any, edit: dict[str, Any]) -> Any:
    """What an item became."""
    if "is" in edit:
        return edit["is"]
    if isinstance(old, list):
        found = list(old)
        for start, count, values in edit.get("cut", ()):
            found[start : start + count] = values
        for i, inner in edit.get("at", ()):
            found[i] = edited(found[i], inner)
        return found
    left = {name: value for name, value in old.items() if name not in edit.get("out", ())}
    return left | {name: edited(old.get(name), inner) for name, inner in edit.get("in", {}).items()}
