"""The same client without asyncio: each call runs on a loop in a thread of its own, and waits for the result.

Methods and arguments are those of `Client`; what yields there is an iterator here.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Self

from caravan_client.client import Client
from caravan_client.client import connect as connect_async


class SyncClient:
    """A client for programs without a loop: `with connect_sync() as client: client.jobs.submit(job)`."""

    def __init__(
        self, url: str | None = None, *, name: str = "caravan-client", timeout_s: float = 10.0
    ) -> None:
        """Connect, as `connect` does."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        try:
            self._client: Client = self._wait(connect_async(url, name=name, timeout_s=timeout_s))
        except BaseException:
            self._end_loop()
            raise
        self.jobs: Any = _Waiting(self, self._client.jobs)
        self.query: Any = _Waiting(self, self._client.query)
        self.tasks: Any = _Waiting(self, self._client.tasks)
        self.operations: Any = _Waiting(self, self._client.operations)
        self.log: Any = _Waiting(self, self._client.log)

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._thread.is_alive():
            self._wait(self._client.close())
            self._end_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(items)

        try:
            while True:
                try:
                    yield self._wait(following())
                except StopAsyncIteration:
                    return
        finally:
            self._wait(items.aclose())  # type: ignore[attr-defined]

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Waiting:
    """Methods of one part of the client that wait for their result."""

    def __init__(self, client: SyncClient, part: object) -> None:
        self._client = client
        self._part = part

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        client = self._client

        def waiting(*args: Any, **named: Any) -> Any:
            result = method(*args, **named)
            # Private on purpose: the two classes are one thing.
            return client._iterate(result) if inspect.isasyncgen(result) else client._wait(result)  # noqa: SLF001

        waiting.__doc__ = method.__doc__
        return waiting


def connect_sync(
    url: str | None = None, *, name: str = "caravan-client", timeout_s: float = 10.0
) -> SyncClient:
    """Connect to the cluster at `url`, by default that of CARAVAN_NATS_URL; try for `timeout_s`."""
    return SyncClient(url, name=name, timeout_s=timeout_s)
