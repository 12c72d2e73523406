"""Keras trainings of several processes: each would report, and stop, on its own.

Several devices of one process (MirroredStrategy, keras.distribution) are one training.
"""

from __future__ import annotations

import json
import os
import sys

from haltune.errors import NotSupported

from ..frameworks.ranks import torch_ranks


def refuse_many_processes() -> None:
    """Raises NotSupported when this training runs in several processes."""
    found = {
        "TF_CONFIG with {} workers": _workers_in_tf_config,
        "torch.distributed with {} processes": lambda: torch_ranks().size,
        "jax.distributed with {} processes": _jax_world,
    }
    for sentence, count in found.items():
        if (processes := count()) > 1:
            raise NotSupported(
                f"this fit runs in several processes ({sentence.format(processes)}), and under Keras haltune "
                "reports from one only: train in one, on its devices with MirroredStrategy or keras.distribution"
            )


def _workers_in_tf_config() -> int:
    """How many tasks train, by the environment variable TF_CONFIG; 1 when it is absent or unreadable."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return max(1, sum(len(cluster.get(job, ())) for job in ("chief", "worker", "master")))
    except (ValueError, AttributeError, TypeError):
        return 1


def _jax_world() -> int:
    """Asked on Keras' JAX backend only: the question makes JAX claim its devices."""
    jax, keras = sys.modules.get("jax"), sys.modules.get("keras")
    if jax is None or keras is None or keras.backend.backend() != "jax":
        return 1
    return int(jax.process_count())
