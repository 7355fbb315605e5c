"""The timekeeper hears gauges, and says what they do to gates; nothing that is published can end it."""

import json
import random

import msgspec
import pytest

from schemas.base import DeploymentKey, JobId
from schemas.deployments import DeploymentGroup, DeploymentStarted
from schemas.envelope import COMMANDS_DECODER
from schemas.gates import DeploymentGated, GateChanged, GateDue, UpdateGate, UpdateWindow
from schemas.jobs import JobsCollected
from services.timekeeper.due_heap import GRACE_NS
from services.timekeeper.gates import GAUGES_MAX, GaugeInvalidError, HeardGauges, read_gauge
from services.timekeeper.role import DEAD_LETTERS_MAX, Timekeeper
from shared.core.runtime.messages import (
    CaughtUp,
    LeadershipLost,
    LeadershipWon,
    Message,
    Send,
    Timer,
)
from shared.core.runtime.role import Input
from shared.cron.spec import CronInvalid
from shared.cron.windows import read_windows
from shared.protocol import subjects
from tests.seeds import seed as run_seed
from tests.unit.core.state.written_log import START_NS, WrittenLog

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
KEY = DeploymentKey(2 << 16)
LOAD = UpdateGate(name="load", gauge="depth", bound=100_000)


def said(body: object, name: str = "depth", fault: str = "") -> Message:
    """A message on the subject of a gauge."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message("gauges", subjects.gauge(name), data, token=1, fault=fault)


class Leader:
    """A timekeeper that leads, and a deployment with a gate."""

    def __init__(self, *gates: UpdateGate) -> None:
        self.log = WrittenLog()
        self.role = Timekeeper(instance="t1")
        self.now_ns = START_NS
        group = DeploymentGroup(name="g", desired_total=1)
        self.log.tx(
            DeploymentStarted(key=KEY, job_id=JobId("j"), version=0, groups=(group,)),
            DeploymentGated(key=KEY, gates=gates, since_ns=START_NS),
        )
        self.step(*self.log.records, CaughtUp(self.log.seq), LeadershipWon())

    def step(self, *inputs: Input) -> list[GateDue]:
        """Let it take inputs; return what it says of gates."""
        found = []
        for effect in self.role.step(list(inputs), self.now_ns):
            if isinstance(effect, Send) and effect.subject == subjects.command("timer"):
                batch = COMMANDS_DECODER.decode(effect.data)
                found += [one for one in batch.commands if isinstance(one, GateDue)]
        return found

    def look(self, seconds: float = 1) -> list[GateDue]:
        """Let time pass, and its timer fire."""
        self.now_ns += int(seconds * SECOND)
        return self.step(Timer("due", self.now_ns))

    def values(self, seconds: float = 1) -> list[int | None]:
        """Readings that it sends after a time."""
        return [reading.value for due in self.look(seconds) for reading in due.readings]


def test_a_value_that_crosses_is_sent_until_the_log_shows_it() -> None:
    """One that crosses nothing is not; a gauge of the cluster itself is asked for every second."""
    leader = Leader(LOAD)
    assert leader.values() == []
    leader.step(said({"value": 120.5, "every_ms": 1_000}))
    assert leader.values() == [120_500]
    assert leader.values() == [120_500]
    changed = GateChanged(
        key=KEY, gate="load", status="closed", value=120_500, since_ns=START_NS + 1, every_ns=SECOND
    )
    leader.step(leader.log.tx(changed))
    leader.step(said({"value": 130, "every_ms": 1_000}))
    assert leader.values() == []
    leader.step(said({"value": 40, "every_ms": 1_000}))
    assert leader.values() == [40_000]
    own = Leader(UpdateGate(name="cpu", gauge="cluster.cpu_held", bound=80_000))
    assert [len(own.look()) for _ in range(3)] == [1, 1, 1]


def test_a_gate_counts_in_log_time_where_that_is_ahead_of_this_clock() -> None:
    """A plan applier whose clock is an hour ahead leads: what is within for long enough opens all the same."""
    leader = Leader(msgspec.structs.replace(LOAD, for_ns=2 * SECOND))
    ahead_ns = START_NS + HOUR
    opening = GateChanged(
        key=KEY, gate="load", status="opening", value=1, since_ns=ahead_ns, every_ns=SECOND
    )
    leader.step(leader.log.tx(opening, t_ns=ahead_ns), said({"value": 1, "every_ms": 10_000}))
    assert leader.values() == []
    leader.step(leader.log.tx(JobsCollected(job_ids=()), t_ns=ahead_ns + 3 * SECOND))
    assert leader.values() == [1_000]


def test_silence_for_three_intervals_closes_a_gate() -> None:
    """Also behind a takeover, where the interval is known from the log: not before it could be heard."""
    opened = GateChanged(
        key=KEY, gate="load", status="open", value=1, since_ns=START_NS + 1, every_ns=10 * SECOND
    )
    leader = Leader(LOAD)
    leader.step(leader.log.tx(opened), said({"value": 1, "every_ms": 10_000}))
    assert leader.values(30) == []
    assert leader.values(1) == [None]
    successor = Leader(LOAD)
    successor.step(successor.log.tx(opened), LeadershipLost(), LeadershipWon())
    assert successor.values(30) == []
    assert successor.values(1) == [None]


def test_a_gate_whose_gauge_was_never_heard_stays_closed_without_a_command() -> None:
    """There is nothing to say: it is closed already."""
    leader = Leader(LOAD)
    assert leader.look(GRACE_NS / SECOND + 1) == []
    assert leader.look() == []


def test_a_timeout_is_told_in_time() -> None:
    """Without any reading."""
    leader = Leader(
        msgspec.structs.replace(LOAD, timeout_ns=20 * SECOND, on_timeout="fail"),
    )
    assert leader.look(19) == []
    assert len(leader.look(1)) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"NaN",
        b'{"value":NaN,"every_ms":1000}',
        b'{"value":1e999,"every_ms":1000}',
        b'{"value":-1e300,"every_ms":1000}',
        b'{"value":' + b"9" * 400 + b',"every_ms":1000}',
        b'{"value":"1","every_ms":1000}',
        b'{"value":true,"every_ms":1000}',
        b'{"value":null,"every_ms":1000}',
        b'{"value":1}',
        b'{"value":1,"every_ms":0}',
        b'{"value":1,"every_ms":-5}',
        b'{"value":1,"every_ms":1e99}',
        b'{"value":1,"every_ms":99999999999999999999}',
    ],
)
def test_what_is_no_gauge_is_refused_and_ends_nothing(body: bytes) -> None:
    """It is kept as a dead letter, a few a second, and the next good value is heard."""
    with pytest.raises(GaugeInvalidError):
        read_gauge(said(body))
    leader = Leader(LOAD)
    effects = leader.role.step([said(body)] * 50, leader.now_ns)
    sent = [one for one in effects if isinstance(one, Send)]
    assert len(sent) == DEAD_LETTERS_MAX == len(effects)
    leader.step(said({"value": 120, "every_ms": 1_000}))
    assert leader.values() == [120_000]


def test_headers_and_names_that_cannot_be_read() -> None:
    """The body is not looked at."""
    good = {"value": 1, "every_ms": 1_000}
    for message in (said(good, fault="header is no text"), said(good, name="x" * 500)):
        with pytest.raises(GaugeInvalidError):
            read_gauge(message)


def test_memory_is_bounded() -> None:
    """Of more names than that the one heard longest ago is forgotten."""
    heard = HeardGauges()
    for nth in range(GAUGES_MAX + 5):
        heard.record(said({"value": nth, "every_ms": 1_000}, name=f"g{nth}"))
    assert len(heard.by_name) == GAUGES_MAX
    assert "g4" not in heard.by_name and "g5" in heard.by_name


@pytest.mark.parametrize("fixed", [7, None])
def test_random_bytes_never_end_it(fixed: int | None) -> None:
    """Whatever stands in a message, the step returns; one seed is this run's."""
    seed = run_seed() if fixed is None else fixed
    draws = random.Random(seed)
    leader = Leader(LOAD)
    for _ in range(200):
        body = bytearray(b'{"value":12.5,"every_ms":1000}')
        for _ in range(draws.randrange(6)):
            body[draws.randrange(len(body))] = draws.randrange(256)
        leader.step(said(bytes(body)))
    leader.look()
    assert leader.role.is_leader, seed


def test_windows_are_read_with_the_clock_of_their_zone() -> None:
    """The one that closes last counts; in summer an hour earlier; an unknown zone is an error."""
    night = UpdateWindow(cron="0 3 * * *", duration_ns=HOUR, time_zone="Europe/Berlin")
    noon = 1_784_116_800 * SECOND  # 2026-07-15 12:00 UTC
    assert not read_windows((night,), noon).is_open
    one = read_windows((night,), noon - 11 * HOUR + 1)
    assert (one.is_open, one.from_ns, one.until_ns) == (True, noon - 11 * HOUR, noon - 10 * HOUR)
    assert read_windows((night,), noon - 10 * HOUR).until_ns == noon + 13 * HOUR
    longer = UpdateWindow(cron="30 0 * * *", duration_ns=6 * HOUR)
    both = read_windows((night, longer), noon - 11 * HOUR + 1)
    assert both.until_ns == noon - 12 * HOUR + HOUR // 2 + 6 * HOUR
    with pytest.raises(CronInvalid):
        read_windows((UpdateWindow(cron="@daily", duration_ns=1, time_zone="Moon/Base"),), noon)
