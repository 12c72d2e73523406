"""The server itself."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .guard import Guard

_HEAD_SECONDS = 10.0  # seconds in which a request must be said
_READ, _PACE = (
    120.0,
    1000,
)  # seconds in which so many bytes of what waits are to be read; the system takes them in jumps
_MOST_CONNECTIONS = 500  # connections that showed the token: a process may have about a thousand files open
_MOST_STRANGERS = 100  # connections that have not shown it
_GRACE = 0.5  # seconds for requests to end by themselves when the server ends


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
