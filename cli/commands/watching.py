"""Watching searches in a browser while they run."""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from haltune._utils.words import plural
from haltune.errors import InvalidInput, installing
from haltune.store.open import open_store

from ..find import errors, find
from ..options import Name, say
from ..study_file.reader import read

_LOCAL = ("127.0.0.1", "localhost", "::1")
_ALL = ("0.0.0.0", "::")  # every address of the machine


def watch(
    where: Annotated[list[str], typer.Argument(help="study files, databases, or URLs", show_default=False)],
    name: Name = None,
    port: Annotated[int, typer.Option(help="0: any that is free", min=0, max=65535)] = 8765,
    host: Annotated[
        str, typer.Option(help="an address to listen on; others than this machine's own are open to all")
    ] = _LOCAL[0],
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="keep the address's token in this file, so that pages connect again after a restart"
        ),
    ] = None,
    open: Annotated[bool, typer.Option(help="open it in a browser")] = True,
) -> None:
    """A search in a browser while it runs: curves as they grow, and buttons to stop, resume and enqueue."""
    with errors(interrupted="The page is no longer served. The search continues."):
        serve, application, board = _needed()
        listening = _socket(host, port)
        token = kept_token(token_file) if token_file else secrets.token_urlsafe(18)
        places = board(lambda: _places(where, name))
        listed = places.listed()
        named = socket.gethostname() if host in _ALL else f"[{host}]" if ":" in host else host
        address = f"http://{named}:{listening.getsockname()[1]}/{token}/"
        if len(listed) == 1:
            address += "0/"
        say(f"{plural(len(listed), 'study', 'studies')}: {address}")
        if host not in _LOCAL:
            say(
                "whoever reaches this machine and has the address may look and act; nothing is encrypted",
                err=True,
            )
        say("Ctrl-C ends it; the search continues without it")
        app = application(places, token, (host, *names_of(host)))
        if open:  # whatever a program is started with, all users of the machine may read
            _open(address.replace(token, app.ticket(), 1))
        serve(app, listening)


def _open(address: str) -> None:
    """In a browser; beside the server, for one in the terminal is waited for until it ends."""
    threading.Thread(target=webbrowser.open, args=(address,), name="haltune-browser", daemon=True).start()


def names_of(host: str) -> tuple[str, ...]:
    """What a machine is called, beside its short name, where it is open to others."""
    if host in _LOCAL:
        return ()
    name = socket.gethostname()
    return tuple(dict.fromkeys((socket.getfqdn(), f"{name}.local")))


def kept_token(path: Path) -> str:
    """The token in a file that its owner alone may read; made where there is none. Raises InvalidInput."""
    try:
        with suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(made, "w") as file:
                file.write(secrets.token_urlsafe(18) + "\n")
        with path.open(encoding="ascii") as file:
            held, token = os.fstat(file.fileno()), file.read(300).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"cannot keep a token in {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if os.name == "posix" and held.st_uid not in (os.getuid(), 0):
        raise InvalidInput(f"{path} belongs to another user, who may read the token in it: name another file")
    if os.name == "posix" and held.st_mode & 0o077:
        raise InvalidInput(
            f"others may read the token in {path}: chmod 600 {path}, or remove it for a new one"
        )
    if not re.fullmatch(r"[\w-]{20,200}", token, re.ASCII):
        raise InvalidInput(f"{path} holds no token of 20 letters and digits or more: remove it for a new one")
    return token


def _needed() -> tuple[Any, Any, Any]:
    try:
        from haltune.report.watch.app import Board, application
        from haltune.report.watch.serve import serve
    except ImportError:
        raise ImportError(f"haltune watch serves with Starlette and uvicorn: {installing('watch')}") from None
    return serve, application, Board


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)  # a browser that is opened now waits until it is served
    except OSError as error:
        found.close()
        raise InvalidInput(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; another port: --port 0 takes any"
        ) from error
    return found


def _places(where: Sequence[str], name: str | None) -> list[Any]:
    """Every study of what was named. Raises what `find` raises, where there is nothing of one."""
    from haltune.report.watch.app import Location

    found = []
    for text in where:
        file = read(text) if text.endswith(".toml") else None
        if file or name:
            store, only = find(text, name)
            names = [only]
        else:
            store = open_store(text, reading=True)
            names = store.names()
        folder = file.options.get("checkpoints") if file else None
        found += [Location(store, known, file.store if file else text, folder) for known in names]
    return found
