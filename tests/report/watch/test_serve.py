"""The server of the page over a network: what strangers send, streams at its end, stores that go away."""

import asyncio
import contextlib
import logging
import socket
import threading
from pathlib import Path

import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.errors import StoreAway
from haltune.policies import RandomSearch
from haltune.report.watch.app import Board, Location, application
from haltune.report.watch.serve import server
from haltune.report.watch.watched import Watched
from haltune.store.open import open_store

TOKEN = "a-token-that-nobody-guesses"


def searched(folder: Path, trials: int = 1) -> Path:
    problem = Problem(Space({"lr": Float(0.01, 1.0)}), Maximize("acc", (0, 1)), 4)
    study = Study(problem, RandomSearch(), f"sqlite:///{folder}/a.db", budget=Budget(trials=9), verbose=0)
    for _ in range(trials):
        with study.ask() as trial:
            trial.report(0.5, seconds=1.0)
    return folder / "a.db"


@pytest.fixture
def board(tmp_path):
    path = searched(tmp_path)
    return Board(lambda: [Location(open_store(str(path), reading=True), "study", str(path))])


@pytest.fixture
def served(board):
    """The server's port, and what ends it."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)  # what is not read waits at the server
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    made = server(application(board, TOKEN))
    thread = threading.Thread(target=made.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()

    def end():
        made.should_exit = True
        thread.join(60)
        return not thread.is_alive()

    yield listening.getsockname()[1], end
    assert end()


def sent(port: int, head: str) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=60)
    found.sendall(f"{head}\r\nHost: localhost\r\nX-Haltune-Token: {TOKEN}\r\n".encode())
    return found


def answered(connection: socket.socket) -> bytes:
    """All of it, until the server closes."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


# -- attacks ---------------------------------------------------------------------------------------


def test_who_leaves_while_posting_leaves_no_traceback(served, caplog):
    port, end = served
    connection = sent(port, f"POST /{TOKEN}/0/stop HTTP/1.1")
    connection.sendall(b"Content-Length: 50\r\n\r\n{")
    connection.close()
    with caplog.at_level(logging.ERROR):
        assert end()
    assert not caplog.records


def test_the_server_ends_while_a_page_is_made_and_leaves_no_traceback(served, caplog, monkeypatch):
    port, end = served
    begun, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(Watched, "page", lambda *_: begun.set() or str(goes_on.wait(60)))
    page = sent(port, f"GET /{TOKEN}/0/ HTTP/1.1")
    page.sendall(b"\r\n")
    assert begun.wait(60)
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    try:
        assert end()
    finally:
        goes_on.set()
        logger.removeHandler(caplog.handler)
    assert not caplog.records
    assert cut(page)


def test_fifty_streams_and_one_that_never_reads_leave_the_server_quick_to_end(served, caplog):
    port, end = served
    streams = [sent(port, f"GET /{TOKEN}/0/events HTTP/1.1") for _ in range(51)]
    for stream in streams:
        stream.sendall(b"\r\n")
    for stream in streams[1:]:
        assert b"200 OK" in stream.recv(100)
    page = sent(port, f"GET /{TOKEN}/0/ HTTP/1.1")
    page.sendall(b"Connection: close\r\n\r\n")
    assert b'data-trial="trial-0"' in answered(page)
    with caplog.at_level(logging.ERROR):
        assert end()
    assert not caplog.records
    assert all(answered(stream).endswith(b"0\r\n\r\n") for stream in streams[1:])


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/0/..%2f..%2fetc/passwd"])
def test_a_path_leads_to_no_file(served, path):
    connection = sent(served[0], f"GET /{TOKEN}{path} HTTP/1.1")
    connection.sendall(b"Connection: close\r\n\r\n")
    found = answered(connection)
    assert b"404 Not Found" in found
    assert b"root:" not in found


def test_connections_without_the_token_do_not_block_those_with_it(served, monkeypatch):
    monkeypatch.setattr("haltune.report.watch.serve._MOST_STRANGERS", 20)
    stream = sent(served[0], f"GET /{TOKEN}/0/events HTTP/1.1")
    stream.sendall(b"\r\n")
    assert b"200 OK" in stream.recv(100)
    held = [socket.create_connection(("127.0.0.1", served[0]), timeout=60) for _ in range(60)]
    page = sent(served[0], f"GET /{TOKEN}/ HTTP/1.1")
    page.sendall(b"Connection: close\r\n\r\n")
    assert b"200 OK" in answered(page)
    for connection in held[:40]:  # the oldest are cut
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    stream.setblocking(False)
    with pytest.raises(BlockingIOError):  # open
        while stream.recv(1 << 16):
            pass
    for connection in (*held, stream):
        connection.close()


@pytest.mark.parametrize("head", ["Connection: Upgrade\r\nUpgrade: websocket", "a line that is none"])
def test_what_a_stranger_sends_writes_no_line_on_the_terminal(served, caplog, head):
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    connection = sent(served[0], f"GET /0/ HTTP/1.1\r\n{head}")
    connection.sendall(b"Connection: close\r\n\r\n")
    answered(connection)
    logger.removeHandler(caplog.handler)
    assert caplog.records == []


def cut(connection: socket.socket) -> bool:
    """Return whether the server closes it."""
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


# -- stores that go away ---------------------------------------------------------------------------


def got(board: Board, path: str) -> tuple[int, str]:
    """Without a network."""
    messages = []

    async def send(message):
        messages.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": path, "root_path": "",
        "query_string": b"", "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    asyncio.run(application(board, TOKEN)(scope, None, send))
    return messages[0]["status"], b"".join(m.get("body", b"") for m in messages[1:]).decode()


def test_the_list_and_the_pages_stay_while_a_store_is_away(board, monkeypatch):
    assert "acc 0.5" in got(board, f"/{TOKEN}/")[1]
    before = got(board, f"/{TOKEN}/0/")[1]

    def away(*args, **kwargs):
        raise StoreAway("the server of the database is away")

    monkeypatch.setattr(board, "find", away)
    monkeypatch.setattr(type(board.locations[0].store), "read", away)
    board.study(0)._rest = 0.0
    status, text = got(board, f"/{TOKEN}/")
    assert status == 200
    assert "acc 0.5" in text
    assert "the server of the database is away" in text
    assert got(board, f"/{TOKEN}/0/") == (200, before)
    assert got(board, f"/{TOKEN}/7/")[0] == 503
