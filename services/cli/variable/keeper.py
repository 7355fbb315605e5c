"""Asks the keeper about variables over the selected bus, and says what to try where it does not answer."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.cli.runtime import hints
from services.cli.runtime.bus_client import waiting_for, with_bus
from services.cli.runtime.output import CliError
from shared.bus.connection.public_client import Client
from shared.variable_client import NoAnswer, VariableClient

T = TypeVar("T")


def ask_keeper(work: Callable[[VariableClient], Awaitable[T]]) -> T:
    """Connect and do the work. Raises VariableFault with the keeper's refusal, CliError without an answer."""

    async def on_bus(client: Client) -> T:
        async def ask(subject: str, body: bytes, timeout_s: float) -> bytes:
            service = "view" if subject.startswith("query.") else "keeper"
            with waiting_for(service, subject):
                return await client.request_bytes(subject, body, timeout_s)

        return await work(VariableClient(ask))

    try:
        return with_bus(on_bus)
    except NoAnswer as err:
        raise CliError(err.code, f"{err.message}; {hints.silent_service('keeper')}") from err
