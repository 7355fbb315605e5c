"""Spans of submissions, evaluations, plans and allocations, from a record of the log and the states around it.

Ids are hashes of the cluster and of keys that the log gives: the same record makes the same spans, whenever it is
exported, so that a repeated export overwrites. A trace is the chain of evaluations that follow from one submission or
cause. Times are log time; an agent's own clock is an attribute alone.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from schemas.allocations import CLIENT_STATUSES, AllocationsReported
from schemas.base import EvalKey, JobId
from schemas.envelope import AnyEvent, LogRecord
from schemas.evaluations import EvaluationEnded
from schemas.jobs import JobEvaluated, JobRegistered, JobStopped
from schemas.node_answers import TaskShown
from schemas.plans import PlanCommitted, PlanRefused
from shared.core.state.ids import alloc_id, eval_id
from shared.core.state.state import State
from shared.core.state.tables.allocations import CLIENT_CODE, TERMINAL
from shared.core.state.tables.evaluations import Evaluation
from shared.protocol.trace_context import parent_span
from shared.query.evaluation_index import EvaluationIndex

#: Evaluations that an evaluation is followed back by.
_CHAIN_MAX = 100
#: Causes of evaluations that a submission's record created.
_SUBMITTED = ("job-", "periodic-job")
_RUNNING = CLIENT_CODE["running"]
_BEGUN = frozenset(CLIENT_CODE[one] for one in ("running", "complete"))
_FAILED = frozenset({"failed", "lost"})
_TASKS = msgspec.json.Decoder(dict[str, TaskShown])
Value = str | int


class SpanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A moment within a span."""

    t_ns: int
    name: str
    attributes: dict[str, Value] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span. `links`: trace and span ids; `error`: why it failed, empty: it did not."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: tuple[SpanEvent, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    error: str = ""


class JobSample:
    """Which jobs are exported: a share of them, by the hash of their id: of a job all spans are there, or none."""

    def __init__(self, share: float = 1.0) -> None:
        self._limit = int(share * (1 << 64))

    def has(self, job_id: str) -> bool:
        """Tell whether a job is one of them."""
        digest = blake2b(job_id.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self._limit


class SpanSource(msgspec.Struct, frozen=True):
    """The state behind a record, its evaluations by job, and log times: `time_of` a seq in ns, 0: not known."""

    state: State
    histories: EvaluationIndex
    time_of: Callable[[int], int]


class RecordSpans:
    """Makes the spans of records: `before` with the state before one, then `after` with the state behind it."""

    def __init__(self, cluster_id: str, sample: JobSample) -> None:
        self._cluster_id = cluster_id
        self._sample = sample
        #: the allocations that the record reports on, by row, before it.
        self._known: dict[int, _Known] = {}

    def before(self, state: State, record: LogRecord) -> None:
        """Note what the record changes."""
        table = state.allocations
        rows = [row for event in record.events for row in _reported(event)]
        self._known = {row: _known(state, row) for row in rows if row < table.size}

    def after(self, source: SpanSource, record: LogRecord, seq: int) -> list[Span]:
        """The spans that end with the record, in its order."""
        made = _Maker(self._cluster_id, source, record, seq)
        found: list[Span] = []
        for nth, event in enumerate(record.events):
            match event:
                case JobRegistered() | JobStopped() | JobEvaluated():
                    if event.evaluation and self._sample.has(event.job_id):
                        found.append(made.submission(event))
                        found += made.submitter(event)
                case EvaluationEnded():
                    one = source.state.evaluations.by_key.get(event.key)
                    if one is not None and self._sample.has(one.job_id):
                        found.append(made.evaluation(one))
                case PlanCommitted() | PlanRefused():
                    if self._sample.has(event.job_id):
                        found.append(made.plan(event, nth))
                case _:
                    pass
        found += self._allocations(made, source.state)
        return found

    def _allocations(self, made: "_Maker", state: State) -> Iterator[Span]:
        """Allocations that started, started again, and ended."""
        table = state.allocations
        for nth, (row, old) in enumerate(self._known.items()):
            is_over = bool(TERMINAL[old.client])
            if is_over or not self._sample.has(table.groups.job_ids[table.group[row]]):
                continue
            new = _known(state, row)
            if not old.has_begun:
                # Up to here: a service would else never end.
                if new.has_begun or new.client == _RUNNING or TERMINAL[new.client]:
                    yield made.allocation(row)
            elif TERMINAL[new.client]:
                yield made.later("allocation end", row)
            elif new.restarts > old.restarts:
                yield made.later("allocation restart", row, nth)


class _Known(NamedTuple):
    """An allocation: code of its client status, restarts of its tasks, whether one of them has ever started."""

    client: int
    restarts: int
    has_begun: bool


def _known(state: State, row: int) -> _Known:
    client = int(state.allocations.client[row])
    tasks = _tasks(state, row).values()
    restarts = sum(one.restarts for one in tasks)
    # A status of pending proves nothing: it comes back between two tasks, and before a restart.
    has_started = any(
        one.state != "pending" or any(event.kind == "Started" for event in one.events)
        for one in tasks
    )
    return _Known(client, restarts, has_started or restarts > 0 or client in _BEGUN)


def _tasks(state: State, row: int) -> dict[str, TaskShown]:
    try:
        return _TASKS.decode(state.allocations.details.get(row, b"{}"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _reported(event: AnyEvent) -> Iterable[int]:
    if isinstance(event, AllocationsReported):
        return dict.fromkeys((*event.rows, *(one.row for one in event.details)))
    if isinstance(event, PlanCommitted):
        return [row for stop in event.stops if stop.client_status for row in stop.rows]
    return ()


class _Maker:
    """Makes spans of one record."""

    def __init__(self, cluster_id: str, source: SpanSource, record: LogRecord, seq: int) -> None:
        self._cluster_id = cluster_id
        self._source = source
        self._state = source.state
        self._seq, self._t_ns = seq, record.t_ns

    def submission(self, event: JobRegistered | JobStopped | JobEvaluated) -> Span:
        """A submission that was accepted: a moment, and the root of what follows from it."""
        return Span(
            trace_id=self._trace_id(event.evaluation),
            span_id=self._span_id("submission", event.evaluation),
            name=str(event.__struct_config__.tag),
            start_ns=self._t_ns,
            end_ns=self._t_ns,
            attributes={
                **self._attributes(event.job_id),
                "caravan.submission": event.submission_id,
            },
        )

    def submitter(self, event: JobRegistered | JobStopped | JobEvaluated) -> Iterator[Span]:
        """The submission in the trace of the span that sent it, with a link to the trace of what follows from it.

        What follows keeps a trace of its own: its ids have to follow from the state alone.
        """
        text = event.traceparent if isinstance(event, JobRegistered) else ""
        if (parent := parent_span(text)) is None:
            return
        own = self.submission(event)
        yield msgspec.structs.replace(
            own,
            trace_id=parent[0],
            span_id=self._span_id("submitter", event.evaluation),
            parent_id=parent[1],
            name="caravan submission",
            links=((own.trace_id, own.span_id),),
        )

    def evaluation(self, one: Evaluation) -> Span:
        """An evaluation, from its creation to its end."""
        parent = self._span_id("submission", one.key)
        if one.previous:
            parent = self._span_id("evaluation", one.previous)
        elif not one.triggered_by.startswith(_SUBMITTED):
            parent = ""
        return Span(
            trace_id=self._trace_id(self._root(one)),
            span_id=self._span_id("evaluation", one.key),
            parent_id=parent,
            name="evaluation",
            start_ns=self._since(self._state.policy.incarnations.seq(one.key)),
            end_ns=self._t_ns,
            attributes={
                **self._attributes(one.job_id),
                "caravan.evaluation": eval_id(one.key),
                "caravan.triggered_by": one.triggered_by,
                "caravan.status": one.status,
            },
            error=(one.reason or "failed") if one.status == "failed" else "",
        )

    def plan(self, event: PlanCommitted | PlanRefused, nth: int) -> Span:
        """A plan, from the snapshot that it was made on to its verdict."""
        one = self._state.evaluations.by_key.get(event.key)
        root = event.key if one is None else self._root(one)
        placed = sum(count for part in event.placements for count in part.counts)
        cut = 0
        if isinstance(event, PlanCommitted):
            cut = sum(count for part in event.cut for count in part.counts)
        events = (SpanEvent(t_ns=self._t_ns, name="cut", attributes={"caravan.count": cut}),)
        return Span(
            trace_id=self._trace_id(root),
            span_id=self._span_id("plan", self._seq, nth),
            parent_id=self._span_id("evaluation", event.key),
            name="plan",
            start_ns=self._since(event.origin.snapshot_seq),
            end_ns=self._t_ns,
            attributes={
                **self._attributes(event.job_id),
                "caravan.worker": event.origin.worker,
                "caravan.snapshot_seq": event.origin.snapshot_seq,
                "caravan.placements": placed,
            },
            events=events if cut else (),
            error=f"{event.code}: {event.reason}" if isinstance(event, PlanRefused) else "",
        )

    def allocation(self, row: int) -> Span:
        """An allocation, from its placement until it runs, or ended without having run."""
        trace_id, parent = self._placed_by(row)
        return Span(
            trace_id=trace_id,
            span_id=self._span_id("allocation", int(self._state.allocations.key[row])),
            parent_id=parent,
            name="allocation",
            start_ns=self._since(self._created(row)),
            end_ns=self._t_ns,
            attributes=self._of_allocation(row),
            events=tuple(self._starts(row)),
            error=self._failure(row),
        )

    def later(self, name: str, row: int, nth: int = 0) -> Span:
        """What became of an allocation that had begun: a moment of its own, linked to its start."""
        trace_id, _ = self._placed_by(row)
        key = int(self._state.allocations.key[row])
        # It ends once, and starts again any number of times.
        number = self._seq if name == "allocation restart" else key
        return Span(
            trace_id=trace_id,
            span_id=self._span_id(name, number, nth),
            name=name,
            start_ns=self._t_ns,
            end_ns=self._t_ns,
            attributes=self._of_allocation(row),
            links=((trace_id, self._span_id("allocation", key)),),
            error=self._failure(row),
        )

    # ---- parts ----

    def _placed_by(self, row: int) -> tuple[str, str]:
        """Trace and span id of the evaluation that placed an allocation, as far as it is kept."""
        created = self._created(row)
        by_key, seq_of = self._state.evaluations.by_key, self._state.policy.incarnations.seq
        keys = self._source.histories.of_job(self._job_of(row))
        # It ended with the plan, or with a later part of it.
        found = [by_key[key] for key in keys if seq_of(key) <= created <= by_key[key].modify_seq]
        if not found:
            return self._trace_id(int(self._state.allocations.key[row])), ""
        one = min(found, key=lambda each: (each.modify_seq, each.key))
        return self._trace_id(self._root(one)), self._span_id("evaluation", one.key)

    def _root(self, one: Evaluation) -> int:
        """The evaluation that a chain began with, as far as it is kept."""
        key = one.key
        for _ in range(_CHAIN_MAX):
            found = self._state.evaluations.by_key.get(EvalKey(key))
            if found is None or not found.previous:
                break
            key = found.previous
        return key

    def _created(self, row: int) -> int:
        return self._state.policy.incarnations.seq(int(self._state.allocations.key[row]))

    def _since(self, seq: int) -> int:
        """Log time of an earlier seq, never after the record's own."""
        return min(self._source.time_of(seq) or self._t_ns, self._t_ns)

    def _job_of(self, row: int) -> JobId:
        table = self._state.allocations
        return JobId(str(table.groups.job_ids[table.group[row]]))

    def _attributes(self, job_id: str) -> dict[str, Value]:
        return {"caravan.seq": self._seq, "caravan.job": str(job_id)}

    def _of_allocation(self, row: int) -> dict[str, Value]:
        table, fleet = self._state.allocations, self._state.fleet
        node = int(table.node[row])
        return {
            **self._attributes(self._job_of(row)),
            "caravan.allocation": alloc_id(int(table.key[row])),
            "caravan.node": str(fleet.ids[node]) if node < len(fleet.ids) else "",
            "caravan.status": CLIENT_STATUSES[table.client[row]],
        }

    def _failure(self, row: int) -> str:
        status = CLIENT_STATUSES[self._state.allocations.client[row]]
        return status if status in _FAILED else ""

    def _starts(self, row: int) -> Iterator[SpanEvent]:
        """Starts of its tasks, with the time of the agent's clock as an attribute."""
        tasks = _tasks(self._state, row)
        for name, task in sorted(tasks.items()):
            started = [one.t_ns for one in task.events if one.kind == "Started"]
            if started:
                told: dict[str, Value] = {
                    "caravan.task": name,
                    "caravan.agent_t_ns": str(started[0]),
                }
                yield SpanEvent(t_ns=self._t_ns, name="task started", attributes=told)

    def _trace_id(self, root: int) -> str:
        return self._hash(f"trace/{root}", 16)

    def _span_id(self, kind: str, key: int, nth: int = 0) -> str:
        return self._hash(f"{kind}/{key}/{nth}", 8)

    def _hash(self, text: str, size: int) -> str:
        """Lower-case hex; never all zeros, which would be no id."""
        found = blake2b(f"{self._cluster_id}/{text}".encode(), digest_size=size).hexdigest()
        return found if found.strip("0") else found[:-1] + "1"
