"""haltune.optuna: to Optuna and from it. Studies both ways, and haltune's decisions in an Optuna program.

`to_study` writes a search where optuna-dashboard opens it, `from_study` makes what Optuna has found the past of a
search. `HaltunePruner` and `HaltuneSampler` stand where Optuna's own pruner and sampler do. Optuna is imported with the
first of them.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .exported import to_study
    from .imported import from_study
    from .pruner import HaltunePruner
    from .sampler import HaltuneSampler

_ROOMS = {
    "exported": ("to_study",),
    "imported": ("from_study",),
    "pruner": ("HaltunePruner",),
    "sampler": ("HaltuneSampler",),
}
if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, _ROOMS)

__all__ = ["HaltunePruner", "HaltuneSampler", "from_study", "to_study"]
