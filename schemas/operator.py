"""Bodies of the operator verbs `api.operator|node|alloc|system.<verb>`, as a tool in any language writes them.

Decides nothing: `view` reads them and asks the plan applier until the log shows the effect or the refusal. Asking
again is harmless: each verb says what shall be, not what to add to it.
"""

import msgspec

from schemas.base import Wire
from schemas.jobs import ErrorDetail
from schemas.nodes import Pool
from schemas.policy import Policy

#: A field of the policy, or a whole part of it; null takes an entry of a map out.
PolicyValue = str | int | bool | dict[str, str | int | bool | dict[str, str | int | bool]] | None


class PolicyWish(Wire, frozen=True, kw_only=True):
    """`api.operator.set_policy`: change some fields of the policy, the others stay."""

    #: name and value of each field of Policy that shall change; of what is in a field, `preemption.batch`.
    change: dict[str, PolicyValue]
    #: names the wish in a refusal; empty: made up.
    request_id: str = ""
    #: check and set: refuse unless the policy in force has this hash.
    policy_hash: str = ""


class EligibilityWish(Wire, frozen=True, kw_only=True):
    """`api.node.set_eligibility`: allow or forbid new allocations on a node."""

    #: the node's id, the one beginning of it that fits, or its name.
    node_id: str
    eligible: bool
    request_id: str = ""


class DrainWish(Wire, frozen=True, kw_only=True):
    """`api.node.drain`: empty a node, or stop doing so."""

    #: the node's id, the one beginning of it that fits, or its name.
    node_id: str
    draining: bool
    #: so long what runs there may go on; then it is stopped, and replaced elsewhere. 0: at once; -1: for ever.
    deadline_ns: int = 3_600_000_000_000
    request_id: str = ""


class MetaWish(Wire, frozen=True, kw_only=True):
    """`api.node.set_meta`: say something about a node, beside what its agent says."""

    node_id: str
    #: null takes a key out, the agent's own too; without any, nothing changes and what there is is told.
    change: dict[str, str | None] = {}
    request_id: str = ""


class StopWish(Wire, frozen=True, kw_only=True):
    """`api.alloc.stop`: end an allocation where it is; its job replaces it as it wants."""

    #: the allocation's id, the one beginning of it that fits, or its name.
    alloc_id: str
    request_id: str = ""


class PoolWish(Wire, frozen=True, kw_only=True):
    """`api.operator.declare`: what a node, or the cluster as a whole, offers under a name. Nothing in it: no more."""

    #: the node's id, the one beginning of it that fits, or its name; empty: of the cluster as a whole.
    node_id: str = ""
    #: `amount` in 1/10,000.
    pool: Pool
    request_id: str = ""


class CollectWish(Wire, frozen=True, kw_only=True):
    """`api.system.gc`: forget now everything that ended, whatever its age."""

    request_id: str = ""


class RollWish(Wire, frozen=True, kw_only=True):
    """`api.system.roll`: let a generation of the log end, so that the log goes on in another stream."""

    #: the generation that shall be over; 0: the newest.
    generation: int = 0
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
    #: node.drain: log time from which what runs there is stopped; 0: never.
    deadline_ns: int = 0
    #: node.set_meta: what constraints see of the node now, and what of it an operator said.
    meta: dict[str, str] = msgspec.field(default_factory=dict)
    operator_meta: dict[str, str | None] = msgspec.field(default_factory=dict)
    #: operator.declare: what is declared now.
    pool: Pool | None = None
    #: operator.set_policy: the policy now in force.
    policy: Policy | None = None
    #: system.roll: the generation that goes on.
    generation: int = 0
    error: ErrorDetail | None = None
