"""A study that is watched: what its page shows, and which of it changed after a position of the log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from threading import Lock

from haltune.study.reading import Following

from ..page.items import Told
from ..page.page import as_json, shell

_SHARE = 5  # of the time at most one fifth goes into making pages

_BAR = """<span id="answer" role="status"></span><span id="live"></span>
<button type="button" data-do="enqueue">Enqueue\N{HORIZONTAL ELLIPSIS}</button>
<button type="button" data-do="extend">Budget\N{HORIZONTAL ELLIPSIS}</button>
<button type="button" data-do="stop">Stop</button><button type="button" data-do="resume">Resume</button>"""


class Watched:
    """Reads on when asked, from any thread, and keeps for each item of the page when it changed last."""

    def __init__(self, study: Following, clock: Callable[[], float] = time.monotonic) -> None:
        self.study, self._clock, self._lock = study, clock, Lock()
        self._told = Told(study)
        self.position = -1
        self._items: dict[str, tuple[int, str]] = {}  # key -> (position at which it changed, as JSON)
        self._rest = 0.0  # not before this time
        self._make()

    def look(self) -> int:
        """The position up to which the page is made, after a look whether there is more; it may be too early to."""
        with self._lock:
            began = self._clock()
            if began >= self._rest:
                self.study.sync()
                if self.study.history.position > self.position:
                    self._told.read()
                    self._make()
                    self._rest = self._clock() + _SHARE * (self._clock() - began)
            return self.position

    def _make(self) -> None:
        position = self._told.facts.history.position
        made = {key: as_json(item) for key, item in {**self._told.items(), **self._told.rows()}.items()}
        for key in self._items.keys() - made.keys():
            made[key] = "null"
        for key, text in made.items():
            known = self._items.get(key)
            if known is None or known[1] != text:
                self._items[key] = (position, text)
        self.position = position

    def since(self, position: int) -> str:
        """What changed after a position, as JSON: {"position": now, "items": {key: item}}."""
        with self._lock:
            changed = [
                f"{json.dumps(key)}:{text}" for key, (at, text) in self._items.items() if at > position
            ]
            return f'{{"position":{self.position},"items":{{{",".join(changed)}}}}}'

    def page(self, head: str, foot: str) -> str:
        """The whole page as it is now; `{position}` in `head` is the position it is made of."""
        with self._lock:
            return shell(self._told, head.replace("{position}", str(self.position)), foot, _BAR)
