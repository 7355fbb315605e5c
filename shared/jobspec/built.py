"""What of a job something acts on today. Who builds a behaviour adds its fields here, and docs/jobs.md follows.

A field that is not here is kept in the spec and named in a warning. Blocks inside a field are looked up by their own
Struct: a field whose block has no entry is acted on as a whole. Next: `unbuilt.py`.
"""

from shared.jobspec.nomad_base import Json
from shared.jobspec.nomad_json import Job, Task, TaskGroup
from shared.jobspec.nomad_placement import (
    Constraint,
    EphemeralDisk,
    Network,
    Numa,
    Port,
    Resources,
)
from shared.jobspec.nomad_policies import Disconnect, ReschedulePolicy, RestartPolicy

#: Struct -> JSON names of the fields that are acted on.
BUILT: dict[type[Json], frozenset[str]] = {
    Job: frozenset(
        (
            *("ID", "Name", "Type", "Priority", "Datacenters", "NodePool", "AllAtOnce"),
            *("Constraints", "Affinities", "Spreads", "TaskGroups", "Reschedule", "Meta"),
            "SchedulerAlgorithm",
        )
    ),
    TaskGroup: frozenset(
        (
            *("Name", "Count", "Tasks", "Constraints", "EphemeralDisk", "RestartPolicy"),
            *("ReschedulePolicy", "Affinities", "Spreads", "Meta", "Networks", "Disconnect"),
            *("MaxClientDisconnect", "PreventRescheduleOnLost", "StopAfterClientDisconnect"),
            *("ShutdownDelay", "MaxRunDuration", "RestartFrom"),
        )
    ),
    Task: frozenset(
        (
            *("Name", "Driver", "Config", "Env", "Meta", "Resources", "Constraints"),
            *("RestartPolicy", "KillTimeout", "User", "Leader", "KillSignal", "Affinities"),
            *("LogConfig", "Lifecycle", "ShutdownDelay"),
        )
    ),
    Constraint: frozenset(("LTarget", "Operand", "RTarget")),
    EphemeralDisk: frozenset(("SizeMB", "Sticky")),
    Resources: frozenset(
        (
            *("CPU", "Cores", "MemoryMB", "MemoryMaxMB", "Networks", "Devices", "NUMA", "Custom"),
            "SecretsMB",
        )
    ),
    Network: frozenset(("ReservedPorts", "DynamicPorts", "Mode", "Hostname", "DNS")),
    Port: frozenset(("Label", "Value", "To", "IgnoreCollision", "HostNetwork")),
    Numa: frozenset(("Affinity",)),
    Disconnect: frozenset(("LostAfter", "StopOnClientAfter", "Replace", "Reconcile")),
    RestartPolicy: frozenset(("Attempts", "Interval", "Delay", "Mode")),
    ReschedulePolicy: frozenset(
        ("Attempts", "Interval", "Delay", "DelayFunction", "MaxDelay", "Unlimited")
    ),
}

#: Job types whose whole meaning is built.
BUILT_TYPES = frozenset(("service", "batch", "system", "sysbatch"))
