"""The commands of docs/operations.md, as a reader runs them: in a copy of the tree, `docker` and `caravan` on PATH."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from shared.bus.server.nats_server import free_port
from tests import not_tested
from tests.bounds import LONG_S, WAIT_S
from tests.compose.engine import ROOT, Engine, find_compose

PAGE = ROOT / "docs" / "operations.md"
_PARTS = ("schemas", "services", "shared", "deploy", "examples", ".dockerignore")


def blocks(heading: str) -> list[str]:
    """The shell blocks under one heading of the page."""
    parts = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)
    found = [part for part in parts if part.splitlines()[0] == heading]
    assert len(found) == 1, heading
    return re.findall(r"^```sh\n(.*?)^```", found[0], re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """The commands of a block as a shell reads them: lines that end with && and what follows are one."""
    joined = re.sub(r"&&\n", "&& ", block)
    return joined.splitlines()


class Reader:
    """A user at a terminal in a checkout. Where the engine is not ours, project and port are not the page's."""

    def __init__(self, engine: Engine, folder: Path, images: Mapping[str, str]) -> None:
        self.tree = folder / "caravan"
        self.tree.mkdir()
        for part in _PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(
                    source,
                    self.tree / part,
                    ignore=shutil.ignore_patterns("__pycache__", "secrets"),
                )
            else:
                shutil.copy(source, self.tree / part)
        self._swap = {}
        name = "caravan"
        if not engine.is_ours:
            name, port = f"caravan-test-{os.getpid()}", free_port()
            self._swap = {
                "caravan_": f"{name}_",
                "operator bootstrap": f"operator bootstrap --port {port}",
            }
            ports = {"CARAVAN_PORT": str(port), "CARAVAN_GATEWAY_PORT": str(free_port())}
            images = {**images, **ports}
        self._env = {
            **os.environ,
            **images,
            "DOCKER_HOST": engine.url,
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_PROJECT_NAME": name,
            "PATH": f"{self._programs(folder, engine)}:{os.environ['PATH']}",
        }
        self._env.pop("CARAVAN_NATS_URL", None)

    def _programs(self, folder: Path, engine: Engine) -> Path:
        place = folder / "bin"
        place.mkdir()
        docker = shutil.which("docker")
        if docker is None:
            not_tested.missing_tool("no docker command")
        inside = shlex.join([*engine.inside, sys.executable, "-m", "services.cli"])
        scripts = {
            "docker": f'[ "$1" = compose ] && shift && exec {find_compose()} "$@"\nexec {docker} "$@"\n',
            "caravan": f'exec {inside} "$@"\n',
        }
        for name, text in scripts.items():
            (place / name).write_text(f"#!/bin/sh\n{text}")
            (place / name).chmod(0o755)
        return place

    def follow(self, heading: str, which: slice = slice(None)) -> None:
        """Run the blocks under a heading, command by command. Raises AssertionError with the one that failed."""
        for block in blocks(heading)[which]:
            for line in commands(block):
                self.type(line)

    def type(self, line: str) -> str:
        """Run one command; a lone question is asked again until services that have just started answer it."""
        for word, other in self._swap.items():
            line = line.replace(word, other)
        is_question = line.startswith("caravan") and "&&" not in line
        deadline = time.monotonic() + (WAIT_S if is_question else 0)
        while True:
            done = self._run(line)
            if done.returncode == 0:
                return done.stdout
            assert time.monotonic() < deadline, (line, done.stdout[-500:], done.stderr[-1500:])
            time.sleep(0.2)

    def _run(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Run it in the reader's shell, which keeps what was exported."""
        kept = "[ ! -f ../exports ] || . ../exports"
        return subprocess.run(
            ["bash", "-c", f"{kept}\n{line}\nlast=$?\nexport -p > ../exports\nexit $last"],
            cwd=self.tree,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=LONG_S * (1 + line.count("&&")),
            check=False,
        )

    def end(self) -> None:
        """Take everything down, volumes too."""
        if (self.tree / "deploy" / "secrets").exists():
            compose = "docker compose -f deploy/compose.yaml --profile agents --profile cluster"
            self.type(f"{compose} kill")
            self.type(f"{compose} down --volumes --remove-orphans --timeout 2")
