"""haltune.callbacks translates: one file per training loop, all over `reporter.py`.

`haltune.callbacks.lightning`, `haltune.callbacks.keras` and `haltune.callbacks.loop`.
None of them imports a framework before a callback is made.
"""
