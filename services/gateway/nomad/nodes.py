"""Nodes in Nomad's shape. A node has no HTTP address: clients ask the gateway for logs and files."""

from schemas.base import SECOND_NS
from schemas.nodes import NODE_STATUSES
from services.gateway.nomad.source import Object, ShapeSource
from services.gateway.nomad.times import rfc3339
from shared.core.state.state import State
from shared.protocol.node_uuids import node_uuid

_DRIVER = "driver."
_FIRST_PORT, _LAST_PORT = 20_000, 32_000


def node_index(state: State, row: int) -> int:
    """The index of a node alone, without what runs on it."""
    return max(int(state.fleet.modify_seq[row]), int(state.fleet.row_seq[row]), 1)


def node_stub(source: ShapeSource, row: int, *, with_os: bool, with_resources: bool) -> Object:
    """A line of the list of nodes."""
    whole = nomad_node(source, row)
    names = ("ID", "Datacenter", "Name", "NodePool", "NodeClass", "Drain", "SchedulingEligibility")
    more = ("Status", "StatusDescription", "Drivers", "HostVolumes", "LastDrain", "CreateIndex")
    found = {name: whole[name] for name in (*names, *more, "ModifyIndex")}
    attributes = whole["Attributes"]
    found["Address"] = attributes.get("unique.network.ip-address", "")
    found["Version"] = attributes.get("nomad.version", "")
    found["Attributes"] = (
        {name: attributes.get(name, "") for name in ("os.name", "os.version")} if with_os else None
    )
    if with_resources:
        found["NodeResources"] = whole["NodeResources"]
        found["ReservedResources"] = whole["ReservedResources"]
    return found


def nomad_node(source: ShapeSource, row: int) -> Object:
    """A whole node."""
    state, fleet = source.state, source.state.fleet
    node_id, spec = str(fleet.ids[row]), fleet.shown(row)
    is_draining = row in fleet.drains
    status = NODE_STATUSES[fleet.status[row]]
    cpu, memory, disk = (int(one) for one in fleet.capacity[row])
    index = node_index(state, row)
    changed_ns = source.time_of(index)
    cores = int(spec.attributes.get("cpu.numcores", "0") or 0)
    return {
        "ID": node_uuid(node_id),
        "Datacenter": spec.datacenter,
        "Name": spec.name or node_id,
        "HTTPAddr": "",
        "TLSEnabled": False,
        "Attributes": spec.attributes,
        "Resources": _old_resources(cpu, memory, disk),
        "Reserved": _old_resources(0, 0, 0),
        "NodeResources": _node_resources(cpu, memory, disk, cores),
        "ReservedResources": {
            "Cpu": {"CpuShares": 0, "ReservedCpuCores": []},
            "Memory": {"MemoryMB": 0},
            "Disk": {"DiskMB": 0},
            "Networks": {"ReservedHostPorts": ""},
        },
        "Links": {},
        "Meta": {**spec.meta, "caravan.node_id": node_id},
        "NodeClass": spec.node_class,
        "NodePool": spec.node_pool,
        "Drain": is_draining,
        "DrainStrategy": _drain(state, row) if is_draining else None,
        "SchedulingEligibility": "eligible"
        if fleet.eligible[row] and not is_draining
        else "ineligible",
        "Status": status,
        "StatusDescription": "",
        "StatusUpdatedAt": changed_ns // SECOND_NS,
        "Events": [
            {
                "Message": "Node registered",
                "Subsystem": "Cluster",
                "Details": None,
                "Timestamp": rfc3339(source.time_of(int(fleet.row_seq[row]))),
                "CreateIndex": int(fleet.row_seq[row]),
            }
        ],
        "Drivers": _drivers(spec.attributes, changed_ns, is_up=status == "ready"),
        "HostVolumes": {},
        "HostNetworks": {},
        "CSIControllerPlugins": {},
        "CSINodePlugins": {},
        "LastDrain": _last_drain(state, row, changed_ns),
        "CreateIndex": max(int(fleet.row_seq[row]), 1),
        "ModifyIndex": index,
    }


def _node_resources(cpu: int, memory: int, disk: int, cores: int) -> Object:
    return {
        "Cpu": {
            "CpuShares": cpu,
            "TotalCpuCores": cores,
            "ReservableCpuCores": list(range(cores)),
        },
        "Memory": {"MemoryMB": memory},
        "Disk": {"DiskMB": disk},
        "Networks": [],
        "NodeNetworks": [],
        "Devices": [],
        "MinDynamicPort": _FIRST_PORT,
        "MaxDynamicPort": _LAST_PORT,
    }


def _old_resources(cpu: int, memory: int, disk: int) -> Object:
    sizes = {
        "CPU": cpu,
        "Cores": 0,
        "MemoryMB": memory,
        "MemoryMaxMB": 0,
        "DiskMB": disk,
        "IOPS": 0,
    }
    return {**sizes, "Networks": None, "Devices": None, "NUMA": None}


def _drain(state: State, row: int) -> Object:
    deadline_ns, terms = state.fleet.drains[row], state.fleet.terms_of(row)
    return {
        "Deadline": max(deadline_ns - terms.started_ns, 0) if deadline_ns else 0,
        "IgnoreSystemJobs": terms.ignore_system,
        "ForceDeadline": rfc3339(deadline_ns),
        "StartedAt": rfc3339(terms.started_ns),
    }


def _last_drain(state: State, row: int, changed_ns: int) -> Object | None:
    if row in state.fleet.drains:
        terms = state.fleet.terms_of(row)
        times = {"StartedAt": rfc3339(terms.started_ns), "UpdatedAt": rfc3339(changed_ns)}
        meta = {"message": terms.message} if terms.message else {}
        return {**times, "Status": "draining", "AccessorID": "", "Meta": meta}
    if row in state.fleet.drained:
        times = {"StartedAt": rfc3339(0), "UpdatedAt": rfc3339(changed_ns)}
        return {**times, "Status": "complete", "AccessorID": "", "Meta": {}}
    return None


def _drivers(attributes: dict[str, str], changed_ns: int, *, is_up: bool) -> Object:
    """Drivers of the attributes `driver.NAME`, which an agent sets for those that work."""
    found = {}
    for name in sorted(attributes):
        driver = name.removeprefix(_DRIVER)
        if name.startswith(_DRIVER) and "." not in driver:
            found[driver] = {
                "Attributes": {name: attributes[name]},
                "Detected": True,
                "Healthy": is_up and attributes[name] == "1",
                "HealthDescription": "Healthy" if is_up else "the node is not ready",
                "UpdateTime": rfc3339(changed_ns),
            }
    return found


class NodeIds:
    """Node ids by UUID, made anew when a node came or left."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._generation = -1
        self._by_uuid: dict[str, str] = {}

    def find(self, text: str) -> str:
        """The id of a node by its UUID or its own id; empty: there is none."""
        if text in self._state.fleet.row_of:
            return text
        return self._known().get(text.lower(), "")

    def with_prefix(self, prefix: str) -> list[str]:
        """Ids of the nodes whose UUID, or own id, begins so; sorted by UUID."""
        lower, known = prefix.lower(), self._known()
        return [
            known[uuid]
            for uuid in sorted(known)
            if uuid.startswith(lower) or known[uuid].startswith(prefix)
        ]

    def _known(self) -> dict[str, str]:
        if self._generation != self._state.fleet.generation or len(self._by_uuid) != len(
            self._state.fleet.row_of
        ):
            self._by_uuid = {node_uuid(one): str(one) for one in self._state.fleet.row_of}
            self._generation = self._state.fleet.generation
        return self._by_uuid
