"""`haltune watch`: the watched studies, their pages, their changes, and the actions of a page.

An action is recorded as an event in the log, which all workers read.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from haltune.display import escaped, plural, visible
from haltune.errors import HaltuneError, InvalidInput
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpoints
from haltune.store.open import open_store
from haltune.store.studies import ask_of, hold, if_allowed, lift, limits_of, note_on, raise_limits
from haltune.study.messages import lead_of
from haltune.study.view import RecordedStudy, follow_study

from ..comparison import comparison
from ..page import script, style
from ..page.items import MOST_FILES
from .serve import Guard
from .watched import Watched

_REFRESH = 0.5  # seconds between readings
_PULSE = 15.0  # seconds without changes after which a stream sends a heartbeat
_OUTPUT = 65_536  # bytes at the end of a trial's output
# files of trials that a browser shows; it saves all others, because their scripts could act with the page's token
_SHOWN = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
_SHOWN |= dict.fromkeys((".txt", ".log", ".csv", ".json", ".yaml", ".toml"), "text/plain")
_STYLED = '<link rel="icon" href="data:,"><link rel="stylesheet" href="page.css">'
_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass
class Location:
    """Location of a study, and what is open there. The store for writing is opened at the first action."""

    store: Store  # for reading
    name: str
    url: str  # for writing
    checkpoints: str | None = None  # their folder; None: the one next to the store
    study: RecordedStudy | None = None  # open for reading, once the list has shown it
    watched: Watched | None = None  # its page, once that was opened

    @cached_property
    def written(self) -> Store:
        """The store, opened for writing."""
        return open_store(self.url)

    def opened(self) -> RecordedStudy:
        """Open the study for reading, once."""
        if self.study is None:
            self.study = follow_study(self.store, self.name, self.checkpoints)
        return self.study


@dataclass
class Board:
    """Locations of the studies by fixed numbers. The list reads each study; a page is made when it is opened."""

    find: Callable[[], Sequence[Location]]  # returns the present studies
    locations: list[Location] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def listed(self) -> list[Location]:
        """Return all studies, including new ones."""
        with self._lock:
            known = {(location.url, location.name) for location in self.locations}
            self.locations += [found for found in self.find() if (found.url, found.name) not in known]
            return list(self.locations)

    def location(self, number: int) -> Location | None:
        """Return the location of a study by its number; None if there is none."""
        found = self.locations if number < len(self.locations) else self.listed()
        return found[number] if 0 <= number < len(found) else None

    def study(self, number: int) -> Watched | None:
        """Return a study by its number; None if there is none. Raises HaltuneError if it cannot be read."""
        if (location := self.location(number)) is None:
            return None
        with self._lock:
            if location.watched is None:
                location.watched = Watched(location.opened(), served=True)
            return location.watched

    def brief(self, number: int) -> tuple[str, str]:
        """Return (best value, state) of a study, in words."""
        if (location := self.location(number)) is None:
            return "", "this study no longer exists"
        try:
            with self._lock:
                study, watched = location.opened(), location.watched
                if watched is None:
                    study.sync()
                    return _standing(study)
            return watched.acted(lambda study, _: _standing(study), {})  # no other thread reads it meanwhile
        except HaltuneError as error:
            return _standing(location.study)[0] if location.study else "", str(error)


def _standing(study: RecordedStudy) -> tuple[str, str]:
    return lead_of(study.history) or "no value yet", study.outcome.reason


def stop(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Stop the search for now: trials finish their epochs and are saved."""
    training = study.history.running > len(study.lost)
    if study.outcome.over and not training:
        return f"Nothing to stop: {study.outcome.reason}"
    why = "stopped on its page; Resume there or `haltune resume` lets it continue"
    hold(location.written, location.name, why)
    if training:
        return "The search stops: each trial ends at its next report"
    return "The search stops: no process trains now"


def resume(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Continue a search that was stopped for now."""
    if not lift(location.written, location.name, study.history):
        return "The search was not stopped"
    return "The search continues; if no process trains, start its program again"


def enqueue(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Train a configuration before those that the policy chooses."""
    config = asked.get("config")
    if not isinstance(config, dict):
        raise InvalidInput('The request has no configuration. Send one, such as {"config": {"lr": 0.01}}.')
    waits = study.enqueue(location.written, config, bool(asked.get("again")))
    if waits:
        return f"The configuration waits for training{if_allowed(study.problem)}"
    return "The configuration has started already, or waits"


def _ask(wish: str, reason: str, then: str, location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Request that one trial ends, pauses or continues. then: what the trial does, for the answer."""
    trial = asked.get("trial")
    if not isinstance(trial, int) or isinstance(trial, bool):
        raise InvalidInput('The request has no trial. Send its number, such as {"trial": 7}.')
    ask_of(location.written, location.name, study.history, trial, wish, reason)
    return f"Trial {trial} {then}"


def extend(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Raise limits of the budget."""
    limits = asked.get("limits")
    if not isinstance(limits, dict):
        raise InvalidInput('The request has no limits. Send limits of the budget, such as {"limits": {"trials": 80}}.')
    raised = raise_limits(location.written, location.name, study.history, limits)
    now = "" if study.history.running > len(study.lost) else "; no process trains now: start its program again"
    return f"The budget is {limits_of(raised)} now{now}"


def note(location: Location, study: RecordedStudy, asked: Mapping[str, Any]) -> str:
    """Write a note on a trial."""
    trial, text = asked.get("trial"), asked.get("text")
    if not isinstance(trial, int) or isinstance(trial, bool) or not isinstance(text, str):
        raise InvalidInput('The request has no trial or no text. Send both, such as {"trial": 7, "text": "rerun"}.')
    note_on(location.written, location.name, study.history, trial, text)
    return f"Trial {trial} has {'this' if text.strip() else 'no'} note"


ACTIONS: dict[str, Callable[[Location, RecordedStudy, Mapping[str, Any]], str]] = {
    "stop": stop, "resume": resume, "enqueue": enqueue, "extend": extend, "note": note,
    "end": partial(_ask, "stop", "stopped by you, on the search's page", "ends at its next report"),
    "pause": partial(
        _ask, "pause", "paused by you, on the search's page: Continue there resumes it",
        "pauses at its next report, until you choose Continue",
    ),
    "continue": partial(_ask, "continue", "resumed by you, on the search's page", "continues"),
}  # fmt: skip


def application(board: Board, token: str, hosts: tuple[str, ...] = ()) -> Guard:
    """Return the application behind its guard. `hosts` are names of this machine in addition to its own."""
    closing = asyncio.Event()

    async def study(request: Request) -> Watched:
        try:
            found = await run_in_threadpool(board.study, request.path_params["number"])
        except HaltuneError as error:
            raise HTTPException(503, str(error)) from error
        if found is None:
            raise HTTPException(404, "There is no such study.")
        return found

    async def asset(request: Request) -> Response:
        if request.path_params["name"] == "js":
            return Response(script(), media_type="text/javascript")
        return Response(style(), media_type="text/css")

    async def index(request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(_index, board))

    async def compare(request: Request) -> Response:
        numbers = map(int, re.findall(r"\d{1,6}", request.query_params.get("of", "")))
        try:
            return HTMLResponse(await run_in_threadpool(_comparison, board, dict.fromkeys(numbers)))
        except HaltuneError as error:
            raise HTTPException(400 if isinstance(error, InvalidInput) else 503, str(error)) from error

    async def page(request: Request) -> Response:
        head = (
            '<link rel="icon" href="data:,"><link rel="stylesheet" href="../page.css">\n'
            '<meta name="haltune-mark" content="{mark}">\n'
            f'<meta name="haltune-token" content="{escaped(token)}">'
        )
        return HTMLResponse(await run_in_threadpool(_page, await study(request), head))

    async def changes(request: Request) -> Response:
        _, items = await run_in_threadpool((await study(request)).since, _mark(request))
        return Response(items, media_type="application/json")

    async def events(request: Request) -> Response:
        stream = _stream(await study(request), _mark(request), closing)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(stream, media_type="text/event-stream")

    async def output(request: Request) -> Response:
        found, trial = await study(request), request.path_params["trial"]
        return PlainTextResponse(await run_in_threadpool(_output, found.study.checkpoints.output_of(trial)))

    async def file(request: Request) -> Response:
        found, trial = await study(request), request.path_params["trial"]
        path = await run_in_threadpool(_artifact, found.study.checkpoints, trial, request.path_params["path"])
        if path is None:
            raise HTTPException(404, "There is no such file.")
        shown = _SHOWN.get(path.suffix.lower())
        return FileResponse(
            path, media_type=shown or "application/octet-stream", filename=path.name,
            content_disposition_type="inline" if shown else "attachment",
        )  # fmt: skip

    async def act(request: Request) -> Response:
        does, found = ACTIONS.get(request.path_params["action"]), await study(request)
        location = board.location(request.path_params["number"])
        if does is None or location is None:
            raise HTTPException(404, "There is no such action.")
        try:
            asked = json.loads(await request.body() or b"{}")
        except (ClientDisconnect, ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            return JSONResponse({"error": "The request is not a JSON object. Send one."}, 400)
        try:
            return JSONResponse({"said": await run_in_threadpool(found.acted, partial(does, location), asked)})
        except HaltuneError as error:
            return JSONResponse({"error": str(error)}, 400)

    routes = [
        Route("/{token}/", index),
        Route("/{token}/compare", compare),
        Route("/{token}/page.{name}", asset),
        Route("/{token}/{number:int}/", page),
        Route("/{token}/{number:int}/changes", changes),
        Route("/{token}/{number:int}/events", events),
        Route("/{token}/{number:int}/output/{trial:int}", output),
        Route("/{token}/{number:int}/files/{trial:int}/{path:path}", file),
        Route("/{token}/{number:int}/{action}", act, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token, (*_HOSTS, socket.gethostname(), *hosts), closing)


def _index(board: Board) -> str:
    rows, trouble = [], ""
    alike: dict[str, list[str]] = {}  # goal -> the numbers of its studies
    try:
        listed = board.listed()
    except HaltuneError as error:
        listed, trouble = list(board.locations), f'<p class="reason">{escaped(str(error))}</p>'
    for number, location in enumerate(listed):
        best, standing = board.brief(number)
        rows.append(
            f'<tr><td><a href="{number}/">{escaped(location.name)}</a></td><td>{escaped(best)}</td>'
            f'<td class="reason">{escaped(standing)}</td><td class="quiet">{escaped(location.store.url)}</td></tr>'
        )
        if location.study is not None and not location.study.problem.further:
            goal = location.study.problem.goal
            alike.setdefault(f"{'highest' if goal.sign > 0 else 'lowest'} {goal.final}", []).append(str(number))
    heads = "<thead><tr><th>study</th><th>best</th><th>state</th><th>store</th></tr></thead>" if rows else ""
    body = "".join(rows) or "<tr><td>There is no study yet.</td></tr>"
    links = "".join(
        f'<p><a href="compare?of={",".join(of)}">Compare {plural(len(of), "study", "studies")}: {escaped(aim)}</a></p>'
        for aim, of in alike.items()
        if len(of) > 1
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>haltune: studies</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{_STYLED}</head>\n"
        '<body><main><p class="quiet">haltune</p><h1>Studies</h1>'
        f'{trouble}<div class="studies wide-table"><table>{heads}<tbody>{body}</tbody></table></div>'
        f"{links}</main></body></html>\n"
    )


def _comparison(board: Board, numbers: Iterable[int]) -> str:
    """Return the page that compares studies. Each is opened again: other threads read those that are open."""
    found = [location for number in numbers if (location := board.location(number)) is not None]
    studies = [follow_study(location.store, location.name, location.checkpoints) for location in found]
    return comparison(studies, _STYLED, '<script src="page.js"></script>')


def _output(path: Path) -> str:
    """Return the end of what a trial printed."""
    try:
        with path.open("rb") as file:
            file.seek(-min(_OUTPUT, file.seek(0, os.SEEK_END)), os.SEEK_END)
            text = file.read().decode(errors="replace")
    except OSError:
        return f"There is no file {path}. Only trials of worker processes print to a file (workers=, haltune run)."
    return visible(text.replace("\r\n", "\n").replace("\r", "\n"))


def _artifact(checkpoints: Checkpoints, trial: int, name: str) -> Path | None:
    """Return a file of a trial by its name on the page; None if a trial did not write it."""
    above = checkpoints.of(trial)
    return next((p for p in checkpoints.artifacts(trial, MOST_FILES) if p.relative_to(above).as_posix() == name), None)


def _page(found: Watched, head: str) -> str:
    with suppress(HaltuneError):  # the store is not reachable: the stream reports it
        found.look()
    return found.page(head, '<script src="../page.js"></script>')


async def _stream(watched: Watched, mark: str, closing: asyncio.Event) -> AsyncIterator[str]:
    """Yield the changes since a mark, then new changes, as server-sent events with marks as ids."""
    yield "retry: 2000\n\n"
    quiet = 0.0
    while not closing.is_set():
        rest = _REFRESH
        try:
            await run_in_threadpool(watched.look)
        except HaltuneError as error:
            yield f"event: trouble\ndata: {json.dumps(str(error))}\n\n"
            rest = 10 * _REFRESH
        else:
            quiet += _REFRESH
            if watched.mark != mark:
                mark, text = await run_in_threadpool(watched.since, mark)
                quiet = 0.0
                yield f"id: {mark}\ndata: {text}\n\n"
            elif quiet >= _PULSE:
                quiet = 0.0
                yield ": heartbeat\n\n"
        with suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), rest)


def _mark(request: Request) -> str:
    """Return a page's mark: from the browser when it reconnects, otherwise from the address."""
    return request.headers.get("last-event-id") or request.query_params.get("after") or ""
