"""haltune.optuna: copy studies to and from Optuna, and use haltune's decisions in an Optuna program.

`to_study` copies a search for optuna-dashboard, `from_study` copies an Optuna study for `learn_from=`. `HaltunePruner`
and `HaltuneSampler` replace Optuna's pruner and sampler. Optuna is imported at first use.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .pruner import HaltunePruner
    from .sampler import HaltuneSampler
    from .studies import from_study, to_study

_MODULES = {"studies": ("from_study", "to_study"), "pruner": ("HaltunePruner",), "sampler": ("HaltuneSampler",)}
if not TYPE_CHECKING:  # a type checker reports unknown names
    __getattr__, __dir__ = shows(__name__, _MODULES)

__all__ = ["HaltunePruner", "HaltuneSampler", "from_study", "to_study"]
