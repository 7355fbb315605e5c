"""Launches of periodic jobs: a child is registered for an instant that has come, or the instant is skipped.

Decides whether, never when: instants come from the timekeeper or from an operator. At most one child for each second of
a parent, since the second names the child.
"""

from schemas.base import SECOND_NS, Event, JobId
from schemas.launches import ForceLaunch, JobLaunched, LaunchDue, LaunchSkipped
from schemas.policy import OperatorRefused
from shared.core.decide.deciders import Deciders
from shared.core.decide.jobs.children import child_spec, register_child
from shared.core.state.live_children import MARK
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job

#: A request to launch now may be dated so far behind log time, or ahead of it.
FORCE_SKEW_NS = 60 * SECOND_NS


def child_name(parent: str, at_ns: int) -> JobId:
    """Name the child of an instant, as Nomad does."""
    return JobId(f"{parent}{MARK}{at_ns // SECOND_NS}")


def decide_launch(state: State, command: LaunchDue) -> list[Event]:
    """Launch the child of a planned instant; nothing where the sender knows less than the tables."""
    parent = state.launches.by_parent.get(command.parent)
    job = state.jobs.by_id.get(command.parent)
    if parent is None or job is None or job.periodic is None or not parent.is_launching:
        return []
    known = (parent.modify_seq, parent.handled_ns)
    if known != (command.modify_seq, command.after_ns):
        return []
    if not parent.handled_ns < command.at_ns <= state.t_ns:
        return []
    events: list[Event] = []
    if command.missed:
        events.append(_skip(job, command.at_ns, "missed", command.missed))
    if child_name(job.id, command.at_ns) in state.jobs.by_id:
        return [*events, _skip(job, command.at_ns, "exists")]
    if job.periodic.prohibit_overlap and is_running(state, job.id):
        return [*events, _skip(job, command.at_ns, "overlap")]
    return [*events, *_launched(state, job, command.at_ns, forced=False)]


def decide_force(state: State, command: ForceLaunch) -> list[Event]:
    """Launch a child now, regardless of running children; nothing where the child of this second is there already."""
    job = state.jobs.by_id.get(command.job_id)
    parent = state.launches.by_parent.get(command.job_id)
    if job is None:
        return _refuse(command, "not_found", f"there is no job {command.job_id!r}")
    if job.periodic is None or parent is None:
        return _refuse(command, "invalid", f"job {job.id!r} is not periodic")
    if job.stopped:
        return _refuse(command, "invalid", f"job {job.id!r} is stopped")
    if not job.periodic.enabled:
        return _refuse(command, "invalid", f"job {job.id!r} has periodic.enabled = false")
    child = child_name(job.id, command.at_ns)
    if child in state.jobs.by_id or any(one.child_id == child for one in parent.launches):
        return []
    if abs(command.at_ns - state.t_ns) > FORCE_SKEW_NS:
        return _refuse(command, "conflict", "the request is dated more than a minute from log time")
    return _launched(state, job, command.at_ns, forced=True)


def is_running(state: State, parent: JobId) -> bool:
    """Tell whether a child of a job has an open evaluation or an allocation that has not ended."""
    children = state.launches.children.get(parent, {})
    if any(child in children for child in state.allocations.live_children.of(parent)):
        return True
    # Goes through the shorter of both.
    return not children.keys().isdisjoint(state.evaluations.open_of.keys())


def _launched(state: State, job: Job, at_ns: int, *, forced: bool) -> list[Event]:
    child_id = child_name(job.id, at_ns)
    text = state.jobs.spec(job.id, job.version) or b"{}"
    spec = child_spec(text, without="Periodic", ID=child_id, Name=child_id)
    launched = JobLaunched(
        parent=job.id,
        parent_create_seq=job.create_seq,
        at_ns=at_ns,
        child_id=child_id,
        forced=forced,
    )
    # A periodic job may itself have been dispatched.
    payload = state.launches.payloads.get(job.id, b"")
    child = register_child(
        state, job, child_id, spec=spec, triggered_by="periodic-job", payload=payload
    )
    return [launched, *child]


def _skip(job: Job, at_ns: int, why: str, missed: int = 0) -> LaunchSkipped:
    return LaunchSkipped(
        parent=job.id, parent_create_seq=job.create_seq, at_ns=at_ns, why=why, missed=missed
    )


def _refuse(command: ForceLaunch, code: str, reason: str) -> list[Event]:
    return [OperatorRefused(request_id=command.request_id, code=code, reason=reason[:600])]


DECIDERS: Deciders = {ForceLaunch: decide_force, LaunchDue: decide_launch}
