"""A running `caravan up`, and commands asked of it: what tests of the command line and of whole lives start from."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from services.cli.command_table import COMMANDS
from shared.bus.connection.public_client import Client
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bounds import LONG_S, WAIT_S, until


class Up:
    """A running `caravan up`, and commands asked of it."""

    def __init__(
        self,
        folder: Path,
        *more: str,
        gateway: bool = False,
        one_process: bool = False,
        **env: str,
    ) -> None:
        """Start it; `one_process`: where the parting of its services is not what a test is about."""
        self.data_dir = folder / "data"
        homes = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
        self.env = {**os.environ, **homes, **env}
        self.env.pop("CARAVAN_NATS_URL", None)
        words = [
            "up",
            "--port",
            "0",
            "--data-dir",
            str(self.data_dir),
            *(("--one-process",) if one_process else ("--schedulers", "1")),
            "--json",
            *(() if gateway else ("--no-gateway",)),
            # As root `up` offers the driver of most tests' jobs only when asked.
            *(() if "--no-raw-exec" in more else ("--raw-exec",)),
            *more,
        ]
        self.log = (folder / "up.log").open("wb")
        self.process = subprocess.Popen(
            self._command(*words), env=self.env, stdout=subprocess.PIPE, stderr=self.log
        )
        assert self.process.stdout is not None
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.env["CARAVAN_NATS_URL"] = self.said["url"]

    @cached_property
    def client_url(self) -> str:
        """The bus with the login of its clients inside."""
        return str(self.run("context", "env")[1]["url"])

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "services.cli", *words]

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run a command with --json; stdout must be one line."""
        # What stands behind -- is another command's.
        at = words.index("--") if "--" in words else len(words)
        done = subprocess.run(
            self._command(*words[:at], "--json", *words[at:]),
            env=self.env,
            capture_output=True,
            text=True,
            # It may follow a whole rollout; on a full disk `job run` alone asks for a minute.
            timeout=LONG_S,
            check=False,
        )
        lines = done.stdout.splitlines()
        assert len(lines) == 1, (done.stdout, done.stderr)
        return done.returncode, json.loads(lines[0])

    def documented(self, *words: str) -> dict[str, Any]:
        """Run a command that must succeed, and compare its keys with the documented ones."""
        code, answer = self.run(*words)
        assert code == 0, answer
        command = next(c for c in COMMANDS if c.words == words[: len(c.words)])
        known = [set(command.keys(case)) for case in command.results]
        assert set(answer) in known or known[0] < set(answer)
        return answer

    def ask(self, noun: str, **query: Any) -> dict[str, Any]:
        """Query the view until it answers; no process for each question, because tests ask until something holds."""

        async def ask() -> dict[str, Any]:
            async with Client(self.client_url) as client:
                return await client.request(subjects.query(noun), query)

        def answer() -> list[dict[str, Any]]:
            try:
                return [asyncio.run(ask())]
            except BusUnavailable:
                return []

        return until(answer, f"an answer to query.{noun}")[0]

    def allocs(self, job_id: str, status: str = "") -> list[dict[str, Any]]:
        """Allocations of a job, all or those of one status, as `job status` lists them."""
        found: list[dict[str, Any]] = self.ask("job", id=job_id).get("allocations", [])
        return [one for one in found if status in ("", one["client_status"])]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a level of a whole cluster, of which one question may be a process of its own."""
        until(holds, what, LONG_S)

    def end(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WAIT_S)
        self.log.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code
