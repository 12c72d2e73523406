"""Learning curves that rise to an end, a rule quick enough to judge them, and a policy that pauses them."""

from typing import Any

from haltune import Action, Verdict, Wait
from haltune.log.events import Status
from haltune.policies import OptimalStopping, RandomSearch, Resume

HORIZON = 30
SOLVER = OptimalStopping(paths=4000)
ALONE = OptimalStopping(paths=4000, reference_curves=False)


def curve(end: float, epoch: float) -> float:
    return end - (end - 0.1) / epoch


class Pausing(RandomSearch):
    """Pauses every trial at epoch 3 and resumes the paused ones in turn."""

    def propose(self, state: Any, history: Any, rng: Any) -> Any:
        paused = history.with_status(Status.PAUSED)
        if paused and len(history) >= 4:
            return Resume(paused[0].id, reason="its turn")
        return super().propose(state, history, rng) if len(history) < 4 else Wait("nothing is paused")

    def judge(self, state: Any, history: Any, trial: Any, rng: Any) -> Verdict:
        if trial.epoch == 3 and trial.attempt == 1:
            return Verdict(Action.PAUSE, "rung 3")
        return Verdict(Action.CONTINUE, "below the rung")
