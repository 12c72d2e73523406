"""The callback for fastai's Learner.

In a resumed trial, the callback loads the checkpoint when the fit starts. It then replays the earlier epochs with their
metrics, without training them. So EarlyStoppingCallback, ReduceLROnPlateau and SaveModelCallback see these epochs again
(SaveModelCallback's file of the best weights must still exist). Other callbacks, and the loss scale of mixed precision,
start again. Always fit the full number of epochs. `fine_tune` is two fits, and haltune counts the epochs of both.

A checkpoint is a folder with two files: model.pth as fastai saves it (weights and optimizer), and progress.json with
the random state of the process and of the data loaders, the smoothed loss and the metrics of each epoch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haltune._utils.interruption import Interruption, caller
from haltune._utils.randomness import capture, damaged, restore, tupled
from haltune.errors import NotSupported
from haltune.ranks import torch_ranks

from .base import Reporting
from .reporter import missing, two_callbacks

_SUFFIX, _STATE, _PROGRESS = ".fastai", "model.pth", "progress.json"


class HaltuneCallback(Reporting):
    """Callback that reports the goal's metric after every epoch's validation, and ends the fit at a stop or a pause.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: The metric's name in fastai's table, "valid_loss" or "accuracy". Default: None, the goal's metric.
        verbose: Print a line for every report. Default: False.
        record: "all" columns of the table are stored with the report, or the "monitor" only. Default: "all".

    Raises:
        InvalidInput: If `trial` is not a trial, if the metric is not in the table, or if there are two
            HaltuneCallbacks.
        NotSupported: If the training is distributed.

    Example:
        ::

            import torch
            from fastai.data.core import DataLoaders
            from fastai.data.load import DataLoader
            from fastai.learner import Learner

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.fastai import HaltuneCallback
            from haltune.policies import RandomSearch

            rows = [(x, x.sum(0, keepdim=True)) for x in torch.randn(16, 3)]
            problem = Problem(Space({"lr": Float(0.01, 0.1)}), Minimize("valid_loss"), max_epochs=2)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    dls = DataLoaders(DataLoader(rows, bs=4, shuffle=True), DataLoader(rows, bs=4))
                    learn = Learner(dls, torch.nn.Linear(3, 1), torch.nn.functional.mse_loss)
                    learn.fit(trial.max_epochs, trial.config["lr"], cbs=HaltuneCallback(trial))
    """

    _homes = ("fastai.callback.core",)
    _install = "fastai"
    _hint = "Make a callback for each attempt, learn.fit(..., cbs=HaltuneCallback(trial))"
    _held = frozenset({"learn"})
    learn: Any  # set by fastai
    order = 90  # after fastai's trackers, which also end a fit in after_epoch

    def _setup(self) -> None:
        self._fits = self._trained = False  # a fit is running; it has trained an epoch
        self._before = 0  # epochs of the fits before this one
        self._records: list[list[float]] = []  # the table's columns for each epoch of all fits
        self._resumes = self.trial.checkpoint is not None and self.trial.ended is None  # load the checkpoint

    # the events, in the order in which fastai calls them

    def before_fit(self) -> None:
        learn = self.learn
        # learn.validate() and learn.lr_find() also start a fit, and a Learner does not say which (fastai/fastai#3607);
        # without this test, a validation would begin and end the trial's training
        self._fits = caller("fit", "fastai.learner") is not None and not hasattr(learn, "lr_finder")
        if not self._fits:
            return
        if sum(isinstance(other, HaltuneCallback) for other in learn.cbs) > 1:
            raise two_callbacks("cbs=[...]")
        if torch_ranks().size > 1:
            raise NotSupported("With fastai, haltune supports one process only. Train without distrib_ctx().")
        if self._resumes and not self._records:
            self._records = self._progress()["records"]
        self._reporter.begin(model=learn.model)
        self._reporter.defer(Interruption.within("fit", "fastai.learner"))

    def before_epoch(self) -> None:
        from fastai.callback.core import CancelEpochException, CancelFitException

        self._trained = False
        if not self._fits:
            return
        if self._reporter.verdict is not None:
            raise CancelFitException  # the verdict came in an earlier fit
        if self._resumes:
            self._saving(False)
            self.learn.recorder.log += self._records[self._epoch - 1]
            raise CancelEpochException

    def after_train(self) -> None:
        self._trained = self._fits
        self._reporter.clock.validating()

    def after_validate(self) -> None:
        if not self._trained:
            return
        self._reporter.clock.validated()
        recorder = self.learn.recorder
        metrics = dict(zip(recorder.metric_names[1:], recorder.log[1:], strict=False))
        if self.monitor not in metrics:
            raise missing(self.monitor, metrics, "in the first epoch", "Give Learner(..., metrics=...)")
        self._records[self._epoch - 1 :] = [list(metrics.values())]
        self._reporter.report(metrics[self.monitor], self._epoch, metrics)
        self._reporter.heed(self._epoch)

    def after_epoch(self) -> None:
        from fastai.callback.core import CancelFitException

        if self._fits and self._resumes and self._epoch == len(self._records):
            self._resumes = False
            self._saving(True)
            self._load()
            self._reporter.clock.restart()
        if not self._trained:
            return
        self._reporter.save_epoch(self._write, _SUFFIX)
        self._trained = False
        if self._reporter.over:
            raise CancelFitException

    def after_fit(self) -> None:
        if not self._fits:
            return
        if self._trained:
            self._reporter.ends_by_itself()  # a tracker ended it in its last epoch
        self._fits = False
        self._before += self.learn.epoch + 1
        self._reporter.end_of_fit(self._write, _SUFFIX)
        self._reporter.leave()

    @property
    def _epoch(self) -> int:
        return int(self._before + self.learn.epoch + 1)

    def _saving(self, saves: bool) -> None:
        """Disable SaveModelCallback in epochs that are replayed.

        It compares and saves in one method, and only the comparison is to be replayed. Without this, it would overwrite
        the file of its best weights with weights that are not trained.
        """
        for other in self.learn.cbs:
            if saves:
                vars(other).pop("_save", None)
            elif hasattr(other, "_save"):
                other._save = lambda name: None

    def _write(self, folder: Path) -> None:
        import torch

        learn, recorder = self.learn, self.learn.recorder
        folder.mkdir()
        state = {"model": learn.model.state_dict(), "opt": _plain(learn.opt.state_dict())}
        torch.save(state, folder / _STATE)
        loaders = [dl.rng.getstate() if hasattr(dl, "rng") else None for dl in learn.dls.loaders]
        progress = {
            "random": capture(),
            "loaders": loaders,
            "smooth": [recorder.smooth_loss.count, float(recorder.smooth_loss.val)],
            "records": self._records,
        }
        (folder / _PROGRESS).write_text(json.dumps(progress), encoding="utf-8")

    def _progress(self) -> dict[str, Any]:
        text = Path(self.trial.checkpoint or "", _PROGRESS).read_text(encoding="utf-8")
        try:
            found = json.loads(text)
            return {name: found[name] for name in ("random", "loaders", "smooth", "records")}
        except (ValueError, LookupError, TypeError) as error:
            raise damaged(error) from error

    def _load(self) -> None:
        import torch

        progress = self._progress()
        learn, smooth = self.learn, self.learn.recorder.smooth_loss
        path = Path(self.trial.checkpoint or "", _STATE)
        state = torch.load(path, map_location=next(learn.model.parameters()).device, weights_only=True)
        learn.model.load_state_dict(state["model"])
        learn.opt.load_state_dict(state["opt"])
        for loader, generator in zip(learn.dls.loaders, progress["loaders"], strict=True):
            if generator is not None:
                loader.rng = random.Random()
                loader.rng.setstate(tupled(generator))
        smooth.count, smooth.val = progress["smooth"][0], torch.tensor(progress["smooth"][1])
        restore(progress["random"])


def _plain(value: Any) -> Any:
    """Return the state as dicts, lists, tensors and numbers only, which load without pickle."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if hasattr(value, "detach"):
        return value.detach()
    if hasattr(value, "dtype"):
        return value.item()  # a NumPy number, from a schedule
    return [_plain(inner) for inner in value] if hasattr(value, "__iter__") and not isinstance(value, str) else value
