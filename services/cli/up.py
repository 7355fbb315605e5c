"""`caravan up`: a cluster on this machine, in the foreground, until Ctrl-C."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

from schemas.answers import NodesAnswer
from schemas.projections import Query
from services.cli.asking import ask
from services.cli.cluster import Cluster, ClusterSettings
from services.cli.output import CliError, Output
from shared.bus.client import Client
from shared.errors import BusUnavailable

READY_S = 20.0
_POLL_S = 0.05


def up(
    out: Output,
    *,
    port: int,
    data_dir: str,
    schedulers: int,
    agents: int,
    intakes: int,
    views: int,
    appliers: int,
    keep_tasks: bool,
    no_raw_exec: bool,
) -> int:
    """Run until SIGINT or SIGTERM. With --json one object is printed once everything is ready."""
    counts = {"schedulers": schedulers, "intakes": intakes, "views": views, "appliers": appliers}
    for name, count in counts.items():
        if count < 1:
            raise CliError("usage", f"--{name} must be at least 1")
    settings = ClusterSettings(
        data_dir=Path(data_dir) if data_dir else default_data_dir(),
        port=port,
        agents=max(agents, 0),
        raw_exec=not no_raw_exec,
        keep_tasks=keep_tasks,
        schedulers=schedulers,
        intakes=intakes,
        views=views,
        appliers=appliers,
    )
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ending.set())
    is_first = not (settings.data_dir / "cluster.json").exists()
    cluster = Cluster(settings, out.progress)
    cluster.start()
    try:
        ready = asyncio.run(wait_ready(cluster.url, settings.agents, READY_S, ending))
        _welcome(out, cluster, is_ready=ready, is_first=is_first)
        ending.wait()
    finally:
        tasks = "tasks run on for the next up" if keep_tasks else "tasks end first"
        out.progress(f"stopping {len(cluster.pids())} processes; {tasks}")
        killed = cluster.stop()
        out.progress("stopped" + (f"; {killed} services had to be killed" if killed else ""))
    return 0


def default_data_dir() -> Path:
    """Where the log is kept unless told otherwise: the user's data directory."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "caravan"


async def wait_ready(url: str, nodes: int, within_s: float, ending: threading.Event) -> bool:
    """Wait until the view answers and so many nodes are ready; False after `within_s`, or when `ending` is set."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not ending.is_set():
        try:
            async with Client(url) as client:
                while time.monotonic() < deadline and not ending.is_set():
                    answer = await ask(client, "nodes", NodesAnswer, Query(status="ready", limit=0))
                    if answer.total >= nodes:
                        return True
                    await asyncio.sleep(_POLL_S)
        except (BusUnavailable, CliError):
            await asyncio.sleep(_POLL_S)
    return False


def _welcome(out: Output, cluster: Cluster, *, is_ready: bool, is_first: bool) -> None:
    """Say where it is and what to try next."""
    pids = cluster.pids()
    out.result(
        {
            "url": cluster.url,
            "data_dir": str(cluster.data_dir),
            "cluster_id": cluster.identity.cluster_id,
            "pid": os.getpid(),
            "services": pids,
        }
    )
    if not is_ready:
        out.progress(f"not everything is ready yet; logs are in {cluster.data_dir / 'logs'}")
    what = "a new cluster" if is_first else "the cluster of before, with its jobs"
    out.line(f"caravan is up: {what}, {len(pids)} processes", "green")
    out.fields(
        [
            ("bus", cluster.url),
            ("data", str(cluster.data_dir)),
            ("nodes", ", ".join(cluster.node_ids) or "none"),
        ]
    )
    out.line("\nTry, in another terminal:" if is_first else "\nIn another terminal:")
    out.commands(_FIRST if is_first else _AGAIN)
    out.line(f"\nCtrl-C stops everything{_kept(cluster)}.")


def _kept(cluster: Cluster) -> str:
    if cluster.settings.keep_tasks:
        return " but the tasks, which the next `caravan up` adopts"
    return "; --keep-tasks leaves tasks running"


_FIRST = (
    ("job init", "write example.nomad.hcl, with comments"),
    ("job plan example.nomad.hcl", "what running it would do"),
    ("job run example.nomad.hcl", "run it"),
    ("job status example", "see where it runs"),
    ("alloc logs -f 'example.web[0]'", "follow what it writes"),
    ("log tail -f", "watch every decision as it is made"),
)
_AGAIN = (
    ("job status", "what there is"),
    ("node status", "where it runs"),
    ("log tail -f", "watch every decision as it is made"),
)
