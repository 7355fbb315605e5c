"""What the cluster wants of this node: its projection, the job versions that it names, and what is done with both.

Decides whether a projection is an order, which allocations exist here, and when the last trace of one goes. Must not
know how a task lives (`supervise.py`). A job version is asked for once and kept while an allocation uses it.
"""

from collections.abc import Sequence

import msgspec

from schemas.envelope import ENCODER
from schemas.nodes import AllocReport, NodeSpec
from schemas.projections import NodeProjection
from services.agent.environment import with_meta
from services.agent.reports import Reports
from services.agent.silence import Silence
from services.agent.spec import PLAN_DECODER, GroupPlan, group_plan
from services.agent.supervise import Supervisor, Turn
from services.agent.texts import Texts
from services.agent.workload import Alloc
from shared.bus import subjects
from shared.core.role import Ack, Message, Stop
from shared.core.tasks import (
    AllocForgotten,
    AllocKept,
    Answer,
    Ask,
    ClusterKept,
    JournalEntry,
    RemoveAlloc,
    SweepAllocs,
    TaskKept,
)
from shared.core.wanted import EVICT, DesiredAlloc, same_order, wanted_allocs
from shared.errors import CommandInvalid

STOPPED = "stopped by the cluster"
#: Name of the question what the projection is now.
LOOK = "projection"

_PROJECTION = msgspec.json.Decoder(NodeProjection)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an agent."""

    #: directories of this many ended allocations stay, so that their logs can be read (Nomad: gc_max_allocs 50).
    kept_allocs_max: int = 50
    #: end an allocation that takes more disk than it asked for; else it is only said.
    disk_kill: bool = False
    #: say in brief how allocations are, leaving their tasks out unless one failed.
    brief: bool = False


class Desired:
    """The allocations of this node and where each came from."""

    def __init__(
        self,
        *,
        node_id: str,
        host_id: str,
        boot_id: str,
        reports: Reports,
        supervisor: Supervisor,
        settings: Settings,
    ) -> None:
        self._node_id = node_id
        self._host_id = host_id
        self._boot_id = boot_id
        self._reports = reports
        self._supervisor = supervisor
        self._settings = settings
        self.allocs: dict[int, Alloc] = {}
        #: ended, seen and no longer wanted: only the directories are left; oldest first.
        self._retired: dict[int, str] = {}
        self.cluster_id = ""
        self.seq = 0
        #: a projection of our cluster was heard in this life, the first at `_first_seq`.
        self._heard = False
        self._first_seq = 0
        #: the projection of which everything was done, in this life.
        self._told: NodeProjection | None = None
        #: an evicted allocation still runs: nothing new starts.
        self._is_crowded = False
        #: job versions: their text, and those asked for.
        self._texts = Texts()
        #: plans of job versions, and how the journal has them: allocations of a group share one.
        self._plans: dict[tuple[str, int, str], tuple[GroupPlan, bytes]] = {}
        self._looks = False
        #: what an operator says of this node; what runs keeps what it was started with.
        self._operator_meta: dict[str, str | None] = {}
        self.silence = Silence(self._keep_mark)
        #: allocations that wait for whoever has the data that they take over.
        self._heirs: set[int] = set()
        self._ignored = {"foreign": 0, "older": 0, "undecodable": 0}

    def counters(self) -> dict[str, float]:
        """Projections that were no orders, by reason."""
        return {
            f'caravan_agent_projections_ignored_total{{reason="{reason}"}}': count
            for reason, count in self._ignored.items()
        }

    def report_of(self, key: int) -> AllocReport:
        """The state of one allocation."""
        return self.allocs[key].report()

    def node_found(self, spec: NodeSpec) -> None:
        """Register again as what the node is now; what runs keeps what it was started with."""
        self._reports.register(spec)
        self._supervisor.own_node = spec
        self._supervisor.node = with_meta(spec, self._operator_meta)

    # ---- an earlier life ----

    def restore(self, journal: Sequence[JournalEntry]) -> None:
        """Take up what the journal holds; nothing is done before `wake`."""
        for entry in journal:
            match entry:
                case ClusterKept():
                    self.cluster_id, self.seq = entry.cluster_id, entry.seq
                    self.silence.restore(entry.heard_ns)
                case AllocKept():
                    alloc = self.allocs.setdefault(entry.alloc.key, Alloc(entry.alloc))
                    alloc.desired = entry.alloc
                    alloc.first_ns, alloc.end = entry.first_ns, entry.end
                    alloc.held = True
                    alloc.stopping = entry.alloc.desired != "run"
                    if bytes(entry.plan) != b"{}":
                        alloc.adopt_plan(PLAN_DECODER.decode(entry.plan), entry.alloc.version)
                        self.silence.watch(alloc)
                case TaskKept():
                    owner = self.allocs.get(entry.key)
                    if owner is not None and entry.task in owner.tasks:
                        owner.tasks[entry.task].restore(entry)
                case AllocForgotten():
                    self.allocs.pop(entry.key, None)

    def wake(self, turn: Turn) -> None:
        """Adopt what ran. What did not run waits until a projection still wants it."""
        self.silence.wake(turn)
        if self.cluster_id:
            # Without a journal nobody knows whose all that is: nothing is deleted then.
            turn.act(SweepAllocs(tuple(one.desired.alloc_id for one in self.allocs.values())))
        for alloc in self.allocs.values():
            self._reports.touch(alloc.key)
            self._supervisor.recover(alloc, turn)
            if alloc.stopping:
                self._supervisor.stop(alloc, "stop was ordered before the restart", turn)
            else:
                self._supervisor.advance(alloc, turn)

    # ---- orders ----

    def take_projection(self, message: Message, turn: Turn) -> None:
        """Follow a projection if it is an order."""
        turn.act(Ack(message.token))
        self.silence.heard_ns = turn.now_ns
        self._take_value(message.data, turn)

    def look(self, turn: Turn) -> None:
        """Ask what the projection is now: a push may be lost, and the next one comes only with the next change."""
        if not self._looks:
            self._looks = True
            subject = subjects.js_direct_get("NODE", subjects.node(self._node_id))
            turn.act(Ask(name=LOOK, subject=subject, data=b""))

    def _take_value(self, data: bytes, turn: Turn) -> None:
        try:
            wanted = _PROJECTION.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Counted only: an agent may not publish to the place of dead letters.
            self._ignored["undecodable"] += 1
            return
        problem = self._stranger(wanted)
        if problem:
            turn.act(Stop(problem))
            return
        if wanted.node_id != self._node_id or self.cluster_id not in ("", wanted.cluster_id):
            self._ignored["foreign"] += 1
            return
        if wanted.seq < self.seq:
            self._ignored["older"] += 1
            return
        is_new = self._told is None or not same_order(wanted, self._told)
        try:
            allocs = wanted_allocs(wanted) if is_new else None
        except (ValueError, OverflowError):
            self._ignored["undecodable"] += 1
            return
        self._accept(wanted, allocs, turn)

    def _stranger(self, wanted: NodeProjection) -> str:
        """Say why this agent must not go on under its id; empty: it may."""
        if wanted.node_id != self._node_id:
            return ""
        if self.cluster_id not in ("", wanted.cluster_id):
            if self._heard:
                return ""
            return (
                f"data directory of node {self._node_id} belongs to cluster {self.cluster_id}, "
                f"the bus is of cluster {wanted.cluster_id}: use another directory or bus"
            )
        if wanted.seq < self.seq:
            return ""
        if wanted.host_id not in ("", self._host_id):
            return (
                f"node id {self._node_id} belongs to host {wanted.host_id}, this is host "
                f"{self._host_id}: give this node another id"
            )
        # The last value may tell of a refusal before our time, or of somebody else who tried our id.
        ours = wanted.boot_id != self._boot_id and self._heard and wanted.seq > self._first_seq
        if wanted.refused and ours and not self._reports.is_registered:
            return f"node {self._node_id} was refused: {wanted.refused}"
        return ""

    def _accept(
        self, wanted: NodeProjection, allocs: Sequence[DesiredAlloc] | None, turn: Turn
    ) -> None:
        """Follow an order. `allocs`: what it wants; None: what the last one wanted."""
        self._told = wanted
        if not self._heard:
            self._heard, self._first_seq = True, wanted.seq
        changed = self.cluster_id != wanted.cluster_id
        before = self.seq
        self.cluster_id, self.seq = wanted.cluster_id, wanted.seq
        if wanted.boot_id == self._boot_id:
            self._reports.see(wanted.reports_seen)
        elif self._reports.is_registered:
            # The log does not know this boot (any more): it forgot the node, or a late word of an earlier life came in
            # between, and with it states that are not ours.
            self._reports.register()
            for key in self.allocs:
                self._reports.touch(key)
        if wanted.operator_meta != self._operator_meta:
            self._operator_meta = wanted.operator_meta
            self._supervisor.node = with_meta(self._supervisor.own_node, wanted.operator_meta)
        if allocs is not None:
            changed = self._follow(allocs, turn) or changed
        if changed or wanted.seq > before:
            # Without waiting for the disk where nothing hangs on it: a kill of the agent loses no write.
            self._keep_mark(turn, sync=changed)

    def _follow(self, allocs: Sequence[DesiredAlloc], turn: Turn) -> bool:
        """Make the allocations those that are wanted; returns whether anything changed."""
        changed = False
        named = {one.key for one in allocs}
        for alloc in self.allocs.values():
            alloc.held = False
            if alloc.key not in named and not alloc.omitted:
                alloc.omitted = changed = True
                self._order_stop(alloc, "the cluster wants it here no more", turn)
        # Who was evicted goes first: what takes its place must find it leaving.
        for one in allocs:
            if one.desired == EVICT:
                changed = self._want(one, turn) or changed
        self._is_crowded = self._has_leaving()
        for one in allocs:
            if one.desired != EVICT:
                changed = self._want(one, turn) or changed
        return changed

    def _keep_mark(self, turn: Turn, *, sync: bool = False) -> None:
        mark = ClusterKept(
            cluster_id=self.cluster_id, seq=self.seq, heard_ns=self.silence.kept_ns()
        )
        turn.keep(mark, sync=sync)

    def _want(self, one: DesiredAlloc, turn: Turn) -> bool:
        """Make one allocation as it is wanted; returns whether anything changed."""
        alloc = self.allocs.get(one.key)
        if alloc is None:
            if one.key in self._retired:
                return False
            # Pending is what the log knows of it: there is nothing to report before something happens.
            alloc = self.allocs[one.key] = Alloc(one)
            alloc.first_ns = turn.now_ns
            if one.desired != "run":
                alloc.stopping = True
                self._reports.touch(one.key)
                return True
            self._plan(alloc, turn)
            return True
        changed = one != alloc.desired
        alloc.omitted = False
        if one.desired == EVICT and alloc.stopping and changed:
            # It leaves already; whoever comes now waits for it, after a restart too.
            alloc.desired = one
            turn.keep(alloc.kept())
        elif one.desired != "run" and not alloc.stopping:
            alloc.desired = one
            reason = "evicted for a more important job" if one.desired == EVICT else STOPPED
            self._order_stop(alloc, reason, turn)
        elif changed and not alloc.stopping:
            alloc.desired = one
            self._plan(alloc, turn)
        else:
            # It may come from the journal, or have waited for a text that is still missing.
            self._plan(alloc, turn)
        return changed

    def _order_stop(self, alloc: Alloc, reason: str, turn: Turn) -> None:
        alloc.stopping = True
        if alloc.desired.desired == "run":
            alloc.desired = msgspec.structs.replace(alloc.desired, desired="stop")
        if alloc.end is not None:
            # Without the plan, which the journal has: only the order is new.
            turn.keep(alloc.kept())
        self._supervisor.stop(alloc, reason, turn)

    # ---- job versions ----

    def _plan(self, alloc: Alloc, turn: Turn) -> None:
        """Give an allocation the plan of its version, asking for the text if need be, and start what may."""
        wanted = alloc.desired
        if alloc.stopping or alloc.error:
            return
        if alloc.plan_version != wanted.version:
            text = self._texts.find(wanted.job_id, wanted.version, self.seq, turn)
            if text is None:
                return
            self._compile(alloc, text, turn)
        alloc.waits = self._waits(alloc)
        if alloc.waits:
            self._heirs.add(alloc.key)
        alloc.crowded = self._is_crowded and not any(task.run for task in alloc.tasks.values())
        self._supervisor.advance(alloc, turn)

    def _waits(self, alloc: Alloc) -> bool:
        """Say whether what an allocation takes over is still in use here."""
        if alloc.plan is None or not alloc.plan.inherits or not alloc.desired.previous:
            return False
        return any(
            one.desired.alloc_id == alloc.desired.previous and not one.is_dead()
            for one in self.allocs.values()
        )

    def _compile(self, alloc: Alloc, text: bytes, turn: Turn) -> None:
        wanted = alloc.desired
        name = (wanted.job_id, wanted.version, wanted.group)
        try:
            if name not in self._plans:
                made = group_plan(text, wanted.group)
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
            self._supervisor.replanned(alloc, turn)
        turn.keep(alloc.kept(encoded))

    def take_answer(self, answer: Answer, turn: Turn) -> None:
        """A job version arrived, or did not; or what was looked for."""
        if answer.data is not None:
            self.silence.heard_ns = turn.now_ns
        if answer.name == LOOK:
            self._looks = False
            if answer.data:
                self._take_value(answer.data, turn)
        elif self._texts.take(answer, turn):
            self.fetch_again(turn)

    def fetch_again(self, turn: Turn) -> None:
        """Go on with every allocation that waits for its job version."""
        for alloc in self.allocs.values():
            if not alloc.omitted and alloc.plan_version != alloc.desired.version:
                self._plan(alloc, turn)

    # ---- room ----

    def _has_leaving(self) -> bool:
        """Tell whether an evicted allocation still runs: its room is another's, and it is still in it."""
        return any(
            alloc.desired.desired == EVICT and not alloc.is_dead() for alloc in self.allocs.values()
        )

    def make_room(self, turn: Turn) -> None:
        """Start what waited for evicted allocations once the last of them is over."""
        if not self._is_crowded or self._has_leaving():
            return
        self._is_crowded = False
        for alloc in self.allocs.values():
            if alloc.crowded:
                alloc.crowded = False
                self._supervisor.advance(alloc, turn)

    # ---- the end of an allocation ----

    def tidy(self, turn: Turn) -> None:
        """Let go of what is over: reported, seen, and no longer named by the projection."""
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
            self._retired[alloc.key] = alloc.desired.alloc_id
        while len(self._retired) > self._settings.kept_allocs_max:
            key = next(iter(self._retired))
            turn.act(RemoveAlloc(key=key, alloc_id=self._retired.pop(key)))
            turn.keep(AllocForgotten(key=key))
        if over:
            wanted = [one.desired for one in self.allocs.values()]
            self._texts.keep_only((one.job_id, one.version) for one in wanted)
            used = {(one.job_id, one.version, one.group) for one in wanted}
            self._plans = {name: self._plans[name] for name in self._plans if name in used}
