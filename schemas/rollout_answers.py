"""Answers of `query.rollouts` and `query.rollout`."""

from schemas.answers import QueryAnswer
from schemas.base import ExactWire
from schemas.projections import DeploymentLine, DeploymentWait


class RolloutMemberLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """One job of a rollout."""

    job: str
    version: int
    #: the version to which it goes back; -1: the job is new.
    before: int = -1
    #: waiting, running, successful, failed, cancelled, unchanged; after a failure rolled_back or stopped.
    status: str = "running"
    #: shown id of its deployment; empty: it has none.
    deployment_id: str = ""
    #: why it waits; empty: it does not.
    reason: str = ""
    #: null: it has none, or the state forgot it.
    deployment: DeploymentLine | None = None
    #: what each group of it waits for.
    waits: tuple[DeploymentWait, ...] = ()


class RolloutLine(ExactWire, frozen=True, kw_only=True, omit_defaults=False):
    """A rollout in one line: new versions of several jobs that are brought up together."""

    id: str
    key: int
    key_text: str = ""
    name: str
    #: together or in_order.
    order: str = "together"
    #: running, successful, failed or cancelled.
    status: str = "running"
    #: in words.
    description: str = ""
    #: of an ended one: healthy, unhealthy, deadline, gate, operator, newer_version or stopped.
    cause: str = ""
    #: in the order of the submission.
    jobs: tuple[str, ...] = ()
    #: members that are done.
    done: int = 0
    create_seq: int = 0
    modify_seq: int = 0


class RolloutsAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.rollouts`, newest first."""

    rollouts: tuple[RolloutLine, ...] = ()
    total: int = 0


class RolloutAnswer(QueryAnswer, frozen=True, kw_only=True):
    """`query.rollout`: a rollout, its members, and why each does not continue at once."""

    rollout: RolloutLine
    members: tuple[RolloutMemberLine, ...] = ()
