"""Host volumes by request: which node gets one, which requests are refused, and what the words of its node amount to.

The node is chosen here, once, on the state in which the request is decided. A volume is deleted only while nothing
uses it, and from then on no plan may place on it.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from schemas.base import Event, JobId, NodeId
from schemas.host_volumes import (
    VOLUME_DELETED,
    VOLUME_FAILED,
    VOLUME_READY,
    RemoveVolume,
    RequestVolume,
    VolumeDeleted,
    VolumeDeleting,
    VolumeFailed,
    VolumeReady,
    VolumeRequested,
    VolumeSpec,
    VolumeStatus,
)
from schemas.jobs import Constraint, GroupSpec
from schemas.nodes import ReportNode
from schemas.plans import GroupPlacement
from shared.core.constraints.operators import OPERATORS, right_fault
from shared.core.decide.deciders import Deciders
from shared.core.decide.operator import refuse
from shared.core.scheduling.feasibility.constraint_masks import constraint_mask
from shared.core.state.name_runs import expand_runs
from shared.core.state.state import State
from shared.core.state.tables.allocations import TERMINAL
from shared.core.state.tables.fleet import READY as NODE_READY
from shared.core.state.tables.host_volumes import DELETING, FAILED, PENDING, READY, VolumeRow
from shared.core.state.tables.jobs import Job

#: Of all nodes together; and what one spec may hold.
VOLUMES_MAX = 100_000
PARAMETERS_MAX, CONSTRAINTS_MAX, CAPABILITIES_MAX = 100, 100, 10
TEXT_CHARS_MAX = 4_096
REASON_CHARS_MAX = 300
CAPACITY_MAX = 2**62
ACCESS_MODES = (
    "single-node-reader-only",
    "single-node-writer",
    "single-node-single-writer",
    "single-node-multi-writer",
)
#: Names of the attributes by which a node says that it has a plugin, and a volume.
PLUGIN = "plugins.host_volume."
PLUGIN_VERSION = ".version"
VOLUME = "volume."
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}(\[(0|[1-9][0-9]{0,8})\])?")
_PLUGIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def decide_request(state: State, command: RequestVolume) -> list[Event]:
    """Choose a node for a volume; one that failed is tried again where it is. What is there already stays."""
    spec = command.spec
    if reason := spec_fault(spec):
        return refuse(command.request_id, "invalid", reason)
    known = state.volumes.by_id.get(spec.id)
    if known is not None:
        return _again(command, known)
    if len(state.volumes.by_id) >= VOLUMES_MAX:
        return refuse(command.request_id, "quota", f"there are {VOLUMES_MAX} volumes already")
    node_id, reason = _choose_node(state, spec, command.node_id)
    if reason:
        return refuse(command.request_id, "conflict", reason)
    requested = VolumeRequested(
        request_id=command.request_id, spec=spec, node_id=NodeId(node_id), attempt=1
    )
    return [requested]


def _again(command: RequestVolume, known: VolumeRow) -> list[Event]:
    if known.status == DELETING:
        return refuse(command.request_id, "conflict", f"volume {known.spec.id} is being deleted")
    if command.node_id not in ("", known.node_id):
        text = f"volume {known.spec.id} lies on node {known.node_id}; its node cannot be changed"
        return refuse(command.request_id, "conflict", text)
    if command.spec != known.spec:
        text = f"volume {known.spec.id} exists with another specification, which cannot be changed"
        return refuse(command.request_id, "conflict", f"{text}; delete it and create it anew")
    if known.status != FAILED:
        return []
    requested = VolumeRequested(
        request_id=command.request_id,
        spec=known.spec,
        node_id=known.node_id,
        attempt=known.attempt + 1,
    )
    return [requested]


def decide_removal(state: State, command: RemoveVolume) -> list[Event]:
    """Have a volume deleted that nothing uses and no index claims."""
    row = state.volumes.by_id.get(command.volume_id)
    if row is None:
        return []
    if users := user_rows(state, row.node_id, row.spec.name):
        text = f"volume {row.spec.name!r} is used by {_alloc_name(state, users[0])}"
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        return refuse(command.request_id, "conflict", f"{text}{more}: stop what uses it first")
    if holders := state.claims.holders(row.spec.name, row.node_id):
        job_id, group, index = holders[0][0]
        text = f"volume {row.spec.name!r} is claimed by {job_id}.{group}[{index}]"
        return refuse(command.request_id, "conflict", f"{text}: release the claim first")
    if command.force:
        at = state.fleet.row_of.get(row.node_id)
        if at is not None and state.fleet.status[at] == NODE_READY:
            text = f"node {row.node_id} is ready: delete the volume without force"
            return refuse(command.request_id, "conflict", text)
        return [VolumeDeleted(volume_id=command.volume_id, request_id=command.request_id)]
    if row.status == DELETING:
        return []
    return [VolumeDeleting(request_id=command.request_id, volume_id=command.volume_id)]


def reported_volumes(state: State, report: ReportNode) -> list[Event]:
    """Facts that a node's words about its volumes bring; what is known already brings none."""
    found: list[Event] = []
    for said in report.volumes:
        row = state.volumes.by_id.get(said.id)
        if row is None or row.node_id != report.node_id or row.attempt != said.attempt:
            continue
        found += _reported(row, said)
    return found


def _reported(row: VolumeRow, said: VolumeStatus) -> list[Event]:
    reason = said.reason[:REASON_CHARS_MAX]
    if said.status == VOLUME_READY and row.status in (PENDING, FAILED):
        capacity = min(max(said.capacity_bytes, 0), CAPACITY_MAX)
        path = said.path[:TEXT_CHARS_MAX]
        return [VolumeReady(volume_id=said.id, capacity_bytes=capacity, path=path)]
    is_news = row.status in (PENDING, READY) or row.reason != reason
    if said.status == VOLUME_FAILED and is_news:
        return [VolumeFailed(volume_id=said.id, reason=reason)]
    if said.status == VOLUME_DELETED and row.status == DELETING:
        return [VolumeDeleted(volume_id=said.id)]
    return []


def leaving_fault(state: State, job_id: JobId, placements: Sequence[GroupPlacement]) -> str:
    """Say which placement would use a volume that is being deleted; empty: none."""
    if not state.volumes.leaving:
        return ""
    leaving = [state.volumes.by_id[one] for one in state.volumes.leaving]
    for placement in placements:
        group = _group(state.jobs.job_at(job_id, placement.version), placement.group)
        if group is None:
            continue
        rows = np.repeat(placement.rows, placement.counts).tolist()
        for row, index in zip(rows, expand_runs(placement.names).tolist(), strict=True):
            names = set(used_names(group, index))
            for one in leaving:
                if one.spec.name in names and one.node_id == state.fleet.ids[row]:
                    return f"volume {one.spec.name!r} of node {one.node_id} is being deleted"
    return ""


def user_rows(state: State, node_id: NodeId, name: str) -> list[int]:
    """Rows of the allocations on a node that have not ended and use the volume of a name, ascending."""
    at = state.fleet.row_of.get(node_id)
    if at is None:
        return []
    table, groups = state.allocations, state.allocations.groups
    found: list[int] = []
    for row in table.on_nodes(np.asarray([at], dtype=np.int32)).tolist():
        if TERMINAL[table.client[row]]:
            continue
        ref, index = int(table.group[row]), int(table.index[row])
        job = state.jobs.job_at(groups.job_ids[ref], groups.versions[ref])
        group = _group(job, groups.names[ref])
        if group is not None and name in used_names(group, index):
            found.append(int(row))
    return found


def _group(job: Job | None, name: str) -> GroupSpec | None:
    groups = () if job is None else job.groups
    return next((one for one in groups if one.name == name), None)


def _alloc_name(state: State, row: int) -> str:
    table = state.allocations
    ref = int(table.group[row])
    return f"{table.groups.job_ids[ref]}.{table.groups.names[ref]}[{int(table.index[row])}]"


def used_names(group: GroupSpec, index: int) -> Iterator[str]:
    """Names of the volumes that an allocation of a group uses."""
    prefix = f"${{attr.{VOLUME}"
    for constraint in group.constraints:
        if constraint.left.startswith(prefix):
            yield constraint.left.removeprefix(prefix).removesuffix("}")
    for one in group.volumes:
        yield f"{one.source}[{index}]" if one.per_alloc else one.source


def spec_fault(spec: VolumeSpec) -> str:
    """Say what is wrong with a specification, naming the field; empty: nothing."""
    if not _ID.fullmatch(spec.id):
        return f"id {spec.id[:80]!r} is not a UUID in lower case"
    if not _NAME.fullmatch(spec.name):
        text = "it must be 1 to 128 letters, digits, - and _, with an index in brackets where per_alloc asks for it"
        return f"name is {spec.name[:80]!r}: {text}"
    if not _PLUGIN.fullmatch(spec.plugin) or spec.plugin.startswith("."):
        return f"plugin_id {spec.plugin[:80]!r} is not the name of a plugin"
    least, most = spec.capacity_min_bytes, spec.capacity_max_bytes
    if not 0 <= least <= CAPACITY_MAX or not 0 <= most <= CAPACITY_MAX:
        return f"capacity is {least} to {most} bytes, both must be 0 to {CAPACITY_MAX}"
    if most and least > most:
        return f"capacity_min ({least}) is more than capacity_max ({most})"
    return _capability_fault(spec) or _lists_fault(spec)


def _capability_fault(spec: VolumeSpec) -> str:
    if not 1 <= len(spec.capabilities) <= CAPABILITIES_MAX:
        return f"capability: 1 to {CAPABILITIES_MAX} blocks are needed, there are {len(spec.capabilities)}"
    for one in spec.capabilities:
        if one.access_mode not in ACCESS_MODES:
            known = ", ".join(ACCESS_MODES)
            return f"capability: access_mode {one.access_mode[:80]!r} is not one of {known}"
        if one.attachment_mode == "block-device":
            return "capability: attachment_mode block-device is not built; use file-system"
        if one.attachment_mode != "file-system":
            return f"capability: attachment_mode {one.attachment_mode[:80]!r} is not file-system"
    return ""


def _lists_fault(spec: VolumeSpec) -> str:
    if len(spec.parameters) > PARAMETERS_MAX:
        return f"parameters: {len(spec.parameters)}, at most {PARAMETERS_MAX} are taken"
    for name, value in spec.parameters.items():
        if not name or max(len(name), len(value)) > TEXT_CHARS_MAX or "\0" in name + value:
            return f"parameters: {name[:80]!r} is empty, too long or has a NUL"
    if len(spec.constraints) > CONSTRAINTS_MAX:
        return f"constraint: {len(spec.constraints)}, at most {CONSTRAINTS_MAX} are taken"
    for one in spec.constraints:
        if one.operator not in OPERATORS:
            return f"constraint: operator {one.operator[:80]!r} is not known, or is about several nodes"
        if not one.left or right_fault(one.operator, one.right):
            text = right_fault(one.operator, one.right) or "attribute must not be empty"
            return f"constraint: {text}"
        if max(len(one.left), len(one.right)) > TEXT_CHARS_MAX:
            return "constraint: a side is too long"
    return ""


def _choose_node(state: State, spec: VolumeSpec, wanted: str) -> tuple[str, str]:
    """Return the node that a volume goes to, or why there is none: of those that may, the one with fewest volumes."""
    fleet = state.fleet
    if wanted and NodeId(wanted) not in fleet.row_of:
        return "", f"there is no node {wanted!r}"
    rows = [fleet.row_of[NodeId(wanted)]] if wanted else sorted(fleet.row_of.values())
    masks = [constraint_mask(fleet.attributes, *_sides(one)) for one in spec.constraints]
    why: dict[str, int] = {}
    found: list[tuple[int, str]] = []
    for row in rows:
        reason = _node_fault(state, spec, row)
        for one, mask in zip(spec.constraints, masks, strict=True):
            if not reason and not mask[row]:
                reason = f"constraint {one.left} {one.operator} {one.right} does not hold"
        if reason:
            why[reason] = why.get(reason, 0) + 1
        else:
            node_id = fleet.ids[row]
            found.append((len(state.volumes.of_node.get(node_id, ())), node_id))
    if found:
        return min(found)[1], ""
    if wanted:
        return "", f"node {wanted}: {next(iter(why))}"
    told = "; ".join(
        f"{count} of {len(rows)} nodes: {reason}" for reason, count in sorted(why.items())
    )
    return "", f"no node can have the volume: {told or 'there is no node'}"[:REASON_CHARS_MAX]


def _node_fault(state: State, spec: VolumeSpec, row: int) -> str:
    """Say why a node cannot have a volume, constraints aside; empty: it can."""
    fleet = state.fleet
    if not fleet.ready()[row]:
        return "it is not ready or takes nothing new"
    node = fleet.specs[row]
    if spec.node_pool not in ("", "all", node.node_pool):
        return f"it is not in node pool {spec.node_pool}"
    if f"{PLUGIN}{spec.plugin}{PLUGIN_VERSION}" not in node.attributes:
        return f"it has no plugin {spec.plugin}"
    is_taken = state.volumes.named(node.node_id, spec.name) is not None
    if is_taken or VOLUME + spec.name in node.attributes:
        return f"it has a volume {spec.name} already"
    return ""


def _sides(one: Constraint) -> tuple[str, str, str]:
    return one.left, one.operator, one.right


DECIDERS: Deciders = {RequestVolume: decide_request, RemoveVolume: decide_removal}
