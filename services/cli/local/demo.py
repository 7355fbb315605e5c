"""`caravan demo`: a complete example that leaves nothing behind.

Starts a cluster in a temporary directory, runs a service of three, kills one of its processes and waits for its
restart, runs a batch job to its end, stops the service, stops the cluster, and checks for leftover processes.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from schemas.job_answers import JobAnswer
from schemas.node_answers import AllocAnswer
from schemas.projections import AllocSummary, Query
from services.cli.job import files
from services.cli.job.run import JobProgress, follow_rollout
from services.cli.job.submission import submit_request, wait_job_ended
from services.cli.local.cluster import LocalCluster, LocalClusterSettings
from services.cli.local.processes import processes_using, unwind_on_signals
from services.cli.local.up import wait_ready
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_view
from services.cli.runtime.output import CliError, CommandOutput, program_name, short_id
from shared.bus.connection.public_client import Client
from shared.errors import BusUnavailable
from shared.protocol.id_tokens import id_token

#: Bounds on what hangs; a loaded machine needs a part of them.
_READY_S = 60.0
_STEP_S = 60.0
_POLL_S = 0.03
_TAIL_LINES = 2
SERVICE, BATCH = "hello.nomad.hcl", "batch.nomad.hcl"


class DemoAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation at the end of the demo."""

    id: str
    group: str
    status: str
    exit_code: int | None


class DemoResult(msgspec.Struct, kw_only=True):
    """`demo --json`; filled step by step."""

    job: str = ""
    allocations: tuple[DemoAllocation, ...] = ()
    ran: bool = False
    restarted: bool = False
    stopped: bool = False
    left_running: int = 0
    t_first_running_s: float = 0.0
    t_total_s: float = 0.0
    ok: bool = False


def demo(out: CommandOutput, *, keep: bool) -> int:
    """Run the demo; exit 1 unless every step succeeded."""
    unwind_on_signals()
    began_s = time.monotonic()
    result = DemoResult()
    folder = Path(tempfile.mkdtemp(prefix="caravan-demo-"))
    cluster = LocalCluster(
        LocalClusterSettings(data_dir=folder / "data", schedulers=2, raw_exec=True), out.progress
    )
    problem: Exception | None = None
    try:
        problem = _run_demo(out, cluster, result, began_s)
    finally:
        _take_down(out, cluster, result, folder, keep=keep)
    result.t_total_s = round(time.monotonic() - began_s, 2)
    is_clean = not result.left_running and (keep or not folder.exists())
    result.ok = problem is None and result.ran and result.restarted and result.stopped and is_clean
    if problem is not None:
        out.progress(f"failed: {problem}")
    out.result(result)
    if result.ok:
        text = f"\nok: ran, restarted, stopped, nothing left, in {result.t_total_s:.1f} s"
        out.line(text, "green")
        program = program_name()
        # As root `up` alone offers no driver for what the demo just ran.
        command = "up --raw-exec" if os.geteuid() == 0 else "up"
        out.line(f"next: {program} {command}, and in another terminal {program} job init")
    else:
        out.line("\nthe demo failed", "red")
    if keep:
        out.progress(f"kept: {folder}")
    return 0 if result.ok else 1


def _run_demo(
    out: CommandOutput, cluster: LocalCluster, result: DemoResult, began_s: float
) -> Exception | None:
    """Run the demo; returns its error, which is printed after the cleanup."""
    try:
        out.progress("a bus, all services and one node on this machine", "bold")
        cluster.start()
        out.progress(f"  {len(cluster.pids())} processes, bus at {cluster.url}")
        asyncio.run(
            _with_client(
                cluster, lambda client: _run_steps(out, client, cluster, result, began_s=began_s)
            )
        )
    except (CliError, BusUnavailable, OSError) as err:
        return err
    return None


async def _with_client(cluster: LocalCluster, work: Callable[[Client], Awaitable[None]]) -> None:
    if not await wait_ready(cluster, _READY_S):
        raise CliError("unavailable", f"the cluster was not ready after {_READY_S:.0f} s")
    async with Client(cluster.client_url) as client:
        await work(client)


async def _run_steps(
    out: CommandOutput, client: Client, cluster: LocalCluster, result: DemoResult, *, began_s: float
) -> None:
    _step(out, 1, f"submitting {SERVICE}: three processes that print hello")
    result.job = await _submit(out, client, SERVICE, "demo-run")
    await _wait_running(client, result, began_s)
    _step(out, 2, "their output")
    await _show(out, client, cluster, result.job)
    _step(out, 3, "killing one of them")
    await _kill_one(out, client, result)
    _step(out, 4, f"submitting {BATCH}: five processes that count to ten")
    batch = await _submit(out, client, BATCH, "demo-batch")
    done, _ = await wait_job_ended(client, batch, 0, _STEP_S)
    result.ran = result.ran and done and await _is_complete(out, client, batch)
    _step(out, 5, f"stopping {result.job}")
    stopping = {"JobID": result.job, "SubmissionID": "demo-stop"}
    verdict = await submit_request(client, "stop", stopping)
    result.stopped, _ = await wait_job_ended(client, result.job, verdict.seq, _STEP_S)
    result.allocations = (*await _endings(client, result.job), *await _endings(client, batch))
    for one in result.allocations:
        code = "no exit code" if one.exit_code is None else f"exit code {one.exit_code}"
        out.progress(f"  {short_id(one.id)} {one.group}: {one.status}, {code}")


def _step(out: CommandOutput, number: int, text: str) -> None:
    out.progress(f"{number}. {text}", "bold")


async def _submit(out: CommandOutput, client: Client, name: str, submission_id: str) -> str:
    """Submit an example as `caravan job run` does, and follow it. Returns the job's id."""
    loaded = files.read_valid_job_file(out, str(files.example_path(name)), var=(), var_file=())
    body = msgspec.json.decode(loaded.body)
    body["SubmissionID"] = submission_id
    verdict = await submit_request(client, "submit", body)
    seen = JobProgress(verdict=verdict, seq=verdict.seq, must_settle=False)
    await follow_rollout(client, out, seen)
    return verdict.job_id


async def _is_complete(out: CommandOutput, client: Client, job_id: str) -> bool:
    """Print how a batch job ended; returns whether all of it is complete."""
    answer = await query_view(client, "job", JobAnswer, Query(id=job_id))
    complete = sum(one.complete for one in answer.groups.values())
    wanted = sum(one.desired for one in answer.groups.values())
    out.progress(f"  {complete} of {wanted} complete")
    return complete == wanted


async def _wait_running(client: Client, result: DemoResult, began_s: float) -> None:
    """Wait until all allocations run; record when the first one did."""
    deadline = time.monotonic() + _STEP_S
    while True:
        answer = await query_view(client, "job", JobAnswer, Query(id=result.job))
        running = sum(one.running for one in answer.groups.values())
        if running and not result.t_first_running_s:
            result.t_first_running_s = round(time.monotonic() - began_s, 2)
        if running == sum(one.desired for one in answer.groups.values()):
            result.ran = True
            return
        if time.monotonic() > deadline:
            text = (
                f"{tables.running_of_desired(answer.groups)} allocations run after {_STEP_S:.0f} s"
            )
            raise CliError("timeout", text)
        await asyncio.sleep(_POLL_S)


async def _running(client: Client, job_id: str) -> list[AllocAnswer]:
    answer = await query_view(client, "job", JobAnswer, Query(id=job_id))
    found = [one for one in answer.allocations if one.client_status == "running"]
    return [await query_view(client, "alloc", AllocAnswer, Query(id=one.id)) for one in found]


async def _show(out: CommandOutput, client: Client, cluster: LocalCluster, job_id: str) -> None:
    """Print processes and the last lines of their output."""
    for answer in await _running(client, job_id):
        one = answer.allocation
        for name, task in sorted(answer.tasks.items()):
            out.progress(f"  {short_id(one.id)} {one.name}: task {name}, pid {task.pid}")
            path = _log_path(cluster.agent_dir(one.node), one.id, name)
            for line in await _wait_lines(path):
                out.progress(f"      | {line}", "cyan")


def _log_path(agent_dir: Path, alloc_id: str, task: str) -> Path:
    """Where an agent of this cluster keeps the output of a task."""
    return (
        agent_dir / "alloc" / id_token(alloc_id) / "alloc" / "logs" / f"{id_token(task)}.stdout.0"
    )


async def _wait_lines(path: Path) -> list[str]:
    """Wait until a file has a line; return its last ones."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        text = await asyncio.to_thread(_read, path)
        if "\n" in text:
            return text.splitlines()[-_TAIL_LINES:]
        await asyncio.sleep(_POLL_S)
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


async def _kill_one(out: CommandOutput, client: Client, result: DemoResult) -> None:
    """Kill the process of one task and wait for its restart."""
    victim = (await _running(client, result.job))[0]
    name = min(victim.tasks)
    task = victim.tasks[name]
    if task.pid <= 1:
        raise CliError("failed", f"task {name} is running, but its pid is unknown")
    os.kill(task.pid, signal.SIGKILL)
    deadline = time.monotonic() + _STEP_S
    while time.monotonic() < deadline:
        now = (
            await query_view(client, "alloc", AllocAnswer, Query(id=victim.allocation.id))
        ).tasks[name]
        if now.restarts > task.restarts and now.state == "running" and now.pid != task.pid:
            result.restarted = True
            text = f"task {name}: pid {task.pid} killed, restarted as pid {now.pid}"
            out.progress(f"  {short_id(victim.allocation.id)} {text}")
            return
        await asyncio.sleep(_POLL_S)
    raise CliError("timeout", f"task {name} was not restarted within {_STEP_S:.0f} s")


async def _endings(client: Client, job_id: str) -> tuple[DemoAllocation, ...]:
    answer = await query_view(client, "job", JobAnswer, Query(id=job_id))
    return tuple([await _ending(client, one) for one in answer.allocations])


async def _ending(client: Client, one: AllocSummary) -> DemoAllocation:
    tasks = (await query_view(client, "alloc", AllocAnswer, Query(id=one.id))).tasks
    code = next((task.exit_code for _, task in sorted(tasks.items())), None)
    return DemoAllocation(id=one.id, group=one.group, status=one.client_status, exit_code=code)


def _take_down(
    out: CommandOutput, cluster: LocalCluster, result: DemoResult, folder: Path, *, keep: bool
) -> None:
    """Stop everything and check for leftover processes; a second Ctrl-C must not interrupt this."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        out.progress("stopping everything")
        cluster.stop()
        deadline = time.monotonic() + 2.0
        while (left := processes_using(folder)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        result.left_running = len(left)
        for pid in left:
            out.progress(f"  left running: pid {pid}")
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        signal.signal(signal.SIGINT, before)
