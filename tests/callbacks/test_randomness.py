"""Random state: what was captured goes on with the same numbers, through JSON, in another process."""

import json
import random
import sys

import numpy as np
import pytest

from haltune.callbacks.randomness import capture, restore


def draws():
    some = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        some += [*torch.rand(3).tolist(), *torch.randperm(5).tolist()]
    return some


def test_restored_generators_draw_the_same_numbers():
    pytest.importorskip("torch")
    for burnt in range(4):  # gauss keeps every other number back
        for _ in range(burnt):
            draws()
        state = json.loads(json.dumps(capture()))
        first = draws()
        random.seed(1), np.random.seed(1), sys.modules["torch"].manual_seed(1)  # noqa: NPY002
        assert draws() != first
        restore(state)
        assert draws() == first


def test_another_process_goes_on_where_this_one_was(in_a_process):
    state, first = json.dumps(capture()), [random.random(), np.random.rand()]  # noqa: NPY002
    source = (
        "import json, random, sys\nimport numpy as np\nfrom haltune.callbacks.randomness import restore\n"
        f"restore(json.loads({state!r}))\nprint([random.random(), np.random.rand()])\n"
        "assert 'torch' not in sys.modules"
    )
    assert json.loads(in_a_process(source)) == first


@pytest.mark.gpu
def test_cuda_generators_are_among_them():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.rand(1, device="cuda")
    state = json.loads(json.dumps(capture()))
    first = torch.rand(4, device="cuda")
    torch.cuda.manual_seed_all(3)
    restore(state)
    assert torch.equal(torch.rand(4, device="cuda"), first)
