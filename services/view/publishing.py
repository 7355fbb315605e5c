"""What of the state is published, when, and against whom: marks, pacing and the fence of last values.

Decides which projections are due, that a lower (cluster_id, seq) never replaces a higher one, and how much one tick may
cost. Must not know what made a mark (`marks.py`) nor how a projection is built (`projections.py`).

A subject has at most one Put on its way. Its fence is the subject seq that the last answer told; where another view was
faster we look at what stands there and go again only if ours is newer.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import JobId, NodeId, Wire
from schemas.envelope import ENCODER
from services.view.marks import Marks, Row
from shared.bus import subjects
from shared.core.columns import Rows, grown
from shared.core.role import Effect, Message, Put, PutDone, PutRefused
from shared.core.state import State
from shared.query import projections

#: A tick publishes at most so many values of one kind …
PUTS_PER_TICK = 1_000
#: … and looks at so many allocations in desired sets, so that queries are answered in between (about 20 ms).
ALLOCATIONS_PER_TICK = 50_000
#: … and counts so many in job summaries.
COUNTED_PER_TICK = 1_000_000
#: A node hears that its report was seen, at the latest, so long after the last word to it; it asks after 0.5 s.
HEARD_NS = 250_000_000
#: Summaries of nodes and jobs: when more than so many wait, they go once in this time.
RUSH = 100
RUSH_NS = 1_000_000_000
#: A message of the bus, headers left out: 50,000 allocations on one node, whatever they are.
VALUE_BYTES_MAX = 4_000_000
#: What a value and an allocation in it cost, measured.
PUT_NS = 25_000
ALLOCATION_NS = 350
#: Not more than so many on their way.
FLIGHTS_MAX = 4_000
#: A Put whose answer did not come by then was lost with its connection.
FLIGHT_NS = 5_000_000_000
#: Values about what has left the state, and verdicts, expire.
GONE_TTL_S = 3_600

NODE, SUMMARY, JOB, SUBMISSION, LAST_WORD = "node", "summary", "job", "submission", "last_word"
#: No other value of theirs will follow.
_SAID_ONCE = frozenset({SUBMISSION, LAST_WORD})
A = TypeVar("A")


class Stamp(Wire, frozen=True, kw_only=True):
    """What every projection carries: the only part of a standing value that matters here."""

    cluster_id: str = ""
    seq: int = 0


class Flight(msgspec.Struct, frozen=True, gc=False):
    """A Put on its way: what it was about, and since when."""

    kind: str
    identifier: str
    sent_ns: int


class Publisher:
    """Turns marks into fenced Puts, a bounded number a tick."""

    def __init__(
        self,
        state: State,
        has_open: Callable[[JobId], bool],
        bury: Callable[[Message, str, int], Effect],
    ) -> None:
        self.marks = Marks()
        self.published = 0
        #: allocations in the desired sets that were published.
        self.told = 0
        self.refused = 0
        #: about what the last tick took of one processor.
        self.cost_ns = 0
        self.too_large = 0
        self._state = state
        self._has_open = has_open
        #: makes a dead letter from a message, the reason and the time.
        self._bury = bury
        #: subjects whose value is too large, each told once.
        self._silenced: dict[str, None] = {}
        self._flights: dict[str, Flight] = {}
        #: subject -> where it stands, as far as answers told.
        self._stands: dict[str, int] = {}
        #: fleet row that goes first, so that busy low rows do not keep others waiting.
        self._turn = {NODE: 0, SUMMARY: 0}
        #: by fleet row: when its node was told something last.
        self._told_ns = np.zeros(0, dtype=np.int64)
        #: when many of a kind were published last.
        self._rushed_ns = {SUMMARY: 0, JOB: 0}

    def forget_flights(self) -> None:
        """Forget what was on its way: the bus was away."""
        self._flights.clear()

    @property
    def waiting(self) -> int:
        """Number of marked values."""
        marks, size = self.marks, self._state.fleet.size
        rare = len(marks.jobs) + len(marks.submissions) + len(marks.last_words)
        words = np.count_nonzero(marks.desired.mask(size)[:size] | marks.heard.mask(size)[:size])
        return rare + int(words) + int(np.count_nonzero(marks.summary.mask()))

    def due_ns(self) -> int:
        """From when on there is something to publish: 1 for now; 0: there is nothing."""
        if self.marks.pending():
            return 1
        heard = np.flatnonzero(self.marks.heard.mask())
        if not len(heard):
            return 0
        self._told_ns = grown(self._told_ns, int(heard[-1]) + 1)
        return int(self._told_ns[heard].min()) + HEARD_NS

    def tick(self, now_ns: int) -> list[Effect]:
        """Return what is due, within this tick's bounds."""
        self._land_lost(now_ns)
        out: list[Effect] = []
        self.cost_ns = 0
        self._nodes(out, now_ns)
        self._summaries(out, now_ns)
        self._jobs(out, now_ns)
        self._submissions(out, now_ns)
        self._last_words(out, now_ns)
        self.published += len(out)
        self.cost_ns += len(out) * PUT_NS
        return out

    def answered(self, answer: PutDone | PutRefused) -> None:
        """Learn where a subject stands; mark it again where ours is newer than what another view put there."""
        subject = answer.subject
        flight = self._flights.pop(subject, None)
        if type(answer) is PutDone:
            # What is said once needs no fence for the next word.
            if flight is None or flight.kind not in _SAID_ONCE:
                self._stands[subject] = answer.subject_seq
            else:
                self._stands.pop(subject, None)
            return
        self._stands[subject] = answer.subject_seq
        if flight is None or isinstance(answer, PutDone):
            return
        self.refused += 1
        if flight.kind == LAST_WORD:
            # Of two views the first has said it.
            self._stands.pop(subject, None)
        elif self._is_newer(answer.data, flight):
            self._mark_again(flight)
        elif flight.kind == SUBMISSION:
            del self._stands[subject]

    def _is_newer(self, standing: bytes, flight: Flight) -> bool:
        if not standing:
            return True
        try:
            stamp = msgspec.json.decode(standing, type=Stamp)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return True
        if stamp.cluster_id != self._state.policy.cluster_id:
            return True
        return flight.kind != SUBMISSION and stamp.seq < self._state.seq

    def _mark_again(self, flight: Flight) -> None:
        row = self._state.fleet.row_of.get(NodeId(flight.identifier))
        match flight.kind:
            case "node" if row is not None:
                self.marks.desired.add((row,))
            case "summary" if row is not None:
                self.marks.summary.add((row,))
            case "job":
                self.marks.jobs[JobId(flight.identifier)] = None
            case "submission":
                self.marks.submissions[flight.identifier] = None
            case _:
                pass

    def _land_lost(self, now_ns: int) -> None:
        lost = []
        for subject, flight in self._flights.items():
            if now_ns - flight.sent_ns < FLIGHT_NS:
                break
            lost.append(subject)
        for subject in lost:
            self._mark_again(self._flights.pop(subject))

    def _put(
        self, out: list[Effect], subject: str, value: bytes, flight: Flight, *, ttl_s: int = 0
    ) -> None:
        if len(value) > VALUE_BYTES_MAX:
            # The bus would not take it, now or later. What stands there is old: somebody has to know.
            self.too_large += 1
            if subject not in self._silenced:
                self._silenced[subject] = None
                own = Message("own", subject, b"", 0)
                out.append(self._bury(own, _too_large(flight, len(value)), flight.sent_ns))
            return
        if self._silenced:
            self._silenced.pop(subject, None)
        self._flights[subject] = flight
        out.append(Put(subject, value, self._stands.get(subject, 0), ttl_s))

    def _room(self) -> int:
        """Values of one kind that a tick may publish now."""
        return min(PUTS_PER_TICK, FLIGHTS_MAX - len(self._flights))

    def _free(self, candidates: Iterable[A], subject_of: Callable[[A], str]) -> list[tuple[A, str]]:
        """Take from the front, up to a tick's bound, what has no Put on its way; with its subject."""
        out: list[tuple[A, str]] = []
        flights = self._flights
        room = self._room()
        for candidate in candidates:
            if len(out) >= room:
                break
            subject = subject_of(candidate)
            if subject not in flights:
                out.append((candidate, subject))
        return out

    def _free_rows(
        self, kind: str, mask: NDArray[np.bool_], subject_of: Callable[[str], str]
    ) -> Rows:
        """Marked rows of nodes whose turn it is, ascending."""
        fleet = self._state.fleet
        marked = np.flatnonzero(mask)
        if not len(marked):
            return marked.astype(np.int32)
        is_live = fleet.live[marked]
        if not is_live.all():
            gone, marked = marked[~is_live], marked[is_live]
            for one in (self.marks.desired, self.marks.heard, self.marks.summary):
                one.mask(fleet.size)[gone] = False
        # No wrapping round: rows at the end would wait for those at the beginning for ever.
        behind = marked[marked >= self._turn[kind]]
        turn: list[Row] = (behind if len(behind) else marked).tolist()
        rows = [row for row, _ in self._free(turn, lambda row: subject_of(fleet.ids[row]))]
        # Only where the tick's bound cut it short somebody has to go first with the next.
        self._turn[kind] = rows[-1] + 1 if rows and len(rows) >= self._room() else 0
        return np.asarray(rows, dtype=np.int32)

    def _nodes(self, out: list[Effect], now_ns: int) -> None:
        size = self._state.fleet.size
        desired, heard = (one.mask(size)[:size] for one in (self.marks.desired, self.marks.heard))
        self._told_ns = grown(self._told_ns, size)
        # Whoever was told something a moment ago hears a little later that it was heard.
        waited = now_ns - self._told_ns[:size]
        due = heard & ((waited >= HEARD_NS) | (waited < 0))
        chosen = self._free_rows(NODE, desired | due, subjects.node)
        if not len(chosen):
            return
        rows = projections.desired_rows(self._state, chosen)
        if len(rows) > ALLOCATIONS_PER_TICK:
            owner = self._state.allocations.node[rows]
            upto = np.searchsorted(owner, chosen, "right")
            kept = chosen[: max(1, int(np.searchsorted(upto, ALLOCATIONS_PER_TICK, "right")))]
            self._turn[NODE] = int(kept[-1]) + 1
            chosen, rows = kept, rows[: upto[len(kept) - 1]]
        desired[chosen] = False
        heard[chosen] = False
        self._told_ns[chosen] = now_ns
        self.told += len(rows)
        self.cost_ns += len(rows) * ALLOCATION_NS
        for one in projections.node_projections(self._state, chosen, rows):
            flight = Flight(NODE, one.node_id, now_ns)
            self._put(out, subjects.node(one.node_id), ENCODER.encode(one), flight)

    def _may_go(self, kind: str, marked: int, now_ns: int) -> bool:
        """Tell whether numbers for people go now: few always do, many once a second.

        After a rush what is more than a tick takes goes tick by tick: nothing changes it again before its turn.
        """
        since_ns = now_ns - self._rushed_ns[kind]
        is_over = marked > PUTS_PER_TICK and not self.marks.is_planning
        if marked > RUSH and 0 <= since_ns < RUSH_NS and not is_over:
            return False
        if marked > RUSH:
            self._rushed_ns[kind] = now_ns
        return True

    def _summaries(self, out: list[Effect], now_ns: int) -> None:
        marked = self.marks.summary.mask()
        if not self._may_go(SUMMARY, int(np.count_nonzero(marked)), now_ns):
            return
        chosen = self._free_rows(SUMMARY, marked, subjects.view_node)
        if not len(chosen):
            return
        marked[chosen] = False
        counts = projections.allocation_counts(self._state, chosen)
        for row in chosen.tolist():
            one = projections.node_summary(self._state, row, int(counts[row]))
            flight = Flight(SUMMARY, one.id, now_ns)
            self._put(out, subjects.view_node(one.id), ENCODER.encode(one), flight)

    def _jobs(self, out: list[Effect], now_ns: int) -> None:
        marked, state = self.marks.jobs, self._state
        if not self._may_go(JOB, len(marked), now_ns):
            return
        counted = 0
        for job_id, subject in self._free(marked, subjects.view_job):
            if counted > COUNTED_PER_TICK:
                return
            del marked[job_id]
            job = state.jobs.by_id.get(job_id)
            if job is not None:
                counted += len(state.allocations.rows_of(job_id))
                one = projections.job_projection(state, job, has_open=self._has_open(job_id))
                self._put(out, subject, ENCODER.encode(one), Flight(JOB, job_id, now_ns))

    def _submissions(self, out: list[Effect], now_ns: int) -> None:
        marked = self.marks.submissions
        subject_of = dict(self._free(marked, subjects.view_submission))
        for submission_id in subject_of:
            del marked[submission_id]
        for verdict in projections.verdicts(self._state, subject_of):
            submission_id = verdict.submission_id
            flight = Flight(SUBMISSION, submission_id, now_ns)
            value = ENCODER.encode(verdict)
            self._put(out, subject_of[submission_id], value, flight, ttl_s=GONE_TTL_S)

    def _last_words(self, out: list[Effect], now_ns: int) -> None:
        for subject, _ in self._free(self.marks.last_words, str):
            value = self.marks.last_words.pop(subject)
            self._put(out, subject, value, Flight(LAST_WORD, subject, now_ns), ttl_s=GONE_TTL_S)


def _too_large(flight: Flight, size: int) -> str:
    """Say what it means that a value cannot be published."""
    reason = f"{flight.kind} {flight.identifier}: {size} bytes, a message holds {VALUE_BYTES_MAX}"
    if flight.kind == NODE:
        reason += "; the node hears of no change until fewer allocations are on it"
    return reason
