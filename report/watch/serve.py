"""The server itself."""

from __future__ import annotations

import asyncio
import socket

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .guard import Guard

_HEAD = 10.0  # seconds in which a request must be said
_MOST = 500  # connections: a process may have about a thousand files open


def serve(app: Guard, listening: socket.socket) -> None:
    """Serve until Ctrl-C."""
    server(app).run(sockets=[listening])


def server(app: Guard) -> uvicorn.Server:
    """What serves it, quietly."""
    config = uvicorn.Config(
        app,
        http=_Hasty,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
        ws="none",
    )
    return _Ending(config)


class _Ending(uvicorn.Server):
    """Ends its streams before itself: cut, each would leave a traceback on the terminal."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.closing.set()  # type: ignore[union-attr]
        await super().shutdown(sockets)


class _Hasty(H11Protocol):
    """Who says nothing, or says it drop by drop, is let go; and so is who comes when there are too many."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _MOST:
            transport.abort()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._said()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """For the rest of the head of a request."""
        if self.conn.their_state is not h11.IDLE:
            self._said()
        elif self._late is None:
            self._late = self.loop.call_later(_HEAD, self.transport.abort)

    def _said(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
