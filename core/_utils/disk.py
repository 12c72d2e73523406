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
_NO_FORCE = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM}  # of folders on some network disks


def make(folder: Path) -> None:
    """Make a folder, and those above it, so that a power cut takes none away. Raises OSError."""
    if folder.is_dir():
        return
    make(folder.parent)
    with suppress(FileExistsError):  # another worker was first
        folder.mkdir()
        _force(folder.parent)


def is_folder(path: Path) -> bool:
    """True for a folder itself, not for a link to one."""
    return _kind(path) == stat.S_IFDIR


def is_own(path: Path) -> bool:
    """True for a folder, and for a link to one that this user or the machine's administrator made."""
    with suppress(OSError, ValueError):
        linked = path.is_symlink() and hasattr(os, "getuid")
        return path.is_dir() and (not linked or path.lstat().st_uid in (0, os.getuid()))
    return False


def is_usable(folder: Path) -> bool:
    """True for a folder itself that this user can write into."""
    return is_folder(folder) and os.access(folder, os.W_OK | os.X_OK)


def unreadable(path: Path) -> str | None:
    """Why a file that is there, or may be, cannot be read by this user; None where it can, or nothing is there."""
    for folder in reversed(path.absolute().parents):
        if folder.is_dir() and not os.access(folder, os.X_OK):
            return f"this user may not enter the folder {folder}"
    return f"this user may not read {path}" if os.path.exists(path) and not os.access(path, os.R_OK) else None


def is_writable(path: Path) -> bool:
    """True for a file that this user may write to, and make others beside."""
    return os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK | os.X_OK)


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
        _force(part)


def force_folder(path: Path) -> None:
    """Force the names in a folder to the disk. Raises OSError."""
    _force(path)


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


def _force(path: Path) -> None:
    """fsync of a file, and of a folder where that can be done; a link or a pipe holds nothing."""
    kind = _kind(path)
    if kind not in (stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR and os.name == "nt"):
        return
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if kind == stat.S_IFREG or error.errno not in _NO_FORCE:
            raise


def _kind(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return stat.S_IFMT(path.lstat().st_mode)
    return None


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
