"""Backlog reports: the number of evaluations that wait for workers, published for admission control in the intakes.

A report is sent ten times a second while the backlog is high, and once more when it is low again. A lost report is
replaced by the next one.
"""

from schemas.envelope import ENCODER
from schemas.evaluations import Presence
from shared.core.runtime.messages import Send
from shared.core.runtime.step import Step
from shared.protocol import subjects

#: Backlog from which it is reported: half of the number at which intakes refuse new work.
REPORT_FROM = 2_000
REPORT_EVERY_NS = 100_000_000


class BacklogReporter:
    """Pacing of the reports."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        #: whether the last report was above the threshold.
        self._was_high = False
        #: steady time of the next report; 0: none.
        self.due_ns = 0

    def report(self, step: Step, waiting: int, seq: int) -> None:
        """Publish the number of waiting evaluations when a report is due."""
        is_high, now_ns = waiting >= REPORT_FROM, step.steady_ns
        if not (is_high or self._was_high) or now_ns < self.due_ns:
            return
        self._was_high = is_high
        self.due_ns = now_ns + REPORT_EVERY_NS if is_high else 0
        body = Presence(role="eval_broker", instance=self._instance, seq=seq, waiting=waiting)
        step.emit(Send(subjects.presence("eval_broker", "backlog"), ENCODER.encode(body)))
