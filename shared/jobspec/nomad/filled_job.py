"""Fills in the defaults of a job as Nomad does, for what its API shows of a registered or parsed job."""

from typing import Any

import msgspec

from schemas.jobs import SERVICE_JOB_TYPES
from shared.jobspec.nomad.defaults import (
    RESCHEDULE_DEFAULTS,
    resolve_migrate,
    resolve_reschedule,
    resolve_restart,
    resolve_update,
)
from shared.jobspec.nomad.job import JOB_DECODER, JobSpec, TaskGroup
from shared.jobspec.strict_json import JsonObject


def filled_job(spec: bytes) -> JsonObject:
    """A job's text with every field of Nomad's job, defaults filled in. Raises msgspec.ValidationError."""
    job = JOB_DECODER.decode(spec)
    found = _plain(job)
    found["Name"] = job.name or job.id
    found["Priority"] = job.priority or 50
    found["ConsulToken"] = found["ConsulNamespace"] = ""
    found["VaultToken"] = found["VaultNamespace"] = found["NomadTokenID"] = ""
    found["Update"] = _plain_update(_plain(job.update)) if job.update else _NO_UPDATE
    found["TaskGroups"] = [
        _group(job, group, shown)
        for group, shown in zip(job.groups, found["TaskGroups"], strict=True)
    ]
    return found


#: What Nomad prints of a job whose groups alone say how they are updated.
_NO_UPDATE = {
    "Stagger": 0,
    "MaxParallel": 0,
    "HealthCheck": "",
    "MinHealthyTime": 0,
    "HealthyDeadline": 0,
    "ProgressDeadline": 0,
    "AutoRevert": False,
    "AutoPromote": False,
    "Canary": 0,
}


def _group(job: JobSpec, group: TaskGroup, shown: JsonObject) -> JsonObject:
    """A group with the policies that follow from its job's type."""
    restart = resolve_restart(job.type, group)
    shown["RestartPolicy"] = _restart(restart)
    reschedule = resolve_reschedule(job, group)
    has_reschedule = job.type in RESCHEDULE_DEFAULTS and job.type in ("service", "batch")
    shown["ReschedulePolicy"] = (
        {
            "Attempts": reschedule.attempts,
            "Interval": reschedule.interval_ns,
            "Delay": reschedule.delay_ns,
            "DelayFunction": reschedule.delay_function,
            "MaxDelay": reschedule.max_delay_ns,
            "Unlimited": reschedule.unlimited,
        }
        if has_reschedule
        else None
    )
    is_updated = job.type in SERVICE_JOB_TYPES
    shown["Update"] = _plain_update(_plain(resolve_update(job, group))) if is_updated else None
    shown["Migrate"] = _plain(resolve_migrate(job, group)) if job.type == "service" else None
    for task, of_task in zip(group.tasks, shown["Tasks"], strict=True):
        of_task["RestartPolicy"] = _restart(resolve_restart(job.type, group, task))
    return shown


def _plain(value: msgspec.Struct) -> JsonObject:
    """A Struct with all its fields by Nomad's names, raw JSON inside decoded."""
    found: JsonObject = msgspec.json.decode(msgspec.json.encode(value))
    return found


def _restart(policy: Any) -> JsonObject:
    return {
        "Attempts": policy.attempts,
        "Interval": policy.interval_ns,
        "Delay": policy.delay_ns,
        "Mode": policy.mode,
        "RenderTemplates": False,
    }


def _plain_update(block: JsonObject) -> JsonObject:
    """An update block without what is ours alone."""
    return {name: block.get(name, default) for name, default in _NO_UPDATE.items()}
