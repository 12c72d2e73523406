"""A study that is watched: what its page shows, and which of it changed after a moment that a page stands at.

How an item of the page became another is told by edits. An edit is one of
    {"is": value}                                     it was replaced
    {"in": {name: edit}, "out": [name]}               of an object: what changed within, and what is gone
    {"cut": [[start, count, [value]]], "at": [[i, edit]]}   of a list: parts that others took the place of, from the
        last to the first; then what changed within elements, by their index in the new list
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from threading import Lock, Thread
from typing import Any

from haltune.errors import HaltuneError
from haltune.study.view import RecordedStudy, follow_study

from ..page import picture_json, shell
from ..page.items import ToldSearch, learnt_from

Edit = dict[str, Any]
_COLUMN = 50  # elements of a list that is no row of a table
_FEW_ELEMENTS = 8  # of so many elements at most one changed in its place: told one by one
_MOST_CHARACTERS = 50_000  # characters of the edits of an item that are kept
_SHARE, _MODELS = 2, 5  # of a processor's time at most a third goes into the page, and a sixth into models
_LEAST_PAUSE = 0.25  # seconds between looks, however many pages are open
# told by what changed within: names in these are none of a user's
_STEPWISE = ("figure/", "curve/", "order/")

_BAR = """<span id="answer" role="status"></span><span id="live"></span>
<button type="button" data-do="enqueue">Enqueue\N{HORIZONTAL ELLIPSIS}</button>
<button type="button" data-do="extend">Budget\N{HORIZONTAL ELLIPSIS}</button>
<button type="button" data-do="stop">Stop</button><button type="button" data-do="resume">Resume</button>"""


def edit(old: Any, new: Any) -> Edit | None:
    """What leads from `old` to `new`; None when they are the same."""
    if old is new or old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(old, new)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return _of_lists(list(old), list(new))
    return {"is": new}


def _of_objects(old: dict[str, Any], new: dict[str, Any]) -> Edit | None:
    within = {}
    for name, value in new.items():
        found = edit(old[name], value) if name in old else {"is": value}
        if found is not None:
            within[name] = found
    gone = [name for name in old if name not in new]
    told: Edit = {"in": within} if within else {}
    return (told | {"out": gone} if gone else told) or None


def _of_lists(old: list[Any], new: list[Any]) -> Edit | None:
    most, start, end = (
        min(len(old), len(new)),
        0,
        0,
    )  # of elements that are the same at the start and at the end
    while start < most and old[start] == new[start]:
        start += 1
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    was, now = old[start : len(old) - end], new[start : len(new) - end]
    cuts, pairs = [], []
    for kind, i, j, k, n in _steps(was, now):
        if kind == "equal":
            pairs += [(start + k + step, was[i + step], now[k + step]) for step in range(j - i)]
        else:
            cuts.append([start + i, j - i, now[k:n]])
    inner = [[index, found] for index, a, b in pairs if (found := edit(a, b)) is not None]
    told: Edit = {"cut": cuts[::-1]} if cuts else {}
    return (told | {"at": inner} if inner else told) or None


def _steps(old: list[Any], new: list[Any]) -> Sequence[tuple[str, int, int, int, int]]:
    """As difflib's opcodes: which elements are the same ones, though something in them may have changed."""
    if len(old) == len(new):
        changed = sum(a != b for a, b in zip(old, new, strict=True))
        # long lists: each is the one that stood in its place
        columns = all(isinstance(v, (list, tuple)) for v in old) and max(map(len, old)) >= _COLUMN
        if isinstance(old[0], dict) or changed * _FEW_ELEMENTS <= len(old) or columns:
            return [("equal", 0, len(old), 0, len(new))]
    return SequenceMatcher(None, [_known(v) for v in old], [_known(v) for v in new]).get_opcodes()


def _known(value: Any) -> Hashable:
    """By what an element is known again: a trace by its name."""
    if isinstance(value, dict):
        return tuple(repr(value.get(name)) for name in ("uid", "name", "type", "xaxis"))
    return repr(value) if isinstance(value, (list, tuple)) else value


class Item:
    """One item of a page. Knows what to tell a page that stands at an earlier moment: the steps since, or all of it."""

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


class Watched:
    """Reads on when asked, from any thread. Each time something changed is a moment, counted from 0.

    Models take long: a thread makes them, of a reading of its own, and what they tell comes when it is there.
    """

    def __init__(self, study: RecordedStudy, rests: bool = True) -> None:
        """rests: looks no more often than leaves time for others."""
        self.study, self._rests, self._lock = study, rests, Lock()
        self._told = ToldSearch(study)
        self._thinking: ToldSearch | None = None  # made by the thread
        self._thread: Thread | None = None
        self._series = secrets.token_hex(4)  # moments of another server are others
        self._items: dict[str, Item] = {}
        self.moment = 0
        self._rest = self._models_rest = 0.0  # not before these times
        self._quick, self._slow = self._told.quick(), self._told.slow()
        self._attended = study.attended
        self._learnt: object = learnt_from(self._told.facts)
        self._change()

    def look(self) -> int:
        """The moment now, after a look whether there is more; it may be too early to."""
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
        """What an action says that was asked for, with the study as it is now."""
        with self._lock:
            self.study.sync()
            return does(self.study, asked)

    def _think(self) -> None:
        """Have models made of what ended since they were made, unless they are being made."""
        learnt, thinks = learnt_from(self._told.facts), self._thread is not None and self._thread.is_alive()
        if learnt != self._learnt and not thinks and time.monotonic() >= self._models_rest:
            self._learnt = learnt
            self._thread = Thread(target=self._model, name="haltune-models", daemon=True)
            self._thread.start()

    def _model(self) -> None:
        began = time.thread_time()
        try:
            if self._thinking is None:
                self._thinking = ToldSearch(follow_study(self.study.store, self.study.name))
            self._thinking.read()
            made = self._thinking.slow()
        except HaltuneError:  # the store is away: who looks is told, and models are made when it is back
            made = None
        with self._lock:
            if made is None:
                self._learnt = None
            else:
                self._slow = made
                self._change()
            self._models_rest = self._after(_MODELS, began)

    def _after(self, times: float, began: float) -> float:
        """When to look again: a look's own time of processor later, so many times, whoever else is at work here."""
        rest = max(_LEAST_PAUSE, times * (time.thread_time() - began)) if self._rests else 0.0
        return time.monotonic() + rest

    def _change(self) -> None:
        """The page as it is told now: a moment more, where something changed."""
        moment, now = self.moment + 1, self._quick | self._slow
        for key in self._items.keys() | now.keys():
            held = self._items.get(key)
            if held is None:
                self._items[key] = Item(now[key], moment, key.startswith(_STEPWISE))
                self.moment = moment
            elif held.become(now.get(key), moment):
                self.moment = moment

    def since(self, mark: str) -> tuple[str, str]:
        """(the mark of now, what changed after the moment of a mark as JSON).

        {"mark": of now, "after": the mark, "items": {key: item}, "edits": {key: [edit, the oldest first]}}; all items
        and "after": null for a mark that is not one of this server.
        """
        with self._lock:
            moment = self._moment(mark)
            told = {key: item.after(moment) for key, item in self._items.items()}
            now = self.mark
        parts = {
            kind: ",".join(f"{json.dumps(key)}:{text()}" for key, (k, text) in told.items() if k == kind)
            for kind in ("items", "edits")
        }
        after = json.dumps(mark if moment >= 0 else None)
        return (
            now,
            f'{{"mark":"{now}","after":{after},"items":{{{parts["items"]}}},"edits":{{{parts["edits"]}}}}}',
        )

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
