"""A running `caravan up`, and commands asked of it: what tests of the command line and of whole lives start from."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.cli.commands import COMMANDS


class Up:
    """A running `caravan up`, and commands asked of it."""

    def __init__(self, folder: Path, *more: str, **env: str) -> None:
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
            "--schedulers",
            "1",
            "--json",
            *more,
        ]
        self.log = (folder / "up.log").open("wb")
        self.process = subprocess.Popen(
            self._command(*words), env=self.env, stdout=subprocess.PIPE, stderr=self.log
        )
        assert self.process.stdout is not None
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.env["CARAVAN_NATS_URL"] = self.said["url"]

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
            timeout=100,
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
        assert set(answer) == set(command.keys)
        return answer

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a level, at most 20 s."""
        deadline = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < deadline, what
            time.sleep(0.1)

    def end(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(30)
        self.log.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code
