"""The callback for fastai's Learner.

In a resumed trial, the callback loads the checkpoint when the fit starts. It then replays the earlier epochs with their
metrics, without training them. So EarlyStoppingCallback, ReduceLROnPlateau and SaveModelCallback see these again.
A training may have several fits of one model, as `fine_tune` has; haltune counts the epochs of all. A fit of another
model starts the curve again.

A checkpoint is a folder:

- model.pth, as fastai saves it: weights and optimizer
- the file of SaveModelCallback, and gradients that wait for their update
- progress.json: the metrics of each epoch, the random state, the order of the texts of a language model, trainable
  flags, the loss scale, and plain data of callbacks

If a callback changes anything else, such as an average of the weights, a pause is declined. If other weights were
evaluated, those are kept.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from haltune._utils.generators import damaged, set_states, states_of, to_put_back, tupled
from haltune._utils.interruption import Interruption, caller, variables
from haltune._utils.own_generators import generators_in, of_owners
from haltune._utils.randomness import capture, restore
from haltune.display import plural
from haltune.errors import InvalidInput, NotSupported
from haltune.ranks import torch_ranks

from . import carried, tensors
from .base import Reporting
from .changes import (
    RESHAPED,
    Attributes,
    Replaced,
    differences,
    extras,
    fingerprint,
    left_out,
    of_modules,
    own_modules,
    own_parts,
    set_extras,
    warn_of_failed,
)
from .reporter import missing, two_callbacks

_SUFFIX, _STATE, _GRADIENTS, _PROGRESS = ".fastai", "model.pth", "gradients.pth", "progress.json"
_PARTS = [
    "random", "loaders", "smooth", "records", "model", "modules", "frozen", "gradients", "callbacks", "data", "scaler",
    "schedules", "lengths", "batches", "orders",
]  # fmt: skip
_DEPTH = 7  # of the data: a loader, its data set, lists of those, pipelines, lists of transforms
_METRICS = "Give Learner(..., metrics=...)"


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
        self._around = False, False  # both of the outer fit, while a callback validates in it
        self._course = self._new_course()
        self._weights = ""  # fingerprint of the weights after the last epoch
        self._evaluated: dict[str, Any] | None = None  # the weights of its validation, if they are others
        self._shown = ""  # fingerprint of the weights of its validation
        self._updates = 0  # of the present fit
        self._courses()  # notes the checkpoint of this attempt, which a pause replaces

    # the events, in the order in which fastai calls them

    def before_fit(self) -> None:
        learn = self.learn
        # learn.validate() and learn.lr_find() also start a fit, and a Learner does not show which (fastai/fastai#3607);
        # without this test, a validation would start and end the trial's training, also one within a fit
        fits = caller("fit", "fastai.learner") is not None
        validates = caller("__enter__", "fastai.learner") is not None
        self._around = (self._fits, self._trained) if fits and validates else (False, False)
        self._fits, self._trained = fits and not (validates or hasattr(learn, "lr_finder")), False
        if not self._fits:
            return
        if sum(isinstance(other, HaltuneCallback) for other in learn.cbs) > 1:
            raise two_callbacks("cbs=[...]")
        if torch_ranks().size > 1:
            raise NotSupported("With fastai, haltune supports one process only. Train without distrib_ctx().")
        self._need_metric()
        course = self._course = self._course_of(learn.model)
        position = len(course.records) if course.resumes else course.before
        of = self.trial.signer(fingerprint(learn.model))
        self._updates = 0
        self._reporter.begin(self._planned(), learn.model, position, of)
        if self._loads_best():
            self._reporter.advise_best("SaveModelCallback", "epoch")
        course.lengths[str(course.before)] = learn.n_epoch
        if course.resumes and course.before < len(course.records):
            self._need_same_fit()
        self._reporter.defer(Interruption.within("fit", "fastai.learner"))

    def before_epoch(self) -> None:
        from fastai.callback.core import CancelEpochException, CancelFitException

        self._trained = False
        if not self._fits:
            return
        if self._reporter.verdict is not None:
            raise CancelFitException  # the verdict came in an earlier fit
        if self._course.resumes:
            self._saving(False)
            self.learn.recorder.log += self._course.records[self._epoch - 1]
            raise CancelEpochException

    def before_train(self) -> None:
        if self._fits:  # what the callbacks make at the start of a fit is there
            self._start()

    def after_step(self) -> None:  # not for a batch whose gradients accumulate
        self._updates += 1

    def after_train(self) -> None:
        self._trained = self._fits
        self._reporter.clock.validating()
        if self._trained:
            self._weights = fingerprint(self.learn.model)
            self.trial.sign(self._weights)

    def before_validate(self) -> None:
        if self._trained:
            self._shown = fingerprint(self.learn.model)
            others = self._shown != self._weights  # such as an average of them
            state = self.learn.model.state_dict().items() if others else ()
            self._evaluated = {name: value.clone() for name, value in state} or None

    def after_validate(self) -> None:
        if not self._trained:
            return
        self._reporter.clock.validated()
        recorder = self.learn.recorder
        metrics = dict(zip(recorder.metric_names[1:], recorder.log[1:], strict=False))
        self._course.records[self._epoch - 1 :] = [list(metrics.values())]
        if self.monitor in metrics:
            self._reporter.look_ahead(self._epoch)
            self._reporter.report(metrics[self.monitor], self._epoch, metrics, updates=self._updates)
            self._reporter.heed(self._epoch)
        elif recorder.cancel_valid:  # by another callback, which does not validate in each epoch
            self._reporter.trained = float(self._epoch)
        else:
            raise missing(self.monitor, metrics, "in the first epoch", _METRICS)

    def after_epoch(self) -> None:
        from fastai.callback.core import CancelFitException

        course = self._course
        if self._fits and course.resumes and self._epoch == len(course.records):
            course.resumes = False
            self._saving(True)
            self._load()
            self._reporter.clock.restart()
        if not self._trained:
            return
        course.replaced.doubt(self.trial, *self.learn.dls.loaders)
        if self._reporter.keeps_epoch:
            self._reporter.keep(self._write_best, _SUFFIX)
        others = self._reporter.saves and fingerprint(self.learn.model) != self._shown
        self._reporter.save_to_resume(self._write, _SUFFIX, self._lost, resumes_only=others)
        if self._reporter.over or self.learn.epoch + 1 == self.learn.n_epoch:
            self._keep()
        self._trained = False
        if self._reporter.over:
            raise CancelFitException

    def after_cancel_fit(self) -> None:
        if self._trained:
            self._reporter.ends_by_itself()  # a tracker ended it in its last epoch
            self._keep()

    def after_fit(self) -> None:
        if not self._fits:
            (self._fits, self._trained), self._around = self._around, (False, False)
            return
        self._fits = self._trained = False
        self._course.before += self.learn.epoch + 1
        if not self._course.resumes:  # otherwise all its epochs were replayed, and the model is as new
            self.trial.sign(fingerprint(self.learn.model))  # a tracker may have loaded its best ones
            carried.leave(callback for _, callback in self._own_callbacks())
            carried.leave_data(self._own_data())
        self._reporter.end_of_fit()
        self._reporter.leave()

    @property
    def _epoch(self) -> int:
        return int(self._course.before + self.learn.epoch + 1)

    def _keep(self) -> None:
        """Keep the model of the last epoch if it counts, before SaveModelCallback loads that of its best epoch."""
        if not self._reporter.saves and self._reporter.keeps:
            self._reporter.save(self._write_best, _SUFFIX)

    # a fit

    def _courses(self) -> _Courses:
        return _COURSES.setdefault(self.trial, _Courses(self.trial.checkpoint))

    def _course_of(self, model: Any) -> _Course:
        """Return the course of the model's fits in this trial, also by other callbacks; a new one for a new model."""
        known = self._courses()
        if model not in known.of:
            course = known.of[model] = self._new_course()
            if known.checkpoint is not None and self.trial.ended is None:
                course.records, course.resumes = self._progress(known.checkpoint)["records"], True
        return known.of[model]

    def _new_course(self) -> _Course:
        trial = self.trial.id
        return _Course(Attributes(trial, "learn", hook="before_fit"), Attributes(trial), of_modules(trial))

    def _need_metric(self) -> None:
        """Raise InvalidInput before the training if no epoch will log the metric."""
        if not self._reporter.silent:
            return
        learn = self.learn
        names = [name for name in learn.recorder.metric_names[1:] if name != "time"]
        valid = learn.dls.loaders[1] if len(learn.dls.loaders) > 1 else None
        empty = valid is None or (hasattr(valid, "__len__") and len(valid) == 0)
        if self.monitor not in names:
            raise missing(self.monitor, names, "by this Learner", _METRICS)
        if empty and not self.monitor.startswith("train_"):
            raise InvalidInput(
                f"{self.monitor!r} is a metric of the validation, and dls has no validation data. Give "
                "Learner(DataLoaders(train, valid), ...), or a splitter with a share for validation."
            )

    def _planned(self) -> float | None:
        """Return the epochs to which the fits train if they are too many; fewer may be followed by another fit."""
        planned, horizon = self._course.before + self.learn.n_epoch, self.trial.horizon
        if horizon is None:
            return None
        tuning = caller("fine_tune", "fastai.callback.schedule")  # it calls fit twice; without it there is no advice
        if tuning is None:
            return planned if planned > horizon else None
        known = variables(tuning)
        epochs, frozen = known["epochs"], known["freeze_epochs"]
        if self._course.before < frozen and epochs + frozen > horizon:
            self._reporter.advise(
                f"learn.fine_tune({epochs}) trains {epochs + frozen} epochs, {frozen} of them frozen, but the search's "
                f"max_epochs is {horizon}: haltune ends the training there, before the end of its schedule. Write "
                f"learn.fine_tune(trial.max_epochs - {frozen}, freeze_epochs={frozen}), or set "
                f"max_epochs={epochs + frozen} in the search.",
                "horizon",
            )
        return None

    def _need_same_fit(self) -> None:
        """Raise NotSupported if a fit is to continue with another length or other schedules than it paused with."""
        course, n = self._course, self.learn.n_epoch
        progress = self._progress(self.trial.checkpoint)
        if (planned := progress["lengths"].get(str(course.before), n)) != n:
            raise NotSupported(
                f"Trial {self.trial.id} paused in a fit of {plural(planned, 'epoch')}, and this fit has {n}, so it "
                "would not continue its training. Give it all its epochs, such as learn.fit(trial.max_epochs): those "
                "before the pause are skipped."
            )
        before = progress["schedules"]
        for name, values in self._schedules().items() if len(course.records) <= course.before + n else ():
            if before.get(name, values) != values:
                raise NotSupported(
                    f"Trial {self.trial.id} paused with another schedule of {name!r} than this fit has (at its start "
                    f"{before[name][0]}, now {values[0]}), so it would not continue its training. Compute it from "
                    "trial.config alone. If learn.lr_find() chooses the rate, call it once before the search."
                )

    def _schedules(self) -> dict[str, Any]:
        """Return values of the schedules of the fit, by hyperparameter."""
        found = {}
        for other in self.learn.cbs:
            for name, schedule in (getattr(other, "scheds", None) or {}).items():
                found[str(name)] = [np.asarray(schedule(place), float).tolist() for place in (0.0, 0.2, 0.5, 0.8)]
        return found

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

    # the state of the training

    def _start(self) -> None:
        """Note what the callbacks and the model have before the epoch, as far as it was not seen before."""
        course, learn = self._course, self.learn
        if not course.tensors:
            course.tensors = {name: list(value.shape) for name, value in learn.model.state_dict().items()}
            course.extras = extras(learn.model)
            own = [callback for _, callback in self._own_callbacks()]
            starts = self._courses().checkpoint is None
            carried.warn_of_own(self.trial, own, starts)
            carried.warn_of_data(self.trial, self._own_data(), starts)
        course.attributes.see(self._own_callbacks(), self._saved())
        course.data.see(self._own_data(), self._saved())
        course.replaced.see(*learn.dls.loaders)
        course.modules.see(own_modules(learn.model), self._saved())

    def _own_data(self) -> list[tuple[str, Any]]:
        return own_parts(*self.learn.dls.loaders)

    def _generators(self) -> dict[str, Any]:
        """Return the generators of the data with their transforms, of callbacks, metrics, the model and its loss."""
        learn = self.learn
        parts = [("model", learn.model), ("loss", learn.loss_func), ("opt", learn.opt), *self._own_callbacks()]
        parts += [(f"metric {i}", metric) for i, metric in enumerate(learn.metrics)]
        return generators_in(*learn.dls.loaders, depth=_DEPTH) | of_owners(parts)

    def _saved(self) -> list[Any]:
        return [self.learn.model, self.learn.opt, self.learn, *(part for _, part in self._own_data())]

    def _lost(self) -> str | None:
        """Return why a training that paused now would not continue as if it had not; None if it would."""
        course = self._course
        if course.tensors != {name: list(value.shape) for name, value in self.learn.model.state_dict().items()}:
            return RESHAPED
        if tensors.outside([self.learn.model], [self.learn.opt], copies=True):
            return (
                "the optimizer trains weights outside the model, as of a loss or the copies of to_non_native_fp16, "
                "which fastai does not save (make the loss a part of the model, or use to_fp16)"
            )
        lost = course.attributes.lost(self._own_callbacks(), self._saved())
        lost = lost or course.data.lost(self._own_data(), self._saved())
        return lost or left_out([(self.learn.model, course.extras)], course.modules, self._saved())

    def _own_callbacks(self) -> Iterator[tuple[str, Any]]:
        """Yield the user's callbacks and fastai's that count within an epoch, each with its number and class."""
        seen: dict[str, int] = {}
        for callback in self.learn.cbs:
            kind = type(callback).__qualname__.rpartition(".")[2]
            seen[kind] = seen.get(kind, 0) + 1
            of_library = f"{type(callback).__module__}.".startswith(("fastai.", "haltune."))
            if callback is not self and (not of_library or kind == "GradientAccumulation"):
                yield f"{seen[kind]}.{kind}", callback

    def _loads_best(self) -> bool:
        """Return whether a SaveModelCallback ends the fit with the weights of the epoch that the goal ranks best."""
        from fastai.callback.tracker import SaveModelCallback

        savers = [c for c in self.learn.cbs if isinstance(c, SaveModelCallback) and c.monitor == self.monitor]
        way = np.greater if self.trial.goal.sign > 0 else np.less
        return any(c.comp is way and not c.every_epoch and not c.at_end for c in savers)

    def _best_files(self) -> list[Path]:
        """Return the files of the best weights of SaveModelCallbacks, which other trials may overwrite."""
        from fastai.learner import join_path_file

        savers = [c for c in self.learn.cbs if hasattr(c, "fname") and not getattr(c, "every_epoch", True)]
        folder = Path(self.learn.path, self.learn.model_dir)
        return [join_path_file(saver.fname, folder, ext=".pth") for saver in savers]

    def _write_best(self, folder: Path) -> None:
        """Write a state to keep, with the weights that were evaluated."""
        import torch

        if self._evaluated is None and fingerprint(self.learn.model) != self._shown:
            raise NotSupported(
                "its weights have changed since they were evaluated, so it would not have the value of its trial. "
                "Change weights in after_train or before_validate, or restore them in after_validate"
            )
        self._write(folder)
        if self._evaluated is not None:
            state = {"model": self._evaluated, "opt": _plain(self.learn.opt.state_dict())}
            torch.save(state, folder / _STATE)

    def _write(self, folder: Path) -> None:
        import torch

        learn, recorder, course = self.learn, self.learn.recorder, self._course
        folder.mkdir()
        state = {"model": learn.model.state_dict(), "opt": _plain(learn.opt.state_dict())}
        torch.save(state, folder / _STATE)
        parameters = dict(learn.model.named_parameters())
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        if waiting := {name: gradient for name, gradient in gradients.items() if gradient.any()}:
            torch.save(waiting, folder / _GRADIENTS)
        if self._reporter.saves:
            for i, file in enumerate(self._best_files()):
                if file.is_file():
                    shutil.copyfile(file, folder / f"best-{i}.pth")
        loaders = [dl.rng.getstate() if hasattr(dl, "rng") else None for dl in learn.dls.loaders]
        scaler = vars(learn).get("scaler")
        progress = {
            "random": capture(),
            "generators": states_of(self._generators()),
            "loaders": loaders,
            "smooth": [recorder.smooth_loss.count, float(recorder.smooth_loss.val)],
            "records": course.records,
            "model": differences(learn.model, course.extras, course.found),
            "modules": course.modules.changed(own_modules(learn.model), self._saved()),
            "frozen": getattr(learn.opt, "frozen_idx", None),
            "gradients": [*gradients],
            "callbacks": course.attributes.changed(self._own_callbacks(), self._saved()),
            "data": course.data.changed(self._own_data(), self._saved()),
            "scaler": None if scaler is None else scaler.state_dict(),
            "schedules": self._schedules(),
            "lengths": course.lengths,
            "batches": learn.train_iter,
            "orders": [None if (order := _order(dl)) is None else [int(i) for i in order] for dl in learn.dls.loaders],
            "transforms": course.replaced.changed(*learn.dls.loaders),
        }
        (folder / _PROGRESS).write_text(json.dumps(progress), encoding="utf-8")

    @staticmethod
    def _progress(checkpoint: str | None) -> dict[str, Any]:
        text = Path(checkpoint or "", _PROGRESS).read_text(encoding="utf-8")
        try:
            found = json.loads(text)
            return {name: found[name] for name in _PARTS} | {n: found.get(n, {}) for n in ("transforms", "generators")}
        except (ValueError, LookupError, TypeError) as error:
            raise damaged(error) from error

    def _load(self) -> None:
        import torch

        progress, folder = self._progress(self.trial.checkpoint), Path(self.trial.checkpoint or "")
        learn, smooth, course = self.learn, self.learn.recorder.smooth_loss, self._course
        device = next(learn.model.parameters()).device
        state = torch.load(folder / _STATE, map_location=device, weights_only=True)
        learn.model.load_state_dict(state["model"])
        learn.opt.load_state_dict(state["opt"])
        waiting = {}
        if (folder / _GRADIENTS).is_file():
            waiting = torch.load(folder / _GRADIENTS, map_location=device, weights_only=True)
        for name, parameter in learn.model.named_parameters():
            zero = torch.zeros_like(parameter) if name in progress["gradients"] else None
            parameter.grad = waiting.get(name, zero)
        if progress["frozen"] is not None:
            learn.opt.frozen_idx = progress["frozen"]
        generators = self._generators()  # the attribute of a callback may be one, too
        before = states_of(generators)
        course.found = progress["model"]
        set_extras(learn.model, course.found)
        course.modules.put_back(own_modules(learn.model), progress["modules"], device)
        course.attributes.put_back(self._own_callbacks(), progress["callbacks"], device)
        course.data.put_back(self._own_data(), progress["data"], device, always=True)
        course.replaced.put_back(progress["transforms"])
        warn_of_failed(self.trial, *course.modules.failed, *course.attributes.failed, *course.data.failed)
        if progress["scaler"] and vars(learn).get("scaler") is not None:
            learn.scaler.load_state_dict(progress["scaler"])
        for i, file in enumerate(self._best_files()):
            if (kept := folder / f"best-{i}.pth").is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(kept, file)
        for loader, generator in zip(learn.dls.loaders, progress["loaders"], strict=True):
            if generator is not None:
                loader.rng = random.Random()
                loader.rng.setstate(tupled(generator))
        for loader, order in zip(learn.dls.loaders, progress["orders"], strict=True):
            if order is not None and (there := _order(loader)) is not None and len(there) == len(order):
                for i, place in enumerate(order):  # the lengths of the texts have the same list
                    there[i] = place
                loader.make_chunks()
        learn.train_iter = progress["batches"]  # of the fit; schedules of the program count by it
        smooth.count, smooth.val = progress["smooth"][0], torch.tensor(progress["smooth"][1])
        set_states(self._generators(), progress["generators"])
        self.trial.restores_randomness(to_put_back(generators, before))
        restore(progress["random"])


@dataclass
class _Course:
    """The fits of one model in one attempt, which may have a callback each."""

    attributes: Attributes  # of callbacks
    data: Attributes  # of the program's own data sets and samplers
    modules: Attributes  # of the program's own modules
    replaced: Replaced = field(default_factory=Replaced)  # transforms of the data
    before: int = 0  # epochs of the fits before the present one
    lengths: dict[str, int] = field(default_factory=dict)  # planned epochs of each fit, by the epochs before it
    records: list[list[float]] = field(default_factory=list)  # the table's columns for each epoch of all fits
    resumes: bool = False  # the checkpoint is to be loaded
    tensors: dict[str, Any] = field(default_factory=dict)  # shapes of the model's tensors, at the start
    extras: dict[str, Any] = field(default_factory=dict)  # what the model's state_dict lacks, at the start
    found: dict[str, Any] = field(default_factory=dict)  # of `extras`, what earlier attempts changed


@dataclass
class _Courses:
    """The courses of a trial, by model, and the checkpoint with which its attempt started."""

    checkpoint: str | None
    of: WeakKeyDictionary[Any, _Course] = field(default_factory=WeakKeyDictionary)


_COURSES: WeakKeyDictionary[Any, _Courses] = WeakKeyDictionary()  # trial -> its courses


def _order(loader: Any) -> Any:
    """Return the order of the texts that a loader of a language model shuffles in place in each epoch; None for others.

    fastai has no public way to read it. Without it, a resumed training would read its texts in another order.
    """
    return getattr(vars(loader).get("items"), "idxs", None) if hasattr(type(loader), "make_chunks") else None


def _plain(value: Any) -> Any:
    """Return the state as dicts, lists, tensors and numbers only, which load without pickle."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if hasattr(value, "detach"):
        return value.detach()
    if hasattr(value, "dtype"):
        return value.item()  # a NumPy number, from a schedule
    return [_plain(inner) for inner in value] if hasattr(value, "__iter__") and not isinstance(value, str) else value
