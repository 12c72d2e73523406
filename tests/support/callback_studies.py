"""A real study whose policy stops every trial but the first after two epochs."""

from dataclasses import dataclass

from haltune import Float, Minimize, Problem, Space, Study
from haltune.log.decisions import continue_, stop
from haltune.policies import RandomSearch


@dataclass(frozen=True)
class StopsAtTwo(RandomSearch):
    """Random search that trains one configuration in full and the others for two epochs."""

    @property
    def spec(self):
        return super().spec | {"policy": "StopsAtTwo"}

    def judge(self, state, history, trial, rng):
        if trial.id > 0 and trial.epoch >= 2:
            return stop("two epochs are enough")
        return continue_("more")


def study(store=None, trials=3, metric="val_loss", epochs=4):
    problem = Problem(Space({"lr": Float(1e-3, 1e-1, log=True)}), Minimize(metric), max_epochs=epochs)
    return Study(problem, StopsAtTwo(trials), store=store, seed=0)
