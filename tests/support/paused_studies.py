"""A real study whose policy pauses each trial at given epochs and resumes it at once."""

from dataclasses import dataclass

from haltune import Checkpointing, Float, Minimize, Problem, Space, Study, Verdict
from haltune.log.decisions import Action, continue_
from haltune.log.events import Status
from haltune.policies import RandomSearch, Resume


@dataclass(frozen=True)
class PausesAt(RandomSearch):
    """Random search; a trial pauses at the positions `at` and is resumed before a new one starts."""

    at: tuple[float, ...] = ()

    @property
    def spec(self):
        return super().spec | {"policy": "PausesAt", "at": list(self.at)}

    def propose(self, state, history, rng):
        for trial in history.with_status(Status.PAUSED):
            return Resume(trial.id, reason="it was paused")
        return super().propose(state, history, rng)

    def judge(self, state, history, trial, rng):
        problem = history.problem
        reached = trial.epoch if problem.grid is None else problem.grid.position(trial.epoch)
        if any(abs(reached - at) < 1e-9 for at in self.at):
            return Verdict(Action.PAUSE, f"a rung ends at {reached:g}")
        return continue_("more")


def pausing_study(
    store=None,
    at=(2,),
    epochs=4,
    trials=1,
    metric="val_loss",
    keep=0,
    folder=None,
    disk_quota=None,
    unit="epoch",
    **options,
):
    goal = Minimize(metric) if isinstance(metric, str) else metric
    problem = Problem(Space({"lr": Float(1e-3, 1e-1, log=True)}), goal, max_epochs=epochs, unit=unit)
    kept = Checkpointing(folder, keep, disk_quota)
    return Study(problem, PausesAt(trials, at=at), store=store, seed=0, checkpoints=kept, **options)
