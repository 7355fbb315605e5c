"""Commands that the agent runs in a task: those of script checks, and of templates that changed."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from services.agent.drivers.driver import Driver, DriverRun, ExecSession
from services.agent.inputs.secrets.filled_inputs import Values, masked, missing_key
from shared.core.runtime.agent_messages import AgentInput, ChangeScriptEnded, RunChangeScript
from shared.jobspec.secret_references import SecretReference, fill_references, find_references

#: How long a command that is over its time may take to end.
_CLOSE_S = 5.0
#: How often is looked whether a secret is there by now.
_LOOK_S = 0.1
#: Of what a script said, in the reason of its failure.
SAID_CHARS_MAX = 100
_OUTPUT_BYTES_MAX = 4 * SAID_CHARS_MAX

#: Finds the runs of an allocation that are alive.
RunsOf = Callable[[str], list[tuple[Driver, Any, DriverRun]]]
#: Finds the secrets of a task of an allocation.
SecretsOf = Callable[[str, str], Values]


async def run_command(
    driver: Driver, handle: Any, command: tuple[str, ...], *, output_max: int
) -> tuple[int, str]:
    """Run a command in a task to its end; returns its exit code and what it said first.

    When it is cancelled the command is ended. Raises whatever the driver raises.
    """
    session = await _begin(driver, handle, command)
    try:
        await session.write(b"")
        output = b""
        while True:
            _, data = await session.read()
            if not data:
                break
            output = (output + data)[:output_max]
        code = await session.wait()
    finally:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(session.close(), _CLOSE_S)
    return code, output.decode(errors="replace").strip()


async def _begin(driver: Driver, handle: Any, command: tuple[str, ...]) -> ExecSession:
    """Begin a command. One that is cancelled meanwhile would have no owner: it begins all the same, and is ended."""
    work = driver.exec_stream(handle, command, tty=False)
    beginning = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_S):
                await (await beginning).close()
        raise


class ChangeScripts:
    """Performs RunChangeScript: each is one asyncio task, which answers once."""

    def __init__(
        self, tell: Callable[[AgentInput], None], runs: RunsOf, secrets: SecretsOf
    ) -> None:
        self._tell = tell
        self._runs = runs
        self._secrets = secrets
        self._work: set[asyncio.Task[None]] = set()

    def run(self, effect: RunChangeScript) -> None:
        """Begin a script; `tell` gets its one answer."""
        name = f"change script {effect.task}"
        work = asyncio.get_running_loop().create_task(self._run(effect), name=name)
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    async def close(self) -> None:
        """End them all, without an answer."""
        work = list(self._work)
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def _run(self, effect: RunChangeScript) -> None:
        try:
            async with asyncio.timeout(effect.timeout_ns / 1e9):
                reason = await self._failure(effect)
        except TimeoutError:
            waits = self._not_fetched(effect)
            what = f"secret {waits[0].secret} was not fetched" if waits else "no end"
            reason = f"{what} within the timeout of {effect.timeout_ns / 1e9:g} s"
        except Exception as err:  # noqa: BLE001 - what a driver does fails its own script alone.
            reason = masked(str(err) or repr(err), self._secrets(effect.alloc_id, effect.task))
        ended = ChangeScriptEnded(
            key=effect.key, task=effect.task, run=effect.run, input=effect.input, reason=reason
        )
        self._tell(ended)

    def _not_fetched(self, effect: RunChangeScript) -> list[SecretReference]:
        """List references whose secret this life of the agent has not fetched: what follows the template does it."""
        known = {one.secret for one in self._secrets(effect.alloc_id, effect.task)}
        return [one for one in find_references(effect.command) if one.secret not in known]

    async def _failure(self, effect: RunChangeScript) -> str:
        """Run it; returns why it failed, or an empty text."""
        alive = self._runs(effect.alloc_id)
        wanted = (effect.task, effect.run)
        found = next((one for one in alive if (one[2].task, one[2].number) == wanted), None)
        if found is None:
            return f"task {effect.task!r} is not running"
        driver, handle, _ = found
        while self._not_fetched(effect):  # noqa: ASYNC110 - nothing tells of a fetched secret.
            await asyncio.sleep(_LOOK_S)
        secrets = self._secrets(effect.alloc_id, effect.task)
        if text := missing_key(effect.command, secrets):
            return text
        command = tuple(fill_references(effect.command, secrets))
        code, said = await run_command(driver, handle, command, output_max=_OUTPUT_BYTES_MAX)
        said = masked(said, secrets)[:SAID_CHARS_MAX]
        return f"exit code {code}: {said}".rstrip(": ") if code else ""
