"""Who may look and who may act: nobody who does not know the token, no page of another site, no borrowed name.

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
import secrets
import time
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .peer import is_strange

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
        if not self._ticket or not _same(given, self._ticket) or _is_strange(scope):
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


def _is_strange(scope: Scope) -> bool:
    """Whether another user of this machine asks."""
    client, server = scope.get("client"), scope.get("server")
    return client is not None and server is not None and is_strange(client[1], server[1])


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())
