"""`haltune watch`: the studies that are watched, their pages, what changed since, and what a page may ask for.

What a page asks for is an event in the log, seen by all workers.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from haltune.display import escaped
from haltune.errors import HaltuneError, InvalidInput
from haltune.log.fate import lead_of
from haltune.log.history import History
from haltune.store.base import Store
from haltune.store.open import open_store
from haltune.store.studies import ask_of, hold, if_allowed, lift, limits_of, raise_limits
from haltune.study.view import RecordedStudy, follow_study

from ..page import script, style
from .serve import Guard
from .watched import Watched

_REFRESH = 0.5  # seconds between looks
_PULSE = 15.0  # seconds after which a quiet stream says that it lives
_POST_LIMIT = 100_000  # bytes of what is posted
_POST_SECONDS = 10.0  # seconds in which it must be
_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Location:
    """Where a study is; what writes to it is opened when somebody first asks for something."""

    store: Store  # to be read
    name: str
    url: str  # to be written
    checkpoints: str | None = None  # their folder, where it is not the one beside the store

    @cached_property
    def written(self) -> Store:
        """The store, to be written."""
        return open_store(self.url)


@dataclass
class Board:
    """Locations by number, which stay. The list reads each study; a page is made when it is opened."""

    find: Callable[[], Sequence[Location]]  # lists the studies there are now
    locations: list[Location] = field(default_factory=list)
    _open: dict[int, Watched] = field(default_factory=dict)
    _read: dict[int, RecordedStudy] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def listed(self) -> list[Location]:
        """All studies, those that began since among them."""
        with self._lock:
            known = {(location.url, location.name) for location in self.locations}
            self.locations += [found for found in self.find() if (found.url, found.name) not in known]
            return list(self.locations)

    def location(self, number: int) -> Location | None:
        """Where the study of a number is; None where there is none."""
        found = self.locations if number < len(self.locations) else self.listed()
        return found[number] if 0 <= number < len(found) else None

    def study(self, number: int) -> Watched | None:
        """The study of a number; None where there is none. Raises HaltuneError when it cannot be read."""
        if (location := self.location(number)) is None:
            return None
        with self._lock:
            if number not in self._open:
                self._open[number] = Watched(self._following(number, location))
            return self._open[number]

    def _following(self, number: int, location: Location) -> RecordedStudy:
        """Open the study for reading, once. The caller holds the lock."""
        if number not in self._read:
            self._read[number] = follow_study(location.store, location.name, location.checkpoints)
        return self._read[number]

    def brief(self, number: int) -> tuple[str, str]:
        """(the best value, how it stands) of a study, in words."""
        if (location := self.location(number)) is None:
            return "", "it is gone"
        study = self._read.get(number)
        try:
            with self._lock:
                study, watched = self._following(number, location), self._open.get(number)
                if watched is None:
                    study.sync()
            if watched is not None:
                watched.look()
            return _best(study.history), study.outcome.reason
        except HaltuneError as error:
            return _best(study.history) if study else "", str(error)


def _best(history: History) -> str:
    if history.problem.further:
        return lead_of(history) or "no value yet"
    best = history.best()
    return "no value yet" if best is None else f"{history.problem.goal.metric} {best.value:.4g}"


def stop(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Hold the search: runs finish their epochs and are saved."""
    training = study.history.running > len(study.lost)
    if study.outcome.over and not training:
        return f"nothing is left to stop: {study.outcome.reason}"
    hold(
        location.written,
        location.name,
        "stopped on its page; Resume there or `haltune resume` lets it continue",
    )
    return "it stops: each run ends after the epoch under way" if training else "it stops: nobody trains now"


def resume(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Let a search that was stopped go on."""
    if not lift(location.written, location.name, study.history):
        return "nobody had stopped it"
    return "it continues: its workers go on, or will when they are started"


def enqueue(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Have a configuration trained before any that the policy chooses."""
    config = asked.get("config")
    if not isinstance(config, dict):
        raise InvalidInput('{"config": {"lr": 0.01}}: a configuration, by its names')
    waits = study.enqueue(location.written, config, bool(asked.get("again")))
    return f"it waits to be trained{if_allowed(study.problem)}" if waits else "it was begun already, or waits"


def end(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Stop one run for good."""
    _ask(location, study, asked, "stop", "stopped by you, on the search's page")
    return f"trial {asked['trial']} ends after the epoch under way"


def pause(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Set one run aside: it is saved, and offered to nobody."""
    _ask(location, study, asked, "pause", "paused by you, on the search's page: Continue there lets it go on")
    return f"trial {asked['trial']} pauses after the epoch under way, until you let it continue"


def proceed(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Let one run go on that was paused or was to end."""
    _ask(location, study, asked, "continue", "let go on by you, on the search's page")
    return f"trial {asked['trial']} continues"


def _ask(location: Location, study: RecordedStudy, asked: Mapping[str, Any], wish: str, reason: str) -> None:
    trial = asked.get("trial")
    if not isinstance(trial, int) or isinstance(trial, bool):
        raise InvalidInput('{"trial": 7}: the number of a trial')
    ask_of(location.written, location.name, study.history, trial, wish, reason)


def extend(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Raise limits of the budget."""
    limits = asked.get("limits")
    if not isinstance(limits, dict):
        raise InvalidInput('{"limits": {"trials": 80}}: limits of the budget, by their names')
    raised = raise_limits(location.written, location.name, study.history, limits)
    now = "" if study.history.running > len(study.lost) else "; nobody trains now: run its program again"
    return f"the budget is {limits_of(raised)} now{now}"


ACTIONS: dict[str, Callable[[Location, RecordedStudy, Mapping[str, Any]], str]] = {
    "stop": stop, "resume": resume, "enqueue": enqueue, "end": end, "pause": pause, "continue": proceed,
    "extend": extend,
}  # fmt: skip


def application(board: Board, token: str, hosts: tuple[str, ...] = ()) -> Guard:
    """The application, guarded. hosts: names it answers to, beside this machine's own."""
    closing = asyncio.Event()
    server = _Server(board, token, closing)
    routes = [
        Route("/{token}/", server.index),
        Route("/{token}/page.css", server.css),
        Route("/{token}/page.js", server.js),
        Route("/{token}/{number}/", server.page),
        Route("/{token}/{number}/changes", server.changes),
        Route("/{token}/{number}/events", server.events),
        Route("/{token}/{number}/{action:str}", server.act, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token, (*_HOSTS, socket.gethostname(), *hosts), closing)


class _Server:
    def __init__(self, board: Board, token: str, closing: asyncio.Event) -> None:
        self._board, self._token, self._closing = board, token, closing

    async def css(self, request: Request) -> Response:
        return Response(style(), media_type="text/css")

    async def js(self, request: Request) -> Response:
        return Response(script(), media_type="text/javascript")

    async def index(self, request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(self._index))

    def _index(self) -> str:
        rows, trouble = [], ""
        try:
            listed = self._board.listed()
        except HaltuneError as error:
            listed, trouble = list(self._board.locations), f'<p class="reason">{escaped(str(error))}</p>'
        for number, location in enumerate(listed):
            best, standing = self._board.brief(number)
            rows.append(
                f'<tr><td><a href="{number}/">{escaped(location.name)}</a></td><td>{escaped(best)}</td>'
                f'<td class="reason">{escaped(standing)}</td><td class="quiet">{escaped(location.store.url)}</td></tr>'
            )
        body = "".join(rows) or "<tr><td>There is no study yet.</td></tr>"
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>haltune: studies</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<link rel="icon" href="data:,"><link rel="stylesheet" href="page.css"></head>\n'
            '<body><main><p class="quiet">haltune</p><h1>Studies</h1>'
            f'{trouble}<div class="studies wide-table"><table><tbody>{body}</tbody></table></div>'
            "</main></body></html>\n"
        )

    async def _study(self, request: Request) -> Watched | Response:
        """The study that is asked for, or why there is none."""
        try:
            found = await run_in_threadpool(self._board.study, _number(request))
        except HaltuneError as error:
            return PlainTextResponse(str(error), 503)
        return found or PlainTextResponse("there is no such study", 404)

    async def page(self, request: Request) -> Response:
        found = await self._study(request)
        if isinstance(found, Response):
            return found
        head = (
            '<link rel="icon" href="data:,"><link rel="stylesheet" href="../page.css">\n'
            '<meta name="haltune-mark" content="{mark}">\n'
            f'<meta name="haltune-token" content="{escaped(self._token)}">'
        )
        foot = '<script src="../page.js"></script>'
        return HTMLResponse(await run_in_threadpool(_page, found, head, foot))

    async def changes(self, request: Request) -> Response:
        found = await self._study(request)
        if isinstance(found, Response):
            return found
        _, told = await run_in_threadpool(found.since, _mark(request))
        return Response(told, media_type="application/json")

    async def events(self, request: Request) -> Response:
        found = await self._study(request)
        if isinstance(found, Response):
            return found
        told = _stream(found, _mark(request), self._closing)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(told, media_type="text/event-stream")

    async def act(self, request: Request) -> Response:
        does = ACTIONS.get(request.path_params["action"])
        asked = await _asked(request)
        found = await self._study(request)
        if isinstance(found, Response):
            return found
        location = self._board.location(_number(request))
        if does is None or location is None:
            return PlainTextResponse("there is no such thing to do", 404)
        if asked is None:
            return JSONResponse({"error": "an object in JSON, of at most 100 kB, within ten seconds"}, 400)
        try:
            return JSONResponse(
                {"said": await run_in_threadpool(found.acted, partial(does, location), asked)}
            )
        except HaltuneError as error:
            return JSONResponse({"error": str(error)}, 400)


async def _asked(request: Request) -> dict[str, Any] | None:
    """What was posted, of which no more is read than may be, and no longer; None when it is no object."""
    body = b""
    try:
        async with asyncio.timeout(_POST_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > _POST_LIMIT:
                    return None
        found = json.loads(body or b"{}")
    except (TimeoutError, ClientDisconnect, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _page(found: Watched, head: str, foot: str) -> str:
    with suppress(
        HaltuneError
    ):  # of a store that is away: as it was when it was read last; the stream says so
        found.look()
    return found.page(head, foot)


async def _stream(watched: Watched, mark: str, closing: asyncio.Event) -> AsyncIterator[str]:
    """What changed after a mark, then what changes, as server-sent events whose ids are marks."""
    yield "retry: 2000\n\n"
    quiet = 0.0
    while not closing.is_set():
        try:
            await run_in_threadpool(watched.look)
        except HaltuneError as error:
            yield f"event: trouble\ndata: {json.dumps(str(error))}\n\n"
            await _rest(10 * _REFRESH, closing)
            continue
        if watched.mark != mark:
            mark, text = await run_in_threadpool(watched.since, mark)
            quiet = 0.0
            yield f"id: {mark}\ndata: {text}\n\n"
        elif (quiet := quiet + _REFRESH) >= _PULSE:
            quiet = 0.0
            yield ": it lives\n\n"
        await _rest(_REFRESH, closing)


async def _rest(seconds: float, closing: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(closing.wait(), seconds)


def _number(request: Request) -> int:
    """The number of the study that is asked for; -1 for what is none."""
    text = request.path_params["number"]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _mark(request: Request) -> str:
    """Where a page stands: what the browser says when it connects again, or what the address says."""
    return request.headers.get("last-event-id") or request.query_params.get("after") or ""
