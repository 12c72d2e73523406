"""The families by name."""

from __future__ import annotations

from .control import Control
from .images import CNN, Autoencoder
from .instances import Instance
from .scores import Ranking, Regression
from .tables import MLP, Softmax
from .text import Factors, Recurrent, Transformer

FAMILIES: dict[str, type[Instance]] = {
    family.family: family
    for family in (
        Softmax, MLP, CNN, Autoencoder, Transformer, Recurrent, Factors, Control, Ranking, Regression,
    )
}  # fmt: skip
