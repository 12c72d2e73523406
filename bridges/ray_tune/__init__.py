"""haltune.ray_tune: haltune in a program of Ray Tune. Its search in the place of a search algorithm, its stops in that
of a scheduler.

    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-4, 1e-1)},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", num_samples=20,
            search_alg=HaltuneSearch(max_epochs=30), scheduler=HaltuneScheduler(),
        ),
    )

Together one study decides, haltune's default search. Either does without the other.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .tune import HaltuneScheduler, HaltuneSearch

_ROOMS = {"tune": ("HaltuneScheduler", "HaltuneSearch")}
if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, _ROOMS)

__all__ = ["HaltuneScheduler", "HaltuneSearch"]
