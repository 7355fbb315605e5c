"""`caravan up`: a cluster on this machine, in the foreground, until Ctrl-C."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from schemas.answers import ClusterAnswer
from schemas.node_answers import NodesAnswer
from schemas.projections import Query
from services.cli.local.cluster import LocalCluster, LocalClusterSettings
from services.cli.runtime.bus_client import query_view
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.public_client import Client
from shared.errors import BusUnavailable
from shared.protocol import subjects

READY_S = 20.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Pause between two looks for a signal.
_SIGNAL_S = 0.1
#: How many of each run unless it is said; the default of the command line stands for it.
_USUAL = {"schedulers": 2, "intakes": 1, "views": 1, "appliers": 2}
_DEFAULT = -1
_POLL_S = 0.05
_INTAKE_S = 2.0


class UpResult(msgspec.Struct, frozen=True):
    """`up --json`, printed once everything is ready."""

    url: str
    data_dir: str
    cluster_id: str
    pid: int
    services: dict[str, int]
    #: False: the services do not answer, or not all nodes are ready; `failures` lists ended processes with reasons.
    ready: bool
    failures: dict[str, str]


def up(
    out: CommandOutput,
    *,
    port: int,
    data_dir: str,
    schedulers: int,
    agents: int,
    intakes: int,
    views: int,
    appliers: int,
    no_gateway: bool,
    one_process: bool,
    keep_tasks: bool,
    raw_exec: bool,
    no_raw_exec: bool,
) -> int:
    """Run until SIGINT or SIGTERM."""
    given = {"schedulers": schedulers, "intakes": intakes, "views": views, "appliers": appliers}
    for name, count in given.items():
        if count != _DEFAULT and count < 1:
            raise CliError("usage", f"--{name} must be at least 1")
        if count > 1 and one_process:
            raise CliError("usage", f"--one-process runs each role once; --{name} is {count}")
    usual = dict.fromkeys(given, 1) if one_process else _USUAL
    counts = {name: usual[name] if one == _DEFAULT else one for name, one in given.items()}
    if raw_exec and no_raw_exec:
        raise CliError("usage", "--raw-exec and --no-raw-exec contradict each other")
    settings = LocalClusterSettings(
        data_dir=Path(data_dir) if data_dir else default_data_dir(),
        port=port,
        agents=agents if agents >= 0 else 1,
        former_agents=agents < 0,
        raw_exec=raw_exec or not (no_raw_exec or os.geteuid() == 0),
        keep_tasks=keep_tasks,
        schedulers=counts["schedulers"],
        intakes=counts["intakes"],
        views=counts["views"],
        appliers=counts["appliers"],
        one_process=one_process,
        gateways=0 if no_gateway else 1,
    )
    _run_until_ended(out, settings)
    return 0


def _run_until_ended(out: CommandOutput, settings: LocalClusterSettings) -> None:
    # No threading.Event: its lock is not reentrant, and the handler may run while this thread holds it.
    signals: list[int] = []
    for number in _ENDING:
        signal.signal(number, lambda number, _: signals.append(number))
    is_first = not (settings.data_dir / "cluster.json").exists()
    cluster = LocalCluster(settings, out.progress)
    cluster.start()
    try:
        is_over = lambda: bool(signals) or cluster.is_refused()  # noqa: E731
        ready = asyncio.run(wait_ready(cluster, READY_S, is_over))
        _welcome(out, cluster, is_ready=ready, is_first=is_first)
        while not signals:
            time.sleep(_SIGNAL_S)
    finally:
        kept = settings.keep_tasks
        tasks = "tasks keep running" if kept else "tasks first; Ctrl-C again kills them"
        out.progress(f"stopping {len(cluster.pids())} processes; {tasks}")
        killed = cluster.stop(lambda: len(signals) > 1)
        out.progress("stopped" + (f"; {killed} services had to be killed" if killed else ""))
        # Python gives signals their defaults when it ends: one more Ctrl-C would make this a process that was killed.
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)


def default_data_dir() -> Path:
    """Default folder of the log, below XDG_DATA_HOME."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "caravan"


async def wait_ready(
    cluster: LocalCluster, within_s: float, is_over: Callable[[], bool] = lambda: False
) -> bool:
    """Wait until a plan applier leads, an intake answers and all nodes are ready.

    False after `within_s`, or when `is_over()`. The log of an earlier run may have ready nodes, too: only its newest
    lease tells that this run has begun.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not is_over():
        try:
            async with Client(cluster.client_url) as client:
                while time.monotonic() < deadline and not is_over():
                    if await _is_ready(client, cluster):
                        return True
                    await asyncio.sleep(_POLL_S)
        except (BusUnavailable, CliError):
            await asyncio.sleep(_POLL_S)
    return False


async def _is_ready(client: Client, cluster: LocalCluster) -> bool:
    leader = await query_view(client, "cluster", ClusterAnswer, Query())
    if not cluster.is_applier(leader.holder):
        return False
    # Any answer will do: an intake has subscribed.
    await client.request_bytes(subjects.api_jobs("parse"), b"{}", timeout_s=_INTAKE_S)
    nodes = await query_view(client, "nodes", NodesAnswer, Query(status="ready", limit=0))
    return nodes.total >= len(cluster.node_ids)


def _welcome(out: CommandOutput, cluster: LocalCluster, *, is_ready: bool, is_first: bool) -> None:
    """Print where the cluster is and what to try next."""
    pids = cluster.pids()
    cluster_id = cluster.identity.cluster_id
    failures = {} if is_ready else cluster.failures()
    data_dir = str(cluster.data_dir)
    out.result(UpResult(cluster.url, data_dir, cluster_id, os.getpid(), pids, is_ready, failures))
    what = "a new cluster" if is_first else "the existing cluster with its jobs"
    if is_ready:
        out.line(f"caravan is up: {what}, {len(pids)} processes", "green")
    else:
        out.line(f"caravan is not ready: {what}, {len(pids)} processes", "red")
        out.fields([*failures.items(), ("logs", str(cluster.data_dir / "logs"))])
    out.fields(
        [
            ("bus", cluster.url),
            ("data", str(cluster.data_dir)),
            ("nodes", ", ".join(cluster.node_ids) or "none"),
        ]
    )
    if not is_ready:
        out.line("\nCtrl-C stops everything.")
        return
    if not cluster.settings.raw_exec and os.geteuid() == 0:
        out.line("driver raw_exec is off: its tasks would run as root; --raw-exec offers it")
    out.line("\nTry, in another terminal:" if is_first else "\nIn another terminal:")
    out.commands(_FIRST if is_first else _AGAIN)
    out.line(f"\nCtrl-C stops everything{_kept(cluster)}.")


def _kept(cluster: LocalCluster) -> str:
    if cluster.settings.keep_tasks:
        return " except tasks, which the next `caravan up` adopts"
    return "; --keep-tasks leaves tasks running"


_FIRST = (
    ("job init", "write example.nomad.hcl, with comments"),
    ("job plan example.nomad.hcl", "show what running it would change"),
    ("job run example.nomad.hcl", "run it"),
    ("job status example", "show where it runs"),
    ("alloc logs -f 'example.web[0]'", "follow its output"),
    ("log tail -f", "follow every decision"),
    ("context env", "print the URL with the login, for other clients"),
)
_AGAIN = (
    ("job status", "list jobs"),
    ("node status", "list nodes"),
    ("log tail -f", "follow every decision"),
)
