"""Writes snapshots: when a view writes one, in which steps, and which old ones are purged.

A snapshot is taken at a checkpoint, after a number of records or minutes. It is made in steps of some milliseconds,
during which records wait and queries are answered from the state as it is. Parts are stored one after the other, each
acknowledged, and the manifest last, so an unfinished set has no manifest and is ignored. Any number of views may write:
a view that finds a new enough set writes none, and two views store the same bytes under the same names.
"""

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from schemas.envelope import LeaseHeld, LogRecord
from shared.core.runtime.counters import Counters
from shared.core.runtime.messages import Answer, Ask, SetTimer
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import SnapshotExtras
from shared.core.runtime.snapshots import SnapshotSetWriter, encode_manifest
from shared.core.runtime.step import Step
from shared.errors import SnapshotUnusable
from shared.protocol import subjects

TIMER = "snapshot"
STREAM = "SNAP"
#: The newest sets are never purged.
NEWEST_KEPT = 3
#: Share of the capacity of SNAP above which older sets are purged one by one.
FULL_ABOVE = 0.5
CHUNK_BYTES = 480 * 1024
#: Bytes made in one step of some milliseconds.
STEP_BYTES = 512 * 1024
#: Pause between two steps, for other work.
PAUSE_NS = 1_000_000
#: Attempts to store a chunk before the set is given up.
TRIES_MAX = 4
_ASK = "snapshot-"
_TIMEOUT_NS = 5_000_000_000
_MINUTE_NS = 60_000_000_000


class SnapshotSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Records after which, and minutes (with at least one record) after which a snapshot is due. 0 and 0: never."""

    records: int = 0
    minutes: int = 0
    #: older sets kept beside the newest ones, spread evenly over the log.
    spread: int = 12


class _PubAck(msgspec.Struct, frozen=True):
    """JetStream's acknowledgement; `seq` 0: not stored."""

    seq: int = 0


class _StreamState(msgspec.Struct, frozen=True):
    subjects: dict[str, int] = {}
    bytes: int = 0


class _Config(msgspec.Struct, frozen=True):
    max_bytes: int = 0


class _Info(msgspec.Struct, frozen=True):
    state: _StreamState = _StreamState()
    config: _Config = _Config()


def evenly_spread(seqs: list[int], most: int) -> list[int]:
    """Keep `most` of these, ascending, spread evenly: the one whose neighbours are nearest goes first."""
    kept = sorted(seqs)
    while len(kept) > max(most, 0):
        around = [0, *kept, kept[-1] + (kept[-1] - kept[-2] if len(kept) > 1 else 1)]
        gaps = [around[at + 2] - around[at] for at in range(len(kept))]
        del kept[gaps.index(min(gaps))]
    return kept


class SnapshotWriter:
    """Writes the snapshots of one view. `lease` and `asides` are read when a set is begun."""

    def __init__(self, replica: Replica, when: SnapshotSchedule) -> None:
        self._replica = replica
        self._when = when
        self.lease = LeaseHeld(holder="", cluster_id="")
        #: of the newest known set.
        self._last_seq = 0
        self._last_ns = 0
        self._checkpoint: LogRecord | None = None
        self._checkpoint_seq = 0
        #: no set is new enough, so this view writes one at the next checkpoint.
        self._is_armed = False
        self._writing: SnapshotSetWriter | None = None
        #: requests to store or purge, in order.
        self._queue: deque[Ask] = deque()
        self._tries = 0
        self._asked = ""
        self._writing_seq = 0
        self._counters = Counters("caravan_view_snapshots_", ("written", "failed", "bytes"))

    @property
    def is_holding(self) -> bool:
        """Whether the state must not change, so that records wait."""
        return self._writing is not None and not self._writing.is_captured

    def metrics(self) -> dict[str, float]:
        """Counters, and the seq of the newest set."""
        return {**self._counters.totals(), "caravan_view_snapshot_seq": float(self._last_seq)}

    # ---- the moment ----

    def restored(self, seq: int, now_ns: int) -> None:
        """Count the set that the state was restored from as the newest one."""
        self._last_seq, self._last_ns = seq, now_ns

    def checkpoint(
        self,
        record: LogRecord,
        step: Step,
        *,
        asides: Callable[[], SnapshotExtras],
    ) -> None:
        """Begin a set or look for one, after the tables were compared with this record."""
        self.remember(record)
        if not self._last_ns or step.now_ns < self._last_ns:
            self._last_ns = step.now_ns
        if self._is_armed:
            self._begin(asides())
            self._go_on(step)
        else:
            self.look(step)

    def remember(self, record: LogRecord) -> None:
        """Keep the newest checkpoint while the log is replayed."""
        self._checkpoint, self._checkpoint_seq = record, self._replica.seq

    def look(self, step: Step) -> None:
        """Query the newest set if the next one is due and the last record of the log is a checkpoint."""
        is_at_rest = self._checkpoint_seq == self._replica.seq
        if is_at_rest and not self._is_busy and self._is_due(step.now_ns):
            self._ask(
                "look", subjects.js_stream_info(STREAM), _filter(subjects.SNAPSHOT_SETS), step
            )

    @property
    def _is_busy(self) -> bool:
        return bool(self._asked) or self._writing is not None

    def _is_due(self, now_ns: int) -> bool:
        new = self._replica.seq - self._last_seq
        by_count = 0 < self._when.records <= new
        waited = now_ns - self._last_ns
        return by_count or (0 < self._when.minutes * _MINUTE_NS <= waited and new > 1)

    def _looked(self, data: bytes | None, now_ns: int) -> None:
        """Look for a newer set of another view; no answer means none."""
        seqs = [subjects.snapshot_seq(name) for name in _info(data).state.subjects]
        newest = max(seqs, default=0)
        if newest > self._last_seq:
            self._last_seq, self._last_ns = newest, now_ns
        self._is_armed = data is not None and self._is_due(now_ns)

    # ---- making it ----

    def begin_if_armed(self, step: Step, *, asides: Callable[[], SnapshotExtras]) -> None:
        """Begin at once if nothing was written since the checkpoint: the next one may be far away."""
        if self._is_armed and not self._is_busy and self._checkpoint_seq == self._replica.seq:
            self._begin(asides())
            self._go_on(step)

    def _begin(self, asides: SnapshotExtras) -> None:
        assert self._checkpoint is not None
        self._is_armed = False
        self._writing_seq = self._replica.seq
        self._writing = SnapshotSetWriter(
            self._replica, self._checkpoint, lease=self.lease, asides=asides
        )

    def _go_on(self, step: Step) -> None:
        """Do one step."""
        writing = self._writing
        assert writing is not None
        try:
            is_made = writing.write_chunks(STEP_BYTES)
        except SnapshotUnusable:
            self._give_up(step)
            return
        if not is_made:
            step.emit(SetTimer(TIMER, step.now_ns + PAUSE_NS))
            return
        self._writing = None
        manifest = writing.manifest()
        for part in manifest.parts:
            pieces = writing.parts.pop(part.table)
            for nth, chunk in enumerate(_chunks(pieces)):
                name = subjects.snapshot_chunk(manifest.seq, part.table, part.hash, nth)
                self._queue.append(_store(name, chunk))
        self._queue.append(_store(subjects.snapshot_set(manifest.seq), encode_manifest(manifest)))
        self._counters.add("bytes", sum(part.size for part in manifest.parts))
        self._tries = 0
        self._send(step)

    def _send(self, step: Step) -> None:
        self._asked = self._queue[0].name
        step.emit(self._queue[0])

    def _ask(self, name: str, subject: str, data: bytes, step: Step) -> None:
        self._asked = f"{_ASK}{name}"
        step.emit(Ask(name=self._asked, subject=subject, data=data, timeout_ns=_TIMEOUT_NS))

    # ---- storing it ----

    def timer(self, step: Step) -> None:
        """Continue after a pause."""
        if self._writing is not None:
            self._go_on(step)
        elif self._queue:
            self._send(step)

    def answered(self, answer: Answer, step: Step) -> None:
        """Handle the answer to the last request."""
        if answer.name != self._asked:
            return
        self._asked = ""
        match answer.name.removeprefix(_ASK):
            case "look":
                self._looked(answer.data, step.now_ns)
            case "store":
                self._stored(answer.data, step)
            case "list":
                self._listed(answer.data, step)
            case _:
                self._purged(step)

    def _stored(self, data: bytes | None, step: Step) -> None:
        if not _is_kept(data):
            self._tries += 1
            if self._tries >= TRIES_MAX:
                self._give_up(step)
            else:
                self._asked = ""
                step.emit(SetTimer(TIMER, step.now_ns + self._tries * 1_000_000_000))
            return
        self._tries = 0
        self._queue.popleft()
        if self._queue:
            self._send(step)
            return
        self._counters.add("written")
        self._last_seq, self._last_ns = self._writing_seq, step.now_ns
        self._list(step)

    def _give_up(self, step: Step) -> None:
        """Give up the set; its parts have no manifest and are purged with the next set."""
        self._counters.add("failed")
        self._writing = None
        self._queue.clear()
        self._asked = ""
        self._last_seq, self._last_ns = self._writing_seq, step.now_ns
        step.emit(SetTimer(TIMER, 0))

    # ---- what goes ----

    def _list(self, step: Step) -> None:
        self._ask("list", subjects.js_stream_info(STREAM), _filter(subjects.SNAPSHOTS), step)

    def _listed(self, data: bytes | None, step: Step) -> None:
        """Purge older sets, and parts without a manifest."""
        info = _info(data)
        names = info.state.subjects
        seqs = {subjects.snapshot_seq(name) for name in names}
        sets = sorted((s for s in seqs if subjects.snapshot_set(s) in names), reverse=True)
        newest, old = sets[:NEWEST_KEPT], sets[NEWEST_KEPT:]
        most = self._when.spread
        if info.state.bytes > FULL_ABOVE * info.config.max_bytes > 0:
            most = min(most, len(old) - 1)
        kept = {*newest, *evenly_spread(old, most)}
        for seq in sorted(seqs - kept):
            if not newest or seq > newest[0]:
                # Another view is writing it.
                continue
            # The manifest first, since parts without one are ignored.
            for name in (subjects.snapshot_set(seq), subjects.snapshot_parts(seq)):
                ask = Ask(
                    name=f"{_ASK}purge",
                    subject=subjects.js_stream_purge(STREAM),
                    data=_purge(name),
                    timeout_ns=_TIMEOUT_NS,
                )
                self._queue.append(ask)
        if self._queue:
            self._send(step)

    def _purged(self, step: Step) -> None:
        """Continue, whether or not it was purged: the next set tries again."""
        self._queue.popleft()
        if self._queue:
            self._send(step)


def _store(subject: str, data: bytes) -> Ask:
    return Ask(
        name=f"{_ASK}store", subject=subject, data=data, timeout_ns=_TIMEOUT_NS, stream=STREAM
    )


def _chunks(pieces: list[bytes]) -> Iterator[bytes]:
    """Cut and join pieces into chunks of the size of a message."""
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
    """Decode the state of a stream; empty if the answer cannot be decoded."""
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
