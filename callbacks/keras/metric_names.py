"""The names of a model's metrics, alike in every trial.

Keras calls a metric without a name after its class: "auc" for the first keras.metrics.AUC() that a process makes, then
"auc_1", "auc_2". So the second trial's model logs "val_auc_1" where the first logged "val_auc". Here the metrics of a
model are numbered by themselves, as in a process that makes no other model. A name that the user chose stays.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from typing import Any

from haltune.errors import InvalidInput

_VALIDATION = "val_"


class MetricNames:
    """The names in the logs of one trial.

    wanted: the names that the study reads. recorded: of a model that was loaded, the names that the trial has recorded
    so far; None: this process built the model.
    """

    def __init__(self, wanted: Collection[str], recorded: Collection[str] | None) -> None:
        self._wanted, self._recorded = wanted, recorded

    def plain(self, model: Any, logs: Mapping[str, Any]) -> dict[str, Any]:
        """The logs of an epoch under names that are alike in every trial.

        Raises InvalidInput where a wanted name may be either of two metrics.
        """
        metrics = list(_metrics(model))
        renamed = self._renamed(metrics)
        for name in self._wanted:
            bare = name.removeprefix(_VALIDATION)
            either = [m for key, m in metrics if bare in (key, renamed.get(key))]
            if len(either) > 1 and not self._has(renamed.values()):
                raise InvalidInput(
                    f"{name!r} may be either of {len(either)} metrics of this model. Keras numbers metrics without a "
                    f"name. Give each metric a name of its own: {type(either[0]).__name__}(name='my_{bare}')"
                )
        found = {}
        for key, value in logs.items():
            bare = key.removeprefix(_VALIDATION)
            plain = key.removesuffix(bare) + renamed.get(bare, bare)
            found[key if key in self._wanted and plain not in self._wanted else plain] = value
        return found

    def _renamed(self, metrics: list[tuple[str, Any]]) -> dict[str, str]:
        """Name in the logs -> the same with the number that the metric has within the model."""
        numbered = {m.name: found for _, m in metrics if (found := _numbered(m)) is not None}
        own = {m.name for _, m in metrics if m.name in numbered and self._is_own(m, *numbered[m.name])}
        plain: dict[str, str] = {}
        for stem in {stem for stem, _ in numbered.values()}:
            free = (n for n in (f"{stem}_{i}" if i else stem for i in count()) if n not in own)
            of_it = sorted((n, name) for name, (s, n) in numbered.items() if s == stem and name not in own)
            plain |= {name: next(free) for _, name in of_it}
        renamed = {key: key.removesuffix(m.name) + plain[m.name] for key, m in metrics if m.name in plain}
        as_they_are = self._has(renamed) and not self._has(renamed.values())
        return {} if as_they_are else renamed

    def _is_own(self, metric: Any, stem: str, number: int) -> bool:
        """True for a user's name with a number: Keras has not counted so far, or made it for another metric."""
        if number == 0 or self._recorded is not None:
            return False
        counted, first = _session()
        return first.setdefault(metric.name, weakref.ref(metric))() is not metric or number >= counted.get(
            stem, 0
        )

    def _has(self, names: Collection[str]) -> bool:
        """Whether the trial recorded all of these before its model was loaded."""
        recorded = self._recorded
        return bool(recorded) and all(n in recorded or _VALIDATION + n in recorded for n in names)  # type: ignore[operator]


def _metrics(model: Any) -> Iterator[tuple[str, Any]]:
    """The metrics of a model with their names in its logs."""
    for metric in model.metrics:
        lists = [*getattr(metric, "_flat_metrics", ()), *getattr(metric, "_flat_weighted_metrics", ())]
        if not lists:
            yield metric.name, metric
        for one in filter(None, lists):  # of compile(metrics=, weighted_metrics=), a list for each output
            prefix = f"{one.output_name}_" if one.output_name else ""
            yield from ((prefix + m.name, m) for m in one.metrics)


def _numbered(metric: Any) -> tuple[str, int] | None:
    """The name that Keras makes of a metric's class, and the number behind it; None for another name."""
    from keras.src.utils.naming import to_snake_case

    stem = to_snake_case(type(metric).__name__)
    found = re.fullmatch(rf"{re.escape(stem)}(?:_([1-9]\d*))?", metric.name)
    return found and (stem, int(found[1] or 0))


_last: list[Any] = [None, {}]  # see _session


def _session() -> tuple[Mapping[str, int], dict[str, weakref.ref[Any]]]:
    """Since Keras' session was cleared last: how many names it made of a class, and which metric had a name first."""
    from keras.src.backend.common import global_state

    counted = global_state.get_global_attribute("object_name_uids")
    if counted is not _last[0]:
        _last[:] = counted, {}
    return counted or {}, _last[1]
