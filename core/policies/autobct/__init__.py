"""AutoBCT: when the whole search should end."""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .prior.beliefs import Prior
    from .prior.learnt import from_studies
    from .prior.sampled import sampled

_ROOMS = {
    "prior.beliefs": ("Prior",),
    "prior.learnt": ("from_studies",),
    "prior.sampled": ("sampled",),
}
if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, _ROOMS)

__all__ = ["Prior", "from_studies", "sampled"]
