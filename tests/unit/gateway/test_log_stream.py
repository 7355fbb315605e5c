"""`/v1/caravan/log` and the past of event streams: order, ends, filters, and the beginning that was dropped."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response, StreamingResponse

from schemas.base import JobId
from schemas.envelope import LeaseHeld, LogRecord
from schemas.jobs import JobStopped
from services.gateway.edge import followed_log
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.followed_log import FollowedLog
from services.gateway.nomad.source import ShapeSource
from services.gateway.role import Gateway
from services.gateway.routes import log_stream
from services.gateway.routes.log_stream import record_event, record_line, stream_log
from shared.core.runtime.messages import CaughtUp, Record
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.state.state import State
from shared.errors import BusUnavailable, LogDropped
from tests.unit.core.state.written_log import WrittenLog


class FakeLog:
    """A stored log as `LogReader` reads it; `first` is the first kept record."""

    records: tuple[Record, ...] = ()
    first = 1
    hidden = frozenset[int]()

    def __init__(self, _bus: object) -> None:
        pass

    async def first_seq(self) -> int:
        return self.first

    async def read(self, seq: int, records: int = 100) -> list[Record]:
        if seq < self.first:
            raise LogDropped(self.first)
        found = [one for one in self.records if one.seq >= seq and one.seq not in self.hidden]
        return found[:records]


async def no_snapshot(*_: object, **__: object) -> None:
    """There is none yet."""


class Story:
    """A gateway behind a log of twelve records: two jobs, then one is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written = WrittenLog()
        self.written.jobs("web", "db")
        self.written.nodes(1)
        self.written.evaluations("db")
        for n in range(6):
            self.written.jobs(f"job-{n}")
        self.written.tx(JobStopped(submission_id="t", digest="d", job_id=JobId("web")))
        self.role = Gateway(instance="g")
        self.role.step([*self.written.records, CaughtUp(self.written.seq)], 0)
        self.log = type("Log", (FakeLog,), {"records": tuple(self.written.records)})
        monkeypatch.setattr(log_stream, "LogReader", self.log)
        monkeypatch.setattr(followed_log, "LogReader", self.log)
        monkeypatch.setattr(followed_log.snapshots, "restore_newest", no_snapshot)
        self.client = SimpleNamespace(bus=None, denied=0)

    def write(self, job_id: str) -> None:
        """Append a record and let the gateway apply it."""
        record = self.written.jobs(job_id)
        self.log.records = (*self.log.records, record)
        self.role.step([record], 0)

    def call(self, query: str = "", **headers: str) -> Call:
        """A request of a caller."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = SimpleNamespace(query_params=QueryParams(query), headers=Headers(names))
        server = SimpleNamespace(role=self.role, bus=None)
        caller = SimpleNamespace(client=self.client, users=0)
        found = object.__new__(Call)
        found.server, found.role = server, self.role  # type: ignore[assignment]
        found.caller, found.connection = caller, connection  # type: ignore[assignment]
        return found

    def read(self, query: str, **headers: str) -> bytes:
        """The whole body of an answer that ends."""

        async def whole() -> bytes:
            answer = await stream_log(self.call(query, **headers))
            assert isinstance(answer, StreamingResponse)
            parts = [bytes(one) async for one in answer.body_iterator]  # type: ignore[arg-type]
            return b"".join(parts)

        return asyncio.run(whole())

    def seqs(self, query: str) -> list[int]:
        """Seqs of the records of an answer that ends."""
        values = [json.loads(line) for line in self.read(query).splitlines()]
        return [one["seq"] for one in values if one]


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(monkeypatch)


def test_records_are_served_as_they_are(story: Story) -> None:
    """Each seq once, in order, with the bytes of the record, from any seq to any other."""
    lines = story.read("from=1").splitlines()
    end = story.role.seq
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, end + 1))
    for line, record in zip(lines, story.written.records, strict=True):
        assert b'"record":' + record.data + b"}" in line
        assert json.loads(line)["subject"] == record.subject
    assert story.seqs("from=3&to=5") == [3, 4, 5]
    assert story.seqs(f"from={end}") == [end]
    assert story.seqs(f"from={end + 1}") == []
    assert story.seqs("from=2&to=2&follow=true") == [2]


def test_an_event_of_a_page_is_resumed_by_its_id(story: Story) -> None:
    """Last-Event-ID goes before `from`; behind the end a browser is answered 204, after which it asks no more."""
    accept = "text/event-stream"
    body = story.read("from=1&to=6", accept=accept, last_event_id="4")
    assert [one.splitlines()[0] for one in body.split(b"\n\n") if one] == [b"id: 5", b"id: 6"]
    assert body.startswith(b"id: 5\nevent: record\ndata: {")
    answer = asyncio.run(stream_log(story.call("to=6", accept=accept, last_event_id="6")))
    assert isinstance(answer, Response)
    assert answer.status_code == 204


def test_filters_name_kinds_jobs_and_nodes(story: Story) -> None:
    """A record is served where one of its events is of a kind and about the job and the node."""
    registered = story.seqs("from=1&kinds=job.registered")
    assert len(registered) == 7
    assert story.seqs("from=1&kinds=job.stopped,lease") == [1, story.role.seq]
    assert story.seqs("from=1&kinds=job.stopped&kinds=lease") == [1, story.role.seq]
    assert story.seqs("from=1&job=web") == [3, story.role.seq]
    assert story.seqs("from=1&job=web&to=5") == [3]
    assert story.seqs("from=4&job=web") == [story.role.seq]
    assert story.seqs("from=1&job=db") == [3, 5]
    assert story.seqs("from=1&job=db&kinds=evaluations") == [5]
    assert story.seqs("from=1&node=n0") == [4]
    assert story.seqs("from=1&node=n0&job=web") == []
    assert story.seqs("from=1&kinds=nothing") == []


@pytest.mark.parametrize("query", ["from=1&follow=true", "from=1&follow=true&kinds=job",
                                   "from=1&follow=true&job=late"])  # fmt: skip
def test_a_follower_gets_new_records_without_a_gap(story: Story, query: str) -> None:
    """From the past to the present: what is written while a reader reads comes once, behind the rest."""

    async def follow() -> list[int]:
        answer = await stream_log(story.call(query))
        assert isinstance(answer, StreamingResponse)
        found: list[int] = []
        last = story.role.seq + 3
        async with aclosing(answer.body_iterator) as parts:  # type: ignore[type-var]
            wrote = 0
            story.write("late")
            async for part in parts:
                value = json.loads(bytes(part))  # type: ignore[arg-type]
                found += [value["seq"]] if value else []
                if wrote < 2:
                    wrote += 1
                    story.write("late")
                if found and found[-1] == last:
                    return found
        return found

    found = asyncio.run(follow())
    end = story.role.seq
    assert found[-3:] == [end - 2, end - 1, end]
    assert found == sorted(set(found))
    if query.endswith("true"):
        assert found == list(range(1, end + 1))


@pytest.mark.parametrize(
    ("query", "headers", "reason"),
    [
        ("", {}, "from is required without follow"),
        ("from=-1", {}, "seqs of the log"),
        ("from=5&to=4", {}, "to must not be below from"),
        ("from=x", {}, "not a number"),
        ("follow=maybe", {}, "not a boolean"),
        ("from=1&kinds=" + ",".join("abc" for _ in range(51)), {}, "at most 50"),
        ("", {"last_event_id": "x"}, "Last-Event-ID must be a seq"),
    ],
)
def test_a_wrong_request_is_refused(
    story: Story, query: str, headers: dict[str, str], reason: str
) -> None:
    """With 400 and what is wrong."""
    with pytest.raises(HttpFault) as refused:
        asyncio.run(stream_log(story.call(query, **headers)))
    assert refused.value.status == 400
    assert reason in refused.value.text


def test_what_was_dropped_is_gone_and_the_first_record_is_named(story: Story) -> None:
    """410 with the lowest seq, for records and for a filter, which needs the state before it, too."""
    story.log.first = 4
    for query in ("from=3", "from=3&job=web", "from=4&job=web"):
        with pytest.raises(HttpFault) as refused:
            asyncio.run(stream_log(story.call(query)))
        assert refused.value.status == 410
        assert refused.value.headers == {"X-Caravan-First-Seq": "4"}
        assert "begins at 4" in refused.value.text
    assert story.seqs("from=4")[0] == 4


def test_a_login_without_the_right_is_refused(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bus decides: where it denied the read, the answer is 403, else it is 503."""

    async def denied(_self: object) -> int:
        story.client.denied += 1
        raise BusUnavailable("LOG_1 does not answer")

    async def away(_self: object) -> int:
        raise BusUnavailable("LOG_1 does not answer")

    for read, status in ((denied, 403), (away, 503)):
        monkeypatch.setattr(story.log, "first_seq", read)
        with pytest.raises(HttpFault) as refused:
            asyncio.run(stream_log(story.call("from=1")))
        assert refused.value.status == status


def test_a_gap_ends_the_answer(story: Story) -> None:
    """A record that the server does not hand out is never skipped: the reader asks again from its seq."""
    story.log.hidden = frozenset({5})
    assert story.seqs("from=1") == [1, 2, 3, 4]
    assert story.seqs("from=1&job=db") == [3]


def test_a_record_that_no_applier_wrote_is_named_without_its_bytes() -> None:
    """Its line is still JSON, whatever it holds."""
    for data in (b"", b"\xff\n", b'{"a":1}', b'data: x\n\n{"sum":"0"}'):
        value = json.loads(record_line(Record(7, "log.1.tx", data)))
        assert value == {"seq": 7, "subject": "log.1.tx", "record": None}
        assert record_event(Record(7, "log.1.tx", data)).count(b"\n") == 4


class Maker:
    """As a LineMaker: a line with the seq of every record that has events."""

    def before(self, state: State, record: LogRecord, seq: int) -> None:
        del state, record, seq

    def after(self, source: ShapeSource, record: LogRecord, seq: int) -> bytes:
        del source
        return b"%d" % seq if record.events else b""


def test_a_reader_that_is_too_slow_is_cut_and_not_skipped(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets what waits up to the bound in order, then its stream ends."""
    monkeypatch.setattr(followed_log, "LINES_MAX", 3)

    async def read() -> list[int]:
        followed = FollowedLog(story.role, None, Maker(), first=story.role.seq)  # type: ignore[arg-type]
        await followed.begin()
        found: list[int] = []
        lines: AsyncIterator[Any] = followed.lines()
        async for seq, line in lines:
            found += [seq] if line else []
            if len(found) == 1:
                # It follows once it has read the past; then it takes nothing for a while.
                await anext(lines)
                for n in range(10):
                    story.write(f"more-{n}")
        return found

    first = story.role.seq
    found = asyncio.run(read())
    assert found == list(range(first, first + 5))
    assert story.role.seq == first + 10


def test_records_without_a_line_do_not_put_off_the_heartbeat(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare topic on a busy cluster: the reader hears regularly that the connection lives."""

    class Nothing(Maker):
        def after(self, source: ShapeSource, record: LogRecord, seq: int) -> bytes:
            del source, record, seq
            return b""

    async def read() -> tuple[int, bytes]:
        # The time of the loop is the test's own: its writes come far more often than the heartbeat on any machine.
        now_s = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
        followed = FollowedLog(story.role, None, Nothing(), first=0, heartbeat_s=10.0)  # type: ignore[arg-type]
        await followed.begin()
        lines = followed.lines()
        waiting = asyncio.ensure_future(anext(lines))
        for number in range(1000):
            story.write(f"more-{number}")
            now_s += 0.1
            await asyncio.sleep(0)
            if waiting.done():
                break
        assert waiting.done()
        found = waiting.result()
        await lines.aclose()
        assert 10.0 <= now_s <= 12.0
        return found

    seq, line = asyncio.run(read())
    assert line == b""
    assert seq == story.role.seq


def test_a_fault_in_a_line_cuts_that_reader_alone(story: Story) -> None:
    """The role applies the record and continues; another reader gets its lines."""

    class Broken(Maker):
        def after(self, source: ShapeSource, record: LogRecord, seq: int) -> bytes:
            raise ValueError("planted")

    broken = followed_log.LiveLines(story.role, Broken())
    sound = followed_log.LiveLines(story.role, Maker())
    story.role.follow(broken)
    story.role.follow(sound)
    story.write("more")
    story.write("more")
    assert story.role.seq == story.written.seq
    assert (broken.is_over, sound.is_over) == (True, False)

    async def first() -> tuple[int, bytes]:
        return await anext(sound.lines(60))

    assert asyncio.run(first())[0] == story.role.seq - 1


def test_what_came_between_the_look_and_the_first_line_is_not_lost(story: Story) -> None:
    """A reader that asks for the next record gets it, though it was applied before the answer began."""

    async def read() -> list[int]:
        followed = FollowedLog(story.role, None, Maker(), first=story.role.seq + 1)  # type: ignore[arg-type]
        await followed.begin()
        story.write("between")
        lines = followed.lines()
        found = [(await anext(lines))[0]]
        await lines.aclose()
        return found

    assert asyncio.run(read()) == [story.role.seq]


def test_a_past_that_begins_at_a_snapshot_has_the_lines_of_a_whole_replay(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the records before the snapshot were dropped; without a snapshot those are gone."""
    middle = 5
    replica = Replica()
    for record in story.written.records[:middle]:
        replica.apply(record)
    lease = LeaseHeld(holder="applier", cluster_id="c1", fsync=True)

    async def restore(_bus: object, _tables: object, *, last_seq: int, quiet: bool) -> Restored:
        assert quiet and last_seq >= middle
        return Restored(copy.deepcopy(replica), SnapshotExtras(), lease)

    whole = story.seqs(f"from={middle + 1}&job=web")
    monkeypatch.setattr(followed_log.snapshots, "restore_newest", restore)
    story.log.first = 3
    assert story.seqs(f"from={middle + 1}&job=web") == whole == [story.role.seq]
    assert story.seqs(f"from={middle + 1}&node=n0") == []
