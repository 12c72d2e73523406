"""FSDP under Accelerate and the Trainer on the CPU.

Accelerate chooses FSDP on accelerators only. Here it chooses it on the CPU, too; what follows is its own code.
"""

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

_starts = AcceleratorState.__init__


def _starts_sharded(self, *args, fsdp_plugin=None, **named):
    _starts(self, *args, fsdp_plugin=fsdp_plugin, **named)
    if fsdp_plugin is not None and self.device.type == "cpu":
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        PartialState._shared_state["device"] = torch.device("cpu")  # FSDP does not know cpu:0
        self.__dict__.update(PartialState._shared_state)
        self.fsdp_plugin = fsdp_plugin


AcceleratorState.__init__ = _starts_sharded
