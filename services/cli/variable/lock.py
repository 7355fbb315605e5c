"""`caravan var lock`: runs a command while it holds the lock of a path.

The lock's id is drawn here. It goes to the keeper and into the environment of the command, where `var put` and
`var purge` find it; never into arguments or output.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence

import msgspec

from services.cli.runtime.output import CliError, CommandOutput
from services.cli.variable.keeper import LOCK_ID_ENV, LOCK_PATH_ENV, ask_keeper
from shared.durations import InvalidDuration, parse_duration
from shared.errors import CaravanError
from shared.variable_client import VariableClient, VariableFault, new_lock_id

#: Pause between two attempts to take a lock, at first and later: each attempt that is refused is a record of the log.
PAUSE_S, PAUSE_MAX_S = 1.0, 5.0
#: A lock is renewed so often within its ttl.
RENEWALS = 3
#: Pause before a renewal is sent again that had no answer.
RENEW_AGAIN_S = 0.5
#: So long the command may take to end after SIGTERM.
END_S = 5.0
END_POLL_S = 0.05
#: How long the keeper is asked to take a lock back.
_RELEASE_S = 15.0
_SECOND_NS = 1_000_000_000
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Faults that leave it open whether a request was carried out.
_OPEN = frozenset(("pending", "unavailable"))


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What is locked, and how."""

    path: str
    ttl_ns: int
    delay_ns: int
    #: between two attempts; 0: PAUSE_S, and longer later.
    pause_s: float
    #: one attempt alone.
    is_once: bool


def lock(
    out: CommandOutput,
    *,
    path: str,
    command: Sequence[str],
    ttl: str,
    delay: str,
    early_return: bool,
    backoff: str,
) -> int:
    """Run a command under a lock; returns its exit code."""
    terms = _Terms(
        path=path.strip().strip("/"),
        ttl_ns=_duration("--ttl", ttl),
        delay_ns=_duration("--delay", delay),
        pause_s=max(_duration("--backoff", backoff) / _SECOND_NS, PAUSE_S) if backoff else 0.0,
        is_once=early_return,
    )
    return ask_keeper(lambda client: _LockedRun(out, client, terms, command).run())


class _LockedRun:
    """One run of a command under a lock."""

    def __init__(
        self, out: CommandOutput, client: VariableClient, terms: _Terms, command: Sequence[str]
    ) -> None:
        self._out = out
        self._client = client
        self._terms = terms
        self._command = command
        self._lock_id = new_lock_id()
        #: a terminal sends its Ctrl-C to the command as well.
        self._is_foreground = _is_foreground()
        #: the attempts to take the lock, which a signal ends.
        self._taking: asyncio.Task[float] | None = None
        self._child: Process | None = None
        #: the last signal to this process; 0: none came.
        self._signal = 0

    async def run(self) -> int:
        """Take the lock, run the command, give the lock back. Raises CliError, VariableFault, OSError."""
        with self._signals():
            self._taking = asyncio.create_task(self._take())
            is_held = True
            try:
                since_s = await self._taking
                return await self._run_command(since_s)
            except CaravanError:
                # Not got, or lost; where that is open the lock expires by itself.
                is_held = False
                raise
            except asyncio.CancelledError:
                if not self._signal:
                    raise
                return 128 + self._signal
            finally:
                if is_held:
                    await self._give_back()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Have signals that end this process passed on; those that its parent has it ignore stay ignored."""
        loop = asyncio.get_running_loop()
        taken = [one for one in _PASSED_ON if signal.getsignal(one) is not signal.SIG_IGN]
        for one in taken:
            loop.add_signal_handler(one, self._take_signal, one)
        try:
            yield
        finally:
            for one in taken:
                loop.remove_signal_handler(one)

    def _take_signal(self, number: int) -> None:
        self._signal = number
        if self._child is not None:
            # Ctrl-C reaches all processes of the foreground: many programs end at once when it comes twice.
            if number != signal.SIGINT or not self._is_foreground:
                self._send(number)
        elif self._taking is not None:
            self._taking.cancel()

    # ---- the lock ----

    async def _take(self) -> float:
        """Take the lock; returns a time of the loop from which its ttl counts at the earliest. Raises VariableFault."""
        clock, terms = asyncio.get_running_loop().time, self._terms
        pause_s, has_waited = terms.pause_s or PAUSE_S, False
        while True:
            since_s = clock()
            try:
                # Always with the same id: an attempt that was carried out unseen is renewed by the next one.
                await self._client.lock(
                    terms.path, self._lock_id, ttl_ns=terms.ttl_ns, delay_ns=terms.delay_ns
                )
            except VariableFault as fault:
                is_held = fault.code == "conflict"
                if terms.is_once or not (is_held or (has_waited and fault.code in _OPEN)):
                    raise
                if not has_waited:
                    self._out.note(f"waiting for the lock: {fault.message}")
                has_waited = True
            else:
                return since_s
            await asyncio.sleep(pause_s)
            pause_s = terms.pause_s or min(2 * pause_s, PAUSE_MAX_S)

    async def _keep(self, since_s: float) -> str:
        """Renew the lock until it is lost; returns the reason."""
        clock, ttl_s = asyncio.get_running_loop().time, self._terms.ttl_ns / _SECOND_NS
        end_s, due_s, reason = since_s + ttl_s, since_s + ttl_s / RENEWALS, ""
        while True:
            await asyncio.sleep(max(0.0, min(due_s, end_s) - clock()))
            since_s = clock()
            if since_s >= end_s:
                return f"it was not renewed within its ttl: {reason}"
            try:
                # The keeper counts from the renewal's arrival, this process from before it was sent.
                async with asyncio.timeout_at(end_s):
                    await self._client.renew(
                        self._terms.path, self._lock_id, within_s=ttl_s / RENEWALS
                    )
            except VariableFault as fault:
                if fault.code == "not_found":
                    return fault.message
                reason, due_s = fault.message, clock() + RENEW_AGAIN_S
            except TimeoutError:
                reason, due_s = "no keeper answers", end_s
            else:
                end_s, due_s = since_s + ttl_s, since_s + ttl_s / RENEWALS

    async def _give_back(self) -> None:
        """Release the lock; where the keeper does not answer it expires by itself."""
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._client.release(self._terms.path, self._lock_id)
        except (VariableFault, TimeoutError):
            self._out.note("the lock could not be given back: it ends with its ttl")

    # ---- the command ----

    async def _run_command(self, since_s: float) -> int:
        """Run the command while the lock is renewed. Raises CliError: the lock was lost; OSError."""
        env = {**os.environ, LOCK_ID_ENV: self._lock_id, LOCK_PATH_ENV: self._terms.path}
        # A group of its own is ended as a whole; in the foreground it must be that of the terminal, to read from it.
        group = None if self._is_foreground else 0
        child = await asyncio.create_subprocess_exec(*self._command, env=env, process_group=group)
        self._child = child
        if self._signal:
            self._send(self._signal)
        ended = asyncio.create_task(child.wait())
        kept = asyncio.create_task(self._keep(since_s))
        try:
            await asyncio.wait((ended, kept), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                code = ended.result()
                return 128 - code if code < 0 else code
        finally:
            kept.cancel()
            if not ended.done():
                await self._end(ended)
        text = f"the lock was lost, and the command was ended: {kept.result()}"
        raise CliError("failed", text, path=self._terms.path)

    async def _end(self, ended: asyncio.Task[int]) -> None:
        """End the command: SIGTERM, and SIGKILL to what does not heed it."""
        self._send(signal.SIGTERM)
        for _ in range(round(END_S / END_POLL_S)):
            if not self._is_alive():
                break
            await asyncio.sleep(END_POLL_S)
        self._send(signal.SIGKILL)
        await ended

    def _send(self, number: int) -> None:
        """Signal the command: its whole group, where that is its own."""
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._is_foreground:
                self._child.send_signal(number)
            else:
                os.killpg(self._child.pid, number)

    def _is_alive(self) -> bool:
        assert self._child is not None
        if self._is_foreground or self._child.returncode is None:
            return self._child.returncode is None
        try:
            os.killpg(self._child.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def _is_foreground() -> bool:
    """Whether this process is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _duration(option: str, text: str) -> int:
    """A duration of an option, in ns. Raises CliError."""
    try:
        return parse_duration(text)
    except InvalidDuration as err:
        raise CliError("usage", f"{option} {text!r} is not a duration like 15s") from err
