"""The random state of a process, to restore in another: Python, NumPy, and torch, TensorFlow or Keras if it is used.

Generators that a program's data or models hold are found and saved apart.

A state has primitives only, so that its checkpoint loads without pickle.
"""

from __future__ import annotations

import base64
import functools
import json
import random
import sys
import types
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from haltune.display import one_line
from haltune.errors import InvalidInput

from .around import OPAQUE, attributes, frames, is_own, names_in, of_library, on_stack
from .orders import Orders, Variables, seeded, taken
from .updates import Flags, flags


def capture() -> dict[str, Any]:
    """Return the state of all global generators in use: of Python, NumPy, torch and its devices, TensorFlow and Keras.

    Returns:
        The states by name, which `json.dumps` takes. Generators that a program or a framework holds are not among them.
    """
    numpy = _lists(np.random.get_state(legacy=False))  # noqa: NPY002 (users' code draws from it)
    state: dict[str, Any] = {"python": random.getstate(), "numpy": numpy}
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = of_tensor(torch.random.get_rng_state())
        state |= of_devices()
    if (context := _tensorflow_context()) is not None and context._seed is not None:
        state["tensorflow"] = [int(context._seed), context._rng.getstate()]
    if (keras := _keras_globals()) is not None and (generator := keras.get_global_attribute(_OF_KERAS)) is not None:
        state["keras"] = of_generator(generator.state)
    return state


def of_devices() -> dict[str, Any]:
    """Return the state of torch's generators of devices: kind of device -> one of each."""
    if (torch := sys.modules.get("torch")) is None:
        return {}
    found = {}
    for kind in ("cuda", "xpu"):
        of = getattr(torch, kind, None)
        if of is not None and of.is_initialized():  # asking breaks a later fork
            found[kind] = [of_tensor(state) for state in of.get_rng_state_all()]
    if torch.backends.mps.is_available():
        found["mps"] = [of_tensor(torch.mps.get_rng_state())]
    return found


def restore_devices(state: dict[str, Any]) -> None:
    """Restore what `of_devices` returned. Those of devices that this process lacks stay unchanged."""
    torch: Any = sys.modules.get("torch")
    for kind in ("cuda", "xpu", "mps"):
        if state.get(kind) and hasattr(torch, kind):
            of = getattr(torch, kind)
            count = int(torch.backends.mps.is_available()) if kind == "mps" else of.device_count()
            for device, text in enumerate(state[kind][:count]):
                of.set_rng_state(tensor_of(text), device)


def _tensorflow_context() -> Any:
    """Return TensorFlow's context with its seed; None if TensorFlow is not imported.

    `_seed` is that of tf.random.set_seed, and `_rng` draws the seeds of operations without one. TensorFlow has no
    public way to read them. Without them, a resumed training would shuffle its data in another order.
    """
    module = sys.modules.get("tensorflow.python.eager.context")
    return None if module is None else module.context()


_OF_KERAS = "global_seed_generator"  # Keras' name of its global generator


def _keras_globals() -> Any:
    """Return the module with the global state of Keras; None if Keras is not imported.

    It has the generator that seeds random operations without a seed of their own. Keras exports no access to it.
    Without it, such operations would draw other numbers in a resumed training.
    """
    return sys.modules.get("keras.src.backend.common.global_state")


def state_from_json(text: str | bytes) -> dict[str, Any]:
    """Return a state from its JSON. Raises InvalidInput if it is not a state."""
    try:
        return checked(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise damaged(error) from error


def checked(state: Any) -> dict[str, Any]:
    """Return the state. Raises InvalidInput if it is not one."""
    if not (isinstance(state, dict) and {"python", "numpy"} <= state.keys()):
        raise damaged(ValueError("it lacks the states of Python and NumPy"))
    return state


def damaged(error: Exception) -> InvalidInput:
    return InvalidInput(
        f"The random state of the checkpoint is damaged ({one_line(error)}). Restore it from a copy, or fail the "
        "trial, trial.fail(error), so that the search continues without it."
    )


def restore(state: dict[str, Any]) -> None:
    """Restore the generators. Those of devices that this process lacks stay unchanged.

    Args:
        state: What `capture` returned, also after JSON.

    Raises:
        InvalidInput: If it is not such a state.
    """
    torch = sys.modules.get("torch")
    try:
        if (keras := _keras_globals()) is not None:
            keras.set_global_attribute(_OF_KERAS, _generator_of_keras(keras, state.get("keras")))
        random.setstate(tupled(state["python"]))
        kind = state["numpy"]["bit_generator"]
        if kind != np.random.get_state(legacy=False)["bit_generator"]:  # noqa: NPY002
            np.random.set_bit_generator(getattr(np.random, kind)())  # type: ignore[attr-defined]
        np.random.set_state(_arrays(state["numpy"]))  # noqa: NPY002
        if torch is not None and "torch" in state:
            torch.random.set_rng_state(tensor_of(state["torch"]))
            restore_devices(state)
        if "tensorflow" in state and (context := _tensorflow_context()) is not None:
            seed, drawing = state["tensorflow"]
            sys.modules["tensorflow"].random.set_seed(seed)
            context._rng.setstate(tupled(drawing))
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise damaged(error) from error


def _generator_of_keras(keras: Any, state: Any) -> Any:
    """Return Keras' global generator with a state, a new one if there is none; None without a state."""
    if state is None:
        return None
    generator = keras.get_global_attribute(_OF_KERAS) or sys.modules["keras"].random.SeedGenerator()
    set_generator(generator.state, state)
    return generator


def put(path: Path, state: dict[str, Any] | None = None) -> None:
    """Write a state to a file. Default: None, the present one."""
    path.write_text(json.dumps(capture() if state is None else state), encoding="utf-8")


def with_torch(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state from before PyTorch was imported with the one that its generator had then."""
    if (torch := sys.modules.get("torch")) is None or "torch" in state:
        return state
    return state | {"torch": of_tensor(torch.Generator().manual_seed(torch.initial_seed()).get_state())}


def imports(path: Path) -> None:
    """Import PyTorch if the state in a file has that of its generator: a program may import it later."""
    if "torch" not in sys.modules and path.is_file():
        with suppress(Exception):  # `put_back` raises what is wrong with the file
            if "torch" in state_from_json(path.read_bytes()):
                import_module("torch")


def put_back(path: Path) -> None:
    """Restore the state of a file, if there is one. Raises InvalidInput if it is damaged."""
    if path.is_file():
        try:
            restore(state_from_json(path.read_bytes()))
        except InvalidInput as error:
            error.add_note(f"It is in {path}.")
            raise


def flags_in(path: Path) -> list[Flags]:
    """Return which weights trained where the random state in a file was captured; none if that is not known."""
    with suppress(OSError, ValueError):
        return [(of, trains) for of, trains in json.loads(path.read_bytes()).get("trainable", [])]
    return []


# generators that a program holds itself


def is_generator(value: Any) -> bool:
    """Return whether it is a generator of Python, NumPy or torch that has a state."""
    torch = sys.modules.get("torch")
    kinds = (random.Random, np.random.Generator, np.random.RandomState, *([] if torch is None else [torch.Generator]))
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def of_generator(generator: Any) -> Any:
    """Return a generator's state as a JSON-able value."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return _lists(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _lists(generator.get_state(legacy=False))
    if _is_of_tensorflow(generator):
        return [int(n) for n in generator.numpy()]
    if _is_of_keras(generator):
        return [int(n) for n in sys.modules["keras"].ops.convert_to_numpy(generator)]
    return of_tensor(generator.get_state())


def set_generator(generator: Any, state: Any) -> None:
    """Restore a generator. Raises InvalidInput if it is not a state of such a generator."""
    try:
        if isinstance(generator, random.Random):
            generator.setstate(tupled(list(state)))
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = _arrays(state)
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(_arrays(state))
        elif _is_of_keras(generator) or _is_of_tensorflow(generator):
            generator.assign(state)
        else:
            generator.set_state(tensor_of(state))
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise damaged(error) from error


def _is_of_keras(value: Any) -> bool:
    """Return whether it is the variable of a Keras seed generator, which Keras gives this name."""
    return getattr(value, "name", None) == "seed_generator_state"


def _is_of_tensorflow(value: Any) -> bool:
    """Return whether it is the variable of a tf.random.Generator, which TensorFlow gives this name.

    Without this name, a plain loop would resume with the first draws of the generator.
    """
    return type(value).__module__.startswith("tensorflow.python.ops.") and (
        str(getattr(value, "name", None)).rpartition("/")[2] == "StateVar:0"
    )


def kind_of(generator: Any) -> str:
    """Return its class, or that of its bit generator: the states of others do not fit."""
    return type(generator.bit_generator if isinstance(generator, np.random.Generator) else generator).__name__


def new_generator(kind: str) -> Any:
    if kind == "Generator":
        import torch

        return torch.Generator()
    made: Any = {"Random": random, "RandomState": np.random}.get(kind)
    return np.random.Generator(getattr(np.random, kind)()) if made is None else getattr(made, kind)()


def _lists(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _lists(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _arrays(value) for name, value in state.items()}
    return np.asarray(state, np.uint64) if isinstance(state, list) else state


_SHUFFLED, _UNDER_WAY = "shuffled", "under way"  # in place of the kind of a generator


class OwnGenerators:
    """Generators in variables of the functions that run a plain loop, or of modules and classes that their code names.

    And the names of lists there that the program shuffles, and of iterators over data from which it reads on.

    iterators: also the latter, by `taken`.
    """

    def __init__(self, iterators: bool = True) -> None:
        self._there: dict[int, tuple[Any, Any]] = {}  # by id: generators at the start of a loop, and their first states
        self._named: dict[str, Any] = {}  # generators by name: a function that has ended shows no variables
        self._saved: dict[str, Any] = {}  # the states of the checkpoint
        self._before: list[tuple[Any, Any]] = []  # generators that were restored, and their states before
        self._orders, self._begun = Orders(), False
        self._iterators = iterators

    def begins(self, path: Path | None) -> tuple[list[str], list[str]]:
        """State that a loop starts, and restore what `capture` has put into the random state in a file.

        Return the names of lists that were shuffled, and of datasets that begin to shuffle from a seed again; and those
        of iterators from which nothing is taken again.
        """
        self._begun, variables = True, on_stack()
        found, restored = _in_code(variables) | _in_variables(variables), {}
        if path is not None and path.is_file():
            self._saved = restored = json.loads(path.read_bytes()).get("own", {})
        for name in restored.keys() & found.keys():
            (kind, state), one = restored[name], found[name]
            if kind_of(one) == kind:
                before = of_generator(one)
                set_generator(one, state)
                if of_generator(one) != before:  # another trial has drawn since
                    self._before.append((one, before))
        self._named = found
        self._there = {id(one): self._there.get(id(one), (one, of_generator(one))) for one in found.values()}
        lists = self._orders.begins(variables, [name for name, (kind, _) in restored.items() if kind == _SHUFFLED])
        lists += [] if path is None else seeded(variables)
        under_way = {name for name, (kind, _) in restored.items() if kind == _UNDER_WAY}
        again = {name for name, value in variables if name in under_way and taken(value) is False}
        return lists, sorted(name.partition(".")[2] for name in again)

    def ends(self) -> None:
        """State that the trial ends: one that all trials share continues where it was before."""
        for one, state in self._before:
            set_generator(one, state)
        self._before = []

    def capture(self) -> dict[str, Any]:
        """Return the random state of the process, with those generators that the loop draws from, and lists."""
        variables = on_stack() if self._begun else []
        own: dict[str, Any] = dict.fromkeys(self._orders.shuffled(variables), (_SHUFFLED, None))
        under_way = [name for name, value in variables if self._iterators and taken(value)]
        own |= dict.fromkeys(under_way, (_UNDER_WAY, None))
        for name, one in (self._named | _in_variables(variables)).items() if self._there else ():
            before = self._there.get(id(one))
            drawn = before is not None and (name in self._saved or of_generator(one) != before[1])
            if drawn or _is_of_keras(one):  # Keras gives it another seed in each process
                own[name] = kind_of(one), of_generator(one)
        return capture() | ({"own": own} if own else {}) | ({"trainable": trainable} if (trainable := flags()) else {})


@dataclass
class Draws:
    """Generators in variables of a loop that haltune does not restore: those that start again where a trial resumes.

    Their states before the first steps of two epochs, and at a pause, show it. One that each epoch makes anew is meant.
    """

    _starts: dict[Hashable, dict[str, Any]] = field(default_factory=dict)  # by trial: before its first step
    _paused: dict[Hashable, dict[str, Any]] = field(default_factory=dict)  # by place
    _draws_on: dict[str, bool] = field(default_factory=dict)  # whether an epoch continues from the one before
    _again: set[str] = field(default_factory=set)  # those that started again in the trial that trains

    def steps(self, trial: Hashable, resumes: Hashable, starts: bool) -> bool:
        """State that an epoch makes its first step; return whether generators have started again in a resumed trial.

        resumes: the place of the pause after which it is the first one, or None. starts: it is the first of the trial.
        """
        first = self._starts.get(trial, {})
        if not starts and resumes is None and first.keys() <= self._draws_on.keys() and not self._again:
            return False
        now = _states_now()
        if starts:
            self._starts[trial], self._again = now | first, set()
        elif resumes is None:
            self._draws_on |= {name: now[name] != state for name, state in first.items() if name in now}
        else:
            paused = self._paused.get(resumes, {})
            self._again = {n for n, s in first.items() if n in paused and now.get(n) == s != paused[n]}
        found = {name for name in self._again if self._draws_on.get(name)}
        self._again -= self._draws_on.keys()
        return bool(found)

    def pauses(self, place: Hashable) -> None:
        """State that a trial pauses."""
        self._paused.setdefault(place, {}).update(_states_now())


def _states_now() -> dict[str, Any]:
    return states_of(_in_variables(on_stack()))


def in_running() -> list[tuple[Any, Any]]:
    """Return the generators in variables of the program's functions that are running, and their states."""
    found = {id(one): one for one in _in_variables(on_stack()).values()}
    return [(one, of_generator(one)) for one in found.values()]


def _in_variables(variables: Variables) -> dict[str, Any]:
    """Return the generators by the functions and variables that hold them."""
    found: dict[str, Any] = {}
    for name, value in variables:
        if _may_hold(type(value)):
            held: dict[str, Any] = {}
            with suppress(Exception):  # an object of the program that raises where it is looked at
                held = generators_in(value, depth=3, code=False)  # which are variables themselves
                for path, model in _models(value):
                    held |= {f"{path}.{inner}": one for inner, one in of_model(model).items()}
            found |= {f"{name}{path[1:]}": one for path, one in held.items()} | found
    return found


def _in_code(variables: Variables) -> dict[str, Any]:
    """Return the generators of modules and classes of the program that code names, by functions and variables.

    The code is that of the functions that are running, with the functions that it names, and of objects in variables.
    """
    found: dict[str, Any] = {}
    objects = [(name, value) for name, value in variables if type(value) is not types.FunctionType]
    for name, value in (*((frame.f_code.co_name, frame) for frame in frames()), *objects):
        if _may_hold(kind := type(value)):
            held = of_code(value, depth=4 if kind is types.FrameType else 2)  # 2: the rows of a loader, and no more
            found |= {f"{name}{path[1:]}": one for path, one in held.items()} | found
    return found


def _may_hold(kind: type) -> bool:
    """Return whether a value of a class may hold generators of the program."""
    return not issubclass(kind, OPAQUE) and not kind.__module__.startswith("haltune.")


def _models(value: Any) -> list[tuple[str, Any]]:
    """Return what may be a model: a variable, and the attributes of an object of the program."""
    return [("0", value), *((f"0.{name}", held) for name, held in attributes(value).items())]


def of_model(model: Any) -> dict[str, Any]:
    """Return the generators of a model: those of Keras' layers, which Keras does not save (keras-team/keras#19796).

    Of torch, those of modules of the program's own classes, as for noise.
    """
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.layers.Layer):
        return {f"seed{i}": v for i, v in enumerate(filter(_is_of_keras, model.variables))}
    named = model.named_modules() if callable(getattr(type(model), "named_modules", None)) else ()
    own = ((name, module) for name, module in named if not of_library(type(module).__module__))
    return {f"{path}.{name}": one for path, module in own for name, one in vars(module).items() if is_generator(one)}


def generators_in(*roots: Any, depth: int = 4, code: bool = True) -> dict[str, Any]:
    """Return the generators of Python, NumPy, torch and TensorFlow that objects hold: path -> generator, each once.

    Attributes and short lists are searched to a depth: a transform of a data set, the sampler of a loader. Wrappers of
    data or of an environment do not count, nor does the place in a list of objects. The nearest come first.

    code: also those in variables of modules and classes that the program's code names.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    left = deque((root, str(i), depth) for i, root in enumerate(roots) if type(root) not in _LEAVES)
    while left and len(seen) < _MOST:
        value, path, depth = left.popleft()
        if is_generator(value) or _is_of_tensorflow(value):
            if id(value) not in seen:
                seen.add(id(value))
                while path in found:  # as in the modules of a class and of its base
                    path += "'"
                found[path] = value
        elif depth and id(value) not in seen and not _keeps_books(type(value).__module__):
            seen.add(id(value))
            of_list, wrapped = isinstance(value, (list, tuple)), []
            for name, inner in (*_inside(value), *(_named_by(value) if code else ())):
                if type(inner) in _LEAVES:
                    continue
                if name in _WRAPPED or (of_list and not isinstance(inner, (list, tuple, dict))):
                    wrapped.append((inner, f"{path}.{name}", depth))
                else:
                    left.append((inner, f"{path}.{name}", depth - 1))
            left.extendleft(reversed(wrapped))
    return found


@functools.cache
def _keeps_books(module: str) -> bool:
    """Return whether a module is of haltune's own records, such as a trial: they hold nothing of the program's data."""
    return module.startswith("haltune.") and not module.startswith("haltune.callbacks.")


def states_of(generators: dict[str, Any]) -> dict[str, Any]:
    """Return the states of generators: path -> a JSON-able value."""
    return {path: of_generator(generator) for path, generator in generators.items()}


def set_states(generators: dict[str, Any], states: dict[str, Any]) -> None:
    """Restore the generators that `states` names.

    Raises InvalidInput if a state is not one of its generator.
    """
    for path in generators.keys() & states.keys():
        set_generator(generators[path], states[path])


_SHORT, _MOST = 20, 20_000  # elements of a list, objects that are searched
_LEAVES = frozenset({type(None), bool, int, float, str, bytes, np.ndarray})
# attributes of wrappers, of which there may be many: around an environment of Gymnasium, of a data set, as by MONAI
_WRAPPED = frozenset({"env", "envs", "dataset", "datasets", "transform", "transforms"})


def _inside(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(str(key), inner) for key, inner in value.items()] if len(value) <= _SHORT else []
    if isinstance(value, (list, tuple)):
        return [(str(i), inner) for i, inner in enumerate(value)] if len(value) <= _SHORT else []
    if isinstance(value, functools.partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, types.FunctionType):  # the variables of the functions around it
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return [(name, cell.cell_contents) for name, cell in cells if cell != types.CellType()]
    if isinstance(value, (type, types.ModuleType)) or hasattr(value, "parameters"):
        return []  # a model is no data
    owner = getattr(value, "__self__", None)  # of a method
    return [*getattr(value, "__dict__", {}).items(), *([] if owner is None else [("__self__", owner)])]


_CODE = (types.FunctionType, types.GeneratorType, types.FrameType, type, types.ModuleType)
# class -> the modules of its code, and what that names
_NAMES: WeakKeyDictionary[type, list[tuple[str, set[str]]]] = WeakKeyDictionary()


def _named_by(value: Any) -> list[tuple[str, Any]]:
    """Return the generators and functions of the program that its code of an object names in its module or class.

    value: a function, a generator that reads data, a frame, or an object, whose class has code.
    """
    uses: list[tuple[dict[str, Any], set[str]]] = []
    if isinstance(value, types.FunctionType):
        uses = [(value.__globals__, names_in(value.__code__))] if is_own(value.__module__) else []
    elif isinstance(value, types.GeneratorType):
        uses = [] if value.gi_frame is None else [(value.gi_frame.f_globals, names_in(value.gi_code))]
    elif isinstance(value, types.FrameType):
        uses = [(value.f_globals, names_in(value.f_code))]
    elif not isinstance(value, (type, types.ModuleType)):
        if (kind := type(value)) not in _NAMES:
            own = [base for base in kind.__mro__ if is_own(base.__module__)]
            held = [(of.__module__, one) for of in own for one in vars(of).values()]
            codes = [(of, one.__func__ if isinstance(one, staticmethod | classmethod) else one) for of, one in held]
            _NAMES[kind] = [(of, names_in(f.__code__)) for of, f in codes if isinstance(f, types.FunctionType)]
        uses = [(vars(sys.modules[of]), names) for of, names in _NAMES[kind] if of in sys.modules]
    found = [(name, module[name]) for module, names in uses for name in sorted(names & module.keys())]
    names = set[str]().union(*(names for _, names in uses))
    for place, one in [*found]:  # modules and classes of the program, such as augment.crop(x)
        kind = type(one)  # a lazy module, whose class is another one, is imported if isinstance asks it
        within: list[Any] = [*one.__mro__] if issubclass(kind, type) else [one] * (kind is types.ModuleType)
        for of in within:
            if is_own(of.__name__ if kind is types.ModuleType else of.__module__):
                found += [(f"{place}.{name}", vars(of)[name]) for name in sorted(names & vars(of).keys())]
    own = [] if isinstance(value, _CODE) else [of for of in type(value).__mro__ if is_own(of.__module__)]
    held = [(f"class {name}", one) for of in own for name, one in vars(of).items() if is_generator(one)]
    return held + [
        (f"module {name}", one)  # the object may have an attribute with this name
        for name, one in found
        if not issubclass(type(one), types.ModuleType)
        and (is_generator(one) or (isinstance(one, types.FunctionType) and is_own(one.__module__)))
    ]


def of_code(*roots: Any, depth: int = 4) -> dict[str, Any]:
    """Return the generators in variables of modules and classes that the program's code of some objects names."""
    with suppress(Exception):  # an object of the program that raises where it is looked at
        held = generators_in(*roots, depth=depth)
        return {path: one for path, one in held.items() if ".module " in path or ".class " in path}
    return {}


# states as text


def tupled(value: Any) -> Any:
    """Return a state of Python's generators with tuples, which JSON turned into lists."""
    return tuple(tupled(v) for v in value) if isinstance(value, list) else value


def of_tensor(tensor: Any) -> str:
    """Return the state of a torch generator as text."""
    return base64.b64encode(tensor.cpu().numpy().tobytes()).decode("ascii")


def tensor_of(text: str) -> Any:
    """The inverse of `of_tensor`."""
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
