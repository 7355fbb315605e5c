"""`caravan demo`: everything once, for real, and nothing left behind.

Decides the story: start a cluster in a temporary directory, run a service of three from its job file, kill one of its
processes and see it come back, run a batch job to its end, stop the service, take all down, look for leftovers. Every
step waits for a level, bounded in time.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from schemas.answers import AllocAnswer, JobAnswer
from schemas.projections import AllocSummary, Query
from services.cli import job_files, lines
from services.cli.asking import ask
from services.cli.children import end_in_order, processes_of
from services.cli.cluster import Cluster, ClusterSettings
from services.cli.job_run import Seen, follow
from services.cli.output import CliError, Output, short
from services.cli.submitting import submit, wait_ended
from services.cli.up import wait_ready
from shared.bus.client import Client
from shared.bus.names import id_token
from shared.errors import BusUnavailable

_READY_S = 20.0
_STEP_S = 15.0
_POLL_S = 0.03
_TAIL_LINES = 2
SERVICE, BATCH = "hello.nomad.hcl", "batch.nomad.hcl"


class AllocShown(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation at the end of the story."""

    id: str
    group: str
    status: str
    exit_code: int | None


class Story(msgspec.Struct, kw_only=True):
    """What `--json` prints; filled as it happens."""

    job: str = ""
    allocations: tuple[AllocShown, ...] = ()
    ran: bool = False
    restarted: bool = False
    stopped: bool = False
    left_running: int = 0
    t_first_running_s: float = 0.0
    t_total_s: float = 0.0
    ok: bool = False


def demo(out: Output, *, keep: bool) -> int:
    """Tell the story; exit 1 unless every part of it came true."""
    end_in_order()
    began_s = time.monotonic()
    story = Story()
    folder = Path(tempfile.mkdtemp(prefix="caravan-demo-"))
    cluster = Cluster(ClusterSettings(data_dir=folder / "data", schedulers=2), out.progress)
    problem: Exception | None = None
    try:
        problem = _play(out, cluster, story, began_s)
    finally:
        _take_down(out, cluster, story, folder, keep=keep)
    story.t_total_s = round(time.monotonic() - began_s, 2)
    is_clean = not story.left_running and (keep or not folder.exists())
    story.ok = problem is None and story.ran and story.restarted and story.stopped and is_clean
    if problem is not None:
        out.progress(f"failed: {problem}")
    out.result(story)
    if story.ok:
        text = f"\nok: ran, restarted, stopped, nothing left, in {story.t_total_s:.1f} s"
        out.line(text, "green")
        out.line("next: caravan up, and in another terminal caravan job init")
    else:
        out.line("\nthe demo did not come to its end", "red")
    if keep:
        out.progress(f"kept: {folder}")
    return 0 if story.ok else 1


def _play(out: Output, cluster: Cluster, story: Story, began_s: float) -> Exception | None:
    """Run the story; what went wrong is returned, so that everything is taken down and told in order."""
    try:
        out.progress("a bus, all services and one node, on this machine", "bold")
        cluster.start()
        out.progress(f"  {len(cluster.pids())} processes, bus at {cluster.url}")
        asyncio.run(
            _with_client(
                cluster, lambda client: _tell(out, client, cluster, story, began_s=began_s)
            )
        )
    except (CliError, BusUnavailable, OSError) as err:
        return err
    return None


async def _with_client(cluster: Cluster, work: Callable[[Client], Awaitable[None]]) -> None:
    if not await wait_ready(cluster.url, cluster.settings.agents, _READY_S, threading.Event()):
        raise CliError("unavailable", f"the cluster was not ready after {_READY_S:.0f} s")
    async with Client(cluster.url) as client:
        await work(client)


async def _tell(
    out: Output, client: Client, cluster: Cluster, story: Story, *, began_s: float
) -> None:
    _step(out, 1, f"submitting {SERVICE}: three processes that say hello")
    story.job = await _submit(out, client, SERVICE, "demo-run")
    await _wait_running(client, story, began_s)
    _step(out, 2, "what they write")
    await _show(out, client, cluster, story.job)
    _step(out, 3, "killing one of them")
    await _kill_one(out, client, story)
    _step(out, 4, f"submitting {BATCH}: five that count to ten, and end")
    batch = await _submit(out, client, BATCH, "demo-batch")
    done, _ = await wait_ended(client, batch, 0, _STEP_S)
    story.ran = story.ran and done and await _is_complete(out, client, batch)
    _step(out, 5, f"stopping {story.job}")
    stopping = msgspec.json.encode({"JobID": story.job, "SubmissionID": "demo-stop"})
    verdict = await submit(client, "stop", stopping)
    story.stopped, _ = await wait_ended(client, story.job, verdict.seq, _STEP_S)
    story.allocations = (*await _endings(client, story.job), *await _endings(client, batch))
    for one in story.allocations:
        code = "no exit code" if one.exit_code is None else f"exit code {one.exit_code}"
        out.progress(f"  {short(one.id)} {one.group}: {one.status}, {code}")


def _step(out: Output, number: int, text: str) -> None:
    out.progress(f"{number}. {text}", "bold")


async def _submit(out: Output, client: Client, name: str, submission_id: str) -> str:
    """Submit an example as `caravan job run` does, and follow it. Returns the job's id."""
    loaded = job_files.read_valid(out, str(job_files.example(name)), var=(), var_file=())
    body = msgspec.json.decode(loaded.body)
    body["SubmissionID"] = submission_id
    verdict = await submit(client, "submit", msgspec.json.encode(body))
    await follow(client, out, Seen(verdict=verdict, seq=verdict.seq))
    return verdict.job_id


async def _is_complete(out: Output, client: Client, job_id: str) -> bool:
    """Say how a batch job ended; tell whether all of it is complete."""
    answer = await ask(client, "job", JobAnswer, Query(id=job_id))
    complete = sum(one.complete for one in answer.groups.values())
    wanted = sum(one.desired for one in answer.groups.values())
    out.progress(f"  {complete} of {wanted} complete: the job is done")
    return complete == wanted


async def _wait_running(client: Client, story: Story, began_s: float) -> None:
    """Wait until all allocations run; note when the first one did."""
    deadline = time.monotonic() + _STEP_S
    while True:
        answer = await ask(client, "job", JobAnswer, Query(id=story.job))
        running = sum(one.running for one in answer.groups.values())
        if running and not story.t_first_running_s:
            story.t_first_running_s = round(time.monotonic() - began_s, 2)
        if running == sum(one.desired for one in answer.groups.values()):
            story.ran = True
            return
        if time.monotonic() > deadline:
            text = f"{lines.alive(answer.groups)} allocations run after {_STEP_S:.0f} s"
            raise CliError("timeout", text)
        await asyncio.sleep(_POLL_S)


async def _running(client: Client, job_id: str) -> list[AllocAnswer]:
    answer = await ask(client, "job", JobAnswer, Query(id=job_id))
    found = [one for one in answer.allocations if one.client_status == "running"]
    return [await ask(client, "alloc", AllocAnswer, Query(id=one.id)) for one in found]


async def _show(out: Output, client: Client, cluster: Cluster, job_id: str) -> None:
    """Show processes and what they wrote last."""
    for answer in await _running(client, job_id):
        one = answer.allocation
        for name, task in sorted(answer.tasks.items()):
            out.progress(f"  {short(one.id)} {one.name}: task {name}, pid {task.pid}")
            path = _log_path(cluster.agent_dir(one.node), one.id, name)
            for line in await _wait_lines(path):
                out.progress(f"      | {line}", "cyan")


def _log_path(agent_dir: Path, alloc_id: str, task: str) -> Path:
    """Where the agent of this process's own cluster keeps what a task writes."""
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


async def _kill_one(out: Output, client: Client, story: Story) -> None:
    """Kill the process of one task, wait until its task runs again as another process."""
    victim = (await _running(client, story.job))[0]
    name = min(victim.tasks)
    task = victim.tasks[name]
    if task.pid <= 1:
        raise CliError("failed", f"task {name} runs without a known pid")
    os.kill(task.pid, signal.SIGKILL)
    deadline = time.monotonic() + _STEP_S
    while time.monotonic() < deadline:
        now = (await ask(client, "alloc", AllocAnswer, Query(id=victim.allocation.id))).tasks[name]
        if now.restarts > task.restarts and now.state == "running" and now.pid != task.pid:
            story.restarted = True
            text = f"task {name}: pid {task.pid} killed, runs again as pid {now.pid}"
            out.progress(f"  {short(victim.allocation.id)} {text}")
            return
        await asyncio.sleep(_POLL_S)
    raise CliError("timeout", f"task {name} did not run again within {_STEP_S:.0f} s")


async def _endings(client: Client, job_id: str) -> tuple[AllocShown, ...]:
    answer = await ask(client, "job", JobAnswer, Query(id=job_id))
    return tuple([await _ending(client, one) for one in answer.allocations])


async def _ending(client: Client, one: AllocSummary) -> AllocShown:
    tasks = (await ask(client, "alloc", AllocAnswer, Query(id=one.id))).tasks
    code = next((task.exit_code for _, task in sorted(tasks.items())), None)
    return AllocShown(id=one.id, group=one.group, status=one.client_status, exit_code=code)


def _take_down(out: Output, cluster: Cluster, story: Story, folder: Path, *, keep: bool) -> None:
    """Stop everything, and look for what was left; a second Ctrl-C must not cut this short."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        out.progress("taking everything down")
        cluster.stop()
        deadline = time.monotonic() + 2.0
        while (left := processes_of(folder)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        story.left_running = len(left)
        for pid in left:
            out.progress(f"  left running: pid {pid}")
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        signal.signal(signal.SIGINT, before)
