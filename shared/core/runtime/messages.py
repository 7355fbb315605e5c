"""What passes between a role and the shell that drives it: sources, inputs and effects.

Plain structs without behaviour. `role.py` says what a shell promises about them; `restored.py` has the one input that
carries a state.
"""

from collections.abc import Mapping

import msgspec

from schemas.bus_answers import BusStatus

# ---- where inputs come from ----


class Replay(msgspec.Struct, frozen=True, gc=False):
    """The log from the first missing seq on, then its tail. With `space`, LogSpace is delivered periodically.

    With `servers`, BusSeen is, too: the servers of all streams are looked at, not of the log alone.

    With `tables`, a role that has read nothing may be given these as they were at a checkpoint: `Restored`.
    """

    space: bool = False
    tables: frozenset[str] = frozenset()
    #: how much later a record may be delivered, so that several come at once.
    batch_window_ns: int = 0
    servers: bool = False


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
    """One message of LOG, in order of `seq`; not checked yet."""

    seq: int
    subject: str
    data: bytes


class CaughtUp(msgspec.Struct, frozen=True, gc=False):
    """The replay reached what was the end of the log, `seq`, when the shell last looked."""

    seq: int
    #: how far the log of a cluster, by its id, once reached: seqs of stored snapshots.
    once_reached: Mapping[str, int] = {}


class LogSpace(msgspec.Struct, frozen=True, gc=False):
    """How full the log's newest stream is, by the server's word: at each connect, and every few seconds."""

    bytes: int
    #: 0: no bound.
    bytes_max: int
    #: last record counted in `bytes`.
    last_seq: int
    #: a write failed, as on a full disk: the server stores nothing until it is started again.
    is_write_failed: bool = False
    #: how far the clock of this process is ahead of the server's; below 0: behind it.
    clock_off_ns: int = 0


class BusSeen(msgspec.Struct, frozen=True, gc=False):
    """The servers of the bus, as a shell just found them, and what an operator should know about them."""

    status: BusStatus
    alarms: tuple[str, ...] = ()


class LogScrubbed(msgspec.Struct, frozen=True, gc=False):
    """How far the background read of the stored log came, and what it found. `problem` empty: sound so far."""

    seq: int
    problem: str = ""
    #: the pass reached the end that the log had when it began.
    is_pass_done: bool = False


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of another source. `reply` tells whether `Reply(token, …)` has a receiver."""

    source: str
    subject: str
    data: bytes
    token: int
    reply: bool = False
    #: position in the stream, for `Read` sources.
    stream_seq: int = 0
    #: the `Nats-Msg-Id` header, where the sender set one.
    msg_id: str = ""
    #: why subject or headers cannot be read: it is refused, and its body is not looked at; empty: they can.
    fault: str = ""
    #: the `traceparent` header (W3C Trace Context), where the sender set one; not checked.
    traceparent: str = ""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The outstanding append is durable at `seq`."""

    seq: int


class AppendRefused(msgspec.Struct, frozen=True, gc=False):
    """The log was not at the expected seq: another writer appended. `full`: the log accepts no more records."""

    reason: str = ""
    full: bool = False


class AppendUnknown(msgspec.Struct, frozen=True, gc=False):
    """No answer: the append may or may not be in the log."""


class RollReady(msgspec.Struct, frozen=True, gc=False):
    """The stream of `generation` is there and empty: it begins at `first_seq`, behind the roll that may be appended."""

    generation: int
    first_seq: int


class RollRefused(msgspec.Struct, frozen=True, gc=False):
    """There is no room for another generation, or no answer. Nothing has changed."""

    reason: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reply to `Ask(name)`; None: there was none."""

    name: str
    data: bytes | None = None
    #: the bus answered that the subject has no value.
    is_empty: bool = False


class PutDone(msgspec.Struct, frozen=True, gc=False):
    """A last value was stored; its subject now is at `subject_seq`."""

    subject: str
    subject_seq: int


class PutRefused(msgspec.Struct, frozen=True, gc=False):
    """Another publisher was faster: its current value (empty data: none, or no answer)."""

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
    #: this start of the one server: another one may serve an older copy; empty: not known, or there are several.
    bus: str = ""


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
    """Store a last value; only if the subject is at `expected` (-1: do not check). `ttl_s` 0: forever."""

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
    """Send a request; `Answer(name, …)` follows, with None after `timeout_ns` or without a listener."""

    name: str
    subject: str
    data: bytes
    timeout_ns: int = 2_000_000_000
    #: the stream that has to store it under this name; no other sender may.
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
