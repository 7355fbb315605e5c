"""Routing: which function decides which command."""

from schemas.base import Event
from schemas.deployments import (
    DeploymentDue,
    FailDeployment,
    PauseDeployment,
    PromoteDeployment,
    SetAllocationHealth,
)
from schemas.envelope import AnyCommand
from schemas.evaluations import EndEvaluations, WakeEvaluations
from schemas.gates import GateDue
from schemas.job_versions import (
    RevertJob,
    ScaleJob,
    SetStability,
    StartJob,
    TagVersion,
)
from schemas.jobs import EvaluateJob, RegisterJob, SkipSubmission, StopJob
from schemas.launches import DispatchJob, ForceLaunch, LaunchDue
from schemas.nodes import ChangeLiveness, ReportNode
from schemas.plans import SubmitPlan
from schemas.policy import (
    AcceptLoss,
    BeginIncarnation,
    CollectGarbage,
    DeclarePool,
    DrainNode,
    RollLog,
    SetEligibility,
    SetNodeMeta,
    SetPolicy,
    StopAllocation,
)
from schemas.rollouts import FailRollout, PromoteRollout, RegisterJobs
from shared.core.decide.deployments import DeploymentCommand, decide_deployment
from shared.core.decide.evaluations import decide_end, decide_wake
from shared.core.decide.garbage import LogTimeIndex, decide_garbage
from shared.core.decide.jobs import decide_submission
from shared.core.decide.launches import decide_force, decide_launch
from shared.core.decide.nodes.drains import decide_alloc_stop, decide_drain, decide_meta
from shared.core.decide.nodes.liveness import decide_liveness
from shared.core.decide.nodes.registration import decide_report
from shared.core.decide.operator import (
    decide_declaration,
    decide_eligibility,
    decide_loss,
    decide_policy,
    decide_roll,
)
from shared.core.decide.plans.verify import decide_plan
from shared.core.decide.rollouts import RolloutCommand, decide_rollout
from shared.core.decide.version_marks import decide_mark
from shared.core.state.state import State

OperatorCommand = (
    SetPolicy
    | SetEligibility
    | DeclarePool
    | DrainNode
    | SetNodeMeta
    | StopAllocation
    | RollLog
    | AcceptLoss
    | ForceLaunch
    | TagVersion
    | SetStability
)


def decide(state: State, command: AnyCommand, now_ns: int, horizon: LogTimeIndex) -> list[Event]:
    """Decide one command against the state, which stands inside the transaction being written."""
    match command:
        case SubmitPlan():
            return decide_plan(state, command)
        case (
            RegisterJob()
            | RegisterJobs()
            | StopJob()
            | EvaluateJob()
            | DispatchJob()
            | RevertJob()
            | ScaleJob()
            | StartJob()
            | SkipSubmission()
        ):
            return decide_submission(state, command)
        case ReportNode():
            return decide_report(state, command, now_ns)
        case ChangeLiveness():
            return decide_liveness(state, command)
        case WakeEvaluations():
            return decide_wake(state, command)
        case EndEvaluations():
            return decide_end(state, command, now_ns)
        case (
            PromoteDeployment()
            | FailDeployment()
            | PauseDeployment()
            | SetAllocationHealth()
            | DeploymentDue()
            | GateDue()
            | FailRollout()
            | PromoteRollout()
        ):
            return _decide_progress(state, command, now_ns)
        case BeginIncarnation():
            # A transaction of its own: the applier puts it aside before it comes here.
            return []
        case CollectGarbage():
            return decide_garbage(state, horizon, now_ns, everything=True)
        case _:
            return _decide_operator(state, command)


def _decide_progress(
    state: State, command: DeploymentCommand | RolloutCommand, now_ns: int
) -> list[Event]:
    match command:
        case FailRollout() | PromoteRollout():
            return decide_rollout(state, command, now_ns)
        case _:
            return decide_deployment(state, command, now_ns)


def _decide_operator(state: State, command: OperatorCommand | LaunchDue) -> list[Event]:
    match command:
        case SetPolicy():
            return decide_policy(state, command)
        case SetEligibility():
            return decide_eligibility(state, command)
        case DeclarePool():
            return decide_declaration(state, command)
        case DrainNode():
            return decide_drain(state, command)
        case SetNodeMeta():
            return decide_meta(state, command)
        case StopAllocation():
            return decide_alloc_stop(state, command)
        case RollLog():
            return decide_roll(state, command)
        case AcceptLoss():
            return decide_loss(state, command)
        case _:
            return _decide_job(state, command)


def _decide_job(
    state: State, command: ForceLaunch | LaunchDue | TagVersion | SetStability
) -> list[Event]:
    match command:
        case TagVersion() | SetStability():
            return decide_mark(state, command)
        case ForceLaunch():
            return decide_force(state, command)
        case LaunchDue():
            return decide_launch(state, command)
