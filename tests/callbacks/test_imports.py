"""Importing the callbacks imports no framework."""


def test_importing_the_loops_imports_no_framework(in_a_process):
    frameworks = ["lightgbm", "catboost", "sklearn", "fastai", "accelerate"]
    modules = ", ".join(f"haltune.callbacks.{name}" for name in frameworks)
    found = in_a_process(
        f"import sys, {modules}; print([f for f in ({frameworks} + ['torch']) if f in sys.modules])"
    )
    assert found == "[]\n"
