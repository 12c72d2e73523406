"""A watched study: the items of its page, and the changes since a page's mark."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any, TypeVar

from haltune.errors import HaltuneError
from haltune.study.view import RecordedStudy, follow_study

from ..page import picture_json, shell
from ..page.items import PageContents, learnt_from

T = TypeVar("T")
_SHARE, _MODELS = 2, 5  # pauses as multiples of the work: at most 1/3 of a processor for the page, 1/6 for models
_LEAST_PAUSE = 0.25  # seconds between readings, for any number of open pages
_BAR = """<span id="answer" role="status"></span><span id="live"></span>
<button type="button" data-do="enqueue">Enqueue\N{HORIZONTAL ELLIPSIS}</button>
<button type="button" data-do="extend">Budget\N{HORIZONTAL ELLIPSIS}</button>
<button type="button" data-do="stop">Stop</button><button type="button" data-do="resume">Resume</button>"""


_KEPT = 4  # older values kept of a figure, because pages differ by some moments


@dataclass
class _Item:
    value: Any  # None: removed
    changed: int  # moment
    before: tuple[tuple[int, Any], ...] = ()  # older values, each with its moment
    text: str = ""  # the value as JSON, cached when a page first receives it
    patches: dict[int, str] = field(default_factory=dict)  # moment of an older value -> patch to this value

    def since(self, moment: int) -> str | None:
        """Return the patch for a page at a moment, as JSON; None if the whole value is shorter."""
        self.text = self.text or picture_json(self.value)
        at, old = next((known for known in reversed(self.before) if known[0] <= moment), (-1, None))
        if at >= 0 and at not in self.patches:
            self.patches[at] = picture_json(patch(old, self.value))
        text = self.patches.get(at)
        return text if text is not None and len(text) < len(self.text) else None


def patch(old: Any, new: Any) -> Any:
    """Return the patch from one JSON value to another, as JSON.

    [new] replaces the value. [] removes the key. {key: patch} patches entries of an object, or of a list by index.
    [start, count, [new]] replaces a slice of a list.
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
    """A study that is read on request, from any thread. Each change is a moment, counted from 1.

    Models take long. So a separate thread reads the log and makes them, and their items change when they are ready.
    """

    def __init__(self, study: RecordedStudy, rests: bool = True, served: bool = False) -> None:
        """If `rests`, limit the share of the processor's time. served: by haltune watch, with the files of trials."""
        self.study, self._rests, self._lock = study, rests, Lock()
        self._told = PageContents(study, served=served)
        self._thinking: PageContents | None = None  # made by the thread of models
        self._thread: Thread | None = None
        self._series = secrets.token_hex(4)  # distinguishes the moments of different servers
        self._items: dict[str, _Item] = {}
        self.moment = 0
        self._rest = self._models_rest = 0.0  # not before these times
        self._quick, self._slow = self._told.quick(), self._told.slow()
        self._attended = study.attended
        self._learnt: object = learnt_from(self._told.facts)
        self._change()

    def look(self) -> None:
        """Read new events, unless it is too early."""
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

    def acted(self, does: Callable[[RecordedStudy, Mapping[str, Any]], T], asked: Mapping[str, Any]) -> T:
        """Perform a page's action on the study as it is now, and return the answer."""
        with self._lock:
            self.study.sync()
            return does(self.study, asked)

    def _think(self) -> None:
        """Start a thread that makes the models, if trials started or ended since the last time and none is running."""
        learnt, thinks = learnt_from(self._told.facts), self._thread is not None and self._thread.is_alive()
        if learnt != self._learnt and not thinks and time.monotonic() >= self._models_rest:
            self._learnt = learnt
            self._thread = Thread(target=self._model, name="haltune-models", daemon=True)
            self._thread.start()

    def _model(self) -> None:
        began, made = time.thread_time(), None
        try:
            if self._thinking is None:
                study = self.study
                self._thinking = PageContents(follow_study(study.store, study.name, study.checkpoints.folder))
            self._thinking.read()
            made = self._thinking.slow()
        except HaltuneError:  # the store is not reachable: `look` raises it; models are made later
            self._learnt = None
        with self._lock:
            if made is not None:
                self._slow = made
                self._change()
            self._models_rest = self._after(_MODELS, began)

    def _after(self, times: float, began: float) -> float:
        """Return the time of the next reading: after a multiple of the processor time of this one."""
        rest = max(_LEAST_PAUSE, times * (time.thread_time() - began)) if self._rests else 0.0
        return time.monotonic() + rest

    def _change(self) -> None:
        """Record which items changed."""
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
        """Return the present mark, and the changes since a mark, as JSON.

        The format is {"mark": present mark, "after": the given mark, "items": {key: item, or null if removed},
        "patches": {key: patch from the page's item to the present one}}. For a mark of another server, it has all items
        and "after" is null.
        """
        with self._lock:
            moment, now = self._moment(mark), self.mark
            changed = {key: item for key, item in self._items.items() if item.changed > moment}
        patches = {key: text for key, item in changed.items() if (text := item.since(moment)) is not None}
        items = {key: item.text for key, item in changed.items() if key not in patches}
        parts = (",".join(f"{json.dumps(key)}:{text}" for key, text in part.items()) for part in (items, patches))
        after = json.dumps(mark if moment >= 0 else None)
        return now, '{{"mark":"{}","after":{},"items":{{{}}},"patches":{{{}}}}}'.format(now, after, *parts)

    @property
    def mark(self) -> str:
        """Return the mark of the present moment."""
        return f"{self._series}:{self.moment}"

    def _moment(self, mark: str) -> int:
        """Return the moment of a mark; -1 if it is from another server or invalid."""
        series, _, text = mark.partition(":")
        known = series == self._series and text.isascii() and text.isdigit() and len(text) < 16
        return int(text) if known and int(text) <= self.moment else -1

    def page(self, head: str, foot: str, bar: str = _BAR) -> str:
        """Return the whole page as it is now. `{mark}` in `head` is replaced by the mark."""
        with self._lock:
            facts, items, mark = self._told.facts, self._quick | self._slow, self.mark
        return shell(facts, items, head.replace("{mark}", mark), foot, bar)
