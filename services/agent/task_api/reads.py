"""What a task reads over its socket, in Nomad's shapes: variables that are named after it, and services.

Answered from what this node's templates read: the keeper decides for each allocation and task, the view says what is
new.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, TypeVar

from services.agent.inputs.templates.followed_values import DataUnusable
from services.agent.inputs.templates.service_directory import ServiceSource
from services.agent.inputs.templates.variable_directory import (
    KnownVariable,
    VariableReader,
    VariableSource,
)
from services.agent.task_api.http_messages import ApiAnswer, ApiFault, ApiRequest
from shared.durations import InvalidDuration, parse_duration
from shared.gotemplate.data import NamedInstance, Variable
from shared.protocol.node_uuids import node_uuid
from shared.protocol.task_variables import path_refusal, task_paths
from shared.protocol.variable_paths import path_fault

#: An answer of the keeper or the view is awaited so long.
ANSWER_S = 10.0
#: A blocking read waits so long, unless it says, and so long at most.
WAIT_S, WAIT_MAX_S = 300.0, 600.0
_NAMESPACE = "default"
#: Of Nomad's clients: they decide nothing here.
_WITHOUT_EFFECT = frozenset(("stale", "pretty", "consistent", "region"))
Found = TypeVar("Found")


class ApiReader(NamedTuple):
    """The task that reads. `job`: of a periodic or dispatched child its parent."""

    alloc_id: str
    job: str
    group: str
    task: str

    @property
    def paths(self) -> tuple[str, ...]:
        """The variables that the task may read."""
        return task_paths(self.job, self.group, self.task)


class TaskReads:
    """Answers the requests of this node's tasks."""

    def __init__(self, variables: VariableSource, services: ServiceSource) -> None:
        self._variables = variables
        self._services = services

    async def answer(self, reader: ApiReader, request: ApiRequest) -> ApiAnswer:
        """Answer a request whose token is the task's. Raises ApiFault."""
        if request.method not in ("GET", "HEAD"):
            raise ApiFault(403, f"{request.method}: a task may only read. Permission denied")
        path = request.path
        if path == "/v1/agent/health":
            _check(request)
            return ApiAnswer({"client": {"message": "ok", "ok": True}})
        if path == "/v1/vars":
            _check(request, "prefix")
            return await self._list(reader, request.query.get("prefix", ""))
        if path.startswith("/v1/var/"):
            _check(request, "index", "wait")
            return await self._variable(reader, path.removeprefix("/v1/var/"), request.query)
        if path == "/v1/services":
            _check(request)
            return await self._names()
        name = path.removeprefix("/v1/service/")
        if name != path and name and "/" not in name:
            _check(request)
            return await self._service(name)
        raise ApiFault(403, f"{path[:80]} is not in the task API. Permission denied")

    # ---- variables ----

    async def _variable(self, reader: ApiReader, path: str, query: Mapping[str, str]) -> ApiAnswer:
        index, wait_s = _blocking(query)
        if reason := path_refusal(path, reader.paths):
            raise ApiFault(403, f"{reason}. Permission denied")
        if reason := path_fault(path):
            raise ApiFault(400, reason)
        who = VariableReader(reader.alloc_id, reader.task)
        found = await _soon(self._variables.variable(who, path))
        if index and _index(found.variable) <= index:
            try:
                async with asyncio.timeout(wait_s):
                    while _index(found.variable) <= index:
                        await self._variables.changed(who, {path: found.version})
                        found = await self._variables.variable(who, path)
                        if found.variable is None:
                            break
            except TimeoutError:
                pass
            except DataUnusable as err:
                raise ApiFault(403, f"{err}. Permission denied") from None
        if found.variable is None:
            raise ApiFault(404, "variable not found")
        one = found.variable
        return ApiAnswer({**_shape(one), "Items": dict(one.items)}, _index(one))

    async def _list(self, reader: ApiReader, prefix: str) -> ApiAnswer:
        # Names of jobs may have what paths may not: then no variable is named after the job.
        paths = [one for one in reader.paths if one.startswith(prefix) and not path_fault(one)]
        who = VariableReader(reader.alloc_id, reader.task)
        asked = (_soon(self._variables.variable(who, path)) for path in paths)
        found: list[KnownVariable] = await asyncio.gather(*asked)
        ones = [one.variable for one in found if one.variable is not None]
        return ApiAnswer([_shape(one) for one in ones], max(map(_index, ones), default=1))

    # ---- services ----

    async def _names(self) -> ApiAnswer:
        known = await _soon(self._services.services(), fault=503)
        lines = [{"ServiceName": one.name, "Tags": list(one.tags)} for one in known.names]
        return ApiAnswer([{"Namespace": _NAMESPACE, "Services": lines}] if lines else [])

    async def _service(self, name: str) -> ApiAnswer:
        # A name that has no instance is not followed: a task may ask for any number of them.
        known = await _soon(self._services.services(), fault=503)
        if all(one.name != name for one in known.names):
            return ApiAnswer([])
        found = await _soon(self._services.service(name), fault=503)
        return ApiAnswer([_registration(one) for one in found.instances])


async def _soon(work: Awaitable[Found], *, fault: int = 403) -> Found:
    """Wait for data; `fault`: status for data that may not be read, or of which a part is known. Raises ApiFault."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await work
    except TimeoutError:
        raise ApiFault(503, f"no answer of the cluster within {ANSWER_S:.0f} s") from None
    except DataUnusable as err:
        text = f"{err}. Permission denied" if fault == 403 else str(err)
        raise ApiFault(fault, text) from None


def _check(request: ApiRequest, *known: str) -> None:
    """Refuse parameters that would have no effect. Raises ApiFault 400."""
    for name, value in request.query.items():
        if name == "namespace":
            if value not in ("", _NAMESPACE):
                raise ApiFault(400, f"namespace must be {_NAMESPACE}, was {value[:80]!r}")
        elif name not in _WITHOUT_EFFECT and name not in known:
            raise ApiFault(400, f"parameter {name[:80]!r} is not in the task API")


def _blocking(query: Mapping[str, str]) -> tuple[int, float]:
    """Read `index` and `wait`. Raises ApiFault 400."""
    text = query.get("index") or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise ApiFault(400, f"index must be a number, was {text[:80]!r}")
    wait = query.get("wait", "")
    try:
        wait_s = parse_duration(wait) / 1e9 if wait else WAIT_S
    except InvalidDuration as err:
        raise ApiFault(400, f"wait: {err}") from None
    return int(text), min(max(wait_s, 0.0), WAIT_MAX_S)


def _index(one: Variable | None) -> int:
    return max(one.modify_index, 1) if one is not None else 0


def _shape(one: Variable) -> dict[str, Any]:
    return {
        "Namespace": _NAMESPACE,
        "Path": one.path,
        "CreateIndex": one.create_index,
        "CreateTime": one.create_ns,
        "ModifyIndex": one.modify_index,
        "ModifyTime": one.modify_ns,
    }


def _registration(one: NamedInstance) -> dict[str, Any]:
    return {
        "ID": one.id,
        "ServiceName": one.name,
        "Namespace": _NAMESPACE,
        "NodeID": node_uuid(one.node),
        "Datacenter": one.datacenter,
        "JobID": one.job_id,
        "AllocID": one.alloc_id,
        "Tags": list(one.tags),
        "Address": one.address,
        "Port": one.port,
        "CreateIndex": 1,
        "ModifyIndex": 1,
    }
