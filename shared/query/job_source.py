"""The source of a version of a job: which records may hold it, and what one of them holds.

No state keeps sources, so they cost nothing until one is asked for. A version that was made of a kept one (a revert, a
scaling, a start) has the source of that one. The caller reads the records.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from schemas.envelope import RECORD_DECODER
from schemas.jobs import JobRegistered
from schemas.submissions import JobSource
from shared.core.runtime.chain import checked_body
from shared.errors import LogDamaged
from shared.jobspec.source import unpack_source

#: Number of a version, seq of its registration, its canonical text.
KeptVersion = tuple[int, int, bytes]


def source_places(kept: Iterable[KeptVersion], version: int) -> list[tuple[int, int]]:
    """Number and seq of the versions whose source is that of `version`: itself, then older ones, newest first."""
    older = sorted([one for one in kept if one[0] <= version], reverse=True)
    if not older or older[0][0] != version:
        return []
    wanted = _essence(older[0][2])
    return [(number, seq) for number, seq, text in older if _essence(text) == wanted]


def source_in(data: bytes, seq: int, job_id: str, version: int) -> JobSource | None:
    """The source of a version in the record that registered it; None: it has none."""
    try:
        record = RECORD_DECODER.decode(data) if checked_body(seq, data) else None
    except (LogDamaged, msgspec.DecodeError):
        return None
    for event in record.events if record is not None else ():
        if isinstance(event, JobRegistered) and (event.job_id, event.version) == (job_id, version):
            return unpack_source(event.source)
    return None


def _essence(text: bytes) -> dict[str, Any]:
    """A text without what scaling, a stop and a start change in it."""
    found: dict[str, Any] = msgspec.json.decode(text)
    found.pop("Stop", None)
    for group in found.get("TaskGroups") or ():
        group.pop("Count", None)
        if scaling := group.get("Scaling"):
            # Scaling writes down the minimum that the count was.
            scaling.pop("Min", None)
    return found
