"""haltune.callbacks: one module for each training loop, all based on `reporter`.

`haltune.callbacks.lightning`, `.keras`, `.transformers`, `.loop`, and others. A module imports its framework when you
make a callback. `check_resume` proves that a training continues after a pause as without it.
"""

from typing import TYPE_CHECKING

from .resume_check import ResumeCheck, check_resume

if not TYPE_CHECKING:  # a type checker reports unknown names itself
    from haltune._utils.lazy import shows

    __getattr__, __dir__ = shows(__name__, {})

__all__ = ["ResumeCheck", "check_resume"]
