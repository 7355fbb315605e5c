"""A cluster in containers as a test uses it: bootstrap, up, scale, ask, crash, down."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from shared.bus.server.nats_server import free_port
from tests.bounds import LONG_S, WAIT_S, until
from tests.compose.engine import ROOT, Engine, Project
from tests.compose.load import fleet


class ContainerCluster:
    """One project of deploy/compose.yaml with secrets and ports of its own."""

    def __init__(
        self,
        engine: Engine,
        secrets: Path,
        images: Mapping[str, str],
        *,
        servers: int,
        profiles: tuple[str, ...],
    ) -> None:
        self.engine = engine
        self.secrets = secrets
        self._servers = servers
        self._children: list[subprocess.Popen[str]] = []
        port = free_port()
        bootstrap = ["operator", "bootstrap", "--directory", str(secrets), "--port", str(port)]
        self.caravan(*bootstrap, "--servers", str(servers))
        self.url = (secrets / "url").read_text().strip()
        if servers > 1:
            profiles = (*profiles, "cluster")
        ports = {"CARAVAN_PORT": port, "CARAVAN_PORT_2": port + 1, "CARAVAN_PORT_3": port + 2}
        ports["CARAVAN_GATEWAY_PORT"] = free_port()
        env = {**images, "CARAVAN_SECRETS": str(secrets), **{k: str(v) for k, v in ports.items()}}
        self.project = Project(engine, f"caravan-test-{uuid4().hex[:8]}", env, profiles)

    def up(self, *words: str) -> float:
        """`up -d` with more words; returns how long it took, in seconds."""
        began = time.monotonic()
        self.project.run("up", "-d", "--no-build", *words)
        return time.monotonic() - began

    def end(self) -> None:
        """Take everything down."""
        for child in self._children:
            child.kill()
            child.communicate()
        self.project.run("kill")
        self.project.run("down", "--volumes", "--remove-orphans", "--timeout", "2")

    def caravan(self, *words: str, allowed: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run the command line as PUBLIC; returns the object it prints."""
        url = getattr(self, "url", "")
        command = [*self.engine.inside, sys.executable, "-m", "services.cli", *words, "--json"]
        env = {**os.environ, "CARAVAN_NATS_URL": url}
        done = subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode in allowed, (words, done.stdout, done.stderr)
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    def until(self, what: str, holds: Any) -> Any:
        """Wait until `holds()` is true; returns it. Raises AssertionError with what every container said last."""

        def found() -> Any:
            try:
                return holds()
            except (AssertionError, json.JSONDecodeError):
                return None

        return until(found, lambda: f"{what}\n{self.project.logs()}")

    def metric(self, service: str, name: str) -> float:
        """A metric of a service, the largest of its containers, since one may stand by; read in there."""
        code = (
            "import urllib.request as u; "
            "print(u.urlopen('http://127.0.0.1:7070/metrics', timeout=3).read().decode())"
        )
        values = []
        for container in self.project.containers(service):
            done = container.exec_run(["python3", "-I", "-c", code])
            found = re.search(rf"^{name} (\S+)$", done.output.decode(), re.MULTILINE)
            assert found is not None, done.output
            values.append(float(found.group(1)))
        return max(values)

    def workers(self) -> int:
        """Schedulers that the broker leases to."""
        return int(self.metric("eval_broker", "caravan_eval_broker_workers"))

    def start_load(self, *words: str) -> "subprocess.Popen[str]":
        """Start `tests.compose.load`; its last line is read by `answer`."""
        command = [*self.engine.inside, sys.executable, "-m", "tests.compose.load", *words]
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    def load(self, *words: str) -> dict[str, Any]:
        """Run `tests.compose.load` to its end."""
        return self.answer(self.start_load(*words))

    def answer(self, child: "subprocess.Popen[str]") -> dict[str, Any]:
        """End a client's stdin, wait for its end and return its object."""
        out, err = child.communicate(timeout=LONG_S)
        self._children.remove(child)
        assert child.returncode == 0, (out[-500:], err[-1500:])
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told

    def start_fleet(self, nodes: int) -> None:
        """Register nodes that place and run nothing, and keep them alive until the end."""
        (self.secrets / "fleet.json").write_bytes(msgspec.json.encode(fleet(nodes)))
        bare = ",".join("nats://" + one.rpartition("@")[2] for one in self.url.split(","))
        command = [
            *self.engine.inside,
            sys.executable,
            "-m",
            "bench.harness.fleet_process",
            str(self.secrets),
            bare,
        ]
        self._children.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                # Its observer follows the streams of this bus; it refuses others.
                env={**os.environ, "CARAVAN_REPLICAS": str(self._servers)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
