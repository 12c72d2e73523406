"""The server itself."""

from __future__ import annotations

import asyncio
import socket

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .guard import Guard

_HEAD_SECONDS = 10.0  # seconds in which a request must be said
_READ, _PACE = (
    120.0,
    1000,
)  # seconds in which so many bytes of what waits are to be read; the system takes them in jumps
_MOST_CONNECTIONS = 500  # connections: a process may have about a thousand files open


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
        await super().shutdown(sockets)


class _Hasty(H11Protocol):
    """Who says nothing, says it drop by drop or does not read is let go; so is who comes when there are too many."""

    _late: asyncio.TimerHandle | None = (
        None  # for the rest of a request's head, or of a body that nobody reads
    )
    _unread: asyncio.TimerHandle | None = None  # for what was written to be read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

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
