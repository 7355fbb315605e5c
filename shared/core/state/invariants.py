"""Invariants: what holds of every state after every transaction, checked from scratch.

Slow on purpose: it recomputes what the tables keep up to date. Tests and benchmarks call it; no role does. It stands
beside the tables because it checks their columns, counters and indexes, which change together with it, and because
tests and benchmarks share it.
"""

import numpy as np
from numpy.typing import ArrayLike

from schemas.base import JobId
from schemas.jobs import SYSTEM_JOB_TYPES
from shared.core.resources.asks import Holding
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import grow_matrix
from shared.core.state.claim_invariants import check_claims
from shared.core.state.deployment_invariants import Violation, check_deployments
from shared.core.state.rollout_invariants import check_rollouts
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL, UNKNOWN
from shared.core.state.tables.fleet import READY
from shared.core.state.tables.jobs import Job
from shared.core.state.variable_invariants import check_variables

_IN_SIGHT = ~TERMINAL
_IN_SIGHT[UNKNOWN] = False


def check(state: State, *, capacity: bool = True) -> list[Violation]:
    """Check everything. `capacity`: also that no node holds more than it offers (off where nodes may shrink)."""
    found = [
        *_usage(state),
        *_extras(state),
        *_counts(state),
        *_rows(state),
        *_evaluations(state),
        *_reservations(state),
        *_kept_rooms(state),
        *check_claims(state),
        *_references(state),
        *check_deployments(state),
        *check_rollouts(state),
        *check_variables(state),
        *[Violation("instances", text) for text in _second_instances(state)],
    ]
    return found + ([*_capacity(state), *_pools(state)] if capacity else [])


def _usage(state: State) -> list[Violation]:
    table = state.allocations
    rows = table.live_rows()
    rows = rows[table.is_holding(rows)]
    expected = np.zeros_like(table.held.used)
    if len(rows):
        np.add.at(expected, table.node[rows], table.groups.ask[table.group[rows]])
    wrong = np.flatnonzero((expected != table.held.used).any(axis=1)).tolist()
    return [
        Violation("usage", f"row {r} holds {table.held.used[r]}, its allocations {expected[r]}")
        for r in wrong
    ]


def _extras(state: State) -> list[Violation]:
    """Device, port and custom-resource totals equal the sum over allocations."""
    table = state.allocations
    rows = [row for row in sorted(table.holdings) if table.is_holding(np.array([row])).all()]
    fresh, held = HeldResources(), table.held
    for row in rows:
        fresh.add(int(table.node[row]), None, table.holdings[row])
    ports = [(int(table.node[row]), port) for row in rows for port in _ports(table.holdings[row])]
    found = []
    if sorted(ports) != held.ports.pairs():
        found.append(Violation("ports", f"{held.ports.pairs()}, allocations {sorted(ports)}"))
    size = len(held.used)
    names = held.names()
    widths = {name: len(held.slots_on(0, name, 0)) for name in names["slot"]}
    pairs: list[tuple[str, ArrayLike, ArrayLike]] = [
        *((name, fresh.sum_of(name, size), held.sum_of(name, size)) for name in names["sum"]),
        *(
            (name, fresh.slots_of(name, size, width), held.slots_of(name, size, width))
            for name, width in widths.items()
        ),
        *((name, fresh.of_cluster(name), held.of_cluster(name)) for name in names["cluster"]),
        ("cores", fresh.cores(size), held.cores(size)),
    ]
    return found + [
        Violation("holdings", f"{name} is held {is_!r}, its allocations hold {expected!r}")
        for name, expected, is_ in pairs
        if not np.array_equal(expected, is_)
    ]


def _ports(holding: Holding) -> tuple[int, ...]:
    return (*holding.static_ports, *holding.ports)


def _pools(state: State) -> list[Violation]:
    """No slot, sum, port or countable of the cluster is given away beyond what there is."""
    fleet, held = state.fleet, state.allocations.held
    offers, size = fleet.offers, fleet.size
    ready = fleet.live[:size] & (fleet.status[:size] == READY)
    found = []
    names = held.names()
    for name in names["sum"]:
        over = held.sum_of(name, size) > offers.sum_of(name, size)
        found += [
            Violation("oversubscribed", f"node {fleet.ids[row]} holds too much {name}")
            for row in np.flatnonzero(over & ready).tolist()
        ]
    for name in names["slot"]:
        pool = offers.slots.get(name)
        width = max(len(held.slots_on(0, name, 0)), 0 if pool is None else pool.present.shape[1])
        present = np.zeros((size, width), np.int32)
        if pool is not None:
            present = grow_matrix(pool.present, size, width)[:size, :width]
        over = (held.slots_of(name, size, width) > present) & ready[:, None]
        found += [
            Violation(
                "oversubscribed", f"node {fleet.ids[row]}, {name}: slot {slot} holds too much"
            )
            for row, slot in np.argwhere(over).tolist()
        ]
    for name in names["cluster"]:
        if held.of_cluster(name) > offers.cluster.get(name, 0):
            found.append(Violation("oversubscribed", f"the cluster holds too much {name}"))
    for row, port in held.ports.pairs():
        if ready[row] and row in offers.reserved.get(port, ()):
            found.append(Violation("oversubscribed", f"{fleet.ids[row]}: port {port} is reserved"))
    return found


def _capacity(state: State) -> list[Violation]:
    fleet = state.fleet
    used = state.allocations.used(fleet.size) + fleet.core_correction(state.allocations.held)
    over = (used > fleet.capacity[: fleet.size]).any(axis=1)
    ready = fleet.live[: fleet.size] & (fleet.status[: fleet.size] == READY)
    return [
        Violation("oversubscribed", f"node {fleet.ids[r]} holds {used[r]} of {fleet.capacity[r]}")
        for r in np.flatnonzero(over & ready).tolist()
    ]


def _counts(state: State) -> list[Violation]:
    table = state.allocations
    found = []
    for job_id, job in state.jobs.by_id.items():
        rows = table.rows_of(job_id)
        # What is out of sight does not count: another may stand for it.
        rows = rows[(table.desired[rows] == RUN) & _IN_SIGHT[table.client[rows]]]
        limits = {group.name: group.count for group in job.groups}
        is_everywhere = job.job_type in SYSTEM_JOB_TYPES
        by_group: dict[tuple[str, int], list[int]] = {}
        for row in rows.tolist():
            name = table.groups.names[int(table.group[row])]
            node = int(table.node[row]) if is_everywhere else -1
            by_group.setdefault((name, node), []).append(row)
        updates = {group.name for group in job.groups if group.update is not None}
        ordered = _leaving_in_order(state, job)
        for (name, _), held in sorted(by_group.items()):
            if name in ordered:
                continue
            if name in updates:
                found += _canary_counts(state, job, name, held)
                continue
            # A group that an update removed or shrank is above its count until its plan is in.
            newer = any(int(table.modify_seq[row]) > job.modify_seq for row in held)
            if newer and name in limits and len(held) > limits[name] and not _looks(state, job_id):
                text = f"{job_id}.{name} has {len(held)}, its count is {limits[name]}"
                found.append(Violation("count", text))
            indexes = table.index[held].tolist()
            if len(set(indexes)) != len(indexes) and not _looks(state, job_id):
                found.append(Violation("names", f"{job_id}.{name} uses a name twice: {indexes}"))
    return found


def _canary_counts(state: State, job: Job, name: str, held: list[int]) -> list[Violation]:
    """What a group under deployments may run: canaries beside the count, and no name twice in one version."""
    table = state.allocations
    found = []
    latest = state.deployments.latest_of(job.id)
    progress = None if latest is None else latest.group(name)
    newer = any(int(table.modify_seq[row]) > job.modify_seq for row in held)
    is_whole = progress is None or not progress.desired_canaries
    limit = next(group.count for group in job.groups if group.name == name)
    if is_whole and newer and not _looks(state, job.id):
        others = [row for row in held if not table.canary[row]]
        if len(others) > limit:
            found.append(Violation("count", f"{job.id}.{name} has {len(others)} of {limit}"))
    versions = table.groups.versions
    names = [
        (versions[int(table.group[row])], bool(table.canary[row]), int(table.index[row]))
        for row in held
    ]
    if len(set(names)) != len(names) and not _looks(state, job.id):
        found.append(Violation("names", f"{job.id}.{name} uses a name twice: {sorted(names)}"))
    return found


def _looks(state: State, job_id: JobId) -> bool:
    """Tell whether an allocation may be there twice: its node came back, and a pending evaluation will choose."""
    table = state.evaluations
    entries = [table.by_key[key] for key in table.open_of.get(job_id, ())]
    reconnects = [one for one in entries if one.triggered_by == "reconnect"]
    return any(one.status == "pending" for one in reconnects)


def _rows(state: State) -> list[Violation]:
    table = state.allocations
    held = np.sort(np.concatenate([*table.all_of_jobs(), np.empty(0, dtype=np.int32)]))
    live = table.live_rows()
    if not np.array_equal(held, live):
        return [Violation("rows", f"jobs hold {len(held)} rows, {len(live)} are in use")]
    keys = table.key[live]
    return [Violation("keys", "a key occurs twice")] if len(np.unique(keys)) != len(keys) else []


def _evaluations(state: State) -> list[Violation]:
    table = state.evaluations
    is_open = {key for key, entry in table.by_key.items() if entry.is_open}
    found = []
    if is_open != set(table.open) or set(table.by_key) - is_open != set(table.ended):
        found.append(Violation("evaluations", "open and ended are not what the entries say"))
    if {key for keys in table.open_of.values() for key in keys} != is_open:
        found.append(Violation("evaluations", "open by job is not what the entries say"))
    for job_id, key in table.blocked_of.items():
        entry = table.by_key[key]
        if entry.status != "blocked" or entry.job_id != job_id:
            found.append(Violation("blocked", f"{job_id} points to {entry.status} {key}"))
    return found


def _reservations(state: State) -> list[Violation]:
    """A node is held for one job at most, which still waits; only nodes are held where something can be placed."""
    held = [
        (one.job_id, row)
        for one in state.reservations.by_job.values()
        for h in one.holds
        for row in h.rows
    ]
    ready = state.fleet.ready()
    found = [
        Violation("reservations", f"row {row} is held for {job_id}, and takes nothing")
        for job_id, row in held
        if not (row < len(ready) and ready[row])
    ]
    if len({row for _, row in held}) < len(held):
        found.append(Violation("reservations", f"a row is held twice: {held}"))
    found += [
        Violation("reservations", f"nodes are held for {job_id}, which does not wait")
        for job_id in state.reservations.by_job
        if job_id not in state.evaluations.open_of
    ]
    if len(state.reservations.by_job) > state.policy.policy.reservations_max:
        found.append(Violation("reservations", "more hold nodes than the policy allows"))
    return found


def _kept_rooms(state: State) -> list[Violation]:
    """Room is kept only of what ended, was stopped to be replaced, and is not replaced yet."""
    table = state.allocations
    known = table.predecessors
    rows = np.array([row for row, _ in known.by_key.values()], dtype=np.int32)
    found = [
        Violation("predecessors", f"row {row} is not that of key {key}")
        for key, (row, _) in known.by_key.items()
        if int(table.key[row]) != key
    ]
    return found + [
        Violation("kept_rooms", f"row {row} keeps its room, and should not")
        for row in known.rooms
        if row not in rows or not TERMINAL[table.client[row]] or table.desired[row] == RUN
    ]


def _references(state: State) -> list[Violation]:
    table = state.allocations
    live = table.live_rows()
    counted = np.bincount(table.group[live], minlength=len(table.groups.held)).tolist()
    if counted != table.groups.held:
        return [Violation("references", f"groups are held {table.groups.held}, found {counted}")]
    return []


def _second_instances(state: State) -> list[str]:
    """Name every index of a stateful group of which two instances have not ended."""
    table = state.allocations
    seen: set[tuple[JobId, str, int]] = set()
    found: list[str] = []
    for ref in sorted(table.groups.stateful):
        if not table.groups.held[ref]:
            continue
        for row in table.rows_of(table.groups.job_ids[ref]).tolist():
            if int(table.group[row]) != ref or TERMINAL[table.client[row]]:
                continue
            name = (table.groups.job_ids[ref], table.groups.names[ref], int(table.index[row]))
            if name in seen:
                found.append(f"{name[0]}.{name[1]}[{name[2]}] has two instances")
            seen.add(name)
    return found


def _leaving_in_order(state: State, job: Job) -> frozenset[str]:
    """Stateful groups of a job with an instance that is to end, or is about to: surplus ones stop one by one."""
    table = state.allocations
    if not table.groups.stateful:
        return frozenset()
    names = {group.name for group in job.groups if group.stateful}
    open_ = (state.evaluations.by_key[key] for key in state.evaluations.open_of.get(job.id, ()))
    if any(one.status == "pending" for one in open_):
        return frozenset(names)
    rows = table.rows_of(job.id)
    rows = rows[~TERMINAL[table.client[rows]] & (table.desired[rows] != RUN)]
    return frozenset(names & {table.groups.names[ref] for ref in table.group[rows].tolist()})
