"""Random numbers that depend on a slot's own seed and position alone: a hash of both, as in Salmon et al. 2011.

So a slot that is saved needs no state of a generator, and its numbers are the same with any neighbours and on any
device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def _whole(number: int) -> Tensor:
    return torch.tensor(number, dtype=torch.int32)  # a plain number would become a tensor at each use


_FIFTEEN, _SIXTEEN, _LOW = _whole(15), _whole(16), _whole(0xFFFFFF)
_ONE, _OTHER, _STRIDE, _ASKED = _whole(0x7FEB352D), _whole(-0x7B935975), _whole(0x1E3779B1), _whole(0x3C6EF372)


def _mixed(x: Tensor) -> Tensor:
    """A hash of 32-bit integers."""
    x = (x ^ (x >> _SIXTEEN)) * _ONE
    x = (x ^ (x >> _FIFTEEN)) * _OTHER
    return x ^ (x >> _SIXTEEN)


@dataclass
class Draws:
    """The numbers of one step of every slot, in the order in which they are asked for."""

    seeds: Tensor  # (slots,) int32
    steps: Tensor  # (slots,) int32
    asked: int = 0

    def uniform(self, *shape: int) -> Tensor:
        """(slots, *shape) in [0, 1)."""
        self.asked += 1
        keys = _mixed(_mixed(self.seeds + _ASKED * self.asked) + self.steps)
        counts = torch.arange(math.prod(shape), dtype=torch.int32, device=keys.device) * _STRIDE
        bits = _mixed(keys[:, None] + counts) & _LOW
        return (bits * (1.0 / (1 << 24))).reshape(len(keys), *shape)

    def normal(self, *shape: int) -> Tensor:
        """(slots, *shape) by Box and Muller."""
        radius = torch.sqrt(-2.0 * torch.log1p(-self.uniform(*shape)))
        return radius * torch.cos(2.0 * math.pi * self.uniform(*shape))

    def rows(self, count: int, *shape: int) -> Tensor:
        """(slots, *shape) row numbers below `count`."""
        return (self.uniform(*shape) * count).long().clamp_(max=count - 1)

    def kept(self, rate: Tensor, *shape: int) -> Tensor:
        """(slots, *shape) what dropout of the slots' rates multiplies by."""
        rate = rate.reshape(-1, *[1] * len(shape))
        return (self.uniform(*shape) >= rate) / (1.0 - rate)
