"""Templates of tasks: a helper process renders each, the agent writes the file, and again when its data changes.

Decides where sources and destinations are, and who owns the file. Variables of templates with `env` are kept in the
memory of this process alone: what the task makes of its file does not reach the environment of its next run. A
template that waits for services or variables holds no helper, and no place among those that render.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from services.agent.backoff import Backoff
from services.agent.drivers.driver import Driver, ViewingDriver
from services.agent.executor.data_dir import TaskDirs
from services.agent.inputs.input_handler import InputContext, InputFailed
from services.agent.inputs.places import resolve_place
from services.agent.inputs.templates import missing_data
from services.agent.inputs.templates.data_reads import (
    DataReads,
    NoSecrets,
    NoServices,
    NoVariables,
    TaskData,
    readable_variables,
)
from services.agent.inputs.templates.missing_data import MissingData
from services.agent.inputs.templates.render_order import DataRead, RenderAnswer, RenderOrder
from services.agent.inputs.templates.renderer import Renderer
from services.agent.inputs.templates.service_directory import ServiceSource
from services.agent.inputs.templates.settings import EVENT, TemplateSettings
from services.agent.inputs.templates.variable_directory import VariableReader, VariableSource
from services.agent.inputs.thread_writes import write_in_thread
from services.agent.inputs.vault.secret_directory import SecretSource
from services.agent.safe_open import is_swapped, open_below, open_regular, replace_below
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import TEMPLATE, TemplateInput

#: Of a source, and of each file that a template reads.
FILE_BYTES_MAX = 4 << 20
#: A pass of the whole budget takes a few seconds of a slow processor.
RENDER_S = 60.0
#: A later rendering that failed for what may pass is tried again after so long, doubled each time.
RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 60.0

#: (driver, directories of the node) -> the same directories as the task sees them.
TaskView = Callable[[str, TaskDirs], Mapping[str, str]]


def task_view(drivers: Mapping[str, Driver]) -> TaskView:
    """Ask drivers where tasks see their directories; without an answer they see those of the node."""

    def view(name: str, places: TaskDirs) -> Mapping[str, str]:
        driver: object = drivers.get(name)
        return (
            driver.directories(places) if isinstance(driver, ViewingDriver) else places.variables()
        )

    return view


class _Made:
    """What the last rendering of one template was, for one task."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: of its content; empty: this life has not rendered it, or failed to.
        self.digest = b""
        #: services and variables that it read, also when it failed -> their versions.
        self.seen: dict[DataRead, int] = {}
        #: None: it has none yet.
        self.variables: dict[str, str] | None = None


class TemplateHandler:
    """Prepares templates of one data directory."""

    kind = TEMPLATE
    event_kind = EVENT
    begin_kind = ""
    stage = 1
    #: bounded here, so that a start does not wait for those of other tasks in its own time.
    timeout_s: float | None = None

    def __init__(
        self,
        top: Path,
        view: TaskView,
        settings: TemplateSettings | None = None,
        services: ServiceSource | None = None,
        *,
        variables: VariableSource | None = None,
        secrets: SecretSource | None = None,
    ) -> None:
        self._top = top
        self._view = view
        self._settings = settings or TemplateSettings()
        self._services = services or NoServices()
        self._variables = variables or NoVariables()
        self._secrets = secrets or NoSecrets()
        self._renderer = Renderer()
        self._missing = MissingData()
        self._gate = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        #: allocation -> (task, input) -> what its last rendering was.
        self._made: dict[str, dict[tuple[str, str], _Made]] = {}

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Render one template, and write it to its destination; waits without limit for the data that it needs."""
        made = self._of(about, wanted)
        made.digest = b""
        return await self._make(about, wanted, made)

    async def watch(self, about: InputContext, wanted: TaskInput) -> AsyncIterator[bytes]:
        """Render it anew when services or variables that it read change, and at once where this life did not render it.

        A time alone is no change; but the first rendering of a life writes it.
        """
        made = self._of(about, wanted)
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        is_due = not made.digest
        told = ""
        while is_due or made.seen:
            if not is_due:
                await self._next_change(about, wanted, made)
            is_due = False
            try:
                content = await self._make(about, wanted, made)
            except InputFailed as err:
                if str(err) != told:
                    told = str(err)
                    about.note(missing_data.EVENT, f"{err}; what was rendered before stays")
                if err.recoverable:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(backoff.take()):
                            await self._source(about).changed(made.seen)
                    is_due = True
            else:
                told = ""
                backoff.reset()
                yield content

    def environment(self, alloc_id: str, task: str, wanted: TaskInput) -> Mapping[str, str]:
        """Return the variables of a template with `env`. Raises KeyError."""
        if not msgspec.json.decode(wanted.spec, type=TemplateInput).env:
            return {}
        made = self._made.get(alloc_id, {}).get((task, wanted.name))
        if made is None or made.variables is None:
            raise KeyError(wanted.name)
        return made.variables

    def close(self) -> None:
        """End the helpers."""
        self._renderer.close()

    def forget(self, alloc_id: str) -> None:
        """Drop the variables of an allocation that is over."""
        self._made.pop(alloc_id, None)

    # ---- inside ----

    def _of(self, about: InputContext, wanted: TaskInput) -> _Made:
        own = self._made.setdefault(about.alloc_id, {})
        return own.setdefault((about.task, wanted.name), _Made())

    def _source(self, about: InputContext) -> TaskData:
        return TaskData(
            services=self._services,
            variables=self._variables,
            reader=VariableReader(about.alloc_id, about.task),
            readable=readable_variables(about.launch),
            secrets=self._secrets,
        )

    async def _next_change(self, about: InputContext, wanted: TaskInput, made: _Made) -> None:
        """Wait for a change, and for those that come with it."""
        source = self._source(about)
        await source.changed(made.seen)
        spec = msgspec.json.decode(wanted.spec, type=TemplateInput)
        reads = DataReads(source, made.seen)
        try:
            await reads.quiet(*self._settings.wait(spec.wait_min_ns, spec.wait_max_ns))
        finally:
            reads.close()

    async def _make(self, about: InputContext, wanted: TaskInput, made: _Made) -> bytes:
        """Render it as soon as all its data is there. Raises InputFailed."""
        spec = msgspec.json.decode(wanted.spec, type=TemplateInput)
        pause_s, _ = self._settings.wait(spec.wait_min_ns, spec.wait_max_ns)
        source = self._source(about)
        reads = DataReads(source, made.seen or source.named(spec.data))
        try:
            read = None
            while True:
                # One at a time: what a preparation makes is not replaced by what was read before it.
                async with made.lock:
                    await reads.renew(read)
                    answer = await self._attempt(about, wanted, made, reads)
                if answer.is_whole:
                    return _content(answer)
                missing = (
                    ("data that an item of a variable names",)
                    if answer.is_secret
                    else answer.missing
                )
                self._missing.note(about, wanted.name, missing)
                read = answer.read
                await reads.more(answer.lacks, pause_s)
        except InputFailed:
            # Another watch begins with a rendering.
            made.digest, made.seen = b"", reads.versions()
            raise
        finally:
            self._missing.note(about, wanted.name, ())
            reads.close()

    async def _attempt(
        self, about: InputContext, wanted: TaskInput, made: _Made, reads: DataReads
    ) -> RenderAnswer:
        """Render it with what is known, and write it if nothing is missing. Raises InputFailed."""
        spec = msgspec.json.decode(wanted.spec, type=TemplateInput)
        try:
            async with self._gate, asyncio.timeout(RENDER_S):
                view = self._view(spec.driver, about.places)
                destination = self._place(about, spec.destination, view, "destination")
                self._check_unique(about, wanted, destination, view)
                owner = _owner(spec)
                answer = await self._rendered(about, spec, view, reads)
                if not answer.is_whole:
                    return answer
                digest = sha256(_content(answer)).digest()
                if answer.timeless is None or digest != made.digest:
                    await write_in_thread(
                        partial(
                            replace_below,
                            self._top,
                            destination,
                            answer.text,
                            mode=int(spec.perms, 8),
                            owner=owner,
                        )
                    )
        except TimeoutError:
            text = f"{spec.destination}: not rendered within {RENDER_S:.0f} s"
            raise InputFailed(text, recoverable=True, kind=EVENT) from None
        except OSError as err:
            raise _file_failed(spec.destination, err) from err
        known = reads.versions()
        made.seen = {name: known[name] for name in answer.read if name in known}
        made.digest, made.variables = digest, answer.variables
        return answer

    async def _rendered(
        self,
        about: InputContext,
        spec: TemplateInput,
        view: Mapping[str, str],
        reads: DataReads,
    ) -> RenderAnswer:
        source = None
        if spec.source:
            source = await asyncio.to_thread(self._read, about, spec.source, view, "source")
        order = RenderOrder(
            data=spec.data,
            source=source,
            left_delimiter=spec.left_delimiter,
            right_delimiter=spec.right_delimiter,
            error_on_missing_key=spec.error_on_missing_key,
            denied=self._settings.denied,
            reads_files=spec.reads_files,
            is_env=spec.env,
            now_ns=time.time_ns(),
            has_vault=self._secrets.serves(VariableReader(about.alloc_id, about.task)),
        )

        async def read_file(path: str) -> bytes:
            return await asyncio.to_thread(self._read, about, path, view, "file")

        env = {**spec.node, **view, **about.launch.env}
        try:
            return await self._renderer.render(order, env, read_file, reads)
        except InputFailed as err:
            reason = f"{spec.destination}: {err}"
            raise InputFailed(reason, recoverable=err.recoverable, kind=err.kind) from err

    def _place(self, about: InputContext, text: str, view: Mapping[str, str], name: str) -> Path:
        """Find a path below the task's own directory or the shared one. Raises InputFailed."""
        try:
            found = resolve_place(about.places, text, view)
        except ValueError as err:
            raise InputFailed(f"{name} {err}", recoverable=False, kind=EVENT) from err
        tops = (about.places.task, about.places.shared)
        if not any(found.is_relative_to(top) and found != top for top in tops):
            reason = f"{name} {text[:80]!r} leaves the directories of the task"
            raise InputFailed(reason, recoverable=False, kind=EVENT)
        return found

    def _check_unique(
        self, about: InputContext, wanted: TaskInput, destination: Path, view: Mapping[str, str]
    ) -> None:
        """Refuse a destination that an earlier template has, too, once references are filled in."""
        for other in about.inputs:
            if other.name == wanted.name:
                return
            if other.kind == TEMPLATE:
                text = msgspec.json.decode(other.spec, type=TemplateInput).destination
                with contextlib.suppress(ValueError):
                    if resolve_place(about.places, text, view) == destination:
                        reason = f"{text[:80]} is the destination of {other.name}, too"
                        raise InputFailed(reason, recoverable=False, kind=EVENT)

    def _read(self, about: InputContext, text: str, view: Mapping[str, str], name: str) -> bytes:
        """Read a file of the task, through no link. Raises InputFailed."""
        path = self._place(about, text, view, name)
        try:
            directory = open_below(self._top, path.parent)
            try:
                fd = open_regular(path.name, directory, os.O_RDONLY)
            finally:
                os.close(directory)
            with os.fdopen(fd, "rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as err:
            raise _file_failed(f"{name} {text[:80]}", err) from err
        if len(content) > FILE_BYTES_MAX:
            reason = f"{name} {text[:80]} has more than {FILE_BYTES_MAX} bytes"
            raise InputFailed(reason, recoverable=False, kind=EVENT)
        return content


def _content(answer: RenderAnswer) -> bytes:
    """Return what the digest of a rendering is taken of: a time alone is no change."""
    return answer.text if answer.timeless is None else answer.timeless


def _owner(spec: TemplateInput) -> tuple[int, int]:
    """Say whom the file is given to. Raises InputFailed."""
    found = (max(spec.uid, -1), max(spec.gid, -1))
    own = ({-1, os.geteuid()}, {-1, os.getegid(), *os.getgroups()})
    if os.geteuid() and not all(one in known for one, known in zip(found, own, strict=True)):
        reason = f"{spec.destination}: uid and gid of others need an agent that runs as root"
        raise InputFailed(reason, recoverable=False, kind=EVENT)
    return found


def _file_failed(name: str, err: OSError) -> InputFailed:
    step = f"{err.filename}: " if isinstance(err.filename, str) else ""
    text = f"{name}: {step}{err.strerror or err}"
    # A name that is taken by a directory stays taken.
    is_final = is_swapped(err) or isinstance(err, IsADirectoryError)
    return InputFailed(text, recoverable=not is_final, kind=EVENT)
