"""The observer of tests and benchmarks: one that follows the log no more is not taken for a log without news."""

import asyncio
from typing import Any

import pytest

from bench.harness import log_observer
from shared.bus.connection.nats_client import Login
from shared.core.runtime.messages import CaughtUp
from shared.errors import BusUnavailable


class _Shell:
    """A shell that ends with BusUnavailable, before its role has caught up or afterwards."""

    ends_early = True

    def __init__(self, role: log_observer.LogObserver, settings: Any) -> None:
        del settings
        self._role = role

    async def run(self, stop: asyncio.Event) -> None:
        if not self.ends_early:
            self._role.step([CaughtUp(seq=0)], 0)
            # Its owner is at work by then.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not stop.is_set()
        raise BusUnavailable("no bus")


@pytest.mark.parametrize("ends_early", [True, False])
def test_an_observer_that_ended_says_why(
    monkeypatch: pytest.MonkeyPatch,
    ends_early: bool,  # noqa: FBT001
) -> None:
    """Where the log was never reached, the owner sees no empty state; else it hears of it at the end."""
    monkeypatch.setattr(log_observer, "Shell", _Shell)
    monkeypatch.setattr(_Shell, "ends_early", ends_early)
    looked: list[str] = []

    async def story() -> None:
        async with log_observer.run_observer(Login(url="")) as found:
            while not found.failure:
                found.changed.clear()
                await found.changed.wait()
            looked.append(found.failure)

    with pytest.raises(RuntimeError, match="the observer stopped: BusUnavailable: no bus"):
        asyncio.run(story())
    assert looked == ([] if ends_early else ["BusUnavailable: no bus"])
