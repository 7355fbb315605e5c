"""Gauges under Nomad's names, for dashboards and agents made for it: what follows from the gateway's replica alone.

docs/metrics.md has the same table. What other services measure (queues of the broker, times) is on their own ports.
"""

from typing import NamedTuple

import numpy as np

from schemas.allocations import CLIENT_STATUSES
from services.gateway.nomad.source import ShapeSource
from shared.core.state.counts import count_state
from shared.core.state.tables.allocations import PENDING, RUNNING, UNKNOWN
from shared.core.state.tables.fleet import DISCONNECTED, DOWN
from shared.query.job_wait import BLOCKED
from shared.query.wait_queue import queued_jobs


class MappedMetric(NamedTuple):
    """One gauge. `ours`: the metric of Caravan that has the same value, or holds it."""

    nomad: str
    ours: str
    meaning: str

    @property
    def prometheus(self) -> str:
        """The name in the text format: as Nomad writes it."""
        return self.nomad.replace(".", "_")


#: Client statuses, as Nomad's summaries of jobs call them.
_SUMMARY = {"pending": "starting"}
_JOBS, _ALLOCATIONS = "caravan_view_jobs", "caravan_view_allocations"
_BROKER = "caravan_eval_broker_"
MAPPED = (
    MappedMetric("nomad.raft.appliedIndex", "caravan_gateway_seq", "last record applied"),
    MappedMetric(
        "nomad.raft.lastIndex",
        "caravan_shell_lag_records",
        "last record known: applied, and the lag",
    ),
    MappedMetric(
        "nomad.nomad.heartbeat.active", "caravan_heartbeat_up_nodes", "nodes that are not down"
    ),
    MappedMetric(
        "nomad.nomad.blocked_evals.total_blocked",
        f"{_BROKER}blocked_evaluations",
        "evaluations waiting for capacity",
    ),
    MappedMetric(
        "nomad.nomad.blocked_evals.cpu", f"{_BROKER}blocked_cpu_mhz", "CPU that these ask for, MHz"
    ),
    MappedMetric(
        "nomad.nomad.blocked_evals.memory",
        f"{_BROKER}blocked_memory_mib",
        "memory that these ask for, MiB",
    ),
    *(
        MappedMetric(f"nomad.nomad.job_status.{one}", _JOBS, f"{one} jobs")
        for one in ("pending", "running", "dead")
    ),
    *(
        MappedMetric(
            f"nomad.nomad.job_summary.{_SUMMARY.get(one, one)}",
            f'{_ALLOCATIONS}{{status="{one}"}}',
            f"{one} allocations of all jobs",
        )
        for one in CLIENT_STATUSES
    ),
    MappedMetric(
        "nomad.nomad.job_summary.queued",
        f"{_BROKER}blocked_evaluations",
        "allocations without a node of all jobs",
    ),
)


def nomad_metrics(source: ShapeSource, seq: int, lag_records: float) -> dict[str, float]:
    """Values by Nomad's names. `seq`: of the state; `lag_records`: records of the log that are not read yet."""
    state = source.state
    fleet = state.fleet
    status = fleet.status[: fleet.size][fleet.live[: fleet.size]]
    up = np.count_nonzero((status != DOWN) & (status != DISCONNECTED))
    found = {
        "nomad.raft.appliedIndex": float(seq),
        "nomad.raft.lastIndex": seq + lag_records,
        "nomad.nomad.heartbeat.active": float(up),
    }
    for name, value in _waiting(source).items():
        found[f"nomad.nomad.{name}"] = float(value)
    for name, value in _job_statuses(source).items():
        found[f"nomad.nomad.job_status.{name}"] = float(value)
    for name, value in count_state(state).allocations.items():
        found[f"nomad.nomad.job_summary.{_SUMMARY.get(name, name)}"] = float(value)
    return found


def _waiting(source: ShapeSource) -> dict[str, int]:
    """What blocked evaluations wait for, summed; and the allocations that wait, those of parked ones included."""
    state = source.state
    cpu = memory = queued = 0
    for job, wait in queued_jobs(state, source.histories.shapes):
        queued += sum(one.n for one in wait.groups.values())
        for group in job.groups if wait.kind == BLOCKED else ():
            if (waiting := wait.groups.get(group.name)) is not None:
                cpu += group.cpu_mhz * waiting.n
                memory += group.memory_mib * waiting.n
    return {
        "blocked_evals.total_blocked": len(state.evaluations.blocked_of),
        "blocked_evals.cpu": cpu,
        "blocked_evals.memory": memory,
        "job_summary.queued": queued,
    }


def _job_statuses(source: ShapeSource) -> dict[str, int]:
    """Jobs by status: `shared.query.projections.job_status` for all of them, with one look at the allocations."""
    state = source.state
    table = state.allocations
    rows = table.live_rows()
    present = np.isin(table.client[rows], (PENDING, RUNNING, UNKNOWN))
    refs = np.unique(table.group[rows[present]]).tolist()
    busy = {table.groups.job_ids[ref] for ref in refs}
    found = dict.fromkeys(("pending", "running", "dead"), 0)
    for job in state.jobs.by_id.values():
        if job.stopped:
            status = "dead"
        elif job.job_type == "system" or job.is_pattern or job.id in busy:
            status = "running"
        else:
            status = "pending" if source.histories.has_open(job.id) else "dead"
        found[status] += 1
    return found
