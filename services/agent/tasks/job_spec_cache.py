"""Job specs by version: fetched once, kept while an allocation uses them.

Decides when a fetch is repeated. Next: `resolved_group.py`.
"""

from collections.abc import Iterable

import msgspec

from schemas.envelope import ENCODER
from schemas.job_answers import JobVersionAnswer
from schemas.projections import Query
from services.agent.backoff import Backoff
from services.agent.tasks.resolved_group import NO_ORIGIN, JobOrigin
from services.agent.tasks.supervisor import AgentStep
from shared.core.runtime.agent_messages import Answer, Ask
from shared.core.runtime.messages import SetTimer
from shared.protocol import subjects

FETCH_FIRST_NS = 500_000_000
FETCH_MAX_NS = 5_000_000_000

_JOB_VERSION = msgspec.json.Decoder(JobVersionAnswer)


class JobSpecCache:
    """What is known and what was asked."""

    def __init__(self, node_id: str) -> None:
        self._subject = subjects.node_query(node_id)
        self._known: dict[tuple[str, int], bytes] = {}
        #: of children: who made them, and what they were dispatched with.
        self._origins: dict[tuple[str, int], JobOrigin] = {}
        self._asked: set[str] = set()
        self._pause = Backoff(FETCH_FIRST_NS, FETCH_MAX_NS)

    def find(self, job_id: str, version: int, seq: int, turn: AgentStep) -> bytes | None:
        """Give the text of a job version, or ask for it, of a state that is at `seq` or newer."""
        text = self._known.get((job_id, version))
        name = f"{version} {job_id}"
        if text is None and name not in self._asked:
            self._asked.add(name)
            query = Query(id=job_id, version=version, min_seq=seq)
            turn.act(Ask(name=name, subject=self._subject, data=ENCODER.encode(query)))
        return text

    def origin(self, job_id: str, version: int) -> JobOrigin:
        """Say who made a job, once its text is known."""
        return self._origins.get((job_id, version), NO_ORIGIN)

    def take(self, answer: Answer, turn: AgentStep) -> bool:
        """Take an answer; says whether it brought a text. Where it did not, the timer `fetch` is set."""
        self._asked.discard(answer.name)
        version, _, job_id = answer.name.partition(" ")
        text, origin = _decode_job_spec(answer.data, job_id, int(version))
        if not text:
            turn.act(SetTimer("fetch", turn.now_ns + self._pause.take()))
            return False
        self._pause.reset()
        self._known[job_id, int(version)] = text
        if origin != NO_ORIGIN:
            self._origins[job_id, int(version)] = origin
        return True

    def keep_only(self, used: Iterable[tuple[str, int]]) -> None:
        """Forget every other version."""
        kept = set(used)
        self._known = {key: text for key, text in self._known.items() if key in kept}
        self._origins = {key: one for key, one in self._origins.items() if key in kept}


def _decode_job_spec(data: bytes | None, job_id: str, version: int) -> tuple[bytes, JobOrigin]:
    """Read text and origin of a job version; empty: an error, another job's, or none."""
    try:
        found = _JOB_VERSION.decode(data or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return b"", NO_ORIGIN
    if (found.job_id, found.version) != (job_id, version):
        return b"", NO_ORIGIN
    return bytes(found.spec), JobOrigin(found.parent, found.payload)
