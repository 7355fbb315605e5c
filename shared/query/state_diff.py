"""Differences between two moments of one log: jobs, nodes, allocations and the policy, not single events."""

from collections.abc import Iterator

import msgspec

from schemas.allocations import CLIENT_STATUSES, DESIRED_STATUSES
from schemas.base import Wire
from schemas.nodes import NODE_STATUSES
from shared.core.state.ids import alloc_id
from shared.core.state.state import State

#: Things listed; the rest is counted.
SHOWN_MAX = 1_000


class StateChange(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One thing that is there, is gone, or is otherwise. `kind`: job, node, allocation or policy."""

    kind: str
    id: str
    #: added, removed or changed.
    what: str
    old: str = ""
    new: str = ""


class StateDiff(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """All that differs, things in the order of kind and id."""

    from_seq: int
    to_seq: int
    changes: tuple[StateChange, ...] = ()
    #: changes by `kind what`, those that are not listed included.
    counts: dict[str, int] = {}


def diff_states(before: State, after: State, seqs: tuple[int, int] | None = None) -> StateDiff:
    """Compare two states of one log. `seqs`: the records that they stand behind; a checkpoint changes no state."""
    kinds = {
        "job": (_jobs(before), _jobs(after)),
        "node": (_nodes(before), _nodes(after)),
        "allocation": (_allocations(before), _allocations(after)),
        "policy": (_policy(before), _policy(after)),
    }
    changes: list[StateChange] = []
    counts: dict[str, int] = {}
    for kind, (old, new) in kinds.items():
        for change in _changes(kind, old, new):
            name = f"{kind} {change.what}"
            counts[name] = counts.get(name, 0) + 1
            if len(changes) < SHOWN_MAX:
                changes.append(change)
    first, last = seqs or (before.seq, after.seq)
    return StateDiff(from_seq=first, to_seq=last, changes=tuple(changes), counts=counts)


def _changes(kind: str, old: dict[str, str], new: dict[str, str]) -> Iterator[StateChange]:
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was == now:
            continue
        what = "added" if was is None else "removed" if now is None else "changed"
        yield StateChange(kind=kind, id=name, what=what, old=was or "", new=now or "")


def _jobs(state: State) -> dict[str, str]:
    found = {}
    for job in state.jobs.by_id.values():
        groups = ", ".join(f"{group.name} {group.count}" for group in job.groups)
        stopped = ", stopped" if job.stopped else ""
        found[str(job.id)] = f"version {job.version}, priority {job.priority}, {groups}{stopped}"
    return found


def _nodes(state: State) -> dict[str, str]:
    fleet = state.fleet
    found = {}
    for node_id, row in fleet.row_of.items():
        status = NODE_STATUSES[int(fleet.status[row])]
        barred = "" if fleet.eligible[row] else ", ineligible"
        cpu, memory, disk = fleet.capacity[row].tolist()
        found[str(node_id)] = f"{status}{barred}, {cpu} MHz, {memory} MiB, disk {disk} MiB"
    return found


def _allocations(state: State) -> dict[str, str]:
    table = state.allocations
    rows = table.live_rows()
    groups, fleet = table.groups, state.fleet
    columns = zip(
        table.key[rows].tolist(),
        table.group[rows].tolist(),
        table.index[rows].tolist(),
        table.node[rows].tolist(),
        table.desired[rows].tolist(),
        table.client[rows].tolist(),
        strict=True,
    )
    found = {}
    for key, ref, index, node, desired, client in columns:
        name = f"{groups.job_ids[ref]}.{groups.names[ref]}[{index}]"
        statuses = f"{CLIENT_STATUSES[client]}, {DESIRED_STATUSES[desired]}"
        found[f"{name} {alloc_id(key)[:8]}"] = (
            f"{statuses}, on {fleet.ids[node]}, version {groups.versions[ref]}"
        )
    return found


def _policy(state: State) -> dict[str, str]:
    return {
        name: msgspec.json.encode(value).decode()
        for name, value in msgspec.structs.asdict(state.policy.policy).items()
    }
