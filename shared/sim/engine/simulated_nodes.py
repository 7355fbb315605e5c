"""Simulated nodes of the engine: read orders from the log, simulate allocations, report as agents do.

Reports are real ones, numbered by node and boot, each in its own message. No message is lost, so none is resent.
"""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import CLIENT_STATUSES
from schemas.base import NodeId
from schemas.envelope import ENCODER, CommandBatch, LogRecord
from schemas.jobs import GroupSpec, MigratePolicy, UpdatePolicy
from schemas.nodes import AllocReport, NodeRegistered, NodeSpec, ReportNode
from schemas.plans import PlanCommitted
from shared.core.columns import Int64s, Rows, StatusCodes, grown
from shared.core.splitmix import splitmix64_array
from shared.core.state.group_registry import GroupKey
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.fleet.profile import RUN_MS, NodeProfile, TaskProfile
from shared.fleet.simulated_allocs import (
    NO_HEALTH_NS,
    UNKNOWN_HEALTH,
    HealthRules,
    SimulatedAllocs,
    StatusChanges,
)
from shared.protocol import subjects
from shared.sim.engine.service_times import ServiceTimes
from shared.sim.virtual_time import VirtualLoop

#: Sends a message of a node to the applier: subject, data.
SendReport = Callable[[str, bytes], None]


#: Prefix of meta keys for simulated tasks.
_SAYS = b'"sim.'


class SimulatedNodes:
    """All nodes. A node's number is its row in the fleet."""

    def __init__(
        self,
        loop: VirtualLoop,
        state: Callable[[], State],
        tell: SendReport,
        *,
        seed: int,
        node_profile: NodeProfile,
        times: ServiceTimes,
        lives: SimulatedAllocs | None = None,
    ) -> None:
        self._loop = loop
        self._state = state
        self._tell = tell
        self._times = times
        self.node_profile = node_profile
        self.lives = SimulatedAllocs(seed) if lives is None else lives
        #: given allocations may have durations of their own: no task profiles or draws.
        self._needs_task_profiles = self.lives.takes_task_profiles
        self.reports = 0
        #: by node id: boots so far, and the last report's number within the newest.
        self._boots: dict[str, int] = {}
        #: nodes of the initial state, and their boot ids.
        self._adopted: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self.specs: dict[str, NodeSpec] = {}
        #: (N,) the node in this row is silent.
        self._silent = np.zeros(0, dtype=np.bool_)
        self._task_profiles: dict[GroupKey, int] = {}
        self._known: dict[tuple[str | int, int, int], int] = {}
        #: min_healthy_time by group.
        self._healths: dict[GroupKey, int] = {}
        #: time of the next tick; 0: none.
        self._tick_ns = 0

    # ---- nodes ----

    def join(self, spec: NodeSpec) -> None:
        """Register a node, under a new boot if it was known before."""
        self.specs[spec.node_id] = spec
        self._boots[spec.node_id] = self._boots.get(spec.node_id, 0) + 1
        self._numbers[spec.node_id] = 0
        self._report(spec.node_id, spec=spec)

    def adopt(self, row: int) -> None:
        """Take over a node of the initial state; its reports continue after the last one seen."""
        fleet = self._state().fleet
        node_id = fleet.ids[row]
        self.specs[node_id] = fleet.specs[row]
        self._boots[node_id] = 0
        self._adopted[node_id] = fleet.boot_ids[row]
        self._numbers[node_id] = int(fleet.reports_seen[row])

    def silence(self, row: int, *, dies: bool) -> None:
        """Silence a node; with `dies`, its allocations are lost."""
        self._silent = grown(self._silent, row + 1)
        self._silent[row] = True
        if dies:
            self.lives.lose(np.asarray([row], dtype=np.int32))

    def reconnect_node(self, row: int) -> None:
        """Reconnect a node: it follows its current orders and reports unseen states."""
        self._silent[row] = False
        table, lives = self._state().allocations, self.lives
        here = np.asarray([row], dtype=np.int32)
        rows = table.on_nodes(here)
        wanted = rows[(table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]]
        mine = lives.on(here)
        keep = np.isin(lives.key[mine], table.key[wanted])
        lives.stop(mine[~keep], lives.key[mine[~keep]], self._loop.now_ns)
        self._start(wanted, table.key[wanted])
        known = rows[lives.is_known(rows, table.key[rows])]
        is_news = lives.status[known] != table.client[known]
        news = known[is_news | self._has_news_of_health(known, lives.health[known])]
        if len(news):
            node_id = self._state().fleet.ids[row]
            self._report(
                node_id, news.tolist(), lives.status[news].tolist(), lives.health[news].tolist()
            )
        self._plan()

    # ---- orders ----

    def follow(self, record: LogRecord, seq: int) -> None:
        """Read a record that the state has applied; its orders reach the nodes later."""
        starts: list[Rows] = []
        stops: list[int] = []
        table = self._state().allocations
        first = self._state().policy.incarnations.key(seq, 0)
        for event in record.events:
            if type(event) is PlanCommitted:
                if event.placements:
                    rows = table.rows_of(event.job_id)
                    starts.append(rows[table.key[rows] >= first])
                # Of another version: they run on, and their health begins anew.
                starts += [np.asarray(one.rows, dtype=np.int32) for one in event.updates]
                for stop in event.stops:
                    stops += stop.rows
                for one in event.evictions:
                    stops += one.rows
            elif type(event) is NodeRegistered:
                row = self._state().fleet.row_of.get(event.spec.node_id)
                again = self._boots.get(event.spec.node_id, 0) > 1
                if row is not None and (again or event.spec.node_id in self._adopted):
                    # The new boot starts the allocations of its projection.
                    self._silent = grown(self._silent, row + 1)
                    self._loop.after(self._times.projection_ns, self.reconnect_node, row)
        if not starts and not stops:
            return
        run = np.unique(np.concatenate(starts)) if starts else np.zeros(0, dtype=np.int32)
        end = np.asarray(sorted(set(stops)), dtype=np.int32)
        # By key: rows may be reused when the order arrives.
        self.order(run, end)

    def order(self, run: Rows, end: Rows) -> None:
        """Order allocations to start and others to stop, after the delay of a projection."""
        key = self._state().allocations.key
        self._loop.after(self._times.projection_ns, self._ordered, run, key[run], end, key[end])

    def resume(self, rows: Rows) -> None:
        """Continue running allocations as if they were started now."""
        table = self._state().allocations
        rows = rows[self._heard(table.node[rows])]
        self._start(rows, table.key[rows])
        self._plan()

    def _ordered(self, run: Rows, run_keys: Int64s, end: Rows, end_keys: Int64s) -> None:
        table = self._state().allocations
        if len(end):
            at = self._heard(table.node[end])
            self.lives.stop(end[at], end_keys[at], self._loop.now_ns)
            # An allocation that never reached its node is reported as complete.
            unknown = at & ~self.lives.is_known(end, end_keys) & (table.key[end] == end_keys)
            for row in end[unknown & ~TERMINAL[table.client[end]]].tolist():
                self._report(self._state().fleet.ids[int(table.node[row])], [row], [2])
        if len(run):
            at = (table.key[run] == run_keys) & (table.desired[run] == RUN)
            at &= self._heard(table.node[run]) & ~TERMINAL[table.client[run]]
            self._start(run[at], run_keys[at])
        self._plan()

    def _heard(self, nodes: Rows) -> NDArray[np.bool_]:
        if not self._silent.any():
            return np.ones(len(nodes), dtype=np.bool_)
        self._silent = grown(self._silent, int(nodes.max()) + 1)
        return ~self._silent[nodes]

    def _start(self, rows: Rows, keys: Int64s) -> None:
        if not len(rows):
            return
        table = self._state().allocations
        refs, index = table.group[rows].tolist(), table.index[rows]
        rules = self._rules(refs)
        if not self._needs_task_profiles:
            none = np.zeros(len(rows), dtype=np.int32)
            self.lives.start(
                rows, keys, table.node[rows], none, now_ns=self._loop.now_ns, rules=rules
            )
            return
        task_profiles = np.asarray([self._task_profile(ref) for ref in refs], dtype=np.int32)
        names = np.asarray([self._salt(ref) for ref in refs], dtype=np.uint64)
        # An allocation of a job fares the same wherever it is placed.
        nth = (index.astype(np.uint64) << np.uint64(16)) | table.reschedules[rows].astype(np.uint64)
        draws = splitmix64_array(names ^ nth).view(np.int64)
        self.lives.start(
            rows,
            keys,
            table.node[rows],
            task_profiles,
            now_ns=self._loop.now_ns,
            draws=draws,
            rules=rules,
        )

    def _rules(self, refs: list[int]) -> HealthRules:
        """What decides the health of allocations of these groups."""
        found = [self._min_healthy(ref) for ref in refs]
        versions = self._state().allocations.groups.versions
        return HealthRules(
            np.asarray([versions[ref] for ref in refs], dtype=np.int32),
            np.asarray(found, dtype=np.int64),
        )

    def _min_healthy(self, ref: int) -> int:
        state = self._state()
        key = job_id, version, name = state.allocations.groups.key(ref)
        if key not in self._healths:
            job = state.jobs.job_at(job_id, version)
            groups = job.groups if job is not None else ()
            found = [one for one in groups if one.name == name]
            rule = _health_rule(found[0]) if found else None
            is_silent = rule is None or rule.health_check == "manual"
            self._healths[key] = (
                NO_HEALTH_NS if rule is None or is_silent else rule.min_healthy_time_ns
            )
        return self._healths[key]

    def _salt(self, ref: int) -> int:
        groups = self._state().allocations.groups
        text = f"{groups.job_ids[ref]}/{groups.names[ref]}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    def _task_profile(self, ref: int) -> int:
        """Number of the task profile of a group."""
        state = self._state()
        key = job_id, version, group = state.allocations.groups.key(ref)
        number = self._task_profiles.get(key)
        if number is None:
            job = state.jobs.by_id.get(job_id)
            meta = meta_of(state.jobs.spec(job_id, version), group)
            profile = self.node_profile.task_profile(
                job_id, job.job_type if job is not None else "batch", meta
            )
            number = self._task_profiles[key] = self._number_of(profile, meta.get(RUN_MS, ""))
        return number

    def _number_of(self, task_profile: TaskProfile, run_ms: str) -> int:
        """Register a task profile once: allocations of equal profiles are drawn together."""
        # Distributions are shared objects of the profile, except for a job's own run time.
        law = run_ms or id(task_profile.runs)
        key = (law, task_profile.run_fails, task_profile.exit_code)
        if key not in self._known:
            self._known[key] = self.lives.profile_number(task_profile)
        return self._known[key]

    # ---- reports ----

    def _plan(self) -> None:
        """Schedule a tick for the next change, rounded up to batch reports."""
        due_ns = self.lives.next_due_ns()
        if not due_ns:
            return
        step = self._times.report_ns
        at_ns = -(-max(due_ns, self._loop.now_ns) // step) * step
        if not self._tick_ns or at_ns < self._tick_ns:
            self._tick_ns = at_ns
            self._loop.at(at_ns, self._tick, at_ns)

    def _tick(self, at_ns: int) -> None:
        if at_ns != self._tick_ns:
            return
        self._tick_ns = 0
        changes = self.lives.due(self._loop.now_ns)
        if len(changes):
            self._say(changes)
        self._plan()

    def _say(self, changes: StatusChanges) -> None:
        """Report changes, one report per node."""
        ids = self._state().fleet.ids
        rows, codes = changes.rows, changes.statuses
        # Allocations that ran at the start report no change.
        is_news = self._state().allocations.client[rows] != codes
        is_news |= self._has_news_of_health(rows, changes.healths)
        heard = self._heard(changes.nodes) & is_news
        by_node: dict[int, tuple[list[int], list[int], list[int]]] = {}
        columns = (changes.nodes, rows, codes, changes.healths)
        for node, row, code, health in zip(*(one[heard].tolist() for one in columns), strict=True):
            entry = by_node.setdefault(node, ([], [], []))
            entry[0].append(row)
            entry[1].append(code)
            entry[2].append(health)
        for node, (at, what, healths) in by_node.items():
            self._report(ids[node], at, what, healths)

    def _has_news_of_health(self, rows: Rows, healths: StatusCodes) -> NDArray[np.bool_]:
        known = self._state().allocations.health[rows]
        found: NDArray[np.bool_] = (known == UNKNOWN_HEALTH) & (healths != UNKNOWN_HEALTH)
        return found

    def _report(
        self,
        node_id: NodeId,
        rows: list[int] | None = None,
        codes: list[int] | None = None,
        healths: list[int] | None = None,
        *,
        spec: NodeSpec | None = None,
    ) -> None:
        key = self._state().allocations.key
        states = tuple(
            AllocReport(key=int(key[row]), row=row, status=CLIENT_STATUSES[code], health=health)
            for row, code, health in zip(
                rows or (), codes or (), healths or (0,) * len(rows or ()), strict=True
            )
        )
        number = self._numbers[node_id] = self._numbers[node_id] + 1
        host_id, boot_id = self._who(node_id)
        report = ReportNode(
            node_id=node_id,
            host_id=host_id,
            boot_id=boot_id,
            number=number,
            spec=spec,
            states=states,
        )
        batch = CommandBatch(sender=node_id, commands=(report,))
        self.reports += 1
        self._tell(subjects.report(node_id), ENCODER.encode(batch))

    def _who(self, node_id: NodeId) -> tuple[str, str]:
        boot = self._boots[node_id]
        fleet = self._state().fleet
        row = fleet.row_of.get(node_id)
        host_id = fleet.host_ids[row] if row is not None else f"host-{node_id}"
        if boot == 0 and row is not None:
            # The boot of the log.
            return host_id, fleet.boot_ids[row]
        # After a recorded state, a boot unknown to the log.
        first = self._adopted.get(node_id)
        return host_id, f"boot-{boot}-{node_id}" if first is None else f"{first}.{boot}"


def _health_rule(group: GroupSpec) -> UpdatePolicy | MigratePolicy | None:
    """Return what decides health: the pace of updates, or of moves where updates make no deployment."""
    is_paced = group.update is not None and group.update.max_parallel > 0
    return group.update if is_paced or group.migrate is None else group.migrate


def meta_of(spec: bytes | None, group: str) -> dict[str, str]:
    """Return the meta of a group: of the job, the group and its tasks; the innermost wins."""
    if spec is None or _SAYS not in spec:
        return {}
    job = msgspec.json.decode(spec)
    groups = [one for one in job.get("TaskGroups") or () if one.get("Name") == group]
    tasks = [task for one in groups for task in one.get("Tasks") or ()]
    meta: dict[str, str] = {}
    for one in (job, *groups, *tasks):
        meta |= one.get("Meta") or {}
    return meta
