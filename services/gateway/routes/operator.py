"""`/v1/operator/…`, `/v1/system/…`, `/v1/metrics`: the cluster itself."""

from typing import Any

from starlette.responses import Response

from schemas.policy import ALGORITHMS
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.metrics import MAPPED, nomad_metrics
from services.gateway.nomad.source import Object
from services.gateway.nomad.times import rfc3339
from services.gateway.routes.agent import rpc_address
from services.gateway.routes.job_writes import field
from shared.bus.process.health_server import exposition
from shared.bus.process.process_metrics import process_metrics
from shared.protocol import subjects

#: Ours -> Nomad's.
_PREEMPTION = {
    "system": "SystemSchedulerEnabled",
    "sysbatch": "SysBatchSchedulerEnabled",
    "batch": "BatchSchedulerEnabled",
    "service": "ServiceSchedulerEnabled",
}
#: Of Nomad's configuration, what would have an effect and is not built.
_NOT_BUILT = (
    "MemoryOversubscriptionEnabled",
    "RejectJobRegistration",
    "PauseEvalBroker",
    "NodeLimitForFeasibilityChecks",
)


async def read_scheduler(call: Call) -> object:
    """The policy as Nomad's scheduler configuration."""
    table = call.role.state.policy
    policy = table.policy
    call.index = max(table.modify_seq, 1)
    return {
        "SchedulerConfig": {
            "SchedulerAlgorithm": policy.algorithm,
            "PreemptionConfig": {
                theirs: getattr(policy.preemption, ours) for ours, theirs in _PREEMPTION.items()
            },
            **dict.fromkeys(_NOT_BUILT[:3], False),
            "NodeLimitForFeasibilityChecks": 0,
            "CreateIndex": 1,
            "ModifyIndex": call.index,
        },
        "Index": call.index,
        "LastContact": 0,
        "KnownLeader": True,
    }


async def write_scheduler(call: Call) -> object:
    """Change the policy. With `cas` only where its index is that. Raises HttpFault 400."""
    body = await call.body()
    table = call.role.state.policy
    for name in _NOT_BUILT:
        if field(body, name):
            raise HttpFault(400, f"{name} is not built")
    change: Object = {}
    algorithm = field(body, "SchedulerAlgorithm", "")
    if algorithm:
        if algorithm not in ALGORITHMS:
            raise HttpFault(400, f"invalid scheduler algorithm {str(algorithm)[:100]!r}")
        change["algorithm"] = algorithm
    preemption = field(body, "PreemptionConfig", {}) or {}
    for ours, theirs in _PREEMPTION.items():
        if (value := field(preemption, theirs)) is not None:
            change[f"preemption.{ours}"] = bool(value)
    request: Object = {"change": change}
    if call.text("cas"):
        if call.number("cas") != table.modify_seq:
            return {"Updated": False, "Index": max(table.modify_seq, 1)}
        request["policy_hash"] = table.policy_hash
    verdict = await call.write(subjects.api("operator", "set_policy"), request)
    return {"Updated": True, "Index": int(verdict.get("seq", 0))}


async def read_raft(call: Call) -> object:
    """The applier that leads, as the only voter: the bus has its own peers."""
    lease = call.role.answers.lease
    return {
        "Servers": [
            {
                "ID": lease.cluster_id,
                "Node": f"{lease.holder or 'plan_applier'}.global",
                "Address": rpc_address(call),
                "Leader": True,
                "Voter": True,
                "RaftProtocol": "3",
            }
        ],
        "Index": max(call.role.seq, 1),
    }


async def refuse_raft(_call: Call) -> object:
    """Refuse: peers of the bus are not changed by HTTP."""
    raise HttpFault(501, "Raft peers cannot be changed over HTTP")


async def refuse_snapshot(_call: Call) -> object:
    """Refuse: the log is exported, and restored with the bus's own files."""
    raise HttpFault(
        501, "not built: `caravan log export` writes the log, docs/operations.md restores it"
    )


async def collect(call: Call) -> object:
    """Collect everything that has ended."""
    await call.write(subjects.api("system", "gc"), {})
    return None


async def reconcile(_call: Call) -> object:
    """Nothing to do: summaries follow from the state."""
    return None


async def metrics(call: Call) -> object:
    """The gateway's numbers and, by Nomad's names, the cluster's: JSON in Nomad's shape, or Prometheus's text."""
    found = {
        **call.server.shell.metrics(),
        **call.server.bus_edge.metrics(),
        **process_metrics(),
    }
    theirs = nomad_metrics(
        call.role.source, call.role.seq, found.get("caravan_shell_lag_records", 0.0)
    )
    if call.text("format") == "prometheus":
        kind = "text/plain; version=0.0.4"
        named = {one.prometheus: theirs[one.nomad] for one in MAPPED}
        return Response(exposition({**found, **named}), 200, media_type=kind)
    stamp = rfc3339(call.role.times.at(call.role.seq)).replace("T", " ")
    gauges: list[Any] = [
        {"Name": name, "Value": value, "Labels": {}}
        for name, value in sorted({**found, **theirs}.items())
    ]
    return {
        "Timestamp": f"{stamp[:19]} +0000 UTC",
        "Gauges": gauges,
        "Points": [],
        "Counters": [],
        "Samples": [],
    }


ENDPOINTS = (
    Endpoint(
        pattern="/v1/operator/scheduler/configuration",
        summary="Read or change the scheduler's configuration.",
        read=read_scheduler,
        write=write_scheduler,
    ),
    Endpoint(pattern="/v1/operator/raft/configuration", summary="The servers.", read=read_raft),
    Endpoint(pattern="/v1/operator/raft/peer", summary="Refused.", delete=refuse_raft),
    Endpoint(
        pattern="/v1/operator/snapshot",
        summary="Refused.",
        read=refuse_snapshot,
        write=refuse_snapshot,
    ),
    Endpoint(pattern="/v1/system/gc", summary="Collect what has ended.", write=collect),
    Endpoint(
        pattern="/v1/system/reconcile/summaries",
        summary="Accepted without effect.",
        write=reconcile,
    ),
    Endpoint(
        pattern="/v1/metrics",
        summary="Numbers of the gateway and, by Nomad's names, of the cluster.",
        read=metrics,
    ),
)
