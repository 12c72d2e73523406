"""haltune.syne_tune: haltune as a scheduler of Syne Tune's.

    scheduler = HaltuneScheduler(config_space, "accuracy", do_minimize=False, max_epochs=30)
    Tuner(LocalBackend("train.py"), scheduler, StoppingCriterion(max_wallclock_time=600), n_workers=4).run()

It chooses configurations and decides which trial is stopped, or paused and resumed.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .scheduler import HaltuneScheduler

_ROOMS = {"scheduler": ("HaltuneScheduler",)}
if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, _ROOMS)

__all__ = ["HaltuneScheduler"]
