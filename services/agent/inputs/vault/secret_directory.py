"""Secrets of Vault that templates and secret blocks read: kept in memory for the task that reads them, and read again.

A secret with a lease is renewed at half of it, and read anew where that is refused or its task has logged in anew:
leases end with the token that they were made with. One without a lease is read again every five minutes, as a
template would not learn of a change else. What cannot be read again stays as it was.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple, Protocol

import msgspec

from services.agent.backoff import Backoff
from services.agent.inputs.templates.followed_values import DataUnusable
from services.agent.inputs.templates.variable_directory import VariableReader
from services.agent.inputs.vault.vault_api import (
    TaskLogin,
    VaultRefused,
    VaultServer,
    VaultUnavailable,
)
from shared.gotemplate.data import VaultSecret

#: What has no lease is read again after so long.
REREAD_S = 300.0
#: What does not exist is looked for again after so long, doubled each time.
ABSENT_FIRST_S, ABSENT_LONGEST_S = 2.0, 60.0
#: What could not be read is tried again after so long, doubled each time.
RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 30.0
#: A lease is renewed after this part of it.
RENEW_AFTER = 0.5
LEAST_PAUSE_S = 1.0


class SecretName(NamedTuple):
    """What is read: a secret, or the names below a path."""

    path: str
    is_list: bool = False


class KnownSecret(msgspec.Struct, frozen=True):
    """A secret as a task may read it; both None: there is none. `version`: another one for other data."""

    version: int
    secret: VaultSecret | None = None
    names: tuple[str, ...] | None = None


class SecretSource(Protocol):
    """Where templates get secrets of Vault. Every method may be cancelled."""

    def serves(self, reader: VariableReader) -> bool:
        """Say whether a task has a token."""
        ...

    async def secret(self, reader: VariableReader, name: SecretName) -> KnownSecret:
        """Return a secret, or that there is none. Waits without limit. Raises DataUnusable."""
        ...

    async def changed(self, reader: VariableReader, seen: Mapping[SecretName, int]) -> None:
        """Wait until one of these has another version than was seen."""
        ...


class TaskLogins(Protocol):
    """Who has which token: `handler.py`."""

    def knows(self, alloc_id: str, task: str) -> bool:
        """Say whether a task has a token, or will have one."""
        ...

    async def login(self, alloc_id: str, task: str) -> TaskLogin:
        """Return what a task reads secrets with."""
        ...


class _Read:
    """One secret, for one task."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.known: KnownSecret | None = None
        #: when it is renewed, or read again.
        self.due_s = 0.0
        self.absent = Backoff(ABSENT_FIRST_S, ABSENT_LONGEST_S)
        self.retry = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)


class SecretDirectory:
    """The secrets of one agent's tasks."""

    def __init__(
        self, server: VaultServer, logins: TaskLogins, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._logins = logins
        self._clock = clock
        self._versions = count(1)
        #: allocation -> (task, name) -> secret.
        self._reads: dict[str, dict[tuple[str, SecretName], _Read]] = {}
        #: set, and replaced, when a task has logged in anew.
        self._woken = asyncio.Event()

    def serves(self, reader: VariableReader) -> bool:
        """See SecretSource."""
        return self._logins.knows(reader.alloc_id, reader.task)

    async def secret(self, reader: VariableReader, name: SecretName) -> KnownSecret:
        """See SecretSource."""
        one = self._of(reader, name)
        while True:
            async with one.lock:
                if one.known is None or (self._is_absent(one.known) and self._clock() >= one.due_s):
                    try:
                        await self._read(reader, name, one)
                    except VaultRefused as err:
                        raise DataUnusable(f"{name.path[:200]}: {err}") from err
                    except VaultUnavailable:
                        one.due_s = self._clock() + one.retry.take()
                if one.known is not None:
                    return one.known
                pause_s = one.due_s - self._clock()
            await asyncio.sleep(max(pause_s, 0.0))

    async def changed(self, reader: VariableReader, seen: Mapping[SecretName, int]) -> None:
        """See SecretSource."""
        while True:
            woken, due_s = self._woken, float("inf")
            for name, version in seen.items():
                one = self._of(reader, name)
                async with one.lock:
                    if self._clock() >= one.due_s:
                        await self._renew(reader, name, one)
                    if one.known is not None and one.known.version != version:
                        return
                due_s = min(due_s, one.due_s)
            try:
                async with asyncio.timeout(max(due_s - self._clock(), 0.0)):
                    await woken.wait()
            except TimeoutError:
                pass

    def logged_in(self, alloc_id: str, task: str) -> None:
        """Read anew what ends with the token that a task had."""
        for (owner, _), one in self._reads.get(alloc_id, {}).items():
            secret = None if one.known is None else one.known.secret
            if owner == task and one.known is not None and secret is not None and secret.lease_id:
                one.due_s = 0.0
                ended = msgspec.structs.replace(secret, is_renewable=False)
                one.known = msgspec.structs.replace(one.known, secret=ended)
        self._woken.set()
        self._woken = asyncio.Event()

    def forget(self, alloc_id: str) -> None:
        """Drop the secrets of an allocation that is over."""
        self._reads.pop(alloc_id, None)

    # ---- inside ----

    def _of(self, reader: VariableReader, name: SecretName) -> _Read:
        own = self._reads.setdefault(reader.alloc_id, {})
        return own.setdefault((reader.task, name), _Read())

    @staticmethod
    def _is_absent(known: KnownSecret) -> bool:
        return known.secret is None and known.names is None

    async def _renew(self, reader: VariableReader, name: SecretName, one: _Read) -> None:
        """Lengthen a lease, or read anew; what cannot be had now stays as it is."""
        try:
            if not await self._is_lengthened(reader, one):
                await self._read(reader, name, one)
        except (VaultUnavailable, VaultRefused):
            one.due_s = self._clock() + one.retry.take()

    async def _is_lengthened(self, reader: VariableReader, one: _Read) -> bool:
        secret = None if one.known is None else one.known.secret
        if secret is None or not secret.lease_id or not secret.is_renewable:
            return False
        login = await self._logins.login(reader.alloc_id, reader.task)
        try:
            found = await self._server.renew_lease(
                login.token, secret.lease_id, namespace=login.namespace, increment_s=secret.lease_s
            )
        except VaultRefused:
            return False
        # Less than that: it comes to the end that its role sets.
        if found.life_s * 2 < secret.lease_s:
            return False
        one.retry.reset()
        one.due_s = self._clock() + max(found.life_s * RENEW_AFTER, LEAST_PAUSE_S)
        return True

    async def _read(self, reader: VariableReader, name: SecretName, one: _Read) -> None:
        """Read it. Raises VaultUnavailable and VaultRefused."""
        login = await self._logins.login(reader.alloc_id, reader.task)
        secret, names = None, None
        try:
            if name.is_list:
                names = await self._server.list(login.token, name.path, namespace=login.namespace)
            else:
                secret = await self._server.read(login.token, name.path, namespace=login.namespace)
        except VaultRefused as err:
            if err.status != 404:
                raise
            names = () if name.is_list else None
        one.retry.reset()
        one.due_s = self._clock() + self._pause_s(secret, names, one)
        before = one.known
        same = before is not None and (_data(before.secret), before.names) == (_data(secret), names)
        version = before.version if before is not None and same else next(self._versions)
        one.known = KnownSecret(version, secret, names)

    @staticmethod
    def _pause_s(secret: VaultSecret | None, names: tuple[str, ...] | None, one: _Read) -> float:
        if secret is None and names is None:
            return one.absent.take()
        one.absent.reset()
        if secret is not None and secret.lease_id:
            return max(secret.lease_s * RENEW_AFTER, LEAST_PAUSE_S)
        return REREAD_S


def _data(secret: VaultSecret | None) -> object:
    return None if secret is None else secret.data
