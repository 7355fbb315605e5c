"""`/v1/agent/…`, `/v1/status/…`, regions and namespaces: what clients ask about the servers themselves."""

import time

from schemas.jobs import JOB_TYPES
from services.gateway.edge.call import REGION, Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from shared.release import RELEASE

#: What Nomad's clients take as the version of a server (docs/http.md).
NOMAD_VERSION = "2.0.5"
DATACENTER = "dc1"
_RPC_PORT = 4647


def rpc_address(call: Call) -> str:
    """Address under which the applier is listed: nothing listens there."""
    return f"{call.server.settings.host}:{_RPC_PORT}"


def _member(call: Call) -> dict[str, object]:
    cluster = call.role.answers.lease
    return {
        "Name": f"{cluster.holder or 'plan_applier'}.{REGION}",
        "Addr": call.server.settings.host,
        "Port": _RPC_PORT,
        "Status": "alive",
        "ProtocolMin": 1,
        "ProtocolMax": 5,
        "ProtocolCur": 2,
        "DelegateMin": 2,
        "DelegateMax": 5,
        "DelegateCur": 4,
        "Tags": {
            "role": "nomad",
            "region": REGION,
            "dc": DATACENTER,
            "build": NOMAD_VERSION,
            "port": str(_RPC_PORT),
            "id": cluster.cluster_id,
            "caravan": RELEASE,
        },
    }


async def read_self(call: Call) -> object:
    """The gateway as an agent of Nomad."""
    return {
        "config": {
            "Region": REGION,
            "Datacenter": DATACENTER,
            "NodeName": "caravan",
            "BindAddr": call.server.settings.host,
            "Version": {"Version": NOMAD_VERSION, "VersionMetadata": f"caravan-{RELEASE}"},
            "ACL": {"Enabled": False},
            "UI": {"Enabled": True, "ShowCLIHints": False},
            "Server": {"Enabled": True},
            "Client": {"Enabled": False},
        },
        "member": _member(call),
        "stats": {
            "nomad": {
                "server": "true",
                "leader": "true",
                "cluster": call.role.answers.lease.cluster_id,
            }
        },
    }


async def list_members(call: Call) -> object:
    """The servers: the plan applier that leads."""
    return {
        "ServerName": "caravan",
        "ServerRegion": REGION,
        "ServerDC": DATACENTER,
        "Members": [_member(call)],
    }


async def list_servers(call: Call) -> object:
    """Addresses of the servers."""
    return [rpc_address(call)]


async def read_health(call: Call) -> object:
    """Whether the gateway is connected and its state is new."""
    is_ok = call.server.is_ready
    text = "ok" if is_ok else call.server.why_not_ready()
    if not is_ok:
        raise HttpFault(500, text)
    return {"client": {"ok": True, "message": "ok"}, "server": {"ok": True, "message": "ok"}}


async def list_schedulers(call: Call) -> object:
    """The scheduler workers that show presence on the bus."""
    found = call.server.bus_edge.present.present(time.monotonic())
    return {
        "server_id": call.role.answers.lease.cluster_id,
        "schedulers": [
            {
                "id": one.instance,
                "enabled_schedulers": JOB_TYPES,
                "started": "",
                "status": "Started",
                "workload_status": "",
                "caravan_seq": one.seq,
            }
            for one in found
            if one.role == "scheduler"
        ],
    }


async def refuse_join(call: Call) -> object:
    """Nothing joins by HTTP: servers and nodes know the bus."""
    del call
    return {"num_joined": 0, "error": "services join by the bus, not by HTTP"}


async def force_leave(call: Call) -> object:
    """Nothing to leave: silent services are not listed."""
    del call
    return {}


async def leader(call: Call) -> object:
    """Address of the leader. Raises HttpFault 500, as Nomad without one, while nothing can be committed."""
    if not call.server.has_leader:
        raise HttpFault(500, "No cluster leader")
    return rpc_address(call)


async def regions(_call: Call) -> object:
    """The only region."""
    return [REGION]


def _namespace() -> dict[str, object]:
    return {
        "Name": "default",
        "Description": "Default shared namespace",
        "Quota": "",
        "Capabilities": None,
        "Meta": None,
        "CreateIndex": 1,
        "ModifyIndex": 1,
    }


async def namespaces(_call: Call) -> object:
    """The only namespace."""
    return [_namespace()]


async def read_namespace(call: Call) -> object:
    """The only namespace. Raises HttpFault 404."""
    if call.path["name"] != "default":
        raise HttpFault(404, "Namespace not found")
    return _namespace()


async def refuse_namespace(_call: Call) -> object:
    """Refuse: there is one namespace."""
    raise HttpFault(501, "namespaces are not built: there is one, `default`")


async def acl_off(_call: Call) -> object:
    """What Nomad answers with ACLs switched off. Raises HttpFault 400."""
    raise HttpFault(400, "ACL support disabled")


ENDPOINTS = (
    Endpoint(pattern="/v1/agent/self", summary="The gateway itself.", read=read_self),
    Endpoint(pattern="/v1/agent/members", summary="The servers.", read=list_members),
    Endpoint(pattern="/v1/agent/servers", summary="Addresses of the servers.", read=list_servers),
    Endpoint(pattern="/v1/agent/health", summary="Health.", read=read_health, is_stateless=True),
    Endpoint(
        pattern="/v1/agent/schedulers",
        summary="The scheduler workers that are present.",
        read=list_schedulers,
    ),
    Endpoint(pattern="/v1/agent/join", summary="Accepted without effect.", write=refuse_join),
    Endpoint(
        pattern="/v1/agent/force-leave", summary="Accepted without effect.", write=force_leave
    ),
    Endpoint(pattern="/v1/status/leader", summary="Address of the leader.", read=leader),
    Endpoint(pattern="/v1/status/peers", summary="Addresses of the servers.", read=list_servers),
    Endpoint(pattern="/v1/regions", summary="The only region.", read=regions),
    Endpoint(pattern="/v1/namespaces", summary="The only namespace.", read=namespaces),
    Endpoint(
        pattern="/v1/namespace/{name}",
        summary="The only namespace.",
        read=read_namespace,
        write=refuse_namespace,
        delete=refuse_namespace,
    ),
    Endpoint(pattern="/v1/namespace", summary="Refused.", write=refuse_namespace),
    Endpoint(
        pattern="/v1/acl/{rest:path}",
        summary="ACLs are off.",
        read=acl_off,
        write=acl_off,
        delete=acl_off,
    ),
)
