"""AutoBCT: when the whole search should end."""

from .prior import Prior, from_studies, sampled

__all__ = ["Prior", "from_studies", "sampled"]
