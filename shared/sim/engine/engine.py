"""The engine: a cluster's real roles in virtual time, with simulated nodes, driven by a script.

    engine = SimulationEngine(EngineSetup(seed=1, profile=profile))
    engine.at(t_ns, ScriptedSubmission(body=…))         # wall time of the run, ns since 1970
    engine.run(until_ns)
    engine.state, engine.records, engine.stats

The same setup and script write the same log, byte for byte. Transport between roles: cluster.py; nodes:
simulated_nodes.py.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from schemas.base import NodeId
from schemas.deployments import DeploymentDue
from schemas.envelope import ENCODER, AnyCommand, CommandBatch, LogRecord
from schemas.evaluations import EndEvaluations, WakeEvaluations
from schemas.gates import GateDue
from schemas.jobs import EvaluateJob, RegisterJob, StopJob, Verdict
from schemas.nodes import ChangeLiveness
from schemas.rollouts import RegisterJobs
from shared.core.runtime import messages
from shared.core.runtime.replica import Replica
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, RUNNING, TERMINAL
from shared.core.state.tables.fleet import DISCONNECTED, DOWN
from shared.fleet.outages import Outages
from shared.fleet.profile import NodeProfile
from shared.protocol import subjects
from shared.sim.engine.cluster import SimulatedCluster
from shared.sim.engine.heartbeat_suppression import HeartbeatSuppressor
from shared.sim.engine.run_setup import (
    EngineSetup,
    EngineStats,
    NodeComesBack,
    NodeFallsSilent,
    NodeJoins,
    ScriptedEvent,
    ScriptedSubmission,
)
from shared.sim.engine.simulated_nodes import SimulatedNodes
from shared.sim.engine.timed_decisions import EvaluationLatency, TimedDecision
from shared.sim.virtual_time import SECOND, VirtualLoop

Scripted = ScriptedEvent | AnyCommand
_VERDICT = msgspec.json.Decoder(Verdict)
#: Subject kind of a scripted command: that of its usual sender; the others are the operator's.
_KINDS: dict[type, str] = {
    **dict.fromkeys((RegisterJob, RegisterJobs, StopJob, EvaluateJob), "job"),
    **dict.fromkeys((WakeEvaluations, EndEvaluations), "evaluation"),
    ChangeLiveness: "liveness",
    DeploymentDue: "timer",
    GateDue: "timer",
}


class SimulationEngine:
    """One run."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        start = setup.start
        self.begin_ns = setup.begin_ns if start is None else start.chain.t_ns
        self._loop = VirtualLoop()
        self._cluster = SimulatedCluster(self._loop, setup, self.begin_ns)
        self._node_profile = NodeProfile(setup.profile)
        self._nodes = SimulatedNodes(
            self._loop,
            lambda: self.state,
            lambda subject, data: self._cluster.command("report", subject, data),
            seed=setup.seed,
            node_profile=self._node_profile,
            times=setup.times,
            lives=None if setup.lives is None else setup.lives(setup.seed, lambda: self.state),
        )
        self._watch = HeartbeatSuppressor(self._loop, self._cluster.heartbeat, lambda: self.state)
        self._cluster.heartbeat.may_park = lambda: not self._watch.is_scanning
        self._cluster.followers.append(self._nodes.follow)
        self._cluster.on_verdict = self._verdict
        #: decided evaluations, and latencies from lease to end, in order of time.
        self.decisions: list[TimedDecision] = self._cluster.decisions
        self.latencies: list[EvaluationLatency] = self._cluster.latencies
        #: silent nodes, and whether they died.
        self._gone: dict[NodeId, bool] = {}
        #: nodes in the order in which they joined, and those that fail by the profile.
        self._numbers: dict[NodeId, int] = {}
        self._failing: set[NodeId] = set()
        self._outages = Outages(self._node_profile, setup.seed)
        self._outage_ns = 0
        #: called with each refusal.
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
        """The state that readers see."""
        return self._cluster.shared.state

    @property
    def replica(self) -> Replica:
        """The replica that readers share."""
        return self._cluster.shared

    @property
    def records(self) -> list[messages.Record]:
        """All records, in a run without a sink."""
        assert self.setup.sink is None, "records went to the sink"
        return self._cluster.records

    @property
    def digest(self) -> str:
        """Hash of all bytes written so far: 32 hex digits."""
        return self._cluster.digest

    @property
    def stats(self) -> EngineStats:
        """Counts so far."""
        self._cluster.count()
        self._cluster.stats.reports = self._nodes.reports
        return self._cluster.stats

    def follow(self, follower: Callable[[LogRecord, int], None]) -> None:
        """Call `follower` with each decoded record and its seq, once the state has applied it."""
        self._cluster.followers.append(follower)

    # ---- the script ----

    def at(self, t_ns: int, event: Scripted) -> None:
        """Schedule an event at `t_ns`, or now if that is past."""
        self._loop.at(t_ns - self.begin_ns, self._apply, event)

    def call(self, t_ns: int, action: Callable[[], None]) -> None:
        """Call `action` at `t_ns`."""
        self._loop.at(t_ns - self.begin_ns, action)

    def feed(self, events: Iterable[tuple[int, Scripted]]) -> None:
        """Schedule events from an iterable in order of time, read one at a time."""
        self._feed(iter(events))

    def _feed(self, rest: Iterator[tuple[int, Scripted]]) -> None:
        one = next(rest, None)
        if one is not None:
            self._loop.at(one[0] - self.begin_ns, self._apply_and_feed, one[1], rest)

    def _apply_and_feed(self, event: Scripted, rest: Iterator[tuple[int, Scripted]]) -> None:
        self._apply(event)
        self._feed(rest)

    def run(self, until_ns: int) -> None:
        """Run up to `until_ns`, wall time of the run. Raises EngineStopped."""
        self._loop.run(until_ns - self.begin_ns)

    def settle(self, quiet_ns: int = 2 * SECOND, limit_ns: int = 3_600 * SECOND) -> bool:
        """Run until nothing is written for `quiet_ns`; returns whether that was within `limit_ns`."""
        until = self.now_ns + limit_ns
        while self.now_ns < until:
            before = self._cluster.written
            self.run(self.now_ns + quiet_ns)
            if self._cluster.written == before:
                return True
        return False

    def _apply(self, one: Scripted) -> None:
        match one:
            case ScriptedSubmission():
                self._cluster.stats.submissions += 1
                self._cluster.ask(one.verb, one.body, one.submission_id)
            case NodeJoins():
                self._join(one)
            case NodeFallsSilent():
                self._fall_silent(one.node_id, dies=one.dies)
            case NodeComesBack():
                self._come_back(one.node_id)
            case _:
                kind = _KINDS.get(type(one), "operator")
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
            # A node that registers is no longer silent.
            self._watch.silent.pop(row, None)
        self._nodes.join(one.spec)
        self._begin_outages(node_id)

    def _fall_silent(self, node_id: NodeId, *, dies: bool) -> None:
        row = self.state.fleet.row_of.get(node_id)
        if row is None or node_id in self._gone:
            return
        self._gone[node_id] = dies
        self._nodes.silence(row, dies=dies)
        self._watch.node_silenced(row)

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
            self._watch.node_returned(row)
            self._loop.after(self.setup.times.projection_ns, self._nodes.reconnect_node, row)

    # ---- failures of the profile ----

    def _begin_outages(self, node_id: NodeId) -> None:
        if self._node_profile.has_failures and node_id not in self._failing:
            self._failing.add(node_id)
            self._outages.add(self._numbers[node_id], self._loop.now_ns)
            self._plan_outage()

    def _plan_outage(self) -> None:
        """Schedule the next failure or return, unless an earlier one is scheduled."""
        at_ns = self._outages.next_ns()
        if at_ns and (not self._outage_ns or at_ns < self._outage_ns):
            self._outage_ns = at_ns
            self._loop.at(at_ns, self._outage, at_ns)

    def _outage(self, at_ns: int) -> None:
        if at_ns != self._outage_ns:
            return
        self._outage_ns = 0
        ids = list(self._numbers)
        for number in self._outages.take_failed(at_ns):
            self._fall_silent(ids[number], dies=True)
        for number, _ in self._outages.returned(at_ns):
            self._come_back(ids[number])
        self._plan_outage()

    # ---- continuing from a recorded state ----

    def _adopt(self) -> None:
        """Take over nodes and their allocations, which run on as the setup says."""
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
            else:
                self._begin_outages(node_id)
        held = table.live_rows()
        held = held[~TERMINAL[table.client[held]]]
        self._nodes.resume(held[table.client[held] == RUNNING])
        fresh = held[(table.client[held] != RUNNING) & (table.desired[held] == RUN)]
        self._nodes.order(fresh, held[table.desired[held] != RUN])
        if bool((fleet.live[: fleet.size] & (fleet.status[: fleet.size] == DISCONNECTED)).any()):
            self._watch.begin()
