"""`/v1/client/…`: files, logs, statistics, restarts and signals of tasks, asked of their node's agent."""

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from starlette.responses import Response

from schemas.allocations import CLIENT_STATUSES
from schemas.base import JobId
from schemas.node_rpc import (
    FileLine,
    FilePart,
    FilesAnswer,
    FilesAsk,
    LogsAsk,
    StatsAnswer,
    StatsAsk,
    TaskAnswer,
    TaskAsk,
    TaskUse,
)
from services.gateway.edge.agents import HttpNodeStream, ask_agent, streamed
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.source import Object
from services.gateway.nomad.times import rfc3339
from services.gateway.routes.job_writes import field
from services.gateway.routes.lookup import find_alloc, node_row
from shared.bus.connection.node_stream import new_session_id
from shared.jobspec.nomad.job import JOB_DECODER
from shared.protocol import subjects

#: Bytes of one read of a file, and of one frame.
_PART_BYTES = 64 * 1024
#: A reader of a log hears something at least every second.
_HEARTBEAT_S = 1.0
_POLL_S = 0.25
#: Nomad's clients count 120 bytes for a line that they ask for.
_LINE_BYTES = 120
_FRAMES_WAITING = 8
_SIGNAL = re.compile(r"SIG[A-Z0-9+-]{1,12}")


def alloc_place(call: Call) -> tuple[str, str]:
    """Id of the allocation of a path, and id of its node. Raises HttpFault 404."""
    row = find_alloc(call)
    node = int(call.role.state.allocations.node[row])
    return call.path["alloc"], str(call.role.state.fleet.ids[node])


# ---- files ----


async def list_files(call: Call) -> object:
    """The files of a directory of an allocation."""
    alloc_id, node = alloc_place(call)
    found: list[FileLine] = []
    while True:
        ask = FilesAsk(alloc_id=alloc_id, path=_path(call), offset=len(found))
        page = await ask_agent(call, node, "fs_list", ask, answer=FilesAnswer)
        found += page.files
        if not page.files or len(found) >= page.total:
            return [_file_info(one) for one in found]


async def stat_file(call: Call) -> object:
    """One file of an allocation."""
    alloc_id, node = alloc_place(call)
    ask = FilesAsk(alloc_id=alloc_id, path=_path(call))
    found = await ask_agent(call, node, "fs_stat", ask, answer=FilesAnswer)
    return _file_info(found.files[0])


async def read_file(call: Call) -> object:
    """A file, or with `offset` and `limit` a part of it, as bytes."""
    alloc_id, node = alloc_place(call)
    offset, limit = call.number("offset"), call.number("limit")
    if offset < 0 or limit < 0:
        raise HttpFault(400, "offset and limit must not be negative")
    first = await _file_part(
        call, node, FilesAsk(alloc_id=alloc_id, path=_path(call), offset=offset)
    )

    async def parts() -> AsyncIterator[bytes]:
        part, at, left = first, offset, limit
        while part.data:
            data = part.data[:left] if limit else part.data
            yield data
            at, left = at + len(data), left - len(data)
            if limit and left <= 0:
                return
            ask = FilesAsk(alloc_id=alloc_id, path=_path(call), offset=at)
            part = await _file_part(call, node, ask)

    call.headers["Content-Disposition"] = "attachment"
    return streamed(call, parts(), "text/plain; charset=utf-8")


async def stream_file(call: Call) -> object:
    """A file in frames, as it grows. Raises HttpFault 400: there is none, as Nomad says it."""
    alloc_id, node = alloc_place(call)
    path, origin = _path(call), call.text("origin", "start")
    if origin not in ("start", "end"):
        raise HttpFault(400, "origin must be start or end")
    is_followed = call.flag("follow", default=True)
    try:
        found = await ask_agent(
            call, node, "fs_stat", FilesAsk(alloc_id=alloc_id, path=path), answer=FilesAnswer
        )
    except HttpFault as err:
        raise HttpFault(400, err.text) if err.status == 404 else err from err
    size, offset = found.files[0].size, call.number("offset")
    begin = max(size - offset, 0) if origin == "end" else offset

    async def parts() -> AsyncIterator[bytes]:
        at, quiet_s = begin, 0.0
        yield b"{}"
        while True:
            ask = FilesAsk(alloc_id=alloc_id, path=path, offset=at, limit=_PART_BYTES)
            part = await _file_part(call, node, ask)
            if part.size < at:
                at = 0
                yield _frame(b"", 0, path, "file truncated")
            elif part.data:
                at, quiet_s = at + len(part.data), 0.0
                yield _frame(part.data, at, path)
            elif not is_followed:
                return
            else:
                await asyncio.sleep(_POLL_S)
                quiet_s += _POLL_S
                if quiet_s >= _HEARTBEAT_S:
                    quiet_s = 0.0
                    yield b"{}"

    return streamed(call, parts(), "application/json")


async def _file_part(call: Call, node: str, ask: FilesAsk) -> FilePart:
    return await ask_agent(call, node, "fs_read", ask, answer=FilePart)


def _path(call: Call) -> str:
    return call.text("path", "/").lstrip("/")


def _file_info(one: FileLine) -> Object:
    return {
        "Name": one.name,
        "IsDir": one.kind == "directory",
        "Size": one.size,
        "FileMode": one.mode,
        "ModTime": rfc3339(one.modified_ns),
        "ContentType": "",
    }


# ---- logs ----


async def read_logs(call: Call) -> object:
    """The output of a task: frames, or plain bytes."""
    alloc_id, node = alloc_place(call)
    kind, origin = call.text("type", "stdout"), call.text("origin", "start")
    if kind not in ("stdout", "stderr"):
        raise HttpFault(400, "log type must be stdout or stderr")
    if origin not in ("start", "end"):
        raise HttpFault(400, "origin must be start or end")
    offset, is_plain = call.number("offset"), call.flag("plain")
    is_followed = call.flag("follow")
    lines = max(-(-offset // _LINE_BYTES), 1) if origin == "end" else 0
    ask = LogsAsk(
        alloc_id=alloc_id,
        task=task_of(call),
        session=new_session_id(),
        stream=kind,
        follow=is_followed,
        tail=lines,
    )
    name = f"{ask.task}.{kind}.0"
    stream = HttpNodeStream(call.caller.client, node, "logs", ask)
    frames = _log_parts(stream, skip=offset if origin == "start" else 0)
    # An allocation without logs is an error of the request, not of a stream that has begun.
    first = await anext(frames, None)

    async def parts() -> AsyncIterator[bytes]:
        at, found = (offset if origin == "start" else 0), first
        try:
            if not is_plain:
                yield b"{}"
            while found is not None:
                at += len(found)
                if is_plain:
                    yield found
                else:
                    yield _frame(found, at, name) if found else b"{}"
                found = await anext(frames, None)
        except HttpFault:
            # The answer has begun: it ends here.
            return
        finally:
            await frames.aclose()

    return streamed(call, parts(), "text/plain; charset=utf-8" if is_plain else "application/json")


async def _log_parts(stream: HttpNodeStream, *, skip: int) -> AsyncGenerator[bytes, None]:
    """Data of a stream without its first `skip` bytes; empty parts where a second went by without."""
    waiting: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_FRAMES_WAITING)

    async def pump() -> None:
        try:
            async with stream:
                async for frame in stream.frames():
                    await waiting.put(frame.data)
        except HttpFault as err:
            await waiting.put(err)
        else:
            await waiting.put(None)

    task = asyncio.create_task(pump())
    left = skip
    try:
        while True:
            try:
                found = await asyncio.wait_for(waiting.get(), _HEARTBEAT_S)
            except TimeoutError:
                yield b""
                continue
            if found is None:
                return
            if isinstance(found, Exception):
                raise found
            cut = min(left, len(found))
            left -= cut
            if found[cut:]:
                yield found[cut:]
    finally:
        # Not awaited: it may be the reader's leaving that ends this, and the agent is still to be told.
        task.cancel()


def _frame(data: bytes, offset: int, name: str, event: str = "") -> bytes:
    parts = {
        "Offset": offset,
        "Data": base64.b64encode(data).decode(),
        "File": name,
        "FileEvent": event,
    }
    return msgspec.json.encode({key: value for key, value in parts.items() if value})


def task_of(call: Call) -> str:
    """The task that is asked for, or the only one. Raises HttpFault 400, 404."""
    role, row = call.role, find_alloc(call)
    allocations = role.state.allocations
    ref = int(allocations.group[row])
    job_id, version = allocations.groups.job_ids[ref], allocations.groups.versions[ref]
    spec = role.state.jobs.spec(JobId(job_id), version)
    groups = JOB_DECODER.decode(spec).groups if spec is not None else ()
    names = [
        task.name
        for group in groups
        if group.name == allocations.groups.names[ref]
        for task in group.tasks
    ]
    task = call.text("task")
    if not task and len(names) == 1:
        return names[0]
    if not task:
        raise HttpFault(400, "must provide task name")
    if names and task not in names:
        raise HttpFault(404, f"task {task!r} not found, only {', '.join(names)}")
    return task


# ---- tasks ----


async def read_alloc_stats(call: Call) -> object:
    """What an allocation uses now."""
    alloc_id, node = alloc_place(call)
    found = await ask_agent(call, node, "stats", StatsAsk(alloc_id=alloc_id), answer=StatsAnswer)
    tasks = {one.task: _usage([one], found.core_mhz) for one in found.tasks}
    whole = _usage(list(found.tasks), found.core_mhz)
    return {
        "ResourceUsage": whole["ResourceUsage"],
        "Tasks": tasks,
        "Timestamp": call.role.times.at(call.role.seq),
    }


def _usage(tasks: list[TaskUse], core_mhz: int) -> Object:
    """Say in Nomad's words what tasks use; its ticks are MHz."""
    millicores = sum(one.cpu_millicores for one in tasks)
    memory_bytes = sum(one.memory_bytes for one in tasks)
    return {
        "ResourceUsage": {
            "CpuStats": {
                "SystemMode": 0.0,
                "UserMode": 0.0,
                "TotalTicks": millicores * (core_mhz or 1000) / 1000,
                "ThrottledPeriods": 0,
                "ThrottledTime": sum(one.throttled_ns for one in tasks),
                "Percent": millicores / 10,
                "Measured": ["Total Ticks", "Percent", "Throttled Time"],
            },
            "MemoryStats": {
                "RSS": memory_bytes,
                "Cache": 0,
                "Swap": 0,
                "MappedFile": 0,
                "Usage": memory_bytes,
                "MaxUsage": sum(one.memory_peak_bytes for one in tasks),
                "KernelUsage": 0,
                "KernelMaxUsage": 0,
                "Measured": ["RSS", "Usage", "Max Usage"],
            },
            "DeviceStats": None,
        },
        "Timestamp": 0,
        "Pids": None,
    }


async def read_alloc_checks(call: Call) -> object:
    """Checks of an allocation's services by name."""
    row = find_alloc(call)
    tasks = msgspec.json.decode(call.role.state.allocations.details.get(row, b"{}"))
    found = {}
    for task, state in sorted(tasks.items()):
        for name, status in sorted((state.get("checks") or {}).items()):
            found[f"{task}.{name}"] = {
                "ID": f"{task}.{name}",
                "Check": name,
                "Group": "",
                "Task": task,
                "Service": "",
                "Mode": "healthiness",
                "Status": {"passing": "success", "critical": "failure"}.get(status, status),
                "StatusCode": 0,
                "Output": "",
                "Timestamp": 0,
            }
    return found


async def restart_alloc(call: Call) -> object:
    """Restart a task of an allocation, or all that run."""
    alloc_id, node = alloc_place(call)
    raw = await call.raw_body()
    body = _object(raw)
    task = str(field(body, "TaskName", "") or "")
    await ask_agent(call, node, "restart", TaskAsk(alloc_id=alloc_id, task=task), answer=TaskAnswer)
    return {}


async def signal_alloc(call: Call) -> object:
    """Send a signal to a task of an allocation, or to all that run. Raises HttpFault 500: no such signal."""
    alloc_id, node = alloc_place(call)
    body = await call.body()
    signal = str(field(body, "Signal", "") or "SIGKILL")
    if not _SIGNAL.fullmatch(signal):
        raise HttpFault(500, f"invalid signal {signal[:100]!r}")
    ask = TaskAsk(alloc_id=alloc_id, task=str(field(body, "Task", "") or ""), signal=signal)
    try:
        await ask_agent(call, node, "signal", ask, answer=TaskAnswer)
    except HttpFault as err:
        text = f"invalid signal {signal}: {err.text}" if err.status == 400 else err.text
        raise HttpFault(500 if err.status == 400 else err.status, text) from err
    return {}


def _object(raw: bytes) -> Object:
    if not raw:
        return {}
    try:
        found: Object = msgspec.json.decode(raw, type=dict)
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise HttpFault(400, f"the body is not a JSON object: {err}") from err
    return found


# ---- nodes ----


def _asked_node(call: Call) -> tuple[int, str]:
    """The node of the parameter `node_id`, else the first by id. Raises HttpFault 404."""
    text = call.text("node_id")
    if not text:
        known = sorted(call.role.state.fleet.row_of)
        if not known:
            raise HttpFault(404, "node not found")
        text = str(known[0])
    return node_row(call, text)


async def read_node_stats(call: Call) -> object:
    """What the tasks of a node use, against what it has."""
    row, node = _asked_node(call)
    found = await ask_agent(call, node, "stats", StatsAsk(), answer=StatsAnswer)
    fleet = call.role.state.fleet
    _, memory, disk = (int(one) << 20 for one in fleet.capacity[row])
    used = sum(one.memory_bytes for one in found.tasks)
    disk_used = sum(found.disk_mib.values()) << 20
    millicores = sum(one.cpu_millicores for one in found.tasks)
    return {
        "AllocDirStats": {
            "Device": "",
            "Mountpoint": "",
            "Size": disk,
            "Used": disk_used,
            "Available": max(disk - disk_used, 0),
            "UsedPercent": 100 * disk_used / disk if disk else 0.0,
            "InodesUsedPercent": 0.0,
        },
        "CPU": [
            {
                "CPU": "all",
                "User": millicores / 10,
                "System": 0.0,
                "Idle": 0.0,
                "Total": millicores / 10,
            }
        ],
        "CPUTicksConsumed": millicores * (found.core_mhz or 1000) / 1000,
        "Memory": {
            "Total": memory,
            "Available": max(memory - used, 0),
            "Used": used,
            "Free": max(memory - used, 0),
        },
        "DiskStats": [],
        "DeviceStats": None,
        "Uptime": 0,
        "Timestamp": call.role.times.at(call.role.seq),
    }


async def read_metadata(call: Call) -> object:
    """The metadata of a node: its agent's, and what operators said beside it."""
    row, _ = _asked_node(call)
    fleet = call.role.state.fleet
    said = fleet.operator_meta.get(fleet.ids[row], {})
    return {"Meta": fleet.shown(row).meta, "Dynamic": said, "Static": fleet.specs[row].meta}


async def write_metadata(call: Call) -> object:
    """Change what operators say about a node."""
    body = await call.body()
    text = str(field(body, "NodeID", "") or call.text("node_id"))
    _, node = node_row(call, text) if text else _asked_node(call)
    change = field(body, "Meta", {}) or {}
    request = {"node_id": node, "change": change}
    verdict = await call.write(subjects.api("node", "set_meta"), request)
    meta = verdict.get("meta") or {}
    return {"Meta": meta, "Dynamic": verdict.get("operator_meta") or {}, "Static": {}}


async def collect_allocs(call: Call) -> object:
    """Nothing to do: an agent removes the files of an allocation when the log forgets it.

    The body is empty, not null: Nomad's client decodes any other one into nothing, which fails.
    """
    _asked_node(call)
    return Response(b"", 200)


async def collect_alloc(call: Call) -> object:
    """As `collect_allocs`, of one allocation that must have ended. Raises HttpFault 500."""
    row = find_alloc(call)
    status = CLIENT_STATUSES[call.role.state.allocations.client[row]]
    if status in ("pending", "running"):
        raise HttpFault(500, f"allocation {call.path['alloc']} is {status}")
    return None


_FS, _ALLOC = "/v1/client/fs", "/v1/client/allocation/{alloc}"
ENDPOINTS = (
    Endpoint(pattern=_FS + "/ls/{alloc}", summary="Files of a directory.", read=list_files),
    Endpoint(pattern=_FS + "/stat/{alloc}", summary="One file.", read=stat_file),
    Endpoint(pattern=_FS + "/cat/{alloc}", summary="A file.", read=read_file),
    Endpoint(pattern=_FS + "/readat/{alloc}", summary="A part of a file.", read=read_file),
    Endpoint(pattern=_FS + "/stream/{alloc}", summary="A file as it grows.", read=stream_file),
    Endpoint(pattern=_FS + "/logs/{alloc}", summary="Output of a task.", read=read_logs),
    Endpoint(pattern=_ALLOC + "/stats", summary="What an allocation uses.", read=read_alloc_stats),
    Endpoint(
        pattern=_ALLOC + "/checks", summary="Checks of an allocation.", read=read_alloc_checks
    ),
    Endpoint(pattern=_ALLOC + "/restart", summary="Restart tasks.", write=restart_alloc),
    Endpoint(pattern=_ALLOC + "/signal", summary="Send a signal to tasks.", write=signal_alloc),
    Endpoint(
        pattern=_ALLOC + "/gc",
        summary="Accepted without effect.",
        read=collect_alloc,
        write=collect_alloc,
    ),
    Endpoint(pattern="/v1/client/stats", summary="What a node uses.", read=read_node_stats),
    Endpoint(
        pattern="/v1/client/gc",
        summary="Accepted without effect.",
        read=collect_allocs,
        write=collect_allocs,
    ),
    Endpoint(
        pattern="/v1/client/metadata",
        summary="Metadata of a node.",
        read=read_metadata,
        write=write_metadata,
    ),
)
