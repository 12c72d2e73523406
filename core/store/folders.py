"""Which folder holds a study's checkpoints: one of its own, in whatever folder it shares.

    digits.checkpoints/study-5f0c9a31b2d4/trial-7/...      beside a SQLite file
    haltune.checkpoints/NAME-IDENTITY/...                  here, for a store on a server
    FOLDER/NAME-IDENTITY/...                               in Study(checkpoints=FOLDER)

The identity is drawn when a study is made, and its log keeps it: two studies never meet, whatever they and their
stores are called, and the log and the folder may move. Studies made before there were identities go on in the
folder that they had, marked as theirs by the first that finds its checkpoints there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from haltune._utils import disk
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.events import to_json

from .base import Store

_MARK = ".haltune-study"  # in a folder from before: whose it is
_LONGEST_NAME = 60  # characters of a name


def own_folder(
    store: Store,
    name: str,
    created: ev.Created,
    shared: str | os.PathLike[str] | None = None,
    mark: bool = True,
) -> Path:
    """The folder of one study's checkpoints, which need not exist.

    created: its first event. shared: the folder given, or the study's own one. mark: False for who only reads.
    """
    if shared is not None and (not isinstance(shared, str | os.PathLike) or "\0" in str(shared)):
        raise InvalidInput(f"checkpoints={shared!r}: a folder's path, without the character 0")
    base = default_folder(store) if shared is None else Path(shared).absolute()
    there = next(path for path in (base, *base.parents) if os.path.lexists(path))
    if shared is not None and not there.is_dir():
        raise InvalidInput(f"checkpoints={str(shared)!r}: {there} is a file, not a folder; name a folder")
    identity = created.id if re.fullmatch("[0-9a-f]{1,64}", created.id) else _derived(name, created)
    own = f"{quote(name, safe=' ', errors='replace')[:_LONGEST_NAME]}-{identity}"
    if base.name == own:
        return base
    if not created.id and not (base / own).is_dir():
        before = base / quote(name, safe=" ", errors="replace") if shared is None else base
        if _goes_on_in(before, store, name, identity, mark):
            return before
    return base / own


def default_folder(store: Store) -> Path:
    """Where the folders of a store's studies lie: beside a SQLite file, FILE.checkpoints; else here.

    With a store in memory, a folder as short-lived.
    """
    return (store.folder or Path("haltune.checkpoints")).absolute()


def _derived(name: str, created: ev.Created) -> str:
    """The identity of a study from before: nothing but its log decides it."""
    text = json.dumps([name, to_json(created)], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _goes_on_in(folder: Path, store: Store, name: str, identity: str, mark: bool) -> bool:
    """True for a folder that is marked as this study's, or has its checkpoints and nobody's mark."""
    if (marked := _mark(folder)) is not None:
        return marked == identity
    if not _holds_checkpoints(folder, store, name):
        return False
    if not mark:
        return True
    draft = folder / f"{_MARK}-{secrets.token_hex(4)}"
    try:
        draft.write_text(identity)
        os.link(draft, folder / _MARK)  # whole, and once
    except FileExistsError:
        pass
    except OSError:  # a disk without links, or one that cannot be written to
        return True
    finally:
        with suppress(OSError):
            draft.unlink()
    return _mark(folder) == identity


def _mark(folder: Path) -> str | None:
    try:
        return (folder / _MARK).read_text()
    except (OSError, ValueError):
        return None


def _holds_checkpoints(folder: Path, store: Store, name: str) -> bool:
    if not any(path.name.startswith("trial-") for path in disk.listed(folder)):
        return False
    paths = (event.path for event in store.read(name) if isinstance(event, ev.Checkpointed))
    return any(not os.path.isabs(path) and os.path.exists(folder / path) for path in paths)
