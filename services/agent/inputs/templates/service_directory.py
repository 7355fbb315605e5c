"""What templates know of services: who is asked, and what comes back."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from shared.gotemplate.data import NamedInstance, ServiceName


class KnownService(msgspec.Struct, frozen=True):
    """The healthy instances of one service; another list has another version."""

    version: int
    instances: tuple[NamedInstance, ...]


class KnownNames(msgspec.Struct, frozen=True):
    """All services by name; another list has another version."""

    version: int
    names: tuple[ServiceName, ...]


class ServiceSource(Protocol):
    """Where the data of services comes from. Every method may be cancelled while it waits."""

    async def service(self, name: str) -> KnownService:
        """Return the instances of a service; waits without limit until they are known."""
        ...

    async def services(self) -> KnownNames:
        """Return the list of all services; waits without limit until it is known."""
        ...

    async def changed(self, seen: Mapping[str, int]) -> None:
        """Return when one of these has another version than here; the empty name stands for the list of names."""
        ...
