"""Write docs/lost-server.svg and docs/lost-majority.svg: `operator status` of three servers, one and two of them away.

python -m tests.docs.server_pictures
"""

import os
import sys
import tempfile
from pathlib import Path

from bench.harness.three_servers import REPLICAS
from services.cli.local.cluster import LocalClusterSettings
from tests.bus.test_lost_servers import UnattendedCluster
from tests.docs.picture import ROOT, shown
from tests.docs.terminal import svg

WORDS = ("operator", "status")
#: Exit code of the command, and what the picture is of.
PICTURES = (
    ("lost-server", 2, "operator status: one of three servers is away"),
    ("lost-majority", 1, "operator status: two of three servers are away"),
)


def main() -> None:
    """Start a cluster, stop the servers that do not lead one after the other, and draw what the command prints."""
    os.environ["CARAVAN_REPLICAS"] = str(REPLICAS)
    with tempfile.TemporaryDirectory() as name:
        settings = LocalClusterSettings(data_dir=Path(name) / "data", agents=1, schedulers=1)
        with UnattendedCluster(settings) as cluster:
            assert cluster.status("--wait", "current")[0] == 0
            for picture, code, title in PICTURES:
                servers = cluster.status()[1]["servers"]
                last = max(
                    one["name"]
                    for one in servers
                    if one["status"] == "current" and not one["leads"]
                )
                next(one for one in cluster.trio.members if one.name == last).kill()
                cluster.until_shown_away(last, code)
                draw(cluster, ROOT / "docs" / f"{picture}.svg", title)


def draw(cluster: UnattendedCluster, path: Path, title: str) -> None:
    """What stands on a terminal after the command."""
    command = [sys.executable, "-m", "services.cli", *WORDS]
    env = {**os.environ, "CARAVAN_NATS_URL": cluster.client_url, "PYTHONPATH": str(ROOT)}
    prompt = f"\x1b[32m$\x1b[0m \x1b[1mcaravan {' '.join(WORDS)}\x1b[0m"
    path.write_text(svg([prompt, *shown(command, env)], title), encoding="utf-8")


if __name__ == "__main__":
    main()
