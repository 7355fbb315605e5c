"""A fork: the recorded past up to a moment, then the real roles in virtual time under a script.

Decides how what was recorded is read (the part up to the fork into a state, the part behind it into a script and a
course), and how a script is played by the engine. Every fork of one log plays the same script but for its wishes, and
its tasks last as `lasting.py` says. Must not know what is compared, or shown.
"""

from collections.abc import Callable, Iterable
from operator import itemgetter

import msgspec
import numpy as np

from schemas.base import Event
from schemas.envelope import RECORD_DECODER, AnyCommand
from schemas.nodes import ChangeLiveness, ReportNode
from shared.core.log import is_framed
from shared.core.redecide import Redecided, redecide
from shared.core.replica import Replica
from shared.core.role import Record
from shared.core.state import State
from shared.errors import LogError
from shared.sim.engine.engine import Engine
from shared.sim.engine.replicas import copied
from shared.sim.engine.setup import (
    Happening,
    NodeComesBack,
    NodeFallsSilent,
    NodeJoins,
    Setup,
)
from shared.whatif.course import Course
from shared.whatif.lasting import Assumed, Lasting, RecordedLives
from shared.whatif.placed import Names
from shared.whatif.script import Entry, Lineage, entries_of

SECOND = 1_000_000_000
#: What is under way at the end of the record may come to rest within so much more of virtual time.
SETTLE_NS = 7_200 * SECOND
_QUIET_NS = 2 * SECOND


class Recorded(msgspec.Struct, kw_only=True):
    """What a log says about a moment and what came behind it."""

    #: where the record was read from.
    base: Replica
    #: how far it came at the fork; nobody changes it.
    at_fork: Course
    #: from behind `base` to the end of what counts.
    records: list[Record]
    entries: list[Entry]
    course: Course
    names: Names
    #: why it was not read to its end.
    problem: str = ""

    @property
    def workers(self) -> int:
        """How many scheduler workers decided, one at least."""
        return max(len(self.course.workers), 1)

    def proof(self) -> Redecided:
        """Decide again what was decided behind the fork, all that was read for a fork at the end. Raises LogError."""
        start = copied(self.base) if self.base.seq else None
        # A fork of now has nothing behind it: then it is the past that must come out again.
        is_now = self.fork.seq == self.course.replica.seq
        after_seq = 0 if is_now else self.fork.seq
        return redecide(lambda: self.records, start=start, after_seq=after_seq)

    def behind(self, until_ns: int) -> Course:
        """What was recorded between the fork and a moment, to be compared with forks."""
        return self.course.between(self.at_fork, until_ns)

    def past(self) -> list[Record]:
        """The records that were read, up to the fork."""
        return [one for one in self.records if one.seq <= self.fork.seq]

    def time_of(self, seq: int) -> int:
        """Log time of a record that was read; 0: it was not."""
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
        """The state at the fork; nobody changes it."""
        return self.at_fork.replica


def read(
    records: Iterable[Record], *, base: Replica, is_before: Callable[[Record], bool]
) -> Recorded:
    """Read a log from behind `base`; `is_before` says of a record that the fork comes later.

    Damage behind the fork ends what is recorded. Raises LogError for damage before it.
    """
    kept: list[Record] = []
    names = Names()
    course = Course(copied(base) if base.seq else Replica(), names)
    fork: Course | None = None
    entries: list[Entry] = []
    problem = ""
    for record in records:
        if fork is None and not is_before(record):
            fork = course.forked(copied(course.replica), 0)
        try:
            if fork is None:
                course.follow(record)
            else:
                _script(course, record, entries)
        except LogError as err:
            if fork is None:
                raise
            problem = str(err)
            break
        kept.append(record)
    if fork is None:
        fork = course.forked(copied(course.replica), 0)
    course.close(course.t_ns)
    return Recorded(
        base=base,
        at_fork=fork,
        records=kept,
        entries=entries,
        course=course,
        names=names,
        problem=problem,
    )


def _script(course: Course, record: Record, entries: list[Entry]) -> None:
    """Follow one record, and keep what of it came from outside."""

    def lineage_of(row: int) -> Lineage:
        return course.placed.name_of(int(course.placed.in_rows(np.asarray([row]))[0]))

    def before(state: State, event: Event) -> None:
        entries.extend(
            entries_of(state, event, t_ns=state.t_ns, seq=record.seq, lineage_of=lineage_of)
        )

    course.follow(record, before)


class Played(msgspec.Struct, kw_only=True):
    """One fork that was run."""

    course: Course
    assumed: Assumed
    #: it came to rest.
    settled: bool
    #: hash of all it wrote.
    digest: str
    #: what it wrote, where that was asked for.
    records: list[Record]
    #: what roles said of what they could not do.
    refused: list[str]

    def slim(self) -> "Played":
        """Let go of everything but figures, so that it can be sent to another process."""
        self.course.detach()
        return self


def play(
    recorded: Recorded,
    entries: list[Entry],
    *,
    workers: int,
    until_ns: int,
    settle: bool,
    resample: bool = False,
    keep: bool = False,
    seed: int = 1,
) -> Played:
    """Run a script from the fork to `until_ns`; with `settle`, on until nothing happens any more."""
    course = recorded.at_fork.forked(recorded.fork, until_ns)
    lasting = Lasting(recorded.course, course.begin_ns, resample=resample, seed=seed)

    alive: list[RecordedLives] = []

    def lives(seed: int, state: Callable[[], State]) -> RecordedLives:
        alive.append(RecordedLives(seed, state, course, lasting))
        return alive[0]

    kept: list[Record] = []
    engine = Engine(
        Setup(
            schedulers=workers,
            seed=seed,
            start=recorded.fork,
            sink=kept.append if keep else _forget,
            lives=lives,
        )
    )
    course.attend(engine.state)
    engine.follow(course.observe)
    engine.feed(sorted(_happenings(entries), key=itemgetter(0)))
    for one in entries:
        if one.lineage is not None and one.t_ns <= until_ns:
            # Whom it means is only known when it is time.
            engine.run(one.t_ns)
            key = course.placed.key_of(one.lineage)
            if key:
                engine.at(one.t_ns, msgspec.structs.replace(one.command, alloc_key=key))
    engine.run(until_ns)
    settled = _settle(engine, alive[0]) if settle else False
    course.pause(max(until_ns, course.t_ns))
    return Played(
        course=course,
        assumed=lasting.assumed,
        settled=settled,
        digest=engine.digest,
        records=kept,
        refused=engine.stats.dead_letters,
    )


def _settle(engine: Engine, lives: RecordedLives) -> bool:
    """Run on until nothing happens any more and nothing will; tell whether that came in time."""
    limit_ns = engine.now_ns + SETTLE_NS
    while engine.settle(quiet_ns=_QUIET_NS, limit_ns=max(limit_ns - engine.now_ns, 1)):
        due_ns = _next_ns(engine, lives)
        if not due_ns:
            return True
        if due_ns > limit_ns:
            engine.run(limit_ns)
            return False
        engine.run(due_ns)
    return False


def _next_ns(engine: Engine, lives: RecordedLives) -> int:
    """When the next task ends or the next evaluation wakes by itself; 0: none will."""
    ends_ns = lives.next_due_ns()
    table = engine.state.evaluations
    found = [table.by_key[key].wait_until_ns for key in table.open]
    found.append(ends_ns + engine.begin_ns if ends_ns else 0)
    return min((one for one in found if one > engine.now_ns), default=0)


def _forget(_record: Record) -> None:
    """Nobody wants to see what a fork writes."""


def _happenings(entries: list[Entry]) -> Iterable[tuple[int, Happening | AnyCommand]]:
    """What the engine is told of a script at once."""
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
        elif one.lineage is None:
            yield one.t_ns, command
