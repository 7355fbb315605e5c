"""Answers of `query.<noun>`: what `view` says and status commands print. Every one carries `seq`, and all its fields.

An error is an `ErrorAnswer`, recognized by its `error` key. Lists are cut at the query's `limit`; `total` tells how
many there were.
"""

import msgspec

from schemas.base import DOUBLE_MAX, ExactWire, Wire
from schemas.bus_answers import BusStatus
from schemas.jobs import ErrorDetail, Verdict
from schemas.policy import Policy
from schemas.projections import (
    AllocSummary,
    DeploymentLine,
    DeploymentWait,
    ServiceInstance,
    ServiceLine,
)


class QueryAnswer(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all answers: `seq` is the state's, in the log of `cluster_id`."""

    seq: int
    cluster_id: str = ""


class ErrorAnswer(Wire, frozen=True, kw_only=True):
    """Why there is no answer. `code`: invalid, not_found, ambiguous or unavailable."""

    error: ErrorDetail
    seq: int = 0


class DeploymentsAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.deployments`, newest first."""

    deployments: tuple[DeploymentLine, ...] = ()
    total: int = 0


class DeploymentAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.deployment`: a deployment, its allocations, and why it does not continue at once."""

    deployment: DeploymentLine
    waits: tuple[DeploymentWait, ...] = ()
    allocations: tuple[AllocSummary, ...] = ()
    allocations_total: int = 0


class ServicesAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.services`, by name."""

    services: tuple[ServiceLine, ...] = ()
    total: int = 0


class ServiceAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.service`: where the instances of a service are, by job, group and index."""

    name: str
    instances: tuple[ServiceInstance, ...] = ()
    total: int = 0


class PolicyAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.policy`: how the cluster schedules and forgets."""

    policy: Policy
    policy_hash: str = ""
    modify_index: int = 0
    #: numbers of the policy beyond 2^53 as text, by name.
    policy_text: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Fill `policy_text`: the policy itself is in the log, where numbers have no text beside them."""
        held = {name: getattr(self.policy, name) for name in Policy.__struct_fields__}
        large = {k: str(v) for k, v in held.items() if type(v) is int and abs(v) > DOUBLE_MAX}
        msgspec.structs.force_setattr(self, "policy_text", large)


class Counts(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """How much a state holds; allocations by client status."""

    jobs: int = 0
    nodes: int = 0
    allocations: dict[str, int] = {}
    evaluations: int = 0


class ClusterAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.cluster`; `tables` (table -> hash) only where the query's id is `hashes`. `t_ns`: log time."""

    t_ns: int = 0
    counts: Counts = Counts()
    epoch: int = 0
    holder: str = ""
    fsync: bool = False
    replicas: int = 1
    foreign: int = 0
    policy: str = ""
    tables: dict[str, str] = {}
    #: what an operator should know now, a sentence each: the log is nearly full, cannot be written, is damaged,
    #: or was rolled back under nodes that had seen more.
    alarms: tuple[str, ...] = ()
    #: release of the view that answers.
    release: str = ""
    #: the servers of the bus now; without servers in an answer about a past moment.
    bus: BusStatus = BusStatus()
    #: `t_ns` as text where it exceeds 2^53; else empty.
    t_ns_text: str = ""


class SubmissionAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.submission`."""

    verdict: Verdict


class DeadLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """One message that could not be read. `id`: its place in DEAD; `at`: when it was put there, ns since 1970."""

    id: str
    subject: str = ""
    reason: str = ""
    at: int = 0
    size: int = 0
    #: `at` as text where it exceeds 2^53; else empty.
    at_text: str = ""


class DeadAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.dead`, newest first."""

    messages: tuple[DeadLine, ...] = ()
    total: int = 0


ENCODER = msgspec.json.Encoder(order="deterministic")
