"""The process of a what-if run."""

import asyncio
from pathlib import Path

import pytest

from services.gateway.edge import what_if_runs
from services.gateway.edge.what_if_runs import WhatIfRuns
from tests.bounds import level
from tests.unit.gateway.test_what_if_runs import ended, started


def test_a_cancelled_run_leaves_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process ends before the run does, also one that ignores SIGTERM."""
    pid_file = tmp_path / "pid"
    program = tmp_path / "services"
    program.mkdir()
    (program / "__init__.py").write_text("")
    (program / "cli.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(pid_file)!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid_file)!r} + '.new', {str(pid_file)!r})\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(what_if_runs, "_CODE", tmp_path)

    async def check() -> None:
        runs = WhatIfRuns()
        run = started(runs)
        await level(pid_file.exists, "the file of the process")
        runs.cancel(run)
        await ended(run)
        assert run.status == "cancelled"

    asyncio.run(check())
    assert not Path(f"/proc/{pid_file.read_text()}").exists()
