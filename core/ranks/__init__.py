"""The ranks of a distributed training: which one this process is, and how all of them get the same outcomes.

    part = joined(name, where)              this process's part in a study: rank 0 acts, the others follow
    with part.decision(topic) as decision:  the same block on every rank
    group.once(question)                    the same within a fit, over the framework's broadcast

Rank 0 reads and writes the store. With each outcome it sends the events that it has folded since the last one, and the
position of the log. The other ranks fold the same events up to this position, so that the same functions give the same
results on every rank. Apart from the events, rank 0 sends only what the log lacks: an exception, why there is no trial,
the path of a temporary file. This package does not depend on trials.

Reasons for lines in a folder, instead of the store or a broadcast of the framework:
- Lightning's "ddp" starts the other ranks within a fit of rank 0. They run the script again from its start, and need
  every outcome that rank 0 got before they existed. torchrun's ranks ask for a trial without a process group.
- A rank on another machine may not reach the store.
"""

from .group import Group, in_place_of_barriers, leave_group_at_exit, torch_ranks, without_barriers
from .lines import error_from_json
from .parts import Decision, Part, alone, follows, joined, lone
from .place import restart_advice, this

__all__ = [
    "Decision", "Group", "Part", "alone", "error_from_json", "follows", "in_place_of_barriers", "joined",
    "leave_group_at_exit", "lone", "restart_advice", "this", "torch_ranks", "without_barriers",
]  # fmt: skip
