"""Routing: which function decides which command."""

from schemas.base import Event
from schemas.envelope import AnyCommand
from schemas.evaluations import EndEvaluations, WakeEvaluations
from schemas.jobs import EvaluateJob, RegisterJob, SkipSubmission, StopJob
from schemas.nodes import ChangeLiveness, ReportNode
from schemas.plans import SubmitPlan
from schemas.policy import (
    CollectGarbage,
    DeclarePool,
    DrainNode,
    RollLog,
    SetEligibility,
    SetNodeMeta,
    SetPolicy,
    StopAllocation,
)
from shared.core.decide.displacing import decide_drain, decide_meta, decide_stop
from shared.core.decide.evaluations import decide_end, decide_wake
from shared.core.decide.garbage import Horizon, decide_garbage
from shared.core.decide.jobs import decide_submission
from shared.core.decide.liveness import decide_liveness
from shared.core.decide.nodes import decide_report
from shared.core.decide.operator import (
    decide_declaration,
    decide_eligibility,
    decide_policy,
    decide_roll,
)
from shared.core.decide.plans import decide_plan
from shared.core.state import State

OperatorWish = (
    SetPolicy | SetEligibility | DeclarePool | DrainNode | SetNodeMeta | StopAllocation | RollLog
)


def decide(state: State, command: AnyCommand, now_ns: int, horizon: Horizon) -> list[Event]:
    """Decide one command against the state, which stands inside the transaction being written."""
    match command:
        case SubmitPlan():
            return decide_plan(state, command)
        case RegisterJob() | StopJob() | EvaluateJob() | SkipSubmission():
            return decide_submission(state, command)
        case ReportNode():
            return decide_report(state, command, now_ns)
        case ChangeLiveness():
            return decide_liveness(state, command)
        case WakeEvaluations():
            return decide_wake(state, command)
        case EndEvaluations():
            return decide_end(state, command, now_ns)
        case CollectGarbage():
            return decide_garbage(state, horizon, now_ns, everything=True)
        case _:
            return _decide_wish(state, command)


def _decide_wish(state: State, command: OperatorWish) -> list[Event]:
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
            return decide_stop(state, command)
        case RollLog():
            return decide_roll(state, command)
