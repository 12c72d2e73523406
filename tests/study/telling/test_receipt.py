"""What is told of one trial, in a few lines."""

from told import tell_trial, told

from haltune.log.decisions import stop
from haltune.log.events import Ended, Reported, Status
from haltune.log.outcomes import Comparisons
from haltune.study.explain import short_explanation


def test_of_a_run_that_was_told_to_end_and_still_trains_it_is_not_said_that_it_ended():
    history = tell_trial(told(), [0.1], None)
    history.apply(
        Reported(
            at=9.0, trial=0, attempt=1, epoch=2.0, value=0.2, seconds=1.0, verdict=stop("too slow"),
            seen=history.position
        )
    )  # fmt: skip
    assert "cut because    too slow" in short_explanation(Comparisons(history, False), 0)
    assert "ended" not in history.trial(0)._repr_html_()
    history.apply(Ended(at=9.5, trial=0, attempt=1, status=Status.STOPPED))
    assert "ended because  too slow" in short_explanation(Comparisons(history, False), 0)
    assert "ended because" in history.trial(0)._repr_html_()
