"""Readers of recorded workloads: openb node and pod lists, and the Standard Workload Format.

Errors name file and line. Traces are not part of this repository; the scenario names their files. Times are ns from the
first job of the trace.
"""

import csv
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from schemas.nodes import Instance, NodeSpec, Pool
from shared.errors import ConfigInvalid
from shared.fleet.config_file import FileInvalid
from shared.fleet.profile import node_spec
from shared.numerals import is_digits
from shared.sim.scenario.schema import ScenarioNodes, TraceSource
from shared.sim.virtual_time import SECOND

_GPU = "device.gpu"
_VENDOR = "nvidia"
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time")
_SWF_FIELDS = 18
_MILLI = 1000
#: Nomad's minimum for a task.
_MEMORY_MIN = 10


class TracedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a trace: `job` is a Nomad job without an ID."""

    at_ns: int
    name: str
    job: dict[str, Any]


def check_trace(trace: TraceSource, path: str, folder: Path) -> None:
    """Check the settings of a trace. Raises ConfigInvalid."""
    said = [name for name in ("openb", "swf", "log") if getattr(trace, name)]
    if len(said) != 1:
        raise ConfigInvalid(f"{path}: exactly one of openb, swf and log is required")
    place = folder / getattr(trace, said[0])
    there = place.is_dir() if said[0] == "log" else place.is_file()
    if not there:
        kind = "folder" if said[0] == "log" else "file"
        text = f"{kind} {str(place)!r} does not exist; set the folder of traces and exports with --data"
        raise ConfigInvalid(f"{path}.{said[0]}: {text}")
    if min(trace.speed, trace.shorter) <= 0 or min(trace.first, trace.skip) < 0:
        raise ConfigInvalid(
            f"{path}: speed and shorter must be more than 0, first and skip not negative"
        )
    if not (1 <= trace.cpu_mhz < 2**31 and 1 <= trace.memory_mib < 2**31):
        raise ConfigInvalid(f"{path}: a processor must have at least 1 MHz and 1 MiB")


def trace_jobs(trace: TraceSource, folder: Path) -> Iterator[TracedJob]:
    """Yield a trace's jobs in order of time. Raises FileInvalid."""
    found = _pods(trace, folder) if trace.openb else _swf(trace, folder)
    begin_ns = None
    for nth, one in enumerate(found):
        if trace.first and nth == trace.skip + trace.first:
            return
        if nth >= trace.skip:
            begin_ns = one.at_ns if begin_ns is None else begin_ns
            yield msgspec.structs.replace(one, at_ns=one.at_ns - begin_ns)


# ---- openb ----


def read_openb_nodes(one: ScenarioNodes, path: str, folder: Path) -> list[NodeSpec]:
    """Read a node list: one device instance per GPU. Raises ConfigInvalid."""
    file = folder / one.openb
    if not file.is_file():
        raise ConfigInvalid(
            f"{path}.openb: file {str(file)!r} does not exist; set the folder of traces with --data"
        )
    out = []
    for nth, (line, row) in enumerate(_rows(file, _NODE_COLUMNS)):
        if nth % one.every:
            continue
        cpu, memory, gpus = (
            _whole(row, name, file, line) for name in ("cpu_milli", "memory_mib", "gpu")
        )
        if cpu < 1 or memory < 1 or gpus > 64:
            raise FileInvalid("the size of the node is out of range", file=str(file), line=line)
        pools: tuple[Pool, ...] = ()
        if gpus:
            instances = tuple(Instance(id=f"gpu-{at}") for at in range(gpus))
            pools = (Pool(name=_GPU, vendor=_VENDOR, model=row["model"], instances=instances),)
        out.append(
            msgspec.structs.replace(
                node_spec(one, f"{one.name}-{row['sn']}"),
                node_class=row["model"],
                cpu_mhz=cpu,
                memory_mib=memory,
                core_mhz=0,
                pools=pools,
                attributes=dict(sorted({"driver.raw_exec": "1", **one.attributes}.items())),
            )
        )
    return out


def _pods(trace: TraceSource, folder: Path) -> Iterator[TracedJob]:
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
        if is_digits(ended):
            lived = max(int(ended) - created, 1) * _MILLI
            meta = {"sim.run_ms": str(int(lived / shorter))}
        job = {
            # Without a recorded end, it runs on.
            "Type": "batch" if meta else "service",
            "Priority": 70 if row.get("qos") in {"LS", "Guaranteed"} else 30,
            "TaskGroups": [one_task_group(resources, meta)],
        }
        at_ns = int(created * SECOND / speed)
        yield TracedJob(at_ns=at_ns, name=row["name"], job=job)


def _rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise FileInvalid(f"column {missing[0]} is missing", file=str(file), line=1)
            for row in reader:
                if None in row or None in row.values():
                    text = "the number of fields differs from the first line"
                    raise FileInvalid(text, file=str(file), line=reader.line_num)
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise FileInvalid(f"cannot be read: {err}", file=str(file)) from err


def _whole(row: dict[str, str], name: str, file: Path, line: int) -> int:
    text = row[name]
    if not is_digits(text) or len(text) > 15:
        raise FileInvalid(f"{name}: {text[:40]!r} is not a whole number", file=str(file), line=line)
    return int(text)


# ---- SWF ----


def _swf(trace: TraceSource, folder: Path) -> Iterator[TracedJob]:
    """Read jobs: each processor is an allocation; a job is placed all or nothing, as in a batch system."""
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
                    # Cancelled before it ran: its size is unknown.
                    continue
                begin = submitted if begin is None else begin
                kib = fields[9] if fields[9] > 0 else fields[6]
                memory = max(kib // 1024, _MEMORY_MIN) if kib > 0 else trace.memory_mib
                resources = {"CPU": trace.cpu_mhz, "MemoryMB": int(memory)}
                meta = {"sim.run_ms": str(int(run * _MILLI / shorter))}
                job = {
                    "Type": "batch",
                    "Priority": 50,
                    "TaskGroups": [one_task_group(resources, meta, processors)],
                    "AllAtOnce": processors > 1,
                }
                at_ns = int(max(submitted - begin, 0) * SECOND / speed)
                yield TracedJob(at_ns=at_ns, name=str(fields[0]), job=job)
    except (OSError, UnicodeDecodeError) as err:
        raise FileInvalid(f"cannot be read: {err}", file=str(file)) from err


def _swf_fields(text: str, file: Path, line: int) -> list[int]:
    words = text.split()
    try:
        fields = [int(Fraction(word)) for word in words]
    except (ValueError, ZeroDivisionError) as err:
        raise FileInvalid(f"a field is not a number: {err}", file=str(file), line=line) from err
    if len(fields) != _SWF_FIELDS:
        fault = f"the line has {len(fields)} fields, SWF has {_SWF_FIELDS}"
        raise FileInvalid(fault, file=str(file), line=line)
    return fields


def one_task_group(
    resources: dict[str, Any], meta: dict[str, str] | None, count: int = 1
) -> dict[str, Any]:
    """Return the JSON of a group with one simulated task."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": resources,
        # Logs of the default size do not fit on the disk of a small task.
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        **({"Meta": meta} if meta is not None else {}),
    }
    return {"Name": "main", "Count": count, "Tasks": [task]}
