"""Follows the projection of this node and the job versions that it names.

Decides whether a projection is an order, which allocations exist here, and when an allocation is forgotten. Must not
know how a task runs (`tasks/supervisor.py`). A job version is fetched once and kept while an allocation uses it.
"""

from collections import deque
from collections.abc import Container, Sequence

import msgspec

from schemas.envelope import ENCODER
from schemas.nodes import AllocReport, NodeSpec
from schemas.projections import NodeProjection
from services.agent.disconnect_stop import DisconnectStop
from services.agent.reports import Reports
from services.agent.tasks.check_monitor import CheckMonitor
from services.agent.tasks.device_health import note_device_health
from services.agent.tasks.environment import with_operator_meta
from services.agent.tasks.health_monitor import HealthMonitor
from services.agent.tasks.input_monitor import InputMonitor
from services.agent.tasks.job_spec_cache import JobSpecCache
from services.agent.tasks.network_monitor import NetworkMonitor
from services.agent.tasks.remote_ends import RemoteEnds
from services.agent.tasks.remote_tasks import reported_remotes
from services.agent.tasks.resolved_group import RESOLVED_GROUP_DECODER, ResolvedGroup, resolve_group
from services.agent.tasks.retired_allocs import RetiredAllocs
from services.agent.tasks.runtime_state import AllocRuntime
from services.agent.tasks.supervisor import AgentStep, Supervisor, limit_logs
from services.agent.tasks.volume_monitor import VolumeMonitor
from shared.core.runtime.agent_messages import (
    AllocForgotten,
    AllocKept,
    Answer,
    Ask,
    ClusterKept,
    HealthKept,
    JournalEntry,
    RemoveAlloc,
    SweepAllocs,
    TaskKept,
)
from shared.core.runtime.desired_allocs import (
    EVICT,
    DesiredAlloc,
    is_same_desired,
    read_desired_allocs,
)
from shared.core.runtime.messages import Ack, Message, Stop
from shared.core.runtime.volume_messages import VolumeForgotten, VolumeKept
from shared.errors import CommandInvalid
from shared.protocol import subjects

STOPPED = "stopped by the cluster"
NOT_ASSIGNED = "no longer assigned to this node"
OF_LOST_LOG = "unknown to the log, which was restored from an older copy"
ENDED_BEFORE = "it had ended here when the log was restored from an older copy"
#: So often within this time another boot takes the place of ours in the log: it is not a late message, but alive.
DISPLACED_MAX, DISPLACED_WITHIN_NS = 6, 60_000_000_000
#: Name of the question what the projection is now.
PROJECTION_QUERY = "projection"

_PROJECTION = msgspec.json.Decoder(NodeProjection)


class AgentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an agent."""

    #: directories of this many ended allocations stay, so that their logs can be read (Nomad: gc_max_allocs 50).
    kept_allocs_max: int = 50
    #: end an allocation that takes more disk than it asked for; else it is only said.
    disk_kill: bool = False
    #: say in brief how allocations are, leaving their tasks out unless one failed.
    brief: bool = False


class NodeReconciler:
    """The allocations of this node and where each came from."""

    def __init__(
        self,
        *,
        node_id: str,
        host_id: str,
        boot_id: str,
        reports: Reports,
        supervisor: Supervisor,
        settings: AgentLimits,
        kernel_boot: str = "",
    ) -> None:
        self._node_id = node_id
        self._host_id = host_id
        self._boot_id = boot_id
        self._reports = reports
        self._supervisor = supervisor
        self.allocs: dict[int, AllocRuntime] = {}
        self._retired = RetiredAllocs(settings.kept_allocs_max)
        self.cluster_id = ""
        self.seq = 0
        #: incarnation of the log that the seq is of.
        self.incarnation = 0
        #: of the plan applier, as a projection last told; -1: none was heard.
        self._epoch = -1
        #: how often the log turned out to be an older copy.
        self.rollbacks = 0
        #: a projection of our cluster was heard in this life, the first at `_first_seq`.
        self._heard = False
        self._first_seq = 0
        #: the projection of which everything was done, in this life.
        self._told: NodeProjection | None = None
        #: an evicted allocation still runs: nothing new starts.
        self._is_crowded = False
        #: job versions: their text, and those asked for.
        self._texts = JobSpecCache(node_id)
        #: plans of job versions, and how the journal has them: allocations of a group share one.
        self._plans: dict[tuple[str, int, str], tuple[ResolvedGroup, bytes]] = {}
        self._looks = False
        #: what an operator says of this node; what runs keeps what it was started with.
        self._operator_meta: dict[str, str | None] = {}
        self.silence = DisconnectStop(self._keep_mark)
        self.health = HealthMonitor(reports, self.allocs, boot=kernel_boot)
        self.checks = CheckMonitor(reports, supervisor, self.allocs)
        self.inputs = InputMonitor(reports, supervisor, self.allocs)
        self.networks = NetworkMonitor(reports, supervisor, self.allocs)
        self.volumes = VolumeMonitor(reports.volumes, self.allocs)
        #: what the fingerprint says; the node has volumes beside it.
        self._found = supervisor.fingerprinted_node
        self.remote_ends = RemoteEnds(node_id)
        #: allocations that wait for the allocation whose data they inherit.
        self._heirs: set[int] = set()
        #: ended and forgotten under a log that was lost: the restored one may want them.
        self._ended_before: Container[int] = frozenset()
        self._why_omitted = NOT_ASSIGNED
        #: ended with an earlier life of the agent, and continued by this one.
        self._resumed: list[AllocRuntime] = []
        #: when another boot took the place of ours in the log.
        self._displaced: deque[int] = deque(maxlen=DISPLACED_MAX)
        self._ignored = {"foreign": 0, "older": 0, "undecodable": 0}

    def counters(self) -> dict[str, float]:
        """Projections that were no orders, by reason."""
        return {
            "caravan_agent_log_rollbacks_total": self.rollbacks,
            **{
                f'caravan_agent_projections_ignored_total{{reason="{reason}"}}': count
                for reason, count in self._ignored.items()
            },
        }

    def report_of(self, key: int) -> AllocReport:
        """The state of one allocation."""
        alloc = self.allocs[key]
        remotes = reported_remotes(alloc)
        return (
            msgspec.structs.replace(alloc.report(), remotes=remotes) if remotes else alloc.report()
        )

    def node_found(self, found: NodeSpec | None, turn: AgentStep) -> None:
        """Register again as what the node is now; what runs keeps what it was started with.

        `found`: a new fingerprint; None: only its volumes changed.
        """
        self._found = found or self._found
        spec = self.volumes.added_to(self._found)
        before = self._supervisor.fingerprinted_node
        note_device_health(self.allocs.values(), before, spec, reports=self._reports, turn=turn)
        self._reports.register(spec)
        self._supervisor.fingerprinted_node = spec
        self._supervisor.node = with_operator_meta(spec, self._operator_meta)

    # ---- an earlier life ----

    def restore(self, journal: Sequence[JournalEntry]) -> None:
        """Take up what the journal holds; nothing is done before `wake`."""
        for entry in journal:
            match entry:
                case ClusterKept():
                    self.cluster_id, self.seq = entry.cluster_id, entry.seq
                    self._supervisor.cluster_id = self.cluster_id
                    self.incarnation = entry.incarnation
                    self.silence.restore(entry.heard_ns)
                case AllocKept():
                    alloc = self.allocs.setdefault(entry.alloc.key, AllocRuntime(entry.alloc))
                    alloc.desired = entry.alloc
                    alloc.first_ns, alloc.end = entry.first_ns, entry.end
                    alloc.address, alloc.network_lost = entry.address, entry.network_lost
                    alloc.held = True
                    alloc.stopping = entry.alloc.desired != "run"
                    if bytes(entry.plan) != b"{}":
                        plan = RESOLVED_GROUP_DECODER.decode(entry.plan)
                        # What an older release compiled is compiled again, with all fields of this one.
                        version = entry.alloc.version if plan.job_type else -1
                        alloc.adopt_plan(plan, version)
                        self.silence.watch(alloc)
                case TaskKept():
                    owner = self.allocs.get(entry.key)
                    if owner is not None and entry.task in owner.tasks:
                        owner.tasks[entry.task].restore(entry)
                case HealthKept():
                    self.health.restore(entry)
                case AllocForgotten():
                    self.allocs.pop(entry.key, None)
                case VolumeKept() | VolumeForgotten():
                    self.volumes.restore(entry)
        self._supervisor.node = self.volumes.added_to(self._found)
        self._supervisor.fingerprinted_node = self._supervisor.node
        self._reports.register(self._supervisor.node)
        self._resumed = [alloc for alloc in self.allocs.values() if alloc.resume()]

    def wake(self, turn: AgentStep) -> None:
        """Adopt what ran. What did not run waits until a projection still wants it."""
        self.silence.start_clock(turn)
        if self.cluster_id:
            # Without a journal the owner of the directories is unknown: nothing is deleted.
            turn.act(SweepAllocs(tuple(one.desired.alloc_id for one in self.allocs.values())))
        self.volumes.wake(turn)
        for alloc in self._resumed:
            turn.keep(alloc.kept(), *(task.kept(alloc.key) for task in alloc.tasks.values()))
        node = self._supervisor.fingerprinted_node
        note_device_health(self.allocs.values(), None, node, reports=self._reports, turn=turn)
        for alloc in self.allocs.values():
            self._reports.touch(alloc.key)
            self.networks.adopt(alloc, turn)
            self._supervisor.recover(alloc, turn)
            if alloc.stopping:
                self._supervisor.stop(alloc, "stop was ordered before the restart", turn)
            else:
                self._supervisor.advance(alloc, turn)

    # ---- orders ----

    def take_projection(self, message: Message, turn: AgentStep) -> None:
        """Follow a projection if it is an order."""
        turn.act(Ack(message.token))
        self.silence.heard_ns = turn.now_ns
        self._take_value(message.data, turn)

    def look(self, turn: AgentStep) -> None:
        """Ask what the projection is now: a push may be lost, and the next one comes only with the next change."""
        if not self._looks:
            self._looks = True
            subject = subjects.js_direct_get("NODE", subjects.node(self._node_id))
            turn.act(Ask(name=PROJECTION_QUERY, subject=subject, data=b""))

    def _take_value(self, data: bytes, turn: AgentStep) -> None:
        try:
            wanted = _PROJECTION.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Counted only: an agent may not publish to the place of dead letters.
            self._ignored["undecodable"] += 1
            return
        problem = self._identity_conflict(wanted)
        if problem:
            turn.act(Stop(problem))
            return
        if wanted.node_id != self._node_id or self.cluster_id not in ("", wanted.cluster_id):
            self._ignored["foreign"] += 1
            return
        if self._is_older(wanted):
            self._ignored["older"] += 1
            return
        is_new = (
            self._told is None
            or wanted.incarnation != self.incarnation
            or not is_same_desired(wanted, self._told)
        )
        try:
            allocs = read_desired_allocs(wanted) if is_new else None
        except (ValueError, OverflowError):
            self._ignored["undecodable"] += 1
            return
        self._accept(wanted, allocs, turn)

    def _is_doubled(self, wanted: NodeProjection) -> bool:
        """Say whether another boot takes our place in the log again and again: a late word of an earlier life ends."""
        times = self._displaced
        is_often = len(times) == DISPLACED_MAX and times[-1] - times[0] < DISPLACED_WITHIN_NS
        return is_often and self._reports.is_registered and wanted.boot_id != self._boot_id

    def _is_older(self, wanted: NodeProjection) -> bool:
        return (wanted.incarnation, wanted.seq) < (self.incarnation, self.seq)

    def _identity_conflict(self, wanted: NodeProjection) -> str:
        """Say why this agent must not continue under its id; empty: it may."""
        if wanted.node_id != self._node_id:
            return ""
        if self.cluster_id not in ("", wanted.cluster_id):
            if self._heard:
                return ""
            return (
                f"data directory of node {self._node_id} belongs to cluster {self.cluster_id}, "
                f"but the bus serves cluster {wanted.cluster_id}: use another directory or bus"
            )
        if self._is_older(wanted):
            return ""
        if wanted.host_id not in ("", self._host_id):
            return (
                f"node id {self._node_id} belongs to host {wanted.host_id}, but this is host "
                f"{self._host_id}: give this node another id"
            )
        if self._is_doubled(wanted):
            return (
                f"another agent runs as node {self._node_id} in a copy of this data directory, boot "
                f"{wanted.boot_id}: stop one of them, or give it an id and a directory of its own"
            )
        # The last value may hold a refusal from before this start, or of another agent with this id.
        ours = wanted.boot_id != self._boot_id and self._heard and wanted.seq > self._first_seq
        if wanted.refused and ours and not self._reports.is_registered:
            return f"node {self._node_id} was refused: {wanted.refused}"
        return ""

    def _accept(
        self, wanted: NodeProjection, allocs: Sequence[DesiredAlloc] | None, turn: AgentStep
    ) -> None:
        """Follow an order. `allocs`: what it wants; None: what the last one wanted."""
        self._told = wanted
        if not self._heard:
            self._heard, self._first_seq = True, wanted.seq
        changed = self.cluster_id != wanted.cluster_id
        before = (self.incarnation, self.seq)
        if wanted.incarnation != self.incarnation:
            changed = True
            self._enter_incarnation(wanted)
        self.cluster_id, self.seq = wanted.cluster_id, wanted.seq
        self._supervisor.cluster_id = self.cluster_id
        if wanted.boot_id == self._boot_id:
            self._reports.see(wanted.reports_seen)
            if wanted.epoch > self._epoch >= 0:
                # What the former applier was sent may wait in its queue, or be lost with it.
                self._reports.hurry()
            self._epoch = max(self._epoch, wanted.epoch)
        elif self._reports.is_registered:
            # The log does not know this boot (any more): it forgot the node, or a late word of an earlier life came in
            # between, and with it states that are not ours.
            self._displaced.append(turn.now_ns)
            self._reports.register()
            for key in self.allocs:
                self._reports.touch(key)
        if wanted.operator_meta != self._operator_meta:
            self._operator_meta = wanted.operator_meta
            self._supervisor.node = with_operator_meta(
                self._supervisor.fingerprinted_node, wanted.operator_meta
            )
        if allocs is not None:
            changed = self._follow(allocs, turn) or changed
            self._why_omitted = NOT_ASSIGNED
        if self.volumes.follow(wanted.volumes, turn):
            self.node_found(None, turn)
        self.remote_ends.follow(self.cluster_id, wanted.remote_ends, turn)
        if self._is_known:
            for alloc in [one for one in self.allocs.values() if one.held]:
                self._plan(alloc, turn)
        if changed or (self.incarnation, self.seq) > before:
            # Without waiting for the disk where nothing hangs on it: a kill of the agent loses no write.
            self._keep_mark(turn, sync=changed)

    @property
    def _is_known(self) -> bool:
        """Whether the log has this life of the node."""
        return self._told is not None and self._told.boot_id == self._boot_id

    def _holds_back(self, alloc: AllocRuntime) -> bool:
        """Tell whether nothing of it starts yet: while the log has an earlier life, the node may be confirmed dead."""
        return alloc.plan is not None and alloc.plan.stateful and not self._is_known

    def _enter_incarnation(self, wanted: NodeProjection) -> None:
        """Follow a new incarnation of the log. Where it lost what we have seen, nothing of that counts any more."""
        followed = (self.incarnation, self.seq)
        self.incarnation = wanted.incarnation
        is_lost = self.seq >= wanted.first_seq
        if not self.seq or (not is_lost and followed[0] == wanted.former_incarnation):
            return
        # Of an incarnation that we missed only the log can tell whether it lost something.
        # A version of a job may be another text now, and what the log had seen of us it has forgotten.
        self._texts, self._plans = JobSpecCache(self._node_id), {}
        self._reports.register(followed=followed)
        for key in self.allocs:
            self._reports.touch(key)
        self.volumes.retell()
        if is_lost:
            self.rollbacks += 1
            self._ended_before = self._retired.keys()
            self._why_omitted = OF_LOST_LOG

    def _follow(self, allocs: Sequence[DesiredAlloc], turn: AgentStep) -> bool:
        """Make the allocations those that are wanted; returns whether anything changed."""
        changed = False
        named = {one.key for one in allocs}
        for alloc in self.allocs.values():
            alloc.held = self._holds_back(alloc)
            if alloc.key not in named and not alloc.omitted:
                alloc.omitted = changed = True
                self._order_stop(alloc, self._why_omitted, turn)
        # Evictions first: their successors must see them leaving.
        for one in allocs:
            if one.desired == EVICT:
                changed = self._want(one, turn) or changed
        self._is_crowded = self._has_leaving()
        for one in allocs:
            if one.desired != EVICT:
                changed = self._want(one, turn) or changed
        return changed

    def _keep_mark(self, turn: AgentStep, *, sync: bool = False) -> None:
        mark = ClusterKept(
            cluster_id=self.cluster_id,
            seq=self.seq,
            incarnation=self.incarnation,
            heard_ns=self.silence.kept_ns(),
        )
        turn.keep(mark, sync=sync)

    def _want(self, one: DesiredAlloc, turn: AgentStep) -> bool:
        """Make one allocation as it is wanted; returns whether anything changed."""
        alloc = self.allocs.get(one.key)
        if alloc is None:
            if one.key in self._retired and one.key not in self._ended_before:
                return False
            # Pending is what the log knows of it: there is nothing to report before something happens.
            alloc = self.allocs[one.key] = AllocRuntime(one)
            alloc.first_ns = turn.now_ns
            if one.key in self._ended_before:
                alloc.error = ENDED_BEFORE
                self._reports.touch(one.key)
                return True
            if one.desired != "run":
                alloc.stopping = True
                self._reports.touch(one.key)
                return True
            self._plan(alloc, turn)
            return True
        changed = one != alloc.desired
        alloc.omitted = False
        if (one.job_id, one.group) != (alloc.desired.job_id, alloc.desired.group):
            # One key is one allocation forever: what runs under it here is of a log that is no more.
            if not alloc.stopping:
                self._order_stop(
                    alloc, f"{OF_LOST_LOG}, in which its id is of job {one.job_id}", turn
                )
            return changed
        if one.desired == EVICT and alloc.stopping and changed:
            # It is leaving already; its successor waits for it, after a restart too.
            alloc.desired = one
            turn.keep(alloc.kept())
        elif one.desired != "run" and not alloc.stopping:
            alloc.desired = one
            reason = "evicted for a job of higher priority" if one.desired == EVICT else STOPPED
            self._order_stop(alloc, reason, turn)
        elif changed and not alloc.stopping:
            alloc.desired = one
            self._plan(alloc, turn)
        else:
            # It may come from the journal, or have waited for a text that is still missing.
            self._plan(alloc, turn)
        return changed

    def _order_stop(self, alloc: AllocRuntime, reason: str, turn: AgentStep) -> None:
        alloc.stopping = True
        if alloc.desired.desired == "run":
            alloc.desired = msgspec.structs.replace(alloc.desired, desired="stop")
        if alloc.end is not None:
            # Without the plan, which the journal has: only the order is new.
            turn.keep(alloc.kept())
        self._supervisor.stop(alloc, reason, turn)

    # ---- job versions ----

    def _plan(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        """Give an allocation the plan of its version, asking for the text if need be, and start what may."""
        wanted = alloc.desired
        if alloc.stopping or alloc.error:
            return
        if alloc.plan_version != wanted.version:
            text = self._texts.find(wanted.job_id, wanted.version, self.seq, turn)
            if text is None:
                return
            self._compile(alloc, text, turn)
        alloc.held = self._holds_back(alloc)
        alloc.waits = self._waits(alloc)
        if alloc.waits:
            self._heirs.add(alloc.key)
        alloc.crowded = self._is_crowded and not any(task.run for task in alloc.tasks.values())
        self._supervisor.advance(alloc, turn)

    def _waits(self, alloc: AllocRuntime) -> bool:
        """Say whether what an allocation takes over is still in use here."""
        if alloc.plan is None or not alloc.plan.inherits or not alloc.desired.previous:
            return False
        return any(
            one.desired.alloc_id == alloc.desired.previous and not one.is_dead()
            for one in self.allocs.values()
        )

    def _compile(self, alloc: AllocRuntime, text: bytes, turn: AgentStep) -> None:
        wanted = alloc.desired
        name = (wanted.job_id, wanted.version, wanted.group)
        try:
            if name not in self._plans:
                origin = self._texts.origin(wanted.job_id, wanted.version)
                made = resolve_group(text, wanted.group, origin)
                self._plans[name] = (made, ENCODER.encode(made))
            plan, encoded = self._plans[name]
        except CommandInvalid as err:
            self._reports.touch(alloc.key)
            if alloc.plan is None:
                alloc.error = err.message
            return
        is_new = alloc.plan is None
        alloc.adopt_plan(plan, alloc.desired.version)
        self.silence.watch(alloc)
        if not is_new:
            limit_logs(alloc, turn)
        turn.keep(alloc.kept(encoded))

    def take_answer(self, answer: Answer, turn: AgentStep) -> None:
        """A job version arrived, or did not; or what was looked for."""
        if answer.data is not None:
            self.silence.heard_ns = turn.now_ns
        if answer.name == PROJECTION_QUERY:
            self._looks = False
            if answer.data:
                self._take_value(answer.data, turn)
            elif answer.is_empty and self._reports.is_registered:
                # The log forgot this node, or never knew it: it was restored from an older copy.
                self._reports.register()
                for key in self.allocs:
                    self._reports.touch(key)
        elif self._texts.take(answer, turn):
            self.fetch_again(turn)

    def fetch_again(self, turn: AgentStep) -> None:
        """Continue with every allocation that waits for its job version."""
        for alloc in self.allocs.values():
            if not alloc.omitted and alloc.plan_version != alloc.desired.version:
                self._plan(alloc, turn)

    def update_health(self, turn: AgentStep) -> None:
        """Follow inputs, checks and health of what changed, once all messages of a step are taken."""
        self.volumes.sync(turn)
        self.networks.sync(self._supervisor.changed, turn)
        changed, self._supervisor.changed = self._supervisor.changed, {}
        self.inputs.sync(changed, turn)
        self.checks.sync({**changed, **self._supervisor.changed}, turn)
        self.health.update({**changed, **self._supervisor.changed}, turn)

    # ---- room ----

    def _has_leaving(self) -> bool:
        """Tell whether an evicted allocation still runs: its room is another's, and it is still in it."""
        return any(
            alloc.desired.desired == EVICT and not alloc.is_dead() for alloc in self.allocs.values()
        )

    def make_room(self, turn: AgentStep) -> None:
        """Start what waited for evicted allocations once the last of them is over."""
        if not self._is_crowded or self._has_leaving():
            return
        self._is_crowded = False
        for alloc in self.allocs.values():
            if alloc.crowded:
                alloc.crowded = False
                self._supervisor.advance(alloc, turn)

    # ---- the end of an allocation ----

    def forget_ended(self, turn: AgentStep) -> None:
        """Forget dead allocations that are reported, seen, and no longer in the projection."""
        for key in sorted(self._heirs):
            heir = self.allocs.get(key)
            if heir is None or not self._waits(heir):
                self._heirs.discard(key)
                if heir is not None:
                    heir.waits = False
                    self._supervisor.advance(heir, turn)
        over = [
            alloc
            for alloc in self.allocs.values()
            if alloc.omitted and alloc.is_dead() and self._reports.is_seen(alloc.key)
        ]
        for alloc in over:
            del self.allocs[alloc.key]
            self._reports.forget(alloc.key)
            self._retired.add(alloc, turn.now_ns)
        for key, alloc_id in self._retired.take_surplus(turn.now_ns):
            turn.act(RemoveAlloc(key=key, alloc_id=alloc_id))
            turn.keep(AllocForgotten(key=key))
        if over:
            wanted = [one.desired for one in self.allocs.values()]
            self._texts.keep_only((one.job_id, one.version) for one in wanted)
            used = {(one.job_id, one.version, one.group) for one in wanted}
            self._plans = {name: self._plans[name] for name in self._plans if name in used}
