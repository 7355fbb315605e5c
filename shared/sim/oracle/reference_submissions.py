"""Submissions, followed again from the log: each has one verdict, until the log no longer knows it.

A part of the reference model; it shares no code with the tables.
"""

from schemas import jobs, rollouts
from shared.sim.oracle.invariants import InvariantChecks

_RULE = "submission_once"


class ReferenceSubmissions:
    """Verdicts by submission."""

    def __init__(self, ledger: InvariantChecks) -> None:
        self._ledger = ledger
        #: submission -> (accepted or refused, seq).
        self._verdicts: dict[str, tuple[str, int]] = {}
        #: ids that came in the drop box with a second content.
        self.reused: set[str] = set()
        #: ids that were decided again after their verdict was collected.
        self.decided_again: set[str] = set()
        #: sequence number of JOBS up to which there is a verdict.
        self.jobs_seq = 0
        self._collected_seq = 0

    def apply(self, event: object, seq: int) -> None:
        """Apply and check one fact. Raises InvariantBroken."""
        match event:
            case (
                jobs.JobRegistered()
                | jobs.JobStopped()
                | jobs.JobEvaluated()
                | rollouts.RolloutStarted()
            ):
                self._decide(event.submission_id, "accepted", seq)
            case jobs.SubmissionRefused():
                self._decide(event.submission_id, "refused", seq)
                if event.reused_id:
                    self.reused.add(event.reused_id)
            case jobs.SubmissionsCollected():
                self._collected_seq = event.upto_seq
            case jobs.IntakeAdvanced():
                self._ledger.hold(_RULE, event.jobs_seq > self.jobs_seq, event)
                self.jobs_seq = event.jobs_seq
            case _:
                pass

    def status(self, submission_id: str) -> str:
        """Return accepted, refused, or an empty text."""
        return self._verdicts.get(submission_id, ("", 0))[0]

    def _decide(self, submission_id: str, status: str, seq: int) -> None:
        if not submission_id:
            # A child of another job.
            return
        known = self._verdicts.get(submission_id)
        if known is not None and known[1] <= self._collected_seq:
            # An hour of log time has passed: the id is a new one.
            self.decided_again.add(submission_id)
            known = None
        self._ledger.hold(_RULE, known is None, submission_id, known, status)
        self._verdicts[submission_id] = (status, seq)
