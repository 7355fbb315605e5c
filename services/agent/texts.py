"""Texts of job versions: asked for once, kept while an allocation uses them.

Decides when a question is asked again. Must not know what an allocation does with its text. Next: `spec.py`.
"""

from collections.abc import Iterable

import msgspec

from schemas.answers import JobVersionAnswer
from schemas.envelope import ENCODER
from schemas.projections import Query
from services.agent.supervise import Turn
from shared.bus import subjects
from shared.core.role import SetTimer
from shared.core.tasks import Answer, Ask

FETCH_FIRST_NS = 500_000_000
FETCH_MAX_NS = 5_000_000_000

_JOB_VERSION = msgspec.json.Decoder(JobVersionAnswer)


class Texts:
    """What is known and what was asked."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], bytes] = {}
        self._asked: set[str] = set()
        self._pause_ns = FETCH_FIRST_NS

    def find(self, job_id: str, version: int, seq: int, turn: Turn) -> bytes | None:
        """Give the text of a job version, or ask for it, of a state that is at `seq` or newer."""
        text = self._known.get((job_id, version))
        name = f"{version} {job_id}"
        if text is None and name not in self._asked:
            self._asked.add(name)
            query = Query(id=job_id, version=version, min_seq=seq)
            subject = subjects.query("job_version")
            turn.act(Ask(name=name, subject=subject, data=ENCODER.encode(query)))
        return text

    def take(self, answer: Answer, turn: Turn) -> bool:
        """Take an answer; says whether it brought a text. Where it did not, the timer `fetch` is set."""
        self._asked.discard(answer.name)
        version, _, job_id = answer.name.partition(" ")
        text = _job_text(answer.data, job_id, int(version))
        if not text:
            turn.act(SetTimer("fetch", turn.now_ns + self._pause_ns))
            self._pause_ns = min(self._pause_ns * 2, FETCH_MAX_NS)
            return False
        self._pause_ns = FETCH_FIRST_NS
        self._known[job_id, int(version)] = text
        return True

    def keep_only(self, used: Iterable[tuple[str, int]]) -> None:
        """Forget every other version."""
        kept = set(used)
        self._known = {key: text for key, text in self._known.items() if key in kept}


def _job_text(data: bytes | None, job_id: str, version: int) -> bytes:
    """Read the answer of `query.job_version`; empty: an error, another job's, or none."""
    try:
        found = _JOB_VERSION.decode(data or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return b""
    return bytes(found.spec) if (found.job_id, found.version) == (job_id, version) else b""
