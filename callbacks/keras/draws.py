"""The random state from which the dropout and the shuffling of a Keras fit draw.

In addition to Python, NumPy and torch it has the seed generators of the model's layers (which Keras does not save),
Keras' global generator, and TensorFlow's seed. JAX has no state: Keras gives it keys from these generators. TensorFlow
shuffles arrays by a seed that is fixed when the fit is set up. After keras.utils.set_random_seed the order is the same
in every epoch; otherwise it differs in every process, and cannot be resumed.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from haltune._utils import generators, own_generators, randomness
from haltune.errors import warn

from .. import objects

# graph of a compiled step -> whether it draws by tf.random; asking serializes the graph
_DRAWS: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def capture_randomness(model: Any) -> dict[str, Any]:
    """Return the state of all generators that a fit of `model` uses, as JSON-able values."""
    return randomness.capture() | {"layers": [*generators.states_of(own_generators.of_model(model)).values()]}


def set_randomness(model: Any, state: dict[str, Any]) -> None:
    """Restore these generators. Those of other frameworks do not change."""
    held = own_generators.of_model(model)
    if len(held) == len(state["layers"]):
        generators.set_states(held, dict(zip(held, state["layers"], strict=True)))
    else:
        warn(
            f"The saved model had {len(state['layers'])} random generators in its layers, this one has "
            f"{len(held)}. So its dropout differs from an uninterrupted training."
        )
    randomness.restore(state)


def draws_by_tensorflow(model: Any) -> bool:
    """Return whether a compiled step draws from TensorFlow's own generators, by tf.random, which keep their place.

    Keras has the step in a variable of its train_function. Keras' own layers draw without such a place.
    """
    step = objects.variables_of(getattr(model, "train_function", None)).get("multi_step_on_iterator", (None,))[0]
    return any(_draws(one.graph) for one in getattr(step, "_list_all_concrete_functions", list)())


def _draws(graph: Any) -> bool:
    if (found := _DRAWS.get(graph)) is None:
        # the name of an attribute of each operation that keeps its place, after its length
        found = _DRAWS[graph] = b"\x05seed2" in graph.as_graph_def().SerializeToString()
    return found
