"""Makes the checks of services: connects, asks over HTTP or gRPC, or runs a command in a task, each at its interval.

Decides the status of one attempt, and what of its output is kept. A check holds up nothing but itself: each is one
asyncio task, bounded by its timeout, and few are under way at once. What follows from a status:
`tasks/check_monitor.py`.
"""

import asyncio
import contextlib
import ssl
import zlib
from collections.abc import Callable
from functools import cache

from services.agent.executor.task_command import RunsOf, run_command
from shared.core.runtime.agent_messages import CheckChanged, CheckSpec, WatchChecks
from shared.extras import require

#: Attempts under way at once; others wait for their turn.
IN_FLIGHT_MAX = 64
#: Of what a check says.
OUTPUT_BYTES_MAX = 3 * 1024
_HEAD_BYTES_MAX = 64 * 1024
PASSING, WARNING, CRITICAL = "passing", "warning", "critical"

CheckResult = tuple[str, str]


class CheckRunner:
    """All checks of one agent. `tell` takes changes of status; `runs` finds the task of a script.

    `mask` takes an allocation, a task and an output: the output without the task's secrets.
    """

    def __init__(
        self,
        tell: Callable[[CheckChanged], None],
        runs: RunsOf,
        mask: Callable[[str, str, str], str] = lambda _alloc, _task, text: text,
    ) -> None:
        self._tell = tell
        self._runs = runs
        self._mask = mask
        self._tasks: dict[tuple[int, str], tuple[CheckSpec, asyncio.Task[None]]] = {}
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)

    def watch(self, effect: WatchChecks) -> None:
        """Make these checks of an allocation, and no others."""
        wanted = {(effect.key, one.name): one for one in effect.checks}
        mine = [name for name in self._tasks if name[0] == effect.key]
        for name in mine:
            spec, task = self._tasks[name]
            if wanted.get(name) != spec:
                task.cancel()
                del self._tasks[name]
        for name, spec in wanted.items():
            if name not in self._tasks:
                work = self._repeat(effect.key, effect.alloc_id, spec)
                loop = asyncio.get_running_loop()
                self._tasks[name] = (spec, loop.create_task(work, name=f"check {spec.name}"))

    async def close(self) -> None:
        """End all checks."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks = {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, key: int, alloc_id: str, spec: CheckSpec) -> None:
        # The first attempts of many allocations that started together do not fall together.
        share = zlib.crc32(f"{key} {spec.name}".encode()) % 1000
        await asyncio.sleep(spec.interval_ns / 2e9 * share / 1000)
        last: CheckResult | None = None
        while True:
            async with self._slots:
                found = await self._attempt(alloc_id, spec)
            if last is None or found[0] != last[0]:
                status, output = last = found
                output = self._masked(alloc_id, spec, output)
                said = CheckChanged(
                    key=key, check=spec.name, run=spec.run, status=status, output=output
                )
                self._tell(said)
            await asyncio.sleep(spec.interval_ns / 1e9)

    def _masked(self, alloc_id: str, spec: CheckSpec, output: str) -> str:
        """Take the secrets of the checked task out of an output; of a check without a task those of all."""
        tasks = {spec.task} if spec.task else {one[2].task for one in self._runs(alloc_id)}
        for task in sorted(tasks):
            output = self._mask(alloc_id, task, output)
        return output

    async def _attempt(self, alloc_id: str, spec: CheckSpec) -> CheckResult:
        try:
            async with asyncio.timeout(spec.timeout_ns / 1e9):
                if spec.kind == "script":
                    return await self._script(alloc_id, spec)
                return await _ATTEMPTS[spec.kind](spec)
        except TimeoutError:
            return CRITICAL, f"no answer within the timeout of {spec.timeout_ns / 1e9:g} s"
        except Exception as err:  # noqa: BLE001 - what a service or a driver does fails its own check alone.
            return CRITICAL, (str(err) or repr(err))[:OUTPUT_BYTES_MAX]

    async def _script(self, alloc_id: str, spec: CheckSpec) -> CheckResult:
        """Run a command in the task: exit 0 passes, 1 warns, all else is critical."""
        found = next((one for one in self._runs(alloc_id) if one[2].task == spec.task), None)
        if found is None:
            return CRITICAL, f"task {spec.task!r} is not running"
        driver, handle, _ = found
        code, text = await run_command(driver, handle, spec.command, output_max=OUTPUT_BYTES_MAX)
        status = {0: PASSING, 1: WARNING}.get(code, CRITICAL)
        return status, text if status == PASSING else f"exit code {code}: {text}".rstrip(": ")


async def attempt_tcp(spec: CheckSpec) -> CheckResult:
    """Connect: that is all. Raises OSError."""
    _, writer = await asyncio.open_connection(spec.address, spec.port)
    await _closed(writer)
    return PASSING, f"connected to {spec.address}:{spec.port}"


async def attempt_http(spec: CheckSpec) -> CheckResult:
    """Ask over HTTP: a status below 400 passes. Redirects are not followed. Raises OSError, ValueError."""
    context = _tls_context(spec, alpn="http/1.1") if spec.protocol == "https" else None
    reader, writer = await asyncio.open_connection(spec.address, spec.port, ssl=context)
    try:
        writer.write(http_request(spec))
        await writer.drain()
        line = (await reader.readuntil(b"\r\n")).decode("latin-1").split(maxsplit=2)
        if len(line) < 2 or not line[0].startswith("HTTP/") or not line[1].isdecimal():
            raise ValueError("the answer is not HTTP")
        code = int(line[1])
        output = f"HTTP {code}"
        if code != 200:
            output += await _body(reader)
    finally:
        await _closed(writer)
    return (PASSING if code < 400 else CRITICAL), output[:OUTPUT_BYTES_MAX]


async def attempt_grpc(spec: CheckSpec) -> CheckResult:
    """Ask over gRPC whether a service serves. Raises OSError, ValueError, ConfigInvalid."""
    require("h2")
    from services.agent.executor.grpc_health import SERVING, ask_health  # noqa: PLC0415 - extra "agent".

    context = _tls_context(spec, alpn="h2") if spec.grpc_use_tls else None
    reader, writer = await asyncio.open_connection(spec.address, spec.port, ssl=context)
    try:
        status = await ask_health(reader, writer, _authority(spec), spec.grpc_service)
    finally:
        await _closed(writer)
    return (PASSING if status == SERVING else CRITICAL), status


_ATTEMPTS = {"http": attempt_http, "tcp": attempt_tcp, "grpc": attempt_grpc}


def http_request(spec: CheckSpec) -> bytes:
    """Return the bytes of a request: one connection, one answer."""
    given = {name.lower() for name in spec.header}
    lines = [f"{spec.method} {'' if spec.path.startswith('/') else '/'}{spec.path} HTTP/1.1"]
    if "host" not in given:
        lines.append(f"Host: {_authority(spec)}")
    if "user-agent" not in given:
        lines.append("User-Agent: caravan-check")
    lines += [f"{name}: {text}" for name, texts in spec.header.items() for text in texts]
    body = spec.body.encode()
    if body:
        lines.append(f"Content-Length: {len(body)}")
    lines += ["Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def _authority(spec: CheckSpec) -> str:
    host = f"[{spec.address}]" if ":" in spec.address else spec.address
    return f"{host}:{spec.port}"


async def _body(reader: asyncio.StreamReader) -> str:
    """Read the beginning of an answer's body, for people."""
    size = 0
    while (line := await reader.readline()).strip():
        size += len(line)
        if size > _HEAD_BYTES_MAX:
            return ""
    data = b""
    while len(data) < OUTPUT_BYTES_MAX and (more := await reader.read(OUTPUT_BYTES_MAX)):
        data += more
    text = data[:OUTPUT_BYTES_MAX].decode(errors="replace").strip()
    return f": {text}" if text else ""


def _tls_context(spec: CheckSpec, *, alpn: str) -> ssl.SSLContext:
    return _context_of(alpn, verify=not spec.tls_skip_verify)


@cache
def _context_of(alpn: str, *, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols([alpn])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _closed(writer: asyncio.StreamWriter) -> None:
    # A TLS server need not take part in an orderly end, which close() would wait for.
    writer.transport.abort()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
