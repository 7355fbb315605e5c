"""A log as an applier would write it, for tests of roles that follow it. Events are the test's."""

from schemas.base import EvalKey, JobId, NodeId
from schemas.envelope import CORE_VERSION, SCHEMA_VERSION, AnyEvent, LeaseHeld, LogRecord
from schemas.evaluations import Blocked, EvaluationsCreated, NewEvaluation
from schemas.jobs import GroupSpec, JobRegistered
from schemas.nodes import NodeRegistered, NodeSpec
from schemas.policy import ClusterCreated, Policy
from shared.core.runtime import messages
from shared.core.runtime.chain import seal
from shared.core.state.ids import make_key
from shared.protocol import subjects

START_NS = 1_700_000_000_000_000_000


class WrittenLog:
    """Seals records one after the other; `tx` returns the input that a shell would deliver."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.seq = 0
        self.records: list[messages.Record] = []
        self._head = ""
        self.epoch = 1
        held = LeaseHeld(holder="applier", cluster_id="c1", fsync=True)
        self._write(LogRecord(**self._envelope("lease"), lease=held))

        self.tx(ClusterCreated(cluster_id="c1", policy=policy or Policy()))

    def takeover(self) -> messages.Record:
        """Another holder takes the write lease: a higher epoch begins."""
        self.epoch = self.seq + 1
        held = LeaseHeld(holder=f"applier-{self.epoch}", cluster_id="c1", fsync=True)
        return self._write(LogRecord(**self._envelope("lease"), lease=held))

    def tx(self, *events: AnyEvent, t_ns: int = START_NS) -> messages.Record:
        """Write one transaction."""
        return self._write(LogRecord(**{**self._envelope("tx"), "t_ns": t_ns}, events=events))

    def jobs(self, *job_ids: str, count: int = 1, cpu_mhz: int = 100) -> messages.Record:
        """Register jobs of one group `g` in one transaction."""
        group = GroupSpec(name="g", count=count, cpu_mhz=cpu_mhz, memory_mib=64)
        events = [
            JobRegistered(
                submission_id=f"s-{self.seq}-{one}",
                digest="d",
                job_id=JobId(one),
                version=0,
                groups=(group,),
            )
            for one in job_ids
        ]
        return self.tx(*events)

    def job_of(self, job_id: str, *groups: str) -> messages.Record:
        """Register one job with these groups."""
        some = tuple(GroupSpec(name=one, cpu_mhz=1) for one in groups)
        return self.tx(
            JobRegistered(
                submission_id=f"s-{self.seq}",
                digest="d",
                job_id=JobId(job_id),
                version=0,
                groups=some,
            )
        )

    def nodes(self, count: int, cpu_mhz: int = 4000) -> messages.Record:
        """Register nodes in one transaction."""
        specs = [
            NodeSpec(node_id=NodeId(f"n{at}"), cpu_mhz=cpu_mhz, memory_mib=8192, disk_mib=10_000)
            for at in range(count)
        ]
        return self.tx(*(NodeRegistered(spec=one, host_id="h", boot_id="b") for one in specs))

    def evaluations(
        self, *job_ids: str, priority: int = 50
    ) -> tuple[messages.Record, list[EvalKey]]:
        """Create pending evaluations in one transaction; returns it and their keys."""
        made = tuple(NewEvaluation(job_id=JobId(one), priority=priority) for one in job_ids)
        record = self.tx(EvaluationsCreated(evaluations=made))
        return record, [EvalKey(make_key(record.seq, at)) for at in range(len(made))]

    def blocked(
        self, job_id: str, blocked: Blocked, priority: int = 50
    ) -> tuple[messages.Record, EvalKey]:
        """Create a blocked evaluation; returns the transaction and its key."""
        new = NewEvaluation(job_id=JobId(job_id), priority=priority, blocked=blocked)
        record = self.tx(EvaluationsCreated(evaluations=(new,)))
        return record, EvalKey(make_key(record.seq, 0))

    def _envelope(self, kind: str) -> dict[str, object]:
        return {
            "kind": kind,
            "schema": SCHEMA_VERSION,
            "core": CORE_VERSION,
            "epoch": self.epoch,
            "prev": self._head,
            "t_ns": START_NS,
        }

    def _write(self, record: LogRecord) -> messages.Record:
        data, self._head = seal(record)
        self.seq += 1
        written = messages.Record(self.seq, subjects.log(1, record.kind), data)
        self.records.append(written)
        return written
