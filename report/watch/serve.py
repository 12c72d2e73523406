"""The server itself, and its guard: nobody who does not know the token, no page of another site, no borrowed name.

- Every address begins with a random token; without it there is nothing here.
- A program that opens the address for the user shows what it was given to all of this machine: it is given a ticket in
  the token's place, which is good for one visit, and for a program of the same user where the system tells whose it is.
- The Host must be one that the server was started for, so that a name which an attacker points at this machine (DNS
  rebinding) reaches nothing. Addresses in numbers cannot be pointed anywhere.
- What changes a search is a POST with the token in a header, which no form and no other site's page can send, and
  with an Origin, where there is one, that is the Host's own.
- Pages may load nothing but what this server serves, run no script but its own, and stand in no frame.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

TOKEN = "x-haltune-token"
_TICKET_TIME = 60.0  # seconds in which a browser starts
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # all connections of the machine, and whose
_LOCAL, _REMOTE, _USER = 1, 2, 7  # columns; an address ends in its port, in hexadecimal
_HEAD_SECONDS = 10.0  # seconds in which a request must be said
_READ = 120.0  # seconds in which _PACE bytes of what waits are to be read
_PACE = 1000  # bytes; the system takes them in jumps
_MOST_CONNECTIONS = 500  # connections that showed the token: a process may have about a thousand files open
_MOST_STRANGERS = 100  # connections that have not shown it
_GRACE = 0.5  # seconds for requests to end by themselves when the server ends


class Guard:
    """Wraps an application whose paths begin with /TOKEN/."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], closing: asyncio.Event) -> None:
        self._app, self._token = app, token
        self.closing = closing  # set when the server ends: streams end then
        self._hosts = {host.lower() for host in hosts}
        self._ticket, self._until = "", 0.0

    def ticket(self) -> str:
        """What may stand in the token's place once, for a minute; one that was asked for before is void."""
        self._ticket, self._until = secrets.token_urlsafe(18), time.monotonic() + _TICKET_TIME
        return self._ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets here
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {name.encode() for name in HEADERS}
                kept = [(k, v) for k, v in message["headers"] if k.lower() not in named]
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*kept, *added]}
            await send(message)

        answer = self._answer(scope)
        try:
            await (answer or self._app)(scope, receive, guarded)
        except asyncio.CancelledError:
            if not self.closing.is_set():
                raise

    def knows(self, path: str) -> bool:
        """Return whether a path begins with the token."""
        return _same(path.lstrip("/").partition("/")[0], self._token)

    def _answer(self, scope: Scope) -> Response | None:
        """A refusal, or the way from a ticket to the page; None: the application answers."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            return PlainTextResponse("this server does not answer to that name", 421)
        given, _, rest = scope["path"].lstrip("/").partition("/")
        if scope["method"] == "GET" and self._takes(given, scope):
            return RedirectResponse(f"/{self._token}/{rest}", 303)
        if not self.knows(scope["path"]):
            return PlainTextResponse("there is nothing here; use the address that haltune watch printed", 404)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return PlainTextResponse("GET or POST", 405)
        foreign = set(headers.getlist("origin")) - {f"http://{host}"}
        if not _same(headers.get(TOKEN, ""), self._token) or foreign:
            return PlainTextResponse("only the page itself may do that", 403)
        return None

    def _takes(self, given: str, scope: Scope) -> bool:
        """Whether it is the ticket, by whom it was meant for: it is void then."""
        if not self._ticket or not _same(given, self._ticket) or _is_stranger(scope):
            return False
        self._ticket = ""
        return time.monotonic() <= self._until

    def _is_ours(self, host: str) -> bool:
        name, port = host, "0"
        if ":" in host and not host.endswith("]"):
            name, _, port = host.rpartition(":")
        if not (port.isascii() and port.isdigit()):
            return False
        name = name.strip("[]").lower()
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())


def users(port: int, ours: int) -> set[int]:
    """The users who hold an end at `port` of a connection to our port; none where the system does not tell."""
    found = set()
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                row = line.split()
                if [int(row[end].rpartition(":")[2], 16) for end in (_LOCAL, _REMOTE)] == [port, ours]:
                    found.add(int(row[_USER]))
    return found


def _is_stranger(scope: Scope) -> bool:
    """Whether a program of another user of this machine asks; root, who may read everything, is no stranger."""
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None or os.name != "posix":
        return False
    return bool(users(client[1], server[1]) - {os.getuid(), 0})


def serve(app: Guard, listening: socket.socket) -> None:
    """Serve until Ctrl-C."""
    server(app).run(sockets=[listening])


def server(app: Guard) -> uvicorn.Server:
    """What serves it, quietly."""
    config = uvicorn.Config(
        app,
        http=_Hasty,
        log_level="error",  # a warning is what a stranger sent: no line on the terminal for it
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
        ws="none",
    )
    return _StreamingServer(config)


class _StreamingServer(uvicorn.Server):
    """Ends its streams before itself: cut, each would leave a traceback on the terminal."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.closing.set()  # type: ignore[union-attr]
        if tasks := set(self.server_state.tasks):
            _, left = await asyncio.wait(tasks, timeout=_GRACE)
            if left:  # a page is being made: uvicorn would print a traceback for each
                for connection in list(self.server_state.connections):
                    connection.transport.abort()
                for task in left:
                    task.cancel()
        await super().shutdown(sockets)


class _Hasty(H11Protocol):
    """Connection that is closed if it sends nothing, sends or reads too slowly, or if there are too many.

    Connections that have not shown the token are counted apart: a new one replaces the oldest, from the address that
    holds most of them, so that they never keep a browser with the token out.
    """

    _known = False  # whether a request on it showed the token
    _since = 0.0

    _late: asyncio.TimerHandle | None = (
        None  # for the rest of a request's head, or of a body that nobody reads
    )
    _unread: asyncio.TimerHandle | None = None  # for what was written to be read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._wait()
        strangers = self._alike()
        if len(strangers) > _MOST_STRANGERS:
            held = Counter(_address(c) for c in strangers)
            min(strangers, key=lambda c: (-held[_address(c)], c._since)).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()
        if not self._known and self.scope and self.config.app.knows(self.scope["path"]):  # type: ignore[union-attr]
            self._known = True
            if len(self._alike()) > _MOST_CONNECTIONS:
                self.transport.abort()

    def _alike(self) -> list[_Hasty]:
        """Return the open connections that showed the token, if this one did, or else those that did not."""
        return [
            c
            for c in self.connections
            if isinstance(c, _Hasty) and c._known == self._known and not c.transport.is_closing()
        ]

    def connection_lost(self, exc: Exception | None) -> None:
        self._said()
        self.resume_writing()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _watch(self, left: int) -> None:
        """Whether `left` bytes get fewer: a reader that is slow is waited for, one that stands still is not."""

        def look() -> None:
            now = self.transport.get_write_buffer_size()
            if now > left - _PACE:
                self.transport.abort()
            else:
                self._watch(now)

        self._unread = self.loop.call_later(_READ, look)

    def _wait(self) -> None:
        """For the rest of the head of a request; and for that of a body, once the request is answered."""
        answered = self.cycle is not None and self.cycle.response_complete
        if self.conn.their_state is not h11.IDLE and not (
            answered and self.conn.their_state is h11.SEND_BODY
        ):
            self._said()
        elif self._late is None:
            self._late = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

    def _said(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _address(connection: _Hasty) -> str:
    return connection.client[0] if connection.client else ""
