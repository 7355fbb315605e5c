"""Bodies of the operator verbs (`api.node.drain`, `api.deployment.promote`, …), as a tool in any language writes them.

`view` reads them and asks the plan applier until the log shows the effect or the refusal. Asking
again is harmless: each verb names the final state, not a change to it.
"""

import msgspec

from schemas.base import Wire
from schemas.host_volumes import VolumeSpec
from schemas.jobs import ErrorDetail
from schemas.nodes import Pool
from schemas.policy import Policy

#: A field of the policy, or a whole part of it; null takes an entry of a map out.
PolicyValue = str | int | bool | dict[str, str | int | bool | dict[str, str | int | bool]] | None


class PolicyRequest(Wire, frozen=True, kw_only=True):
    """`api.operator.set_policy`: change some fields of the policy, the others stay."""

    #: name and value of each field of Policy to change; of what is in a field, `preemption.batch`.
    change: dict[str, PolicyValue]
    #: names the wish in a refusal; empty: made up.
    request_id: str = ""
    #: check and set: refuse unless the policy in force has this hash.
    policy_hash: str = ""
    #: `seq` of an answer that the caller has seen: refused if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class EligibilityRequest(Wire, frozen=True, kw_only=True):
    """`api.node.set_eligibility`: allow or forbid new allocations on a node."""

    #: the node's id, the one beginning of it that fits, or its name.
    node_id: str
    eligible: bool
    request_id: str = ""
    #: `seq` of an answer that the caller has seen: refused if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class DrainRequest(Wire, frozen=True, kw_only=True):
    """`api.node.drain`: empty a node, or stop doing so."""

    #: the node's id, the one beginning of it that fits, or its name.
    node_id: str
    draining: bool
    #: so long what runs there may continue; then it is stopped, and replaced elsewhere. 0: at once; -1: forever.
    deadline_ns: int = 3_600_000_000_000
    #: allocations of system jobs stay.
    ignore_system: bool = False
    #: of an end: the node takes nothing new.
    keep_ineligible: bool = False
    #: shown with the drain, at most 500 characters.
    message: str = ""
    request_id: str = ""
    #: `seq` of an answer that the caller has seen: refused if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class MetaRequest(Wire, frozen=True, kw_only=True):
    """`api.node.set_meta`: say something about a node, beside what its agent says."""

    node_id: str
    #: null removes a key, also one of the agent's; empty: only return the metadata.
    change: dict[str, str | None] = {}
    request_id: str = ""
    #: `seq` of an answer that the caller has seen: refused if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class ConfirmDeathRequest(Wire, frozen=True, kw_only=True):
    """`api.node.confirm_dead`: nothing runs any more on a node that is out of reach: it has no power, or is erased."""

    node_id: str
    request_id: str = ""
    #: `seq` of an answer that the caller has seen: refused if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class StopRequest(Wire, frozen=True, kw_only=True):
    """`api.alloc.stop`: end an allocation where it is; its job replaces it as it wants."""

    #: the allocation's id, the one beginning of it that fits, or its name.
    alloc_id: str
    request_id: str = ""


class PoolRequest(Wire, frozen=True, kw_only=True):
    """`api.operator.declare`: what a node, or the cluster as a whole, offers under a name. Nothing in it: no more."""

    #: the node's id, the one beginning of it that fits, or its name; empty: of the cluster as a whole.
    node_id: str = ""
    #: `amount` in 1/10,000.
    pool: Pool
    request_id: str = ""
    #: `seq` of an answer that the caller has seen: refused if what it is about changed since; 0: not compared.
    seen_seq: int = 0


class PromoteRequest(Wire, frozen=True, kw_only=True):
    """`api.deployment.promote`: the canaries are good, replace the old allocations."""

    #: the deployment's id, or the one beginning of it that fits.
    deployment_id: str
    #: names of groups; empty: all that have canaries.
    groups: tuple[str, ...] = ()
    request_id: str = ""


class FailRequest(Wire, frozen=True, kw_only=True):
    """`api.deployment.fail`: end a deployment as failed; groups with auto_revert go back to the stable version."""

    deployment_id: str
    request_id: str = ""


class PauseRequest(Wire, frozen=True, kw_only=True):
    """`api.deployment.pause`: replace nothing more, and stop the progress deadline."""

    deployment_id: str
    request_id: str = ""


class ResumeRequest(Wire, frozen=True, kw_only=True):
    """`api.deployment.resume`: continue with a deployment that is paused, or that its gates hold."""

    deployment_id: str
    #: its gates and windows count no more for this deployment.
    ignore_gate: bool = False
    request_id: str = ""


class HealthRequest(Wire, frozen=True, kw_only=True):
    """`api.deployment.set_health`: set the health of allocations of a deployment."""

    deployment_id: str
    #: allocations by id, the one beginning of it that fits, or name.
    healthy: tuple[str, ...] = ()
    unhealthy: tuple[str, ...] = ()
    request_id: str = ""


class FailRolloutRequest(Wire, frozen=True, kw_only=True):
    """`api.rollout.fail`: end a rollout as failed; every job of it goes back to its version before."""

    #: the rollout's id, the one beginning of it that fits, or its name.
    rollout_id: str
    request_id: str = ""


class PromoteRolloutRequest(Wire, frozen=True, kw_only=True):
    """`api.rollout.promote`: the canaries of all jobs of a rollout are good, replace the old allocations."""

    rollout_id: str
    request_id: str = ""


class CollectRequest(Wire, frozen=True, kw_only=True):
    """`api.system.gc`: collect everything that has ended now, regardless of its age."""

    request_id: str = ""


class RollRequest(Wire, frozen=True, kw_only=True):
    """`api.system.roll`: let a generation of the log end, so that the log continues in another stream."""

    #: the generation to end; 0: the newest.
    generation: int = 0
    request_id: str = ""


class AcceptLossRequest(Wire, frozen=True, kw_only=True):
    """`api.system.accept_loss`: record that the beginning of the log is lost, and that this was accepted."""

    #: the first record that is left; the oldest stream must begin there.
    first_seq: int
    #: why, in the operator's words; at most 600 characters are kept.
    reason: str = ""
    request_id: str = ""


class ForceLaunchRequest(Wire, frozen=True, kw_only=True):
    """`api.job.force_launch`: launch a child of a periodic job now, beside its planned launches."""

    #: the job's whole id.
    job_id: str
    request_id: str = ""


class TagRequest(Wire, frozen=True, kw_only=True):
    """`api.job.tag`: name a version of a job, which is kept while it has a name."""

    #: the exact id.
    job_id: str
    #: 1 to 128 characters; a name that another version of the job has is refused.
    name: str
    #: at most 1,000 characters.
    description: str = ""
    #: -1: the newest; of an `unset`: that with the name.
    version: int = -1
    #: take the name away.
    unset: bool = False
    request_id: str = ""


class StabilityRequest(Wire, frozen=True, kw_only=True):
    """`api.job.set_stability`: say whether a version is one that a failed deployment goes back to."""

    #: the exact id.
    job_id: str
    version: int
    stable: bool
    request_id: str = ""


class ReleaseClaimRequest(Wire, frozen=True, kw_only=True):
    """`api.volume.release_claim`: the next allocation of an index claims its volumes anew, wherever they are."""

    #: the exact id.
    job_id: str
    group: str
    index: int
    request_id: str = ""


class CreateVolumeRequest(Wire, frozen=True, kw_only=True):
    """`api.volume.create`: make a host volume on a node that can have it. Its id is drawn by the caller."""

    spec: VolumeSpec
    #: id, unique prefix or name; empty: the cluster chooses a node.
    node_id: str = ""
    request_id: str = ""


class DeleteVolumeRequest(Wire, frozen=True, kw_only=True):
    """`api.volume.delete`: delete a host volume that nothing uses, with what is in it."""

    #: the exact id.
    volume_id: str
    #: forget it where its node is down or gone; what is there stays.
    force: bool = False
    request_id: str = ""


class OperatorVerdict(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The answer to an operator verb. `status`: accepted, refused or pending (not in the log yet: ask again)."""

    request_id: str
    status: str
    cluster_id: str = ""
    seq: int = 0
    #: false: it was so already.
    changed: bool = False
    #: system.gc: how many of each kind left the state.
    collected: dict[str, int] = msgspec.field(default_factory=dict)
    #: node.*, operator.declare: which node was meant.
    node_id: str = ""
    #: alloc.stop: which allocation was meant.
    alloc_id: str = ""
    #: deployment.*: which deployment was meant.
    deployment_id: str = ""
    #: shown id of the rollout.
    rollout_id: str = ""
    #: node.drain: log time from which what runs there is stopped; 0: never.
    deadline_ns: int = 0
    #: node.set_meta: what constraints see of the node now, and what of it an operator said.
    meta: dict[str, str] = msgspec.field(default_factory=dict)
    operator_meta: dict[str, str | None] = msgspec.field(default_factory=dict)
    #: operator.declare: what is declared now.
    pool: Pool | None = None
    #: operator.set_policy: the policy now in force.
    policy: Policy | None = None
    #: job.force_launch: id of the child.
    child_id: str = ""
    #: system.roll: the generation that continues.
    generation: int = 0
    error: ErrorDetail | None = None
