"""`/v1/job/<id>/submission`: the file of a version, read from its record when it is asked for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.base import JobId
from schemas.jobs import JobRegistered
from schemas.submissions import JobSource
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.role import Gateway
from services.gateway.routes.jobs import read_submission
from shared.core.runtime.messages import CaughtUp, Record
from shared.errors import BusUnavailable, LogDropped
from shared.jobspec.source import pack_source
from tests.unit.core.state.written_log import WrittenLog

SOURCE = JobSource(source='job "web" {}\n', variable_flags={"n": "1"}, variables="m = 2\n")


class StoredLog:
    """Records by seq, from `first` on; counts what is read. `problem` is raised instead."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self.first = 1
        self.reads = 0
        self.problem: Exception | None = None

    async def read(self, seq: int, records: int) -> list[Record]:
        """As of the log."""
        self.reads += records
        if self.problem is not None:
            raise self.problem
        if seq < self.first:
            raise LogDropped(self.first)
        return self._records[seq - 1 : seq - 1 + records]


class Story:
    """A gateway behind a log in which versions of `web` are registered."""

    def __init__(self) -> None:
        self._written = WrittenLog()
        self.log = StoredLog(self._written.records)
        self._versions = 0

    def register(self, driver: str, source: JobSource | None) -> int:
        """Register the next version. Returns the seq."""
        spec = f'{{"ID":"web","TaskGroups":[{{"Name":"g","Tasks":[{{"Driver":"{driver}"}}]}}]}}'
        record = self._written.tx(
            JobRegistered(
                submission_id=f"s-{self._versions}",
                digest="d",
                job_id=JobId("web"),
                version=self._versions,
                spec=msgspec.Raw(spec.encode()),
                source=b"" if source is None else pack_source(source),
            )
        )
        self._versions += 1
        return record.seq

    def ask(self, **params: str) -> Any:
        """The answer of the endpoint."""
        role = Gateway(instance="g")
        role.step([*self._written.records, CaughtUp(self._written.seq)], 0)
        call: Any = object.__new__(Call)
        call.role, call.path, call.index = role, {"job": params.pop("job", "web")}, 0
        call.connection = SimpleNamespace(query_params=params)
        call.server = SimpleNamespace(log=self.log)
        return asyncio.run(read_submission(call))

    def refused(self, **params: str) -> tuple[int, str]:
        """Status and text of the fault."""
        with pytest.raises(HttpFault) as caught:
            self.ask(**params)
        return caught.value.status, caught.value.text


def test_the_file_of_each_version_is_answered() -> None:
    """What was sent with a version, in Nomad's fields, by one record read."""
    story = Story()
    first = story.register("a", SOURCE)
    second = story.register("b", JobSource(source="{}", format="json"))
    assert story.ask(version="0") == {
        "Source": 'job "web" {}\n',
        "Format": "hcl2",
        "VariableFlags": {"n": "1"},
        "Variables": "m = 2\n",
        "JobID": "web",
        "Namespace": "default",
        "Version": 0,
        "JobModifyIndex": first,
    }
    assert story.log.reads == 1
    newest = story.ask()
    assert (newest["Source"], newest["Format"], newest["VariableFlags"]) == ("{}", "json", None)
    assert (newest["Version"], newest["JobModifyIndex"]) == (1, second)


def test_a_revert_has_the_file_that_it_went_back_to() -> None:
    """A version without a file of its own has that of the newest older version with its text."""
    story = Story()
    story.register("a", SOURCE)
    story.register("b", JobSource(source="other"))
    seq = story.register("a", None)
    found = story.ask(version="2")
    assert (found["Source"], found["Version"], found["JobModifyIndex"]) == (SOURCE.source, 2, seq)


def test_what_has_no_file_is_404_in_nomads_words() -> None:
    """None was sent, no such version, no such job, or its part of the log is dropped; without a bus it is 503."""
    story = Story()
    story.register("a", None)
    story.register("b", SOURCE)
    missing = (404, "job source not found")
    assert story.refused(version="0") == story.refused(version="7") == missing
    assert story.refused(job="nope") == missing
    assert story.ask()["Source"] == SOURCE.source
    story.log.first = 99
    assert story.refused() == missing
    story.log.problem = BusUnavailable("gone")
    assert story.refused()[0] == 503
