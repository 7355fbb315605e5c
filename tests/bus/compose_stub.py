"""A `docker` for the operations page on a bus of three: what compose would do to containers, done to processes.

Decides what a container is here: a server of the bus, or the processes of a role or a node, by the names of
deploy/compose.yaml. A volume is a folder; it is in use as long as its container exists, running or not.
"""

import json
import shutil
import socketserver
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from services.cli.local.processes import SupervisedProcess
from tests.bounds import LONG_S, until
from tests.bus.test_lost_servers import UnattendedCluster

ROOT = Path(__file__).parents[2]
FILE = "deploy/compose.yaml"
#: Sends its arguments and profiles, prints the answer.
CLIENT = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as one:
    one.connect(sys.argv[1])
    said = {"argv": sys.argv[2:], "profiles": os.environ.get("COMPOSE_PROFILES", "")}
    one.sendall(json.dumps(said).encode() + b"\\n")
    answer = json.loads(one.makefile().readline())
print(answer["text"], end="")
sys.exit(answer["code"])
"""
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / FILE).read_text())["services"]
#: Containers that do something once, and are not here.
_NOT_HERE = ("create",)


class Refused(Exception):
    """What the engine would refuse."""


class PageCluster(UnattendedCluster):
    """A cluster on three servers, whose processes are stopped and started by name; all others are kept running."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._lock = threading.RLock()
        self._stopped: set[str] = set()
        #: containers that exist; the harness has begun them all.
        self.exist = {name for name in SERVICES if name not in _NOT_HERE}
        #: starts of each service that a test may look at, in order.
        self.started: list[str] = []
        #: services whose containers are of an older image: `up` creates them again.
        self.outdated: set[str] = set()
        #: services whose containers end at once when they are started.
        self.broken: set[str] = set()

    def _watch(self) -> None:
        while not self._ending.wait(0.1):
            with self._lock:
                for child in self.children:
                    if child.name not in self._stopped:
                        child.look(0.0)

    def _children_of(self, service: str) -> list[SupervisedProcess]:
        if service.startswith("agent-"):
            wanted = service.replace("agent-", "agent-node-")
            return [one for one in self.children if one.name == wanted]
        return [one for one in self.children if one.role == service]

    def _server_of(self, service: str) -> Any:
        return self.trio.members[int(service.removeprefix("nats-")) - 1]

    def store_of(self, volume: str) -> Path:
        """The folder of a volume, as a container has it."""
        kind, _, number = volume.partition("-")
        if kind == "nats":
            return self.data_dir / "bus" / f"bus{int(number) - 1}" / "jetstream"
        return self.agent_dir(f"node-{number}")

    def is_running(self, service: str) -> bool:
        """Whether any process of a service runs."""
        if service.startswith("nats-"):
            return bool(self._server_of(service).pid)
        return any(child.pid for child in self._children_of(service))

    def is_ready(self, service: str) -> bool:
        """Whether every process of a service says so on `/health`."""
        try:
            found = self.health()
        except (OSError, ValueError):
            return False
        return all(found[one.name]["code"] == 200 for one in self._children_of(service))

    def stop_services(self, names: list[str]) -> None:
        """SIGTERM to all, then wait: as compose, which does not wait for one before the next."""
        with self._lock:
            children = [one for name in names for one in self._children_of(name)]
            self._stopped |= {one.name for one in children}
            for child in children:
                child.signal(15)  # type: ignore[arg-type]
            for name in names:
                if name.startswith("nats-"):
                    self._server_of(name).stop()
            for child in children:
                child.wait_or_kill(LONG_S)

    def start_services(self, names: list[str]) -> None:
        """Start what does not run, the bus first."""
        for name in sorted(names, key=lambda one: not one.startswith("nats-")):
            if self.is_running(name) or name in self.broken:
                continue
            self.started.append(name)
            if name.startswith("nats-"):
                self._server_of(name).start()
                continue
            for child in self._children_of(name):
                child.start()
                self._stopped.discard(child.name)


class Order(NamedTuple):
    """One command of the page, as compose would read it."""

    options: list[str]
    names: list[str]


class ComposeStub:
    """`docker`, over a socket; `programs` has the scripts for PATH."""

    def __init__(self, cluster: PageCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self.orders: list[str] = []
        path = str(folder / "docker.sock")
        stub = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                said = json.loads(self.rfile.readline())
                code, text = 0, ""
                try:
                    text = stub.run(said["argv"], said["profiles"].split(","))
                except Refused as err:
                    code, text = 1, f"{err}\n"
                except Exception as err:  # noqa: BLE001 - the reader shows it.
                    code, text = 125, f"{type(err).__name__}: {err}\n"
                self.wfile.write(json.dumps({"code": code, "text": text}).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(path, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.programs = folder / "bin"
        self.programs.mkdir()
        (folder / "docker.py").write_text(CLIENT)
        scripts = {
            "docker": f'exec {sys.executable} {folder / "docker.py"} {path} "$@"',
            "caravan": f'exec {sys.executable} -m services.cli "$@"',
        }
        for name, text in scripts.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.programs / name).chmod(0o755)

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def run(self, argv: list[str], profiles: list[str]) -> str:
        """Do what a command line asks for. Raises Refused."""
        self.orders.append(" ".join(argv))
        if argv[:2] == ["volume", "rm"]:
            self._remove_volumes([name.removeprefix("caravan_") for name in argv[2:]])
            return ""
        assert argv[:3] == ["compose", "-f", FILE], argv
        verb, rest = argv[3], argv[4:]
        active = [
            name
            for name, one in SERVICES.items()
            if name not in _NOT_HERE
            and (not one.get("profiles") or set(one["profiles"]) & set(profiles))
        ]
        order = Order(
            [word for word in rest if word.startswith("-")],
            [word for word in rest if not word.startswith("-")],
        )
        assert verb == "cp" or set(order.names) <= set(SERVICES), order.names
        if order.names and verb != "cp":
            active = order.names
        verbs: dict[str, Callable[[Order, list[str]], str]] = {
            "stop": self._stop,
            "start": self._start,
            "down": self._down,
            "rm": self._rm,
            "create": self._create,
            "up": self._up,
            "cp": self._cp,
            "logs": lambda *_: "",
            "build": lambda *_: "",
        }
        return verbs[verb](order, active)

    def _stop(self, order: Order, names: list[str]) -> str:
        del order
        self._cluster.stop_services(names)
        return ""

    def _start(self, order: Order, names: list[str]) -> str:
        del order
        self._need(names)
        self._cluster.start_services(names)
        return ""

    def _down(self, order: Order, names: list[str]) -> str:
        del order
        self._cluster.stop_services(names)
        self._cluster.exist -= set(names)
        return ""

    def _rm(self, order: Order, names: list[str]) -> str:
        assert order.options == ["--force"], order
        if running := [name for name in names if self._cluster.is_running(name)]:
            raise Refused(f"{running} run")
        self._cluster.exist -= set(names)
        return ""

    def _create(self, order: Order, names: list[str]) -> str:
        del order
        self._cluster.exist |= set(names)
        return ""

    def _up(self, order: Order, names: list[str]) -> str:
        assert "-d" in order.options
        again = (
            names if "--force-recreate" in order.options else self._cluster.outdated & set(names)
        )
        self._cluster.stop_services(sorted(again))
        self._cluster.outdated -= set(names)
        self._cluster.exist |= set(names)
        self._cluster.start_services(names)
        if "--wait" in order.options:
            until(lambda: all(map(self._cluster.is_ready, names)), f"{names} ready", LONG_S)
        return ""

    def _cp(self, order: Order, names: list[str]) -> str:
        del names
        source, target = (self._place(word) for word in order.names)
        shutil.copytree(source, target, dirs_exist_ok=order.names[0].endswith("/."))
        return ""

    def _place(self, word: str) -> Path:
        service, found, path = word.partition(":")
        if not found:
            return self._folder / word.removesuffix("/.")
        assert path == "/data"
        self._need([service])
        if self._cluster.is_running(service):
            raise Refused(f"{service} runs: its store is not copied whole")
        return self._cluster.store_of(service)

    def _remove_volumes(self, volumes: list[str]) -> None:
        """Remove what can be removed; refused where one is in use or is none, as the engine does."""
        refused = []
        for volume in volumes:
            if volume in self._cluster.exist:
                refused.append(f"volume {volume} is in use")
            elif not self._cluster.store_of(volume).exists():
                refused.append(f"no such volume: {volume}")
            else:
                shutil.rmtree(self._cluster.store_of(volume))
        if refused:
            raise Refused("\n".join(refused))

    def _need(self, names: list[str]) -> None:
        if gone := [name for name in names if name not in self._cluster.exist]:
            raise Refused(f"no container of {gone}")
