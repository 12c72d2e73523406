"""haltune.callbacks translates: one module per training loop, all over `reporter`.

`haltune.callbacks.lightning`, `.keras`, `.transformers`, `.loop`, and those of docs/loops/. None of them imports a
framework before a callback is made. `check_resume` proves that a paused training continues as if it had not been.
"""

from typing import TYPE_CHECKING

from .resume_check import ResumeCheck, check_resume

if not TYPE_CHECKING:  # a type checker knows what is there
    from haltune._utils.lazy import shows

    __getattr__, __dir__ = shows(__name__, {})

__all__ = ["ResumeCheck", "check_resume"]
