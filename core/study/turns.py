"""A worker's turns: asks until the search is over, waits in between, and lets go of each trial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from haltune.log.decisions import Finish, Wait
from haltune.ranks.agreement import Accord, Following

from .session import follower as followers
from .trial import Trial

if TYPE_CHECKING:
    from .study import Study

_log = logging.getLogger("haltune")
PATIENCE = (0.05, 2.0)  # seconds between asks while waiting: from, to


def turns(study: Study, accord: Accord, sleep: Callable[[float], None]) -> Iterator[Trial]:
    """The trials that this worker is to train, one after another."""
    pause, longest = PATIENCE
    followers.pass_over(accord)
    while not isinstance(answer := study.ask(), Finish):
        if isinstance(answer, Wait):
            if isinstance(accord, Following):
                continue  # rank 0 waits
            if pause == PATIENCE[0]:
                _log.info("waiting: %s", answer.reason)
            sleep(pause)
            pause = min(2 * pause, longest)
            continue
        pause = PATIENCE[0]
        try:
            yield answer
        except GeneratorExit:  # the loop was left by break
            answer.interrupt()
            raise
        answer.finish()
        followers.pass_over(accord)
