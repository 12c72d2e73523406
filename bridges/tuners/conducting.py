"""What stands in another tuner's program for a conductor: it opens one when it is first asked, and pickles with it."""

from __future__ import annotations

import os
from typing import Any

from haltune.study import Study

from .conductor import Conductor
from .kept import KeptState, conductor_of, read_state, state_of, write_state


class Conducting:
    """Base of the bridges' searches and schedulers. A pickle, as other tuners make of them, holds JSON of the study."""

    _conductor: Conductor | None = None
    _saved: KeptState | None = None  # what a copy, or one that was restored, goes on from
    _store: str | os.PathLike[str] | None = None

    def _opened(self) -> Study:
        """The study, made or opened in its store."""
        raise NotImplementedError

    def _begun(self) -> Conductor:
        return Conductor(self._opened())

    def _loading(self) -> dict[str, Any]:
        """Further arguments of `conductor_of`."""
        return {}

    @property
    def conductor(self) -> Conductor:
        """The study with what the other tuner calls its trials. Raises InvalidInput before there can be a study."""
        if self._conductor is None and self._saved is not None:
            self._conductor = conductor_of(self._saved, self._store, **self._loading())
            self._saved = None
        if self._conductor is None:
            self._conductor = self._begun()
        return self._conductor

    @property
    def study(self) -> Study:
        """The study that decides: its trials, its verdicts. Raises InvalidInput before there is one."""
        return self.conductor.study

    @property
    def reasons(self) -> dict[str, str]:
        """Why trials were stopped, by the other tuner's names for them."""
        return {} if self._conductor is None and self._saved is None else dict(self.conductor.reasons)

    def _write(self, path: str | os.PathLike[str]) -> None:
        write_state(self._kept(), path)

    def _read(self, path: str | os.PathLike[str]) -> None:
        self._conductor, self._saved = None, read_state(path)

    def _kept(self) -> KeptState:
        return (
            self._saved if self._conductor is None and self._saved is not None else state_of(self._conductor)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_conductor": None, "_saved": self._kept()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
