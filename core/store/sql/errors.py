"""What the errors of a SQL database mean to a user, and what to do about them."""

from __future__ import annotations

from sqlalchemy.exc import StatementError

from haltune.errors import StoreAway, StoreError, StoreReadOnly

_BUSY = ("database is locked", "database table is locked", "already exists", "pg_type_typname_nsp_index")
_ADVICE = {
    'relation "haltune_': "a table of haltune's was dropped, or the database was made anew, while this program used "
    "it: bring back a backup of all its tables, or drop the others too and begin another study",
    "disk is full": "make room, then continue: nothing recorded is lost",
    "No space left": "make room on the server's disk, then continue: nothing recorded is lost",
    "disk I/O error": "is the disk full or gone? Nothing recorded is lost",
    "readonly": "haltune needs to write there; check the permissions of the file and its folder",
    "read-only": "haltune needs to write there; is the server a standby, or the user allowed to read only?",
    "permission denied": "haltune needs to create its tables and to write there",
    "no schema has been selected": "let the role's search_path name a schema that exists",
    "has no equivalent in encoding": "create the database with ENCODING 'UTF8', which has all characters",
    "unable to open": "does the folder exist, and may this user write there?",
    "not a database": "the file was written by something else; give the study a file of its own",
    "codec can't decode": "the file is damaged; bring back a copy of it (with its -wal file), or begin another",
    "malformed": "the file is damaged; bring back a copy of it (with its -wal file), or begin another",
    "statement timeout": "the server, or a setting of its user or database, allows a statement less time than it takes",
    "prepared statement": "a pooler gives each transaction another session. In pgbouncer, set pool_mode = session",
    '"checksum"': "let the owner of the tables open a study once with this version, which adds a column",
}
_READ_ONLY = ("readonly", "read-only")
_LOCKED = "another process keeps it locked; is the file on a network drive? SQLite needs a local one"
_LOCKS = ("database is locked", "database table is locked", "lock timeout")


def unopened(where: str, error: Exception) -> StoreError:
    """The error for an address that cannot be opened. where: the address, without its password where it has one."""
    return StoreError(
        f"cannot open {where}: {error}; write a URL such as 'sqlite:///search.db', and install the "
        "driver that it names"
    )


def is_busy(error: Exception) -> bool:
    """True for what another process in the way causes: the transaction may be tried again."""
    return any(sign in said(error) for sign in _BUSY)


def is_locked(error: Exception) -> bool:
    """True when another transaction is in the way."""
    return any(sign in said(error) for sign in _LOCKS)


def said(error: Exception) -> str:
    """What the database itself said."""
    text = str(error.orig if isinstance(error, StatementError) and error.orig else error)
    return text.partition("\nLINE ")[0].partition("\nCONTEXT: ")[
        0
    ]  # PostgreSQL shows haltune's statement there


def explained(url: str, error: Exception, away: bool, keeper: str | None) -> StoreError:
    """The error for a user: what the database said, and what to do.

    away: a server cannot be reached, or ended the connection. keeper: who keeps it locked, if anyone knows.
    """
    text = said(error).strip()
    if away:
        return StoreAway(f"{url}: {text}; does the server run, and can this machine reach it?")
    advice = [advice for sign, advice in _ADVICE.items() if sign in text]
    if is_locked(error):
        advice = [_LOCKED if keeper is None else f"{keeper} keeps it locked"]
    kind = StoreReadOnly if any(sign in text for sign in _READ_ONLY) else StoreError
    return kind(f"{url}: " + "; ".join([text, *advice[:1]]))
