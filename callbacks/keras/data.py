"""The place of a fit in its data, and what the data change while they are read.

A fit with steps_per_epoch may end an epoch within its data. A resumed fit then reads the earlier batches again, without
training. A shuffle of tf.data from a seed returns to its pass if all passes are whole.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from haltune._utils import generators, own_generators, randomness
from haltune._utils.around import of_library, own_classes
from haltune._utils.code import functions_in
from haltune._utils.interruption import caller, variables
from haltune.errors import NotSupported
from haltune.study.fits import weak

from .. import objects
from . import shuffles
from .companions import Apart, Watch, set_values, values_of
from .places import is_variable, parts_in, slots_of

_PEEKED = 2  # batches of a generator that Keras reads before the training, for their shapes


class _Source:
    """What a dataset, a loader or an adapter of the program's changes while it is read.

    source: None if it has no state. earlier: the record of the previous fit.
    """

    def __init__(self, trial: int, source: Any, earlier: _Source | None = None) -> None:
        self.given: Callable[[], Any] = weak(source)
        roots: list[Any] = []
        owners: dict[str, Any] = {}
        self.seeds: list[Any] = []  # variables of Keras' generators in layers that its functions use
        if source is not None:
            roots = [source]
            if _is_tf(source):
                functions = _functions_of(source)
                self.seeds = _seeds_of(functions)
                roots = [
                    {f"{i}.{name}": value for i, f in enumerate(functions) for name, value, _ in slots_of("", f)},
                    *functions,
                ]
                owners = {f"data {i}": f for i, f in enumerate(functions)}
            else:
                parts = {n: getattr(source, n, None) for n in ("sampler", "batch_sampler", "dataset")}
                owners = {"data": source} | {n: part for n, part in parts.items() if hasattr(part, "__dict__")}
                owners |= _datasets_in(source, "data")
                own = [base for one in owners.values() for base in own_classes(type(one))]
                self.seeds = _seeds_of(functions_in(*(one for of in own for one in vars(of).values())))
        self.has_code = bool(owners)  # of the program's, or of a loader
        self.generators = own_generators.generators_in(*roots)
        self._watch: Watch = Watch(trial, owners, None if earlier is None else earlier._watch, of_data=True)

    def state(self, apart: Apart | None = None, whole: bool = True) -> dict[str, Any]:
        """Return what has changed. Raises NotSupported if it cannot be saved.

        apart: takes large arrays. whole: it was read in whole passes, by one process.
        """
        shuffled = shuffles.states_of(self.given(), whole)
        changed, unread = self._watch.changes(apart=apart)
        if unread:
            raise NotSupported(unread[0])
        held = generators.states_of(self.generators)
        return {"generators": held, "changed": changed, "seeds": values_of(self.seeds), "shuffles": shuffled}

    def put_back(self, state: Mapping[str, Any], apart: Sequence[Any] = ()) -> list[str]:
        """Set what `state` returned; return the names of what cannot be set. apart: the large arrays."""
        set_values(self.seeds, state["seeds"])
        failed = self._watch.put_back(state["changed"], apart)
        generators.set_states(self.generators, state["generators"])
        return failed


def _datasets_in(source: Any, name: str, depth: int = 3) -> dict[str, Any]:
    """Return the PyDatasets that a PyDataset reads, with their names."""
    from keras.utils import PyDataset

    found: dict[str, Any] = {}
    for key, one in vars(source).items() if depth and isinstance(source, PyDataset) else ():
        if isinstance(one, PyDataset):
            found |= {f"{name} {key}": one} | _datasets_in(one, f"{name} {key}", depth - 1)
    return found


class _Validation(_Source):
    """The data of a fit's validations: Keras starts each one with a new pass, and keeps what the data have changed.

    cut: a validation may end before the end of the data.
    """

    def __init__(self, trial: int, given: Any, cut: bool, earlier: _Source | None = None) -> None:
        from keras import backend

        arrays = isinstance(given, (tuple, list, dict)) or hasattr(given, "shape")
        self._is_generator = isinstance(given, types.GeneratorType)
        super().__init__(trial, None if arrays or self._is_generator else given, earlier)
        self._cut, self._by_tf = cut, backend.backend() == "tensorflow"
        self._first = generators.states_of(self.generators)
        self._reads: bool | None = None

    def state(self, apart: Apart | None = None, whole: bool = True) -> dict[str, Any]:
        source = self.given()
        if self._is_generator:
            raise NotSupported(
                "its validation_data is a generator, of which each validation reads further batches. Use arrays, or a "
                "keras.utils.PyDataset"
            )
        state = super().state(apart, whole)
        ahead = self._cut and (self._by_tf or _is_tf(source))
        if ahead and (state["changed"] or self.seeds or state["generators"] != self._first):
            raise NotSupported(
                "TensorFlow reads its validation data ahead by a function with a state, so its place cannot be "
                "restored. Leave out validation_steps"
            )
        if self._by_tf and self._changes_when_read(source, state, [] if apart is None else apart.arrays):
            raise NotSupported(
                "reading its validation data changes them or draws random numbers, and TensorFlow reads batches for "
                "their shapes before the first validation of each fit. Validate on arrays, or on a tf.data dataset"
            )
        return state

    def _changes_when_read(self, source: Any, state: dict[str, Any], apart: Sequence[Any]) -> bool:
        """Return whether reading a batch, as TensorFlow does for its shapes, changes something."""
        from keras.utils import PyDataset

        if not isinstance(source, PyDataset):
            return type(source).__module__.startswith("torch.")  # iterating a loader draws its seed
        if self._reads is None:
            before = randomness.capture()
            try:
                source[0]
                self._reads = json.dumps([before, state]) != json.dumps([randomness.capture(), super().state()])
            except Exception:  # of the program's own code: Keras would meet it, too
                self._reads = True
            randomness.restore(before)
            self.put_back(state, apart)
        return self._reads


# generator that a program has given to fits -> the attempt of a trial that has read it; None: several
_READERS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_ONE_EACH = "Make it for each trial, within the loop"


class Data:
    """The place of a fit in its data.

    within: what HaltuneCallback evaluates within an epoch. reader: what names the attempt of the trial.

    Keras has no public access to a fit's data. They are the local `epoch_iterator` of Model.fit, with a `data_adapter`.
    Without it, shuffles by the data's own generators, and the place within a pass, start again in a resumed fit.
    """

    def __init__(self, trial: int, reader: Any, earlier: Data | None = None, within: Any = None) -> None:
        import keras

        given = variables(caller("fit", "keras."))
        iterator = given.get("epoch_iterator")
        self._fit: Callable[[], Any] = weak(iterator)
        read = objects.variables_of(getattr(getattr(iterator, "data_adapter", None), "generator", None))
        self._generator: Callable[[], Any] = weak(read.get("generator", (None,))[0])  # that the program gave to fit
        self._reader = reader
        self.read_before = False  # True: an earlier fit of this attempt has read from its generator, too
        if (generator := self._generator()) is not None:
            self.read_before = _READERS.get(generator) == reader
            _READERS[generator] = reader if _READERS.get(generator, reader) == reader else None
        source = self._source
        self._of_training: _Source = _Source(trial, source, None if earlier is None else earlier._of_training)
        self._of_training.generators |= own_generators.generators_in(generator)
        evaluated = [(given.get("validation_data"), bool(given.get("validation_steps"))), (within, False)]
        before: list[Any] = [None, None] if earlier is None else earlier._of_validation
        self._of_validation: list[_Validation] = [
            _Validation(trial, *one, past) for one, past in zip(evaluated, before, strict=True)
        ]
        # random states before the first batch of the present pass, and whether its iterator was made before that
        self._drawn: tuple[Any, Any, bool] | None = None
        # whether TensorFlow may read ahead from the program's own code
        by_own = self._generator() is not None if source is None else self._of_training.has_code
        self._ahead = by_own and (keras.backend.backend() == "tensorflow" or _is_tf(source))

    @property
    def _iterator(self) -> Any:
        return self._fit()

    @property
    def _source(self) -> Any:
        """What the program gave to fit, if it may have a state: a dataset, a loader or an adapter of the user's."""
        adapter = getattr(self._iterator, "data_adapter", None)
        if type(adapter).__name__ in ("ArrayDataAdapter", "GeneratorDataAdapter"):
            return None
        names = ("py_dataset", "_dataloader", "_dataset")
        return next((found for n in names if (found := getattr(adapter, n, None)) is not None), adapter)

    @property
    def within(self) -> bool:
        """True if epochs may end within a pass over the data."""
        return bool(getattr(self._iterator, "steps_per_epoch", None))

    @property
    def _shared(self) -> bool:
        """True if another training of this process has read from its generator, too."""
        generator = self._generator()
        return generator is not None and _READERS.get(generator) != self._reader

    def epoch_begins(self, capture: Callable[[], Any]) -> None:
        """Record the random state if the next batch is the first of a pass."""
        if self.within and (self._iterator._current_iterator is None or self._iterator._steps_seen == 0):
            made = self._iterator._current_iterator is not None
            self._drawn = capture(), generators.states_of(self._of_training.generators), made

    def state(self, within: bool, apart: Apart | None = None) -> dict[str, Any]:
        """Return the place after an epoch. Raises NotSupported if a fit cannot return to it.

        within: a fit. The next fit after its end starts a new pass. apart: takes large arrays.
        """
        source = self._source
        if self.read_before:
            raise NotSupported("several fits read from the same generator of its data. Make one for each fit")
        if self._shared:
            raise NotSupported(f"another training has read from the generator of its data, too. {_ONE_EACH}")
        enqueuer = getattr(getattr(self._iterator, "data_adapter", None), "enqueuer", None)
        if enqueuer is not None and not enqueuer.ready_queue.empty():
            raise NotSupported("the workers of its PyDataset hold batches for its next epoch. Use workers=1")
        if getattr(source, "persistent_workers", False):
            raise NotSupported(
                "the workers of its DataLoader persist, with random states of their own. Use persistent_workers=False"
            )
        shuffles.need_apart([source, *(one.given() for one in self._of_validation)])
        alone = not _is_distributed(self._iterator)
        state = self._of_training.state(apart, alone and within and not self.within)
        state["length"] = self._iterator._num_batches if state["shuffles"] else None
        held, changed = state["generators"], state["changed"]
        seen = drawn = None
        if self.within and within:
            seen = int(self._iterator._steps_seen)
            drawn = self._drawn if seen else None
            states = json.dumps([_of_python(drawn[0]), drawn[1]]) if drawn else ""
            others = drawn is not None and states != json.dumps([_of_python(randomness.capture()), held])
            if self._ahead and (changed or state["seeds"] or others):
                raise NotSupported(
                    "TensorFlow reads its data ahead by a function with a state or with global random numbers, so its "
                    "place in the data cannot be restored. Leave out steps_per_epoch, or let a Python generator draw "
                    "from one that it makes itself, np.random.default_rng(seed)"
                )
            if self._generator() is not None and seen < _PEEKED:
                raise NotSupported("Keras reads two batches of its generator before the training, and one is left")
        validation = [one.state(apart, alone and within) for one in self._of_validation]
        return state | {"seen": seen, "drawn": drawn, "validation": validation}

    def put_back(
        self, state: Mapping[str, Any], restore: Callable[[Any], object], apart: Sequence[Any] = ()
    ) -> list[str]:
        """Return to a place; return the names of what cannot be set.

        restore: sets a random state; the caller sets the final one afterwards. apart: the large arrays.

        Raises NotSupported if another training, or an earlier attempt, has read from its generator.
        """
        if self._shared:
            raise NotSupported(
                "This trial resumes, and the generator of its data has been read before, by another training or an "
                f"earlier attempt, so the trial would read other batches than without its pause. {_ONE_EACH}."
            )
        if state["seen"] is not None:
            self._drawn = state["drawn"]
            drawn, held, made = self._drawn or (None, {}, False)
            iterator = self._iterator
            if made:  # making it draws numbers, too
                iterator._current_iterator = iter(iterator._get_iterator())
            if drawn is not None:
                restore(drawn)
                generators.set_states(self._of_training.generators, held)
            if not made:
                iterator._current_iterator = iter(iterator._get_iterator())
            for _ in range(state["seen"]):
                next(iterator._current_iterator, None)
            iterator._steps_seen = state["seen"]
        if state.get("length") is not None:  # which Keras has found in the first pass
            self._iterator._num_batches = state["length"]
        failed = self._of_training.put_back(state, apart)
        validation = state.get("validation", ())  # another one if the program has changed
        for one, held in zip(self._of_validation, validation, strict=False):
            failed += one.put_back(held, apart)
        return failed

    def put_orders_back(self, state: Mapping[str, Any]) -> list[str]:
        """Return to the orders of tf.data shuffles; return the names of those that cannot be set."""
        sources = [self._of_training, *self._of_validation]
        both = zip(sources, [state, *state.get("validation", ())], strict=False)
        return [name for one, held in both for name in shuffles.put_back(one.given(), held.get("shuffles", []))]


def _of_python(state: Mapping[str, Any]) -> list[Any]:
    return [state["python"], state["numpy"]]


def batches_of_epoch(planned: int | None) -> int:
    """Return the number of batches that the fit has trained in the epoch that ends. planned: by Keras, if known.

    Keras counts them only in a local of Model.fit. Without it, an epoch that ended early would count as a whole one.
    """
    end = variables(caller("fit", "keras.")).get("end_step")
    trained = (planned or 0) if end is None else int(end) + 1
    return min(trained, planned) if planned else trained  # with steps_per_execution, end_step may be beyond the end


def _is_distributed(iterator: Any) -> bool:
    """Return whether a fit's data go to several devices, by a strategy of TensorFlow or a distribution of Keras.

    Keras has no public name for the distributed data set. Without it, the state of a shuffle for several devices would
    be saved as if for one.
    """
    from keras import distribution

    given = getattr(iterator, "_distributed_dataset", None)
    return type(given).__module__.startswith("tensorflow.python.distribute.") or distribution.distribution() is not None


def _is_tf(source: Any) -> bool:
    return type(source).__module__.startswith("tensorflow.")


def _upstream(source: Any) -> Iterator[Any]:
    """Yield a tf.data dataset and those from which it reads, without those before a cache.

    These are read in the first pass only. A resumed fit repeats it from its start, if its seeds are the same.
    """
    left = [source] if hasattr(source, "_inputs") else []
    while left:
        one = left.pop()
        if type(one).__name__ != "CacheDataset":
            yield one
            left += one._inputs()


def _functions_of(source: Any) -> list[Any]:
    """Return the program's functions from which a tf.data dataset reads: those of from_generator and of map.

    TensorFlow has no public access to them. Without them, what they remember would start again in a resumed trial.
    """
    found, seen, left = [], set(), [source]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "_inputs"):
            parts = (part for dataset in _upstream(one) for part in vars(dataset).values())
            left += [f for part in parts if (f := getattr(part, "_func", None)) is not None]
        elif isinstance(one, types.FunctionType) and of_library(one.__module__):
            left += [value for value, _ in objects.variables_of(one).values()]
        elif _is_tf(one) and hasattr(one, "_generator"):  # of from_generator
            left.append(one._generator)
        elif callable(one) and not isinstance(one, type) and hasattr(one, "__dict__"):
            found.append(one)
    return found


def _seeds_of(functions: Iterable[Any]) -> list[Any]:
    """Return the variables of Keras' seed generators in layers that functions use, such as RandomFlip in a map.

    Also those in variables of modules, and in lists there, that these or further functions of the program name, and the
    variables there, such as those of a tf.random.Generator.
    """
    from keras import Layer
    from keras.random import SeedGenerator

    followed = functions_in(*functions)
    named = [value for of in followed.values() for _, value in of]
    used = [*(value for one in (*functions, *followed) for _, value, _ in slots_of("", one)), *named]
    parts = [part for one in used for _, part in parts_in(one)]
    layers = [layer for one in parts if isinstance(one, Layer) for layer in one._flatten_layers()]
    held = [value for layer in layers for value in vars(layer).values()]
    held += [inner for value in held if isinstance(value, dict) for inner in value.values()]
    found = {id(one): one.state for one in (*parts, *held) if isinstance(one, SeedGenerator)}
    return [*(found | {id(one): one for of in named for _, one in parts_in(of) if is_variable(one)}).values()]
