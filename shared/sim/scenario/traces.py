"""Traces of recorded clusters, read line by line: openb's node and pod lists, the Standard Workload Format.

Decides what a line means here, and what makes no sense, by file and line. Traces are never part of this tree: they are
read from where the scenario says. Must not know when anything happens (`arrivals.py`). Times are ns from the trace's
first job.
"""

import csv
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from schemas.base import NodeId
from schemas.nodes import Instance, NodeSpec, Pool
from shared.errors import CaravanError
from shared.sim.scenario.form import Nodes, Trace

SECOND = 1_000_000_000
_GPU = "device.gpu"
_VENDOR = "nvidia"
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time")
_SWF_FIELDS = 18
_MILLI = 1000
#: Nomad's least for a task.
_MEMORY_MIN = 10


class TraceInvalid(CaravanError):
    """A trace that cannot be read."""

    def __init__(self, message: str, *, path: str = "", file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.file = file
        self.line = line


class TracedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a trace: `job` is Nomad's, without an ID."""

    at_ns: int
    name: str
    job: dict[str, Any]


def check(trace: Trace, path: str, folder: Path) -> None:
    """See whether a trace names what is there. Raises TraceInvalid."""
    said = [name for name in ("openb", "swf", "log") if getattr(trace, name)]
    if len(said) != 1:
        raise TraceInvalid("one of openb, swf and log is needed", path=path)
    place = folder / getattr(trace, said[0])
    there = place.is_dir() if said[0] == "log" else place.is_file()
    if not there:
        kind = "folder" if said[0] == "log" else "file"
        text = f"there is no {kind} {str(place)!r}; --data says where traces and exports lie"
        raise TraceInvalid(text, path=f"{path}.{said[0]}")
    if min(trace.speed, trace.shorter) <= 0 or min(trace.first, trace.skip) < 0:
        raise TraceInvalid(
            "speed and shorter are more than 0, first and skip not negative", path=path
        )
    if not (1 <= trace.cpu_mhz < 2**31 and 1 <= trace.memory_mib < 2**31):
        raise TraceInvalid("a processor has at least 1 MHz and 1 MiB", path=path)


def jobs_of(trace: Trace, folder: Path) -> Iterator[TracedJob]:
    """Yield a trace's jobs in order of time. Raises TraceInvalid."""
    found = _pods(trace, folder) if trace.openb else _swf(trace, folder)
    begin_ns = None
    for nth, one in enumerate(found):
        if trace.first and nth == trace.skip + trace.first:
            return
        if nth >= trace.skip:
            begin_ns = one.at_ns if begin_ns is None else begin_ns
            yield msgspec.structs.replace(one, at_ns=one.at_ns - begin_ns)


# ---- openb ----


def openb_nodes(one: Nodes, path: str, folder: Path) -> list[NodeSpec]:
    """Read a node list: a GPU each instance, its model as the list says. Raises TraceInvalid."""
    file = folder / one.openb
    if not file.is_file():
        raise TraceInvalid(
            f"there is no file {str(file)!r}; --data says where traces lie", path=f"{path}.openb"
        )
    out = []
    for nth, (line, row) in enumerate(_rows(file, _NODE_COLUMNS)):
        if nth % one.every:
            continue
        cpu, memory, gpus = (
            _whole(row, name, file, line) for name in ("cpu_milli", "memory_mib", "gpu")
        )
        if cpu < 1 or memory < 1 or gpus > 64:
            raise TraceInvalid("a node of this size makes no sense", file=str(file), line=line)
        pools: tuple[Pool, ...] = ()
        if gpus:
            instances = tuple(Instance(id=f"gpu-{at}") for at in range(gpus))
            pools = (Pool(name=_GPU, vendor=_VENDOR, model=row["model"], instances=instances),)
        node_id = f"{one.name}-{row['sn']}"
        out.append(
            NodeSpec(
                node_id=NodeId(node_id),
                name=node_id,
                datacenter=one.datacenter,
                node_pool=one.pool,
                node_class=row["model"],
                cpu_mhz=cpu,
                memory_mib=memory,
                disk_mib=one.disk_mib,
                pools=pools,
                attributes=dict(sorted({"driver.raw_exec": "1", **one.attributes}.items())),
                meta=one.meta,
            )
        )
    return out


def _pods(trace: Trace, folder: Path) -> Iterator[TracedJob]:
    file = folder / trace.openb
    speed, shorter = Fraction(trace.speed), Fraction(trace.shorter)
    pods = sorted(
        (_whole(row, "creation_time", file, line), line, row)
        for line, row in _rows(file, _POD_COLUMNS)
    )
    for created, line, row in pods:
        resources: dict[str, Any] = {
            "CPU": max(_whole(row, "cpu_milli", file, line), 1),
            "MemoryMB": max(_whole(row, "memory_mib", file, line), _MEMORY_MIN),
        }
        gpus, share = _whole(row, "num_gpu", file, line), _whole(row, "gpu_milli", file, line)
        if gpus:
            count = gpus if gpus > 1 or share >= _MILLI else share / _MILLI
            device: dict[str, Any] = {"Name": "gpu", "Count": count}
            if row.get("gpu_spec"):
                models = row["gpu_spec"].replace(".", r"\.")
                device["Constraints"] = [
                    {"LTarget": "${device.model}", "Operand": "regexp", "RTarget": f"^({models})$"}
                ]
            resources["Devices"] = [device]
        ended = row.get("deletion_time") or ""
        meta = {}
        if ended.isdecimal():
            lived = max(int(ended) - created, 1) * _MILLI
            meta = {"sim.run_ms": str(int(lived / shorter))}
        job = _job(resources, meta, priority=70 if row.get("qos") in {"LS", "Guaranteed"} else 30)
        if not meta:
            # Nobody saw its end.
            job["Type"] = "service"
        at_ns = int(created * SECOND / speed)
        yield TracedJob(at_ns=at_ns, name=row["name"], job=job)


def _rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceInvalid(f"has no column {missing[0]}", file=str(file), line=1)
            for row in reader:
                if None in row or None in row.values():
                    text = "has another number of fields than the first line"
                    raise TraceInvalid(text, file=str(file), line=reader.line_num)
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise TraceInvalid(f"cannot be read: {err}", file=str(file)) from err


def _whole(row: dict[str, str], name: str, file: Path, line: int) -> int:
    text = row[name]
    if not text.isdecimal() or len(text) > 15:
        raise TraceInvalid(
            f"{name} is {text[:40]!r}, a whole number is needed", file=str(file), line=line
        )
    return int(text)


# ---- SWF ----


def _swf(trace: Trace, folder: Path) -> Iterator[TracedJob]:
    """Each processor of a job is an allocation; nothing of a job is placed unless all is, as in a batch system."""
    file = folder / trace.swf
    speed, shorter = Fraction(trace.speed), Fraction(trace.shorter)
    begin = None
    try:
        with file.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                if not text.strip() or text.lstrip().startswith(";"):
                    continue
                fields = _swf_fields(text, file, number)
                submitted, run, used, asked = fields[1], fields[3], fields[4], fields[7]
                processors = asked if asked > 0 else used
                if processors < 1 or run < 0 or submitted < 0:
                    # Cancelled before it ran: the trace does not say what it would have needed.
                    continue
                begin = submitted if begin is None else begin
                kib = fields[9] if fields[9] > 0 else fields[6]
                memory = max(kib // 1024, _MEMORY_MIN) if kib > 0 else trace.memory_mib
                resources = {"CPU": trace.cpu_mhz, "MemoryMB": int(memory)}
                meta = {"sim.run_ms": str(int(run * _MILLI / shorter))}
                job = _job(resources, meta, count=processors)
                job["AllAtOnce"] = processors > 1
                at_ns = int(max(submitted - begin, 0) * SECOND / speed)
                yield TracedJob(at_ns=at_ns, name=str(fields[0]), job=job)
    except (OSError, UnicodeDecodeError) as err:
        raise TraceInvalid(f"cannot be read: {err}", file=str(file)) from err


def _swf_fields(text: str, file: Path, line: int) -> list[int]:
    words = text.split()
    try:
        fields = [int(Fraction(word)) for word in words]
    except (ValueError, ZeroDivisionError) as err:
        raise TraceInvalid(f"a field is no number: {err}", file=str(file), line=line) from err
    if len(fields) != _SWF_FIELDS:
        told = f"{len(fields)} fields, a line of SWF has {_SWF_FIELDS}"
        raise TraceInvalid(told, file=str(file), line=line)
    return fields


def _job(
    resources: dict[str, Any], meta: dict[str, str], *, count: int = 1, priority: int = 50
) -> dict[str, Any]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": resources,
        "Meta": meta,
    }
    group = {"Name": "main", "Count": count, "Tasks": [task]}
    return {"Type": "batch", "Priority": priority, "TaskGroups": [group]}
