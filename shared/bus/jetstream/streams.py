"""Every stream, declared once: what the bus must offer before a role may trust it.

LOG and JOBS hold what cannot be made again, so only `bootstrap` of a new
cluster creates them; memory streams vanish with the server, so every role in CORE ensures them at each
connect. A stream that exists with other settings is never updated: the process refuses to work and names the
difference. Next: `direct_get.py`.
"""

import math
from datetime import datetime
from typing import Protocol

import msgspec

from schemas.base import MIB, SECOND_NS
from shared.errors import BusUnavailable
from shared.protocol import subjects

_GIB = 1 << 30

#: Size of one generation of the log unless `bootstrap` sets another.
LOG_BYTES_MAX = 16 * _GIB
#: Numbers that a generation may have.
GENERATIONS = range(1, 65)
#: A message is one transaction of at most 512 KiB; the rest is headers and slack.
MESSAGE_BYTES_MAX = MIB
STREAM_NOT_FOUND = 10059
#: Notes beside a generation: the first record of the log that has to be there, and why none is before it.
BEGINS, BEGINS_WHY = "caravan-begins", "caravan-begins-why"


class BusRefused(BusUnavailable):
    """The bus is there and is not the one we may work on: waiting does not help."""


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a stream under the server's own field names. Units: bytes, nanoseconds, -1 without bound."""

    name: str
    subjects: tuple[str, ...] = ()
    retention: str = "limits"
    storage: str = "file"
    discard: str = "new"
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    #: a subject that is full takes nothing more, instead of dropping its oldest message.
    discard_new_per_subject: bool = False
    max_msg_size: int = MESSAGE_BYTES_MAX
    num_replicas: int = 1
    duplicate_window: int = 120 * SECOND_NS
    allow_direct: bool = False
    allow_msg_ttl: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    #: where numbering begins; 0: at 1.
    first_seq: int = 0
    #: notes of the administrator (BEGINS); the server adds its own.
    metadata: dict[str, str] = {}


class LostData(msgspec.Struct, frozen=True):
    """What the server could not read of a stream's files and cut away, or could not write.

    `msgs`: the seqs reported as lost; above the stream's last one: of writes that failed, never acknowledged.
    """

    bytes: int = 0
    msgs: tuple[int, ...] | None = None


class StreamState(msgspec.Struct, frozen=True):
    """What a stream holds. An empty one has first_seq = last_seq + 1."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    #: reported until the server restarts, and only if requested.
    lost: LostData | None = None

    @property
    def missing(self) -> int:
        """Number of messages that are gone from a stream from which nothing may be deleted."""
        expected = self.last_seq - self.first_seq + 1 if self.last_seq else 0
        return expected - self.messages

    @property
    def is_end_lost(self) -> bool:
        """Return whether the seqs reported as lost are behind the end: of failed writes, or cut off as damaged."""
        return (
            self.lost is not None
            and bool(self.lost.msgs)
            and min(self.lost.msgs or ()) > self.last_seq
        )

    @property
    def is_write_failed(self) -> bool:
        """Return whether a write of the log failed: the server stores nothing more here until it is started again.

        One append is in flight at a time, so a failed write loses the next seq alone. If more are lost behind the
        end, the server cut off acknowledged records: it does so when it cannot read the frame of a record.
        """
        return self.lost is not None and self.lost.msgs == (self.last_seq + 1,)

    @property
    def damage(self) -> str:
        """Describe what is wrong with a stream from which nothing may be deleted; empty: nothing."""
        if self.missing:
            found = f"{self.messages} messages between {self.first_seq} and {self.last_seq}"
            return f"it holds {found}, {self.missing} are missing"
        if self.lost is not None and self.lost.bytes and not self.is_write_failed:
            cut = f"the server removed {self.lost.bytes} damaged bytes"
            rest = f"the rest ends at {self.last_seq}"
            return (
                f"{cut} when it started; {rest}, and another start of the server accepts the loss"
            )
        return ""


class ApiError(msgspec.Struct, frozen=True):
    """Why JetStream said no."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class StreamReplica(msgspec.Struct, frozen=True):
    """A follower, as the stream's leader sees it. `active`: nanoseconds since it was heard; 0 where it never was."""

    name: str = ""
    current: bool = False
    active: int = 0
    #: entries that it lacks.
    lag: int = 0
    offline: bool = False

    @property
    def silent_s(self) -> float:
        """How long ago the leader heard from it; infinite: never, since it leads."""
        return self.active / SECOND_NS if self.active or self.current else math.inf


class StreamCluster(msgspec.Struct, frozen=True):
    """Who keeps a stream. A leader that has lost the others still answers: `replicas` tell."""

    leader: str = ""
    replicas: tuple[StreamReplica, ...] | None = None

    @property
    def majority_silent_s(self) -> float:
        """How long ago the leader last heard from as many servers as a commit needs beside itself."""
        silent = sorted(one.silent_s for one in self.replicas or ())
        needed = (len(silent) + 1) // 2
        return silent[needed - 1] if needed else 0.0


class StreamInfo(msgspec.Struct, frozen=True):
    """Answer to `STREAM.INFO` and `STREAM.CREATE`; `created` distinguishes streams of the same name."""

    config: StreamConfig | None = None
    state: StreamState = StreamState()
    created: str = ""
    #: the server's clock when it answered.
    ts: datetime | None = None
    #: None: of a server that is alone.
    cluster: StreamCluster | None = None
    error: ApiError | None = None


class Requester(Protocol):
    """The part of a connection that is needed here: a request to JetStream's API and the body of its answer."""

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Request with the connection's own timeout. Raises BusUnavailable without an answer."""
        ...


JOBS = StreamConfig(name="JOBS", subjects=(subjects.JOBS_ALL,), max_bytes=_GIB)
CMD = StreamConfig(
    name="CMD",
    subjects=(
        *(subjects.command(k) for k in subjects.COMMAND_KINDS if k != "report"),
        subjects.REPORTS,
    ),
    retention="interest",
    storage="memory",
    max_bytes=256 * MIB,
)
EVAL = StreamConfig(
    name="EVAL",
    subjects=(subjects.LEASES,),
    retention="interest",
    storage="memory",
    max_bytes=64 * MIB,
)
NODE = StreamConfig(
    name="NODE",
    subjects=(subjects.NODES,),
    storage="memory",
    discard="old",
    max_msgs_per_subject=1,
    allow_direct=True,
    allow_msg_ttl=True,
)
VIEW = msgspec.structs.replace(NODE, name="VIEW", subjects=(subjects.VIEWS,))
DEAD = StreamConfig(
    name="DEAD",
    subjects=(subjects.DEAD_ALL,),
    discard="old",
    max_bytes=_GIB,
    max_age=7 * 86_400 * SECOND_NS,
)
#: The state at some checkpoints: derived from the log, so the oldest may be deleted, and none is required.
SNAP = StreamConfig(
    name="SNAP",
    subjects=(subjects.SNAPSHOTS,),
    discard="old",
    max_bytes=4 * _GIB,
    max_msgs_per_subject=1,
    allow_direct=True,
)
#: Laid out as a KV bucket without limit markers: they would keep an expired key taken.
LEADER = StreamConfig(
    name="KV_LEADER",
    subjects=(subjects.LEADERS,),
    storage="memory",
    max_msgs_per_subject=1,
    allow_msg_ttl=True,
)

#: Wrapped keys (services/keeper/key_store.py): an entry is written once, and goes only by being erased. Not ensured: a
#: keeper that finds none where its log knows of keys must not begin with an empty one.
KEYS = StreamConfig(
    name="KEYS",
    subjects=(subjects.KEYS,),
    max_bytes=256 * MIB,
    max_msgs_per_subject=1,
    discard_new_per_subject=True,
    allow_direct=True,
)

#: What tasks used, a minute of a node a message (docs/usage.md): the oldest goes first. Made by a view, not ensured: no
#: role needs it.
USAGE = StreamConfig(
    name="USAGE",
    subjects=(subjects.USAGES,),
    storage="memory",
    discard="old",
    max_bytes=256 * MIB,
    max_age=86_400 * SECOND_NS,
    allow_direct=True,
)

#: Output of tasks whose job says so (docs/log-shipping.md): the oldest goes first. Made by a view, too.
LOGS = StreamConfig(
    name="LOGS",
    subjects=(subjects.SHIPPED_LOGS,),
    discard="old",
    max_bytes=_GIB,
    max_age=7 * 86_400 * SECOND_NS,
    allow_direct=True,
)

#: What agents publish to and no role needs.
OF_NODES = (USAGE, LOGS)

#: Created by the first service that starts. DEAD and SNAP are durable, but nothing is lost when they start empty.
ENSURED = (CMD, EVAL, NODE, VIEW, DEAD, SNAP, LEADER)


def log_config(generation: int = 1, max_bytes: int = LOG_BYTES_MAX) -> StreamConfig:
    """Settings of one generation of the log."""
    return StreamConfig(
        name=subjects.log_stream(generation),
        subjects=(subjects.log_all(generation),),
        max_bytes=max_bytes,
        duplicate_window=3600 * SECOND_NS,
        allow_direct=True,
        deny_delete=True,
        deny_purge=True,
    )


def stream_of(subject: str) -> str:
    """Name the stream that keeps the last value of a projection's subject. Raises KeyError for any other subject."""
    return {"node": NODE.name, "view": VIEW.name}[subject.partition(".")[0]]


async def info(bus: Requester, name: str, *, lost: bool = False) -> StreamInfo | None:
    """Describe a stream; None where it does not exist. `lost`: include the records that the server lost.

    Raises BusUnavailable.
    """
    body = b'{"deleted_details":true}' if lost else b""
    answer = _decode(await bus.ask(subjects.js_stream_info(name), body))
    if answer.error is None:
        return answer
    if answer.error.err_code == STREAM_NOT_FOUND:
        return None
    raise BusUnavailable(f"stream {name}: {answer.error.description}")


async def ensure(bus: Requester, replicas: int = 1) -> StreamInfo:
    """Make what may be made, check everything, and return the info of the log's oldest generation.

    Raises BusRefused: LOG or JOBS is missing, or a stream has other settings than ours; BusUnavailable: no answer.
    """
    for wanted in ENSURED:
        await _ensure_one(bus, msgspec.structs.replace(wanted, num_replicas=replicas))
    jobs = await info(bus, JOBS.name)
    if jobs is None:
        raise BusRefused(
            f"stream {JOBS.name} is missing: only the bootstrap of a new cluster creates it"
        )
    _compare(jobs, msgspec.structs.replace(JOBS, num_replicas=replicas), sized=False)
    for generation in GENERATIONS:
        log = await info(bus, subjects.log_stream(generation))
        if log is not None:
            wanted = msgspec.structs.replace(log_config(generation), num_replicas=replicas)
            _compare(log, wanted, sized=False)
            return log
    first = subjects.log_stream(1)
    raise BusRefused(f"stream {first} is missing: only the bootstrap of a new cluster creates it")


async def bootstrap(
    bus: Requester, *, replicas: int = 1, log_bytes_max: int = LOG_BYTES_MAX
) -> None:
    """Create LOG_1 and JOBS of a new cluster, then the rest; existing ones are left as they are, and checked."""
    for wanted in (log_config(1, log_bytes_max), JOBS):
        await _ensure_one(bus, msgspec.structs.replace(wanted, num_replicas=replicas), sized=False)
    await ensure(bus, replicas)


async def is_there(bus: Requester, wanted: StreamConfig) -> bool:
    """Return whether a stream exists. Raises BusRefused where it has other settings than ours; BusUnavailable."""
    found = await info(bus, wanted.name)
    if found is not None:
        _compare(found, wanted, sized=False)
    return found is not None


async def create(bus: Requester, wanted: StreamConfig) -> StreamInfo:
    """Create a stream, or find that another client has just created it. Raises BusUnavailable."""
    created = await bus.ask(subjects.js_stream_create(wanted.name), msgspec.json.encode(wanted))
    found = _decode(created)
    if found.error is not None:
        found = await info(bus, wanted.name) or found
    if found.error is not None:
        raise BusUnavailable(f"cannot create stream {wanted.name}: {found.error.description}")
    return found


async def note_beginning(bus: Requester, name: str, first_seq: int, why: str) -> None:
    """Note where the log begins beside a generation, and why; the administrator alone may. Raises BusUnavailable."""
    reply_body = msgspec.json.decode(await bus.ask(subjects.js_stream_info(name), b""))
    if "config" not in reply_body:
        raise BusUnavailable(
            f"stream {name}: {reply_body.get('error', {}).get('description', 'no answer')}"
        )
    # As the server has it, including unknown fields.
    config = reply_body["config"]
    config["metadata"] = (config.get("metadata") or {}) | {
        BEGINS: str(first_seq),
        BEGINS_WHY: why,
    }
    answer = await bus.ask(subjects.js_stream_update(name), msgspec.json.encode(config))
    changed = _decode(answer)
    if changed.error is not None:
        raise BusUnavailable(f"stream {name} was not changed: {changed.error.description}")


async def _ensure_one(bus: Requester, wanted: StreamConfig, *, sized: bool = True) -> None:
    found = await info(bus, wanted.name) or await create(bus, wanted)
    _compare(found, wanted, sized=sized)


def _compare(found: StreamInfo, wanted: StreamConfig, *, sized: bool = True) -> None:
    """Raise BusUnavailable with every setting that differs; `sized` False: the operator chose max_bytes."""
    assert found.config is not None
    have = msgspec.structs.asdict(found.config)
    want = msgspec.structs.asdict(wanted)
    if not sized:
        del want["max_bytes"]
    # Where a generation begins is its own matter.
    del want["first_seq"], want["metadata"]
    other = [
        f"{key} is {have[key]!r}, expected {want[key]!r}" for key in want if have[key] != want[key]
    ]
    if other:
        raise BusRefused(f"stream {wanted.name}: {'; '.join(other)}")


def _decode(body: bytes) -> StreamInfo:
    return msgspec.json.decode(body, type=StreamInfo)
