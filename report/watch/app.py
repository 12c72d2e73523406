"""The server of `haltune watch`: pages, what changed since, and the few things that a page may ask for."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from haltune.display.notebook import escaped
from haltune.errors import HaltuneError

from ..page.page import script, style
from . import actions
from .board import Board
from .guard import Guard
from .watched import Watched

_REFRESH = 0.5  # seconds between looks
_PULSE = 15.0  # seconds after which a quiet stream says that it lives
_POST_LIMIT = 100_000  # bytes of what is posted
_POST_SECONDS = 10.0  # seconds in which it must be
_HOSTS = ("localhost", "127.0.0.1", "::1")


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
        does = actions.ALL.get(request.path_params["action"])
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
