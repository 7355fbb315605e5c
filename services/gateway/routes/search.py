"""`/v1/search` and `/v1/search/fuzzy`: ids by prefix, names by part."""

from collections.abc import Callable

from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.allocations import alloc_shown_ids
from services.gateway.routes.job_writes import field
from services.gateway.routes.lookup import (
    allocs_with_prefix,
    deployments_with_prefix,
    evals_with_prefix,
)
from shared.core.state.ids import deployment_id, eval_id
from shared.protocol.node_uuids import node_uuid

SHOWN_MAX = 20
_TEXT_MIN, _TEXT_MAX = 1, 256


def _jobs(call: Call, prefix: str) -> list[str]:
    return sorted(str(one) for one in call.role.state.jobs.by_id if one.startswith(prefix))


def _nodes(call: Call, prefix: str) -> list[str]:
    return sorted(node_uuid(one) for one in call.role.node_ids.with_prefix(prefix))


def _allocs(call: Call, prefix: str) -> list[str]:
    return sorted(alloc_shown_ids(call.role.state, allocs_with_prefix(call, prefix)))


def _evals(call: Call, prefix: str) -> list[str]:
    return sorted(eval_id(one.key) for one in evals_with_prefix(call, prefix))


def _deployments(call: Call, prefix: str) -> list[str]:
    return sorted(deployment_id(one.key) for one in deployments_with_prefix(call, prefix))


_CONTEXTS: dict[str, Callable[[Call, str], list[str]]] = {
    "jobs": _jobs,
    "nodes": _nodes,
    "allocs": _allocs,
    "evals": _evals,
    "deployment": _deployments,
}
#: Of Nomad, without anything of ours.
_EMPTY = ("namespaces", "node_pools", "plugins", "volumes", "vars", "scaling_policy", "quotas")


async def search(call: Call) -> object:
    """Ids that begin so, at most 20 of a kind. Raises HttpFault 400."""
    body = await call.body()
    prefix, context = str(field(body, "Prefix", "")), str(field(body, "Context", "all") or "all")
    matches: dict[str, list[str]] = {}
    cut: dict[str, bool] = {}
    for name in _named(context):
        try:
            found = _CONTEXTS[name](call, prefix) if name in _CONTEXTS else []
        except HttpFault:
            # Of all kinds, those whose ids are hexadecimal have none that begins so.
            found = []
        matches[name], cut[name] = found[:SHOWN_MAX], len(found) > SHOWN_MAX
    return {"Matches": matches, "Truncations": cut, "Index": max(call.role.seq, 1)}


async def fuzzy_search(call: Call) -> object:
    """Names that contain a text. Raises HttpFault 400."""
    body = await call.body()
    text, context = str(field(body, "Text", "")), str(field(body, "Context", "all") or "all")
    if not _TEXT_MIN < len(text) <= _TEXT_MAX:
        raise HttpFault(400, f"fuzzy search query must have 2 to {_TEXT_MAX} characters")
    lower, state = text.lower(), call.role.state
    found: dict[str, list[dict[str, object]]] = {}
    if context in ("all", "jobs"):
        found["jobs"] = [
            {"ID": str(one), "Scope": ["default", str(one)]}
            for one in sorted(state.jobs.by_id)
            if lower in one.lower()
        ]
    if context in ("all", "nodes"):
        rows = sorted(state.fleet.row_of.items())
        named = [(one, state.fleet.specs[row].name or str(one)) for one, row in rows]
        found["nodes"] = [
            {"ID": name, "Scope": [node_uuid(str(one))]}
            for one, name in named
            if lower in name.lower()
        ]
    if context in ("all", "groups", "jobs"):
        found["groups"] = [
            {"ID": group.name, "Scope": ["default", str(one.id)]}
            for one in state.jobs.by_id.values()
            for group in one.groups
            if lower in group.name.lower()
        ]
    matches = {name: rows[:SHOWN_MAX] for name, rows in found.items() if rows}
    cut = {name: len(rows) > SHOWN_MAX for name, rows in found.items() if rows}
    return {"Matches": matches, "Truncations": cut, "Index": max(call.role.seq, 1)}


def _named(context: str) -> tuple[str, ...]:
    if context == "all":
        return (*_CONTEXTS, *_EMPTY)
    if context not in _CONTEXTS and context not in _EMPTY:
        raise HttpFault(
            400, f"context {context[:100]!r} is not one of {', '.join((*_CONTEXTS, *_EMPTY))}"
        )
    return (context,)


ENDPOINTS = (
    Endpoint(pattern="/v1/search/fuzzy", summary="Names that contain a text.", write=fuzzy_search),
    Endpoint(pattern="/v1/search", summary="Search ids by prefix.", write=search),
)
