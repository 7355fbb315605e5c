"""The services that one rendering reads: asked for at once, and waited for without limit.

A rendering goes by what is known, and names what it lacks; here it waits until some of that is there, or something of
what it knows has changed.
"""

import asyncio
import re
from collections.abc import Collection, Iterable
from typing import NoReturn

from services.agent.inputs.input_handler import InputFailed
from services.agent.inputs.templates.service_directory import (
    KnownNames,
    KnownService,
    ServiceSource,
    ServiceUnusable,
)
from services.agent.inputs.templates.settings import EVENT

#: The list of all services, where names of services stand.
ALL = ""
#: Services that one template may read.
SERVICES_MAX = 1000
#: What is known is there within that time: while a helper waits, and while none does.
AT_ONCE_S, RENEW_S = 0.005, 0.05
_NAME = re.compile(r"[\w\-]{1,128}", re.ASCII)
#: Services that a template names: asked for before it is rendered, which spares a pass and a helper.
_NAMED = re.compile(r"""\bnomadService\s+(?:\S+\s+\S+\s+)?["`]([\w\-]{1,128})["`]""", re.ASCII)
_NAMED_MAX = 100

Known = KnownService | KnownNames


def named_services(text: str) -> dict[str, None]:
    """Find services that a template probably reads."""
    return dict.fromkeys(_NAMED.findall(text)[:_NAMED_MAX])


class NoServices:
    """The source of an agent that has none."""

    async def service(self, name: str) -> KnownService:
        """Refuse."""
        self._refuse(name)

    async def services(self) -> KnownNames:
        """Refuse."""
        self._refuse("all services")

    async def changed(self, _seen: object) -> None:
        """Nothing changes."""
        await asyncio.Event().wait()

    def _refuse(self, name: str) -> NoReturn:
        reason = f"{name}: this agent has no directory of services"
        raise InputFailed(reason, recoverable=False, kind=EVENT)


class ServiceReads:
    """What one rendering, of one or more passes, knows of services."""

    def __init__(self, source: ServiceSource, names: Iterable[str] = ()) -> None:
        self._source = source
        self._asked: dict[str, asyncio.Task[Known]] = {}
        self.ask(names)

    def ask(self, names: Iterable[str]) -> bool:
        """Ask for services; returns whether any of them was not asked for before. Raises InputFailed."""
        new = [name for name in names if name not in self._asked]
        for name in new:
            if name != ALL and not _NAME.fullmatch(name):
                reason = f"{name[:40]!r} cannot be the name of a service"
                raise InputFailed(reason, recoverable=False, kind=EVENT)
        if len(self._asked) + len(new) > SERVICES_MAX:
            reason = f"it reads more than {SERVICES_MAX} services"
            raise InputFailed(reason, recoverable=False, kind=EVENT)
        self._asked |= {name: self._begin(name) for name in new}
        return bool(new)

    def known(self) -> dict[str, Known]:
        """Return what is known. Raises what the source raised."""
        return {name: task.result() for name, task in self._asked.items() if task.done()}

    def versions(self) -> dict[str, int]:
        """Return the versions of what is known."""
        done = {name: task for name, task in self._asked.items() if task.done()}
        return {n: one.result().version for n, one in done.items() if one.exception() is None}

    async def renew(self, names: Collection[str] | None = None) -> None:
        """Ask again for what is known; `names`: for these alone, the others are not read any more."""
        for name, task in list(self._asked.items()):
            if names is not None and name not in names:
                task.cancel()
                del self._asked[name]
            elif task.done():
                self._asked[name] = self._begin(name)
        await self.settle(RENEW_S)

    async def settle(self, within_s: float = AT_ONCE_S) -> None:
        """Wait a moment for what was asked for."""
        if pending := self._pending():
            await asyncio.wait(pending, timeout=within_s)

    async def more(self, lacking: Iterable[str], pause_s: float) -> None:
        """Wait until something that was lacking is there or something known has changed, and then for more of it."""
        if any(self._asked[name].done() for name in lacking):
            return
        watch = asyncio.get_running_loop().create_task(self.changed())
        try:
            await asyncio.wait({watch, *self._pending()}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
        finally:
            watch.cancel()
        if pending := self._pending():
            await asyncio.wait(pending, timeout=pause_s)

    async def quiet(self, least_s: float, most_s: float) -> None:
        """Wait until nothing known has changed for a while, and at most so long in all."""
        loop = asyncio.get_running_loop()
        end = loop.time() + most_s
        while (pause_s := min(least_s, end - loop.time())) > 0:
            try:
                async with asyncio.timeout(pause_s):
                    await self.renew()
                    await self.changed()
            except TimeoutError:
                return

    async def changed(self) -> None:
        """Wait until something known has changed; where nothing is, it does not return."""
        versions = self.versions()
        await (self._source.changed(versions) if versions else asyncio.Event().wait())

    def close(self) -> None:
        """Ask for nothing any more."""
        for task in self._asked.values():
            task.cancel()

    # ---- inside ----

    def _begin(self, name: str) -> asyncio.Task[Known]:
        return asyncio.get_running_loop().create_task(self._ask(name))

    async def _ask(self, name: str) -> Known:
        try:
            return await (self._source.services() if name == ALL else self._source.service(name))
        except ServiceUnusable as err:
            # It may have fewer instances later.
            raise InputFailed(str(err), recoverable=True, kind=EVENT) from err

    def _pending(self) -> set[asyncio.Task[Known]]:
        return {task for task in self._asked.values() if not task.done()}
