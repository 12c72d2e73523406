"""The half of a Trial that saves states: what it may go on from, and what its user is given in the end."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from haltune._utils.disk import beside, discard
from haltune.above import above
from haltune.errors import InvalidInput, LeaseLost, StoreError
from haltune.log.decisions import Action
from haltune.log.events import Status
from haltune.log.problem import Goal
from haltune.store.checkpoints import keepers

from .attempt import Attempt
from .session import Session


class SavedAttempt(Attempt):
    """An attempt whose states are saved."""

    goal: Goal

    def __init__(self, session: Session, attempt: Attempt) -> None:
        super().__init__(**vars(attempt))
        self.session = session  # what this process does for its study
        self._lap = session.monotonic()
        self._last_act: Callable[[], object] | None = None

    def before_end(self, act: Callable[[], object] | None) -> None:
        """Have something done when the trial is given back in order: for loops that tell no callback of their end.

        Args:
            act: It is called once, without arguments; None: nothing is.
        """
        self._last_act = act

    def checkpointed(self, path: str, seconds: float = 0.0) -> None:
        """Say that a path holds the state after the last epoch reported: a later attempt begins there.

        Args:
            path: A file or a folder of yours, which haltune does not delete.
            seconds: What saving it took, for the account of the time. Default: 0.

        Raises:
            StoreError: When the store cannot be reached.
        """
        if os.path.isabs(str(path)) and not os.path.lexists(
            path
        ):  # of other names the user knows what they mean
            self.session.warn(
                f"checkpointed({str(path)!r}): nothing lies there, and a trial that continues is given it to load. Say "
                "it once the state is written, or have trial.save(write) write it",
                "checkpointed",
            )
        self.session.checkpointed(self, str(path), seconds)

    def save(self, write: Callable[[Path], object], suffix: str = ".ckpt", keep: bool = False) -> str:
        """Save the state after the last epoch reported; a later attempt has its path as `checkpoint`.

        Of the ranks of a distributed training rank 0 alone calls it; all return the path.

        Args:
            write: Called with a temporary path, to make a file or a folder there. It is then forced to the disk,
                renamed, and recorded; older checkpoints of the trial are deleted.
            suffix: What the path ends in. Default: ".ckpt".
            keep: The epoch is the trial's best, and counts for it: kept beside what the trial goes on from, and
                `study.best.checkpoint` where no run is better. Default: False.

        Raises:
            InvalidInput: When `write` is no function, or wrote nothing at its path.
            NoRoom: when the quota is full; OSError when the disk is. The checkpoint before it is there still.
            LeaseLost: when the trial is another worker's by now.
            Exception: what `write` raises.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=2)
            >>> trial = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=1)).ask()
            >>> _ = trial.report(0.3)
            >>> path = trial.save(lambda path: path.write_text("weights"), ".txt")
            >>> open(path).read(), trial.checkpoint == path
            ('weights', True)
        """
        check_write(write)
        return self.session.decide(self, "is saved", partial(self._save, write, suffix, keep))

    def _save(self, write: Callable[[Path], object], suffix: str, keep: bool) -> str:
        began = self.session.monotonic()
        temporary = self.begin_save(suffix, keep)
        with self._ours(temporary):
            try:
                write(temporary)
                check_written(temporary)
            except BaseException:
                discard(temporary)
                raise
        return self.commit_save(temporary, self.session.monotonic() - began, keep)

    def load_model(self, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
        """The Keras model of `checkpoint`, or None without one; see haltune.callbacks.keras.load_model.

        Args:
            make_model: A function: then make_model(**trial.config), with the weights and the optimizer of `checkpoint`
                if there is one. Default: None, the model as it was saved.
            options: As keras.saving.load_model takes them, such as custom_objects.

        Returns:
            The model.

        Raises:
            ImportError: When Keras is missing.
            InvalidInput: For a checkpoint that is no model of Keras'.

        Example:
            See docs/guide.md::

                model = trial.load_model() or build(**trial.config)
        """
        load = above(
            "load_model", "trial.load_model", "haltune.callbacks.keras.load_model(trial, make_model)"
        )
        return load(self, make_model, **options)

    def begin_save(self, suffix: str = ".ckpt", keep: bool = False) -> Path:
        """A temporary path for `commit_save`, the same on all ranks; for states that they write together.

        Args:
            suffix: What it ends in. Default: ".ckpt".
            keep: As in `save`. Default: False.
        """
        work = partial(self.session.checkpoints.temporary, self.id, self.attempt, self.epoch, suffix, keep)
        return self.session.decide(self, "begins to be saved", work, str, Path)

    def commit_save(self, temporary: Path, seconds: float = 0.0, keep: bool = False) -> str:
        """Make what was written at a path of `begin_save` the trial's checkpoint; its path.

        Args:
            temporary: That path.
            seconds: What writing took, for the account of the time. Default: 0.
            keep: As in `save`. Default: False.

        Raises:
            NoRoom: As `save` does; and LeaseLost likewise.
        """
        return self.session.decide(self, "commits", partial(self._commit_save, temporary, seconds, keep))

    def _commit_save(self, temporary: Path, seconds: float, keep: bool) -> str:
        checkpoints = self.session.checkpoints
        with checkpoints.undecided(temporary):
            with self._ours(temporary):
                final = checkpoints.publish(temporary)
            # what is raised here may come after the append: what the log does not name is left for the next to delete
            if not self.session.checkpointed(self, checkpoints.recorded(final), seconds, keep):
                discard(final)
                raise self._lost()
            checkpoints.supersede(final)
        self._lap = self.session.monotonic()
        return str(final)

    @contextmanager
    def _ours(self, temporary: Path) -> Iterator[None]:
        """LeaseLost for what fails because another worker, which has the trial by now, deleted what was being saved."""
        try:
            yield
        except Exception as error:
            if not os.path.lexists(temporary):
                with suppress(StoreError):
                    self.session.sync()
                record = self.session.log.history.trial(self.id)
                if (record.attempt, record.status) != (self.attempt, Status.RUNNING):
                    raise self._lost() from error
            raise

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"trial {self.id} was offered to another worker: its state is not saved")

    def room_for(self, size: int) -> None:
        """Find out whether a checkpoint could be saved now.

        Args:
            size: Of the checkpoint, in bytes.

        Raises:
            NoRoom: When it does not fit in the quota; OSError when not on the disk.
        """
        self.session.decide(self, "needs room", partial(self.session.checkpoints.room_for, self.id, size))

    def cannot_save(self, why: str) -> None:
        """Its state could not be saved when it was too late to train on: `room_for` says so from now on."""
        self.session.checkpoints.refused[self.id] = why

    @property
    def keeps_checkpoint(self) -> bool:
        """True when the trial, as it stands, is one of the best whose final state is kept (keep_checkpoints).

        False once the epoch that it counts for is saved.
        """
        return self.session.decide(self, "keeps its checkpoint", self._keeps)

    @property
    def keeps_epoch(self) -> bool:
        """True when the state after the epoch just reported is to be kept: it is what the trial counts for.

        Only where a run counts for its best epoch: elsewhere its final state is that of its last.
        """
        if self.goal.of == "last":
            return False

        def work() -> bool:
            cut = self.verdict is not None and self.verdict.action is Action.STOP  # what pauses may go on
            return self._keeps(cut) and self.session.log.history.as_best(self.id).epoch == self.epoch

        return self.session.decide(self, "keeps its best epoch", work)

    def _keeps(self, cut: bool | None = None) -> bool:
        keep, history = self.session.checkpoints.keep, self.session.log.history
        if cut is None:
            cut = self.verdict is not None and self.verdict.stops
        if keep == 0 or self.id not in keepers(history, keep, self.id, cut):
            return False
        best = history.as_best(self.id)
        return best.checkpoint_epoch != best.epoch


def check_write(write: Any) -> None:
    """Raises InvalidInput for what is no function that writes a state."""
    if not callable(write):
        raise InvalidInput(
            "what saves is a function of the path to write to, such as lambda path: torch.save(state, path), not "
            f"{write!r}; where you have written a file of your own, trial.checkpointed(path) records it"
        )
    try:
        signature = inspect.signature(write)
    except ValueError:  # of what is built in nobody knows what it takes
        return
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidInput(
            f"what saves is called with the path to write to, and {write!r} takes something else: lambda path: ..."
        ) from None


def check_written(path: Path) -> None:
    """Raises InvalidInput where nothing lies at the path of a state, though its folder is there."""
    if os.path.lexists(path) or not path.parent.is_dir():
        return
    if appended := [part.name[len(path.name) :] for part in beside(path)]:
        raise InvalidInput(
            f"the state was not written to the path that was given, but to that with {appended[0]!r} behind it, as "
            f"np.save does: ask for a path that ends so, suffix={appended[0]!r}"
        )
    raise InvalidInput("nothing was written to the path that was given: save there, a file or a folder")
