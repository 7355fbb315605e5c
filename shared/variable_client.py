"""The caller's side of variables: seals what is put, opens what is got, and asks the keeper until it has answered.

The caller gives the connection as one function, so that the command line and the gateway use the same client, each with
the login of whom it serves. Values are in memory alone: no error names an item or a piece of a value.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from schemas.base import Wire
from schemas.jobs import ErrorDetail
from schemas.projections import Query
from schemas.variable_answers import KeyLine, KeysAnswer
from schemas.variables import (
    DeleteVariableRequest,
    GetVariableRequest,
    LockVariableRequest,
    PutVariableRequest,
    ReleaseLockRequest,
    RenewLockRequest,
    VariableAnswer,
)
from shared.errors import BusUnavailable, CommandInvalid
from shared.protocol import subjects
from shared.protocol.variable_items import decode_items, encode_items
from shared.protocol.variable_paths import path_fault
from shared.sealed_box import SealedBoxInvalid, new_pair, open_box, seal

#: How long one attempt may take, and how often a request is sent that gets no answer.
ATTEMPT_S, ATTEMPTS = 6.0, 3
#: Pause before a request is sent again that was answered `pending`, or reached no service.
RETRY_S = 0.3
_NEWEST = msgspec.json.encode(Query(limit=1))
#: Compare nothing, as `cas`.
ANY_REVISION = -1
#: Sends a request and returns the answer. Raises BusUnavailable.
Ask = Callable[[str, bytes, float], Awaitable[bytes]]


def new_lock_id() -> str:
    """Draw the id of a lock: who knows it holds the lock."""
    return secrets.token_hex(16)


class VariableFault(CommandInvalid):
    """A request about a variable failed. `revision`: the present one where the path exists, in a conflict."""

    def __init__(self, code: str, message: str, *, path: str = "", revision: int = 0) -> None:
        super().__init__(code, message, path)
        self.revision = revision


class NoAnswer(VariableFault):
    """There is no keeper, or it says nothing."""


class OpenedVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable as its reader gets it."""

    path: str
    revision: int
    create_seq: int
    create_ns: int
    modify_ns: int
    items: dict[str, str]

    def __repr__(self) -> str:
        """Show no item: a trace of a fault prints what it finds."""
        return f"OpenedVariable({self.path!r}, revision={self.revision})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show none either where a trace is printed in colours."""
        return [("path", self.path), ("revision", self.revision)]


class _Reply(Wire, frozen=True, kw_only=True):
    """What any answer may be in place of what was asked for."""

    #: of a verdict: accepted, refused or pending.
    status: str = ""
    revision: int = 0
    error: ErrorDetail | None = None


T = TypeVar("T", bound=msgspec.Struct)


class VariableClient:
    """Puts, gets, deletes and locks variables over one connection."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def put(
        self,
        path: str,
        items: Mapping[str, str],
        *,
        cas: int = ANY_REVISION,
        shred_old: bool = False,
        lock_id: str = "",
    ) -> int:
        """Store items in place of those of a path; returns the revision. Raises VariableFault, CommandInvalid.

        `lock_id`: the caller holds the path, and stores nothing if it does not any more.
        """
        if wrong := path_fault(path):
            raise VariableFault("invalid", wrong)
        plain = encode_items(items)
        request_id = secrets.token_hex(16)
        cluster_id, key = await self._newest_key()
        for is_last in (False, True):
            context = ("put", cluster_id, path, request_id)
            body = PutVariableRequest(
                path=path,
                key_id=key.key_id,
                sealed=seal(plain, key.public, context),
                cas=cas,
                shred_old=shred_old,
                lock_id=lock_id,
                request_id=request_id,
            )
            try:
                return await self._until_decided("put", body, path)
            except VariableFault as fault:
                if fault.code != "conflict" or is_last:
                    raise
                # Another key may be in force since: what was sealed for the old one was not carried out.
                cluster_id, newest = await self._newest_key()
                if newest.key_id == key.key_id:
                    raise
                key = newest
        raise AssertionError("the last attempt returns or raises")

    async def get(self, path: str) -> OpenedVariable:
        """Read the items of a path. Raises VariableFault, `not_found` among its codes."""
        cluster_id, _ = await self._keys()
        private, public = new_pair()
        body = msgspec.json.encode(GetVariableRequest(path=path, public=public))
        one = await self._answer(_subject("get"), body, VariableAnswer, path=path)
        context = ("get", cluster_id, path, str(one.revision))
        try:
            items = decode_items(open_box(one.sealed, private, context))
        except (SealedBoxInvalid, CommandInvalid) as err:
            text = f"the answer of the keeper cannot be opened: {err}"
            raise VariableFault("failed", text, path=path) from None
        return OpenedVariable(
            path=path,
            revision=one.revision,
            create_seq=one.create_seq,
            create_ns=one.create_ns,
            modify_ns=one.modify_ns,
            items=items,
        )

    async def delete(self, path: str, *, cas: int = ANY_REVISION, lock_id: str = "") -> None:
        """Erase a path and its items; a path that does not exist is deleted already. Raises VariableFault."""
        request_id = secrets.token_hex(16)
        body = DeleteVariableRequest(path=path, cas=cas, lock_id=lock_id, request_id=request_id)
        await self._until_decided("delete", body, path)

    async def lock(self, path: str, lock_id: str, *, ttl_ns: int, delay_ns: int) -> None:
        """Hold a path, or renew the lock that holds it. Raises VariableFault: `conflict`, where another does.

        `lock_id` is drawn by the caller (`new_lock_id`): after a fault that leaves it open whether the lock was taken
        the caller knows what to ask again for, or to give back.
        """
        request_id = secrets.token_hex(16)
        body = LockVariableRequest(
            path=path, lock_id=lock_id, ttl_ns=ttl_ns, delay_ns=delay_ns, request_id=request_id
        )
        await self._until_decided("lock", body, path)

    async def renew(self, path: str, lock_id: str, *, within_s: float = ATTEMPT_S) -> None:
        """Give a lock its whole ttl again, asked for once: the caller knows how long there is time to ask again.

        Raises VariableFault: `not_found`, where the lock does not hold the path.
        """
        body = msgspec.json.encode(RenewLockRequest(path=path, lock_id=lock_id))
        subject = _subject("renew")
        try:
            raw = await self._ask(subject, body, within_s)
        except BusUnavailable as err:
            raise NoAnswer("unavailable", "no keeper answers", path=path) from err
        _decode(raw, subject, _Reply, path)

    async def release(self, path: str, lock_id: str) -> None:
        """Give a lock back; one that does not hold the path is given back already. Raises VariableFault."""
        request_id = secrets.token_hex(16)
        body = ReleaseLockRequest(path=path, lock_id=lock_id, request_id=request_id)
        await self._until_decided("release", body, path)

    async def _keys(self) -> tuple[str, tuple[KeyLine, ...]]:
        """The id of the cluster, and its newest key where it has one."""
        found = await self._answer(subjects.query("keys"), _NEWEST, KeysAnswer)
        return found.cluster_id, found.keys

    async def _newest_key(self) -> tuple[str, KeyLine]:
        """The same with its newest key, which the keeper of a new cluster makes within seconds. Raises NoAnswer."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + ATTEMPT_S
        while True:
            cluster_id, keys = await self._keys()
            if keys:
                return cluster_id, keys[0]
            if clock() > end_s:
                raise NoAnswer("unavailable", "no keeper answers: the cluster has no key yet")
            await asyncio.sleep(RETRY_S)

    async def _until_decided(self, verb: str, body: Wire, path: str) -> int:
        """Send a request until it is carried out; returns the revision. Raises VariableFault."""
        raw, clock = msgspec.json.encode(body), asyncio.get_running_loop().time
        end_s = clock() + ATTEMPTS * ATTEMPT_S
        while True:
            verdict = await self._answer(_subject(verb), raw, _Reply, path=path)
            if verdict.status == "accepted":
                return verdict.revision
            if clock() > end_s:
                raise VariableFault("pending", f"not decided yet; {_MAY_TAKE_EFFECT}", path=path)
            await asyncio.sleep(RETRY_S)

    async def _answer(self, subject: str, body: bytes, answer: type[T], *, path: str = "") -> T:
        """Ask until there is an answer, always with the same bytes. Raises VariableFault."""
        return _decode(await self._asked(subject, body, path), subject, answer, path)

    async def _asked(self, subject: str, body: bytes, path: str) -> bytes:
        clock = asyncio.get_running_loop().time
        is_change = subject in _CHANGES
        timeouts, absent_s = 0, 0.0
        while True:
            try:
                return await self._ask(subject, body, ATTEMPT_S)
            except BusUnavailable as err:
                # Another keeper takes over within seconds; until then the server delivers to nothing.
                if "no responder" in str(err):
                    absent_s = absent_s or clock()
                    is_over = clock() > absent_s + ATTEMPT_S
                else:
                    timeouts, absent_s = timeouts + 1, 0.0
                    is_over = timeouts == ATTEMPTS
                if is_over:
                    service = "keeper" if path else "view"
                    effect = f"; {_MAY_TAKE_EFFECT}" if timeouts and is_change else ""
                    text = f"no {service} answers{effect}"
                    raise NoAnswer("unavailable", text, path=path) from err
            await asyncio.sleep(RETRY_S)


_MAY_TAKE_EFFECT = "the request may still take effect"


def _subject(verb: str) -> str:
    return subjects.api("variable", verb)


def _decode(raw: bytes, subject: str, answer: type[T], path: str) -> T:
    """Read an answer. Raises VariableFault with the keeper's refusal."""
    try:
        reply = msgspec.json.decode(raw, type=_Reply)
        if reply.error is not None and reply.status != "pending":
            error = reply.error
            raise VariableFault(error.code, error.message, path=error.path, revision=reply.revision)
        return msgspec.json.decode(raw, type=answer)
    except msgspec.MsgspecError as err:
        text = f"the answer on {subject} cannot be read: {err}"
        raise VariableFault("failed", text, path=path) from None


_CHANGES = frozenset(_subject(verb) for verb in ("put", "delete", "lock", "release"))
