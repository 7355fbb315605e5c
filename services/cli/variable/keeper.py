"""Asks the keeper about variables over the selected bus, and says what to try where it does not answer."""

import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.cli.runtime import hints
from services.cli.runtime.bus_client import waiting_for, with_bus
from services.cli.runtime.output import CliError
from shared.bus.connection.public_client import Client
from shared.variable_client import NoAnswer, VariableClient

#: What `var lock` gives to its command: the id of the lock, and its path. Arguments can be read by others.
LOCK_ID_ENV, LOCK_PATH_ENV = "CARAVAN_VARIABLE_LOCK_ID", "CARAVAN_VARIABLE_LOCK_PATH"
T = TypeVar("T")


def held_lock(path: str) -> str:
    """The id of the lock of this path that the environment has; empty: it has none, or that of another path."""
    return os.environ.get(LOCK_ID_ENV, "") if os.environ.get(LOCK_PATH_ENV, "") == path else ""


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
