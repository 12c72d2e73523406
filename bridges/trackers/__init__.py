"""haltune.trackers: send a search to MLflow, Weights & Biases or TensorBoard while it runs, with a run per trial.

with track(study, MLflow("http://localhost:5000")):
    study.optimize(train)  # or your own loop, a callback, a launcher

It reads the log, so it works with every loop. `haltune track` does the same from another process.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .mlflow import MLflow
    from .tensorboard import TensorBoard
    from .tracker import track
    from .wandb import WandB

_MODULES = {"tracker": ("track",), "mlflow": ("MLflow",), "tensorboard": ("TensorBoard",), "wandb": ("WandB",)}
if not TYPE_CHECKING:  # a type checker reports unknown names
    __getattr__, __dir__ = shows(__name__, _MODULES)

__all__ = ["MLflow", "TensorBoard", "WandB", "track"]
