"""Ctrl-C in a command that talks to the bus."""

import asyncio
import signal

import pytest

from services.cli.runtime import bus_client


async def deaf(swallows: int) -> None:
    """Follow something forever, and lose so many cancellations on the way, as a library's wait may."""
    for _ in range(swallows):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
    await asyncio.sleep(60)


@pytest.mark.parametrize("swallows", [0, 1, 2])
def test_ctrl_c_ends_a_command_that_lost_it(swallows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancellation is repeated until the command ends, and is reported as Ctrl-C."""
    monkeypatch.setattr(bus_client, "_CANCEL_AGAIN_S", 0.05)

    async def pressed() -> None:
        asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGINT)
        await deaf(swallows)

    with pytest.raises(KeyboardInterrupt):
        bus_client.run_interruptible(pressed())


def test_what_ends_by_itself_is_returned() -> None:
    """Without Ctrl-C nothing is cancelled."""

    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert bus_client.run_interruptible(work()) == 7
