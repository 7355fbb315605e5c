"""Templates of tasks: a helper process renders each, the agent writes the file.

Decides where sources and destinations are, and who owns the file. Variables of templates with `env` are kept in the
memory of this process alone: what the task makes of its file does not reach the environment of its next run.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from services.agent.drivers.driver import Driver, ViewingDriver
from services.agent.executor.data_dir import TaskDirs
from services.agent.inputs.forked_helpers import Helper, Helpers
from services.agent.inputs.input_handler import InputContext, InputFailed
from services.agent.inputs.places import resolve_place
from services.agent.inputs.templates.render_order import FilesGiven, RenderAnswer, RenderOrder
from services.agent.inputs.templates.service_directory import ServiceSource
from services.agent.inputs.templates.settings import TemplateSettings
from services.agent.safe_open import is_swapped, open_below, open_regular, replace_below
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import TEMPLATE, TemplateInput

EVENT = "Template Failed"
#: Of a source, and of each file that a template reads.
FILE_BYTES_MAX = 4 << 20
FILES_BYTES_MAX = 8 << 20
#: A pass of the whole budget takes a few seconds of a slow processor.
RENDER_S = 60.0
#: A line holds the text in base 64.
_LINE_BYTES_MAX = 32 << 20
_HELPER = "from services.agent.inputs.templates.render_helper import main; main()"

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
        *,
        services: ServiceSource | None = None,
    ) -> None:
        self._top = top
        self._services = services
        self._view = view
        self._denied = (settings or TemplateSettings()).denied
        self._helpers = Helpers(_HELPER)
        self._gate = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        #: allocation -> (task, input) -> variables.
        self._variables: dict[str, dict[tuple[str, str], dict[str, str]]] = {}

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Render one template, and write it to its destination."""
        spec = msgspec.json.decode(wanted.spec, type=TemplateInput)
        try:
            async with self._gate, asyncio.timeout(RENDER_S):
                return await self._prepare(about, wanted, spec)
        except TimeoutError:
            text = f"{spec.destination}: not rendered within {RENDER_S:.0f} s"
            raise InputFailed(text, recoverable=True, kind=EVENT) from None

    def environment(self, alloc_id: str, task: str, wanted: TaskInput) -> Mapping[str, str]:
        """Return the variables of a template with `env`. Raises KeyError."""
        if not msgspec.json.decode(wanted.spec, type=TemplateInput).env:
            return {}
        try:
            return self._variables[alloc_id][task, wanted.name]
        except KeyError:
            raise KeyError(wanted.name) from None

    def close(self) -> None:
        """End the helpers."""
        self._helpers.close()

    def forget(self, alloc_id: str) -> None:
        """Drop the variables of an allocation that is over."""
        self._variables.pop(alloc_id, None)

    # ---- inside ----

    async def _prepare(self, about: InputContext, wanted: TaskInput, spec: TemplateInput) -> bytes:
        view = self._view(spec.driver, about.places)
        destination = self._place(about, spec.destination, view, "destination")
        self._check_unique(about, wanted, destination, view)
        owner = _owner(spec)
        source = None
        if spec.source:
            source = await asyncio.to_thread(self._read, about, spec.source, view, "source")
        order = RenderOrder(
            data=spec.data,
            source=source,
            left_delimiter=spec.left_delimiter,
            right_delimiter=spec.right_delimiter,
            error_on_missing_key=spec.error_on_missing_key,
            denied=self._denied,
            reads_files=spec.reads_files,
            is_env=spec.env,
            env={**spec.node, **view, **about.launch.env},
            now_ns=time.time_ns(),
        )
        answer = await self._rendered(about, spec, order, view)
        try:
            await asyncio.to_thread(
                replace_below,
                self._top,
                destination,
                answer.text,
                mode=int(spec.perms, 8),
                owner=owner,
            )
        except OSError as err:
            raise _file_failed(spec.destination, err) from err
        if spec.env:
            own = self._variables.setdefault(about.alloc_id, {})
            own[about.task, wanted.name] = answer.variables
        return answer.text

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

    async def _rendered(
        self,
        about: InputContext,
        spec: TemplateInput,
        order: RenderOrder,
        view: Mapping[str, str],
    ) -> RenderAnswer:
        """Have one helper render it, and give it the files that it asks for. Raises InputFailed."""
        left = FILES_BYTES_MAX
        try:
            async with self._helpers.begin(_LINE_BYTES_MAX) as helper:
                answer = await _asked(helper, order)
                while answer is not None and answer.missing:
                    files: dict[str, bytes] = {}
                    for one in answer.missing:
                        files[one] = await asyncio.to_thread(self._read, about, one, view, "file")
                        left -= len(files[one])
                        if left < 0:
                            reason = (
                                f"{spec.destination}: its files have more than"
                                f" {FILES_BYTES_MAX} bytes"
                            )
                            raise InputFailed(reason, recoverable=False, kind=EVENT)
                    answer = await _asked(helper, FilesGiven(files=files))
                if answer is None:
                    words = await helper.last_words()
                    reason = f"{spec.destination}: the render helper ended: {words}"
                    raise InputFailed(reason, recoverable=True, kind=EVENT)
        except OSError as err:
            reason = f"{spec.destination}: no render helper: {err.strerror or err}"
            raise InputFailed(reason, recoverable=True, kind=EVENT) from err
        if answer.fault:
            reason = f"{spec.destination}: {answer.fault}"
            raise InputFailed(reason, recoverable=False, kind=EVENT)
        return answer


async def _asked(helper: Helper, order: RenderOrder | FilesGiven) -> RenderAnswer | None:
    """Ask a helper one thing; None: it ended."""
    line = await helper.ask(msgspec.json.encode(order))
    try:
        return msgspec.json.decode(line, type=RenderAnswer)
    except ValueError:
        return None


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
