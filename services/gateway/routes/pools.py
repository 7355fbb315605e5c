"""`/v1/node/pools` and `/v1/node/pool/<name>`: pools are the names that nodes say, and the two that always exist."""

from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.nomad.jobs import job_stub
from services.gateway.nomad.nodes import node_stub
from services.gateway.nomad.source import Object
from services.gateway.routes.lookup import is_purged

_ALL = "all"
_TEXTS = {_ALL: "Node pool with all nodes.", "default": "Default node pool."}
_TABLES = ("fleet",)


def _names(call: Call) -> list[str]:
    fleet = call.role.state.fleet
    return sorted({*_TEXTS, *(fleet.specs[row].node_pool for row in fleet.row_of.values())})


def _pool(name: str) -> Object:
    return {
        "Name": name,
        "Description": _TEXTS.get(name, ""),
        "Meta": None,
        "NodeIdentityTTL": 0,
        "SchedulerConfiguration": None,
        "CreateIndex": 1,
        "ModifyIndex": 1,
    }


def _asked(call: Call) -> str:
    """The pool of the path. Raises HttpFault 404."""
    name = call.path["name"]
    if name not in _names(call):
        raise HttpFault(404, "node pool not found")
    return name


async def list_pools(call: Call) -> object:
    """The pools, by name."""
    await call.block(map(table, _TABLES), lambda: call.role.changes.newest(_TABLES))
    found = [one for one in _names(call) if one.startswith(call.text("prefix"))]
    return page(call, found, order=lambda one: (0, one), whole=_pool, compile_filter=compile_filter)


async def read_pool(call: Call) -> object:
    """One pool."""
    await call.block(map(table, _TABLES), lambda: call.role.changes.newest(_TABLES))
    return _pool(_asked(call))


async def list_pool_nodes(call: Call) -> object:
    """The nodes of a pool."""
    name, source = _asked(call), call.role.source
    fleet = source.state.fleet
    rows = [
        row for row in sorted(fleet.row_of.values()) if name in (_ALL, fleet.specs[row].node_pool)
    ]
    return [node_stub(source, row, with_os=False, with_resources=False) for row in rows]


async def list_pool_jobs(call: Call) -> object:
    """The jobs that name a pool."""
    name, source = _asked(call), call.role.source
    jobs = [one for one in source.state.jobs.by_id.values() if one.node_pool == name]
    return [
        job_stub(source, one, with_meta=False)
        for one in sorted(jobs, key=lambda one: one.id)
        if not is_purged(one)
    ]


async def refuse_pool(_call: Call) -> object:
    """Refuse: a pool exists while a node names it. Raises HttpFault 501."""
    raise HttpFault(501, "node pools are not built as objects: a pool exists while a node names it")


_POOL = "/v1/node/pool/{name}"
ENDPOINTS = (
    Endpoint(
        pattern="/v1/node/pools", summary="List node pools.", read=list_pools, write=refuse_pool
    ),
    Endpoint(pattern=_POOL + "/nodes", summary="Nodes of a pool.", read=list_pool_nodes),
    Endpoint(pattern=_POOL + "/jobs", summary="Jobs of a pool.", read=list_pool_jobs),
    Endpoint(
        pattern=_POOL,
        summary="Read a node pool.",
        read=read_pool,
        write=refuse_pool,
        delete=refuse_pool,
    ),
)
