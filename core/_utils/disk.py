"""Files and folders on the disk: forced there, measured and deleted, and never through a symbolic link.

A folder of checkpoints may be shared. What somebody puts there, links and pipes included, is neither followed
nor deleted, and makes nothing raise.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from haltune.errors import InvalidInput

StrPath = str | os.PathLike[str]


def make(folder: Path) -> None:
    """Make a folder, and those above it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)


def is_folder(path: Path) -> bool:
    """True for a folder itself, not for a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def listed(folder: Path) -> list[Path]:
    """What lies in a folder; nothing where it is gone or cannot be read."""
    with suppress(OSError):
        return [folder / name for name in os.listdir(folder)]
    return []


def is_gone(path: Path) -> bool:
    """True when nothing is there for sure: a disk that fails says nothing, and a shared one may be late."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        listed(path.parent)  # a network disk that remembers what was not there looks again
        return not os.path.exists(path)
    except (OSError, ValueError):
        return False
    return False


def size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder."""
    total = 0
    for part in _below(path):
        with suppress(OSError):  # another worker tidied up
            found = part.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def force(path: Path) -> None:
    """Force a file or a folder, with what is in it, to the disk. Raises OSError."""
    for part in _below(path):
        force_folder(part) if is_folder(part) else _fsync(part)


def force_folder(path: Path) -> None:
    """Force the names in a folder to the disk, where that can be done. Raises OSError."""
    try:
        if os.name != "nt":
            _fsync(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM):  # some network disks
            raise


def discard(path: Path) -> None:
    """Delete a checkpoint, a file or a folder, with what is beside it; what cannot be deleted is left."""
    for part in (*beside(path), path):
        delete(part)


def delete(path: Path) -> None:
    """Delete a file, a link or a folder; what cannot be deleted is left."""
    with suppress(OSError):
        if is_folder(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def beside(path: Path) -> list[Path]:
    """What belongs to a checkpoint: NAME.anything."""
    return [p for p in path.parent.glob("*") if p.name.startswith(path.name + ".")]


def _below(path: Path) -> Iterator[Path]:
    """A file; or a folder's contents, and then the folder."""
    for part in listed(path) if is_folder(path) else ():
        yield from _below(part)
    yield path


def _fsync(path: Path) -> None:
    if os.path.islink(path) or not (os.path.isfile(path) or os.path.isdir(path)):  # a link or a pipe holds nothing
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep(text: str, path: str | os.PathLike[str]) -> Path:
    """Write a text to a file, all at once; what no encoding holds is shown escaped. Returns its full path.

    Raises InvalidInput when it cannot be written there.
    """
    target = Path(path).absolute()
    need_folder(target)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        os.replace(draft, target)
    except OSError as error:
        raise InvalidInput(
            f"cannot write {target}: {error.strerror or error}; name a file in a folder that may be written to"
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


def need_folder(target: Path) -> None:
    """Raises InvalidInput when a file's folder is not there; whether it can be written to, whoever writes finds out."""
    if not os.path.isdir(target.parent) and is_gone(target.parent):
        raise InvalidInput(f"there is no folder {target.parent} to write {target.name} into: make it first")
