"""Facts: each record of the log as rows of tables, with row numbers of the state resolved to names.

Events name nodes and allocations by row, so the extractor replays the log as it goes and compares its state with every
checkpoint. Next: `alloc_history.py`, then `views.py` for the meaning of facts over time.
"""

import msgspec

from schemas.base import Event
from schemas.envelope import ENCODER, LogRecord
from schemas.evaluations import (
    EvaluationEnded,
    EvaluationsCreated,
    EvaluationsWoken,
    NewEvaluation,
)
from schemas.jobs import JobRegistered, JobsCollected, JobStopped
from schemas.launches import JobLaunched, LaunchSkipped
from schemas.nodes import (
    NODE_STATUSES,
    NodeConfirmedDead,
    NodeDrainChanged,
    NodeDrained,
    NodeEligibilityChanged,
    NodeMetaChanged,
    NodeRegistered,
    NodesCollected,
    NodesStatusChanged,
)
from schemas.plans import GroupPlacement, PlanCommitted, PlanRefused
from shared.archive.alloc_history import AllocationHistory
from shared.archive.deployment_facts import deployment_facts, rollout_facts
from shared.archive.intervals import OpenIntervals
from shared.archive.parked_waits import ParkedWaits
from shared.archive.table_buffers import EventPosition, StringDictionary, TableBuffer, new_buffers
from shared.archive.variable_facts import event_body, lock_facts, variable_facts
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.ids import eval_id

#: Longer texts of events are left out: what they say is in the other tables, and in the record.
BODY_BYTES_MAX = 64 << 10
#: What must be replayed to name rows.
REPLAYED_TABLES = frozenset({"policy", "fleet", "jobs", "allocations", "evaluations"})


class _Bodies(msgspec.Struct):
    events: tuple[msgspec.Raw, ...] = ()


_BODIES = msgspec.json.Decoder(_Bodies)


class FactExtractor:
    """Records are applied in order; the buffers hold what they said since these were taken last."""

    def __init__(
        self,
        *,
        is_recording: bool = True,
        with_data: bool = False,
        words: StringDictionary | None = None,
    ) -> None:
        """With `is_recording` false only replay; `with_data` keeps record bytes; `words` come from earlier chunks."""
        self.replica = Replica(REPLAYED_TABLES)
        self.buffers: dict[str, TableBuffer] = new_buffers()
        self.words = words or StringDictionary()
        self.is_recording = is_recording
        #: placements counted one by one, and everything else.
        self.events = 0
        #: where the chunk under way began.
        self.first_seq = 1
        #: bytes of records since the buffers were taken.
        self.bytes = 0
        self._with_data = with_data
        self._history = AllocationHistory(self.replica.state, self.buffers, self.words)
        self._parked = ParkedWaits(self.replica.state, self.buffers)

    @property
    def rows(self) -> int:
        """Rows in all buffers."""
        return sum(buffer.rows for buffer in self.buffers.values())

    def resume(self, standing: OpenIntervals | None = None) -> None:
        """Keep what comes from here on. `standing`: what was open at the end of the chunks before, where it is known.

        Raises KeyError where that does not agree with the state.
        """
        self.is_recording = True
        self._history.restore_open(standing)
        self._parked.restore()
        self.first_seq = self.replica.next_seq

    def settle(self) -> bool:
        """End a chunk, before the buffers are taken; True: who requests what comes later need not look before it."""
        is_full = self._history.settle(self.first_seq)
        self.first_seq = self.replica.next_seq
        return is_full

    def apply(self, record: Record) -> None:
        """Apply the next record. Raises LogError."""
        replica = self.replica
        if not self.is_recording:
            replica.apply(record)
            return
        decoded = replica.chain.accept(record.seq, record.subject, record.data)
        self._note(record, decoded)
        if decoded is None:
            return
        if decoded.events:
            replica.state.begin(record.seq, decoded.t_ns)
            bodies = _BODIES.decode(record.data).events
            ordinal = 0
            for n, event in enumerate(decoded.events):
                ordinal = self._event(event, bodies[n], (record.seq, n, decoded.t_ns), ordinal)
            self._parked.note((record.seq, len(decoded.events), decoded.t_ns))
        elif decoded.kind == "checkpoint":
            replica.compare(decoded, record.seq)

    def _note(self, record: Record, decoded: LogRecord | None) -> None:
        self.bytes += len(record.data)
        self.buffers["records"].add(
            seq=record.seq,
            t_ns=decoded.t_ns if decoded is not None else self.replica.chain.t_ns,
            epoch=decoded.epoch if decoded is not None else 0,
            events=len(decoded.events) if decoded is not None else 0,
            bytes=len(record.data),
            kind=decoded.kind if decoded is not None else "foreign",
            core=decoded.core if decoded is not None else "",
            subject=record.subject,
            data=record.data if self._with_data else None,
        )

    def _event(self, event: Event, body: msgspec.Raw, at: EventPosition, ordinal: int) -> int:
        """Record one event and apply it; returns the ordinal of the next evaluation of the transaction."""
        state = self.replica.state
        self._list(event, body, at)
        self._history.before(event, at)
        self._parked.before(event)
        for row in deployment_facts(event):
            self.buffers["deployments"].add_event(at, **row)
        for row in rollout_facts(event):
            self.buffers["rollouts"].add_event(at, **row)
        for row in variable_facts(event):
            self.buffers["variables"].add_event(at, **row)
        for row in lock_facts(event):
            self.buffers["variable_locks"].add_event(at, **row)
        match event:
            case EvaluationsCreated():
                for new in event.evaluations:
                    self._created(new, state.policy.incarnations.key(at[0], ordinal), at)
                    ordinal += 1
            case EvaluationsWoken():
                for key in event.keys:
                    self._evaluation(key, at, what="woken", status="pending", reason=event.reason)
            case EvaluationEnded():
                self._evaluation(
                    event.key, at, what="ended", status=event.status, reason=event.reason
                )
            case PlanCommitted() | PlanRefused():
                self._decision(event, at)
            case JobRegistered() | JobStopped() | JobsCollected():
                self._job(event, at)
            case JobLaunched() | LaunchSkipped():
                self._launch(event, at)
            case NodesCollected():
                self._nodes(event.rows, at, "collected", "")
            case _:
                pass
        state.evolve(event, at[0])
        self._history.after(event, at)
        self._after_node(event, at)
        return ordinal

    def _list(self, event: Event, body: msgspec.Raw, at: EventPosition) -> None:
        self.events += (
            sum(sum(one.counts) for one in event.placements)
            if isinstance(event, PlanCommitted)
            else 1
        )
        job_id = getattr(event, "job_id", None)
        node_id = getattr(event, "node_id", None)
        if isinstance(event, EvaluationEnded):
            known = self.replica.state.evaluations.by_key.get(event.key)
            job_id = None if known is None else known.job_id
        elif isinstance(event, EvaluationsCreated) and len(event.evaluations) == 1:
            job_id = event.evaluations[0].job_id
        elif isinstance(event, NodeRegistered):
            node_id = event.spec.node_id
        else:
            rows = getattr(event, "nodes", ()) or _node_rows(event)
            node_id = self.replica.state.fleet.ids[rows[0]] if len(rows) == 1 else node_id
        raw = event_body(event, bytes(body))
        self.buffers["events"].add_event(
            at,
            type=str(event.__struct_config__.tag),
            job_id=job_id,
            node_id=node_id or None,
            body=raw.decode("utf-8", "replace") if len(raw) <= BODY_BYTES_MAX else None,
        )

    # ---- jobs ----

    def _job(self, event: JobRegistered | JobStopped | JobsCollected, at: EventPosition) -> None:
        if isinstance(event, JobsCollected):
            for job_id in event.job_ids:
                self._add_job(at, what="collected", job_id=job_id)
            return
        if isinstance(event, JobStopped):
            what = "purged" if event.purge else "stopped"
            self._add_job(at, what=what, job_id=event.job_id, submission_id=event.submission_id)
            return
        self._add_job(
            at,
            what="registered",
            job_id=event.job_id,
            version=event.version,
            priority=event.priority,
            type=event.job_type,
            node_pool=event.node_pool,
            submission_id=event.submission_id,
            spec=bytes(event.spec).decode("utf-8", "replace"),
        )
        for group in event.groups:
            self.buffers["groups"].add(
                seq=at[0],
                job_id=event.job_id,
                version=event.version,
                group_name=group.name,
                wanted=group.count,
                cpu_mhz=group.cpu_mhz,
                memory_mib=group.memory_mib,
                disk_mib=group.disk_mib,
            )

    def _add_job(
        self, at: EventPosition, *, version: int = -1, priority: int = -1, **values: object
    ) -> None:
        self.buffers["jobs"].add_event(at, version=version, priority=priority, **values)

    def _launch(self, event: JobLaunched | LaunchSkipped, at: EventPosition) -> None:
        """Take down what an instant of a periodic job made."""
        told: dict[str, object] = {"missed": 0, "forced": False}
        if isinstance(event, JobLaunched):
            told |= {"child_id": event.child_id, "forced": event.forced}
        else:
            told |= {"skipped": event.why, "missed": event.missed}
        self.buffers["launches"].add_event(at, at_ns=event.at_ns, parent=event.parent, **told)

    # ---- evaluations and plans ----

    def _created(self, new: NewEvaluation, key: int, at: EventPosition) -> None:
        status = "blocked" if new.blocked is not None else "pending"
        status = "delayed" if new.wait_until_ns and new.blocked is None else status
        self.buffers["evaluations"].add_event(
            at,
            key=key,
            what="created",
            status=status,
            job_id=new.job_id,
            priority=new.priority,
            wait_until_ns=new.wait_until_ns,
            id=eval_id(key),
            previous_id=eval_id(new.previous) if new.previous else None,
            triggered_by=new.triggered_by,
        )
        waiting = new.blocked.waiting if new.blocked is not None else {}
        for group, told in sorted(waiting.items()):
            self.buffers["reasons"].add_event(
                at,
                key=key,
                eval_id=eval_id(key),
                job_id=new.job_id,
                group_name=group,
                count=told.count,
                reasons=list(told.reasons),
                **{"class": told.wait_class},
            )

    def _evaluation(
        self, key: int, at: EventPosition, *, what: str, status: str, reason: str
    ) -> None:
        text = reason or None
        self.buffers["evaluations"].add_event(
            at, key=key, what=what, status=status, priority=-1, wait_until_ns=0, reason=text
        )

    def _decision(self, event: PlanCommitted | PlanRefused, at: EventPosition) -> None:
        told: dict[str, object] = dict.fromkeys(("placed", "stopped", "updated", "evicted"), 0)
        if isinstance(event, PlanCommitted):
            told = {
                "placed": _count(event.placements),
                "cut": _count(event.cut),
                "stopped": sum(len(one.rows) for one in event.stops),
                "updated": sum(len(one.rows) for one in event.updates),
                "evicted": sum(len(one.rows) for one in event.evictions),
                "outcome": "committed",
            }
        else:
            told |= {"cut": _count(event.placements), "outcome": "refused"}
            told |= {"code": event.code, "reason": event.reason}
        origin = event.origin
        self.buffers["decisions"].add_event(
            at,
            key=event.key,
            eval_id=eval_id(event.key),
            job_id=event.job_id,
            worker=origin.worker,
            number=origin.number,
            part=origin.part,
            parts=origin.parts,
            snapshot_seq=origin.snapshot_seq,
            policy=origin.policy,
            seed=origin.seed,
            lane=origin.lane,
            lanes=origin.lanes,
            core=origin.core,
            **told,
        )

    # ---- nodes ----

    def _after_node(self, event: Event, at: EventPosition) -> None:
        if isinstance(event, NodesStatusChanged):
            self._nodes(event.rows, at, "", event.reason)
        elif isinstance(
            event, NodeEligibilityChanged | NodeDrainChanged | NodeDrained | NodeConfirmedDead
        ):
            self._nodes((event.row,), at, "", "")
        elif isinstance(event, NodeRegistered | NodeMetaChanged):
            node_id = event.spec.node_id if isinstance(event, NodeRegistered) else event.node_id
            row = self.replica.state.fleet.row_of.get(node_id)
            self._nodes(() if row is None else (row,), at, "", "")

    def _nodes(self, rows: tuple[int, ...], at: EventPosition, status: str, reason: str) -> None:
        """Record what nodes are now; with `status` that of all of them."""
        fleet = self.replica.state.fleet
        for row in rows:
            spec = fleet.specs[row]
            said = fleet.operator_meta.get(spec.node_id, {})
            meta = {k: v for k, v in {**spec.meta, **said}.items() if v is not None}
            cpu, memory, disk = (int(one) for one in fleet.capacity[row])
            self.buffers["nodes"].add_event(
                at,
                cpu_mhz=cpu,
                memory_mib=memory,
                disk_mib=disk,
                node_id=fleet.ids[row],
                name=spec.name or spec.node_id,
                datacenter=spec.datacenter,
                node_pool=spec.node_pool,
                node_class=spec.node_class,
                status=status or NODE_STATUSES[int(fleet.status[row])],
                reason=reason or None,
                attributes=ENCODER.encode(spec.attributes).decode(),
                meta=ENCODER.encode(meta).decode(),
                eligible=bool(fleet.eligible[row]),
                draining=row in fleet.drains,
            )


def _node_rows(event: Event) -> tuple[int, ...]:
    if isinstance(event, NodesStatusChanged | NodesCollected):
        return event.rows
    return (
        (event.row,)
        if isinstance(event, NodeEligibilityChanged | NodeDrainChanged | NodeDrained)
        else ()
    )


def _count(placements: tuple[GroupPlacement, ...]) -> int:
    return sum(sum(one.counts) for one in placements)
