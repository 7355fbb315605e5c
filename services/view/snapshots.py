"""Writing snapshots: when a view writes one, how it cuts the work, and which old ones go.

Decides the moment (a checkpoint, after so many records or minutes), the pace (some milliseconds a step, while records
wait and questions are answered from the state as it is), and the order of what is stored: parts, one after the other,
each acknowledged, and the manifest last; so a set that nobody finished is none. Any number of views may do it: whoever
finds a set that is new enough writes none, and two that write the same set store the same bytes under the same names.
Must not know what a table consists of (shared/core/snapshots).
"""

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from schemas.envelope import LeaseHeld
from schemas.envelope import Record as LogRecord
from shared.bus import subjects
from shared.core.replica import Replica
from shared.core.role import Answer, Ask, Effect, SetTimer
from shared.core.snapshots.sets import Asides, Writing, encode_manifest
from shared.errors import SnapshotUnfit

TIMER = "snapshot"
STREAM = "SNAP"
#: The newest sets stay, whatever else goes.
KEPT = 3
#: Of what SNAP may hold; older sets go one by one above it.
FULL_ABOVE = 0.5
CHUNK_BYTES = 480 * 1024
#: Made in one step: some milliseconds.
STEP_BYTES = 512 * 1024
#: Between two pieces everybody else has his turn.
PAUSE_NS = 1_000_000
#: A chunk is offered so often before the set is given up.
TRIES_MAX = 4
_ASK = "snapshot-"
_TIMEOUT_NS = 5_000_000_000
_MINUTE_NS = 60_000_000_000


class When(msgspec.Struct, frozen=True, kw_only=True):
    """How often: after so many records, and after so many minutes with at least one. 0 and 0: never."""

    records: int = 0
    minutes: int = 0
    #: older sets that stay beside the newest, spread over the log, so that any past moment is near one.
    spread: int = 12


class _PubAck(msgspec.Struct, frozen=True):
    """JetStream's word on what was stored; `seq` 0: it was not."""

    seq: int = 0


class _StreamState(msgspec.Struct, frozen=True):
    subjects: dict[str, int] = {}
    bytes: int = 0


class _Config(msgspec.Struct, frozen=True):
    max_bytes: int = 0


class _Info(msgspec.Struct, frozen=True):
    state: _StreamState = _StreamState()
    config: _Config = _Config()


def spread(seqs: list[int], most: int) -> list[int]:
    """Keep `most` of these, ascending, spread evenly: the one whose neighbours are nearest goes first."""
    kept = sorted(seqs)
    while len(kept) > max(most, 0):
        around = [0, *kept, kept[-1] + (kept[-1] - kept[-2] if len(kept) > 1 else 1)]
        gaps = [around[at + 2] - around[at] for at in range(len(kept))]
        del kept[gaps.index(min(gaps))]
    return kept


class Snapshots:
    """Writes the snapshots of one view. `lease` and `asides` are read when a set is begun."""

    def __init__(self, replica: Replica, when: When) -> None:
        self._replica = replica
        self._when = when
        self.lease = LeaseHeld(holder="", cluster_id="")
        #: of the newest set that we know of.
        self._last_seq = 0
        self._last_ns = 0
        self._checkpoint: LogRecord | None = None
        self._checkpoint_seq = 0
        #: nobody has a set that is new enough: the next checkpoint is ours.
        self._is_armed = False
        self._writing: Writing | None = None
        #: what is still to be stored or purged: (subject, data, stream), in order.
        self._queue: deque[Ask] = deque()
        self._tries = 0
        self._asked = ""
        self._writing_seq = 0
        self._counts = dict.fromkeys(("written", "failed", "bytes"), 0)

    @property
    def is_holding(self) -> bool:
        """Tell whether the state must stay as it is: records wait."""
        return self._writing is not None and not self._writing.is_taken

    def metrics(self) -> dict[str, float]:
        """Counters, and how old the newest set is."""
        found = {f"caravan_view_snapshots_{k}_total": float(n) for k, n in self._counts.items()}
        return {**found, "caravan_view_snapshot_seq": float(self._last_seq)}

    # ---- the moment ----

    def restored(self, seq: int, now_ns: int) -> None:
        """The state is that of a set: it counts as the last one."""
        self._last_seq, self._last_ns = seq, now_ns

    def checkpoint(
        self, record: LogRecord, now_ns: int, out: list[Effect], *, asides: Callable[[], Asides]
    ) -> None:
        """The tables were just compared with this record."""
        self.remember(record)
        if not self._last_ns or now_ns < self._last_ns:
            self._last_ns = now_ns
        if self._is_armed:
            self._begin(asides())
            self._go_on(now_ns, out)
        else:
            self.look(now_ns, out)

    def remember(self, record: LogRecord) -> None:
        """Keep the newest checkpoint, while the log's past goes by."""
        self._checkpoint, self._checkpoint_seq = record, self._replica.seq

    def look(self, now_ns: int, out: list[Effect]) -> None:
        """Ask for the newest set where it is time for the next; a log at rest has its last checkpoint behind it."""
        is_at_rest = self._checkpoint_seq == self._replica.seq
        if is_at_rest and not self._is_busy and self._is_due(now_ns):
            self._ask("look", subjects.js_stream_info(STREAM), _filter(subjects.SNAPSHOT_SETS), out)

    @property
    def _is_busy(self) -> bool:
        return bool(self._asked) or self._writing is not None

    def _is_due(self, now_ns: int) -> bool:
        new = self._replica.seq - self._last_seq
        by_count = 0 < self._when.records <= new
        waited = now_ns - self._last_ns
        return by_count or (0 < self._when.minutes * _MINUTE_NS <= waited and new > 1)

    def _looked(self, data: bytes | None, now_ns: int) -> None:
        """Somebody else may have written one; what he did not say in time he has not done."""
        seqs = [subjects.snapshot_seq(name) for name in _info(data).state.subjects]
        newest = max(seqs, default=0)
        if newest > self._last_seq:
            self._last_seq, self._last_ns = newest, now_ns
        self._is_armed = data is not None and self._is_due(now_ns)

    # ---- making it ----

    def may_begin(self, out: list[Effect], now_ns: int, *, asides: Callable[[], Asides]) -> None:
        """Begin at once where nothing was written since the checkpoint: none may come for long."""
        if self._is_armed and not self._is_busy and self._checkpoint_seq == self._replica.seq:
            self._begin(asides())
            self._go_on(now_ns, out)

    def _begin(self, asides: Asides) -> None:
        assert self._checkpoint is not None
        self._is_armed = False
        self._writing_seq = self._replica.seq
        self._writing = Writing(self._replica, self._checkpoint, lease=self.lease, asides=asides)

    def _go_on(self, now_ns: int, out: list[Effect]) -> None:
        """Make a step's worth."""
        writing = self._writing
        assert writing is not None
        try:
            is_made = writing.go_on(STEP_BYTES)
        except SnapshotUnfit:
            self._give_up(now_ns, out)
            return
        if not is_made:
            out.append(SetTimer(TIMER, now_ns + PAUSE_NS))
            return
        self._writing = None
        manifest = writing.manifest()
        for part in manifest.parts:
            pieces = writing.parts.pop(part.table)
            for nth, chunk in enumerate(_chunks(pieces)):
                name = subjects.snapshot_chunk(manifest.seq, part.table, part.hash, nth)
                self._queue.append(_store(name, chunk))
        self._queue.append(_store(subjects.snapshot_set(manifest.seq), encode_manifest(manifest)))
        self._counts["bytes"] += sum(part.size for part in manifest.parts)
        self._tries = 0
        self._send(out)

    def _send(self, out: list[Effect]) -> None:
        self._asked = self._queue[0].name
        out.append(self._queue[0])

    def _ask(self, name: str, subject: str, data: bytes, out: list[Effect]) -> None:
        self._asked = f"{_ASK}{name}"
        out.append(Ask(name=self._asked, subject=subject, data=data, timeout_ns=_TIMEOUT_NS))

    # ---- storing it ----

    def timer(self, now_ns: int, out: list[Effect]) -> None:
        """Go on after a pause."""
        if self._writing is not None:
            self._go_on(now_ns, out)
        elif self._queue:
            self._send(out)

    def answered(self, answer: Answer, now_ns: int, out: list[Effect]) -> None:
        """Take the bus's answer to what was asked last."""
        if answer.name != self._asked:
            return
        self._asked = ""
        match answer.name.removeprefix(_ASK):
            case "look":
                self._looked(answer.data, now_ns)
            case "store":
                self._stored(answer.data, now_ns, out)
            case "list":
                self._listed(answer.data, out)
            case _:
                self._purged(out)

    def _stored(self, data: bytes | None, now_ns: int, out: list[Effect]) -> None:
        if not _is_kept(data):
            self._tries += 1
            if self._tries >= TRIES_MAX:
                self._give_up(now_ns, out)
            else:
                self._asked = ""
                out.append(SetTimer(TIMER, now_ns + self._tries * 1_000_000_000))
            return
        self._tries = 0
        self._queue.popleft()
        if self._queue:
            self._send(out)
            return
        self._counts["written"] += 1
        self._last_seq, self._last_ns = self._writing_seq, now_ns
        self._list(out)

    def _give_up(self, now_ns: int, out: list[Effect]) -> None:
        """Leave it; what was stored of it has no manifest, and goes with the next set."""
        self._counts["failed"] += 1
        self._writing = None
        self._queue.clear()
        self._asked = ""
        self._last_seq, self._last_ns = self._writing_seq, now_ns
        out.append(SetTimer(TIMER, 0))

    # ---- what goes ----

    def _list(self, out: list[Effect]) -> None:
        self._ask("list", subjects.js_stream_info(STREAM), _filter(subjects.SNAPSHOTS), out)

    def _listed(self, data: bytes | None, out: list[Effect]) -> None:
        """Purge what goes of the older sets, and parts that were left without one."""
        info = _info(data)
        names = info.state.subjects
        seqs = {subjects.snapshot_seq(name) for name in names}
        sets = sorted((s for s in seqs if subjects.snapshot_set(s) in names), reverse=True)
        newest, old = sets[:KEPT], sets[KEPT:]
        most = self._when.spread
        if info.state.bytes > FULL_ABOVE * info.config.max_bytes > 0:
            most = min(most, len(old) - 1)
        kept = {*newest, *spread(old, most)}
        for seq in sorted(seqs - kept):
            if not newest or seq > newest[0]:
                # Of a set that another view is writing now.
                continue
            # The manifest first: parts without one are nothing.
            for name in (subjects.snapshot_set(seq), subjects.snapshot_parts(seq)):
                ask = Ask(
                    name=f"{_ASK}purge",
                    subject=subjects.js_stream_purge(STREAM),
                    data=_purge(name),
                    timeout_ns=_TIMEOUT_NS,
                )
                self._queue.append(ask)
        if self._queue:
            self._send(out)

    def _purged(self, out: list[Effect]) -> None:
        """Whatever became of it: the next set tries again."""
        self._queue.popleft()
        if self._queue:
            self._send(out)


def _store(subject: str, data: bytes) -> Ask:
    return Ask(
        name=f"{_ASK}store", subject=subject, data=data, timeout_ns=_TIMEOUT_NS, stream=STREAM
    )


def _chunks(pieces: list[bytes]) -> Iterator[bytes]:
    """Cut and join pieces into chunks that a message takes."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        at = 0
        while at < len(piece):
            part = piece[at : at + CHUNK_BYTES - size]
            waiting.append(part)
            at, size = at + len(part), size + len(part)
            if size == CHUNK_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _filter(subject: str) -> bytes:
    return msgspec.json.encode({"subjects_filter": subject})


def _purge(subject: str) -> bytes:
    return msgspec.json.encode({"filter": subject})


def _info(data: bytes | None) -> _Info:
    """Read what a stream has; nothing where the answer says nothing."""
    try:
        return msgspec.json.decode(data or b"{}", type=_Info)
    except msgspec.DecodeError:
        return _Info()


def _is_kept(data: bytes | None) -> bool:
    if data is None:
        return False
    try:
        return msgspec.json.decode(data, type=_PubAck).seq > 0
    except msgspec.DecodeError:
        return False
