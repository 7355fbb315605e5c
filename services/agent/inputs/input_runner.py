"""Performs PrepareTask: makes the directories of a task and all inputs that it lacks, some at a time.

What is followed later: `followed_inputs.py`.

Each preparation is one asyncio task with a bound on each input, so that an input that hangs or fails costs its own
task alone. When one fails the others of the same task still finish: what succeeded is not made again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from services.agent.drivers.driver import directories_refused
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.inputs.digests import InputDigests
from services.agent.inputs.followed_inputs import FollowedInputs
from services.agent.inputs.input_handler import (
    SETUP_FAILURE,
    EnvironmentHandler,
    ExpiringHandler,
    InputContext,
    InputFailed,
    InputHandler,
)
from services.agent.inputs.payload import PayloadHandler
from services.agent.inputs.secrets.filled_inputs import FilledInputs, ReferenceHandler, Values
from shared.core.runtime.agent_messages import (
    AgentInput,
    CancelPrepare,
    PrepareTask,
    StartTask,
    TaskInput,
    TaskNoted,
    TaskPrepared,
    TaskPrepareFailed,
    WatchInputs,
)

#: Inputs of one task that are prepared side by side.
AT_ONCE = 3
STOPPED = "the task was stopped"
_log = structlog.get_logger()

_RunKey = tuple[int, str, int]


class InputRunner:
    """One per agent, on its event loop."""

    def __init__(
        self,
        home: DataDir,
        directories: AllocDirs,
        handlers: Mapping[str, InputHandler] | None = None,
    ) -> None:
        self._home = home
        self._directories = directories
        payload = PayloadHandler()
        self._handlers: dict[str, InputHandler] = {payload.kind: payload, **(handlers or {})}
        self._digests = InputDigests(home.top)
        self._filled = FilledInputs(self._handlers)
        self._followed = FollowedInputs(home, self._handlers, self._digests, self._filled)
        self._work: dict[_RunKey, asyncio.Task[None]] = {}
        self._is_closing = False

    def prepare(self, effect: PrepareTask, inject: Callable[[AgentInput], None]) -> None:
        """Begin a preparation; `inject` gets its one answer."""
        name = (effect.key, effect.task, effect.run)

        def note(kind: str, text: str) -> None:
            noted = TaskNoted(
                key=effect.key, task=effect.task, run=effect.run, kind=kind, message=text
            )
            inject(noted)

        for kind, text in self._begun(effect).items():
            note(kind, text)

        async def run() -> None:
            try:
                answer = await self._prepare(effect, note)
            except asyncio.CancelledError:
                answer = _failed(effect, "", STOPPED, recoverable=True)
            finally:
                self._work.pop(name, None)
            if not self._is_closing:
                inject(answer)

        work = run()
        self._work[name] = asyncio.get_running_loop().create_task(work, name=f"inputs {name}")

    def cancel(self, effect: CancelPrepare) -> None:
        """End a preparation; its answer follows."""
        work = self._work.get((effect.key, effect.task, effect.run))
        if work is not None:
            work.cancel()

    def watch(self, effect: WatchInputs, inject: Callable[[AgentInput], None]) -> None:
        """Follow these inputs of a task, and no others; `inject` gets their changes."""
        self._followed.watch(effect, inject)

    def environment(self, effect: StartTask) -> dict[str, str]:
        """Return the variables that inputs of a run hold; of the same name the later one's. Raises KeyError."""
        found: dict[str, str] = {}
        for one in effect.inputs:
            handler: object = self._handlers.get(one.kind)
            if isinstance(handler, EnvironmentHandler):
                found |= handler.environment(effect.alloc_id, effect.task, one)
        return found

    def known_environment(
        self, alloc_id: str, task: str, inputs: Iterable[TaskInput]
    ) -> dict[str, str]:
        """Return the variables that inputs of a task hold in memory; of the same name the later one's."""
        found: dict[str, str] = {}
        for one in inputs:
            handler: object = self._handlers.get(one.kind)
            if isinstance(handler, EnvironmentHandler):
                with contextlib.suppress(KeyError):
                    found |= handler.environment(alloc_id, task, one)
        return found

    def secrets(self, effect: StartTask) -> Values:
        """Return the values of a run's secrets. Raises KeyError."""
        return self._filled.values(effect.alloc_id, effect.task, effect.inputs)

    def known_secrets(self, alloc_id: str, task: str) -> Values:
        """Return the values of a task that are in memory."""
        return self._filled.values(alloc_id, task, ())

    def mask(self, alloc_id: str, task: str, text: str) -> str:
        """Put references in the place of a task's secrets in a text."""
        return self._filled.mask(alloc_id, task, text)

    def forget(self, alloc_id: str) -> None:
        """Drop what is kept in memory of an allocation that is over."""
        self._followed.forget(alloc_id)
        handlers: tuple[object, ...] = tuple(self._handlers.values())
        for handler in handlers:
            if isinstance(handler, EnvironmentHandler | ReferenceHandler):
                handler.forget(alloc_id)

    async def settle(self) -> None:
        """Wait until nothing is made of what is not followed any more."""
        await self._followed.settle()

    async def close(self) -> None:
        """End all preparations; the next life of the agent begins them again."""
        self._is_closing = True
        work = list(self._work.values())
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await self._followed.close()
        for handler in self._handlers.values():
            if (close := getattr(handler, "close", None)) is not None:
                close()

    # ---- inside ----

    def _begun(self, effect: PrepareTask) -> dict[str, str]:
        """Say what begins: kind of event -> names of inputs."""
        found: dict[str, list[str]] = {}
        for one in effect.inputs:
            handler = self._handlers.get(one.kind)
            if handler is not None and handler.begin_kind:
                found.setdefault(handler.begin_kind, []).append(one.name)
        return {kind: ", ".join(names) for kind, names in found.items()}

    async def _prepare(
        self, effect: PrepareTask, note: Callable[[str, str], None]
    ) -> TaskPrepared | TaskPrepareFailed:
        about = InputContext(
            key=effect.key,
            alloc_id=effect.alloc_id,
            task=effect.task,
            run=effect.run,
            places=self._home.places(effect.alloc_id, effect.task),
            launch=effect.launch,
            inputs=effect.inputs,
            note=note,
        )
        try:
            await asyncio.to_thread(
                self._directories.prepare,
                about.places,
                inherit=effect.inherit,
                secrets_mib=effect.launch.secrets_mib,
            )
        except OSError as err:
            refusal = directories_refused(err)
            return _failed(effect, "", str(refusal), recoverable=refusal.recoverable)
        digests: dict[str, str] = {}
        for part in self._parts(about):
            gate = asyncio.Semaphore(AT_ONCE)
            results = await asyncio.gather(*(self._one(about, one, gate) for one in part))
            failed: list[tuple[str, InputFailed]] = []
            for one, found in zip(part, results, strict=True):
                if isinstance(found, InputFailed):
                    failed.append((one.name, found))
                    # One that was over is not there any more.
                    digests.pop(one.name, None)
                else:
                    digests[one.name] = found
            if failed:
                name, first = failed[0]
                return _failed(
                    effect,
                    name,
                    str(first),
                    recoverable=first.recoverable,
                    kind=first.kind,
                    digests=digests,
                )
        return TaskPrepared(key=effect.key, task=effect.task, run=effect.run, digests=digests)

    def _parts(self, about: InputContext) -> Iterator[list[TaskInput]]:
        """Give what is prepared side by side, and last what is over by then."""
        yield from self._stages(about.inputs)
        handlers: list[tuple[TaskInput, object]] = [
            (one, self._handlers.get(one.kind)) for one in about.inputs
        ]
        over = [
            one
            for one, handler in handlers
            if isinstance(handler, ExpiringHandler) and handler.is_over(about, one)
        ]
        if over:
            yield over

    def _stages(self, inputs: Iterable[TaskInput]) -> list[list[TaskInput]]:
        """Split inputs into those that are prepared side by side, in order."""
        found: dict[int, list[TaskInput]] = {}
        for one in inputs:
            handler = self._handlers.get(one.kind)
            found.setdefault(0 if handler is None else handler.stage, []).append(one)
        return [found[stage] for stage in sorted(found)]

    async def _one(
        self, about: InputContext, wanted: TaskInput, gate: asyncio.Semaphore
    ) -> str | InputFailed:
        """Prepare one, and return its digest."""
        handler = self._handlers.get(wanted.kind)
        if handler is None:
            text = f"this agent has no handler for inputs of kind {wanted.kind!r}"
            return InputFailed(text, recoverable=False)
        try:
            filled, one = await self._filled.fill(about, wanted)
        except InputFailed as err:
            return err
        try:
            if handler.timeout_s is None:
                # What waits for data of others must not hold up the rest.
                content = await handler.prepare(filled, one)
            else:
                async with gate, asyncio.timeout(handler.timeout_s):
                    content = await handler.prepare(filled, one)
        except InputFailed as err:
            return self._filled.shown(about, wanted, err)
        except TimeoutError:
            text = f"not prepared within {handler.timeout_s:.0f} s"
            return InputFailed(text, recoverable=True, kind=handler.event_kind)
        except Exception as err:  # noqa: BLE001 - a handler may fail in any way; its task alone pays.
            failed = InputFailed(repr(err), recoverable=True, kind=handler.event_kind)
            failed = self._filled.shown(about, wanted, failed)
            _log.warning("input.failed", input=wanted.name, task=about.task, error=str(failed))
            return failed
        digest = self._digests.of(content)
        self._followed.prepared(about, wanted, digest)
        return digest


def refused(effect: PrepareTask, reason: str) -> TaskPrepareFailed:
    """Answer a preparation that may not begin now."""
    return _failed(effect, "", reason, recoverable=True)


def _failed(
    effect: PrepareTask,
    name: str,
    reason: str,
    *,
    recoverable: bool,
    kind: str = SETUP_FAILURE,
    digests: Mapping[str, str] | None = None,
) -> TaskPrepareFailed:
    return TaskPrepareFailed(
        key=effect.key,
        task=effect.task,
        run=effect.run,
        input=name,
        reason=reason,
        recoverable=recoverable,
        kind=kind,
        digests=dict(digests or {}),
    )
