"""A timekeeper of delayed evaluations, a toy, with a log and a clock of its own."""

from collections.abc import Iterable

from schemas.base import EvalKey, Event
from schemas.envelope import COMMANDS_DECODER
from schemas.evaluations import (
    EvaluationsCreated,
    EvaluationsWoken,
    NewEvaluation,
    WakeEvaluations,
)
from services.timekeeper.due_heap import DueKey, DueTime
from services.timekeeper.role import Timekeeper
from shared.core.runtime.messages import CaughtUp, LeadershipWon, Send, SetTimer, Timer
from shared.core.runtime.role import Input
from shared.core.state.ids import make_key
from shared.core.state.state import State
from tests.unit.core.state.written_log import WrittenLog

SECOND = 1_000_000_000


class DelayedEvaluations:
    """A toy: delayed evaluations are due at their time."""

    tables = frozenset({"evaluations"})
    events: frozenset[type[Event]] = frozenset({EvaluationsCreated, EvaluationsWoken})
    is_told_again = True

    def __init__(
        self, grace_ns: int = 0, *, is_log_time: bool = False, needs_lease: bool = True
    ) -> None:
        self._grace_ns = grace_ns
        self.is_log_time = is_log_time
        self.needs_lease = needs_lease

    def keys(self, state: State) -> Iterable[DueKey]:
        """All that are open."""
        return list(state.evaluations.open)

    def changed(self, state: State, event: Event) -> Iterable[DueKey]:
        """Those that an event, the only one of its record, is about."""
        if isinstance(event, EvaluationsCreated):
            return [make_key(state.seq, at) for at in range(len(event.evaluations))]
        assert isinstance(event, EvaluationsWoken)
        return event.keys

    def due_ns(self, state: State, key: DueKey, at: DueTime) -> int:
        """Until when it sleeps."""
        del at
        return state.evaluations.by_key[key].wait_until_ns  # type: ignore[index]

    def grace_ns(self, state: State, key: DueKey) -> int:
        """The same for all."""
        del state, key
        return self._grace_ns

    def command(self, state: State, key: DueKey, at: DueTime) -> WakeEvaluations:
        """Wake it."""
        del state, at
        return WakeEvaluations(keys=(key,), reason="due")  # type: ignore[arg-type]


class Story:
    """A timekeeper and its clock."""

    def __init__(
        self, *, grace_ns: int = 0, is_log_time: bool = False, needs_lease: bool = True
    ) -> None:
        source = DelayedEvaluations(grace_ns, is_log_time=is_log_time, needs_lease=needs_lease)
        self.role = Timekeeper(instance="t1", sources=[source])
        self.log = WrittenLog()
        self.now = 1_000 * SECOND
        self.alarm = 0
        #: (time, key) in order of asking.
        self.asked: list[tuple[int, EvalKey]] = []
        self.sizes: list[int] = []

    def lead(self) -> "Story":
        """Read the log so far, and lead."""
        self.step(*self.log.records, CaughtUp(self.log.seq), LeadershipWon())
        return self

    def stand_by(self) -> "Story":
        """Read the log so far, while another instance leads."""
        self.step(*self.log.records, CaughtUp(self.log.seq))
        return self

    def sleepers(self, *until_s: int) -> list[EvalKey]:
        """Write evaluations that sleep until these times."""
        new = [NewEvaluation(job_id="j", wait_until_ns=one * SECOND) for one in until_s]
        record = self.log.tx(EvaluationsCreated(evaluations=tuple(new)))
        if self.role.is_caught_up:
            self.step(record)
        return [EvalKey(make_key(record.seq, at)) for at in range(len(new))]

    def step(self, *inputs: Input) -> None:
        """Take inputs, note what it asks for."""
        for effect in self.role.step(list(inputs), self.now):
            if isinstance(effect, SetTimer):
                self.alarm = effect.at_ns
            elif isinstance(effect, Send):
                assert effect.subject == "cmd.timer"
                batch = COMMANDS_DECODER.decode(effect.data)
                self.sizes.append(len(batch.commands))
                self.asked += [(self.now, one.keys[0]) for one in batch.commands]  # type: ignore[union-attr]

    def shown(self, *keys: EvalKey) -> None:
        """Have the log show that these were woken."""
        self.step(self.log.tx(EvaluationsWoken(keys=keys, reason="due")))

    def run_until(self, second: float) -> None:
        """Let the clock run from alarm to alarm."""
        end_ns = round(second * SECOND)
        while self.alarm and self.alarm <= end_ns:
            at_ns, self.alarm = self.alarm, 0
            self.now = max(self.now, at_ns)
            self.step(Timer("due", at_ns))
        self.now = end_ns

    def asked_s(self) -> list[float]:
        """When something was asked, in seconds."""
        return [when / SECOND for when, _ in self.asked]
