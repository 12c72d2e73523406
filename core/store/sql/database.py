"""A SQL database as a store uses it: short transactions, tried again while another is in the way.

No wait is for ever, and Ctrl-C ends each: SQLite is asked again and again by Python, for it hears nothing while it
waits by itself, and a server ends what takes too long. Who is in the way is named.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from haltune._utils import retry
from haltune._utils.signals import undisturbed

from .errors import explained, is_busy, is_locked, unopened

T = TypeVar("T")
BUSY_TIMEOUT = 60.0  # seconds that a transaction waits for another's
_CONNECTS = 3  # times that a connection may be lost before a server is taken to be away
_PAUSE = 0.05  # seconds between tries, at most
_SECRET = re.compile(r"([^?&]*(?:password|passwd|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)
_SILENCE = 5.0  # seconds of waiting before a word is said of it

_log = logging.getLogger("haltune")


class Database(ABC):
    """Transactions in one database, for many threads and processes at once.

    Raises StoreError when the address is none.
    """

    def __init__(self, address: str, reading: bool = False) -> None:
        self.outages = 0  # connections that a server has ended: what was read before may be lost
        self._pid, self._address, self._reading = os.getpid(), address, reading
        self.url = shown(address)
        try:
            self.engine = self._connecting()
        except (SQLAlchemyError, ImportError) as error:
            raise unopened(self.url, error) from error

    def run(self, work: Callable[[sa.Connection], T], write: bool = True) -> T:
        """`work` in one transaction, tried again while the database is busy, for BUSY_TIMEOUT seconds.

        Raises StoreError, which names who keeps it locked where that can be known; StoreAway for a server out of reach.
        """
        self._at_home()
        began, lost, told = time.monotonic(), 0, False
        while True:
            try:
                return self._transact(work, write)
            except (SQLAlchemyError, OSError, UnicodeError) as error:  # UnicodeError: a damaged file's text
                if isinstance(error, OSError) and error.errno is None:
                    raise  # the user's own, from a handler of signals
                away, waited = self._is_away(error), time.monotonic() - began
                self.outages += away
                lost += away
                # a server that was started anew ends connections
                again = self._is_busy(error) or (away and lost < _CONNECTS and retry.left() > 0.0)
                if not again or waited >= BUSY_TIMEOUT:
                    keeper = self._keeper() if is_locked(error) else None
                    raise explained(self.url, error, away, keeper) from error
                if waited > _SILENCE and not told:
                    told = True
                    _log.warning("waiting: %s", explained(self.url, error, away, self._keeper()))
            with undisturbed.heard:
                time.sleep(random.uniform(0.0, _PAUSE))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _at_home(self) -> None:
        """Before a transaction: connections do not survive a fork, and another thread may have held the pool."""
        if os.getpid() != self._pid:
            self.engine = self._connecting()
            self._pid = os.getpid()

    # -- what each kind does in its own way ---------------------------------------------------

    @abstractmethod
    def _connecting(self) -> sa.Engine:
        """An engine of this process's own."""

    @abstractmethod
    def _transact(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        """`work` with a connection in one transaction, committed at its end. Left by Ctrl-C, it leaves nothing held."""

    @abstractmethod
    def _keeper(self) -> str | None:
        """Who keeps the database locked, in words; None where nobody knows."""

    def _is_busy(self, error: Exception) -> bool:
        """True for what another process in the way causes: the transaction may be tried again."""
        return is_busy(error)

    def _is_away(self, error: Exception) -> bool:
        """True when a server cannot be reached, or ended the connection."""
        return False


def database_kind(address: str) -> str:
    """Which kind of database a URL names: "sqlite", "postgresql". Raises StoreError for what is no URL."""
    try:
        return sa.engine.make_url(address).get_backend_name()
    except (SQLAlchemyError, ValueError) as error:
        raise unopened(shown(address), error) from error


def shown(address: str) -> str:
    """The URL for people: without its passwords and other secrets, wherever they stand."""
    try:
        parsed = sa.engine.make_url(address)
    except (SQLAlchemyError, ValueError):  # it is none
        return re.sub(r"(://[^:/?#]*:).*(?=@)", r"\1***", _SECRET.sub(r"\1***", address), flags=re.DOTALL)
    query = {name: "***" if _SECRET.match(f"{name}=") else value for name, value in parsed.query.items()}
    if parsed.password is None and query == parsed.query:
        return address
    return parsed.set(query=query).render_as_string(hide_password=True).replace("%2A%2A%2A", "***")
