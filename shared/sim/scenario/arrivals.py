"""Jobs as they come: templates, times and traces become submissions, in order of time.

Decides when which job comes and what it asks for; every draw is a hash of (seed, name, number, purpose), so that
another policy or another cluster meets the very same jobs. Must not know what becomes of them.
"""

import heapq
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from schemas.envelope import RECORD_DECODER
from schemas.jobs import JobRegistered, JobStopped
from shared.core.log import is_framed
from shared.core.role import Record
from shared.core.splitmix import splitmix64
from shared.errors import ConfigInvalid
from shared.fleet.laws import exponential, hashes
from shared.jobspec.durations import nanoseconds
from shared.jobspec.load import load_file
from shared.sim.engine.setup import Submission
from shared.sim.scenario.form import Arrivals, Ask, Draw, Size, Template
from shared.sim.scenario.traces import jobs_of

HOUR_NS = 3_600_000_000_000
#: An export's records: whoever can read one hands this in.
Open = Callable[[Path], Iterator[Record]]
#: (ns from the scenario's first moment, what comes).
Coming = tuple[int, Submission]
_TIMES = 0
_BLOCK = 1024
#: Nomad's least for a group.
_DISK_MIN = 10


def salt(seed: int, name: str) -> int:
    """Seed of everything of one name."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return splitmix64(splitmix64(seed) ^ int.from_bytes(digest, "little"))


def coming(
    some: tuple[Arrivals, ...],
    *,
    seed: int,
    folder: Path,
    data: Path,
    duration_ns: int,
    ns: Callable[[str], int],
    opens: Open,
) -> Iterator[Coming]:
    """Yield all submissions in order of time; at one moment in the order of the file. Raises TraceInvalid."""
    streams: list[Iterator[tuple[int, int, int, Submission]]] = []
    for order, one in enumerate(some):
        begin = ns(one.at)
        end = min(ns(one.until), duration_ns) if one.until else duration_ns
        made = _Source(one, salt(seed, one.name), folder=folder, data=data, opens=opens)
        streams.append(_numbered(order, made.all(begin, end)))
    for at_ns, _, _, what in heapq.merge(*streams, key=_place):
        yield at_ns, what


def _numbered(order: int, found: Iterator[Coming]) -> Iterator[tuple[int, int, int, Submission]]:
    for nth, (at_ns, what) in enumerate(found):
        yield at_ns, order, nth, what


def _place(one: tuple[int, int, int, Submission]) -> tuple[int, int, int]:
    return one[:3]


class _Source:
    """One entry of `arrivals`."""

    def __init__(self, one: Arrivals, seed: int, *, folder: Path, data: Path, opens: Open) -> None:
        self._one = one
        self._seed = seed
        self._folder = folder
        self._data = data
        self._opens = opens

    def all(self, begin: int, end: int) -> Iterator[Coming]:
        """Yield everything from `begin` to before `end`."""
        one = self._one
        found = self._traced(begin) if one.trace is not None else self._templated(begin, end)
        for nth, (at_ns, what) in enumerate(found):
            if at_ns >= end or (one.most and nth >= one.most):
                return
            yield at_ns, what

    # ---- traces ----

    def _traced(self, begin: int) -> Iterator[Coming]:
        trace = self._one.trace
        assert trace is not None
        if trace.log:
            yield from self._recorded(begin)
            return
        for one in jobs_of(trace, self._data):
            job = {"ID": f"{self._one.name}-{one.name}", **one.job}
            yield begin + one.at_ns, Submission(body=orjson.dumps({"Job": job}))

    def _recorded(self, begin: int) -> Iterator[Coming]:
        """Submissions of a log of ours, at their distances."""
        trace = self._one.trace
        assert trace is not None
        first: int | None = None
        count = 0
        for record in self._opens(self._data / trace.log):
            if not is_framed(record.data):
                continue
            decoded = RECORD_DECODER.decode(record.data)
            for event in decoded.events:
                if not isinstance(event, JobRegistered | JobStopped):
                    continue
                if trace.first and count == trace.skip + trace.first:
                    return
                count += 1
                if count <= trace.skip:
                    continue
                first = decoded.t_ns if first is None else first
                at_ns = begin + int((decoded.t_ns - first) / trace.speed)
                job_id = f"{self._one.name}-{event.job_id}"
                if isinstance(event, JobStopped):
                    body = orjson.dumps({"JobID": job_id, "Purge": event.purge})
                    yield at_ns, Submission(verb="stop", body=body)
                else:
                    job = {**orjson.loads(bytes(event.spec)), "ID": job_id, "Name": job_id}
                    yield at_ns, Submission(body=orjson.dumps({"Job": job}))

    # ---- templates ----

    def _templated(self, begin: int, end: int) -> Iterator[Coming]:
        template = self._one.job
        assert template is not None
        make = self._maker(template)
        number = 0
        for at_ns in self._times(begin, end):
            for _ in range(self._one.burst):
                yield at_ns, Submission(body=orjson.dumps({"Job": make(number)}))
                number += 1

    def _times(self, begin: int, end: int) -> Iterator[int]:
        one = self._one
        if one.every:
            yield from range(begin, end, nanoseconds(one.every))
        elif one.uniform:
            keys = np.arange(one.uniform, dtype=np.int64)
            drawn = hashes(self._seed, _TIMES, keys) % np.uint64(max(end - begin, 1))
            yield from (begin + at for at in np.sort(drawn).tolist())
        elif one.per_hour:
            law = exponential(int(HOUR_NS / one.per_hour))
            at_ns, first = begin, 0
            while at_ns < end:
                keys = np.arange(first, first + _BLOCK, dtype=np.int64)
                for gap in law.draw(hashes(self._seed, _TIMES, keys)).tolist():
                    at_ns += gap
                    yield at_ns
                first += _BLOCK
        else:
            yield begin

    def _maker(self, template: Template) -> Callable[[int], dict[str, Any]]:
        """Return what makes the job of a number."""
        name, seed = self._one.name, self._seed
        base = _read(self._folder / template.file) if template.file else None
        meta = {"sim.exit_code": str(template.exit_code)} if template.exit_code else {}

        def make(number: int) -> dict[str, Any]:
            job_id = f"{name}-{number}"
            if base is not None:
                own = {**(base.get("Meta") or {}), **meta}
                return {**base, "ID": job_id, "Name": job_id, "Meta": own}
            return _job(template, job_id, splitmix64(seed ^ (number << 8)), meta)

        return make


def _read(path: Path) -> dict[str, Any]:
    """Read a job file. Raises ConfigInvalid."""
    loaded = load_file(path.read_bytes(), path.name)
    if loaded.errors:
        first = loaded.errors[0]
        raise ConfigInvalid(f"{path.name}:{first.line}: {first.path}: {first.message}")
    found: dict[str, Any] = orjson.loads(loaded.body)["Job"]
    return found


def _job(template: Template, job_id: str, seed: int, meta: dict[str, str]) -> dict[str, Any]:
    def drawn(size: Size, purpose: int) -> int:
        return size if isinstance(size, int) else _drawn(size, splitmix64(seed ^ (purpose + 1)))

    resources: dict[str, Any] = {
        "CPU": drawn(template.cpu_mhz, 0),
        "MemoryMB": drawn(template.memory_mib, 1),
    }
    if template.devices:
        resources["Devices"] = [
            _device(name, ask) for name, ask in sorted(template.devices.items())
        ]
    task: dict[str, Any] = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": resources,
    }
    if meta:
        task["Meta"] = meta
    group: dict[str, Any] = {"Name": "main", "Count": drawn(template.count, 2), "Tasks": [task]}
    group["EphemeralDisk"] = {"SizeMB": max(drawn(template.disk_mib, 3), _DISK_MIN)}
    job: dict[str, Any] = {
        "ID": job_id,
        "Type": template.type,
        "Priority": drawn(template.priority, 4),
        "TaskGroups": [group],
    }
    # A hundred thousand jobs need not say what goes without saying.
    if template.pool != "default":
        job["NodePool"] = template.pool
    if template.datacenters != ("*",):
        job["Datacenters"] = list(template.datacenters)
    if template.all_at_once:
        job["AllAtOnce"] = True
    if template.constraints:
        job["Constraints"] = [
            {"LTarget": one.attribute, "Operand": one.operator, "RTarget": one.value}
            for one in template.constraints
        ]
    return job


def _device(name: str, ask: Ask) -> dict[str, Any]:
    whole = int(ask.count) if ask.count == int(ask.count) else ask.count
    parts = [part for part in (ask.vendor, name.removeprefix("device."), ask.model) if part]
    return {"Name": "/".join(parts), "Count": whole}


def _drawn(draw: Draw, seed: int) -> int:
    if draw.between is not None:
        first, last = draw.between
        return first + seed % (last - first + 1)
    at = seed % sum(draw.choice.values())
    for key, weight in draw.choice.items():
        at -= weight
        if at < 0:
            return int(key)
    raise AssertionError(draw)
