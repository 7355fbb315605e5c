"""What Nomad has and Caravan has not: answered as Nomad does where a feature is off, or refused by name."""

from services.gateway.edge.call import Call, Handler
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint


async def empty_list(_call: Call) -> object:
    """None of these exist."""
    return []


async def not_found(_call: Call) -> object:
    """None of these exist. Raises HttpFault 404."""
    raise HttpFault(404, "not found")


async def not_built(_call: Call) -> object:
    """Refuse by name. Raises HttpFault 501."""
    raise HttpFault(501, "not built")


def _off(pattern: str, read: Handler = not_built) -> Endpoint:
    return Endpoint(
        pattern=pattern, summary="Not built.", read=read, write=not_built, delete=not_built
    )


ENDPOINTS = (
    Endpoint(
        pattern="/v1/volume/{rest:path}", summary="Not built.", read=not_found, write=not_built
    ),
    Endpoint(pattern="/v1/plugins", summary="An empty list: not built.", read=empty_list),
    _off("/v1/agent/pprof/{rest:path}"),
    _off("/v1/agent/host"),
    _off("/v1/agent/schedulers/config"),
    _off("/v1/agent/keyring/{rest:path}"),
    _off("/v1/client/allocation/{alloc}/pause"),
    _off("/v1/client/identity"),
    _off("/v1/node/{node}/purge"),
    _off("/v1/operator/autopilot/{rest:path}"),
    _off("/v1/operator/keyring/{rest:path}"),
    _off("/v1/operator/license"),
    _off("/v1/operator/raft/transfer-leadership"),
    _off("/v1/operator/upgrade-check/{rest:path}"),
    _off("/v1/operator/utilization"),
    _off("/v1/plugin/{rest:path}", read=not_found),
    _off("/v1/recommendations"),
    Endpoint(pattern="/v1/quotas", summary="An empty list: not built.", read=empty_list),
    Endpoint(pattern="/v1/sentinel/policies", summary="An empty list: not built.", read=empty_list),
)
