"""The server itself."""

from __future__ import annotations

import socket

import uvicorn

from .guard import Guard


def serve(app: Guard, listening: socket.socket) -> None:
    """Serve until Ctrl-C."""
    server(app).run(sockets=[listening])


def server(app: Guard) -> uvicorn.Server:
    """What serves it, quietly."""
    config = uvicorn.Config(
        app,
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
