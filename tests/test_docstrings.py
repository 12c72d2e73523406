"""Docstrings of policies: the example runs, and every option has its line."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from typing import Any

import pytest

import haltune
from haltune import policies
from haltune.policies import autobct

USED = [
    *(
        getattr(shown, name)
        for shown in (policies, autobct)
        for name in shown.__all__
        if name not in ("Resume", "Start")
    ),
    haltune.policies.OptimalStopping,
    haltune.policies.Level,
]
by_name = pytest.mark.parametrize("used", USED, ids=lambda used: used.__name__)


@by_name
def test_the_example_runs_as_it_is_printed(used: Any) -> None:
    module = sys.modules[used.__module__]
    found = doctest.DocTestFinder(recurse=False).find(used, used.__name__, module, globs={})
    assert [len(example.examples) >= 3 for example in found] == [True]
    told: list[str] = []
    assert doctest.DocTestRunner().run(found[0], out=told.append).failed == 0, "".join(told)


@pytest.mark.parametrize("used", [used for used in USED if used is not policies.Policy], ids=lambda u: u.__name__)
def test_every_option_has_its_line(used: Any) -> None:
    text = inspect.getdoc(used) or ""
    sections = dict(re.findall(r"^(Args|Raises|Example):\n((?:[ ].*\n?|\n)+)", text, flags=re.M))
    assert list(sections) == ["Args", "Raises", "Example"]
    described = re.findall(r"^    (\w+): \S", sections["Args"], flags=re.M)
    assert sorted(described) == sorted(inspect.signature(used).parameters)
