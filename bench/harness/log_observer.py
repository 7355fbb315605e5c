"""The observer: a role without decisions that replays the log and records when it saw what.

"Visible in a replaying service" means: applied to a whole state in the shell that every service uses. The observer
checks every checkpoint, so a run that ends proves that the replayed state is the live one.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.allocations import AllocationsReported
from schemas.envelope import LogRecord
from schemas.jobs import JobRegistered
from schemas.launches import JobLaunched
from schemas.plans import PlanCommitted, PlanRefused
from shared.bus.connection.nats_client import Login
from shared.bus.shell.shell import Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.core.runtime.messages import CaughtUp, Effect, Record, Replay, Source, Stop
from shared.core.runtime.replica import Replica
from shared.core.runtime.role import Input
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, RUNNING
from shared.errors import LogError

#: A bus that was full may be away for longer than a service waits, which is started again then.
_START_S = 120.0


class LogObserver:
    """The whole state, and the moments at which placements appeared in it. Times: time.perf_counter."""

    name = "observer"
    leader_key = ""

    def __init__(self) -> None:
        self.instance = "observer"
        self.replica = Replica()
        self.is_caught_up = False
        self.failure = ""
        #: (time, placements seen so far), one for each step that saw any.
        self.seen: list[tuple[float, int]] = []
        self.placed = 0
        self.refused: list[PlanRefused] = []
        self.cut = 0
        #: plans that are in the log, and of these the ones that were cut somewhere.
        self.plans = 0
        self.cut_plans = 0
        #: when records with events came, and of these the ones with a new version of a job.
        self.commits: list[float] = []
        self.registrations: list[float] = []
        #: job -> when its newest version was seen.
        self.registered_at: dict[str, float] = {}
        #: job -> when its first placement was seen.
        self.first_of: dict[str, float] = {}
        #: children of periodic jobs: id, planned instant and when the launch was seen, both ns since 1970.
        self.launched: list[tuple[str, int, int]] = []
        #: placements by job.
        self.placed_of: Counter[str] = Counter()
        #: ends without a failure: an allocation has one at the most, and may be collected soon after.
        self.complete = 0
        #: (time, running, complete), one for each step that saw reports.
        self.ran: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        self._has_reports = False
        self.changed = asyncio.Event()

    @property
    def state(self) -> State:
        """State at the head of what was delivered."""
        return self.replica.state

    @property
    def next_seq(self) -> int:
        """First seq not applied yet."""
        return self.replica.next_seq

    def sources(self) -> tuple[Source, ...]:
        """The log."""
        return (Replay(),)

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Apply what came."""
        del now_ns
        before = self.placed
        for one in inputs:
            if isinstance(one, Record):
                try:
                    decoded = self.replica.apply(one)
                except LogError as err:
                    self.failure = str(err)
                    self.changed.set()
                    return [Stop(str(err))]
                if decoded is not None:
                    self._look(decoded)
            elif isinstance(one, CaughtUp):
                self.is_caught_up = True
        if self.placed != before:
            self.seen.append((time.perf_counter(), self.placed))
        if self._has_reports:
            self._has_reports = False
            table = self.state.allocations
            client = table.client[: table.size][table.key[: table.size] != 0]
            self.ran.append((time.perf_counter(), int((client == RUNNING).sum()), self.complete))
        self.changed.set()
        return []

    def _look(self, record: LogRecord) -> None:
        if record.events:
            self.commits.append(time.perf_counter())
            jobs = [event.job_id for event in record.events if isinstance(event, JobRegistered)]
            if jobs:
                self.registrations.append(self.commits[-1])
                self.registered_at |= dict.fromkeys(jobs, self.commits[-1])
        for event in record.events:
            if isinstance(event, PlanCommitted):
                if event.job_id not in self.first_of and event.placements:
                    self.first_of[event.job_id] = time.perf_counter()
                count = sum(sum(part.counts) for part in event.placements)
                self.placed += count
                self.placed_of[event.job_id] += count
                self.cut += len(event.cut)
                self.plans += 1
                self.cut_plans += bool(event.cut)
            elif isinstance(event, PlanRefused):
                self.refused.append(event)
            elif isinstance(event, JobLaunched):
                self.launched.append((event.child_id, event.at_ns, time.time_ns()))
            elif isinstance(event, AllocationsReported):
                self._has_reports = True
                self.complete += event.statuses.count(COMPLETE)

    @property
    def running(self) -> int:
        """Allocations that run, as far as seen."""
        return self.ran[-1][1]

    def running_at(self, count: int) -> float:
        """When so many were running."""
        return next((at for at, running, _ in self.ran if running >= count), float("inf"))

    def complete_at(self, count: int) -> float:
        """When so many were complete."""
        return next((at for at, _, complete in self.ran if complete >= count), float("inf"))

    def time_of(self, placements: int) -> float:
        """When so many placements had been seen."""
        return next((at for at, count in self.seen if count >= placements), float("inf"))


@asynccontextmanager
async def run_observer(login: Login) -> AsyncIterator[LogObserver]:
    """Run an observer in this loop; it has caught up with the log when this returns.

    Raises RuntimeError when the log could not be followed: at once where it was not reached, else at the end.
    """
    role = LogObserver()
    replicas = int(os.environ.get("CARAVAN_REPLICAS", "1"))
    settings = ShellSettings(login=login, replicas=replicas, start_timeout_s=_START_S)
    stop = asyncio.Event()
    running = asyncio.create_task(_follow(Shell(role, settings), role, stop))
    try:
        while not role.is_caught_up and not running.done():
            role.changed.clear()
            await asyncio.wait(
                {running, asyncio.ensure_future(role.changed.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
        if role.is_caught_up:
            yield role
    finally:
        stop.set()
        await running
    if role.failure:
        raise RuntimeError(f"the observer stopped: {role.failure}")


async def _follow(shell: Shell, role: LogObserver, stop: asyncio.Event) -> None:
    """Run until stopped; why it ended otherwise is its failure: an observer that follows no more shows an old state."""
    try:
        await shell.run(stop)
    except Exception as err:  # noqa: BLE001 - of whatever kind, the owner raises it.
        if not stop.is_set():
            role.failure = role.failure or f"{type(err).__name__}: {err}"
        role.changed.set()
