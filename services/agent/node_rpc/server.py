"""Node RPC server: answers requests of operators on `hands.<node>.<verb>` from drivers and files.

`restart` and `signal` go to the role; the rest is done here, each request in a task of its own, with a limit on
concurrent requests. Next: `stream.py`, `files.py`; the role's
part is `tasks/operator_orders.py`.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from schemas import node_rpc
from schemas.base import Wire
from schemas.bounds import bounded_decoder
from schemas.jobs import ErrorDetail
from services.agent.drivers.driver import Driver, DriverRun, ExecSession, TaskUsage
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.executor.executor import TaskExecutor
from services.agent.executor.log_reader import TaskLogReader
from services.agent.executor.log_rotation import OpenLog
from services.agent.executor.usage_sampler import measure_all
from services.agent.node_rpc import files
from services.agent.node_rpc.action import ActionRecord, action_words, asker
from services.agent.node_rpc.open_streams import OpenStreams
from services.agent.node_rpc.stream import FrameSender
from services.agent.safe_open import open_below
from services.agent.tasks.actions import ActionCommand
from services.agent.tasks.operator_orders import ORDER_VERBS
from shared.bus.connection.frame_parser import MessageHandler
from shared.bus.connection.nats_client import BusClient
from shared.core.runtime.failures import describe_failure
from shared.core.runtime.messages import Listen
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_known_keys, require_unique_keys
from shared.protocol import subjects

#: Streams at a time, and everything else.
STREAMS_MAX = 64
REQUESTS_MAX = 64
#: A driver's word is awaited this long.
DRIVER_S = 15.0
#: Bytes of a log's tail that are gathered at the most.
TAIL_BYTES_MAX = 8 << 20
TASKS_MAX = 2_000
#: Between two looks at what runs use.
_SAMPLE_S = 0.25
_POLL_S = 0.2
#: Output that was on its way when the task ended has so long.
_LINGER_S = 1.0
#: Where an answer may go: the bus renames the asker's own reply subject on its way between accounts.
_REPLIES = (b"_R_.", b"_INBOX.")
#: Not the loop's own: that makes the directories of whatever starts.
_pool = ThreadPoolExecutor(8, "hands")
_log = structlog.get_logger()
T = TypeVar("T")


class RoleReads(Protocol):
    """What is read of the agent's role: nothing of it changes the role."""

    def action(self, ask: node_rpc.ActionAsk) -> ActionCommand:
        """Find the command of an action. Raises CommandInvalid."""
        ...

    def asked(self, alloc_id: str, task: str) -> tuple[int, int]:
        """Return what the job asks for a task: MHz and MiB; zeros where that is not known."""
        ...

    def core_mhz(self) -> int:
        """Return the clock of a core of this node; 0: not known."""
        ...


class NodeRpcServer:
    """One per agent. The shell delivers messages to `carry`; `executor` returns the executor."""

    def __init__(
        self,
        *,
        node_id: str,
        home: DataDir,
        directories: AllocDirs,
        executor: Callable[[], TaskExecutor],
        role: RoleReads,
    ) -> None:
        self._node_id = node_id
        self._top = home.top
        self._home = home
        self._directories = directories
        self._executor = executor
        self._role = role
        self._streams = OpenStreams(node_id, STREAMS_MAX)
        self._work: set[asyncio.Task[None]] = set()

    async def carry(self, bus: BusClient, source: Listen, deliver: MessageHandler) -> None:
        """Listen; orders to tasks are handed to the role."""
        await bus.listen(source.subject, partial(self._take, bus, deliver))

    def _take(self, bus: BusClient, deliver: MessageHandler, *message: bytes) -> None:
        subject, reply, headers, data = message
        verb = subjects.last_token(subject.decode(errors="replace"))
        if verb in ORDER_VERBS:
            deliver(subject, reply, headers, data)
        elif reply.startswith(_REPLIES):
            self._begin(verb, data, partial(_publish, bus, reply.decode()), asker(headers))
        elif verb == "session" and not reply:
            # Acknowledgements of a reader need no answer.
            self._begin(verb, data, lambda _: True)

    def _begin(self, verb: str, data: bytes, answer: Callable[[Wire], bool], who: str = "") -> None:
        try:
            require_unique_keys(data)
            if verb in _REQUESTS:
                require_known_keys(data, _REQUESTS[verb])
            if verb == "session":
                self._streams.take(bounded_decoder(node_rpc.SessionInput).decode(data))
                answer(node_rpc.SessionAnswer())
            elif verb == "logs":
                logs = bounded_decoder(node_rpc.LogsAsk).decode(data)
                self._streams.open(logs.session, partial(self._logs, logs), answer)
            elif verb == "exec":
                command = bounded_decoder(node_rpc.ExecAsk).decode(data)
                self._streams.open(command.session, partial(self._exec, command), answer)
            elif verb == "action":
                action = bounded_decoder(node_rpc.ActionAsk).decode(data)
                self._streams.open(action.session, partial(self._action, action, who), answer)
            else:
                self._ask(verb, data, answer)
        except CommandInvalid as fault:
            answer(_refused(verb, fault.code, fault.message, fault.path))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
            answer(_refused(verb, "invalid", str(err)))
        except Exception as err:  # noqa: BLE001 - no request ends an agent, whatever is raised.
            answer(_refused(verb, "invalid", describe_failure(err)))

    # ---- one answer ----

    def _ask(self, verb: str, data: bytes, answer: Callable[[Wire], bool]) -> None:
        if len(self._work) >= REQUESTS_MAX:
            raise CommandInvalid(
                "unavailable", f"node {self._node_id}: too many concurrent requests"
            )
        work: Awaitable[Wire]
        if verb == "stats":
            work = self._stats(bounded_decoder(node_rpc.StatsAsk).decode(data or b"{}"))
        elif verb in _FILE_VERBS:
            ask = bounded_decoder(node_rpc.FilesAsk).decode(data)
            work = _in_thread(_FILE_VERBS[verb], self._top, ask)
        else:
            known = ", ".join(subjects.NODE_RPC_VERBS)
            raise CommandInvalid("invalid", f"unknown verb {verb!r}; expected one of {known}")
        self._spawn(self._answered(verb, work, answer))

    async def _answered(
        self, verb: str, work: Awaitable[Wire], answer: Callable[[Wire], bool]
    ) -> None:
        try:
            said = await work
        except CommandInvalid as fault:
            said = _refused(verb, fault.code, fault.message, fault.path)
        except Exception as err:  # noqa: BLE001 - task files may cause any error; it is answered.
            said = _refused(verb, "failed", repr(err))
        if not answer(said):
            answer(_refused(verb, "failed", "response exceeds the maximum message size"))

    async def _stats(self, ask: node_rpc.StatsAsk) -> node_rpc.StatsAnswer:
        runs = self._executor().runs(ask.alloc_id)[:TASKS_MAX]
        before = await measure_all(runs)
        await asyncio.sleep(_SAMPLE_S)
        after = await measure_all(runs)
        disk = self._executor().disk_mib()
        if ask.alloc_id:
            found = await _in_thread(self._directories.measure, ask.alloc_id)
            disk = {ask.alloc_id: found.used_mib}
        tasks = [
            self._asked(_task_use(run, driver, *pair))
            for (driver, _, run), pair in zip(runs, zip(before, after, strict=True), strict=True)
        ]
        tasks.sort(key=lambda one: (one.alloc_id, one.task))
        if ask.history and not ask.alloc_id:
            raise CommandInvalid("invalid", "history is of one allocation", "alloc_id")
        history = self._executor().usage.histories(ask.alloc_id) if ask.history else ()
        return node_rpc.StatsAnswer(
            node_id=self._node_id,
            tasks=tuple(tasks),
            disk_mib=disk,
            core_mhz=self._role.core_mhz(),
            history=history,
        )

    def _asked(self, one: node_rpc.TaskUse) -> node_rpc.TaskUse:
        cpu_mhz, memory_mib = self._role.asked(one.alloc_id, one.task)
        return msgspec.structs.replace(one, asked_cpu_mhz=cpu_mhz, asked_memory_mib=memory_mib)

    # ---- streams ----

    async def _logs(self, ask: node_rpc.LogsAsk, stream: FrameSender) -> None:
        if ask.stream not in ("stdout", "stderr"):
            raise CommandInvalid("invalid", f"{ask.stream!r} is not stdout or stderr", "stream")
        await _in_thread(files.stat_file, self._top, node_rpc.FilesAsk(alloc_id=ask.alloc_id))
        places = self._home.places(ask.alloc_id, ask.task)
        path = places.stdout if ask.stream == "stdout" else places.stderr
        fd = await self._log_directory(path, ask, stream)
        if fd < 0:
            return
        try:
            await _copy(TaskLogReader(OpenLog(fd, path.name)), ask, stream)
        finally:
            os.close(fd)

    async def _log_directory(self, path: Path, ask: node_rpc.LogsAsk, stream: FrameSender) -> int:
        """Open where a log is, waiting for it as a follower; -1: the reader waits no longer."""
        while True:
            # Read before looking: what is there once the reader wants no more is still given.
            last = stream.is_ending
            with contextlib.suppress(OSError):
                fd = open_below(self._top, path.parent)
                if os.access(path.name, os.F_OK, dir_fd=fd, follow_symlinks=False):
                    return fd
                os.close(fd)
            if not ask.follow:
                text = f"task {ask.task!r} has no {ask.stream} yet or does not exist"
                raise CommandInvalid("not_found", text, "task")
            if last:
                return -1
            await asyncio.sleep(_POLL_S)

    async def _exec(self, ask: node_rpc.ExecAsk, stream: FrameSender) -> int:
        driver, handle, run = self._running(ask.alloc_id, ask.task)
        if not ask.command or not ask.command[0]:
            raise CommandInvalid("invalid", "command is empty", "command")
        if any("\0" in word for word in ask.command):
            raise CommandInvalid("invalid", "command must not contain NUL bytes", "command")
        _log.info("exec.begun", alloc=ask.alloc_id, task=ask.task, command=ask.command[0][:100])
        try:
            return await self._run_beside((driver, handle, run), ask.command, ask, stream)
        finally:
            _log.info("exec.ended", alloc=ask.alloc_id, task=ask.task)

    async def _action(self, ask: node_rpc.ActionAsk, who: str, stream: FrameSender) -> int:
        found = self._role.action(ask)
        driver, handle, run = self._running(ask.alloc_id, found.task)
        executor = self._executor()
        variables, secrets = executor.held_values(run, found.inputs)
        words = action_words(found, driver, run, variables=variables, secrets=secrets)
        record = ActionRecord(ask.action, run, who)
        async with record.keep(executor.note):
            code = await self._run_beside((driver, handle, run), words, ask, stream)
            record.exit_code = code
        return code

    async def _run_beside(
        self,
        running: tuple[Driver, Any, DriverRun],
        command: tuple[str, ...],
        ask: node_rpc.ExecAsk | node_rpc.ActionAsk,
        stream: FrameSender,
    ) -> int:
        """Run a command in a task until it or the task ends; returns its exit code. Raises CommandInvalid."""
        driver, handle, run = running
        session = await asyncio.wait_for(driver.exec_stream(handle, command, tty=ask.tty), DRIVER_S)
        pumping = asyncio.ensure_future(_forward_input(session, stream))
        talking = asyncio.ensure_future(_forward_output(session, ask, stream))
        ending = asyncio.ensure_future(self._ended(run))
        try:
            await asyncio.wait({talking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not talking.done():
                await asyncio.wait({talking}, timeout=_LINGER_S)
            if not talking.done():
                raise CommandInvalid(
                    "gone", f"task {run.task!r} ended and its command was terminated"
                )
            return talking.result()
        finally:
            for task in (pumping, talking, ending):
                task.cancel()
            await asyncio.gather(pumping, talking, ending, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(session.close(), DRIVER_S)

    def _running(self, alloc_id: str, task: str) -> tuple[Driver, Any, DriverRun]:
        runs = self._executor().runs(alloc_id)
        for one in runs:
            if one[2].task == task:
                return one
        names = ", ".join(sorted(run.task for _, _, run in runs)) or "none"
        text = f"task {task!r} of allocation {alloc_id[:8]} is not running on node {self._node_id}"
        raise CommandInvalid("not_running", f"{text}; running: {names}", "task")

    async def _ended(self, run: DriverRun) -> None:
        """Return when a run has ended."""
        while any(one[2] is run for one in self._executor().runs(run.alloc_id)):  # noqa: ASYNC110 - no event.
            await asyncio.sleep(_POLL_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


_REQUESTS: dict[str, type[Wire]] = {
    "session": node_rpc.SessionInput,
    "logs": node_rpc.LogsAsk,
    "exec": node_rpc.ExecAsk,
    "action": node_rpc.ActionAsk,
    "stats": node_rpc.StatsAsk,
    **dict.fromkeys(("fs_list", "fs_stat", "fs_read"), node_rpc.FilesAsk),
}
#: Fields that a measurement and its answer share.
_COUNTERS = [one for one in TaskUsage.__struct_fields__ if one != "cpu_ns"]
_FILE_VERBS = {"fs_list": files.list_files, "fs_stat": files.stat_file, "fs_read": files.read_file}


async def _in_thread(work: Callable[..., T], *args: object) -> T:
    """Inspect files where a directory that hangs holds up other lookers at the most, and no start."""
    return await asyncio.get_running_loop().run_in_executor(_pool, partial(work, *args))


async def _copy(log: TaskLogReader, ask: node_rpc.LogsAsk, stream: FrameSender) -> None:
    """Return a log from its beginning or its last lines on, and as a follower what comes."""
    if ask.tail > 0:
        await stream.give(await _in_thread(log.tail, ask.tail, TAIL_BYTES_MAX))
    elif ask.tail < 0:
        await _in_thread(log.skip)
    while True:
        last = stream.is_ending or not ask.follow
        data = await _in_thread(log.take)
        if data:
            await stream.give(data)
        elif last:
            return
        else:
            await asyncio.sleep(_POLL_S)


async def _forward_output(
    session: ExecSession, ask: node_rpc.ExecAsk | node_rpc.ActionAsk, stream: FrameSender
) -> int:
    """Give what a command says; returns its exit code."""
    if ask.tty:
        await session.resize(ask.rows, ask.columns)
    while True:
        source, data = await session.read()
        if not data:
            return await session.wait()
        await stream.give(data, source)


async def _forward_input(session: ExecSession, stream: FrameSender) -> None:
    """Hand a command what its asker says."""
    while True:
        one = await stream.inputs.get()
        if one.rows and one.columns:
            await session.resize(one.rows, one.columns)
        if one.data:
            await session.write(one.data)
        if one.is_end:
            await session.write(b"")


def _task_use(
    run: DriverRun,
    driver: Driver,
    before: tuple[float, TaskUsage | Exception],
    after: tuple[float, TaskUsage | Exception],
) -> node_rpc.TaskUse:
    named = node_rpc.TaskUse(alloc_id=run.alloc_id, task=run.task, driver=driver.name)
    (from_s, first), (to_s, last) = before, after
    if isinstance(first, Exception) or isinstance(last, Exception):
        problem = first if isinstance(first, Exception) else last
        return msgspec.structs.replace(named, problem=str(problem) or type(problem).__name__)
    spent_us = max(last.cpu_ns - first.cpu_ns, 0) / 1000
    return msgspec.structs.replace(
        named,
        cpu_ns=last.cpu_ns,
        cpu_millicores=round(spent_us / max(to_s - from_s, 1e-3) / 1000),
        **{name: getattr(last, name) for name in _COUNTERS},
    )


def _refused(verb: str, code: str, message: str, path: str = "") -> Wire:
    """Say no in the shape of the verb's answer."""
    error = ErrorDetail(code=code, message=message, path=path)
    match verb:
        case "logs" | "exec" | "action":
            return node_rpc.Frame(number=1, is_end=True, error=error)
        case "session":
            return node_rpc.SessionAnswer(error=error)
        case "fs_read":
            return node_rpc.FilePart(error=error)
        case "stats":
            return node_rpc.StatsAnswer(error=error)
        case _:
            return node_rpc.FilesAnswer(error=error)


def _publish(bus: BusClient, reply: str, answer: Wire) -> bool:
    return bus.send(reply, msgspec.json.encode(answer))
