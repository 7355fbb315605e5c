"""Performs WatchInputs: follows inputs of tasks that run, and says when another content is in place.

What is in place and what the role knows are kept apart: a change may come while the role begins another run, which does
not hear what was said to the run before. Preparations say here what they made, so that the role hears of each content
once.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from services.agent.backoff import Backoff
from services.agent.executor.data_dir import DataDir
from services.agent.inputs.digests import InputDigests
from services.agent.inputs.input_handler import InputContext, InputHandler, WatchingHandler
from services.agent.inputs.secrets.filled_inputs import FilledInputs
from shared.core.runtime.agent_messages import (
    AgentInput,
    InputChanged,
    TaskInput,
    TaskLaunch,
    TaskNoted,
    WatchInputs,
)

#: A handler that raises is begun again after so long, doubled each time.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
_log = structlog.get_logger()

_Inject = Callable[[AgentInput], None]


class _FollowedTask:
    """One task of an allocation."""

    def __init__(self) -> None:
        self.key = self.run = 0
        self.launch = TaskLaunch()
        self.inject: _Inject | None = None
        #: input -> digest: of what is in place, and what the role knows of it.
        self.current: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.work: dict[str, tuple[TaskInput, asyncio.Task[None]]] = {}


class FollowedInputs:
    """All that are followed on one agent."""

    def __init__(
        self,
        home: DataDir,
        handlers: Mapping[str, InputHandler],
        digests: InputDigests,
        filled: FilledInputs,
    ) -> None:
        self._home = home
        self._filled = filled
        self._handlers = handlers
        self._digests = digests
        #: allocation -> task.
        self._allocs: dict[str, dict[str, _FollowedTask]] = {}
        #: ended, not over yet.
        self._ending: set[asyncio.Task[None]] = set()

    def watch(self, effect: WatchInputs, inject: _Inject) -> None:
        """Follow these inputs of a task, and no others; those already followed continue, and speak of this run."""
        if not effect.inputs and effect.task not in self._allocs.get(effect.alloc_id, {}):
            return
        task = self._task(effect.alloc_id, effect.task)
        is_same_launch = task.launch == effect.launch
        task.key, task.run, task.launch = effect.key, effect.run, effect.launch
        task.inject = inject
        wanted = {one.name: one for one in effect.inputs if self._handler(one) is not None}
        before = {name: work for name, (_, work) in task.work.items()}
        for name, (spec, work) in list(task.work.items()):
            if wanted.get(name) != spec or not is_same_launch or work.done():
                self._end(task, name)
        task.told = dict(effect.digests)
        for name, one in wanted.items():
            if name in task.current:
                self._tell(task, effect.task, name)
            if name not in task.work:
                self._begin(task, self._context(task, effect), one, before.get(name))

    def prepared(self, about: InputContext, wanted: TaskInput, digest: str) -> None:
        """Note what a preparation put in place, as soon as it is there."""
        if self._handler(wanted) is None:
            return
        task = self._task(about.alloc_id, about.task)
        task.current[wanted.name] = task.told[wanted.name] = digest
        if wanted.name in task.work and (one := task.work[wanted.name][0]) == wanted:
            # Made from other data than it was followed for.
            before = task.work[one.name][1]
            self._end(task, one.name)
            said = msgspec.structs.replace(about, note=self._note_of(task, about.task))
            self._begin(task, said, one, before)

    def forget(self, alloc_id: str) -> None:
        """Follow nothing of an allocation that is over."""
        for task in self._allocs.pop(alloc_id, {}).values():
            for name in list(task.work):
                self._end(task, name)

    async def settle(self) -> None:
        """Wait until what is not followed any more does nothing any more."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def close(self) -> None:
        """End all."""
        for alloc_id in list(self._allocs):
            self.forget(alloc_id)
        await self.settle()

    # ---- inside ----

    def _task(self, alloc_id: str, name: str) -> _FollowedTask:
        return self._allocs.setdefault(alloc_id, {}).setdefault(name, _FollowedTask())

    def _handler(self, one: TaskInput) -> WatchingHandler | None:
        found: object = self._handlers.get(one.kind)
        return found if isinstance(found, WatchingHandler) else None

    def _context(self, task: _FollowedTask, effect: WatchInputs) -> InputContext:
        return InputContext(
            key=effect.key,
            alloc_id=effect.alloc_id,
            task=effect.task,
            run=effect.run,
            places=self._home.places(effect.alloc_id, effect.task),
            launch=effect.launch,
            inputs=effect.inputs,
            note=self._note_of(task, effect.task),
        )

    def _note_of(self, task: _FollowedTask, name: str) -> Callable[[str, str], None]:
        def note(kind: str, message: str) -> None:
            if task.inject is not None:
                noted = TaskNoted(key=task.key, task=name, run=task.run, kind=kind, message=message)
                task.inject(noted)

        return note

    def _begin(
        self,
        task: _FollowedTask,
        about: InputContext,
        one: TaskInput,
        before: asyncio.Task[None] | None,
    ) -> None:
        work = self._follow(task, about, one, before)
        name = f"follow {about.alloc_id} {about.task} {one.name}"
        task.work[one.name] = (one, asyncio.get_running_loop().create_task(work, name=name))

    def _end(self, task: _FollowedTask, name: str) -> None:
        _, work = task.work.pop(name)
        work.cancel()
        self._ending.add(work)
        work.add_done_callback(self._ending.discard)

    async def _follow(
        self,
        task: _FollowedTask,
        about: InputContext,
        one: TaskInput,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            # Two that make one input would undo each other's work.
            await asyncio.wait({before})
        handler = self._handler(one)
        assert handler is not None
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                async for content in handler.watch(*await self._filled.fill(about, one)):
                    backoff.reset()
                    task.current[one.name] = self._digests.of(content)
                    self._tell(task, about.task, one.name)
            except Exception as err:  # noqa: BLE001 - a handler may fail in any way; what is in place stays.
                text = self._filled.mask(about.alloc_id, about.task, repr(err))
                _log.warning("input.not_followed", input=one.name, task=about.task, error=text)
            else:
                return
            await asyncio.sleep(backoff.take())

    def _tell(self, task: _FollowedTask, name: str, one: str) -> None:
        """Say what is in place, unless the role knows it."""
        digest = task.current[one]
        if task.told.get(one) != digest and task.inject is not None:
            task.told[one] = digest
            changed = InputChanged(key=task.key, task=name, run=task.run, input=one, digest=digest)
            task.inject(changed)
