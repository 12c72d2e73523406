"""The studies that are watched: those of the stores that were named, found again as new ones begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from haltune.errors import HaltuneError
from haltune.log.fate import lead_of
from haltune.log.history import History
from haltune.study.reading import Following, follow_study

from .location import Location
from .watched import Watched

FindLocations = Callable[[], Sequence[Location]]


@dataclass
class Board:
    """Locations by number, which stay. The list reads each study; a page is made when it is opened."""

    find: FindLocations  # lists the studies there are now
    locations: list[Location] = field(default_factory=list)
    _open: dict[int, Watched] = field(default_factory=dict)
    _read: dict[int, Following] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def listed(self) -> list[Location]:
        """All studies, those that began since among them."""
        with self._lock:
            known = {(location.url, location.name) for location in self.locations}
            self.locations += [
                location for location in self.find() if (location.url, location.name) not in known
            ]
            return list(self.locations)

    def location(self, number: int) -> Location | None:
        """Where the study of a number is; None where there is none."""
        found = self.locations if number < len(self.locations) else self.listed()
        return found[number] if 0 <= number < len(found) else None

    def study(self, number: int) -> Watched | None:
        """The study of a number; None where there is none. Raises HaltuneError when it cannot be read."""
        if (location := self.location(number)) is None:
            return None
        with self._lock:
            if number not in self._open:
                self._open[number] = Watched(self._following(number, location))
            return self._open[number]

    def _following(self, number: int, location: Location) -> Following:
        """Open the study for reading, once. The caller holds the lock."""
        if number not in self._read:
            self._read[number] = follow_study(location.store, location.name, location.checkpoints)
        return self._read[number]

    def brief(self, number: int) -> tuple[str, str]:
        """(the best value, how it stands) of a study, in words."""
        if (location := self.location(number)) is None:
            return "", "it is gone"
        study = self._read.get(number)
        try:
            with self._lock:
                study, watched = self._following(number, location), self._open.get(number)
                if watched is None:
                    study.sync()
            if watched is not None:
                watched.look()
            return _best(study.history), study.outcome.reason
        except HaltuneError as error:
            return _best(study.history) if study else "", str(error)


def _best(history: History) -> str:
    if history.problem.further:
        return lead_of(history) or "no value yet"
    best = history.best()
    return "no value yet" if best is None else f"{history.problem.goal.metric} {best.value:.4g}"
