"""An agent's end of followed templates: a data directory, services that a test fills in, and what the role hears."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.inputs.input_runner import InputRunner
from services.agent.inputs.templates.handler import TemplateHandler
from services.agent.inputs.templates.service_directory import KnownNames, KnownService
from services.agent.inputs.templates.settings import TemplateSettings
from services.agent.inputs.templates.variable_directory import VariableSource
from shared.core.runtime.agent_messages import (
    InputChanged,
    PrepareTask,
    TaskInput,
    TaskLaunch,
    TaskNames,
    TaskNoted,
    TaskPrepared,
    TaskPrepareFailed,
    WatchInputs,
)
from shared.core.runtime.input_specs import TemplateInput
from shared.gotemplate.data import NamedInstance, ServiceName
from tests.bounds import level
from tests.fixed_variables import FixedVariables

ALLOC = "a" * 36
#: A template that says nothing waits for no further changes.
AT_ONCE = TemplateSettings(wait_min=0.0, wait_max=0.0)


class Directory:
    """A `ServiceSource` that a test fills."""

    def __init__(self) -> None:
        self.known: dict[str, KnownService | KnownNames] = {}
        self.asked: list[str] = []
        self._version = 0
        self._changed = asyncio.Event()

    def put(self, name: str, *addresses: str, tags: tuple[str, ...] = ()) -> None:
        """A service has these instances now."""
        instances = tuple(
            NamedInstance(id=f"{name}-{at}", name=name, address=one, port=80, tags=tags)
            for at, one in enumerate(addresses)
        )
        self._version += 1
        self._put(name, KnownService(self._version, instances))

    def put_names(self, *names: str) -> None:
        """These are all services."""
        self._version += 1
        self._put("", KnownNames(self._version, tuple(ServiceName(one) for one in names)))

    def _put(self, name: str, one: KnownService | KnownNames) -> None:
        self.known[name] = one
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, name: str) -> Any:
        self.asked.append(name)
        while name not in self.known:
            await self._changed.wait()
        return self.known[name]

    async def service(self, name: str) -> KnownService:
        """The instances of a service."""
        found: KnownService = await self._wait(name)
        return found

    async def services(self) -> KnownNames:
        """The list of all services."""
        found: KnownNames = await self._wait("")
        return found

    async def changed(self, seen: Any) -> None:
        """Return when one has another version."""
        while all(self.known[name].version == version for name, version in seen.items()):
            await self._changed.wait()


class FollowedNode:
    """One task whose templates are prepared and followed."""

    def __init__(self, top: Path, settings: TemplateSettings = AT_ONCE) -> None:
        self.home = DataDir(top, "n1")
        self.services = Directory()
        self.variables = FixedVariables()
        #: instead of them.
        self.source: VariableSource = self.variables
        self.job = "web"
        self.settings = settings
        self.told: list[Any] = []
        self.env: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a life of the agent."""
        directories = AllocDirs(self.home.top, memory=False)
        self.places = self.home.places(ALLOC, "main")
        self.handler = TemplateHandler(
            self.home.top,
            lambda _driver, places: places.variables(),
            self.settings,
            self.services,
            variables=self.source,
        )
        self.runner = InputRunner(self.home, directories, {self.handler.kind: self.handler})

    async def restart(self) -> None:
        """The agent ends, and another life of it begins."""
        await self.runner.close()
        self.begin()

    async def close(self) -> None:
        """End."""
        await self.runner.close()
        self.home.close()

    def launch(self) -> TaskLaunch:
        """What the task is started with."""
        names = TaskNames(job=self.job, group="g", task="main")
        return TaskLaunch(env=dict(self.env), names=names)

    def prepare(self, *inputs: TaskInput, run: int = 1) -> None:
        """Begin a preparation."""
        effect = PrepareTask(
            key=7, alloc_id=ALLOC, task="main", run=run, launch=self.launch(), inputs=inputs
        )
        self.runner.prepare(effect, self.told.append)

    async def prepared(self, *inputs: TaskInput, run: int = 1) -> dict[str, str]:
        """Prepare, and return the digests."""
        self.prepare(*inputs, run=run)
        answer = await self.answer(run)
        assert isinstance(answer, TaskPrepared), answer
        return answer.digests

    async def answer(self, run: int = 1) -> TaskPrepared | TaskPrepareFailed:
        """The answer to a preparation."""

        def found() -> Any:
            kinds = (TaskPrepared, TaskPrepareFailed)
            return next((o for o in self.told if isinstance(o, kinds) and o.run == run), None)

        answer: TaskPrepared | TaskPrepareFailed = await level(found, lambda: self.told)
        return answer

    def watch(self, *inputs: TaskInput, digests: dict[str, str], run: int = 1) -> None:
        """Follow these inputs."""
        effect = WatchInputs(
            key=7,
            alloc_id=ALLOC,
            task="main",
            run=run,
            launch=self.launch(),
            inputs=inputs,
            digests=digests,
        )
        self.runner.watch(effect, self.told.append)

    async def followed(self, *inputs: TaskInput) -> dict[str, str]:
        """Prepare and follow; returns the digests."""
        digests = await self.prepared(*inputs)
        self.watch(*inputs, digests=digests)
        return digests

    def changes(self) -> list[InputChanged]:
        """Changes told so far."""
        return [one for one in self.told if isinstance(one, InputChanged)]

    def notes(self) -> list[str]:
        """Messages of events so far."""
        return [one.message for one in self.told if isinstance(one, TaskNoted)]

    def path(self, name: str = "x") -> Path:
        """A file below `local/`."""
        return self.places.task / "local" / name

    async def reads(self, text: str, name: str = "x") -> None:
        """Wait until the file holds this text."""
        path = self.path(name)
        await level(
            lambda: path.exists() and path.read_text() == text,
            lambda: (path.read_text() if path.exists() else None, self.told),
        )


def template(data: str = "", at: int = 0, **fields: Any) -> TaskInput:
    """A template with the destination `local/x`."""
    spec = TemplateInput(**{"data": data, "destination": "local/x", **fields})
    return TaskInput(
        name=f"template[{at}]", kind="template", spec=msgspec.Raw(msgspec.json.encode(spec))
    )


def addresses(*names: str) -> str:
    """A template that lists the addresses of services."""
    return "".join(
        '{{ range nomadService "%s" }}{{ .Address }} {{ end }}' % name  # noqa: UP031 - braces.
        for name in names
    )
