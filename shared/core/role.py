"""The one shape: a role takes a batch of inputs and returns effects; a shell performs them in order.

Two shells drive roles and nothing else may: shared/bus (NATS, real time) and shared/sim (one process, virtual time).
A shell has no `if` about meaning; a role has no clock, no randomness, no IO. Read this file first, then
`replica.py` (how a role follows the log) and any services/*/role.py.

What a shell promises:
- `step` is called with everything one turn of its loop collected, in the order of arrival, and never re-entered.
- Records arrive in ascending `seq` within one replay; a gap is possible (the role checks), a repeat after `Rewind`.
- At most one `Append` is outstanding; exactly one of Appended, AppendRefused, AppendUnknown answers it.
- A `Send` may be lost, doubled, delayed or overtaken. Nothing else is promised about messages.
- Timers are named: setting one again replaces it. They fire late, never early, and die with the process.
- Each `Message` of a work or read source counts against the source's credit until its token is acknowledged.
"""

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from schemas.envelope import LeaseHeld
    from shared.core.replica import Replica
    from shared.core.snapshots.sets import Asides

# ---- where inputs come from ----


class Replay(msgspec.Struct, frozen=True, gc=False):
    """The log, from the role's first missing seq on, then its tail. With `space`, LogSpace is told now and then.

    With `tables`, a role that has read nothing may be given these as they were at a checkpoint: `Restored`.
    """

    space: bool = False
    tables: frozenset[str] = frozenset()
    #: it may hear of a record so much later, where several then come at once.
    lull_ns: int = 0


class Listen(msgspec.Struct, frozen=True, gc=False):
    """A core subscription. With `queue`, one of the group's members gets each message; without, every one does."""

    name: str
    subject: str
    queue: str = ""


class Work(msgspec.Struct, frozen=True, gc=False):
    """A durable consumer without acks on a memory stream, shared by successive holders; opened by `Open`."""

    name: str
    stream: str
    subject: str
    durable: str
    credit: int = 64


class Read(msgspec.Struct, frozen=True, gc=False):
    """A stream read from a position that the role knows; opened by `Open(name, start)`."""

    name: str
    stream: str
    subject: str
    credit: int = 256


Source = Replay | Listen | Work | Read


# ---- inputs ----


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message of LOG, in order of `seq`; nobody has checked it yet."""

    seq: int
    subject: str
    data: bytes


class Restored(msgspec.Struct, frozen=True):
    """The state at a checkpoint, proven by the log; before any Record, and they go on behind it."""

    replica: "Replica"
    asides: "Asides"
    lease: "LeaseHeld"


class CaughtUp(msgspec.Struct, frozen=True, gc=False):
    """The replay reached what was the end of the log, `seq`, when the shell last looked."""

    seq: int


class LogSpace(msgspec.Struct, frozen=True, gc=False):
    """How full the log's newest stream is, by the server's word: at each connect, and every few seconds."""

    bytes: int
    #: 0: no bound.
    bytes_max: int
    #: last record counted in `bytes`.
    last_seq: int


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of another source. `reply` tells whether `Reply(token, …)` reaches anybody."""

    source: str
    subject: str
    data: bytes
    token: int
    reply: bool = False
    #: position in the stream, for `Read` sources.
    stream_seq: int = 0
    #: the `Nats-Msg-Id` header, where the sender set one.
    msg_id: str = ""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The outstanding append is durable at `seq`."""

    seq: int


class AppendRefused(msgspec.Struct, frozen=True, gc=False):
    """The log was not at the expected seq: somebody else wrote. `full`: it takes nothing any more."""

    reason: str = ""
    full: bool = False


class AppendUnknown(msgspec.Struct, frozen=True, gc=False):
    """No answer: the append may or may not be in the log."""


class RollReady(msgspec.Struct, frozen=True, gc=False):
    """The stream of `generation` is there and empty: it begins at `first_seq`, behind the roll that may be appended."""

    generation: int
    first_seq: int


class RollRefused(msgspec.Struct, frozen=True, gc=False):
    """There is no room for another generation, or nobody answered. Nothing has changed."""

    reason: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reply to `Ask(name)`; None: there was none."""

    name: str
    data: bytes | None = None


class PutDone(msgspec.Struct, frozen=True, gc=False):
    """A last value was stored; its subject now stands at `subject_seq`."""

    subject: str
    subject_seq: int


class PutRefused(msgspec.Struct, frozen=True, gc=False):
    """Another publisher was faster: what stands there now (empty data: nothing, or no answer)."""

    subject: str
    subject_seq: int
    data: bytes


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A named timer fired; `deadline_ns` is what it was set to."""

    name: str
    deadline_ns: int


class LeadershipWon(msgspec.Struct, frozen=True, gc=False):
    """This instance may act for its role. A hint for liveness: only the log's fence makes two writers impossible."""


class LeadershipLost(msgspec.Struct, frozen=True, gc=False):
    """Another instance acts, or may act soon."""


class Reconnected(msgspec.Struct, frozen=True, gc=False):
    """The bus was away: memory streams may be empty, sends may be lost. Sent once at the first connect, too."""

    #: server's answers, asked only by the plan applier's shell.
    fsync: bool = False
    replicas: int = 1


Input = (
    Record
    | Restored
    | CaughtUp
    | LogSpace
    | Message
    | Appended
    | AppendRefused
    | AppendUnknown
    | RollReady
    | RollRefused
    | Answer
    | PutDone
    | PutRefused
    | Timer
    | LeadershipWon
    | LeadershipLost
    | Reconnected
)


# ---- effects ----


class Append(msgspec.Struct, frozen=True, gc=False):
    """Append a record to the log, only if its last seq is `expected_seq`. `kind`: tx, lease, checkpoint or roll.

    Behind a roll the shell writes into the generation that was made ready.
    """

    kind: str
    data: bytes
    expected_seq: int
    #: covers the retry of this one append.
    msg_id: str


class Roll(msgspec.Struct, frozen=True, gc=False):
    """Make the stream ready that follows a roll at `first_seq` - 1; RollReady or RollRefused answers it."""

    first_seq: int
    #: its bound; 0: as a new cluster's.
    bytes_max: int = 0


class Send(msgspec.Struct, frozen=True, gc=False):
    """Publish without waiting: commands, leases, heartbeats, presence, dead letters."""

    subject: str
    data: bytes


class Put(msgspec.Struct, frozen=True, gc=False):
    """Store a last value; only if the subject stands at `expected` (-1: do not check). `ttl_s` 0: for ever."""

    subject: str
    data: bytes
    expected: int = -1
    ttl_s: int = 0


class Ack(msgspec.Struct, frozen=True, gc=False):
    """A message is taken care of: give its credit back to the source."""

    token: int


class Nak(msgspec.Struct, frozen=True, gc=False):
    """Deliver the message again after `delay_ns`, from the shell's own memory."""

    token: int
    delay_ns: int


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Answer a message that has `reply`. Also an Ack."""

    token: int
    data: bytes


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Fire `Timer(name, at_ns)` at or after `at_ns`; 0 cancels."""

    name: str
    at_ns: int


class Open(msgspec.Struct, frozen=True, gc=False):
    """Start (or restart, from `start`) a Work or Read source."""

    name: str
    start: int = 0


class Close(msgspec.Struct, frozen=True, gc=False):
    """Stop a Work or Read source; what it delivered before is forgotten, no token needs an answer any more."""

    name: str


class Purge(msgspec.Struct, frozen=True, gc=False):
    """Drop everything below `below` from the stream of a Read source."""

    name: str
    below: int


class Ask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Send a request; `Answer(name, …)` follows, with None after `timeout_ns` or when nobody listens."""

    name: str
    subject: str
    data: bytes
    timeout_ns: int = 2_000_000_000
    #: the stream that is to store it; nobody else can have that stored there under this name.
    stream: str = ""


class Rewind(msgspec.Struct, frozen=True, gc=False):
    """Deliver the log again from `seq` on."""

    seq: int


class Resign(msgspec.Struct, frozen=True, gc=False):
    """Give leadership up; compete again after a pause."""


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Stop the process: going on would do harm. The shell logs `reason`, and exits with a code that is not 0."""

    reason: str


Effect = (
    Append
    | Roll
    | Send
    | Put
    | Ack
    | Nak
    | Reply
    | SetTimer
    | Open
    | Close
    | Purge
    | Ask
    | Rewind
    | Resign
    | Stop
)


class Role(Protocol):
    """What a shell drives."""

    #: short role name: also the first token of its presence subject.
    name: str
    #: unique per process.
    instance: str

    def sources(self) -> tuple[Source, ...]:
        """Say where inputs come from; asked once, before the first step."""
        ...

    @property
    def leader_key(self) -> str:
        """Name of the leadership this role competes for; empty: none."""
        ...

    @property
    def next_seq(self) -> int:
        """First seq of the log that the role has not applied yet."""
        ...

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Take what happened, return what shall be done, in order. `now_ns`: wall clock, ns since 1970."""
        ...

    def metrics(self) -> dict[str, float]:
        """Gauges and counters by full Prometheus name, labels included; read between steps."""
        ...
