"""Tokens of Vault: a task logs in with its identity, and its token is renewed at half of its life.

A token is in the memory of this process, in `secrets/vault_token` and in the environment of its task, and nowhere else.
After a restart of the agent a running task keeps its token: it is read back from its file where its mark, a digest
that is kept beside the records of the runs, proves that the task did not change it. Else, and where a renewal is
refused, the task logs in anew, which is a change for its change_mode. Next: `client.py` and `secret_directory.py`.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from services.agent.backoff import Backoff
from services.agent.drivers.driver import StartRefused
from services.agent.inputs.identities.handler import (
    GRACE_S,
    RENEW_AFTER,
    RENEW_SPREAD,
    RETRY_FIRST_S,
    TaskOwner,
    retry_pause_s,
)
from services.agent.inputs.identities.keeper_tokens import (
    TokenRefused,
    TokenSource,
    TokenUnavailable,
)
from services.agent.inputs.identities.token_times import (
    TokenTimes,
    boot_time_s,
    keep_times,
    kept_times,
    token_mark,
)
from services.agent.inputs.input_handler import HOOK_FAILED, InputContext, InputFailed
from services.agent.inputs.templates.missing_data import MissingData
from services.agent.inputs.thread_writes import write_in_thread
from services.agent.inputs.vault.secret_directory import SecretDirectory
from services.agent.inputs.vault.vault_api import (
    TaskLogin,
    VaultRefused,
    VaultServer,
    VaultToken,
    VaultUnavailable,
)
from services.agent.safe_open import is_swapped, open_below, open_regular, replace_below
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import VAULT, VaultInput
from shared.protocol.identity_names import VAULT_IDENTITY

EVENT = "Vault"
FILE = "vault_token"
#: No identity has this name: what is kept of the token is beside what is kept of identities.
TIMES_NAME = ".vault"
#: A start asks again after so long, doubled each time.
RESEND_FIRST_S, RESEND_LONGEST_S = 1.0, 10.0
#: A renewal that fails is tried again after so long, doubled each time.
RETRY_LONGEST_S = 300.0
#: Sleeps are no longer than this: the machine may sleep, too.
_SLEEP_S = 30.0
_TOKEN_BYTES_MAX = 16_384


class _Held:
    """The token of one task."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: None: this life of the agent has none yet.
        self.login: TaskLogin | None = None
        self.times: TokenTimes | None = None
        self.is_there = asyncio.Event()


class VaultHandler:
    """Prepares and renews the tokens of one agent's tasks."""

    kind = VAULT
    event_kind = HOOK_FAILED
    begin_kind = ""
    #: secrets and templates use it.
    stage = -2
    #: it waits for Vault as long as it must.
    timeout_s: float | None = None

    def __init__(
        self,
        server: VaultServer,
        identities: TokenSource,
        owner: TaskOwner,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self._server = server
        self._identities = identities
        self._owner = owner
        self._clock = clock
        self._missing = MissingData(EVENT, ", waits for Vault")
        #: allocation -> task -> token.
        self._held: dict[str, dict[str, _Held]] = {}
        self.secrets = SecretDirectory(server, self)

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Log in, and put the token in its places."""
        spec = _spec(wanted)
        try:
            found = await self._first(about, spec, wanted.name)
        finally:
            self._missing.note(about, wanted.name, ())
        return await self._take(about, spec, found)

    async def watch(self, about: InputContext, wanted: TaskInput) -> AsyncIterator[bytes]:
        """Renew the token; what an earlier life left is said first, so that no change is lost with it."""
        spec = _spec(wanted)
        held = self._of(about)
        if held.login is None:
            yield await self._found_again(about, spec, held) or await self._anew(about, spec, held)
        while not spec.allows_expiration and held.times is not None and held.times.life_s:
            await self._due(held.times)
            if not await self._renewed(about, spec, held):
                yield await self._anew(about, spec, held)

    def is_over(self, about: InputContext, _wanted: TaskInput) -> bool:
        """Say whether the token has expired: a start may have waited for other inputs longer than it lives."""
        times = self._of(about).times
        return times is None or (times.life_s > 0 and times.left_s(self._clock()) <= 0)

    def environment(self, alloc_id: str, task: str, wanted: TaskInput) -> Mapping[str, str]:
        """Return the variables of the token. Raises KeyError."""
        held = self._held.get(alloc_id, {}).get(task)
        if held is None or held.login is None:
            raise KeyError(wanted.name)
        found = {"VAULT_ADDR": self._server.settings.addr}
        if held.login.namespace:
            found["VAULT_NAMESPACE"] = held.login.namespace
        return found | {"VAULT_TOKEN": held.login.token} if _spec(wanted).env else found

    def forget(self, alloc_id: str) -> None:
        """Drop the tokens of an allocation that is over."""
        self._held.pop(alloc_id, None)
        self.secrets.forget(alloc_id)

    def knows(self, alloc_id: str, task: str) -> bool:
        """Say whether a task has a token, or will have one."""
        return task in self._held.get(alloc_id, {})

    async def login(self, alloc_id: str, task: str) -> TaskLogin:
        """Return what a task reads secrets with; waits without limit."""
        held = self._held.setdefault(alloc_id, {}).setdefault(task, _Held())
        await held.is_there.wait()
        assert held.login is not None
        return held.login

    def close(self) -> None:
        """End the connections."""
        self._server.close()

    # ---- inside ----

    def _of(self, about: InputContext) -> _Held:
        return self._held.setdefault(about.alloc_id, {}).setdefault(about.task, _Held())

    def _namespace(self, spec: VaultInput) -> str:
        return spec.namespace or self._server.settings.namespace

    async def _login(self, about: InputContext, spec: VaultInput) -> VaultToken:
        """Log in once. Raises TokenUnavailable, TokenRefused, VaultUnavailable and VaultRefused."""
        signed = await self._identities.signed(about.alloc_id, about.task, VAULT_IDENTITY)
        role = spec.role or self._server.settings.role
        return await self._server.login(signed.token, role=role, namespace=self._namespace(spec))

    async def _first(self, about: InputContext, spec: VaultInput, name: str) -> VaultToken:
        """Log in as soon as there is an answer. Raises InputFailed where it is a refusal."""
        refused_s: float | None = None
        backoff = Backoff(RESEND_FIRST_S, RESEND_LONGEST_S)
        while True:
            try:
                return await self._login(about, spec)
            except (TokenUnavailable, VaultUnavailable) as err:
                refused_s, reason = None, str(err)
            except TokenRefused as err:
                reason = str(err)
                refused_s = self._clock() if refused_s is None else refused_s
                if self._clock() - refused_s >= GRACE_S:
                    text = f"identity {VAULT_IDENTITY} is not signed: {err}"
                    raise InputFailed(text, recoverable=True, kind=HOOK_FAILED) from err
            except VaultRefused as err:
                text = f"no login at Vault: {err}"
                raise InputFailed(text, recoverable=True, kind=HOOK_FAILED) from err
            self._missing.note(about, name, (f"token ({reason})",))
            await asyncio.sleep(backoff.take())

    async def _due(self, times: TokenTimes) -> None:
        """Wait until a token is to be renewed; nodes and tasks that began together do not renew together."""
        # Not for a secret.
        part = RENEW_AFTER + RENEW_SPREAD * random.random()  # noqa: S311
        while (pause_s := times.left_s(self._clock()) - times.life_s * (1 - part)) > 0:  # noqa: ASYNC110 - of a clock.
            await asyncio.sleep(min(pause_s, _SLEEP_S))

    async def _renewed(self, about: InputContext, spec: VaultInput, held: _Held) -> bool:
        """Renew the token as long as it lives; returns whether the task may keep it."""
        assert held.login is not None
        assert held.times is not None
        login, times = held.login, held.times
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        said = ""
        while (left_s := times.left_s(self._clock())) > 0:
            try:
                found = await self._server.renew(
                    login.token, namespace=login.namespace, increment_s=times.life_s
                )
            except VaultRefused:
                return False
            except VaultUnavailable as err:
                if str(err) != said:
                    said = str(err)
                    about.note(EVENT, f"the token is not renewed yet: {err}")
                await asyncio.sleep(retry_pause_s(backoff.take(), left_s))
                continue
            # Less than that: it comes to the end that its role sets, and another renewal would not help.
            if found.life_s * 2 < times.life_s or not found.is_renewable:
                return False
            await self._take(about, spec, found)
            return True
        return False

    async def _anew(self, about: InputContext, spec: VaultInput, held: _Held) -> bytes:
        """Log in anew while the task runs; its token stays until then."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        said = ""
        while True:
            try:
                content = await self._take(about, spec, await self._login(about, spec))
            except (
                *(TokenUnavailable, TokenRefused, VaultUnavailable, VaultRefused),
                InputFailed,
            ) as err:
                if str(err) != said:
                    said = str(err)
                    about.note(EVENT, f"the task has not logged in anew yet: {err}")
            else:
                self.secrets.logged_in(about.alloc_id, about.task)
                return content
            left_s = 0.0 if held.times is None else held.times.left_s(self._clock())
            await asyncio.sleep(retry_pause_s(backoff.take(), left_s))

    async def _found_again(
        self, about: InputContext, spec: VaultInput, held: _Held
    ) -> bytes | None:
        """Take up the token of an earlier life of the agent; None: it cannot be had."""
        if spec.disable_file:
            return None
        times, token = await asyncio.to_thread(_kept, about)
        if held.login is not None:
            # A start logged in meanwhile.
            assert held.times is not None
            return held.times.mark.encode()
        if times is None or token_mark(token) != times.mark:
            return None
        if times.life_s and times.left_s(self._clock()) <= 0 and not spec.allows_expiration:
            return None
        held.login, held.times = TaskLogin(token, self._namespace(spec)), times
        held.is_there.set()
        return times.mark.encode()

    async def _take(self, about: InputContext, spec: VaultInput, found: VaultToken) -> bytes:
        """Put a token in its places: first its file, then what is known of it. Raises InputFailed."""
        held = self._of(about)
        times = TokenTimes(
            mark=token_mark(found.token), received_s=self._clock(), life_s=found.life_s
        )
        async with held.lock:
            try:
                await write_in_thread(partial(self._write, about, spec, found.token, times))
            except OSError as err:
                step = f"{err.filename}: " if isinstance(err.filename, str) else ""
                text = f"secrets/{FILE}: {step}{err.strerror or err}"
                is_final = is_swapped(err) or isinstance(err, IsADirectoryError)
                raise InputFailed(text, recoverable=not is_final, kind=HOOK_FAILED) from err
            held.login, held.times = TaskLogin(found.token, self._namespace(spec)), times
            held.is_there.set()
        return times.mark.encode()

    def _write(self, about: InputContext, spec: VaultInput, token: str, times: TokenTimes) -> None:
        """Write the files. Raises InputFailed and OSError."""
        if not spec.disable_file:
            try:
                owner = self._owner(spec.driver, about.launch.user)
            except StartRefused as err:
                raise InputFailed(str(err), recoverable=err.recoverable, kind=HOOK_FAILED) from err
            place = _file(about)
            replace_below(about.places.top, place, token.encode(), mode=0o600, owner=owner)
        keep_times(about.places.top, about.places.runs, TIMES_NAME, times)


def _file(about: InputContext) -> Path:
    return about.places.task / "secrets" / FILE


def _kept(about: InputContext) -> tuple[TokenTimes | None, str]:
    """Read what an earlier life of the agent kept of a token, and the token from the file of the task."""
    times = kept_times(about.places.top, about.places.runs, TIMES_NAME)
    place = _file(about)
    try:
        directory = open_below(about.places.top, place.parent)
        try:
            fd = open_regular(place.name, directory, os.O_RDONLY)
        finally:
            os.close(directory)
        with os.fdopen(fd, "rb") as file:
            return times, file.read(_TOKEN_BYTES_MAX).decode("ascii", "replace")
    except OSError:
        return times, ""


def _spec(wanted: TaskInput) -> VaultInput:
    return msgspec.json.decode(wanted.spec, type=VaultInput)
