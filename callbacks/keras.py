"""The callback for Keras 3, on any of its backends.

    from haltune.callbacks.keras import HaltuneCallback

    with trial:
        model.fit(..., epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)])

It reports after every epoch in which the metric was measured. After an exception Keras
calls no callback, so keep the fit inside `with trial:`, which records it. No hook works
on batches: one would switch JAX's asynchronous dispatch off. Importing this module
imports no framework, so KERAS_BACKEND may be set later.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from haltune.errors import NotSupported

from .advice import missing
from .handle import Trial
from .portable import Portable
from .reporter import Reporter

if TYPE_CHECKING:
    from keras.callbacks import Callback as _Base
else:
    _Base = object


class HaltuneCallback(Portable, _Base):  # type: ignore[misc]
    """Reports the goal's metric to `trial` and stops the fit when the policy says so.

    `monitor`: the name of the metric in Keras' logs, if it is not the goal's.
    `verbose`: print a line for every report.

    Raises InvalidInput when `trial` is not a trial and when the metric is a vector or was never
    logged; NotSupported for several processes or replicas and for a verdict to pause.
    """

    _homes = ("keras.callbacks",)
    _install = 'pip install "haltune[keras]"'
    _held = frozenset({"_model", "_model_ref"})

    def __init__(self, trial: Trial, monitor: str | None = None, verbose: bool = False) -> None:
        super().__init__()
        hint = "Call model.fit(..., initial_epoch=int(trial.epoch)) on the model of trial.checkpoint"
        self._reporter = Reporter(trial, monitor, verbose, resume_hint=hint)
        self._last_logs: list[str] | None = None  # the names in the last epoch's logs
        self._start()

    @property
    def trial(self) -> Trial:
        """The trial it reports to."""
        return self._reporter.trial

    @property
    def monitor(self) -> str:
        """The name of the metric it reports."""
        return self._reporter.metric

    # Keras gives every callback its model; held weakly, as no hook lets us drop it after an exception.

    def set_model(self, model: Any) -> None:
        self._model_ref = weakref.ref(model)

    @property
    def model(self) -> Any:
        """The model in training; None outside a fit."""
        ref = self.__dict__.get("_model_ref")
        return ref() if ref else None

    # the hooks, in the order Keras calls them

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        _refuse_many_processes(self.model)
        self._start()
        self._reporter.begin((self.params or {}).get("epochs"))
        self.model.stop_training |= self._reporter.verdict is not None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._in_epoch, self._validated = True, False

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._reporter.clock.validating()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._reporter.clock.validated()
        self._validated = self._in_epoch

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._in_epoch = False
        self._last_logs = list(logs or {})
        if self.monitor in (logs or {}):
            self._reporter.report((logs or {})[self.monitor], epoch + 1)
        else:
            self._wait_for_validation()
        self.model.stop_training |= self._reporter.stopping

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._forget()
        if self._last_logs is not None and self._reporter.reports == 0:
            raise self._missing("in this fit")
        self._reporter.end_of_fit()

    def _start(self) -> None:
        self._in_epoch = False
        self._validated = False
        self._last_logs = None

    def _wait_for_validation(self) -> None:
        """With validation_freq > 1 val_ names are absent in between; other absences are misspellings."""
        if self._reporter.reports == 0 and (self._validated or not self.monitor.startswith("val_")):
            raise self._missing("in the first epoch that had it to log")

    def _missing(self, when: str) -> Exception:
        unvalidated = self.monitor.startswith("val_") and not any(
            n.startswith("val_") for n in self._last_logs or ()
        )
        how = "Give model.fit validation data" if unvalidated else "Give it to model.compile(metrics=[...])"
        return missing(self.monitor, self._last_logs or (), when, how)


def _refuse_many_processes(model: Any) -> None:
    """Raises NotSupported: each process would report, and stop, on its own."""
    strategy = getattr(model, "distribute_strategy", None)
    found = {
        f"TF_CONFIG with {_workers_in_tf_config()} workers": _workers_in_tf_config(),
        f"the strategy {type(strategy).__name__}": getattr(strategy, "num_replicas_in_sync", 1),
        "torch.distributed": _torch_world(),
    }
    for what, count in found.items():
        if count > 1:
            raise NotSupported(
                f"this fit has several processes or replicas ({what}); haltune cannot report from them yet. "
                "Train on one device, without a distribution strategy"
            )


def _workers_in_tf_config() -> int:
    """How many tasks train, by the environment variable TF_CONFIG; 1 when it is absent or unreadable."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return max(1, sum(len(cluster.get(job, ())) for job in ("chief", "worker", "master")))
    except (ValueError, AttributeError, TypeError):
        return 1


def _torch_world() -> int:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())
