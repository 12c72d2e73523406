"""The server and its guard. It serves nothing without the token, to other sites, or under another host name.

- Every address starts with a random token.
- All users of a machine can see the address with which a browser is started. So this address has a ticket in place of
  the token. A ticket is valid for one visit within a minute.
- The Host must be one for which the server was started. So a name that an attacker points at this machine (DNS
  rebinding) gets no answer. Numeric addresses cannot be redirected.
- An action is a POST with the token in a header. Neither a form nor another site's page can send this header. If there
  is an Origin, it must equal the Host.
- Pages load only files from this server, run only its script, and cannot be shown in a frame.
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
_TICKET_TIME = 60.0  # seconds, enough for a browser to start
_MOST_CONNECTIONS = 500  # with the token: a process can open about a thousand files
_MOST_STRANGERS = 100  # connections without the token
_GRACE = 0.5  # seconds for open requests to finish when the server ends
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
    """Guard of an application whose paths start with /TOKEN/."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], closing: asyncio.Event) -> None:
        self._app, self._token = app, token
        self.closing = closing  # set when the server ends, so that streams end
        self._hosts = {host.lower() for host in hosts}
        self._ticket, self._until = "", 0.0

    def ticket(self) -> str:
        """Return a new ticket, which replaces the token once within a minute. Earlier tickets become invalid."""
        self._ticket, self._until = secrets.token_urlsafe(18), time.monotonic() + _TICKET_TIME
        return self._ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no websockets
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
        """Return a refusal, or the redirection from a ticket to the page. None: the application answers."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            return PlainTextResponse("This server does not answer to this host name. Use haltune watch --host.", 421)
        given, _, rest = scope["path"].lstrip("/").partition("/")
        if scope["method"] == "GET" and self._takes(given):
            return RedirectResponse(f"/{self._token}/{rest}", 303)
        if not self.knows(scope["path"]):
            return PlainTextResponse("This address does not exist. Use the address that haltune watch printed.", 404)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return PlainTextResponse("This method is not allowed. Use GET or POST.", 405)
        foreign = set(headers.getlist("origin")) - {f"http://{host}"}
        if not _same(headers.get(TOKEN, ""), self._token) or foreign:
            return PlainTextResponse("Only the page itself can send actions. Use its buttons.", 403)
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
    """Return the server, which logs only errors."""
    config = uvicorn.Config(
        app, http=_CountedProtocol, access_log=False, server_header=False, timeout_graceful_shutdown=1, lifespan="off",
        ws="none",
        log_level="error",  # warnings are about requests of strangers: keep them off the terminal
    )  # fmt: skip
    return _StreamingServer(config)


class _StreamingServer(uvicorn.Server):
    """Server that ends its streams first. If they were cut, each would leave a traceback on the terminal."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.closing.set()  # type: ignore[union-attr]
        if tasks := set(self.server_state.tasks):
            _, left = await asyncio.wait(tasks, timeout=_GRACE)
            if left:  # unfinished requests: uvicorn would print a traceback for each
                for connection in list(self.server_state.connections):
                    connection.transport.abort()
                for task in left:
                    task.cancel()
        await super().shutdown(sockets)


class _CountedProtocol(H11Protocol):
    """Connection, limited in number: a new one without the token replaces the oldest one without it."""

    _known = False  # True after a request on it with the token

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
