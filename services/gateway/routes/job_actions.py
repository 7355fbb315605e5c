"""`/v1/job/<id>/actions` and `/v1/job/<id>/action`: the actions of a job, and running one over a websocket."""

from functools import partial

from schemas.base import JobId
from schemas.node_rpc import ActionAsk
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.routes.client_exec import run_session
from services.gateway.routes.lookup import alloc_row, find_job
from shared.bus.connection.node_stream import new_session_id
from shared.jobspec.nomad.job import JOB_DECODER


async def list_actions(call: Call) -> object:
    """The actions of the tasks of a job's newest version."""
    job = find_job(call)
    spec = call.role.state.jobs.spec(job.id, job.version)
    groups = JOB_DECODER.decode(spec).groups if spec is not None else ()
    call.index = job.modify_seq
    return [
        {
            "Name": one.name,
            "Command": one.command,
            "Args": list(one.args),
            "JobID": str(job.id),
            "TaskGroupName": group.name,
            "TaskName": task.name,
        }
        for group in groups
        for task in group.tasks
        for one in task.actions
    ]


async def run_action(call: Call) -> None:
    """Run an action of a task until it ends or its client leaves. Raises HttpFault."""
    await run_session(call, partial(_ask, call))


def _ask(call: Call) -> tuple[str, str, ActionAsk]:
    """What is asked, and of which node. Raises HttpFault 400, 404."""
    alloc_id, name = call.text("allocID"), call.text("action")
    if not alloc_id or not name:
        raise HttpFault(400, "allocID and action must be given")
    row = alloc_row(call, alloc_id)
    allocations = call.role.state.allocations
    ref = int(allocations.group[row])
    if allocations.groups.job_ids[ref] != JobId(call.path["job"]):
        raise HttpFault(404, "the allocation is of another job")
    if call.text("group") not in ("", allocations.groups.names[ref]):
        raise HttpFault(404, "the allocation is of another group")
    ask = ActionAsk(
        alloc_id=alloc_id,
        action=name,
        session=new_session_id(),
        task=call.text("task"),
        tty=call.flag("tty"),
    )
    return str(call.role.state.fleet.ids[int(allocations.node[row])]), "action", ask
