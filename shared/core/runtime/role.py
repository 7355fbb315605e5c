"""The contract between a role and its shell: a batch of inputs in, effects out; the shell performs them in order.

Only two shells drive roles: shared/bus (NATS, real time) and shared/sim (one process, virtual time).
A shell does not interpret inputs or effects; a role has no clock, no randomness, no IO. Read this file first, then
`messages.py` (inputs and effects), `replica.py` (how a role follows the log) and any services/*/role.py.

What a shell promises:
- `step` is called with everything one turn of its loop collected, in the order of arrival, and never re-entered.
- Records arrive in ascending `seq` within one replay; a gap is possible (the role checks), a repeat after `Rewind`.
- At most one `Append` is outstanding; exactly one of Appended, AppendRefused, AppendUnknown answers it.
- A `Send` may be lost, doubled, delayed or overtaken. Nothing else is promised about messages.
- Timers are named: setting one again replaces it. They fire late, never early, and die with the process.
- Each `Message` of a work or read source counts against the source's credit until its token is acknowledged.
"""

from typing import Protocol

from shared.core.runtime.messages import (
    Answer,
    Appended,
    AppendRefused,
    AppendUnknown,
    BusSeen,
    CaughtUp,
    Effect,
    LeadershipLost,
    LeadershipWon,
    LogScrubbed,
    LogSpace,
    Message,
    PutDone,
    PutRefused,
    Reconnected,
    Record,
    RollReady,
    RollRefused,
    Source,
    Timer,
)
from shared.core.runtime.restored import Restored

Input = (
    Record
    | Restored
    | CaughtUp
    | LogSpace
    | BusSeen
    | LogScrubbed
    | Message
    | Appended
    | AppendRefused
    | AppendUnknown
    | RollReady
    | RollRefused
    | Answer
    | PutDone
    | PutRefused
    | Timer
    | LeadershipWon
    | LeadershipLost
    | Reconnected
)


class Role(Protocol):
    """What a shell drives."""

    #: short role name: also the first token of its presence subject.
    name: str
    #: unique per process.
    instance: str

    def sources(self) -> tuple[Source, ...]:
        """Say where inputs come from; asked once, before the first step."""
        ...

    @property
    def leader_key(self) -> str:
        """Name of the leadership this role competes for; empty: none."""
        ...

    @property
    def next_seq(self) -> int:
        """First seq of the log that the role has not applied yet."""
        ...

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Process inputs and return effects, both in order. `now_ns`: wall clock, ns since 1970."""
        ...

    def metrics(self) -> dict[str, float]:
        """Gauges and counters by full Prometheus name, labels included; read between steps."""
        ...
