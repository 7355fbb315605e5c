"""Services in memory, for tests of templates: the interface of the node's directory without a bus."""

import asyncio
from collections.abc import Mapping

from services.agent.inputs.templates.service_directory import ALL, KnownNames, KnownService
from shared.gotemplate.data import NamedInstance, ServiceName


class FixedServices:
    """A ServiceSource. Services that were not set are awaited."""

    def __init__(self, **services: tuple[NamedInstance, ...]) -> None:
        self._services = {name: KnownService(1, found) for name, found in services.items()}
        self._names: KnownNames | None = None
        self._change = asyncio.Event()

    def set(self, name: str, *instances: NamedInstance) -> None:
        """Give a service these instances; others are another version."""
        before = self._services.get(name)
        if before is None or before.instances != instances:
            version = 1 if before is None else before.version + 1
            self._services[name] = KnownService(version, instances)
            self._tell()

    def set_names(self, *names: ServiceName) -> None:
        """Give the list of names."""
        version = 1 if self._names is None else self._names.version + 1
        self._names = KnownNames(version, names)
        self._tell()

    async def service(self, name: str) -> KnownService:
        """See ServiceSource."""
        while name not in self._services:
            await self._change.wait()
        return self._services[name]

    async def services(self) -> KnownNames:
        """See ServiceSource."""
        while self._names is None:
            await self._change.wait()
        return self._names

    async def changed(self, seen: Mapping[str, int]) -> None:
        """See ServiceSource."""
        while all(self._version(name) in {0, version} for name, version in seen.items()):
            await self._change.wait()

    def _version(self, name: str) -> int:
        known = self._names if name == ALL else self._services.get(name)
        return 0 if known is None else known.version

    def _tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
