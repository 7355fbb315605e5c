"""Has a helper process render a template, and gives it the data that it asks for.

Each rendering has a helper of its own: one that served the templates of two tasks could carry what it learned from the
one into the other. But a rendering depends on nothing except what its helper was given: the order, variables, services.
A second one that would be given the same is the same, of whatever task: it is kept, and a thousand templates that
follow one service are rendered once. Variables of the environment that a template does not read were not given, and do
not count. What was made of files, of the clock or of variables is not kept: the next task may not read them.
"""

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import sha256

import msgspec

from services.agent.inputs.forked_helpers import Helper, Helpers
from services.agent.inputs.input_handler import InputFailed
from services.agent.inputs.templates.data_reads import DataReads, Known
from services.agent.inputs.templates.render_order import (
    VARIABLE,
    DataGiven,
    DataRead,
    RenderAnswer,
    RenderOrder,
)
from services.agent.inputs.templates.service_directory import KnownNames, KnownService
from services.agent.inputs.templates.settings import EVENT
from services.agent.inputs.templates.variable_directory import KnownVariable
from services.agent.inputs.vault.secret_directory import KnownSecret
from shared.gotemplate.data import NamedInstance, ServiceName, Variable, VaultSecret

FILES_BYTES_MAX = 8 << 20
#: Of the services and variables that one rendering is given, as JSON.
SERVICES_BYTES_MAX = 8 << 20
#: A line holds the text in base 64, twice where it reads the clock.
_LINE_BYTES_MAX = 32 << 20
_HELPER = "from services.agent.inputs.templates.render_helper import main; main()"
_KEPT_MAX = 16
_KEPT_BYTES_MAX = 1 << 20
#: What a text has that reads variables.
_READS_VARIABLES = "nomadVar"
_HIDDEN = "an item of a variable names data that cannot be had"
#: Variables that a template names: given at once, which spares a pass. Others are given when it asks for them.
_NAMED = re.compile(r"""\b(?:env|mustEnv|envOrDefault)\s+["`]([^"`\n]{1,200})["`]""")

#: Reads a file of the task. Raises InputFailed.
ReadFile = Callable[[str], Awaitable[bytes]]


class _Kept(msgspec.Struct, frozen=True):
    """A rendering, and the variables that its helper was given."""

    env: dict[str, str | None]
    answer: RenderAnswer


class _Given:
    """What one helper was given so far. Each method raises InputFailed."""

    def __init__(self, env: Mapping[str, str], read_file: ReadFile, reads: DataReads) -> None:
        self._env = env
        self._read_file = read_file
        self._reads = reads
        self.env: dict[str, str | None] = {}
        self.versions: dict[DataRead, int] = {}
        self.has_files = self.has_items = False
        self._files_left = FILES_BYTES_MAX
        self._services_left = SERVICES_BYTES_MAX

    async def more(self, answer: RenderAnswer) -> DataGiven | None:
        """Collect what a pass lacks and can be had; None: it lacks data that is not known."""
        if answer.is_whole:
            return None
        try:
            if self._reads.ask(answer.lacks):
                await self._reads.settle()
            given = self._data(answer.env, answer.lacks, await self._files(answer.files))
        except InputFailed as err:
            if not answer.is_secret:
                raise
            raise InputFailed(_HIDDEN, recoverable=err.recoverable, kind=err.kind) from None
        return None if given == DataGiven() else given

    def first(self, names: Iterable[str]) -> DataGiven:
        """Collect what a template is expected to ask for."""
        names = tuple(names)
        try:
            return self._data(names, self._reads.known(), {})
        except InputFailed:
            # Too much of what it read before: it may read less now.
            self.versions.clear()
            self._services_left = SERVICES_BYTES_MAX
            return self._data(names, (), {})

    async def _files(self, paths: Iterable[str]) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for path in paths:
            files[path] = await self._read_file(path)
            self.has_files = True
            self._files_left -= len(files[path])
            if self._files_left < 0:
                raise _final(f"its files have more than {FILES_BYTES_MAX} bytes")
        return files

    def _data(
        self, env: Iterable[str], reads: Iterable[DataRead], files: dict[str, bytes]
    ) -> DataGiven:
        known = self._reads.known()
        found = {read: known[read] for read in reads if read in known}
        self.versions |= {read: one.version for read, one in found.items()}
        variables = {name: self._env.get(name) for name in env}
        self.env |= variables
        given = msgspec.structs.replace(_as_data(found), env=variables)
        self.has_items = self.has_items or bool(given.variables or given.secrets)
        if found:
            self._services_left -= len(msgspec.json.encode(given))
            if self._services_left < 0:
                raise _final(f"its services have more than {SERVICES_BYTES_MAX} bytes")
        return msgspec.structs.replace(given, files=files)


def _as_data(found: Mapping[DataRead, Known]) -> DataGiven:
    services: dict[str, tuple[NamedInstance, ...]] = {}
    names: tuple[ServiceName, ...] | None = None
    variables: dict[str, Variable] = {}
    metas: dict[str, Variable | None] = {}
    secrets: dict[str, VaultSecret] = {}
    secret_names: dict[str, tuple[str, ...]] = {}
    for read, one in found.items():
        match one:
            case KnownService():
                services[read.name] = one.instances
            case KnownNames():
                names = one.names
            case KnownSecret():
                if one.secret is not None:
                    secrets[read.name] = one.secret
                if one.names is not None:
                    secret_names[read.name] = one.names
            case KnownVariable() if read.kind == VARIABLE and one.variable is not None:
                variables[read.name] = one.variable
            case KnownVariable():
                # Its items are not asked for.
                meta = one.variable and msgspec.structs.replace(one.variable, items={})
                metas[read.name] = meta
    return DataGiven(
        services=services,
        names=names,
        variables=variables,
        metas=metas,
        secrets=secrets,
        secret_names=secret_names,
    )


class Renderer:
    """Renders the templates of one agent."""

    def __init__(self) -> None:
        self._helpers = Helpers(_HELPER)
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    async def render(
        self,
        order: RenderOrder,
        env: Mapping[str, str],
        read_file: ReadFile,
        reads: DataReads,
    ) -> RenderAnswer:
        """Render it with what is known; the answer may lack data. Raises InputFailed."""
        given = _Given(env, read_file, reads)
        text = order.data if order.source is None else order.source.decode(errors="replace")
        if _READS_VARIABLES in text:
            order = msgspec.structs.replace(order, readable=reads.readable)
        first = given.first(_NAMED.findall(text))
        if (kept := self._find(order, reads.versions(), env)) is not None:
            return kept
        try:
            async with self._helpers.begin(_LINE_BYTES_MAX) as helper:
                answer = await _asked(helper, msgspec.structs.replace(order, given=first))
                while answer is not None and (more := await given.more(answer)) is not None:
                    answer = await _asked(helper, more)
                if answer is None:
                    words = "" if given.has_items else f": {await helper.last_words()}"
                    reason = f"the render helper ended{words}"
                    raise InputFailed(reason, recoverable=True, kind=EVENT)
        except OSError as err:
            reason = f"no render helper: {err.strerror or err}"
            raise InputFailed(reason, recoverable=True, kind=EVENT) from err
        if answer.fault:
            raise _final(answer.fault)
        if answer.is_whole and answer.timeless is None and not (given.has_files or given.has_items):
            self._keep(order, given, answer)
        return answer

    def close(self) -> None:
        """End the helpers."""
        self._helpers.close()

    # ---- what is kept ----

    def _find(
        self, order: RenderOrder, versions: Mapping[DataRead, int], env: Mapping[str, str]
    ) -> RenderAnswer | None:
        one = self._kept.get(_name(order, versions))
        if one is None or any(env.get(name) != value for name, value in one.env.items()):
            return None
        return one.answer

    def _keep(self, order: RenderOrder, given: _Given, answer: RenderAnswer) -> None:
        if len(answer.text) > _KEPT_BYTES_MAX:
            return
        name = _name(order, given.versions)
        # The same template with other variables takes the place of an earlier one.
        self._kept[name] = _Kept(given.env, answer)
        self._kept.move_to_end(name)
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)


def _name(order: RenderOrder, versions: Mapping[DataRead, int]) -> bytes:
    """Name all that a helper is given but variables; the time is not part of it, for who reads it is not kept."""
    fixed = msgspec.structs.replace(order, now_ns=0)
    return sha256(msgspec.json.encode((fixed, sorted(versions.items())))).digest()


def _final(reason: str) -> InputFailed:
    return InputFailed(reason, recoverable=False, kind=EVENT)


async def _asked(helper: Helper, order: RenderOrder | DataGiven) -> RenderAnswer | None:
    """Ask a helper one thing; None: it ended."""
    line = await helper.ask(msgspec.json.encode(order))
    try:
        return msgspec.json.decode(line, type=RenderAnswer)
    except ValueError:
        return None
