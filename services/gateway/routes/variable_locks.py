"""Locks of variables: `lock-acquire`, `lock-renew` and `lock-release` of a PUT, and writes by the holder of a lock.

A lock's id is in bodies of requests and answers alone: the log has its hash, so that no read can tell it.
"""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.nomad.source import Object
from services.gateway.routes.job_writes import field
from services.gateway.routes.variable_calls import (
    LOCKS,
    check_namespace_of,
    client_of,
    fault_of,
    items_of,
    known,
    put_answer,
    shape,
    until,
)
from shared.core.state.tables.variable_locks import LockRow
from shared.durations import InvalidDuration, parse_duration, write_duration
from shared.errors import CommandInvalid
from shared.variable_client import VariableClient, new_lock_id

_ACQUIRE, _RENEW, _RELEASE = "lock-acquire", "lock-renew", "lock-release"
#: Of both, as Nomad's.
_DEFAULT_NS = 15_000_000_000
_ENCODER = msgspec.json.Encoder()


def lock_operation(call: Call) -> str:
    """Which operation on a lock a write is; empty: none. Raises HttpFault 400."""
    given = call.connection.query_params
    found = [one for one in (_ACQUIRE, _RENEW, _RELEASE) if one in given]
    if len(found) > 1:
        raise HttpFault(400, "multiple lock operations")
    if found and call.text("cas"):
        raise HttpFault(400, "CAS can't be used with lock operations")
    return found[0] if found else ""


async def operate(call: Call, operation: str) -> object:
    """Acquire, renew or release the lock of a path. Raises HttpFault."""
    path, body = call.path["path"], await call.body()
    check_namespace_of(body)
    if operation == _ACQUIRE:
        return await _acquire(call, path, body)
    lock_id = _lock_id(body)
    if not lock_id:
        raise HttpFault(400, "missing lock information")
    if operation == _RENEW:
        return await _renew(call, path, lock_id)
    if field(body, "Items") is not None:
        raise HttpFault(400, "lock release operation doesn't take variable items")
    try:
        await client_of(call).release(path, lock_id)
    except CommandInvalid as err:
        raise fault_of(err) from None
    return known(call, path)


def lock_of_write(body: Object) -> str:
    """The id of the lock under which a variable is stored; empty: it is not locked. Raises HttpFault 400."""
    lock = _lock(body)
    if field(lock, "TTL") or field(lock, "LockDelay"):
        raise HttpFault(400, "variable should not contain lock definition")
    return _lock_id(body)


def with_lock(call: Call, answer: Object, lock_id: str) -> Object:
    """An answer to the holder of a lock: with the lock that it named."""
    row = _held(call, str(answer["Path"]))
    return {**answer, "Lock": _shown(lock_id, row.ttl_ns, row.delay_ns)} if row else answer


def locked_conflict(call: Call, path: str) -> Response:
    """409 for what the holder of a lock alone may do: the path, and nothing of what it has, as Nomad's."""
    headers = {"X-Nomad-Index": str(max(call.role.seq, 1))}
    body = _ENCODER.encode({**shape(path), "Items": None})
    return Response(body, 409, headers, media_type="application/json")


async def _acquire(call: Call, path: str, body: Object) -> object:
    """Lock a path, and store items under the lock where the body has some."""
    items, lock = items_of(body), _lock(body)
    given, client = _lock_id(body), client_of(call)
    lock_id = given or new_lock_id()
    ttl_ns, delay_ns = (_duration_ns(lock, name) for name in ("TTL", "LockDelay"))
    try:
        await client.lock(path, lock_id, ttl_ns=ttl_ns, delay_ns=delay_ns)
    except CommandInvalid as err:
        if err.code == "conflict":
            return locked_conflict(call, path)
        raise fault_of(err) from None
    await until(call, LOCKS, lambda: _held(call, path) is not None)
    if (row := _held(call, path)) is not None and given:
        # A lock that its holder acquires again is renewed: it keeps what it was taken with.
        ttl_ns, delay_ns = row.ttl_ns, row.delay_ns
    answer = known(call, path)
    if items:
        answer = await _store(call, client, path, items, lock_id=lock_id, is_new=not given)
    return {**answer, "Lock": _shown(lock_id, ttl_ns, delay_ns)}


async def _store(
    call: Call,
    client: VariableClient,
    path: str,
    items: Mapping[str, str],
    *,
    lock_id: str,
    is_new: bool,
) -> Object:
    """Store items under a lock that was just taken; what cannot be stored is not locked either. Raises HttpFault."""
    try:
        revision = await client.put(path, items, lock_id=lock_id)
    except CommandInvalid as err:
        if is_new:
            # Another id may be that of a lock which its holder relies on.
            await _give_back(client, path, lock_id)
        if err.code == "conflict":
            raise HttpFault(409, err.message) from None
        raise fault_of(err) from None
    return await put_answer(call, path, revision, items)


async def _give_back(client: VariableClient, path: str, lock_id: str) -> None:
    try:
        await client.release(path, lock_id)
    except CommandInvalid:
        # It expires: its id is known here alone.
        return


async def _renew(call: Call, path: str, lock_id: str) -> object:
    """Renew a lock. Raises HttpFault 409: it does not hold the path."""
    try:
        await client_of(call).renew(path, lock_id)
    except CommandInvalid as err:
        if err.code != "not_found":
            raise fault_of(err) from None
        # The keeper's words: the replica may not show yet what ended the lock.
        raise HttpFault(409, err.message) from None
    return with_lock(call, known(call, path), lock_id)


def _held(call: Call, path: str) -> LockRow | None:
    """The lock that holds a path, by the replica."""
    row = call.role.state.variable_locks.by_path.get(path)
    return row if row is not None and row.lock else None


def _lock(body: Object) -> Object:
    """`Lock` of a body. Raises HttpFault 400."""
    lock = field(body, "Lock", {})
    if not isinstance(lock, dict):
        raise HttpFault(400, "Lock is not an object")
    return lock


def _lock_id(body: Object) -> str:
    """`Lock.ID` of a body; empty: it has none. Raises HttpFault 400."""
    lock_id = field(_lock(body), "ID", "")
    if not isinstance(lock_id, str):
        raise HttpFault(400, "Lock.ID is not a text")
    return lock_id


def _duration_ns(lock: Object, name: str) -> int:
    """A duration of a lock: a text, or ns; 0 is the default, as in Nomad. Raises HttpFault 400."""
    value = field(lock, name, 0) or 0
    if isinstance(value, str):
        try:
            value = parse_duration(value)
        except InvalidDuration as err:
            raise HttpFault(400, f"Lock.{name}: {err}") from None
    if type(value) not in (int, float) or abs(value) >= 2**63:
        raise HttpFault(400, f"Lock.{name} is not a duration")
    if value < 0:
        raise HttpFault(400, "Lock delay and TTL must be positive")
    return int(value) or _DEFAULT_NS


def _shown(lock_id: str, ttl_ns: int, delay_ns: int) -> Object:
    return {"ID": lock_id, "TTL": write_duration(ttl_ns), "LockDelay": write_duration(delay_ns)}
