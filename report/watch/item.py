"""One item of a page, and how it became what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..page.page import picture_json
from .edits import edit

_MOST_CHARACTERS = 50_000  # characters of steps that are kept


class Item:
    """Knows what to tell a page that stands at an earlier moment: the steps since, or all of it."""

    def __init__(self, value: Any, moment: int, stepwise: bool) -> None:
        self._value, self._whole, self._stepwise = value, "", stepwise
        self._changed = self._base = moment  # the steps lead from `_base` to `_changed`
        self._steps: list[tuple[int, str]] = []

    def become(self, value: Any, moment: int) -> bool:
        """Whether it is another now. None: it is gone."""
        step = edit(self._value, value)
        if step is None:
            return False
        self._value, self._changed, self._whole = value, moment, ""
        if "is" in step or not self._stepwise:
            self._steps, self._base = [], moment
            return True
        self._steps.append((moment, picture_json(step)))
        while sum(len(text) for _, text in self._steps) > _MOST_CHARACTERS:
            self._base = self._steps.pop(0)[0]
        return True

    def after(self, moment: int) -> tuple[str, Callable[[], str]]:
        """("edits", their list) or ("items", the whole) for who stands at a moment, as JSON; ("", "") for nothing."""
        if self._changed <= moment:
            return "", str
        if moment < self._base:
            return "items", self.whole
        steps = ",".join(text for at, text in self._steps if at > moment)
        return "edits", lambda: f"[{steps}]"

    def whole(self) -> str:
        """As JSON."""
        self._whole = self._whole or picture_json(self._value)
        return self._whole
