"""A node with a network of its own, so that bridges and rules of tests are on no machine: what is made goes with it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.agent.drivers.isolation import kernel
from services.agent.network import namespaces
from services.agent.network.node_bridge import NodeBridge
from services.agent.network.settings import BridgeSettings
from tests import not_tested
from tests.bounds import WAIT_S

_OWN = "/proc/thread-self/ns/net"
#: One request by HTTP: prints the answer, or why there is none.
ASK = (
    "import sys, urllib.request as u\n"
    "try: print(u.urlopen('http://' + sys.argv[1], timeout=2).read().decode())\n"
    "except OSError as err: print('no answer', err)\n"
)
PORTS = {"DynamicPorts": [{"Label": "http", "To": 80}]}


@contextlib.contextmanager
def own_network(top: Path) -> Iterator[None]:
    """Leave the machine's network with this thread, and with all that it starts meanwhile."""
    if sys.platform != "linux" or os.geteuid() != 0:
        not_tested.missing_feature("networks of groups need root on Linux")
    before = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    kernel.unshare(kernel.CLONE_NEWNET)
    try:
        kernel.raise_loopback()
        if why := NodeBridge(BridgeSettings()).probe(top):
            not_tested.missing_feature(f"no networks of groups here: {why}")
        yield
    finally:
        kernel.setns(before, kernel.CLONE_NEWNET)
        os.close(before)


def release_all(top: Path) -> None:
    """Let go of namespaces that a killed agent left."""
    for path in (top / "netns").glob("*/net"):
        namespaces.release(path)


def server(text: str, port: int = 80) -> str:
    """Shell command of a task that answers every request with a text."""
    return (
        f'mkdir -p "$NOMAD_TASK_DIR/www"; echo {text} > "$NOMAD_TASK_DIR/www/index.html"; '
        f'cd "$NOMAD_TASK_DIR/www"; exec python3 -m http.server {port}'
    )


def bridged(**network: Any) -> dict[str, Any]:
    """The field of a group with a network in mode bridge."""
    return {"Networks": [{"Mode": "bridge", **network}]}


def ask(address: str, *inside: str) -> str:
    """Ask an address by HTTP, from the node or by a command that enters somewhere."""
    words = [*inside, sys.executable, "-c", ASK, address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return done.stdout.strip() or done.stderr.strip()


def within(namespace: Path) -> tuple[str, str]:
    """Beginning of a command in a namespace."""
    return ("nsenter", f"--net={namespace}")
