"""A store of your own, without SQL: one file of JSON lines on a local disk, which several processes share.

python examples/11_own_store.py      The next call continues the search in jsonl_store.jsonl.

Each line is a change of the store: a call and its arguments. What the file means is what a store in memory holds after
the calls. A process reads the lines of the others before each call, under a lock of the file.
"""

import fcntl
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from haltune import Float, Study
from haltune.log.events import from_json, to_json
from haltune.store import Lease, MemoryStore, Release


class JsonLinesStore:
    """Event log in a file of JSON lines. `haltune.store.Store` says what each method must do."""

    outages = 0

    def __init__(self, path):
        self._path = Path(path).absolute()
        self.url = f"jsonl://{self._path}"
        self.folder: Path | None = self._path.with_suffix(".checkpoints")
        self._forget()

    def __reduce__(self):  # for worker processes
        return JsonLinesStore, (self._path,)

    def address(self):
        return self.url

    def now(self):
        return time.time()

    def _forget(self):
        self._memory, self._read = MemoryStore(), 0

    def _locked(self, change, name=None, *, keep, **given):
        """Call a method of the store in memory, after all lines of the file; keep: whether the call changes it."""
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # a process was killed while it wrote: that call has not happened
                    file.truncate(self._read)
                    break
                self._read += len(line)
                self._apply(json.loads(line))
            try:
                found = getattr(self._memory, change)(*([] if name is None else [name]), **given)  # or a Conflict
                if keep and found is not False:
                    call = {"do": change, "name": name} | {key: _plain(value) for key, value in given.items()}
                    file.seek(0, os.SEEK_END)
                    file.write(json.dumps(call).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                    self._read = file.tell()
                return list(found) if change == "read" else found
            except (OSError, KeyboardInterrupt):  # a full disk, Ctrl-C: the file decides what counts
                self._forget()
                raise

    def _apply(self, line):
        given = {key: _object(value) for key, value in line.items() if key not in ("do", "name")}
        getattr(self._memory, line["do"])(line["name"], **given)

    def names(self):
        return self._locked("names", keep=False)

    def create(self, name, first):
        return self._locked("create", name, first=first, keep=True)

    def replace(self, name, first, seen):
        return self._locked("replace", name, first=first, seen=seen, keep=True)

    def read(self, name, start=0, stop=None):
        return iter(self._locked("read", name, start=start, stop=stop, keep=False))

    def append(self, name, events, *, seen, about, lease=None):
        return self._locked("append", name, events=list(events), seen=seen, about=about, lease=lease, keep=True)

    def leases(self, name):
        return self._locked("leases", name, keep=False)

    def claimed(self, name):
        return self._locked("claimed", name, keep=False)

    def claim(self, name, claim, instead_of):
        return self._locked("claim", name, claim=claim, instead_of=instead_of, keep=True)

    def renew(self, name, lease):
        self._locked("renew", name, lease=lease, keep=True)


def _plain(value):
    """Return an argument as JSON has it."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Lease | Release):
        return {"is": type(value).__name__, **asdict(value)}
    return value if value is None or isinstance(value, int) else {"is": "event", **to_json(value)}


def _object(value):
    """Return the argument that `_plain` has written."""
    if isinstance(value, list):
        return [_object(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.pop("is")
    return from_json(value) if kind == "event" else {"Lease": Lease, "Release": Release}[kind](**value)


def train(trial):
    for epoch in trial.epochs():
        if trial.report(1 - abs(trial.config["lr"] - 0.1) - 0.5 / epoch).stops:
            break


if __name__ == "__main__":
    trials = int((sys.argv[1:] or ["12"])[0])
    store = JsonLinesStore("jsonl_store.jsonl")
    study = Study({"lr": Float(1e-3, 1.0, log=True)}, "val_acc", store, max_epochs=9, budget=f"{trials} trials", seed=0)
    study.optimize(train, workers=2)
    print(study.best)
