"""haltune.callbacks translates: one room or file per training loop, all over `reporting`.

`haltune.callbacks.lightning`, `.keras`, `.loop`, `.transformers`, `.xgboost` and `.lightgbm`.
None of them imports a framework before a callback is made. `check_resume` proves that
a training which is paused goes on as if it had not been.
"""

from .frameworks.resume_check.check import ResumeCheck, check_resume

__all__ = ["ResumeCheck", "check_resume"]
