"""What a training leaves behind, as plain arrays by name, and how two of them differ."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def training_state(trained: Any) -> dict[str, Any]:
    """The parts of what a training returned: names -> nested mappings, lists, arrays and numbers.

    A Lightning Trainer or an attached LightningModule has weights, optimizer, learning rate and
    schedules; a Keras model the first three; a torch module weights; a booster, or its estimator, trees; an estimator
    of scikit-learn what it learnt; arrays, numbers, and what holds them, are "returned". Of anything else nothing is.
    """
    if hasattr(trained, "lightning_module"):
        return _of_lightning(trained)
    if getattr(trained, "_trainer", None) is not None and hasattr(trained, "state_dict"):
        return _of_lightning(trained._trainer)
    if _is_a("keras", "Model", trained):
        return _of_keras(trained)
    if hasattr(trained, "state_dict"):
        return {"weights": dict(trained.state_dict())}
    if (trees := _trees(trained)) is not None:
        return {"trees": trees}
    if hasattr(trained, "get_params") and hasattr(trained, "fit"):
        return {"learnt": vars(trained)}
    plain = isinstance(trained, (Mapping, list, tuple, str, int, float)) or hasattr(trained, "shape")
    return {"returned": trained} if plain else {}


def differing(first: Any, second: Any) -> str | None:
    """Where two states differ, and by how much at most; None when every bit agrees."""
    one, two = dict(_leaves(first, "")), dict(_leaves(second, ""))
    alone = sorted(one.keys() ^ two.keys())
    if alone:
        where = "straight" if alone[0] in one else "resumed"
        return f"{alone[0]} is there only in the {where} run (and {len(alone) - 1} more)"
    wrong = [name for name in one if not _same(one[name], two[name])]
    if not wrong:
        return None
    gaps = [gap for name in wrong if (gap := _gap(one[name], two[name])) is not None]
    size = f", by up to {max(gaps):.3g}" if gaps else ""
    more = f" and {len(wrong) - 1} more of {len(one)}" if len(wrong) > 1 else ""
    return f"{wrong[0]}{more} differ{'' if more else 's'}{size}"


def _of_lightning(trainer: Any) -> dict[str, Any]:
    optimizers = list(trainer.optimizers)
    return {
        "weights": dict(trainer.lightning_module.state_dict()),
        "optimizer": [o.state_dict() for o in optimizers],
        "learning rate": [[group["lr"] for group in o.param_groups] for o in optimizers],
        "schedules": [c.scheduler.state_dict() for c in trainer.lr_scheduler_configs],
    }


def _of_keras(model: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"weights": [_array(w) for w in model.weights]}
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        state["optimizer"] = [_array(v) for v in optimizer.variables]
        state["learning rate"] = [float(optimizer.learning_rate)]
    return state


def _trees(trained: Any) -> Any:
    """The trees of XGBoost, LightGBM or CatBoost, of a booster or an estimator; None for anything else."""
    booster = (
        trained.get_booster() if hasattr(trained, "get_booster") else getattr(trained, "booster_", trained)
    )
    if hasattr(booster, "save_raw"):
        return np.frombuffer(booster.save_raw(), np.uint8)
    if hasattr(booster, "model_to_string"):  # behind the trees it has the arguments of its last training
        return booster.model_to_string(num_iteration=-1).partition("end of trees")[0].split("\n")
    if hasattr(booster, "get_tree_leaf_counts"):
        return [
            booster.get_tree_leaf_counts(),
            booster.get_leaf_values(),
            *map(np.asarray, booster.get_borders().values()),
        ]
    return None


def _is_a(module: str, name: str, value: Any) -> bool:
    """True for an instance of a class of a module that is imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]")
    else:
        yield path, _array(value) if hasattr(value, "shape") else value


def _array(value: Any) -> Any:
    """A tensor of any framework as an array, bfloat16 among them."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return value.float().numpy() if value.is_floating_point() else value.numpy()
    if hasattr(value, "numpy") and not isinstance(value, np.ndarray):
        value = value.numpy()
    return np.asarray(value)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        same = one.shape == two.shape and one.dtype == two.dtype
        return same and one.tobytes() == two.tobytes()
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return bool(one == two) if type(one).__module__ == "builtins" else True  # objects: functions, classes


def _gap(one: Any, two: Any) -> float | None:
    """The largest difference of two numbers or arrays; None where there is no such thing."""
    try:
        gap = float(np.max(np.abs(np.asarray(one, float) - np.asarray(two, float))))
    except (TypeError, ValueError):
        return None
    return gap if math.isfinite(gap) else None
