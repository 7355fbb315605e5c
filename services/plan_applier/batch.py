"""What waiting commands become: the events of one transaction.

Decides how many commands one transaction takes, and that new work waits while the log is nearly full. What a single
command becomes is decided by shared/core/decide. Must not know who leads, nor how a record is written. Next: `role.py`.
"""

import msgspec

from schemas.base import Event, NodeId
from schemas.evaluations import EvaluationsCreated
from schemas.jobs import EvaluateJob, RegisterJob
from schemas.nodes import ReportNode
from schemas.policy import RollLog
from services.plan_applier.inbox import Inbox
from shared.core.decide.garbage import Horizon
from shared.core.decide.nodes import decide_reports, is_plain
from shared.core.decide.operator import decide_roll
from shared.core.decide.route import decide
from shared.core.state import State

#: Bounds of one transaction. Commands and the events they become are of like size; the rest is headroom.
COMMANDS_MAX = 256
BYTES_MAX = 400 * 1024
#: Once so many evaluations were created, no further command is taken (one creates at most 1,500).
EVALUATIONS_MAX = 1_000
#: What is not taken while the log is nearly full.
NEW_WORK = (RegisterJob, EvaluateJob)


class Batch(msgspec.Struct):
    """Events of a transaction, and what it took; without events nothing is to be written."""

    events: list[Event]
    #: of the messages whose last command was taken.
    tokens: list[int]
    commands: int = 0
    #: an order to roll the log, which is a record of its own.
    roll: RollLog | None = None


def decide_batch(
    state: State, inbox: Inbox, horizon: Horizon, now_ns: int, *, no_new_work: bool
) -> Batch:
    """Take commands and decide each on the state that the ones before it made; the state evolves.

    Goes on until something is to be written or nothing waits.
    """
    batch = Batch([], [])
    created = 0
    while len(inbox) and not batch.events:
        #: reports that are decided as one, by node.
        reports: dict[NodeId, ReportNode] = {}
        for waiting in inbox.take(COMMANDS_MAX, BYTES_MAX):
            batch.commands += 1
            if waiting.token is not None:
                batch.tokens.append(waiting.token)
            command = waiting.command
            if no_new_work and isinstance(command, NEW_WORK):
                # Its sender keeps it, and asks again.
                continue
            if isinstance(command, RollLog):
                if decide_roll(state, command):
                    batch.roll = command
                continue
            if isinstance(command, ReportNode) and _joins(state, reports, command):
                reports[command.node_id] = command
                continue
            if reports:
                created += _say(state, reports, batch, now_ns)
            created += _happen(state, decide(state, command, now_ns, horizon), batch)
            if created > EVALUATIONS_MAX:
                # The one event that may be far longer than its command.
                break
        _say(state, reports, batch, now_ns)
    return batch


def _joins(state: State, reports: dict[NodeId, ReportNode], report: ReportNode) -> bool:
    """Tell whether a report can be decided together with these: of another node, and about allocations alone."""
    return report.node_id not in reports and is_plain(state, report)


def _say(state: State, reports: dict[NodeId, ReportNode], batch: Batch, now_ns: int) -> int:
    """Decide the reports that were put together; returns how many evaluations they create."""
    if not reports:
        return 0
    said = list(reports.values())
    reports.clear()
    return _happen(state, decide_reports(state, said, now_ns), batch)


def _happen(state: State, events: list[Event], batch: Batch) -> int:
    """Apply events and keep them for the transaction; returns how many evaluations they create."""
    state.evolve_all(events, state.seq)
    batch.events += events
    created = 0
    for event in events:
        if type(event) is EvaluationsCreated:
            created += len(event.evaluations)
    return created
