"""What-ifs that a page asked for: each runs `caravan what-if` in its own process, and its report is kept for a while.

Decides how many run and how long, what a question may say, and how it becomes a command line. The process reads the log
with its caller's login, which is in its environment and nowhere else.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec

from services.gateway.edge.faults import HttpFault, unavailable

#: Runs at a time, kept in all, seconds and bytes of memory of one, bytes of a report.
RUNNING_MAX, KEPT_MAX, TIME_S, MEMORY_MAX, REPORT_MAX = 2, 32, 300, 4 << 30, 32 << 20
_NICENESS = 15
_CODE = Path(__file__).resolve().parents[3]

Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Words = Annotated[tuple[Word, ...], msgspec.Meta(max_length=200)]
#: Forms that the command line would take for the name of a file on this machine are refused.
_FORMS = {
    "policy": (re.compile(r"[a-z_.]+=.+", re.DOTALL), "NAME=VALUE"),
    "add_nodes": (re.compile(r"[0-9]{1,5}x[^/]+"), "NxNODE"),
}


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be different, in the words of `caravan what-if`. `seq`: the fork is behind it."""

    seq: Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
    until: Annotated[str, msgspec.Meta(max_length=40)] = ""
    drain: Words = ()
    remove_nodes: Words = ()
    add_nodes: Words = ()
    policy: Words = ()
    priority: Words = ()
    update: Words = ()
    deployment: Words = ()
    #: text of a job file.
    job: Annotated[str, msgspec.Meta(max_length=500_000)] = ""


def arguments(question: Question, job_file: str) -> list[str]:
    """The command line. Raises HttpFault 400."""
    words = [f"--from={question.seq}", *([f"--until={question.until}"] if question.until else [])]
    lists = ("drain", "remove_nodes", "add_nodes", "policy", "priority", "update", "deployment")
    for name in lists:
        for one in getattr(question, name):
            form, text = _FORMS.get(name, (None, ""))
            if form is not None and not form.fullmatch(one):
                raise HttpFault(400, f"{name}: {one!r} is not {text}")
            words.append(f"--{name.replace('_', '-')}={one}")
    return [*words, *([f"--job={job_file}"] if question.job else [])]


class Run:
    """One question and what became of it. `status`: waiting, running, done, failed or cancelled."""

    def __init__(self, name: str, question: Question) -> None:
        self.name = name
        self.question = question
        self.status = "waiting"
        #: why it failed.
        self.text = ""
        self.report: msgspec.Raw | None = None
        self.began_s = time.monotonic()
        self.took_s = 0.0
        self.task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.status in ("waiting", "running")

    def shown(self, *, whole: bool) -> dict[str, object]:
        """As the API shows it."""
        seconds = time.monotonic() - self.began_s if self.is_open else self.took_s
        found: dict[str, object] = {
            "id": self.name,
            "question": self.question,
            "status": self.status,
            "text": self.text,
            "seconds": round(seconds, 1),
        }
        return {**found, "report": self.report} if whole else found


class WhatIfRuns:
    """The runs of one gateway, newest last."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self._turns = asyncio.Semaphore(RUNNING_MAX)

    def start(self, question: Question, *, salt: str, where: list[str], env: dict[str, str]) -> Run:
        """Start a run, or return the one of the same question. Raises HttpFault 400, 503.

        `salt`: cluster and caller; `where`, `env`: words and environment that say which log is read.
        """
        arguments(question, "")
        text = salt.encode() + b"\0" + msgspec.json.encode(question)
        name = hashlib.blake2b(text, digest_size=8).hexdigest()
        known = self.runs.get(name)
        if known is not None and (known.is_open or known.status == "done"):
            return known
        self._make_room()
        run = self.runs[name] = Run(name, question)
        run.task = asyncio.create_task(self._run(run, where, env))
        return run

    def cancel(self, run: Run) -> None:
        """End a run."""
        if run.is_open and run.task is not None:
            run.task.cancel()

    def _make_room(self) -> None:
        while len(self.runs) >= KEPT_MAX:
            over = next((one for one in self.runs.values() if not one.is_open), None)
            if over is None:
                raise unavailable(f"{KEPT_MAX} what-ifs wait or run already")
            del self.runs[over.name]

    async def _run(self, run: Run, where: list[str], env: dict[str, str]) -> None:
        try:
            async with self._turns:
                run.status, run.began_s = "running", time.monotonic()
                await self._play(run, where, env)
        except asyncio.CancelledError:
            run.status, run.text = "cancelled", "it was cancelled"
        except TimeoutError:
            run.status, run.text = "failed", f"it was ended after {TIME_S} s"
        except OSError as err:
            run.status, run.text = "failed", f"it could not be started: {err.strerror or err}"
        finally:
            run.took_s = time.monotonic() - run.began_s

    async def _play(self, run: Run, where: list[str], env: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix="caravan-what-if-") as folder:
            job_file = Path(folder) / "job.nomad"
            job_file.write_text(run.question.job, encoding="utf-8")
            words = ["what-if", "--json", *where, *arguments(run.question, str(job_file))]
            homes = {"HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder}
            code, out, said = await _output(words, {**env, **homes}, folder)
        lines = out.splitlines()
        if lines and lines[-1].startswith(b'{"from_seq"'):
            run.report, run.status = msgspec.Raw(lines[-1]), "done"
            return
        run.status, run.text = "failed", _reason(lines, said) or f"it ended with code {code}"


def _reason(lines: list[bytes], said: bytes) -> str:
    """The error that the command printed."""
    with contextlib.suppress(msgspec.DecodeError, IndexError, KeyError, TypeError):
        error = msgspec.json.decode(lines[-1])["error"]
        path = error.get("path") or ""
        return f"{path}: {error['message']}" if path else str(error["message"])
    return said.decode("utf-8", "replace").strip()[-500:]


async def _output(words: list[str], env: dict[str, str], folder: str) -> tuple[int, bytes, bytes]:
    """Run the command line to its end; it ends with us. Raises TimeoutError, OSError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.cli",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(_CODE), **env},
        cwd=folder,
        start_new_session=True,
        limit=REPORT_MAX,
    )
    try:
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (2 * TIME_S, 2 * TIME_S))
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        async with asyncio.timeout(TIME_S):
            out, said = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            return await process.wait(), out, said
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Read to the end, at most REPORT_MAX bytes. Raises OSError for more."""
    assert stream is not None
    found = bytearray()
    while part := await stream.read(1 << 16):
        found += part
        if len(found) > REPORT_MAX:
            raise OSError(0, f"the report exceeds {REPORT_MAX} bytes")
    return bytes(found)
