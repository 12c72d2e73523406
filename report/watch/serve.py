"""The server itself, and its guard: without the token nothing is served, to no other site and under no borrowed name.

- Every address begins with a random token.
- All users of a machine can see the address that a browser is started with. So this address has a ticket in the token's
  place, which is good for one visit within a minute.
- The Host must be one that the server was started for, so that a name which an attacker points at this machine (DNS
  rebinding) reaches nothing. Addresses in numbers cannot be pointed anywhere.
- What changes a search is a POST with the token in a header, which no form and no other site's page can send, and
  with an Origin, if there is one, that is the Host's own.
- Pages may load nothing but what this server serves, run no script but its own, and stand in no frame.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import time
from collections.abc import Iterable

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

TOKEN = "x-haltune-token"
_TICKET_TIME = 60.0  # seconds in which a browser starts
_MOST_CONNECTIONS = 500  # that have shown the token: a process may have about a thousand files open
_MOST_STRANGERS = 100  # connections that have not shown it
_GRACE = 0.5  # seconds for requests to end by themselves when the server ends
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

    def _answer(self, scope: Scope) -> Response | None:
        """A refusal, or the way from a ticket to the page; None: the application answers."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            return PlainTextResponse("this server does not answer to that name", 421)
        given, _, rest = scope["path"].lstrip("/").partition("/")
        if scope["method"] == "GET" and self._takes(given):
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

    def knows(self, path: str) -> bool:
        """Return whether a path begins with the token."""
        return _same(path.lstrip("/").partition("/")[0], self._token)

    def _takes(self, given: str) -> bool:
        """Consume the one-time ticket; return whether it was valid."""
        valid = bool(self._ticket) and _same(given, self._ticket)
        self._ticket = "" if valid else self._ticket
        return valid and time.monotonic() <= self._until

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


def server(app: Guard) -> uvicorn.Server:
    """What serves it, quietly."""
    config = uvicorn.Config(
        app, http=_CountedProtocol, access_log=False, server_header=False, timeout_graceful_shutdown=1, lifespan="off",
        ws="none",
        log_level="error",  # a warning is what a stranger sent: no line on the terminal for it
    )  # fmt: skip
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


class _CountedProtocol(H11Protocol):
    """Connection of a limited number: of those without the token, a new one takes the place of the oldest."""

    _known = False  # True once a request on it has shown the token

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._since = time.monotonic()
        super().connection_made(transport)
        self._limit(_MOST_STRANGERS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._known and self.scope and self.config.app.knows(self.scope["path"]):  # type: ignore[union-attr]
            self._known = True
            self._limit(_MOST_CONNECTIONS)

    def _limit(self, most: int) -> None:
        alike = [
            c for c in self.connections
            if isinstance(c, _CountedProtocol) and c._known == self._known and not c.transport.is_closing()
        ]  # fmt: skip
        if len(alike) > most:
            min(alike, key=lambda c: c._since).transport.abort()
