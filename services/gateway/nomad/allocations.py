"""Allocations in Nomad's shape: whole ones, and stubs of lists."""

import msgspec
import numpy as np

from schemas.allocations import CLIENT_STATUSES, DESIRED_STATUSES, HEALTHS
from schemas.base import JobId
from schemas.node_answers import TaskShown
from services.gateway.nomad.evaluations import metric
from services.gateway.nomad.jobs import nomad_job
from services.gateway.nomad.source import Object, ShapeSource
from services.gateway.nomad.times import UNSET, rfc3339
from shared.core.columns import Rows
from shared.core.state.ids import ALLOC_SALT, alloc_id, deployment_id, eval_id, shown_ids
from shared.core.state.state import State
from shared.protocol.node_uuids import node_uuid
from shared.query import projections, resource_usage

_TASKS = msgspec.json.Decoder(dict[str, TaskShown])
_TEXT_OF_DESIRED = {
    "run": "",
    "stop": "alloc not needed due to job update",
    "evict": "alloc was evicted",
}


def alloc_shown_ids(state: State, rows: Rows) -> list[str]:
    """Shown ids of allocation rows."""
    return shown_ids(state.allocations.key[rows], ALLOC_SALT)


def alloc_stub(source: ShapeSource, row: int, *, with_tasks: bool = True) -> Object:
    """A line of a list of allocations."""
    state = source.state
    found = _common(source, row, with_tasks=with_tasks)
    table = state.allocations
    version = table.groups.versions[int(table.group[row])]
    job = state.jobs.by_id.get(JobId(found["JobID"]))
    found["JobType"] = job.job_type if job is not None else "service"
    found["JobVersion"] = version
    return found


def nomad_alloc(source: ShapeSource, row: int) -> Object:
    """A whole allocation, with its version of the job."""
    state = source.state
    table = state.allocations
    found = _common(source, row, with_tasks=True)
    job = state.jobs.by_id.get(JobId(found["JobID"]))
    version = table.groups.versions[int(table.group[row])]
    shown = nomad_job(source, job, version) if job is not None else None
    found["Job"] = shown or _forgotten_job(found["JobID"], found["TaskGroup"], version)
    found.update(_resources(state, row, found))
    found["Metrics"] = metric(0, (), job.node_pool if job is not None else "default")
    found["NetworkStatus"] = None
    found["SignedIdentities"] = None
    return found


def _common(source: ShapeSource, row: int, *, with_tasks: bool) -> Object:
    state = source.state
    table, fleet = state.allocations, state.fleet
    key, ref, node = int(table.key[row]), int(table.group[row]), int(table.node[row])
    job_id, group = table.groups.job_ids[ref], table.groups.names[ref]
    desired, client = DESIRED_STATUSES[table.desired[row]], CLIENT_STATUSES[table.client[row]]
    known = node < fleet.size
    node_id = str(fleet.ids[node]) if known else ""
    create_seq, modify_seq = state.policy.incarnations.seq(key), int(table.modify_seq[row])
    previous = table.previous.get(row, 0)
    deployment = int(table.deployment[row])
    tasks = _TASKS.decode(table.details.get(row, b"{}")) if with_tasks else {}
    return {
        "ID": alloc_id(key),
        "Namespace": "default",
        "EvalID": evaluation_of(source, job_id, create_seq),
        "Name": f"{job_id}.{group}[{int(table.index[row])}]",
        "NodeID": node_uuid(node_id),
        "NodeName": (fleet.specs[node].name or node_id) if known else "",
        "JobID": str(job_id),
        "TaskGroup": group,
        "DesiredStatus": desired,
        "DesiredDescription": _TEXT_OF_DESIRED[desired],
        "DesiredTransition": {"Migrate": None, "Reschedule": None, "ForceReschedule": None},
        "ClientStatus": client,
        "ClientDescription": projections.status_reason(state, row, ""),
        "TaskStates": {name: task_state(one) for name, one in sorted(tasks.items())},
        "DeploymentID": deployment_id(deployment) if deployment else "",
        "DeploymentStatus": _health(source, row),
        "FollowupEvalID": "",
        "RescheduleTracker": None,
        "PreviousAllocation": alloc_id(previous) if previous else "",
        "NextAllocation": _next_allocation(state, job_id, key),
        "PreemptedAllocations": None,
        "PreemptedByAllocation": "",
        "CreateIndex": create_seq,
        "ModifyIndex": modify_seq,
        "AllocModifyIndex": modify_seq,
        "CreateTime": source.time_of(create_seq),
        "ModifyTime": source.time_of(modify_seq),
    }


def evaluation_of(source: ShapeSource, job_id: JobId, create_seq: int) -> str:
    """The evaluation whose plan placed an allocation at a seq, as far as evaluations are kept; empty: it is not."""
    by_key = source.state.evaluations.by_key
    incarnations = source.state.policy.incarnations
    older = [key for key in source.histories.of_job(job_id) if incarnations.seq(key) <= create_seq]
    exact = [key for key in older if by_key[key].modify_seq == create_seq]
    found = exact or older[:1]
    return eval_id(found[0]) if found else ""


def _next_allocation(state: State, job_id: str, key: int) -> str:
    """The allocation that replaced one; empty: none did."""
    table = state.allocations
    for row in table.rows_of(JobId(job_id)).tolist():
        if table.previous.get(row, 0) == key:
            return alloc_id(int(table.key[row]))
    return ""


def _health(source: ShapeSource, row: int) -> Object | None:
    table = source.state.allocations
    if not int(table.deployment[row]):
        return None
    word = HEALTHS[table.health[row]]
    seq = int(table.modify_seq[row])
    return {
        "Healthy": {"healthy": True, "unhealthy": False}.get(word),
        "Timestamp": rfc3339(source.time_of(seq)) if word else UNSET,
        "Canary": bool(table.canary[row]),
        "ModifyIndex": seq,
    }


def task_state(task: TaskShown) -> Object:
    """A task as its node reported it."""
    started = [one.t_ns for one in task.events if one.kind == "Started"]
    ended = [one.t_ns for one in task.events if one.kind in ("Terminated", "Killed")]
    restarted = started[1:] if task.restarts else []
    return {
        "State": task.state,
        "Failed": task.failed,
        "Restarts": task.restarts,
        "LastRestart": rfc3339(restarted[-1] if restarted else 0),
        "StartedAt": rfc3339(started[-1] if started else 0),
        "FinishedAt": rfc3339(ended[-1] if ended and task.state == "dead" else 0),
        "Events": [
            {
                "Type": one.kind,
                "Time": one.t_ns,
                "DisplayMessage": one.message,
                "Message": one.message,
                "Details": {},
                "ExitCode": (task.exit_code or 0) if one.kind == "Terminated" else 0,
                "Signal": task.signal if one.kind == "Terminated" else 0,
                "FailsTask": False,
                "RestartReason": "",
                "SetupError": "",
                "DriverError": "",
                "DriverMessage": "",
                "KillReason": "",
                "KillTimeout": 0,
                "KillError": "",
                "StartDelay": 0,
                "DownloadError": "",
                "ValidationError": "",
                "DiskLimit": 0,
                "FailedSibling": "",
                "VaultError": "",
                "TaskSignalReason": "",
                "TaskSignal": "",
                "GenericSource": "",
            }
            for one in task.events
        ],
        "TaskHandle": None,
    }


def _resources(state: State, row: int, found: Object) -> Object:
    """What an allocation takes, in Nomad's old and new form."""
    groups = [one for one in found["Job"]["TaskGroups"] or () if one["Name"] == found["TaskGroup"]]
    tasks = groups[0]["Tasks"] if groups else []
    disk = int((groups[0].get("EphemeralDisk") or {}).get("SizeMB", 300)) if groups else 0
    ports = resource_usage.alloc_ports(state, row)
    labels = [{"Label": name, "Value": port, "To": 0, "HostIP": ""} for name, port in ports.items()]
    old, new = {}, {}
    for task in tasks:
        asked = task.get("Resources") or {}
        cpu, memory = int(asked.get("CPU") or 100), int(asked.get("MemoryMB") or 300)
        memory_max = int(asked.get("MemoryMaxMB") or 0)
        old[task["Name"]] = {
            "CPU": cpu,
            "Cores": int(asked.get("Cores") or 0),
            "MemoryMB": memory,
            "MemoryMaxMB": memory_max,
            "DiskMB": 0,
            "IOPS": 0,
            "Networks": None,
            "Devices": None,
            "NUMA": None,
        }
        new[task["Name"]] = {
            "Cpu": {"CpuShares": cpu, "ReservedCores": None},
            "Memory": {"MemoryMB": memory, "MemoryMaxMB": memory_max},
            "Networks": None,
            "Devices": None,
        }
    return {
        "Resources": {
            "CPU": sum(one["CPU"] for one in old.values()),
            "Cores": sum(one["Cores"] for one in old.values()),
            "MemoryMB": sum(one["MemoryMB"] for one in old.values()),
            "MemoryMaxMB": sum(one["MemoryMaxMB"] or one["MemoryMB"] for one in old.values()),
            "DiskMB": disk,
            "IOPS": 0,
            "Networks": None,
            "Devices": None,
            "NUMA": None,
        },
        "TaskResources": old,
        "AllocatedResources": {
            "Tasks": new,
            "Shared": {"DiskMB": disk, "Networks": None, "Ports": labels or None},
        },
    }


def _forgotten_job(job_id: str, group: str, version: int) -> Object:
    """What is left of a version whose text is not kept: clients look the group up in it."""
    return {
        "ID": job_id,
        "Name": job_id,
        "Namespace": "default",
        "Region": "global",
        "Type": "service",
        "Priority": 50,
        "Version": version,
        "Stop": False,
        "Stable": False,
        "SubmitTime": 0,
        "Status": "",
        "TaskGroups": [{"Name": group, "Count": 0, "Tasks": []}],
    }


def rows_in_order(state: State, rows: Rows) -> list[int]:
    """Rows by age, oldest first."""
    found: list[int] = rows[np.argsort(state.allocations.key[rows], kind="stable")].tolist()
    return found
