"""Reads a page of docs/ as its reader would: runs its shell blocks in order, compares with what it shows below them.

- A block that begins with `caravan up` is the first terminal: started, waited for, ended at the end or when the page
  ends it by the pid in `up.lock`.
- A `text` block below shows lines of the output, in their order; others may stand between. `…` stands for anything, and
  any space for any number of spaces. A block that only asks is asked again until it says so, at most for WAIT_S.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bounds import LONG_S, WAIT_S

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ASKS = re.compile(
    r"caravan (\w+ )?(status|logs|list|tail|get|history|timeline|verify|why-not|deployments)\b"
)


class Step(NamedTuple):
    """A shell block, and the lines shown below it."""

    command: str
    shown: tuple[str, ...]


def steps(text: str) -> Iterator[Step]:
    """The blocks of a page or of a part of it."""
    found = [(kind, body) for kind, body in _BLOCK.findall(text)]
    for at, (kind, body) in enumerate(found):
        if kind == "sh":
            below = found[at + 1] if at + 1 < len(found) else ("", "")
            shown = tuple(below[1].splitlines()) if below[0] == "text" else ()
            yield Step(body, shown)


class Reader:
    """A user in a checkout, with two terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        programs = folder / "bin"
        programs.mkdir()
        (programs / "caravan").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m services.cli "$@"\n'
        )
        (programs / "caravan").chmod(0o755)
        homes = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
        self.env = {
            **os.environ,
            **{name: str(folder / name.lower()) for name in homes},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self.env.pop("CARAVAN_NATS_URL", None)
        self._up: subprocess.Popen[bytes] | None = None

    def do(self, step: Step) -> None:
        """Run a block; its output must show what the page shows."""
        if step.command.startswith("caravan up"):
            self._begin(step.command)
            return
        deadline = time.monotonic() + WAIT_S
        lines = [line for line in step.command.splitlines() if line and not line.startswith("#")]
        only_asks = all(_ASKS.match(line) for line in lines)
        while True:
            code, said = self._run(step.command)
            missing = first_missing(step.shown, said)
            if not (code or missing):
                break
            assert only_asks and time.monotonic() < deadline, (step.command, code, missing, said)
            time.sleep(0.2)
        if "up.lock" in step.command:
            assert self._up is not None
            # What follows copies the directory at once: the page's own command must have waited for the lock.
            assert "flock" in step.command
            assert self._up.wait(WAIT_S) == 0
            self._up = None

    def _run(self, command: str) -> tuple[int, str]:
        """Run a block as one paste, in a shell that runs on behind a failed line, whose code is returned."""
        text = f"trap 'failed=$?' ERR\n{command}\nlast=$?; exit ${{failed:-$last}}"
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LONG_S,
            check=False,
        )
        return done.returncode, done.stdout.decode()

    def _begin(self, command: str) -> None:
        """Start a cluster on a free port, and wait until it says how it is ended."""
        # The page's reader is no root, who would have to ask for the driver of its jobs.
        words = [*command.split(), "--port", "0", "--raw-exec"]
        with (self.folder / "up.out").open("wb") as out:
            self._up = subprocess.Popen(
                words, cwd=self.folder, env=self.env, stdout=out, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + WAIT_S
        while "Ctrl-C" not in (said := (self.folder / "up.out").read_text()):
            assert time.monotonic() < deadline and self._up.poll() is None, said
            time.sleep(0.1)

    def end(self) -> int:
        """Ctrl-C in the first terminal."""
        if self._up is None:
            return 0
        self._up.send_signal(signal.SIGINT)
        return self._up.wait(WAIT_S)


def first_missing(shown: tuple[str, ...], said: str) -> str:
    """The first shown line that the output does not have behind the one before; empty: it has all."""
    lines = iter(said.splitlines())
    for wanted in shown:
        pattern = re.compile(_pattern(wanted))
        if wanted.strip() and not any(pattern.fullmatch(line.strip()) for line in lines):
            return wanted
    return ""


def _pattern(wanted: str) -> str:
    words = [re.escape(word).replace("…", ".*") for word in wanted.split()]
    return r"\s+".join(words).replace(r".*\s+", r".*\s*").replace(r"\s+.*", r"\s*.*")
