"""From a callback to its trial: a study that cannot be reached breaks no training.

Reports that cannot be delivered wait, are tried again with the next one, and are then
stored without asking for a verdict. One warning.
"""

from __future__ import annotations

from contextlib import suppress

from haltune._utils.words import plural
from haltune.display.terminal import visible
from haltune.errors import HaltuneError, LeaseLost, StoreError
from haltune.log.decisions import Verdict
from haltune.study import Trial
from haltune.study.session.session import Report


class Warnings:
    """HaltuneWarnings of one training, each topic once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def once(self, trial: Trial, topic: str, sentence: str, about: str | None = None) -> None:
        """A HaltuneWarning, once for each topic; in the log once for what it is `about` in the whole search."""
        if topic not in self._given:
            self._given.add(topic)
            trial.session.warn(sentence, about or topic)


class Delivery:
    """The reports of one training on their way to its trial."""

    def __init__(self, warnings: Warnings) -> None:
        self._waiting: list[Report] = []
        self._warnings = warnings

    def send(self, trial: Trial, report: Report, judge: bool) -> Verdict | None:
        """The verdict; None when the report has to wait, as for a server that is away: the training does not.

        Raises LeaseLost when the trial is another worker's, and haltune's errors about the report itself.
        """
        trial.patient = False
        try:
            self._flush(trial)
            return _deliver(trial, report, judge)
        except Exception as error:
            # a store out of reach, or a bug in a policy: neither is the training's fault
            stored = not isinstance(error, LeaseLost) and float(trial.epoch) >= report.epoch
            if stored:  # only then is a policy asked
                self._warnings.once(
                    trial,
                    "policy",
                    f"the policy failed to judge epoch {report.epoch:g} of trial {trial.id} "
                    f"({type(error).__name__}: {error}); the report is stored, and training continues",
                )
                return None
            if isinstance(error, HaltuneError) and not isinstance(error, StoreError):
                raise
            self._waiting.append(report)
            self._warnings.once(
                trial,
                "outage",
                f"the study cannot take reports now ({type(error).__name__}: {error}); training continues, "
                "they are kept and delivered later, unjudged",
            )
            return None

    def close(self, trial: Trial) -> None:
        """Deliver what waits, and now wait for a server that is away; never raises."""
        trial.patient = True
        with suppress(Exception):
            self._flush(trial)
        if self._waiting:
            with suppress(Exception):  # warnings may be errors
                self._warnings.once(
                    trial,
                    "late",
                    f"{plural(len(self._waiting), 'report')} of trial {trial.id} could not be delivered",
                )

    def _flush(self, trial: Trial) -> None:
        while self._waiting:
            _deliver(trial, self._waiting[0], judge=False)
            self._waiting.pop(0)


def _deliver(trial: Trial, report: Report, judge: bool) -> Verdict:
    return trial.report(
        report.value,
        report.epoch,
        report.seconds,
        validation=report.validation,
        metrics=report.metrics or None,
        judge=judge,
    )


def line(trial: int, metric: str, report: Report, verdict: Verdict) -> str:
    """A report and what came of it, to print."""
    what = f"trial {trial}, epoch {report.epoch:g}: {metric} = {report.value:.6g}"
    return visible(f"{what}, {verdict.action}: {verdict.reason}")
