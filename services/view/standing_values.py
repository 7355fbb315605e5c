"""Ends published values of jobs and nodes that left the state while no view followed the log.

A view that begins at a snapshot has not seen what left before: it lists what stands on the bus, and closes what is of
no job or node of the state. One that reads the log from its first record sees them leave, and asks for nothing.
"""

import msgspec

from schemas.base import JobId, NodeId
from schemas.envelope import ENCODER
from schemas.projections import JobProjection, NodeSummary, Rollout
from services.view.dirty_set import DirtySet, is_departed
from shared.core.runtime.messages import Answer, Ask
from shared.core.runtime.step import Step
from shared.core.state.state import State
from shared.protocol import subjects
from shared.protocol.id_tokens import token_id

STREAM = "VIEW"
_ASK = "standing-"
_TIMEOUT_NS = 5_000_000_000
#: An answer that does not come is asked for again so often; the next start of a view looks, too.
TRIES_MAX = 5


class _StreamState(msgspec.Struct, frozen=True):
    #: absent in a page behind the last subject.
    subjects: dict[str, int] | None = None


class _Page(msgspec.Struct, frozen=True):
    """Answer to a question for the subjects of a stream, of which there are `total`."""

    state: _StreamState = _StreamState()
    total: int = 0
    error: msgspec.Raw | None = None


class StandingValues:
    """Looks once after a start at a snapshot."""

    def __init__(self, state: State, marks: DirtySet) -> None:
        self._state = state
        self._marks = marks
        self._is_due = False
        #: filters of subjects that are still to be listed.
        self._filters: list[str] = []
        self._offset = 0
        self._tries = 0
        #: values that were closed.
        self.closed = 0

    def restored(self) -> None:
        """The state is that of a snapshot."""
        self._is_due = True

    def look(self, step: Step) -> None:
        """List what stands, if it is due: the state is that of the end of the log now."""
        if self._is_due:
            self._is_due = False
            self._filters = [subjects.VIEW_JOBS, subjects.VIEW_NODES]
            self._ask(step)

    def answered(self, answer: Answer, step: Step) -> None:
        """Close what is listed and has left; then ask for the next page."""
        if answer.name != f"{_ASK}{len(self._filters)}-{self._offset}" or not self._filters:
            return
        page = _page(answer.data)
        if page is None:
            self._tries += 1
            if self._tries < TRIES_MAX:
                self._ask(step)
            return
        self._tries = 0
        names = page.state.subjects or {}
        for subject in sorted(names):
            self._close(subject)
        self._offset += len(names)
        if not names or self._offset >= page.total:
            del self._filters[0]
            self._offset = 0
        if self._filters:
            self._ask(step)

    def _ask(self, step: Step) -> None:
        body = {"subjects_filter": self._filters[0], "offset": self._offset}
        step.emit(
            Ask(
                name=f"{_ASK}{len(self._filters)}-{self._offset}",
                subject=subjects.js_stream_info(STREAM),
                data=msgspec.json.encode(body),
                timeout_ns=_TIMEOUT_NS,
            )
        )

    def _close(self, subject: str) -> None:
        """Have the last value of a subject published, where its object has left."""
        if subject in self._marks.tombstones or not is_departed(self._state, subject):
            return
        self.closed += 1
        identifier = token_id(subjects.last_token(subject))
        self._marks.tombstones[subject] = ENCODER.encode(self._last_value(subject, identifier))

    def _last_value(self, subject: str, identifier: str) -> JobProjection | NodeSummary:
        policy = self._state.policy
        if subject == subjects.view_job(identifier):
            return JobProjection(
                cluster_id=policy.cluster_id,
                seq=self._state.seq,
                job_id=JobId(identifier),
                status="dead",
                stopped=True,
                incarnation=policy.incarnations.newest,
                rollout=Rollout(status="stopped", reason="the job was purged"),
                purged=True,
            )
        return NodeSummary(
            cluster_id=policy.cluster_id,
            seq=self._state.seq,
            id=NodeId(identifier),
            status="down",
            incarnation=policy.incarnations.newest or msgspec.UNSET,
        )


def _page(data: bytes | None) -> _Page | None:
    """Decode an answer; None: there is none that can be used."""
    try:
        found = msgspec.json.decode(data or b"", type=_Page)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.error is None else None
