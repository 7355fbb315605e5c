"""What there is on the wire: every message a reader may meet, and what the sources say about its fields.

Decides which Structs are messages of their own; everything else is part of one. Read by the modules that describe or
check the wire: `generate.py` (JSON Schema and docs/events.md), the AsyncAPI document, the test of the evolution rules.
"""

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from schemas import (
    answers,
    dead_letter,
    disks,
    envelope,
    evaluation_answers,
    evaluations,
    gates,
    identities,
    job_answers,
    jobs,
    node_answers,
    node_rpc,
    nodes,
    operator,
    projections,
    rollout_answers,
    shipped_logs,
    submissions,
    usage,
    variable_answers,
    variables,
    volume_answers,
)
from schemas.base import Command, Event, Wire

#: Replies of `query.<noun>` by noun.
ANSWERS: dict[str, type[Wire]] = {
    "jobs": job_answers.JobsAnswer,
    "job": job_answers.JobAnswer,
    "job_version": job_answers.JobVersionAnswer,
    "job_versions": job_answers.JobVersionsAnswer,
    "plan": job_answers.PlanAnswer,
    "why_not": evaluation_answers.WhyAnswer,
    "policy": answers.PolicyAnswer,
    "nodes": node_answers.NodesAnswer,
    "node": node_answers.NodeAnswer,
    "allocs": node_answers.AllocsAnswer,
    "alloc": node_answers.AllocAnswer,
    "evals": evaluation_answers.EvalsAnswer,
    "eval": evaluation_answers.EvalAnswer,
    "services": answers.ServicesAnswer,
    "service": answers.ServiceAnswer,
    "deployments": answers.DeploymentsAnswer,
    "deployment": answers.DeploymentAnswer,
    "rollouts": rollout_answers.RolloutsAnswer,
    "rollout": rollout_answers.RolloutAnswer,
    "waiting": evaluation_answers.WaitingAnswer,
    "cluster": answers.ClusterAnswer,
    "resources": node_answers.ResourcesAnswer,
    "submission": answers.SubmissionAnswer,
    "variables": variable_answers.VariablesAnswer,
    "keys": variable_answers.KeysAnswer,
    "signing_keys": variable_answers.SigningKeysAnswer,
    "claims": volume_answers.ClaimsAnswer,
    "volumes": volume_answers.VolumesAnswer,
    "dead": answers.DeadAnswer,
}

#: What an agent is asked by `hands.<node>.<verb>`, and what it answers, by verb.
NODE_RPCS: dict[str, tuple[type[Wire], type[Wire]]] = {
    "logs": (node_rpc.LogsAsk, node_rpc.Frame),
    "exec": (node_rpc.ExecAsk, node_rpc.Frame),
    "action": (node_rpc.ActionAsk, node_rpc.Frame),
    "session": (node_rpc.SessionInput, node_rpc.SessionAnswer),
    "fs_list": (node_rpc.FilesAsk, node_rpc.FilesAnswer),
    "fs_stat": (node_rpc.FilesAsk, node_rpc.FilesAnswer),
    "fs_read": (node_rpc.FilesAsk, node_rpc.FilePart),
    "stats": (node_rpc.StatsAsk, node_rpc.StatsAnswer),
    "restart": (node_rpc.TaskAsk, node_rpc.TaskAnswer),
    "signal": (node_rpc.TaskAsk, node_rpc.TaskAnswer),
}

#: Messages of their own: each gets a file in schemas/json.
MESSAGES: tuple[type[Wire], ...] = (
    envelope.LogRecord,
    envelope.CommandBatch,
    evaluations.Leases,
    evaluations.Presence,
    nodes.Heartbeat,
    usage.UsageMinute,
    shipped_logs.ShippedLogs,
    projections.NodeProjection,
    projections.JobProjection,
    projections.NodeSummary,
    projections.ServiceProjection,
    projections.ServiceNamesProjection,
    variables.VariableProjection,
    submissions.JobSubmission,
    submissions.JobsSubmission,
    submissions.JobNamed,
    submissions.JobText,
    submissions.JobDispatch,
    submissions.JobRevert,
    submissions.JobScale,
    submissions.JobStart,
    submissions.KeptAck,
    jobs.Verdict,
    jobs.ParsedJob,
    projections.Query,
    projections.PlanQuery,
    *ANSWERS.values(),
    operator.PolicyRequest,
    operator.EligibilityRequest,
    operator.DrainRequest,
    operator.MetaRequest,
    operator.ConfirmDeathRequest,
    operator.StopRequest,
    operator.PoolRequest,
    operator.PromoteRequest,
    operator.FailRequest,
    operator.PauseRequest,
    operator.ResumeRequest,
    operator.HealthRequest,
    operator.FailRolloutRequest,
    operator.PromoteRolloutRequest,
    operator.CollectRequest,
    operator.RollRequest,
    operator.AcceptLossRequest,
    operator.ForceLaunchRequest,
    operator.TagRequest,
    operator.StabilityRequest,
    operator.ReleaseClaimRequest,
    operator.CreateVolumeRequest,
    operator.DeleteVolumeRequest,
    operator.OperatorVerdict,
    variables.PutVariableRequest,
    variables.DeleteVariableRequest,
    variables.GetVariableRequest,
    variables.LockVariableRequest,
    variables.RenewLockRequest,
    variables.ReleaseLockRequest,
    variables.VariableVerdict,
    variables.VariableAnswer,
    variables.VariableAsk,
    variables.VariableAnswers,
    identities.IdentityAsk,
    identities.IdentityAnswers,
    identities.RotateKeyRequest,
    identities.RemoveKeyRequest,
    identities.KeyringVerdict,
    disks.DiskSourceAsk,
    disks.DiskSourceAnswer,
    disks.DiskAsk,
    *dict.fromkeys(struct for pair in NODE_RPCS.values() for struct in pair),
    answers.ErrorAnswer,
    dead_letter.DeadLetter,
    gates.Gauge,
)

EVENTS: tuple[type[Event], ...] = get_args(envelope.AnyEvent)
COMMANDS: tuple[type[Command], ...] = get_args(envelope.AnyCommand)

#: Names under which schemas/json, asyncapi.json and docs/events.md publish a Struct, where code uses another one.
PUBLISHED_NAMES: dict[type[msgspec.Struct], str] = {
    envelope.LogRecord: "Record",
    operator.PolicyRequest: "PolicyWish",
    operator.EligibilityRequest: "EligibilityWish",
    operator.DrainRequest: "DrainWish",
    operator.MetaRequest: "MetaWish",
    operator.StopRequest: "StopWish",
    operator.PoolRequest: "PoolWish",
    operator.PromoteRequest: "PromoteWish",
    operator.FailRequest: "FailWish",
    operator.PauseRequest: "PauseWish",
    operator.ResumeRequest: "ResumeWish",
    operator.HealthRequest: "HealthWish",
    operator.CollectRequest: "CollectWish",
    operator.RollRequest: "RollWish",
    operator.AcceptLossRequest: "AcceptLossWish",
}

Info = msgspec.inspect.Type
StructInfo = msgspec.inspect.StructType


def info_of(struct: type[msgspec.Struct]) -> StructInfo:
    """Describe a Struct as msgspec sees it."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, StructInfo)
    return info


def published_name(struct: type[msgspec.Struct]) -> str:
    """Return the name of a Struct in everything that describes the wire."""
    return PUBLISHED_NAMES.get(struct, struct.__name__)


def structs() -> dict[str, StructInfo]:
    """Every Struct that a message is made of, by name, sorted."""
    found: dict[str, StructInfo] = {}
    waiting: list[StructInfo] = [info_of(message) for message in MESSAGES]
    while waiting:
        one = waiting.pop()
        name = published_name(one.cls)
        known = found.setdefault(name, one)
        assert known.cls is one.cls, f"two Structs are called {name}"
        if known is one:
            waiting += [part for field in one.fields for part in parts(field.type)]
    return dict(sorted(found.items()))


def parts(info: Info) -> Iterator[StructInfo]:
    """Find the Structs that a type names, not those inside them."""
    match info:
        case msgspec.inspect.StructType():
            yield info
        case msgspec.inspect.UnionType():
            for one in info.types:
                yield from parts(one)
        case msgspec.inspect.VarTupleType():
            yield from parts(info.item_type)
        case msgspec.inspect.DictType():
            yield from parts(info.value_type)
        case _:
            pass


def default(field: msgspec.inspect.Field) -> tuple[bool, Any]:
    """Return (True, value) where a field that is not required has one; without it the field is absent."""
    if field.default is not msgspec.NODEFAULT:
        return True, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return True, field.default_factory()
    return False, None


def meaning(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the `#:` comments say about the fields of a Struct and of its bases, by Python name."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.startswith("schemas."):
            found.update(_comments(base.__module__).get(base.__name__, {}))
    return found


@functools.cache
def _comments(module: str) -> dict[str, dict[str, str]]:
    source = inspect.getsource(importlib.import_module(module))
    lines = source.splitlines()
    return {
        node.name: {
            field.target.id: said
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if (said := _above(lines, field.lineno - 1))
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def _above(lines: list[str], at: int) -> str:
    """Join the `#:` lines that end just above line `at`."""
    said: list[str] = []
    while at > 0 and lines[at - 1].strip().startswith("#:"):
        at -= 1
        said.insert(0, lines[at].strip().removeprefix("#:").strip())
    return " ".join(said)
