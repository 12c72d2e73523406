"""The server itself."""

from __future__ import annotations

import socket

import uvicorn

from .guard import Guard


def serve(app: Guard, listening: socket.socket) -> None:
    """Serve until Ctrl-C; streams that are open then are cut."""
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
    )
    return uvicorn.Server(config)
