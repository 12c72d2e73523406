"""A PostgreSQL server of the tests' own, on loopback, in a temporary folder, gone with them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from haltune._utils.process import new_holder, surely_gone

USER = "haltune"
_FOLDER = "haltune-postgres-"
ADVICE = (
    "no PostgreSQL server here: install one (Debian: apt-get install postgresql), or say where its programs are, "
    "HALTUNE_POSTGRES=/usr/lib/postgresql/15/bin"
)
_OPTIONS = "-c max_connections=300 -c shared_buffers=64MB -c log_min_messages=warning"


def programs() -> Path | None:
    """The folder of initdb and pg_ctl: HALTUNE_POSTGRES, Debian's newest, or on the PATH."""
    folders = [Path(given)] if (given := os.environ.get("HALTUNE_POSTGRES")) else []
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
    if (found := shutil.which("pg_ctl")) is not None:
        folders.append(Path(found).resolve().parent)
    return next((f for f in folders if (f / "initdb").exists() and (f / "pg_ctl").exists()), None)


class Server:
    """A server that can be stopped and started again."""

    def __init__(self, programs: Path, folder: Path, flushes: bool) -> None:
        self._programs, self._folder, self._databases = programs, folder, 0
        self._options = f"{_OPTIONS} -c fsync={'on' if flushes else 'off'}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def make(self) -> None:
        """Its files."""
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self._folder, "postgres", "postgres")
        self._run("initdb", "-D", str(self._folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync",
                  "--locale=C")  # fmt: skip

    def start(self) -> None:
        """Begin to serve."""
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -c unix_socket_directories='' {self._options}"
        self._control("start", "-o", options, "-l", str(self._folder / "log"))

    def stop(self, how: str = "immediate") -> None:
        """End: immediate is what a crash is."""
        self._control("stop", "-m", how)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Within the block no process of the server runs: it accepts connections and data, and answers nothing."""
        import psycopg

        pids = [int((self._folder / "data" / "postmaster.pid").read_text().split()[0])]
        with psycopg.connect(self.url("postgres", driver=""), autocommit=True) as c:
            pids += [pid for (pid,) in c.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def database(self) -> str:
        """The URL of a new database."""
        import psycopg

        self._databases += 1
        name = f"test{self._databases}"
        with psycopg.connect(self.url("postgres", driver=""), autocommit=True) as c:
            c.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str, driver: str = "+psycopg") -> str:
        """Return the URL of a database."""
        return f"postgresql{driver}://{USER}@127.0.0.1:{self.port}/{database}"

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-t", "60", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments], cwd=self._folder, text=True, check=False,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL, stderr=subprocess.STDOUT,
            user="postgres" if os.getuid() == 0 else None, group="postgres" if os.getuid() == 0 else None,
            extra_groups=[] if os.getuid() == 0 else None,
        )  # fmt: skip
        if done.returncode:
            log = self._folder / "log"
            raise RuntimeError(f"{program} failed: {done.stdout or ''}{log.read_text() if log.exists() else ''}")


@contextmanager
def server(flushes: bool = False) -> Iterator[Server]:
    """A server that runs. Raises LookupError, with advice, where none can.

    flushes: to the disk. Not in tests: a server that is killed, not the machine, loses without it only what it
    had not handed to the system yet.
    """
    if find_spec("psycopg") is None:
        raise LookupError("psycopg is not installed: pip install 'psycopg[binary]'")
    found = programs()
    if found is None or (os.getuid() == 0 and not _known("postgres")):
        raise LookupError(ADVICE)
    _sweep(found)
    holder = new_holder().replace("/", ",")
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{holder}-"))
    made = Server(found, folder, flushes)
    try:
        made.make()
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(programs: Path) -> None:
    """End the servers of tests that were killed, and remove their folders."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*,*"):
        if surely_gone(folder.name.removeprefix(_FOLDER).rpartition("-")[0].replace(",", "/")):
            with suppress(RuntimeError):  # it does not run
                Server(programs, folder, flushes=False).stop()
            shutil.rmtree(folder, ignore_errors=True)


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def skip_or_fail(why: str) -> None:
    """Skip a test that needs a server; fail it where one is promised (HALTUNE_NEEDS_POSTGRES=1)."""
    if os.environ.get("HALTUNE_NEEDS_POSTGRES") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server for all tests of a process. Use its `database()`."""
    try:
        running = server()
        made = running.__enter__()
    except LookupError as error:
        skip_or_fail(str(error))
        raise
    try:
        yield made
    finally:
        running.__exit__(None, None, None)


@pytest.fixture
def postgres_url(postgres_server: Server) -> str:
    """The URL of an empty database."""
    return postgres_server.database()
