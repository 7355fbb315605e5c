"""Values that close a subject: what is said of a node or a job when it leaves the state.

Decides what the last value holds. Must not know when it is published. Next: `marks.py`.
"""

from schemas.base import JobId
from schemas.envelope import ENCODER
from schemas.projections import JobProjection, NodeProjection, NodeSummary
from shared.bus import subjects
from shared.core.state import State


def last_words_of_node(state: State, row: int, seq: int) -> dict[str, bytes]:
    """Values that close a node's subjects when it leaves the state: nothing is desired of it."""
    fleet = state.fleet
    node_id, cluster_id = fleet.ids[row], state.policy.cluster_id
    empty = NodeProjection(
        cluster_id=cluster_id,
        seq=seq,
        node_id=node_id,
        host_id=fleet.host_ids[row],
        boot_id=fleet.boot_ids[row],
        reports_seen=int(fleet.reports_seen[row]),
    )
    gone = NodeSummary(cluster_id=cluster_id, seq=seq, id=node_id, status="down")
    return {
        subjects.node(node_id): ENCODER.encode(empty),
        subjects.view_node(node_id): ENCODER.encode(gone),
    }


def last_words_of_job(state: State, job_id: JobId, seq: int) -> dict[str, bytes]:
    """The value that closes a job's subject."""
    job = state.jobs.by_id[job_id]
    gone = JobProjection(
        cluster_id=state.policy.cluster_id,
        seq=seq,
        job_id=job_id,
        version=job.version,
        status="dead",
        stopped=True,
        modify_index=job.modify_seq,
    )
    return {subjects.view_job(job_id): ENCODER.encode(gone)}
