"""P28, inputs: what an artifact, two templates and a variable add to a start, a change for 1,000 templates, and checks.

One agent with real processes, through the whole product. Tasks start one after the other, by turns bare and with an
artifact of 1 MiB from a server of this machine and two templates, one of a service and one of a variable of the job,
which was stored just before and which no task has read: `start_p50_ms` and `start_p99_ms` are of the difference, from
the plan in the log until the process runs. Then 1,000 services are checked, each every 10 s, 900 by TCP and 100 by
HTTP: `checks_cpu_pct` is what the agent takes of a core. At last 1,000 tasks follow two services: each gets an
instance more, and the time runs from the record of the log that has it until the last file has the new text. The
template of the first is the same text for every task (`change_s`), that of the second has the task's own id in it
(`change_own_s`). Every file is compared with what the log says. The figures to reach: 40 ms at the median, 2 s, 5 %
of a core.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from bench.harness.cluster import BenchCluster, cpu_between, process_usage, wait_until
from bench.harness.host_info import HostRequirements
from bench.harness.load_generator import quantile
from bench.harness.log_observer import LogObserver
from bench.harness.measured_run import (
    Measurement,
    run_once,
    verify_run,
    wait_until_idle,
)
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.harness.sample_jobs import sample_job
from bench.harness.submit import submit_accepted
from schemas.allocations import AllocationsReported
from schemas.base import JobId
from schemas.envelope import RECORD_DECODER
from schemas.jobs import Verdict
from schemas.nodes import TaskState
from schemas.plans import PlanCommitted
from schemas.projections import ServiceInstance
from services.agent.tasks.task_resources import IP_ATTRIBUTE
from shared.bus.connection.nats_client import BusClient
from shared.core.runtime.chain import is_framed
from shared.core.state.ids import alloc_id
from shared.core.state.tables.allocations import RUNNING
from shared.protocol import subjects
from shared.protocol.task_variables import JOBS
from shared.query.service_catalog import ServiceCatalog
from shared.variable_client import VariableClient

STARTS, TASKS, CHECKS, HTTP_SHARE = 30, 1_000, 1_000, 10
#: Of each followed service, before the change.
INSTANCES = 10
ARTIFACT = bytes(at * at % 251 for at in range(1 << 20))
INTERVAL_S, WINDOW_S = 10, 30.0
#: A shorter window has checks of a shorter interval.
_SHORT_WINDOW_S = 2.0
#: Services of one job.
_A_JOB = 100
RUNS = 3
LIMIT_S = 300.0
NEEDS = HostRequirements(memory_mib=4_096)
_NODE = "node-1"
_EQUAL, _OWN = "web-equal", "web-own"
_SECOND_NS = 1_000_000_000
_TASKS = msgspec.json.Decoder(dict[str, TaskState])
#: The first pair loads programs, and has the service read.
_WARM = 1
_LOOK_S = 0.1
#: Between two starts: the view publishes the first change after a pause at once.
_PAUSE_S = 0.25
_FOLLOWERS = "followers"
_ARTIFACT_PATH = "/artifact"


def run(size: float, runs: int) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales starts, tasks, checks and their window."""
    wanted = {
        "starts": max(int(STARTS * size), 3),
        "tasks": max(int(TASKS * size), 10),
        "checks": max(int(CHECKS * size), 10),
        "window_ms": round(max(WINDOW_S * size, _SHORT_WINDOW_S) * 1000),
    }

    async def once(cluster: BenchCluster) -> BenchRun:
        async with cluster.observer() as observer, cluster.client() as public:
            return await _Inputs(cluster, observer, public.bus, wanted).play()

    settings = {"agents": 1, "raw_exec": True}
    return repeat_runs(lambda: run_once(once, settings, _RoomyCluster), runs, wanted)


class _RoomyCluster(BenchCluster):
    """Its agent has room for all tasks on any machine, and may fetch from this one."""

    def _child(self, role: str, name: str, **more: str) -> Any:
        own = {
            "CARAVAN_AGENT_CPU_MHZ": "1000000",
            "CARAVAN_AGENT_MEMORY_MIB": "1000000",
            "CARAVAN_AGENT_ARTIFACT_ALLOW": "127.0.0.0/8",
        }
        return super()._child(role, name, **more, **(own if role == "agent" else {}))


class _LogTimes(NamedTuple):
    """Times of the log, since 1970."""

    #: job -> its first plan.
    planned_ns: dict[str, int]
    #: row -> the first report that it runs.
    running_ns: dict[int, int]


class _Inputs:
    """One cluster: starts, checks, changes."""

    def __init__(
        self, cluster: BenchCluster, observer: LogObserver, bus: BusClient, wanted: dict[str, int]
    ) -> None:
        self._cluster = cluster
        self._observer = observer
        self._bus = bus
        self._wanted = wanted
        self._verdicts: dict[str, Verdict] = {}
        self._counts: dict[str, int] = {}
        self._catalog = ServiceCatalog()
        self._checks: dict[str, bool] = {}
        self._variables = VariableClient(self._ask)

    async def _ask(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        return (await self._bus.request_raw(subject, body, timeout_s=timeout_s))[1]

    async def play(self) -> BenchRun:
        """Measure all parts, and check them."""
        observer, cluster = self._observer, self._cluster
        await wait_until(lambda: observer.state.fleet.ready().sum() == 1, "the agent's node", 60)
        await wait_until_idle(cluster.pids())
        measured = Measurement(cluster)
        await measured.start()
        for service in (_EQUAL, _OWN):
            await self._run(_web(service, INSTANCES), INSTANCES)
        pairs = await self._start_pairs()
        checked = await self._checked()
        await self._run(_followers(self._wanted["tasks"]), self._wanted["tasks"])
        changes = [await self._changed(name) for name in (_EQUAL, _OWN)]
        await measured.stop()
        verdicts = list(self._verdicts.values())
        checks = await verify_run(cluster, observer, verdicts, self._counts)
        log = await _read_log(cluster)
        result = _start_figures(pairs, log)
        for key, (row, last_ns) in zip(("change_s", "change_own_s"), changes, strict=True):
            result[key] = (last_ns - log.running_ns[row]) / _SECOND_NS
        result |= checked
        checks |= self._checks | {"no_process_restarted": measured.same_processes}
        return await measured.make_run(observer, result, checks)

    async def _submit(self, job: dict[str, Any], count: int) -> None:
        """Submit a job, or another count of it."""
        name = job["ID"]
        body = msgspec.json.encode({"Job": job, "SubmissionID": f"s-{name}-{count}"})
        self._verdicts[name] = await submit_accepted(self._bus, body)
        self._counts[name] = count

    async def _run(self, job: dict[str, Any], count: int) -> None:
        """Submit a job, and wait until all of it runs."""
        await self._submit(job, count)
        name = job["ID"]
        await wait_until(lambda: self._in_status(name, RUNNING) == count, f"{name} runs", LIMIT_S)

    def _rows(self, name: str) -> list[int]:
        rows: list[int] = self._observer.state.allocations.rows_of(JobId(name)).tolist()
        return rows

    def _in_status(self, name: str, status: int) -> int:
        table = self._observer.state.allocations
        return sum(int(table.client[row]) == status for row in self._rows(name))

    def _local(self, row: int) -> Path:
        """The directory `local/` of an allocation's task."""
        return self._cluster.agent_dir(_NODE) / "alloc" / self._id(row) / "task" / "local"

    def _id(self, row: int) -> str:
        return alloc_id(int(self._observer.state.allocations.key[row]))

    def _instances(self, service: str) -> list[ServiceInstance]:
        """The instances of a service as the log has them."""
        found = self._catalog.instances_of(self._observer.state, JobId(service))
        return found.get(service, [])

    def _is_whole(self, path: Path, service: str, last: str = "") -> bool:
        """Whether a file has each instance of a service once, and then this line."""
        lines = path.read_text(encoding="utf-8").splitlines()
        wanted = [
            f"server {one.address}:{one.port} {one.alloc}" for one in self._instances(service)
        ]
        found = sorted(lines[: len(wanted)])
        return found == sorted(wanted) and lines[len(wanted) :] == ([last] if last else [])

    # ---- starts ----

    async def _start_pairs(self) -> list[dict[str, int]]:
        """Start tasks one after the other; returns of each pair of jobs, bare and with inputs, when it ran."""
        found: list[dict[str, int]] = []
        whole = True
        async with await _listen("127.0.0.1", _Answer) as server:
            url = f"http://127.0.0.1:{_port(server)}{_ARTIFACT_PATH}"
            for number in range(_WARM + self._wanted["starts"]):
                began_ns: dict[str, int] = {}
                for name, source in ((f"bare-{number}", ""), (f"inputs-{number}", url)):
                    # What the task before has changed is published meanwhile.
                    if source:
                        await self._variables.put(f"{JOBS}/{name}", {"secret": _secret(name)})
                    await asyncio.sleep(_PAUSE_S)
                    await self._run(_started(name, source), 1)
                    (row,) = self._rows(name)
                    began_ns[name] = self._began_ns(row)
                    whole = whole and (not source or self._has_inputs(name, row))
                    await self._stop(name)
                found.append(began_ns)
        self._checks["inputs_as_ordered"] = whole
        return found

    def _has_inputs(self, name: str, row: int) -> bool:
        local = self._local(row)
        return (
            (local / "artifact").read_bytes() == ARTIFACT
            and (local / "own").read_text(encoding="utf-8") == f"{self._id(row)} {_secret(name)}"
            and self._is_whole(local / "services", _EQUAL)
        )

    def _began_ns(self, row: int) -> int:
        """When the agent had the process running, by its clock, which is ours."""
        events = _TASKS.decode(self._observer.state.allocations.details[row])["task"].events
        return next(one.t_ns for one in events if one.kind == "Started")

    # ---- checks ----

    async def _checked(self) -> dict[str, float]:
        """Have services checked; returns what the agent took of a core meanwhile, and how many attempts it made."""
        count, window_s = self._wanted["checks"], self._wanted["window_ms"] / 1000
        interval_s = INTERVAL_S if window_s > 2 * INTERVAL_S else 1
        address = self._observer.state.fleet.specs[0].attributes.get(IP_ATTRIBUTE) or "127.0.0.1"
        async with await _listen(address, _Answer) as server:
            jobs = list(_checked_jobs(count, _port(server), interval_s))
            for job in jobs:
                await self._run(job, 1)
            names = [str(job["ID"]) for job in jobs]
            await wait_until(lambda: self._said_passing(names) == count, "checks pass", LIMIT_S)
            await wait_until_idle(self._cluster.pids())
            pid = {"agent": self._cluster.pids()[f"agent-{_NODE}"]}
            made, before, begin_s = _Answer.count, process_usage(pid), time.perf_counter()
            await asyncio.sleep(window_s)
            attempts, used = _Answer.count - made, cpu_between(before, process_usage(pid))["agent"]
            took_s = time.perf_counter() - begin_s
            # On a busy machine the window may have been too short for that.
            await wait_until(lambda: _Answer.count - made >= count, "attempts", LIMIT_S)
            self._checks["all_checks_pass"] = self._passing(names) == count
            for name in names:
                await self._stop(name)
        return {"checks_cpu_pct": used / took_s * 100, "checks_per_s": attempts / took_s}

    def _said_passing(self, names: Iterable[str]) -> int:
        """How many checks pass by what the agent reported last."""
        details = self._observer.state.allocations.details
        rows = [row for name in names for row in self._rows(name)]
        return sum(details.get(row, b"").count(b'"passing"') for row in rows)

    def _passing(self, names: Iterable[str]) -> int:
        """How many services pass."""
        found = [self._catalog.instances_of(self._observer.state, JobId(name)) for name in names]
        return sum(
            i.status == "passing" for by_name in found for ones in by_name.values() for i in ones
        )

    async def _stop(self, name: str) -> None:
        body = msgspec.json.encode({"JobID": name, "SubmissionID": f"stop-{name}"})
        await self._bus.request_raw(subjects.api_jobs("stop"), body, timeout_s=LIMIT_S)
        await wait_until(lambda: not self._in_status(name, RUNNING), f"{name} ends", LIMIT_S)

    # ---- a change ----

    async def _changed(self, service: str) -> tuple[int, int]:
        """Run an instance more; returns its row, and when the last file was written, ns since 1970."""
        paths = {self._local(row) / service: self._id(row) for row in self._rows(_FOLLOWERS)}
        before_ns = {path: path.stat().st_mtime_ns for path in paths}
        await wait_until_idle(self._cluster.pids())
        known = set(self._rows(service))
        await self._run(_web(service, INSTANCES + 1), INSTANCES + 1)
        (row,) = set(self._rows(service)) - known
        waiting = list(paths)
        deadline_s = time.monotonic() + LIMIT_S
        while waiting and time.monotonic() < deadline_s:
            # Rarely, since it takes time of the cores that render.
            await asyncio.sleep(_LOOK_S)
            waiting = [path for path in waiting if path.stat().st_mtime_ns == before_ns[path]]
        is_own = service == _OWN
        self._checks[f"no_file_of_{service}_missing".replace("-", "_")] = not waiting and all(
            self._is_whole(path, service, f"# {own}" if is_own else "")
            for path, own in paths.items()
        )
        return row, max(path.stat().st_mtime_ns for path in paths)


def _start_figures(pairs: Sequence[Mapping[str, int]], log: _LogTimes) -> dict[str, float]:
    """From the plan in the log until the process runs, ms."""
    took = [
        [(began_ns - log.planned_ns[name]) / 1e6 for name, began_ns in pair.items()]
        for pair in pairs[_WARM:]
    ]
    bare, full = (sorted(column) for column in zip(*took, strict=True))
    more = sorted(with_inputs - without for without, with_inputs in took)
    return {
        "bare_p50_ms": quantile(bare, 0.5),
        "with_inputs_p50_ms": quantile(full, 0.5),
        "start_p50_ms": quantile(more, 0.5),
        "start_p99_ms": quantile(more, 0.99),
    }


# ---- jobs ----


def _list_of(service: str) -> str:
    """A template: a line for each instance."""
    line = "server {{ .Address }}:{{ .Port }} {{ .AllocID }}"
    return '{{ range nomadService "%s" }}%s\n{{ end }}' % (service, line)  # noqa: UP031 - braces.


def _secret(name: str) -> str:
    """The text of the item that a job reads."""
    return f"secret of {name}"


def _template(text: str, name: str) -> dict[str, Any]:
    return {
        "EmbeddedTmpl": text,
        "DestPath": f"local/{name}",
        "ChangeMode": "noop",
        "Splay": 0,
    }


def _job(name: str, *, count: int, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a job that fits often, and its group."""
    job = sample_job(name, count=count, cpu_mhz=1, memory_mib=10, **fields)
    return job, job["TaskGroups"][0]


def _web(service: str, count: int) -> dict[str, Any]:
    job, group = _job(service, count=count)
    group["Networks"] = [{"DynamicPorts": [{"Label": "http"}]}]
    group["Services"] = [{"Name": service, "PortLabel": "http", "Provider": "nomad"}]
    return job


def _started(name: str, url: str) -> dict[str, Any]:
    """A job of one task; with a URL it has inputs."""
    job, group = _job(name, count=1)
    if url:
        own = f'{{{{ env "NOMAD_ALLOC_ID" }}}} {{{{ with nomadVar "{JOBS}/{name}" }}}}{{{{ .secret }}}}{{{{ end }}}}'
        group["Tasks"][0]["Artifacts"] = [{"GetterSource": url}]
        group["Tasks"][0]["Templates"] = [
            _template(own, "own"),
            _template(_list_of(_EQUAL), "services"),
        ]
    return job


def _followers(count: int) -> dict[str, Any]:
    job, group = _job(_FOLLOWERS, count=count)
    own = '# {{ env "NOMAD_ALLOC_ID" }}\n'
    group["Tasks"][0]["Templates"] = [
        _template(_list_of(_EQUAL), _EQUAL),
        _template(_list_of(_OWN) + own, _OWN),
    ]
    return job


def _checked_jobs(count: int, port: int, interval_s: int) -> Iterator[dict[str, Any]]:
    """Jobs of one task, each with services that are checked at this port."""
    for first in range(0, count, _A_JOB):
        job, group = _job(f"checked-{first}", count=1)
        group["Services"] = [
            {
                "Name": f"checked-{at}",
                "PortLabel": str(port),
                "Provider": "nomad",
                "Checks": [
                    {
                        "Type": "tcp" if at % HTTP_SHARE else "http",
                        "Path": "" if at % HTTP_SHARE else "/health",
                        "Interval": interval_s * _SECOND_NS,
                        "Timeout": 2 * _SECOND_NS,
                    }
                ],
            }
            for at in range(first, min(first + _A_JOB, count))
        ]
        yield job


# ---- what is asked ----


class _Answer(asyncio.Protocol):
    """One connection: an artifact, or an empty answer."""

    #: connections so far.
    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it."""
        _Answer.count += 1
        self._transport = cast("asyncio.Transport", transport)
        self._head = b""

    def data_received(self, data: bytes) -> None:
        """Answer a request when it is whole."""
        self._head += data
        if b"\r\n\r\n" in self._head:
            body = ARTIFACT if self._head.startswith(b"GET %b " % _ARTIFACT_PATH.encode()) else b""
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body))
            self._transport.write(b"Connection: close\r\n\r\n" + body)
            self._transport.close()


async def _listen(address: str, answer: type[_Answer]) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(answer, address, 0, backlog=1_024)


def _port(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


async def _read_log(cluster: BenchCluster) -> _LogTimes:
    """Read from the whole log when plans and starts of allocations were in it."""
    found = _LogTimes({}, {})
    async with cluster.client() as client:
        async for record in client.read_log():
            if not is_framed(record.data):
                continue
            decoded = RECORD_DECODER.decode(record.data)
            for event in decoded.events:
                if isinstance(event, PlanCommitted):
                    found.planned_ns.setdefault(event.job_id, decoded.t_ns)
                elif isinstance(event, AllocationsReported):
                    for row, status in zip(event.rows, event.statuses, strict=True):
                        if status == RUNNING:
                            found.running_ns.setdefault(row, decoded.t_ns)
    return found
