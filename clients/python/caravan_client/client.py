"""The client: one connection, and what can be done on it, by subject matter."""

from types import TracebackType
from typing import Any, Self, TypeVar

from caravan_client.connection import Connection
from caravan_client.jobs import Jobs
from caravan_client.log import Log
from caravan_client.operations import Operations
from caravan_client.queries import Queries
from caravan_client.tasks import Tasks

T = TypeVar("T")


class Client:
    """A client of a cluster; `async with await connect() as client`."""

    def __init__(self, connection: Connection) -> None:
        """Use a connection, which `close` closes."""
        self.connection = connection
        self.jobs = Jobs(connection)
        self.query = Queries(self._ask)
        self.tasks = Tasks(connection)
        self.operations = Operations(connection)
        self.log = Log(connection)

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _ask(self, noun: str, parameters: dict[str, Any], answer: type[T]) -> T:
        return await self.connection.ask(f"query.{noun}", parameters, answer)


async def connect(
    url: str | None = None, *, name: str = "caravan-client", timeout_s: float = 10.0
) -> Client:
    """Connect to the cluster at `url`, by default that of CARAVAN_NATS_URL; try for `timeout_s`."""
    return Client(await Connection.open(url, name=name, timeout_s=timeout_s))
