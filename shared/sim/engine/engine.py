"""The engine: a cluster's real roles in virtual time, with simulated nodes, driven by a script.

    engine = Engine(Setup(seed=1, profile=profile))
    engine.at(t_ns, Submission(body=…))         # wall time of the run, ns since 1970
    engine.run(until_ns)
    engine.state, engine.records, engine.stats

Decides what a scripted happening does, and which nodes fail by the profile. The same `Setup` and script write the same
log, byte for byte. What carries between roles: `cluster.py`; what nodes do: `nodes.py`.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from schemas.base import NodeId
from schemas.envelope import ENCODER, AnyCommand, CommandBatch
from schemas.envelope import Record as LogRecord
from schemas.jobs import Verdict
from shared.bus import subjects
from shared.core import role
from shared.core.replica import Replica
from shared.core.state import State
from shared.core.tables.allocations import RUN, RUNNING, TERMINAL
from shared.core.tables.fleet import DISCONNECTED, DOWN
from shared.fleet.laws import NEVER_NS, Int64s
from shared.fleet.profile import Habits
from shared.sim.engine.cluster import Cluster
from shared.sim.engine.deciding import Decided, Decision
from shared.sim.engine.nodes import SimNodes
from shared.sim.engine.recent import recent
from shared.sim.engine.routes import kind_of
from shared.sim.engine.setup import (
    Happening,
    NodeComesBack,
    NodeFallsSilent,
    NodeJoins,
    Setup,
    Stats,
    Submission,
)
from shared.sim.engine.silence import Watch
from shared.sim.loop import SECOND, Loop

Scripted = Happening | AnyCommand
_VERDICT = msgspec.json.Decoder(Verdict)


class Engine:
    """One run."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        start = setup.start
        self.begin_ns = setup.begin_ns if start is None else start.chain.t_ns
        self._loop = Loop()
        self._cluster = Cluster(self._loop, setup, self.begin_ns)
        self._habits = Habits(setup.profile)
        self._nodes = SimNodes(
            self._loop,
            lambda: self.state,
            lambda subject, data: self._cluster.command("report", subject, data),
            seed=setup.seed,
            habits=self._habits,
            times=setup.times,
            manner_of=setup.manner_of,
            lives=None if setup.lives is None else setup.lives(setup.seed, lambda: self.state),
        )
        self._watch = Watch(self._loop, self._cluster.heartbeat, lambda: self.state)
        self._cluster.heartbeat.parks = lambda: not self._watch.is_on
        self._cluster.followers.append(self._nodes.follow)
        self._cluster.on_verdict = self._verdict
        #: every evaluation that a worker decided, and every one from its lease to its end, in order of time.
        self.decisions: list[Decision] = self._cluster.decisions
        self.latencies: list[Decided] = self._cluster.latencies
        #: nodes that are silent, and whether they died.
        self._gone: dict[NodeId, bool] = {}
        #: number of a node among all that ever joined, and its outages so far.
        self._numbers: dict[NodeId, int] = {}
        self._outages: dict[NodeId, int] = {}
        #: hears of each verdict that is no acceptance.
        self.on_refused: Callable[[Verdict], None] | None = None
        if start is not None:
            self._adopt()

    # ---- what is seen ----

    @property
    def now_ns(self) -> int:
        """Wall clock of the run."""
        return self.begin_ns + self._loop.now_ns

    @property
    def state(self) -> State:
        """What everybody who reads has seen."""
        return self._cluster.shared.state

    @property
    def replica(self) -> Replica:
        """The state with its place in the log."""
        return self._cluster.shared

    @property
    def records(self) -> list[role.Record]:
        """Every record written, where there is no sink."""
        assert self.setup.sink is None, "records went to the sink"
        return self._cluster.records

    @property
    def digest(self) -> str:
        """Hash of all bytes written so far: 32 hex digits."""
        return self._cluster.digest

    @property
    def stats(self) -> Stats:
        """Counts so far."""
        self._cluster.count()
        self._cluster.stats.reports = self._nodes.reports
        return self._cluster.stats

    def follow(self, follower: Callable[[LogRecord, int], None]) -> None:
        """Let somebody hear of each record, decoded, with its seq, once the state has it."""
        self._cluster.followers.append(follower)

    # ---- the script ----

    def at(self, t_ns: int, happening: Scripted) -> None:
        """Let something happen at `t_ns`, or now where that is past."""
        self._loop.at(t_ns - self.begin_ns, self._happen, happening)

    def call(self, t_ns: int, action: Callable[[], None]) -> None:
        """Call somebody at `t_ns` who looks, or asks for what happens next."""
        self._loop.at(t_ns - self.begin_ns, action)

    def feed(self, happenings: Iterable[tuple[int, Scripted]]) -> None:
        """Let things happen that come in order of time; only the next one is looked at."""
        self._feed(iter(happenings))

    def _feed(self, rest: Iterator[tuple[int, Scripted]]) -> None:
        one = next(rest, None)
        if one is not None:
            self._loop.at(one[0] - self.begin_ns, self._fed, one[1], rest)

    def _fed(self, happening: Scripted, rest: Iterator[tuple[int, Scripted]]) -> None:
        self._happen(happening)
        self._feed(rest)

    def run(self, until_ns: int) -> None:
        """Let everything happen up to `until_ns`, wall time of the run. Raises EngineStopped."""
        with recent():
            self._loop.run(until_ns - self.begin_ns)

    def settle(self, quiet_ns: int = 2 * SECOND, limit_ns: int = 3_600 * SECOND) -> bool:
        """Run until nothing was written for `quiet_ns`; says whether that came before `limit_ns` were over."""
        until = self.now_ns + limit_ns
        while self.now_ns < until:
            before = self._cluster.written
            self.run(self.now_ns + quiet_ns)
            if self._cluster.written == before:
                return True
        return False

    def _happen(self, one: Scripted) -> None:
        match one:
            case Submission():
                self._cluster.stats.submissions += 1
                self._cluster.ask(one.verb, one.body, one.submission_id)
            case NodeJoins():
                self._join(one)
            case NodeFallsSilent():
                self._fall_silent(one.node_id, dies=one.dies)
            case NodeComesBack():
                self._come_back(one.node_id)
            case _:
                kind = kind_of(one)
                batch = CommandBatch(sender="script", commands=(one,))
                self._cluster.command(kind, subjects.command(kind), ENCODER.encode(batch))

    def _verdict(self, _token: int, data: bytes) -> None:
        if b'"status":"accepted"' in data:
            return
        verdict = _VERDICT.decode(data)
        code = verdict.error.code if verdict.error is not None else verdict.status
        refused = self._cluster.stats.refused
        refused[code] = refused.get(code, 0) + 1
        if self.on_refused is not None:
            self.on_refused(verdict)

    # ---- nodes ----

    def _join(self, one: NodeJoins) -> None:
        node_id = one.spec.node_id
        self._numbers.setdefault(node_id, len(self._numbers))
        row = self.state.fleet.row_of.get(node_id)
        if self._gone.pop(node_id, None) is not None and row is not None:
            # Whoever registers again is there again.
            self._watch.silent.pop(row, None)
        self._nodes.join(one.spec)
        if self._habits.has_outages and node_id not in self._outages:
            self._outages[node_id] = 0
            self._next_outage(node_id)

    def _fall_silent(self, node_id: NodeId, *, dies: bool) -> None:
        row = self.state.fleet.row_of.get(node_id)
        if row is None or node_id in self._gone:
            return
        self._gone[node_id] = dies
        self._nodes.silence(row, dies=dies)
        self._watch.fell_silent(row)

    def _come_back(self, node_id: NodeId) -> None:
        died = self._gone.pop(node_id, None)
        if died is None:
            return
        row = self.state.fleet.row_of.get(node_id)
        if row is not None:
            self._watch.silent.pop(row, None)
        if died or row is None:
            self._nodes.join(self._nodes.specs[node_id])
        else:
            self._watch.came_back(row)
            self._loop.after(self.setup.times.projection_ns, self._nodes.hear_again, row)

    # ---- failures of the profile ----

    def _drawn(self, law: Callable[[int, Int64s, Int64s], Int64s], node_id: NodeId) -> int:
        number = np.asarray([self._numbers[node_id]], dtype=np.int64)
        nth = np.asarray([self._outages[node_id]], dtype=np.int64)
        return int(law(self.setup.seed, number, nth)[0])

    def _next_outage(self, node_id: NodeId) -> None:
        wait_ns = self._drawn(self._habits.outages_after_ns, node_id)
        if wait_ns < NEVER_NS:
            self._loop.after(wait_ns, self._fails, node_id)

    def _fails(self, node_id: NodeId) -> None:
        away_ns = self._drawn(self._habits.aways_ns, node_id)
        boot_ns = self._drawn(self._habits.boots_ns, node_id)
        self._fall_silent(node_id, dies=True)
        self._loop.after(min(away_ns + boot_ns, NEVER_NS >> 1), self._recovers, node_id)

    def _recovers(self, node_id: NodeId) -> None:
        self._come_back(node_id)
        self._outages[node_id] += 1
        self._next_outage(node_id)

    # ---- going on from a recorded state ----

    def _adopt(self) -> None:
        """Take over nodes and what runs there: it runs on for as long as the setup says."""
        state = self.state
        fleet, table = state.fleet, state.allocations
        rows = np.flatnonzero(fleet.live[: fleet.size]).tolist()
        for row in rows:
            node_id = fleet.ids[row]
            self._numbers[node_id] = len(self._numbers)
            self._nodes.adopt(row)
            if fleet.status[row] in (DOWN, DISCONNECTED):
                self._gone[node_id] = bool(fleet.status[row] == DOWN)
                self._nodes.silence(row, dies=True)
                self._watch.silent[row] = None
            elif self._habits.has_outages:
                self._outages[node_id] = 0
                self._next_outage(node_id)
        held = table.live_rows()
        held = held[~TERMINAL[table.client[held]]]
        self._nodes.resume(held[table.client[held] == RUNNING], self.setup.left_ns)
        fresh = held[(table.client[held] != RUNNING) & (table.desired[held] == RUN)]
        self._nodes.order(fresh, held[table.desired[held] != RUN])
        if bool((fleet.live[: fleet.size] & (fleet.status[: fleet.size] == DISCONNECTED)).any()):
            self._watch.begin()
