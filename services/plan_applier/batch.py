"""What waiting commands become: the events of one transaction.

Decides how many commands one transaction takes, and that new work waits while the log is nearly full. What a single
command becomes is decided by shared/core/decide. Must not know who leads, nor how a record is written. Next: `role.py`.
"""

import msgspec

from schemas.base import Event
from schemas.evaluations import EvaluationsCreated
from schemas.jobs import EvaluateJob, RegisterJob
from services.plan_applier.inbox import Inbox
from shared.core.decide.garbage import Horizon
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


def decide_batch(
    state: State, inbox: Inbox, horizon: Horizon, now_ns: int, *, no_new_work: bool
) -> Batch:
    """Take commands and decide each on the state that the ones before it made; the state evolves.

    Goes on until something is to be written or nothing waits.
    """
    batch = Batch([], [])
    created = 0
    while len(inbox) and not batch.events:
        for waiting in inbox.take(COMMANDS_MAX, BYTES_MAX):
            batch.commands += 1
            if waiting.token is not None:
                batch.tokens.append(waiting.token)
            if no_new_work and isinstance(waiting.command, NEW_WORK):
                # Its sender keeps it, and asks again.
                continue
            for event in decide(state, waiting.command, now_ns, horizon):
                state.evolve(event, state.seq)
                batch.events.append(event)
                if isinstance(event, EvaluationsCreated):
                    created += len(event.evaluations)
            if created > EVALUATIONS_MAX:
                # The one event that may be far longer than its command.
                break
    return batch
