"""A notebook without a kernel: what its cell shows, in order."""

import sys
from types import ModuleType, SimpleNamespace


def notebook(monkeypatch):
    """Imitate IPython; return each output of the cell with all its updates."""
    outputs = []

    def shows(data, *, raw, display_id):
        assert raw
        assert display_id
        outputs.append(mine := [data])
        return SimpleNamespace(update=lambda data, raw: mine.append(data))

    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = SimpleNamespace(display=shows)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return outputs
