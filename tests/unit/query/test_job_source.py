"""Where the file of a version stands in the log."""

import json
from typing import Any

from schemas.base import JobId
from schemas.jobs import JobRegistered
from schemas.submissions import JobSource
from shared.core.runtime.replica import Replica
from shared.jobspec.source import pack_source
from shared.query.job_source import source_in, source_places
from tests.unit.core.state.written_log import WrittenLog


def text(image: str, **group: Any) -> bytes:
    """The text of a version."""
    own = {"Name": "g", "Tasks": [{"Name": "t", "Driver": image}], **group}
    return json.dumps({"ID": "web", "TaskGroups": [own]}).encode()


def test_a_version_has_the_file_of_the_text_that_it_took() -> None:
    """Itself first, then older versions with its text, newest first; counts and Stop make no other text."""
    kept = [
        (0, 10, text("a")),
        (1, 20, text("b")),
        (2, 30, text("a")),
        (3, 40, text("a", Count=5, Scaling={"Max": 9, "Min": 1})),
        (4, 50, text("a", Count=6, Scaling={"Max": 9})),
        (5, 60, text("b").replace(b"{", b'{"Stop": true, ', 1)),
    ]
    assert source_places(kept, 2) == [(2, 30), (0, 10)]
    assert source_places(kept, 4) == [(4, 50), (3, 40)]
    assert source_places(kept, 5) == [(5, 60), (1, 20)]
    assert source_places(kept, 1) == [(1, 20)]
    assert source_places(kept, 6) == source_places([], 0) == []


def registered(job_id: str, version: int, source: JobSource | None) -> JobRegistered:
    """A version, with its file or without."""
    packed = b"" if source is None else pack_source(source)
    return JobRegistered(
        submission_id=f"{job_id}-{version}",
        digest="d",
        job_id=JobId(job_id),
        version=version,
        source=packed,
    )


def test_a_record_tells_the_jobs_apart() -> None:
    """A record of several jobs gives each its own file; another version, and what is no record of ours, none."""
    one, two = JobSource(source="one"), JobSource(source="two", format="json")
    record = WrittenLog().tx(
        registered("a", 0, one), registered("b", 0, two), registered("c", 0, None)
    )
    assert source_in(record.data, record.seq, "a", 0) == one
    assert source_in(record.data, record.seq, "b", 0) == two
    for job_id, version in (("c", 0), ("a", 1), ("d", 0)):
        assert source_in(record.data, record.seq, job_id, version) is None
    assert source_in(record.data.replace(b"submission_id", b"submission-id"), 3, "a", 0) is None
    assert source_in(b"{}", 3, "a", 0) is source_in(b"", 3, "a", 0) is None


def test_no_state_holds_a_file() -> None:
    """Two logs that differ in the file alone have equal states."""
    states = []
    for source in (None, JobSource(source="x" * 10_000)):
        log, replica = WrittenLog(), Replica()
        log.tx(registered("a", 0, source))
        for record in log.records:
            replica.apply(record)
        states.append(
            (replica.state.jobs.by_id, replica.state.jobs.versions, replica.state.jobs.digest())
        )
    assert states[0] == states[1]
