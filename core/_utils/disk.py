"""Files and folders: flush, measure and delete them, but never through a symbolic link.

A folder of checkpoints may be shared. Links, pipes and other files of other users are not followed or deleted, and
cause no errors.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from haltune.errors import InvalidInput

StrPath = str | os.PathLike[str]


def is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def listed(folder: Path) -> list[Path]:
    """Return the entries of a folder; none if it is missing or unreadable."""
    with suppress(OSError):
        return [folder / name for name in os.listdir(folder)]
    return []


def is_gone(path: Path) -> bool:
    """Return whether the path certainly does not exist; False if the disk fails. A shared disk may be late."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        listed(path.parent)  # makes a network disk look again if it cached that the file is missing
        return not os.path.exists(path)
    except (OSError, ValueError):
        return False
    return False


def size(path: Path) -> int:
    total = 0
    for part in _below(path):
        with suppress(OSError):  # another worker deleted it
            found = part.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each file below a folder, by its relative path. Raises OSError."""
    found = {part.relative_to(folder).as_posix(): part.lstat() for part in _below(folder)}
    return {name: status.st_size for name, status in sorted(found.items()) if stat.S_ISREG(status.st_mode)}


def length(path: Path) -> int | None:
    """Return the bytes of a file, looked up again on a network disk; None if it cannot be opened."""
    with suppress(OSError), path.open("rb") as file:
        return os.fstat(file.fileno()).st_size
    return None


def content(path: Path) -> str:
    """Return the bytes of a file and a digest of 64 parts of it, such as "1024-9f3b61c4"; "" if it cannot be read.

    The weights of another epoch differ in nearly every part.
    """
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file:
                size, digest = os.fstat(file.fileno()).st_size, hashlib.blake2b(digest_size=8)
                for part in range(64):
                    file.seek(part * size // 64)
                    digest.update(file.read(4096))
            return f"{size}-{digest.hexdigest()}"
    return ""


def clock_ahead(folder: Path) -> float:
    """Return the seconds that the clock of a folder's files is ahead of ours, as a server's may be."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        ahead = os.fstat(file.fileno()).st_mtime - time.time()
        return ahead if abs(ahead) > 0.1 else 0.0  # times of files are rounded to ticks
    return 0.0


def lock(file: int | IO[bytes]) -> bool:
    """Lock an open file until it is closed, on a POSIX system; return False if another process has it."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network disks have no locks
        pass
    return True


def force(path: Path) -> None:
    """Flush a file, or a folder with its contents, to the disk. Raises OSError."""
    for part in _below(path):
        force_folder(part) if is_folder(part) else _fsync(part)


def force_folder(path: Path) -> None:
    """Flush the names in a folder to the disk, if the system supports it. Raises OSError."""
    try:
        if os.name != "nt":
            _fsync(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM):  # some network disks
            raise


def discard(path: Path) -> None:
    """Delete a checkpoint, a file or a folder, with the files that belong to it; ignore errors."""
    for part in (*siblings(path), path):
        delete(part)


def delete(path: Path) -> None:
    """Delete a file, a link or a folder; ignore errors."""
    with suppress(OSError):
        if is_folder(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def siblings(path: Path) -> list[Path]:
    """Return the files that belong to a checkpoint: NAME.anything."""
    return [p for p in path.parent.glob("*") if p.name.startswith(path.name + ".")]


def _below(path: Path) -> Iterator[Path]:
    for part in listed(path) if is_folder(path) else ():
        yield from _below(part)
    yield path


def _fsync(path: Path) -> None:
    if os.path.islink(path) or not (os.path.isfile(path) or os.path.isdir(path)):  # a link or a pipe has no contents
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(text: str, path: str | os.PathLike[str]) -> Path:
    """Write text to a file in one step and return its full path. Characters without an encoding are escaped.

    A device or a pipe, such as /dev/stdout, is not replaced. Raises InvalidInput if the file cannot be written.
    """
    target = Path(path).absolute()
    need_folder(target)
    folder = os.path.realpath(target.parent)
    special = folder == "/dev" or folder.startswith("/proc/")  # where stdout is a link
    replaces = not special and (os.path.isfile(target) or not os.path.exists(target))
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp") if replaces else target
    try:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        if replaces:
            os.replace(draft, target)
    except OSError as error:
        raise InvalidInput(
            f"cannot write {target}: {error.strerror or error}. Use a file in a folder that you may write to"
        ) from error
    finally:
        if replaces:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
    return target


def need_folder(target: Path) -> None:
    """Raise InvalidInput if a file's folder does not exist. Write permission is not checked."""
    if is_gone(target.parent):
        raise InvalidInput(f"cannot write {target.name}: the folder {target.parent} does not exist. Create it first")
