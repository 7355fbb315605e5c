"""The operator verbs on the side of the view: from the body of a request to a command, and to what fulfils it.

One function a verb. It compares the request with the state and decides the command on it, so that a request that
changes nothing, or would be refused, is answered at once. `operator_api.py` sends, resends and answers.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from schemas.base import Command, Event, JobId
from schemas.deployments import (
    DeploymentReleased,
    FailDeployment,
    PauseDeployment,
    PromoteDeployment,
    SetAllocationHealth,
)
from schemas.job_versions import SetStability, TagVersion
from schemas.launches import ForceLaunch
from schemas.operator import (
    AcceptLossRequest,
    CollectRequest,
    ConfirmDeathRequest,
    DrainRequest,
    EligibilityRequest,
    FailRequest,
    FailRolloutRequest,
    ForceLaunchRequest,
    HealthRequest,
    MetaRequest,
    OperatorVerdict,
    PauseRequest,
    PolicyRequest,
    PoolRequest,
    PromoteRequest,
    PromoteRolloutRequest,
    ReleaseClaimRequest,
    ResumeRequest,
    RollRequest,
    StabilityRequest,
    StopRequest,
    TagRequest,
)
from schemas.policy import (
    AcceptLoss,
    CollectGarbage,
    ConfirmDeath,
    DeclarePool,
    DrainNode,
    OperatorRefused,
    RollLog,
    SetEligibility,
    SetNodeMeta,
    SetPolicy,
    StopAllocation,
)
from schemas.rollouts import FailRollout, PromoteRollout
from schemas.volumes import ReleaseClaim
from shared.core.decide.deployments.requests import OperatorDeploymentCommand, decide_deployment
from shared.core.decide.deployments.rollouts import RolloutCommand, decide_rollout
from shared.core.decide.garbage import LogTimeIndex, decide_garbage
from shared.core.decide.jobs.launches import child_name, decide_force
from shared.core.decide.jobs.version_marks import decide_stability, decide_tag
from shared.core.decide.nodes.drains import (
    apply_meta_change,
    decide_alloc_stop,
    decide_drain,
    decide_meta,
)
from shared.core.decide.operator import (
    SPAN_NS_MAX,
    decide_declaration,
    decide_loss,
    decide_policy,
    is_late,
    node_changed_seq,
    pools_changed_seq,
)
from shared.core.decide.plans.claims import decide_release
from shared.core.decide.stateful_turns import decide_death
from shared.core.state.ids import ALLOC_SALT, deployment_id, rollout_id, shown_id
from shared.core.state.state import State
from shared.core.state.tables.fleet import with_operator_meta
from shared.errors import CommandInvalid
from shared.query.lookup import find_alloc, find_deployment, find_node
from shared.query.policy_changes import apply_policy_change
from shared.query.rollouts import find_rollout

EffectPredicate = Callable[[Any], bool]


class VerbContext(msgspec.Struct, frozen=True, eq=False):
    """What a verb is decided against."""

    state: State
    request_id: str
    now_ns: int
    #: what the caller has seen; 0: not said.
    seen_seq: int = 0

    @property
    def made_seq(self) -> int:
        """Seq at which a command is made: what the caller has seen, else what this view has."""
        return self.seen_seq or self.state.seq

    def check_seen(self, changed_seq: int) -> None:
        """Raise CommandInvalid where the caller has not seen the last change of what the request is about."""
        if is_late(self.seen_seq, changed_seq):
            raise CommandInvalid("conflict", late_text(self.seen_seq, changed_seq), "seen_seq")

    def verdict(self, **fields: Any) -> OperatorVerdict:
        """Answer that the request is accepted."""
        return OperatorVerdict(request_id=self.request_id, status="accepted", **fields)


class PreparedVerb(msgspec.Struct, frozen=True, eq=False):
    """A request compared with the state. `fulfils` gets only events of the verb's effect type."""

    verdict: OperatorVerdict
    #: None: the state is as requested already.
    command: Command | None = None
    fulfils: EffectPredicate = lambda _: False
    #: seq of the last change of what the request is about; None: a late copy does no harm.
    changed_seq: Callable[[], int] | None = None
    #: continues, one bounded pass after the other, until nothing is left.
    is_collecting_garbage: bool = False
    #: its effect, where that is another than the verb's.
    effect: type[Event] | None = None


def late_text(seen_seq: int, changed_seq: int) -> str:
    """Say that a request is about what its caller has not seen."""
    return f"it changed at seq {changed_seq}, the request was made at seq {seen_seq}: check, and send it again"


def set_policy(at: VerbContext, body: PolicyRequest) -> PreparedVerb:
    """Change the policy. Raises CommandInvalid."""
    table = at.state.policy
    if body.policy_hash not in ("", table.policy_hash):
        text = f"the policy in force has hash {table.policy_hash}, not {body.policy_hash}"
        raise CommandInvalid("conflict", text, "policy_hash")
    wanted = apply_policy_change(table.policy, body.change)
    command = SetPolicy(request_id=at.request_id, policy=wanted, seen_seq=at.made_seq)
    raise_refusal(decide_policy(at.state, command), "change")
    verdict = at.verdict(policy=wanted)
    if wanted == table.policy:
        return PreparedVerb(verdict)
    at.check_seen(table.modify_seq)
    return PreparedVerb(
        verdict,
        command,
        lambda event: bool(event.policy == wanted),
        changed_seq=lambda: table.modify_seq,
    )


def declare(at: VerbContext, body: PoolRequest) -> PreparedVerb:
    """Declare a pool. Raises CommandInvalid."""
    node_id = at.state.fleet.ids[find_node(at.state, body.node_id)] if body.node_id else ""
    command = DeclarePool(request_id=at.request_id, node_id=node_id, pool=body.pool)
    wanted = raise_refusal(decide_declaration(at.state, command), "pool")
    verdict = at.verdict(node_id=node_id, pool=body.pool)
    if not wanted:
        return PreparedVerb(verdict)
    at.check_seen(pools_changed_seq(at.state, node_id))
    return PreparedVerb(
        verdict,
        msgspec.structs.replace(command, seen_seq=at.made_seq),
        lambda event: bool(event == wanted[0]),
        changed_seq=lambda: pools_changed_seq(at.state, node_id),
    )


def set_eligibility(at: VerbContext, body: EligibilityRequest) -> PreparedVerb:
    """Allow or forbid new allocations on a node. Raises CommandInvalid."""
    fleet = at.state.fleet
    row = find_node(at.state, body.node_id)
    node_id = fleet.ids[row]
    verdict = at.verdict(node_id=node_id)
    if bool(fleet.eligible[row]) == body.eligible:
        return PreparedVerb(verdict)
    at.check_seen(int(fleet.modify_seq[row]))
    command = SetEligibility(
        request_id=at.request_id, node_id=node_id, eligible=body.eligible, seen_seq=at.made_seq
    )

    def fulfils(event: Any) -> bool:
        same: bool = event.eligible == body.eligible
        return same and fleet.row_of.get(node_id) == event.row

    return PreparedVerb(verdict, command, fulfils, lambda: node_changed_seq(at.state, node_id))


def drain(at: VerbContext, body: DrainRequest) -> PreparedVerb:
    """Drain a node, or cancel its drain. Raises CommandInvalid."""
    state = at.state
    node_id = state.fleet.ids[find_node(at.state, body.node_id)]
    if not -1 <= body.deadline_ns <= SPAN_NS_MAX:
        text = f"must be -1, 0 or positive, at most {SPAN_NS_MAX} (100 years)"
        raise CommandInvalid("invalid", text, "deadline_ns")
    at_ns = 0
    if body.draining and body.deadline_ns >= 0:
        # Log time does not run behind; a deadline of now is due with the next record.
        at_ns = max(at.now_ns, state.t_ns) + body.deadline_ns
    command = DrainNode(
        request_id=at.request_id,
        node_id=node_id,
        draining=body.draining,
        deadline_ns=at_ns,
        ignore_system=body.draining and body.ignore_system,
        keep_ineligible=not body.draining and body.keep_ineligible,
        message=body.message if body.draining else "",
    )
    verdict = at.verdict(node_id=node_id, deadline_ns=at_ns)
    row = state.fleet.row_of[node_id]
    before = state.fleet.drains.get(row)
    is_done = (before is not None) == body.draining
    if not (body.draining or body.keep_ineligible):
        # A drain that is complete leaves the node closed: then nothing has ended it.
        ended = state.fleet.drained.get(row)
        is_done &= ended is None or ended.closed
    if is_done and is_late(at.seen_seq, node_changed_seq(state, node_id)):
        # A copy of a request that took effect: its deadline was counted from its own time.
        return PreparedVerb(at.verdict(node_id=node_id, deadline_ns=before or 0))
    if not raise_refusal(decide_drain(state, command)):
        return PreparedVerb(verdict)
    at.check_seen(node_changed_seq(state, node_id))

    def fulfils(event: Any) -> bool:
        same: bool = event.draining == body.draining and event.deadline_ns == at_ns
        return same and state.fleet.row_of.get(node_id) == event.row

    command = msgspec.structs.replace(command, seen_seq=at.made_seq)
    return PreparedVerb(verdict, command, fulfils, lambda: node_changed_seq(state, node_id))


def set_meta(at: VerbContext, body: MetaRequest) -> PreparedVerb:
    """Set metadata of a node. Raises CommandInvalid."""
    fleet = at.state.fleet
    spec = fleet.specs[find_node(at.state, body.node_id)]
    node_id = spec.node_id
    wanted = apply_meta_change(fleet.operator_meta.get(node_id, {}), body.change, spec.meta)
    verdict = at.verdict(
        node_id=node_id, meta=with_operator_meta(spec, wanted).meta, operator_meta=wanted
    )
    command = SetNodeMeta(request_id=at.request_id, node_id=node_id, change=body.change)
    if not raise_refusal(decide_meta(at.state, command)):
        return PreparedVerb(verdict)
    at.check_seen(node_changed_seq(at.state, node_id))
    command = msgspec.structs.replace(command, seen_seq=at.made_seq)

    def fulfils(event: Any) -> bool:
        same = event.node_id == node_id
        return same and all(event.meta.get(key) == value for key, value in body.change.items())

    return PreparedVerb(verdict, command, fulfils, lambda: node_changed_seq(at.state, node_id))


def confirm_dead(at: VerbContext, body: ConfirmDeathRequest) -> PreparedVerb:
    """Confirm that nothing runs on a node any more. Raises CommandInvalid."""
    fleet = at.state.fleet
    node_id = fleet.ids[find_node(at.state, body.node_id)]
    verdict = at.verdict(node_id=node_id)
    command = ConfirmDeath(request_id=at.request_id, node_id=node_id)
    if not raise_refusal(decide_death(at.state, command), "node_id"):
        return PreparedVerb(verdict)
    at.check_seen(node_changed_seq(at.state, node_id))
    command = msgspec.structs.replace(command, seen_seq=at.made_seq)

    def fulfils(event: Any) -> bool:
        return bool(fleet.row_of.get(node_id) == event.row)

    return PreparedVerb(verdict, command, fulfils, lambda: node_changed_seq(at.state, node_id))


def stop(at: VerbContext, body: StopRequest) -> PreparedVerb:
    """Stop an allocation. Raises CommandInvalid."""
    keys = at.state.allocations.key
    key = int(keys[find_alloc(at.state, body.alloc_id)])
    verdict = at.verdict(alloc_id=shown_id(key, ALLOC_SALT))
    command = StopAllocation(request_id=at.request_id, alloc_key=key)
    if not raise_refusal(decide_alloc_stop(at.state, command)):
        return PreparedVerb(verdict)

    def fulfils(event: Any) -> bool:
        return any(int(at.state.allocations.key[row]) == key for row in event.rows)

    return PreparedVerb(verdict, command, fulfils)


def force_launch(at: VerbContext, body: ForceLaunchRequest) -> PreparedVerb:
    """Launch a child of a periodic job. Raises CommandInvalid."""
    # Log time does not run behind; the second names the child.
    at_ns = max(at.now_ns, at.state.t_ns)
    job_id = JobId(body.job_id)
    child_id = child_name(job_id, at_ns)
    command = ForceLaunch(request_id=at.request_id, job_id=job_id, at_ns=at_ns)
    verdict = at.verdict(child_id=child_id)
    if not raise_refusal(decide_force(at.state, command), "job_id"):
        return PreparedVerb(verdict)
    return PreparedVerb(verdict, command, lambda event: bool(event.child_id == child_id))


def tag(at: VerbContext, body: TagRequest) -> PreparedVerb:
    """Name a version of a job. Raises CommandInvalid."""
    job_id = JobId(body.job_id)
    command = TagVersion(
        request_id=at.request_id,
        job_id=job_id,
        version=body.version,
        name=body.name,
        description=body.description,
        unset=body.unset,
    )
    events = raise_refusal(decide_tag(at.state, command), "name")
    if not events:
        return PreparedVerb(at.verdict())
    wanted: Any = events[0]
    # A newer version may be registered before the command is decided: the name is for this one.
    command = msgspec.structs.replace(command, version=wanted.version)

    def fulfils(event: Any) -> bool:
        same: bool = event.job_id == job_id and event.version == wanted.version
        return same and (event.name, event.description) == (wanted.name, wanted.description)

    return PreparedVerb(at.verdict(), command, fulfils)


def set_stability(at: VerbContext, body: StabilityRequest) -> PreparedVerb:
    """Say whether a version is stable. Raises CommandInvalid."""
    job_id = JobId(body.job_id)
    command = SetStability(
        request_id=at.request_id, job_id=job_id, version=body.version, stable=body.stable
    )
    if not raise_refusal(decide_stability(at.state, command), "version"):
        return PreparedVerb(at.verdict())

    def fulfils(event: Any) -> bool:
        same: bool = event.job_id == job_id and event.version == body.version
        return same and event.stable == body.stable

    return PreparedVerb(at.verdict(), command, fulfils)


def promote(at: VerbContext, body: PromoteRequest) -> PreparedVerb:
    """Promote the canaries of groups. Raises CommandInvalid."""
    key = find_deployment(at.state, body.deployment_id).key
    command = PromoteDeployment(request_id=at.request_id, deployment_key=key, groups=body.groups)
    return _on_deployment(at, command, lambda event: set(body.groups) <= set(event.groups))


def fail(at: VerbContext, body: FailRequest) -> PreparedVerb:
    """End a deployment as failed. Raises CommandInvalid."""
    key = find_deployment(at.state, body.deployment_id).key
    command = FailDeployment(request_id=at.request_id, deployment_key=key)
    return _on_deployment(at, command, lambda event: bool(event.status == "failed"))


def pause(at: VerbContext, body: PauseRequest) -> PreparedVerb:
    """Pause a deployment. Raises CommandInvalid."""
    key = find_deployment(at.state, body.deployment_id).key
    command = PauseDeployment(request_id=at.request_id, deployment_key=key, pause=True)
    return _on_deployment(at, command, lambda _: True)


def resume(at: VerbContext, body: ResumeRequest) -> PreparedVerb:
    """Resume a paused deployment, or one that its gates hold. Raises CommandInvalid."""
    one = find_deployment(at.state, body.deployment_id)
    command = PauseDeployment(
        request_id=at.request_id,
        deployment_key=one.key,
        pause=False,
        ignore_gate=body.ignore_gate,
    )
    prepared = _on_deployment(at, command, lambda _: True)
    if not body.ignore_gate or one.ignores_gates:
        return prepared
    return msgspec.structs.replace(prepared, effect=DeploymentReleased)


def set_health(at: VerbContext, body: HealthRequest) -> PreparedVerb:
    """Say which allocations are healthy. Raises CommandInvalid."""
    keys = at.state.allocations.key
    healthy, unhealthy = (
        tuple(int(keys[find_alloc(at.state, text)]) for text in texts)
        for texts in (body.healthy, body.unhealthy)
    )
    if not healthy and not unhealthy:
        raise CommandInvalid("invalid", "name an allocation", "healthy")
    if not set(healthy).isdisjoint(unhealthy):
        text = "an allocation is healthy or unhealthy, not both"
        raise CommandInvalid("invalid", text, "unhealthy")
    one = find_deployment(at.state, body.deployment_id)
    command = SetAllocationHealth(
        request_id=at.request_id, deployment_key=one.key, healthy=healthy, unhealthy=unhealthy
    )
    wanted = set(healthy) | set(unhealthy)
    prepared = _prepared(at, command)

    def fulfils(event: Any) -> bool:
        same: bool = event.source == "operator"
        return same and not wanted.isdisjoint(int(keys[row]) for row in event.rows)

    return (
        prepared if prepared.command is None else msgspec.structs.replace(prepared, fulfils=fulfils)
    )


def _on_deployment(
    at: VerbContext,
    command: PromoteDeployment | FailDeployment | PauseDeployment,
    fulfils: EffectPredicate,
) -> PreparedVerb:
    """Prepare a command whose effect names the deployment. Raises CommandInvalid."""
    prepared = _prepared(at, command)
    if prepared.command is None:
        return prepared
    key = command.deployment_key
    return msgspec.structs.replace(
        prepared, fulfils=lambda event: bool(event.key == key) and fulfils(event)
    )


def _prepared(at: VerbContext, command: OperatorDeploymentCommand) -> PreparedVerb:
    """Decide a command on the state as it is: refused, without effect, or to be sent. Raises CommandInvalid."""
    verdict = at.verdict(deployment_id=deployment_id(command.deployment_key))
    now_ns = max(at.now_ns, at.state.t_ns)
    is_new = bool(raise_refusal(decide_deployment(at.state, command, now_ns)))
    return PreparedVerb(verdict, command if is_new else None)


def promote_rollout(at: VerbContext, body: PromoteRolloutRequest) -> PreparedVerb:
    """Promote the canaries of all members of a rollout. Raises CommandInvalid."""
    one = find_rollout(at.state, body.rollout_id)
    keys = {member.deployment for member in one.members}
    command = PromoteRollout(request_id=at.request_id, rollout_key=one.key)
    return _on_rollout(at, command, lambda event: event.key in keys)


def fail_rollout(at: VerbContext, body: FailRolloutRequest) -> PreparedVerb:
    """Declare a rollout failed. Raises CommandInvalid."""
    key = find_rollout(at.state, body.rollout_id).key
    command = FailRollout(request_id=at.request_id, rollout_key=key)
    return _on_rollout(
        at, command, lambda event: bool(event.key == key) and event.status == "failed"
    )


def _on_rollout(at: VerbContext, command: RolloutCommand, fulfils: EffectPredicate) -> PreparedVerb:
    """Decide a command about a rollout on the state as it is. Raises CommandInvalid."""
    verdict = at.verdict(rollout_id=rollout_id(command.rollout_key))
    now_ns = max(at.now_ns, at.state.t_ns)
    is_new = bool(raise_refusal(decide_rollout(at.state, command, now_ns)))
    return PreparedVerb(verdict, command if is_new else None, fulfils)


def release_claim(at: VerbContext, body: ReleaseClaimRequest) -> PreparedVerb:
    """Release the claims of an index. Raises CommandInvalid."""
    key = (JobId(body.job_id), body.group, body.index)
    command = ReleaseClaim(request_id=at.request_id, job_id=key[0], group=key[1], index=key[2])
    if not raise_refusal(decide_release(at.state, command), "index"):
        return PreparedVerb(at.verdict())
    return PreparedVerb(
        at.verdict(),
        command,
        lambda event: bool((event.job_id, event.group, event.index) == key),
    )


def roll(at: VerbContext, body: RollRequest) -> PreparedVerb:
    """End a generation of the log. Raises CommandInvalid."""
    now = at.state.policy.generation
    wanted = body.generation or now
    if not 1 <= wanted <= now:
        raise CommandInvalid("invalid", f"the log is in generation {now}", "generation")
    if wanted < now:
        return PreparedVerb(at.verdict(generation=now))
    command = RollLog(request_id=at.request_id, generation=wanted)
    return PreparedVerb(
        at.verdict(generation=now + 1), command, lambda event: bool(event.generation > wanted)
    )


def accept_loss(at: VerbContext, body: AcceptLossRequest) -> PreparedVerb:
    """Record an accepted loss. Raises CommandInvalid."""
    command = AcceptLoss(
        request_id=at.request_id, first_seq=body.first_seq, reason=body.reason or "no reason given"
    )
    wanted = raise_refusal(decide_loss(at.state, command), "first_seq")
    return PreparedVerb(at.verdict(), command, lambda event: bool(event == wanted[0]))


def collect_garbage(at: VerbContext, _body: CollectRequest) -> PreparedVerb:
    """Collect everything that has ended."""
    if is_garbage_free(at.state):
        return PreparedVerb(at.verdict())
    command = CollectGarbage(request_id=at.request_id)
    return PreparedVerb(at.verdict(), command, is_collecting_garbage=True)


#: by the name of the row in shared/protocol/operator_verbs.py.
PREPARE: dict[str, Callable[[VerbContext, Any], PreparedVerb]] = {
    "operator.set_policy": set_policy,
    "operator.declare": declare,
    "node.set_eligibility": set_eligibility,
    "node.drain": drain,
    "node.set_meta": set_meta,
    "node.confirm_dead": confirm_dead,
    "alloc.stop": stop,
    "job.force_launch": force_launch,
    "job.tag": tag,
    "job.set_stability": set_stability,
    "deployment.promote": promote,
    "deployment.fail": fail,
    "deployment.pause": pause,
    "deployment.resume": resume,
    "deployment.set_health": set_health,
    "rollout.promote": promote_rollout,
    "rollout.fail": fail_rollout,
    "volume.release_claim": release_claim,
    "system.gc": collect_garbage,
    "system.roll": roll,
    "system.accept_loss": accept_loss,
}


def is_garbage_free(state: State) -> bool:
    """Whether nothing could be collected. One vector pass."""
    return not decide_garbage(state, LogTimeIndex(), state.t_ns, everything=True)


def raise_refusal(events: list[Event], path: str = "") -> list[Event]:
    """Return the events of a command. Raises CommandInvalid with the refusal among them."""
    for event in events:
        if isinstance(event, OperatorRefused):
            raise CommandInvalid(event.code, event.reason, path)
    return events
