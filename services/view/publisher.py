"""Publishes the state as last values: which projections are due, and how much one tick may cost.

A lower (cluster_id, seq) never replaces a higher one. Each subject has at most one Put in flight, fenced by the subject
seq of the last answer. If another view was faster, the published value is compared, and ours is sent again only if it
is newer. Marks are set in `dirty_set.py`, projections are built in shared/query/projections.py.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import JobId, NodeId, Wire
from schemas.envelope import ENCODER
from schemas.projections import JobProjection, ServiceNamesProjection
from services.view.dirty_set import DirtySet, Row, is_departed
from services.view.service_tracker import INSTANCE_NS, NAME_NS, ServiceTracker
from shared.core.columns import Rows, grown
from shared.core.runtime.messages import Effect, Message, Put, PutDone, PutRefused
from shared.core.runtime.step import Step
from shared.core.state.state import State
from shared.protocol import subjects
from shared.query import projections
from shared.query.evaluation_index import EvaluationIndex
from shared.query.job_progress import SettlingClock

#: Maximum number of values of one kind that a tick publishes.
PUTS_PER_TICK = 1_000
#: Maximum number of allocations in the desired sets of a tick (about 20 ms), so that queries are answered in between.
ALLOCATIONS_PER_TICK = 50_000
#: Maximum number of allocations that a tick counts for job summaries.
COUNTED_PER_TICK = 1_000_000
#: Longest delay of the acknowledgement of a node's report; a node asks again after 0.5 s.
REPORT_SEEN_NS = 250_000_000
#: The lease of a cluster's first applier is the first record of the log: it took over from none.
FIRST_EPOCH = 1
#: If more summaries of nodes or jobs than this wait, they are published once per interval.
BURST = 100
BURST_INTERVAL_NS = 1_000_000_000
#: A message of the bus, headers left out: 50,000 allocations on one node, whatever they are.
VALUE_BYTES_MAX = 4_000_000
#: Measured cost of a value, and of an allocation in it.
PUT_NS = 25_000
ALLOCATION_NS = 350
#: Maximum number of Puts in flight.
FLIGHTS_MAX = 4_000
#: A Put without an answer after this time was lost with its connection.
FLIGHT_NS = 5_000_000_000
#: Values about what has left the state, and verdicts, expire.
TOMBSTONE_TTL_S = 3_600

NODE, SUMMARY, JOB, SUBMISSION, TOMBSTONE = "node", "summary", "job", "submission", "last_word"
SERVICE, SERVICE_NAMES, VARIABLE = "service", "service_names", "variable"
#: Kinds of values that are published once.
_PUBLISHED_ONCE = frozenset({SUBMISSION, TOMBSTONE})
A = TypeVar("A")


class ProjectionStamp(Wire, frozen=True, kw_only=True):
    """The position that every projection carries; the rest of a published value is not read."""

    cluster_id: str = ""
    seq: int = 0
    incarnation: int = 0


class PutInFlight(msgspec.Struct, frozen=True, gc=False):
    """A Put in flight: its kind, the identifier of the object, and when it was sent."""

    kind: str
    identifier: str
    sent_ns: int


class Publisher:
    """Turns marks into fenced Puts, a bounded number a tick."""

    def __init__(
        self,
        state: State,
        histories: EvaluationIndex,
        bury: Callable[[Message, str, int], Effect],
        clock: SettlingClock,
    ) -> None:
        self.marks = DirtySet()
        self._clock = clock
        self._services = ServiceTracker(state)
        #: jobs that count as running at a time, if nothing happens before: they are published again then.
        self._settling: list[tuple[int, JobId]] = []
        self._settles_ns: dict[JobId, int] = {}
        self.published = 0
        #: allocations in the desired sets that were published.
        self.told = 0
        self.refused = 0
        #: of the plan applier that leads, as the log says; 0: the first one still does.
        self.epoch = 0
        #: estimated CPU time of the last tick.
        self.cost_ns = 0
        self.too_large = 0
        self._state = state
        self._histories = histories
        #: makes a dead letter from a message, the reason and the time.
        self._bury = bury
        #: subjects whose value is too large; each is reported once.
        self._too_large_subjects: dict[str, None] = {}
        self._in_flight: dict[str, PutInFlight] = {}
        #: subject -> last value of an object that left the state, in flight.
        self._last_words_in_flight: dict[str, bytes] = {}
        #: subject -> its seq in the last answer.
        self._subject_seqs: dict[str, int] = {}
        #: fleet row to start with, so that busy low rows do not delay others.
        self._turn = {NODE: 0, SUMMARY: 0}
        #: by fleet row: time of the last desired set published for its node.
        self._told_ns = np.zeros(0, dtype=np.int64)
        #: time of the last burst, by kind.
        self._burst_ns = {SUMMARY: 0, JOB: 0}

    def applier_changed(self, epoch: int) -> None:
        """Tell every node that another applier leads: reports that the former one was sent may wait in its queue."""
        if epoch > max(self.epoch, FIRST_EPOCH):
            self.epoch = epoch
            self.marks.acknowledgements(self._state)

    def forget_in_flight(self) -> None:
        """Forget all Puts in flight, after a reconnect; what says that an object has left is published again."""
        self._in_flight.clear()
        for subject in list(self._last_words_in_flight):
            self._say_again(subject)

    @property
    def waiting(self) -> int:
        """Number of marked values."""
        marks, size = self.marks, self._state.fleet.size
        rare = len(marks.jobs) + len(marks.submissions) + len(marks.tombstones)
        rare += len(self._services.due) + len(marks.variables)
        words = np.count_nonzero(marks.desired.mask(size)[:size] | marks.heard.mask(size)[:size])
        return rare + int(words) + int(np.count_nonzero(marks.summary.mask()))

    def due_ns(self) -> int:
        """Time of the next publication; 1: now, 0: nothing is marked."""
        if self.marks.pending():
            return 1
        times_ns = [self._settling[0][0] if self._settling else 0, self._services.due_ns()]
        heard = np.flatnonzero(self.marks.heard.mask())
        if len(heard):
            self._told_ns = grown(self._told_ns, int(heard[-1]) + 1)
            times_ns.append(int(self._told_ns[heard].min()) + REPORT_SEEN_NS)
        return min((one for one in times_ns if one), default=0)

    def tick(self, step: Step) -> None:
        """Publish what is due, within the bounds of a tick."""
        self._expire_lost(step.now_ns)
        self._mark_settled(step.now_ns)
        before = len(step.effects)
        self.cost_ns = 0
        self._nodes(step)
        self._summaries(step)
        self._jobs(step)
        self._publish_services(step)
        self._variables(step)
        self._submissions(step)
        self._last_words(step)
        count = len(step.effects) - before
        self.published += count
        self.cost_ns += count * PUT_NS

    def answered(self, answer: PutDone | PutRefused) -> None:
        """Record the seq of a subject; mark it again if the value that another view published is older than ours."""
        subject = answer.subject
        flight = self._in_flight.pop(subject, None)
        if type(answer) is PutDone:
            self._last_words_in_flight.pop(subject, None)
            # A value that is published once needs no fence.
            if flight is None or flight.kind not in _PUBLISHED_ONCE:
                self._subject_seqs[subject] = answer.subject_seq
            else:
                self._subject_seqs.pop(subject, None)
            return
        self._subject_seqs[subject] = answer.subject_seq
        if flight is None or isinstance(answer, PutDone):
            return
        self.refused += 1
        if flight.kind == TOMBSTONE:
            if self._is_older(answer.data, self._last_words_in_flight[subject]):
                self._say_again(subject)
            else:
                # Another view has published it, or something newer.
                del self._last_words_in_flight[subject]
                self._subject_seqs.pop(subject, None)
        elif self._is_newer(answer.data, flight):
            self._mark_again(flight)
            if flight.kind == SERVICE_NAMES:
                self._services.published_names(_names(answer.data))
        elif flight.kind == SUBMISSION:
            del self._subject_seqs[subject]

    def _is_newer(self, standing: bytes, flight: PutInFlight) -> bool:
        if not standing:
            return True
        try:
            stamp = msgspec.json.decode(standing, type=ProjectionStamp)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        if stamp.cluster_id != self._state.policy.cluster_id:
            return True
        newest = self._state.policy.incarnations.newest
        ours = (newest, self._state.seq)
        return flight.kind != SUBMISSION and (stamp.incarnation, stamp.seq) < ours

    def _is_older(self, standing: bytes, value: bytes) -> bool:
        """Whether what stands is of before a value of ours."""
        ours = msgspec.json.decode(value, type=ProjectionStamp)
        try:
            stamp = msgspec.json.decode(standing or b"{}", type=ProjectionStamp)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        if stamp.cluster_id != ours.cluster_id:
            return True
        return (stamp.incarnation, stamp.seq) < (ours.incarnation, ours.seq)

    def _say_again(self, subject: str) -> None:
        """Publish again that an object has left, unless there is one of its name again."""
        value = self._last_words_in_flight.pop(subject)
        if is_departed(self._state, subject):
            self.marks.tombstones.setdefault(subject, value)

    def _mark_again(self, flight: PutInFlight) -> None:
        if flight.kind == TOMBSTONE:
            self._say_again(flight.identifier)
            return
        row = self._state.fleet.row_of.get(NodeId(flight.identifier))
        match flight.kind:
            case "node" if row is not None:
                self.marks.desired.add((row,))
            case "summary" if row is not None:
                self.marks.summary.add((row,))
            case "job":
                self.marks.jobs[JobId(flight.identifier)] = None
            case "service":
                self._services.due[flight.identifier] = None
            case "service_names":
                self._services.names_changed()
            case "variable":
                self.marks.variables[flight.identifier] = None
            case "submission":
                self.marks.submissions[flight.identifier] = None
            case _:
                pass

    def _expire_lost(self, now_ns: int) -> None:
        lost = []
        for subject, flight in self._in_flight.items():
            if now_ns - flight.sent_ns < FLIGHT_NS:
                break
            lost.append(subject)
        for subject in lost:
            self._mark_again(self._in_flight.pop(subject))

    def _put(
        self, step: Step, subject: str, value: bytes, flight: PutInFlight, *, ttl_s: int = 0
    ) -> None:
        if len(value) > VALUE_BYTES_MAX:
            # The bus rejects it now and later, and the published value is stale: write a dead letter.
            self.too_large += 1
            if subject not in self._too_large_subjects:
                self._too_large_subjects[subject] = None
                own = Message("own", subject, b"", 0)
                step.emit(self._bury(own, _too_large(flight, len(value)), flight.sent_ns))
            return
        if self._too_large_subjects:
            self._too_large_subjects.pop(subject, None)
        self._in_flight[subject] = flight
        step.emit(Put(subject, value, self._subject_seqs.get(subject, 0), ttl_s))

    def _room(self) -> int:
        """How many values of one kind this tick may still publish."""
        return min(PUTS_PER_TICK, FLIGHTS_MAX - len(self._in_flight))

    def _free(self, candidates: Iterable[A], subject_of: Callable[[A], str]) -> list[tuple[A, str]]:
        """The first candidates, up to the bound of a tick, whose subject has no Put in flight; with their subjects."""
        out: list[tuple[A, str]] = []
        flights = self._in_flight
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
        """Marked rows of the nodes to publish now, ascending."""
        fleet = self._state.fleet
        marked = np.flatnonzero(mask)
        if not len(marked):
            return marked.astype(np.int32)
        is_live = fleet.live[marked]
        if not is_live.all():
            gone, marked = marked[~is_live], marked[is_live]
            for one in (self.marks.desired, self.marks.heard, self.marks.summary):
                one.mask(fleet.size)[gone] = False
        # Without wrapping around, so that busy low rows cannot starve high ones.
        behind = marked[marked >= self._turn[kind]]
        turn: list[Row] = (behind if len(behind) else marked).tolist()
        rows = [row for row, _ in self._free(turn, lambda row: subject_of(fleet.ids[row]))]
        # If the bound of the tick cut the list, the next tick starts with the following row.
        self._turn[kind] = rows[-1] + 1 if rows and len(rows) >= self._room() else 0
        return np.asarray(rows, dtype=np.int32)

    def _nodes(self, step: Step) -> None:
        size = self._state.fleet.size
        desired, heard = (one.mask(size)[:size] for one in (self.marks.desired, self.marks.heard))
        self._told_ns = grown(self._told_ns, size)
        # After a desired set, the next acknowledgement may wait.
        waited = step.now_ns - self._told_ns[:size]
        due = heard & ((waited >= REPORT_SEEN_NS) | (waited < 0))
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
        self._told_ns[chosen] = step.now_ns
        self.told += len(rows)
        self.cost_ns += len(rows) * ALLOCATION_NS
        for one in projections.node_projections(self._state, chosen, rows, self.epoch):
            flight = PutInFlight(NODE, one.node_id, step.now_ns)
            self._put(step, subjects.node(one.node_id), ENCODER.encode(one), flight)

    def _may_go(self, kind: str, marked: int, now_ns: int) -> bool:
        """Whether summaries are published now: few at once, many once per interval.

        After a burst of placements the rest follows tick by tick, since it no longer changes.
        """
        since_ns = now_ns - self._burst_ns[kind]
        is_over = marked > PUTS_PER_TICK and not self.marks.has_new_placements
        if marked > BURST and 0 <= since_ns < BURST_INTERVAL_NS and not is_over:
            return False
        if marked > BURST:
            self._burst_ns[kind] = now_ns
        return True

    def _summaries(self, step: Step) -> None:
        marked = self.marks.summary.mask()
        if not self._may_go(SUMMARY, int(np.count_nonzero(marked)), step.now_ns):
            return
        chosen = self._free_rows(SUMMARY, marked, subjects.view_node)
        if not len(chosen):
            return
        marked[chosen] = False
        counts = projections.allocation_counts(self._state, chosen)
        for row in chosen.tolist():
            one = projections.node_summary(self._state, row, int(counts[row]))
            flight = PutInFlight(SUMMARY, one.id, step.now_ns)
            self._put(step, subjects.view_node(one.id), ENCODER.encode(one), flight)

    def _jobs(self, step: Step) -> None:
        marked, state = self.marks.jobs, self._state
        if not self._may_go(JOB, len(marked), step.now_ns):
            return
        counted = 0
        for job_id, subject in self._free(marked, subjects.view_job):
            if counted > COUNTED_PER_TICK:
                return
            del marked[job_id]
            self._services.mark(job_id)
            job = state.jobs.by_id.get(job_id)
            if job is not None:
                counted += len(state.allocations.rows_of(job_id))
                one = projections.job_projection(state, job, self._histories, self._clock)
                self._remember_settling(one)
                self._put(step, subject, ENCODER.encode(one), PutInFlight(JOB, job_id, step.now_ns))

    def _remember_settling(self, one: JobProjection) -> None:
        settles_ns = one.rollout.settles_at_ns if one.rollout is not None else 0
        job_id = JobId(one.job_id)
        if settles_ns and self._settles_ns.get(job_id) != settles_ns:
            self._settles_ns[job_id] = settles_ns
            heappush(self._settling, (settles_ns, job_id))

    def _mark_settled(self, now_ns: int) -> None:
        """Mark the jobs that have run long enough to be published as running."""
        while self._settling and self._settling[0][0] <= now_ns:
            settles_ns, job_id = heappop(self._settling)
            if self._settles_ns.get(job_id) == settles_ns:
                del self._settles_ns[job_id]
                self.marks.jobs[job_id] = None

    def _publish_services(self, step: Step) -> None:
        tracker, marks = self._services, self.marks
        if marks.all_services:
            tracker.begin()
            marks.all_services = False
        tracker.due.update(marks.departed_services)
        marks.departed_services.clear()
        self.cost_ns += tracker.look(step.now_ns) * INSTANCE_NS
        for name, subject in self._free(tracker.due, subjects.view_service):
            del tracker.due[name]
            one = tracker.projection(name)
            flight = PutInFlight(SERVICE, name, step.now_ns)
            ttl_s = 0 if one.instances else TOMBSTONE_TTL_S
            self._put(step, subject, ENCODER.encode(one), flight, ttl_s=ttl_s)
        self._publish_service_names(step)

    def _publish_service_names(self, step: Step) -> None:
        """Publish the list of names, behind the values that it is made of."""
        subject = subjects.VIEW_SERVICE_NAMES
        if subject not in self._in_flight and (names := self._services.names(step.now_ns)):
            self.cost_ns += len(names.services) * NAME_NS
            flight = PutInFlight(SERVICE_NAMES, "", step.now_ns)
            self._put(step, subject, ENCODER.encode(names), flight)

    def _variables(self, step: Step) -> None:
        for path, subject in self._free(self.marks.variables, subjects.view_variable):
            del self.marks.variables[path]
            one = projections.variable_projection(self._state, path)
            flight = PutInFlight(VARIABLE, path, step.now_ns)
            ttl_s = 0 if one.revision else TOMBSTONE_TTL_S
            self._put(step, subject, ENCODER.encode(one), flight, ttl_s=ttl_s)

    def _submissions(self, step: Step) -> None:
        marked = self.marks.submissions
        subject_of = dict(self._free(marked, subjects.view_submission))
        for submission_id in subject_of:
            del marked[submission_id]
        for verdict in projections.verdicts(self._state, subject_of):
            submission_id = verdict.submission_id
            flight = PutInFlight(SUBMISSION, submission_id, step.now_ns)
            value = ENCODER.encode(verdict)
            self._put(step, subject_of[submission_id], value, flight, ttl_s=TOMBSTONE_TTL_S)

    def _last_words(self, step: Step) -> None:
        for subject, _ in self._free(self.marks.tombstones, str):
            value = self._last_words_in_flight[subject] = self.marks.tombstones.pop(subject)
            self._put(
                step,
                subject,
                value,
                PutInFlight(TOMBSTONE, subject, step.now_ns),
                ttl_s=TOMBSTONE_TTL_S,
            )


def _names(standing: bytes) -> list[str]:
    """Names in a published list; none where it cannot be read."""
    try:
        return [
            one.name for one in msgspec.json.decode(standing, type=ServiceNamesProjection).services
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _too_large(flight: PutInFlight, size: int) -> str:
    """Describe a value that is too large to publish, and the consequence."""
    reason = f"{flight.kind} {flight.identifier}: {size} bytes, a message holds {VALUE_BYTES_MAX}"
    if flight.kind == NODE:
        reason += "; the node gets no changes until it has fewer allocations"
    return reason
