"""Jobs of a scenario: templates, times and traces become submissions, in order of time.

Every draw is a hash of (seed, name, number, purpose), so that another policy or another cluster meets the same jobs.
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
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.splitmix import splitmix64
from shared.durations import parse_duration
from shared.errors import ConfigInvalid
from shared.fleet.distributions import exponential, purpose_hashes
from shared.jobspec.files.load import load_file
from shared.sim.engine.run_setup import ScriptedSubmission
from shared.sim.scenario.parser import ScenarioPlan
from shared.sim.scenario.schema import (
    DeviceAsk,
    DrawnNumber,
    JobTemplate,
    NumberOrDraw,
    ScenarioArrivals,
)
from shared.sim.scenario.traces import one_task_group, trace_jobs

HOUR_NS = 3_600_000_000_000
#: Reads the records of an export; given by the caller.
OpenExport = Callable[[Path], Iterator[Record]]
#: (ns from the start of the scenario, submission).
TimedSubmission = tuple[int, ScriptedSubmission]
_TIMES = 0
_BLOCK = 1024
#: Nomad's minimum for a group.
_DISK_MIN = 10


def name_seed(seed: int, name: str) -> int:
    """Seed of all draws of one name."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return splitmix64(splitmix64(seed) ^ int.from_bytes(digest, "little"))


def scripted_submissions(
    some: tuple[ScenarioArrivals, ...], plan: ScenarioPlan, duration_ns: int, opens: OpenExport
) -> Iterator[TimedSubmission]:
    """Yield all submissions in order of time, then of the file. Raises FileInvalid."""
    streams: list[Iterator[tuple[int, int, int, ScriptedSubmission]]] = []
    for order, one in enumerate(some):
        begin = parse_duration(one.at)
        end = min(parse_duration(one.until), duration_ns) if one.until else duration_ns
        made = _Source(one, plan, opens)
        streams.append(_numbered(order, made.all(begin, end)))
    for at_ns, _, _, what in heapq.merge(*streams, key=_place):
        yield at_ns, what


def _numbered(
    order: int, found: Iterator[TimedSubmission]
) -> Iterator[tuple[int, int, int, ScriptedSubmission]]:
    for nth, (at_ns, what) in enumerate(found):
        yield at_ns, order, nth, what


def _place(one: tuple[int, int, int, ScriptedSubmission]) -> tuple[int, int, int]:
    return one[:3]


class _Source:
    """One entry of `arrivals`."""

    def __init__(self, one: ScenarioArrivals, plan: ScenarioPlan, opens: OpenExport) -> None:
        self._one = one
        self._seed = name_seed(plan.scenario.seed, one.name)
        self._folder = plan.folder
        self._data = plan.data
        self._opens = opens

    def all(self, begin: int, end: int) -> Iterator[TimedSubmission]:
        """Yield submissions from `begin` to before `end`."""
        one = self._one
        found = self._traced(begin) if one.trace is not None else self._templated(begin, end)
        for nth, (at_ns, what) in enumerate(found):
            if at_ns >= end or (one.most and nth >= one.most):
                return
            yield at_ns, what

    # ---- traces ----

    def _traced(self, begin: int) -> Iterator[TimedSubmission]:
        trace = self._one.trace
        assert trace is not None
        if trace.log:
            yield from self._recorded(begin)
            return
        for one in trace_jobs(trace, self._data):
            job = {"ID": f"{self._one.name}-{one.name}", **one.job}
            yield begin + one.at_ns, ScriptedSubmission(body=orjson.dumps({"Job": job}))

    def _recorded(self, begin: int) -> Iterator[TimedSubmission]:
        """Yield the submissions of a recorded log, at their intervals."""
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
                    yield at_ns, ScriptedSubmission(verb="stop", body=body)
                else:
                    job = {**orjson.loads(bytes(event.spec)), "ID": job_id, "Name": job_id}
                    yield at_ns, ScriptedSubmission(body=orjson.dumps({"Job": job}))

    # ---- templates ----

    def _templated(self, begin: int, end: int) -> Iterator[TimedSubmission]:
        template = self._one.job
        assert template is not None
        make = self._maker(template)
        number = 0
        for at_ns in self._times(begin, end):
            for _ in range(self._one.burst):
                yield at_ns, ScriptedSubmission(body=orjson.dumps({"Job": make(number)}))
                number += 1

    def _times(self, begin: int, end: int) -> Iterator[int]:
        one = self._one
        if one.every:
            yield from range(begin, end, parse_duration(one.every))
        elif one.uniform:
            keys = np.arange(one.uniform, dtype=np.int64)
            drawn = purpose_hashes(self._seed, _TIMES, keys) % np.uint64(max(end - begin, 1))
            yield from (begin + at for at in np.sort(drawn).tolist())
        elif one.per_hour:
            law = exponential(int(HOUR_NS / one.per_hour))
            at_ns, first = begin, 0
            while at_ns < end:
                keys = np.arange(first, first + _BLOCK, dtype=np.int64)
                for gap in law.draw(purpose_hashes(self._seed, _TIMES, keys)).tolist():
                    at_ns += gap
                    yield at_ns
                first += _BLOCK
        else:
            yield begin

    def _maker(self, template: JobTemplate) -> Callable[[int], dict[str, Any]]:
        """Return a function that makes the job of a number."""
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


def _job(template: JobTemplate, job_id: str, seed: int, meta: dict[str, str]) -> dict[str, Any]:
    def drawn(size: NumberOrDraw, purpose: int) -> int:
        return size if isinstance(size, int) else _drawn(size, splitmix64(seed ^ (purpose + 1)))

    resources: dict[str, Any] = {
        "CPU": drawn(template.cpu_mhz, 0),
        "MemoryMB": drawn(template.memory_mib, 1),
    }
    if template.devices:
        resources["Devices"] = [
            _device(name, ask) for name, ask in sorted(template.devices.items())
        ]
    group = one_task_group(resources, meta or None, drawn(template.count, 2))
    group["EphemeralDisk"] = {"SizeMB": max(drawn(template.disk_mib, 3), _DISK_MIN)}
    job: dict[str, Any] = {
        "ID": job_id,
        "Type": template.type,
        "Priority": drawn(template.priority, 4),
        "TaskGroups": [group],
    }
    # Defaults are left out: there may be a hundred thousand jobs.
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


def _device(name: str, ask: DeviceAsk) -> dict[str, Any]:
    whole = int(ask.count) if ask.count == int(ask.count) else ask.count
    parts = [part for part in (ask.vendor, name.removeprefix("device."), ask.model) if part]
    return {"Name": "/".join(parts), "Count": whole}


def _drawn(draw: DrawnNumber, seed: int) -> int:
    if draw.between is not None:
        first, last = draw.between
        return first + seed % (last - first + 1)
    at = seed % sum(draw.choice.values())
    for key, weight in draw.choice.items():
        at -= weight
        if at < 0:
            return int(key)
    raise AssertionError(draw)
