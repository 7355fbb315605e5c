"""The services and variables that one rendering reads: asked for at once, and waited for without limit.

A rendering goes by what is known, and names what it lacks; here it waits until some of that is there, or something of
what it knows has changed.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

import msgspec

from services.agent.inputs.input_handler import InputFailed
from services.agent.inputs.templates.followed_values import DataUnusable
from services.agent.inputs.templates.render_order import (
    CHECKED,
    META,
    SECRET,
    SECRET_NAMES,
    SERVICE,
    VARIABLE,
    DataRead,
)
from services.agent.inputs.templates.service_directory import (
    ALL,
    KnownNames,
    KnownService,
    ServiceSource,
)
from services.agent.inputs.templates.settings import EVENT
from services.agent.inputs.templates.variable_directory import (
    KnownVariable,
    VariableReader,
    VariableSource,
)
from services.agent.inputs.vault.secret_directory import KnownSecret, SecretName, SecretSource
from shared.core.runtime.agent_messages import TaskLaunch
from shared.jobspec.checks.templates import NO_VAULT
from shared.protocol.task_variables import path_refusal, task_paths

#: Services that one template may read.
SERVICES_MAX = 1000
#: What is known is there within that time: while a helper waits, and while none does.
AT_ONCE_S, RENEW_S = 0.005, 0.05
_NAME = re.compile(r"[\w\-]{1,128}", re.ASCII)
#: Services and variables that a template names: asked for before it is rendered, which spares a pass and a helper.
_NAMED = re.compile(r"""\bnomadService\s+(?:\S+\s+\S+\s+)?["`]([\w\-]{1,128})["`]""", re.ASCII)
_NAMED_CHECKED = re.compile(r"""(?<!\w)service\s+["`]([\w\-]{1,128})["`]""", re.ASCII)
_NAMED_VARIABLE = re.compile(r"""\bnomadVar\s+["`]([\w\-~/]{1,128})["`]""", re.ASCII)
_NAMED_MAX = 100
#: Set in the environment of a task of a periodic or dispatched child.
_PARENT = "NOMAD_JOB_PARENT_ID"

Known = KnownService | KnownNames | KnownVariable | KnownSecret
_PATH_CHARS_MAX = 500


def readable_variables(launch: TaskLaunch) -> tuple[str, ...]:
    """List the variables that a task may read. The keeper decides: a task's own `env` may say something else."""
    names, parent = launch.names, launch.env.get(_PARENT, "")
    job = parent if parent and names.job.startswith(f"{parent}/") else names.job
    return task_paths(job, names.group, names.task)


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


class NoVariables:
    """The source of an agent that has none."""

    async def variable(self, _reader: VariableReader, path: str) -> KnownVariable:
        """Refuse."""
        reason = f"{path}: this agent cannot ask for variables"
        raise InputFailed(reason, recoverable=False, kind=EVENT)

    async def changed(self, _reader: VariableReader, _seen: object) -> None:
        """Nothing changes."""
        await asyncio.Event().wait()


class NoSecrets:
    """The source of an agent that knows no Vault."""

    def serves(self, _reader: VariableReader) -> bool:
        """No task has a token."""
        return False

    async def secret(self, _reader: VariableReader, name: SecretName) -> KnownSecret:
        """Refuse."""
        reason = f"{name.path[:200]}: this agent knows no Vault"
        raise InputFailed(reason, recoverable=False, kind=EVENT)

    async def changed(self, _reader: VariableReader, _seen: object) -> None:
        """Nothing changes."""
        await asyncio.Event().wait()


class TaskData(msgspec.Struct, frozen=True, kw_only=True):
    """Where the templates of one task get their data."""

    services: ServiceSource
    variables: VariableSource
    reader: VariableReader
    #: the paths of variables that the task may read.
    readable: tuple[str, ...]
    secrets: SecretSource = NoSecrets()

    def named(self, text: str) -> dict[DataRead, None]:
        """Find what a template probably reads."""
        names = [*_NAMED.findall(text), *(CHECKED + one for one in _NAMED_CHECKED.findall(text))]
        services = [DataRead(SERVICE, name) for name in names]
        paths = [path for path in _NAMED_VARIABLE.findall(text) if path in self.readable]
        return dict.fromkeys(
            [*(DataRead(VARIABLE, path) for path in paths), *services][:_NAMED_MAX]
        )

    async def get(self, read: DataRead) -> Known:
        """Return what is known of it; waits without limit, `nomadVar` also for a variable that does not exist."""
        if read.kind == SERVICE:
            is_list = read.name == ALL
            return await (self.services.services() if is_list else self.services.service(read.name))
        if (secret := _secret_name(read)) is not None:
            return await self._secret(secret)
        while True:
            found = await self.variables.variable(self.reader, read.name)
            if read.kind != VARIABLE or found.variable is not None:
                return found
            await self.variables.changed(self.reader, {read.name: found.version})

    async def changed(self, seen: Mapping[DataRead, int]) -> None:
        """Wait until something has another version than was seen; where nothing was, it does not return."""
        services = {read.name: seen[read] for read in seen if read.kind == SERVICE}
        variables: dict[str, int] = {}
        for read in (read for read in seen if read.kind in {VARIABLE, META}):
            # Two reads of one path may have seen different versions: the older one has changed.
            before = variables.get(read.name, seen[read])
            variables[read.name] = min(before, seen[read])
        waits = [self.services.changed(services)] if services else []
        waits += [self.variables.changed(self.reader, variables)] if variables else []
        secrets = {name: seen[read] for read in seen if (name := _secret_name(read)) is not None}
        waits += [self.secrets.changed(self.reader, secrets)] if secrets else []
        if not waits:
            await asyncio.Event().wait()
        elif len(waits) == 1:
            await waits[0]
        else:
            await _first(*(asyncio.get_running_loop().create_task(one) for one in waits))

    def check(self, read: DataRead) -> None:
        """Refuse what cannot be read: a helper asks for what the template that it renders names. Raises InputFailed."""
        if _secret_name(read) is not None:
            is_text = read.name.isprintable() and 0 < len(read.name) <= _PATH_CHARS_MAX
            reason = "" if is_text else f"{read.name[:40]!r} cannot be the path of a secret"
            if not self.secrets.serves(self.reader):
                reason = NO_VAULT
        elif read.kind != SERVICE:
            reason = path_refusal(read.name, self.readable)
        elif read.name == ALL or _NAME.fullmatch(read.name.removeprefix(CHECKED)):
            reason = ""
        else:
            reason = f"{read.name[:40]!r} cannot be the name of a service"
        if reason:
            raise InputFailed(reason, recoverable=False, kind=EVENT)

    async def _secret(self, name: SecretName) -> KnownSecret:
        """Return a secret; one that does not exist is waited for."""
        while True:
            found = await self.secrets.secret(self.reader, name)
            if found.secret is not None or found.names is not None:
                return found
            await self.secrets.changed(self.reader, {name: found.version})


def _secret_name(read: DataRead) -> SecretName | None:
    """Return what a read asks of Vault; None: it asks for something else."""
    if read.kind not in {SECRET, SECRET_NAMES}:
        return None
    return SecretName(read.name, read.kind == SECRET_NAMES)


async def _first(*tasks: asyncio.Task[None]) -> None:
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for one in tasks:
            one.cancel()


class DataReads:
    """What one rendering, of one or more passes, knows of services and variables."""

    def __init__(self, source: TaskData, reads: Iterable[DataRead] = ()) -> None:
        self.readable = source.readable
        self._source = source
        self._asked: dict[DataRead, asyncio.Task[Known]] = {}
        self.ask(reads)

    def ask(self, reads: Iterable[DataRead]) -> bool:
        """Ask for data; returns whether any of it was not asked for before. Raises InputFailed."""
        new = [read for read in reads if read not in self._asked]
        for read in new:
            self._source.check(read)
        if len(self._asked) + len(new) > SERVICES_MAX:
            reason = f"it reads more than {SERVICES_MAX} services"
            raise InputFailed(reason, recoverable=False, kind=EVENT)
        self._asked |= {read: self._begin(read) for read in new}
        return bool(new)

    def known(self) -> dict[DataRead, Known]:
        """Return what is known. Raises what the source raised."""
        return {read: task.result() for read, task in self._asked.items() if task.done()}

    def versions(self) -> dict[DataRead, int]:
        """Return the versions of what is known."""
        done = {read: task for read, task in self._asked.items() if task.done()}
        return {r: one.result().version for r, one in done.items() if one.exception() is None}

    async def renew(self, reads: Collection[DataRead] | None = None) -> None:
        """Ask again for what is known; `reads`: for these alone, the others are not read any more."""
        for read, task in list(self._asked.items()):
            if reads is not None and read not in reads:
                task.cancel()
                del self._asked[read]
            elif task.done():
                self._asked[read] = self._begin(read)
        await self.settle(RENEW_S)

    async def settle(self, within_s: float = AT_ONCE_S) -> None:
        """Wait a moment for what was asked for."""
        if pending := self._pending():
            await asyncio.wait(pending, timeout=within_s)

    async def more(self, lacking: Iterable[DataRead], pause_s: float) -> None:
        """Wait until something that was lacking is there or something known has changed, and then for more of it."""
        if any(self._asked[read].done() for read in lacking):
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
        await self._source.changed(self.versions())

    def close(self) -> None:
        """Ask for nothing any more."""
        for task in self._asked.values():
            task.cancel()

    # ---- inside ----

    def _begin(self, read: DataRead) -> asyncio.Task[Known]:
        return asyncio.get_running_loop().create_task(self._ask(read))

    async def _ask(self, read: DataRead) -> Known:
        try:
            return await self._source.get(read)
        except DataUnusable as err:
            # It may have fewer instances later, or be allowed.
            raise InputFailed(str(err), recoverable=True, kind=EVENT) from err

    def _pending(self) -> set[asyncio.Task[Known]]:
        return {task for task in self._asked.values() if not task.done()}
