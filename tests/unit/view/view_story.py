"""A log written by hand and a view that follows it: what tests of the view start from."""

import msgspec

from schemas.base import Event, JobId, NodeId
from schemas.envelope import CORE_VERSION, SCHEMA_VERSION, LeaseHeld, LogRecord
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import GroupSpec, JobRegistered
from schemas.nodes import NodeRegistered, NodeSpec
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from schemas.policy import ClusterCreated
from services.view.role import View
from shared.core.runtime.chain import seal
from shared.core.runtime.messages import CaughtUp, Effect, Message, Put, PutDone, Record, Reply
from shared.core.runtime.role import Input
from shared.core.state.ids import make_key
from shared.protocol import subjects

MS = 1_000_000


class Story:
    """Builds records, hands them to a view, and plays the bus for its Puts."""

    def __init__(self, **settings: int) -> None:
        self.view = View(instance="v1", **settings)
        self.records: list[Record] = []
        self.now_ns = 1_000 * MS
        #: log time before the first record.
        self.log_ns = 0
        self.stands: dict[str, tuple[int, bytes]] = {}
        self._head = ""
        self._epoch = 1
        self._subject_seq = 0
        self._token = 0
        self._append("lease", lease=LeaseHeld(holder="a1", cluster_id="c1", fsync=True))
        self._append("tx", ClusterCreated(cluster_id="c1"))

    def _append(
        self,
        kind: str,
        *events: Event,
        lease: LeaseHeld | None = None,
        tables: dict[str, str] | None = None,
    ) -> int:
        seq = len(self.records) + 1
        self._epoch = seq if lease is not None else self._epoch
        record = LogRecord(
            kind=kind,
            schema=SCHEMA_VERSION,
            core=CORE_VERSION,
            epoch=self._epoch,
            prev=self._head,
            t_ns=self.log_ns + seq,
            events=events,
            lease=lease,
            tables=tables,
        )
        data, self._head = seal(record)
        self.records.append(Record(seq, subjects.log(1, kind), data))
        return seq

    def log(self, *events: Event) -> int:
        """Write a transaction; return its seq."""
        return self._append("tx", *events)

    def lease(self, holder: str) -> int:
        """Let another applier take over; return the seq, which is its epoch."""
        held = LeaseHeld(holder=holder, cluster_id="c1", fsync=True)
        return self._append("lease", lease=held)

    def checkpoint(self, tables: dict[str, str]) -> int:
        """Write a checkpoint; return its seq."""
        return self._append("checkpoint", tables=tables)

    def node(self, node_id: str, **spec: str | int) -> int:
        spec_ = NodeSpec(node_id=NodeId(node_id), cpu_mhz=4000, memory_mib=4096, **spec)
        return self.log(NodeRegistered(spec=spec_, host_id=f"h-{node_id}", boot_id="b1"))

    def job(self, job_id: str, *, count: int = 1, version: int = 0, **more: str) -> int:
        """Register a job with one group `web` and its evaluation."""
        group = GroupSpec(name="web", count=count, cpu_mhz=100, memory_mib=64)
        key = make_key(len(self.records) + 1, 0)
        return self.log(
            JobRegistered(
                submission_id=f"s-{job_id}-{version}",
                digest="d",
                job_id=JobId(job_id),
                version=version,
                groups=(group,),
                spec=msgspec.Raw(b'{"ID":"x"}'),
                evaluation=key,
                **more,
            ),
            EvaluationsCreated(evaluations=(NewEvaluation(job_id=JobId(job_id)),)),
        )

    def text(self, job_id: str, version: int, spec: bytes, groups: tuple[GroupSpec, ...]) -> int:
        """Register a version of a job with its real text."""
        return self.log(
            JobRegistered(
                submission_id=f"s-{job_id}-{version}",
                digest="d",
                job_id=JobId(job_id),
                version=version,
                groups=groups,
                spec=msgspec.Raw(spec),
            )
        )

    def plan(self, job_id: str, rows: tuple[int, ...], *more: Event, **fields: object) -> int:
        """Commit one allocation on each of `rows`."""
        placement = GroupPlacement(
            group="web", version=0, rows=rows, counts=(1,) * len(rows), names=(0, len(rows))
        )
        origin = Origin(worker="w", number=len(self.records), snapshot_seq=1)
        placements = (placement,) if rows else ()
        plan = PlanCommitted(key=0, job_id=job_id, origin=origin, placements=placements, **fields)
        return self.log(plan, *more)

    def feed(self, *inputs: Input, replay: bool = True) -> list[Effect]:
        """Hand over everything the view has not seen, then `inputs`."""
        news = self.records[self.view.next_seq - 1 :] if replay else []
        return self.view.step([*news, *inputs], self.now_ns)

    def start(self) -> list[Effect]:
        """Replay everything and catch up."""
        return self.feed(CaughtUp(len(self.records)))

    def later(self, *inputs: Input, ms: int = 60) -> list[Effect]:
        """Let time pass, then feed."""
        self.now_ns += ms * MS
        return self.feed(*inputs)

    def land(self, effects: list[Effect]) -> dict[str, dict[str, object]]:
        """Store all Puts as a bus would, tell the view, and return them decoded by subject."""
        out = {}
        answers: list[Input] = []
        for put in puts(effects):
            self._subject_seq += 1
            self.stands[put.subject] = (self._subject_seq, put.data)
            answers.append(PutDone(put.subject, self._subject_seq))
            out[put.subject] = msgspec.json.decode(put.data)
        assert not puts(self.view.step(answers, self.now_ns))
        return out

    def message(self, noun: str, **query: object) -> Message:
        self._token += 1
        body = msgspec.json.encode(query)
        return Message("query", subjects.query(noun), body, self._token, reply=True)

    def ask(self, noun: str, **query: object) -> dict[str, object]:
        """Ask a view that has caught up; return the decoded answer."""
        return self._answered(self.message(noun, **query))

    def ask_as(self, node_token: str, **query: object) -> dict[str, object]:
        """Ask for a job version as a node does."""
        asked = self.message("job_version", **query)
        subject = f"{asked.subject}.{node_token}"
        return self._answered(msgspec.structs.replace(asked, source="node_query", subject=subject))

    def _answered(self, message: Message) -> dict[str, object]:
        replies = [
            e for e in self.feed(message) if isinstance(e, Reply) and e.token == message.token
        ]
        assert len(replies) == 1
        return msgspec.json.decode(replies[0].data)


def puts(effects: list[Effect]) -> list[Put]:
    return [one for one in effects if isinstance(one, Put)]
