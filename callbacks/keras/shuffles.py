"""The place of shuffles of `tf.data` that draw an order from their seed for each pass over the data.

Such a shuffle draws two numbers for each iterator. TensorFlow's C++ code counts them, and all datasets that read from
the shuffle share the count. The state of an iterator has it, and restoring such a state sets it. The iterators that
are made for this read no element. So a resumed fit has the count of the pause, whatever its program has read before.

TensorFlow has no public access to the count. Without the private names and the form of an iterator's state that this
module reads, trials with such data do not pause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from haltune.errors import NotSupported

_LONGEST = 100_000  # elements of a buffer: the state has a part for each, which takes 2 seconds
_COUNT = b"epoch_num_random_samples"
_EACH = 2  # numbers for an iterator
_IRREGULAR = {"_RepeatDataset", "_ConcatenateDataset", "_SnapshotDataset"}  # make iterators within a pass, or ahead

_WHY = (
    "its tf.data dataset shuffles from a seed, in another order in each pass, and haltune cannot return to a pass of "
    "it: with steps_per_epoch, a repeat() or two caches behind the shuffle, a shuffle that two datasets read, of which "
    "one has a cache, rerandomize_each_iteration, more than 100,000 elements in its buffer, on several devices, or "
    "between two fits. Leave these out. Or set shuffle=False in the *_from_directory functions, "
    "and use your own .shuffle(n, reshuffle_each_iteration=False)"
)


class _Shuffle(NamedTuple):
    dataset: Any
    caches: tuple[Any, ...]  # that read from it
    regular: bool  # a pass makes one iterator of it

    @property
    def seeds(self) -> list[int]:
        return [int(getattr(self.dataset, name)) for name in ("_seed", "_seed2")]


def in_dataset(source: Any) -> list[_Shuffle]:
    """Return the shuffles in a tf.data dataset whose seed determines an order for each pass.

    Without those that a shuffle without a seed reads: its order differs in each process anyway.
    """
    found: list[_Shuffle] = []
    left: list[Any] = [(source, (), True)] if hasattr(source, "_inputs") else []
    while left:
        one, caches, regular = left.pop()
        kind = type(one).__name__
        if kind == "_ShuffleDataset":
            shuffle = _Shuffle(one, caches, regular)
            if not any(shuffle.seeds):
                continue
            found += [shuffle] if one._reshuffle_each_iteration is not False else []
            regular &= not caches  # it makes the iterators of its inputs later, so `_is_full` would not see them
        elif getattr(one, "_rerandomize", None) or getattr(one, "_reshuffle_each_iteration", False) is not False:
            other = _Shuffle(one, caches, False)  # of sample_from_datasets, or a shuffle of another kind
            found += [other] if any(other.seeds) else []
        caches = (*caches, one) if kind == "CacheDataset" else caches
        left += [(inner, caches, regular and kind not in _IRREGULAR) for inner in one._inputs()]
    return found


def need_apart(sources: Iterable[Any]) -> None:
    """Raise NotSupported if one of a fit's caches reads from a shuffle that is read elsewhere, too.

    The count of such a shuffle is not that of the pass that filled the cache.
    """
    found = [one for source in {id(source): source for source in sources}.values() for one in in_dataset(source)]
    times = Counter(id(one.dataset) for one in found)
    if any(one.caches and times[id(one.dataset)] > 1 for one in found):
        raise NotSupported(_WHY)


def states_of(source: Any, whole: bool = True) -> list[dict[str, Any]]:
    """Return the place of the shuffles in a dataset after a pass. Raises NotSupported if a fit cannot return to it.

    whole: all passes are whole.
    """
    found = in_dataset(source)
    if not found:
        return []
    exact = whole and not source.options().experimental_warm_start
    exact &= all(one.regular and len(one.caches) < 2 for one in found)
    exact &= all(int(getattr(one.dataset, "_buffer_size", 0)) <= _LONGEST for one in found)
    for several in ([id(one.dataset) for one in found], [id(cache) for one in found for cache in one.caches]):
        exact &= len({*several}) == len(several)
    states: list[dict[str, Any]] = []
    for one in found if exact else ():
        count = _count(one.dataset)
        exact &= not one.caches or _is_full(one, count)
        states.append({"seeds": one.seeds, "count": _before_cached(count) if one.caches else count})
    if not exact:
        raise NotSupported(_WHY)
    return states


def put_back(source: Any, states: list[dict[str, Any]]) -> list[str]:
    """Set what `states_of` returned; return the names of what cannot be set."""
    found = in_dataset(source) if states else []
    if [one.seeds for one in found] != [state["seeds"] for state in states]:
        return ["the order of a tf.data dataset, which now shuffles from another seed,"]
    failed = []
    for one, state in zip(found, states, strict=True):
        try:
            count = _count(one.dataset)
            if not one.caches or not _is_full(one, count):
                _set_count(one.dataset, state["count"])
            elif count and _before_cached(count) != state["count"]:  # 0: it is read from a file
                failed.append("the order in a cache of a tf.data dataset, which this attempt has read before its fit,")
        except NotSupported:  # by this version of TensorFlow
            failed.append("the order of a tf.data dataset, which shuffles from a seed,")
    return failed


def _before_cached(count: int) -> int:
    """Return how many numbers a shuffle had drawn before the pass that filled a cache, which was the last one."""
    return max(count - _EACH, 0)


def _is_full(shuffle: _Shuffle, count: int) -> bool:
    """Return whether a cache reads no longer from its shuffle, which has drawn so many numbers."""
    _made(shuffle.caches[0])
    full = _count(shuffle.dataset) == count
    _set_count(shuffle.dataset, count)
    return full


def _count(dataset: Any) -> int:
    """Return how many numbers a shuffle has drawn. Raises NotSupported if an iterator's state has another form."""
    try:
        names, values, _ = _parts_of(_state_of(_made(dataset))[0])
        count = int(values[names.index(_COUNT)]) - _EACH
        _set_count(dataset, count)
    except Exception as error:  # also those of TensorFlow and of protocol buffers
        raise NotSupported(_WHY) from error
    return count


def _set_count(dataset: Any, count: int) -> None:
    """Let a shuffle draw next what it draws after so many numbers."""
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2, types_pb2

    iterator = _made(dataset)
    first, *others = tf.unstack(_state_of(_made(tf.data.Dataset.range(1).shuffle(1, seed=1))))
    names, values, data = _parts_of(first)
    values[names.index(_COUNT)] = tf.constant(count, tf.int64)
    packed = tf.io.serialize_tensor(tf.raw_ops.CompressElement(components=values))
    data.tensors[0].ParseFromString(packed.numpy())
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_VARIANT, tensor_shape={}, variant_val=[data])
    first = tf.io.parse_tensor(proto.SerializeToString(), tf.variant)
    state = tf.stack([first, *others])
    tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=state)


def _made(dataset: Any) -> Any:
    """Return an iterator of a dataset that reads nothing ahead and has the dataset itself at its root."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = options.experimental_warm_start = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    return iter(dataset.with_options(options))


def _state_of(iterator: Any) -> Any:
    """Return the state of an iterator: a vector of variants, of which the first is that of its root."""
    import tensorflow as tf

    return tf.raw_ops.SerializeIterator(resource_handle=iterator._iterator_resource, external_state_policy=1)  # ignore


def _parts_of(variant: Any) -> tuple[list[bytes], list[Any], Any]:
    """Return names and numbers of a part of an iterator's state, and its protocol buffer."""
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    content = tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(variant).numpy()).tensor_content
    start = next(i for i, byte in enumerate(content) if byte < 128) + 1  # behind its length
    data = tensor_pb2.VariantTensorDataProto.FromString(content[start:])
    _, *names = data.metadata.split(b"@@")
    packed = tf.io.parse_tensor(data.tensors[0].SerializeToString(), tf.variant)
    types, shapes = [tf.int64] * len(names), [()] * len(names)
    return names, list(tf.raw_ops.UncompressElement(compressed=packed, output_types=types, output_shapes=shapes)), data
