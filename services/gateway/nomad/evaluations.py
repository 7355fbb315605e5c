"""Evaluations in Nomad's shape, with what a blocked one lacks."""

from schemas.base import EvalKey
from services.gateway.nomad.source import Object, ShapeSource
from services.gateway.nomad.times import rfc3339
from shared.core.state.ids import deployment_id, eval_id
from shared.core.state.tables.evaluations import Evaluation
from shared.query.job_wait import BLOCKED, evaluation_wait

#: Ours -> Nomad's, where they differ.
_TRIGGERS = {"plan-goes-on": "max-plan-attempts"}


def nomad_eval(source: ShapeSource, one: Evaluation, *, with_related: bool = False) -> Object:
    """One evaluation. `with_related`: stubs of the others of its job."""
    state, by_key = source.state, source.state.evaluations.by_key
    job = state.jobs.by_id.get(one.job_id)
    create_seq = state.policy.incarnations.seq(one.key)
    wait = evaluation_wait(state, one, source.histories.shapes)
    waiting = wait.groups
    deployment = state.deployments.latest_of(one.job_id)
    has_deployment = deployment is not None and deployment.create_seq <= one.modify_seq
    found: Object = {
        "ID": eval_id(one.key),
        "Namespace": "default",
        "Priority": one.priority,
        "Type": one.job_type,
        "TriggeredBy": _TRIGGERS.get(one.triggered_by, one.triggered_by),
        "JobID": str(one.job_id),
        "JobModifyIndex": job.modify_seq if job is not None else 0,
        "NodeID": "",
        "NodeModifyIndex": 0,
        "DeploymentID": _deployment_text(source, one) if has_deployment else "",
        "Status": one.status,
        "StatusDescription": one.reason,
        "Wait": 0,
        "WaitUntil": rfc3339(one.wait_until_ns),
        "NextEval": _next_eval(source, one),
        "PreviousEval": eval_id(one.previous) if one.previous else "",
        "BlockedEval": _blocked_eval(source, one),
        "RelatedEvals": None,
        "FailedTGAllocs": {
            name: metric(why.n, why.reasons, job.node_pool if job is not None else "default")
            for name, why in sorted(waiting.items())
            # What is parked was not decided: it has not failed.
            if wait.kind == BLOCKED
        }
        or None,
        "ClassEligibility": None,
        "QuotaLimitReached": "",
        "EscapedComputedClass": False,
        "AnnotatePlan": False,
        "QueuedAllocations": {name: why.n for name, why in sorted(waiting.items())},
        "SnapshotIndex": one.modify_seq if one.status in ("complete", "blocked") else 0,
        "CreateIndex": create_seq,
        "ModifyIndex": one.modify_seq,
        "CreateTime": source.time_of(create_seq),
        "ModifyTime": source.time_of(one.modify_seq),
    }
    if one.status == "complete" and (key := state.evaluations.blocked_of.get(one.job_id)):
        # A monitor reads from the evaluation that placed a part what the rest lacks.
        rest = by_key[key]
        if rest.previous == one.key and rest.blocked is not None:
            found["FailedTGAllocs"] = nomad_eval(source, rest)["FailedTGAllocs"]
            found["QueuedAllocations"] = nomad_eval(source, rest)["QueuedAllocations"]
    if with_related:
        others = [by_key[key] for key in source.histories.of_job(one.job_id) if key != one.key]
        found["RelatedEvals"] = [eval_stub(source, other) for other in others]
    return found


def eval_stub(source: ShapeSource, one: Evaluation) -> Object:
    """An evaluation as others name it."""
    whole = nomad_eval(source, one)
    names = (
        "ID",
        "Priority",
        "Type",
        "TriggeredBy",
        "Namespace",
        "JobID",
        "NodeID",
        "DeploymentID",
    )
    more = ("Status", "StatusDescription", "WaitUntil", "NextEval", "PreviousEval", "BlockedEval")
    times = ("CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime")
    return {name: whole[name] for name in (*names, *more, *times)}


def metric(count: int, reasons: tuple[str, ...], node_pool: str) -> Object:
    """Why so many allocations of a group have no node; `reasons` are our sentences. 0: of one that was placed."""
    return {
        "NodesEvaluated": 0,
        "NodesFiltered": 0,
        "NodesInPool": 0,
        "NodePool": node_pool,
        "NodesAvailable": None,
        "ClassFiltered": None,
        "ConstraintFiltered": dict.fromkeys(reasons, 1) or None,
        "NodesExhausted": 0,
        "ClassExhausted": None,
        "DimensionExhausted": None,
        "QuotaExhausted": None,
        "ResourcesExhausted": None,
        "Scores": None,
        "ScoreMetaData": None,
        "AllocationTime": 0,
        "CoalescedFailures": max(count - 1, 0),
    }


def _deployment_text(source: ShapeSource, one: Evaluation) -> str:

    found = source.state.deployments.latest_of(one.job_id)
    return deployment_id(found.key) if found is not None else ""


def _blocked_eval(source: ShapeSource, one: Evaluation) -> str:
    """The blocked evaluation that one left behind; empty: none."""
    key = source.state.evaluations.blocked_of.get(one.job_id)
    if key is None or source.state.evaluations.by_key[key].previous != one.key:
        return ""
    return eval_id(key)


def _next_eval(source: ShapeSource, one: Evaluation) -> str:
    """The evaluation that continues where one ended; empty: none. A blocked one is named apart."""
    by_key = source.state.evaluations.by_key
    for key in source.histories.of_job(one.job_id):
        if by_key[EvalKey(key)].previous == one.key and by_key[key].status != "blocked":
            return eval_id(key)
    return ""
