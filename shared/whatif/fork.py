"""A fork: the recorded past up to a moment, then the real roles in virtual time under a script.

`read_log` turns the part before the fork into a state, and the part after it into a script and a timeline. `run_fork`
plays a script with the engine. Every fork of one log plays the same script but for its changes.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter, itemgetter

import msgspec
import numpy as np

from schemas.base import Event
from schemas.deployments import SetAllocationHealth
from schemas.envelope import RECORD_DECODER, AnyCommand, LogRecord
from schemas.gates import GateChanged
from schemas.nodes import ChangeLiveness, ReportNode
from schemas.policy import StopAllocation
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica, copy_replica
from shared.core.scheduling.explain.verify_decisions import DecisionCheck, verify_decisions
from shared.core.state.state import State
from shared.errors import LogError
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import (
    EngineSetup,
    NodeComesBack,
    NodeFallsSilent,
    NodeJoins,
    ScriptedEvent,
)
from shared.sim.virtual_time import SECOND
from shared.whatif.deployment_clock import DeploymentClock
from shared.whatif.durations import DurationModel, DurationSources, RecordedAllocs
from shared.whatif.placement_table import NameTable
from shared.whatif.recorded_gauges import (
    RecordedGauges,
    RecordedValue,
    value_of,
    values_there,
)
from shared.whatif.script import (
    Lineage,
    ScriptEntry,
    fold_rollouts,
    registrations,
    script_entries,
)
from shared.whatif.timeline import Timeline

#: Takes how much is done, and of how much.
Progress = Callable[[int, int], None]
#: Records that a fork may write: of what fails again and again there are no more. Beside it as many as were read.
RECORDS_MAX = 5_000
#: Virtual time after the end of the record in which open work may settle.
SETTLE_LIMIT_NS = 7_200 * SECOND
_QUIET_NS = 2 * SECOND


class RecordedLog(msgspec.Struct, kw_only=True):
    """A log, read up to a fork and beyond it."""

    #: where the record was read from.
    base: Replica
    #: the timeline up to the fork; read-only.
    fork_timeline: Timeline
    #: all records after `base`.
    records: list[Record]
    entries: list[ScriptEntry]
    #: readings of gates that clients' gauges gave, oldest first.
    gauges: list[RecordedValue]
    timeline: Timeline
    names: NameTable
    #: why it was not read to its end.
    problem: str = ""

    @property
    def has_gates(self) -> bool:
        """Whether deployments of the record or of the fork may have gates or windows."""
        submitted = (job for one in self.entries for job in registrations(one.command))
        return any(one.gates or one.windows for one in submitted) or any(
            one.gates or one.windows for one in self.fork.state.jobs.by_id.values()
        )

    @property
    def workers(self) -> int:
        """Number of scheduler workers that decided, at least one."""
        return max(len(self.timeline.workers), 1)

    def proof(self, progress: Progress | None = None) -> DecisionCheck:
        """Verify the decisions after the fork; for a fork at the end, all that was read. Raises LogError.

        `progress`: called with the number of records passed, of two passes over all.
        """
        start = copy_replica(self.base) if self.base.seq else None
        # Nothing follows a fork at the end of the log: verify the past instead.
        is_now = self.fork.seq == self.timeline.replica.seq
        after_seq = 0 if is_now else self.fork.seq
        read = _counted(self.records, progress) if progress is not None else lambda: self.records
        return verify_decisions(read, start=start, after_seq=after_seq)

    def behind(self, until_ns: int) -> Timeline:
        """The recorded timeline from the fork to a moment."""
        return self.timeline.between(self.fork_timeline, until_ns)

    def past(self) -> list[Record]:
        """The records that were read, up to the fork."""
        return [one for one in self.records if one.seq <= self.fork.seq]

    def time_of(self, seq: int) -> int:
        """Log time of a record; 0: it was not read."""
        first = self.records[0].seq
        if not first <= seq < first + len(self.records):
            return 0
        times = [
            RECORD_DECODER.decode(one.data).t_ns
            for one in self.records[: seq - first + 1][-50:]
            if is_framed(one.data)
        ]
        return max(times, default=0)

    @property
    def fork(self) -> Replica:
        """The state at the fork; read-only."""
        return self.fork_timeline.replica


def read_log(
    records: Iterable[Record], *, base: Replica, is_before: Callable[[Record], bool]
) -> RecordedLog:
    """Read a log after `base`; `is_before` returns whether a record is before the fork.

    Damage after the fork ends the record. Raises LogError for damage before it.
    """
    kept: list[Record] = []
    names = NameTable()
    timeline = Timeline(copy_replica(base) if base.seq else Replica(), names)
    fork: Timeline | None = None
    entries: list[ScriptEntry] = []
    gauges: list[RecordedValue] = []
    problem = ""
    for record in records:
        if fork is None and not is_before(record):
            fork = timeline.forked(copy_replica(timeline.replica), 0)
        try:
            if fork is None:
                timeline.follow(record)
            else:
                _script(timeline, record, entries, gauges)
        except LogError as err:
            if fork is None:
                raise
            problem = str(err)
            break
        kept.append(record)
    if fork is None:
        fork = timeline.forked(copy_replica(timeline.replica), 0)
    timeline.close(timeline.t_ns)
    return RecordedLog(
        base=base,
        fork_timeline=fork,
        records=kept,
        entries=entries,
        gauges=[*values_there(fork.state), *gauges],
        timeline=timeline,
        names=names,
        problem=problem,
    )


def _script(
    timeline: Timeline, record: Record, entries: list[ScriptEntry], gauges: list[RecordedValue]
) -> None:
    """Follow one record, and keep its external events and what its gates read."""
    found: list[ScriptEntry] = []

    def lineage_of(row: int) -> Lineage:
        return timeline.placed.name_of(int(timeline.placed.positions_of_rows(np.asarray([row]))[0]))

    def before(state: State, event: Event) -> None:
        if isinstance(event, GateChanged) and (value := value_of(state, event)) is not None:
            gauges.append(value)
        found.extend(
            script_entries(state, event, t_ns=state.t_ns, seq=record.seq, lineage_of=lineage_of)
        )

    timeline.follow(record, before)
    entries.extend(fold_rollouts(found))


class ForkRun(msgspec.Struct, kw_only=True):
    """The result of running a fork."""

    timeline: Timeline
    assumed: DurationSources
    #: the run settled.
    settled: bool
    #: hash of the log it wrote.
    digest: str
    #: the log it wrote, with `keep`.
    records: list[Record]
    #: dead letters of the roles.
    refused: list[str]
    #: requests about allocations and deployments that do not exist in this fork.
    missed: int = 0
    #: the bound on records that cut it off; 0: it was not met.
    records_max: int = 0

    def slim(self) -> "ForkRun":
        """Drop everything but figures, so that the result can be pickled."""
        self.timeline.detach()
        return self


def run_fork(
    recorded: RecordedLog,
    entries: list[ScriptEntry],
    *,
    workers: int,
    until_ns: int,
    settle: bool,
    resample: bool = False,
    keep: bool = False,
    seed: int = 1,
    progress: Progress | None = None,
) -> ForkRun:
    """Run a script to `until_ns`; with `settle`, until the cluster settles. `progress`: virtual time passed, ns."""
    timeline = recorded.fork_timeline.forked(recorded.fork, until_ns)
    lasting = DurationModel(recorded.timeline, timeline.begin_ns, resample=resample, seed=seed)
    alive: list[RecordedAllocs] = []

    def lives(seed: int, state: Callable[[], State]) -> RecordedAllocs:
        alive.append(RecordedAllocs(seed, state, timeline, lasting))
        return alive[0]

    kept: list[Record] = []
    engine = SimulationEngine(
        EngineSetup(
            schedulers=workers,
            seed=seed,
            start=recorded.fork,
            sink=kept.append if keep else _forget,
            lives=lives,
        )
    )
    timeline.follow_state(engine.state)
    engine.follow(timeline.observe)
    if progress is not None:
        engine.follow(_virtual_time(progress, engine.begin_ns, until_ns))
    records_max = RECORDS_MAX + len(recorded.records)
    engine.follow(_bound(engine.replica.seq + records_max))
    engine.feed(sorted(_scripted_events(entries), key=itemgetter(0)))
    clock = _clock(engine, recorded)
    settled, is_bounded, missed = False, False, list[ScriptEntry]()
    try:
        for one in _open_entries(entries, until_ns):
            clock.run(one.t_ns)
            if not _act(engine, one, timeline):
                missed.append(one)
        clock.run(until_ns)
        settled = settle and _settle(engine, clock, alive[0])
    except _BoundMetError:
        is_bounded = True
    timeline.pause(max(until_ns, timeline.t_ns))
    return ForkRun(
        timeline=timeline,
        assumed=lasting.assumed,
        settled=settled,
        digest=engine.digest,
        records=kept,
        refused=engine.stats.dead_letters,
        missed=len(missed),
        records_max=records_max if is_bounded else 0,
    )


class _BoundMetError(Exception):
    """A fork has written as many records as it may."""


def _bound(last_seq: int) -> Callable[[LogRecord, int], None]:
    """Return the follower of an engine that ends the run at a seq; it comes after those that count."""

    def count(_record: LogRecord, seq: int) -> None:
        if seq >= last_seq:
            raise _BoundMetError

    return count


def _virtual_time(
    progress: Progress, begin_ns: int, until_ns: int
) -> Callable[[LogRecord, int], None]:
    """Return the follower of an engine that tells `progress`; a cluster that settles runs beyond `until_ns`."""

    def tell(record: LogRecord, _seq: int) -> None:
        progress(record.t_ns - begin_ns, max(until_ns, record.t_ns) - begin_ns)

    return tell


def _open_entries(entries: Iterable[ScriptEntry], until_ns: int) -> list[ScriptEntry]:
    """List what is about things of the fork, up to a moment, oldest first."""
    found = [one for one in entries if one.is_open and one.t_ns <= until_ns]
    return sorted(found, key=attrgetter("t_ns"))


def _clock(engine: SimulationEngine, recorded: RecordedLog) -> DeploymentClock:
    """Make what tells a fork that deadlines and gates of its deployments are due."""
    gauges = RecordedGauges(recorded.gauges)
    return DeploymentClock(engine, gauges, has_gates=recorded.has_gates)


def _act(engine: SimulationEngine, one: ScriptEntry, timeline: Timeline) -> bool:
    """Give the engine what is about things of the fork; false: they are not there."""
    command = _filled_in(one, engine.state, timeline)
    if command is not None:
        engine.at(one.t_ns, command)
    return command is not None


def _filled_in(one: ScriptEntry, state: State, timeline: Timeline) -> AnyCommand | None:
    """Return the command with what it is about in this fork; None: that is not there."""
    found: dict[str, object] = {}
    key = timeline.placed.key_of(one.lineage) if one.lineage is not None else 0
    if one.lineage is not None and not key:
        return None
    if one.deployment_of:
        active = state.deployments.active_of(one.deployment_of)
        if active is None:
            return None
        found["deployment_key"] = active.key
    if one.rollout_of:
        rollout = state.rollouts.active_of(one.rollout_of)
        if rollout is None:
            return None
        found["rollout_key"] = rollout.key
    match one.command:
        case StopAllocation():
            found["alloc_key"] = key
        case SetAllocationHealth(healthy=healthy):
            found["healthy" if healthy else "unhealthy"] = (key,)
        case _:
            pass
    return msgspec.structs.replace(one.command, **found)


def _settle(engine: SimulationEngine, clock: DeploymentClock, lives: RecordedAllocs) -> bool:
    """Run until nothing is due any more; returns whether that was before the limit."""
    limit_ns = engine.now_ns + SETTLE_LIMIT_NS
    while engine.settle(quiet_ns=_QUIET_NS, limit_ns=max(limit_ns - engine.now_ns, 1)):
        due_ns = _next_ns(engine, lives, clock)
        if not due_ns:
            return True
        if due_ns > limit_ns:
            clock.run(limit_ns)
            return False
        clock.run(due_ns)
    return False


def _next_ns(engine: SimulationEngine, lives: RecordedAllocs, clock: DeploymentClock) -> int:
    """When the next task ends, deadline passes, gate may open or evaluation wakes by itself; 0: never."""
    ends_ns = lives.next_due_ns()
    table = engine.state.evaluations
    found = [table.by_key[key].wait_until_ns for key in table.open]
    found.append(ends_ns + engine.begin_ns if ends_ns else 0)
    found += clock.due_times()
    return min((one for one in found if one > engine.now_ns), default=0)


def _counted(records: list[Record], progress: Progress) -> Callable[[], Iterable[Record]]:
    """Return what reads the records, to be called twice."""
    passed = 0

    def read() -> Iterable[Record]:
        nonlocal passed
        for record in records:
            yield record
            passed += 1
            progress(passed, 2 * len(records))

    return read


def _forget(_record: Record) -> None:
    """Discard a record."""


def _scripted_events(
    entries: list[ScriptEntry],
) -> Iterable[tuple[int, ScriptedEvent | AnyCommand]]:
    """Script entries as events of the engine, with their times."""
    for one in entries:
        command = one.command
        if isinstance(command, ReportNode):
            assert command.spec is not None
            yield one.t_ns, NodeJoins(spec=command.spec)
        elif isinstance(command, ChangeLiveness):
            for node_id in command.node_ids:
                if command.status == "down":
                    yield one.t_ns, NodeFallsSilent(node_id=node_id, dies=False)
                else:
                    yield one.t_ns, NodeComesBack(node_id=node_id)
            yield one.t_ns, command
        elif not one.is_open:
            yield one.t_ns, command
