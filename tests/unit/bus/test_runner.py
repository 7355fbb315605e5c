"""What runs beside a role: it ends before the process does, and its end has a bound."""

import asyncio
from typing import Any, cast

import pytest

from shared.bus.process import runner
from shared.bus.shell.shell import Shell
from shared.core.runtime.role import Role


class QuietRole:
    """A role of which only the name is asked."""

    name, instance, next_seq = "quiet", "quiet-1", 1


class ShortShell:
    """Ends as soon as it was stopped."""

    async def run(self, stop: asyncio.Event) -> None:
        await stop.wait()


async def run_and_stop(beside: Any) -> int:
    """Run the role with this beside it, stop it once it runs; returns the exit code."""
    stop = asyncio.Event()
    one = runner._RunningRole(cast("Role", QuietRole()), cast("Shell", ShortShell()), beside)
    ending = asyncio.create_task(runner._run(one, stop, {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stop.set()
    return await ending


def test_what_runs_beside_a_role_ends_before_it() -> None:
    """A broker says goodbye over a connection that a task of its own reads: both must still be there."""
    steps: list[str] = []

    async def broker(_: Shell) -> None:
        answered = asyncio.Event()

        async def connection() -> None:
            await asyncio.sleep(0.01)
            steps.append("answered")
            answered.set()

        try:
            await asyncio.Event().wait()
        finally:
            reader = asyncio.create_task(connection())
            await answered.wait()
            await reader
            steps.append("ended")

    assert asyncio.run(run_and_stop(broker)) == 0
    assert steps == ["answered", "ended"]


def test_what_never_ends_is_left_after_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that takes no cancellation does not keep the service."""
    monkeypatch.setattr(runner, "_SIDE_TASK_END_S", 0.05)
    freed = asyncio.Event()

    async def deaf(_: Shell) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await freed.wait()

    async def both() -> int:
        code = await run_and_stop(deaf)
        freed.set()
        return code

    assert asyncio.run(both()) == 0
