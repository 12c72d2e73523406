"""A Ray cluster of some nodes on this machine: this program is on the first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SUPPORT = str(Path(__file__).parents[2] / "support")
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


class Nodes:
    """The cluster, some of whose nodes a test kills."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # its hooks at the end of the process are set by the main thread only, and tests add nodes in others
        self._cluster = Cluster(initialize_head=True, head_node_args=SMALL, shutdown_at_exit=False)
        self.others: list[Any] = []

    def __enter__(self) -> Nodes:
        import ray

        ray.init(address=self._cluster.address, log_to_driver=False)
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()

    def fill(self, others: int = 2, **more: Any) -> None:
        """Bring it back to so many nodes besides the first."""
        while len(self.others) < others:
            self.others.append(self._cluster.add_node(wait=False, **SMALL, **more))
        self._cluster.wait_for_nodes()

    def kill(self, node: str) -> None:
        """Kill one of the other nodes, by its id."""
        (dying,) = [n for n in self.others if n.node_id == node]
        self.others.remove(dying)
        self._cluster.remove_node(dying, allow_graceful=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'haltune[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")]))  # of the nodes
        with Nodes() as nodes:
            yield nodes


@pytest.fixture
def nodes(cluster: Nodes, request: pytest.FixtureRequest) -> Nodes:
    """Three nodes for slow tests, two for the quick one: a node takes seconds."""
    cluster.fill(2 if request.node.get_closest_marker("slow") else 1)
    return cluster
