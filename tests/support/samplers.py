"""Samplers of another library, which keep a state: pytorch_metric_learning has such ones."""

import numpy as np
import torch


class Cached:
    """A data set that fills a cache."""

    __module__ = "numpy"  # as if an installed package had it

    def __init__(self):
        self.cache = []


class Shuffling(torch.utils.data.Sampler):
    """Its classes, of four rows each, are shuffled in place for each pass."""

    __module__ = "numpy"

    def __init__(self, rows=24):
        self.classes, self.data = [*range(rows // 4)], Cached()

    def __iter__(self):
        self.data.cache.append(len(self))
        np.random.shuffle(self.classes)  # noqa: NPY002 (as the library does)
        return iter([4 * kind + i for kind in self.classes for i in range(4)])

    def __len__(self):
        return 4 * len(self.classes)


class Numbered(torch.utils.data.Sampler):
    """Its order is that of the number of the epoch."""

    __module__ = "numpy"

    def __init__(self, rows=24):
        self.rows, self.epoch = rows, 0

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.rows).tolist())

    def __len__(self):
        return self.rows

    def set_epoch(self, epoch):
        self.epoch = epoch
