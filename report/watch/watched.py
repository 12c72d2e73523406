"""A study that is watched: what its page shows, and which of it changed after a moment that a page stands at."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any

from haltune.errors import HaltuneError
from haltune.study.view import RecordedStudy, follow_study

from ..page import picture_json, shell
from ..page.items import ToldSearch, learnt_from

_SHARE, _MODELS = 2, 5  # of a processor's time at most a third goes into the page, and a sixth into models
_LEAST_PAUSE = 0.25  # seconds between looks, however many pages are open
_BAR = """<span id="answer" role="status"></span><span id="live"></span>
<button type="button" data-do="enqueue">Enqueue\N{HORIZONTAL ELLIPSIS}</button>
<button type="button" data-do="extend">Budget\N{HORIZONTAL ELLIPSIS}</button>
<button type="button" data-do="stop">Stop</button><button type="button" data-do="resume">Resume</button>"""


_KEPT = 4  # older values of a figure: pages that look at different times are some moments apart


@dataclass
class _Item:
    value: Any  # None: it is gone
    changed: int  # moment
    before: tuple[tuple[int, Any], ...] = ()  # older values, each with the moment at which it came
    text: str = ""  # the value as JSON, once a page was told it
    patches: dict[int, str] = field(default_factory=dict)  # by the moment of an older value: what turns it into this

    def since(self, moment: int) -> str | None:
        """The patch for a page that stands at a moment, as JSON; None if the whole value is shorter."""
        self.text = self.text or picture_json(self.value)
        at, old = next((known for known in reversed(self.before) if known[0] <= moment), (-1, None))
        if at >= 0 and at not in self.patches:
            self.patches[at] = picture_json(patch(old, self.value))
        text = self.patches.get(at)
        return text if text is not None and len(text) < len(self.text) else None


def patch(old: Any, new: Any) -> Any:
    """What turns one value of JSON into another, as JSON.

    [new]: it is replaced. []: the key is gone. {key: patch}: within a table, or a list by its indices. [start, count,
    [new]]: in a list these take the place of so many.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found = {key: patch(old[key], value) if key in old else [value] for key, value in new.items()}
        return {key: p for key, p in found.items() if p != {}} | {key: [] for key in old.keys() - new.keys()}
    if not (isinstance(old, list | tuple) and isinstance(new, list | tuple)):
        return {} if old is new or old == new else [new]
    shorter, start, end = min(len(old), len(new)), 0, 0
    while start < shorter and old[start] == new[start]:
        start += 1
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    middle = range(start, len(new) - end)
    if len(old) == len(new):
        inner = {i: patch(old[i], new[i]) for i in middle}
        inner = {i: p for i, p in inner.items() if p != {}}
        if 2 * len(inner) <= len(middle) or all(isinstance(p, dict) for p in inner.values()):
            return inner
    return [start, len(old) - end - start, list(new[start : len(new) - end])]


class Watched:
    """Reads on when asked, from any thread. Each time something changed is a moment, counted from 1.

    Models take long: a thread makes them from its own reading, and their items change when they are ready.
    """

    def __init__(self, study: RecordedStudy, rests: bool = True) -> None:
        """rests: looks no more often than leaves time for others."""
        self.study, self._rests, self._lock = study, rests, Lock()
        self._told = ToldSearch(study)
        self._thinking: ToldSearch | None = None  # made by the thread
        self._thread: Thread | None = None
        self._series = secrets.token_hex(4)  # moments of another server are others
        self._items: dict[str, _Item] = {}
        self.moment = 0
        self._rest = self._models_rest = 0.0  # not before these times
        self._quick, self._slow = self._told.quick(), self._told.slow()
        self._attended = study.attended
        self._learnt: object = learnt_from(self._told.facts)
        self._change()

    def look(self) -> int:
        """Read on, unless it is too early to, and return the moment now."""
        with self._lock:
            if time.monotonic() >= self._rest:
                began = time.thread_time()
                self.study.sync()
                attended = self.study.attended
                if self.study.history.position > self._told.position or attended != self._attended:
                    self._attended = attended
                    self._told.read()
                    self._quick = self._told.quick()
                    self._change()
                self._rest = self._after(_SHARE, began)
                self._think()
            return self.moment

    def acted(self, does: Callable[[RecordedStudy, Mapping[str, Any]], str], asked: Mapping[str, Any]) -> str:
        """Do what a page asked for, with the study as it is now, and return what to say."""
        with self._lock:
            self.study.sync()
            return does(self.study, asked)

    def _think(self) -> None:
        """Start a thread that makes the models, if trials ended since they were made and no thread makes them."""
        learnt, thinks = learnt_from(self._told.facts), self._thread is not None and self._thread.is_alive()
        if learnt != self._learnt and not thinks and time.monotonic() >= self._models_rest:
            self._learnt = learnt
            self._thread = Thread(target=self._model, name="haltune-models", daemon=True)
            self._thread.start()

    def _model(self) -> None:
        began, made = time.thread_time(), None
        try:
            if self._thinking is None:
                self._thinking = ToldSearch(follow_study(self.study.store, self.study.name))
            self._thinking.read()
            made = self._thinking.slow()
        except HaltuneError:  # the store is away: `look` raises it, and models are made when it is back
            self._learnt = None
        with self._lock:
            if made is not None:
                self._slow = made
                self._change()
            self._models_rest = self._after(_MODELS, began)

    def _after(self, times: float, began: float) -> float:
        """When to look again: after so many times the processor time that the look took."""
        rest = max(_LEAST_PAUSE, times * (time.thread_time() - began)) if self._rests else 0.0
        return time.monotonic() + rest

    def _change(self) -> None:
        """Note which items changed."""
        now = self._quick | self._slow
        gone = {key: None for key, item in self._items.items() if key not in now and item.value is not None}
        changed = {k: v for k, v in now.items() if k not in self._items or self._items[k].value != v} | gone
        if changed:
            self.moment += 1
            for key, value in changed.items():
                old = self._items.get(key) if key.startswith(("figure/", "curve/")) else None
                before = (*old.before, (old.changed, old.value))[-_KEPT:] if old else ()
                self._items[key] = _Item(value, self.moment, before)

    def since(self, mark: str) -> tuple[str, str]:
        """Return the mark of now, and what changed after the moment of a mark, as JSON.

        {"mark": of now, "after": the mark, "items": {key: item, null for one that is gone}, "patches": {key: what turns
        the item that the page has into that of now}}; all items and "after": null for a mark of another server.
        """
        with self._lock:
            moment, now = self._moment(mark), self.mark
            told = {key: item for key, item in self._items.items() if item.changed > moment}
        patches = {key: text for key, item in told.items() if (text := item.since(moment)) is not None}
        items = {key: item.text for key, item in told.items() if key not in patches}
        parts = (",".join(f"{json.dumps(key)}:{text}" for key, text in part.items()) for part in (items, patches))
        after = json.dumps(mark if moment >= 0 else None)
        return now, '{{"mark":"{}","after":{},"items":{{{}}},"patches":{{{}}}}}'.format(now, after, *parts)

    @property
    def mark(self) -> str:
        """Of this moment, for a page that stands at it."""
        return f"{self._series}:{self.moment}"

    def _moment(self, mark: str) -> int:
        """The moment of a mark; -1 for one of another server, and for what is none."""
        series, _, text = mark.partition(":")
        known = series == self._series and text.isascii() and text.isdigit() and len(text) < 16
        return int(text) if known and int(text) <= self.moment else -1

    def page(self, head: str, foot: str, bar: str = _BAR) -> str:
        """The whole page as it is now; `{mark}` in `head` is its mark."""
        with self._lock:
            facts, items, mark = self._told.facts, self._quick | self._slow, self.mark
        return shell(facts, items, head.replace("{mark}", mark), foot, bar)
