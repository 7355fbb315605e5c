"""The states of a plan applier: its tenure as the writer of the log, and the one append in flight.

    STANDBY ─▶ CANDIDATE ─▶ LEASING ─▶ ACTIVE ◀─▶ ROLLING
       ▲──────────┴────────────┴─────────┴─────────┘ leadership lost, or a higher epoch in the log
    REBUILDING: the log differs from the state; the state is dropped and the log replayed

Each is a table of transitions for a `StateMachine` (`shared/core/runtime/state_machine.py`). A pair that is not in the
table raises IllegalTransition, which ends the process; a restart rebuilds the state from the log.
"""

from enum import Enum, auto


class Tenure(Enum):
    """Role of an instance for the log."""

    #: follows the log, writes nothing.
    STANDBY = auto()
    #: leads and has caught up; its next append is the lease.
    CANDIDATE = auto()
    #: its lease is being appended.
    LEASING = auto()
    #: holds the write lease.
    ACTIVE = auto()
    #: active, but appends nothing until the stream of the next generation is ready.
    ROLLING = auto()
    #: dropped its state; records from before the rewind may still arrive.
    REBUILDING = auto()


class TenureTrigger(Enum):
    """Triggers of the tenure."""

    ELIGIBLE = auto()
    LEASE_SENT = auto()
    LEASE_CONFIRMED = auto()
    ROLL_BEGUN = auto()
    ROLL_ENDED = auto()
    LEADERSHIP_LOST = auto()
    #: another instance's lease is in the log.
    SUPERSEDED = auto()
    #: the state holds events that the log does not.
    DIVERGED = auto()
    REPLAY_BEGUN = auto()


class AppendState(Enum):
    """State of the append in flight."""

    IDLE = auto()
    IN_FLIGHT = auto()
    #: the replay has shown its result; the next append waits for the answer.
    AWAITING_ANSWER = auto()
    #: the bus gave no answer: the replay must show whether it is in the log.
    UNKNOWN = auto()


class AppendTrigger(Enum):
    """Triggers of the append."""

    SENT = auto()
    #: the bus confirmed or refused it.
    ANSWERED = auto()
    #: the bus gave no answer.
    UNANSWERED = auto()
    #: the replay shows the record at its seq.
    SHOWN = auto()
    #: the replay did not show it in time.
    TIMED_OUT = auto()


TENURE: dict[tuple[Tenure, TenureTrigger], Tenure] = {
    (Tenure.STANDBY, TenureTrigger.ELIGIBLE): Tenure.CANDIDATE,
    (Tenure.CANDIDATE, TenureTrigger.LEASE_SENT): Tenure.LEASING,
    (Tenure.LEASING, TenureTrigger.LEASE_CONFIRMED): Tenure.ACTIVE,
    # Leadership was lost and won again while the lease was in flight.
    (Tenure.STANDBY, TenureTrigger.LEASE_CONFIRMED): Tenure.ACTIVE,
    (Tenure.ACTIVE, TenureTrigger.ROLL_BEGUN): Tenure.ROLLING,
    (Tenure.ROLLING, TenureTrigger.ROLL_ENDED): Tenure.ACTIVE,
    (Tenure.STANDBY, TenureTrigger.LEADERSHIP_LOST): Tenure.STANDBY,
    (Tenure.CANDIDATE, TenureTrigger.LEADERSHIP_LOST): Tenure.STANDBY,
    (Tenure.LEASING, TenureTrigger.LEADERSHIP_LOST): Tenure.STANDBY,
    (Tenure.ACTIVE, TenureTrigger.LEADERSHIP_LOST): Tenure.STANDBY,
    (Tenure.ROLLING, TenureTrigger.LEADERSHIP_LOST): Tenure.STANDBY,
    (Tenure.REBUILDING, TenureTrigger.LEADERSHIP_LOST): Tenure.REBUILDING,
    (Tenure.ACTIVE, TenureTrigger.SUPERSEDED): Tenure.STANDBY,
    (Tenure.ROLLING, TenureTrigger.SUPERSEDED): Tenure.STANDBY,
    # Only with an append in flight: a candidate and a roll have none.
    (Tenure.STANDBY, TenureTrigger.DIVERGED): Tenure.REBUILDING,
    (Tenure.LEASING, TenureTrigger.DIVERGED): Tenure.REBUILDING,
    (Tenure.ACTIVE, TenureTrigger.DIVERGED): Tenure.REBUILDING,
    (Tenure.REBUILDING, TenureTrigger.REPLAY_BEGUN): Tenure.STANDBY,
}

APPEND: dict[tuple[AppendState, AppendTrigger], AppendState] = {
    (AppendState.IDLE, AppendTrigger.SENT): AppendState.IN_FLIGHT,
    (AppendState.IN_FLIGHT, AppendTrigger.ANSWERED): AppendState.IDLE,
    (AppendState.IN_FLIGHT, AppendTrigger.UNANSWERED): AppendState.UNKNOWN,
    (AppendState.IN_FLIGHT, AppendTrigger.SHOWN): AppendState.AWAITING_ANSWER,
    (AppendState.AWAITING_ANSWER, AppendTrigger.ANSWERED): AppendState.IDLE,
    (AppendState.AWAITING_ANSWER, AppendTrigger.UNANSWERED): AppendState.IDLE,
    (AppendState.UNKNOWN, AppendTrigger.SHOWN): AppendState.IDLE,
    (AppendState.UNKNOWN, AppendTrigger.TIMED_OUT): AppendState.IDLE,
}
