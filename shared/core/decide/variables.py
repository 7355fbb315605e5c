"""Variables: check and set, lives, limits. Decided on what is plain; ciphertext and digests are only carried.

A command that was carried out before changes nothing: its request is among the marks of its path.
"""

import re

from schemas.base import SECOND_NS, Event
from schemas.variables import (
    CreateKey,
    DeleteVariable,
    ExpireLock,
    KeyCreated,
    LockVariable,
    PutVariable,
    ReleaseLock,
    ShredVariables,
    VariableDeleted,
    VariableLife,
    VariableLocked,
    VariableLockExpired,
    VariableLockReleased,
    VariablePut,
    VariableRefused,
    VariablesShredded,
)
from shared.core.decide.deciders import Deciders, TimedDeciders
from shared.core.state.state import State
from shared.core.state.tables.variables import VariableTable
from shared.protocol.variable_paths import (
    CIPHER_BYTES_MAX,
    DELAY_NS,
    LIVES_MAX,
    LOCKS_MAX,
    PATH_CHARS_MAX,
    PUBLIC_KEY_BYTES,
    PUTS_MAX,
    PUTS_SPAN_NS,
    REQUEST_ID_CHARS_MAX,
    SIZE_BYTES_MAX,
    TOTAL_SIZE_BYTES_MAX,
    TTL_NS,
    path_fault,
)

RequestCommand = PutVariable | DeleteVariable | LockVariable | ReleaseLock
#: Code and reason of a refusal.
Fault = tuple[str, str]
_DIGEST = re.compile(r"[0-9a-f]{32}")
_KEY_ID = re.compile(r"[0-9a-f]{16}")


def refuse_request(state: State, command: RequestCommand, code: str, reason: str) -> list[Event]:
    """Refuse a request about a variable: its sender waits for the fact."""
    row = state.variables.find(command.path)
    return [
        VariableRefused(
            request_id=command.request_id[:REQUEST_ID_CHARS_MAX],
            path=command.path[:PATH_CHARS_MAX],
            code=code,
            reason=reason,
            revision=0 if row is None else row.revision,
        )
    ]


def decide_put(state: State, command: PutVariable, now_ns: int) -> list[Event]:
    """Store the items of a path."""
    now_ns = max(now_ns, state.t_ns)
    table = state.variables
    if reason := _malformed(command):
        return refuse_request(state, command, "invalid", reason)
    row = table.by_path.get(command.path)
    done = [
        one for one in (() if row is None else row.puts) if one.request_id == command.request_id
    ]
    is_done = bool(done) and done[-1].digest == command.digest
    if is_done or (command.path, command.request_id) in table.refused:
        return []
    if done:
        reason = f"request {command.request_id!r} was used for other items"
        return refuse_request(state, command, "conflict", reason)
    if fault := _unfit(state, command) or _beyond_limits(table, command, now_ns):
        return refuse_request(state, command, *fault)
    put = VariablePut(
        path=command.path,
        incarnation=command.incarnation,
        cipher=command.cipher,
        digest=command.digest,
        items=command.items,
        size=command.size,
        at_ns=now_ns,
        request_id=command.request_id,
    )
    old = table.find(command.path)
    if old is None or not command.shred_old:
        return [put]
    ended = VariableDeleted(
        path=command.path, incarnation=old.incarnation, request_id=command.request_id
    )
    return [ended, put]


def decide_delete(state: State, command: DeleteVariable) -> list[Event]:
    """End the life of a path, unless it is over."""
    table = state.variables
    if reason := path_fault(command.path) or _request_fault(command.request_id):
        return refuse_request(state, command, "invalid", reason)
    if _was_deleted_by(table, command) or (command.path, command.request_id) in table.refused:
        # A late copy: the path may have begun its next life.
        return []
    if reason := _lock_fault(state, command):
        return refuse_request(state, command, "locked", reason)
    if reason := _cas_fault(table, command):
        return refuse_request(state, command, "conflict", reason)
    row = table.find(command.path)
    if row is None or 0 < command.incarnation < row.incarnation:
        # What was to be deleted is gone; another life of the path has begun.
        return []
    ended = VariableDeleted(
        path=command.path, incarnation=row.incarnation, request_id=command.request_id
    )
    return [ended]


def decide_shred(state: State, command: ShredVariables) -> list[Event]:
    """Record that the data keys of lives are erased; of lives that are over alone."""
    ended = state.variables.ended
    lives = dict.fromkeys((one.path, one.incarnation) for one in command.lives)
    found = [
        VariableLife(path=path, incarnation=incarnation)
        for path, incarnation in lives
        if (path, incarnation) in ended
    ]
    return [VariablesShredded(lives=tuple(found[:LIVES_MAX]))] if found else []


def decide_key(state: State, command: CreateKey) -> list[Event]:
    """Make a public key known, unless it is."""
    is_key = _KEY_ID.fullmatch(command.key_id) and len(command.public) == PUBLIC_KEY_BYTES
    if not is_key or command.key_id in state.variables.keys:
        return []
    return [KeyCreated(key_id=command.key_id, public=command.public)]


def _was_deleted_by(table: VariableTable, command: DeleteVariable) -> bool:
    row = table.by_path.get(command.path)
    return row is not None and command.request_id in row.deletes


def _malformed(command: PutVariable) -> str:
    """Say what no state would take; empty: nothing."""
    if reason := path_fault(command.path) or _request_fault(command.request_id):
        return reason
    if command.items < 1:
        return "a variable requires items"
    if not 0 <= command.size <= SIZE_BYTES_MAX:
        return f"the items have {command.size} bytes, at most {SIZE_BYTES_MAX} are allowed"
    if len(command.cipher) > CIPHER_BYTES_MAX:
        size = len(command.cipher)
        return f"the ciphertext has {size} bytes, at most {CIPHER_BYTES_MAX} are allowed"
    return "" if _DIGEST.fullmatch(command.digest) else "the digest is not 32 hex digits"


def _request_fault(request_id: str) -> str:
    if not request_id:
        return "the request has no id"
    size = len(request_id)
    if size > REQUEST_ID_CHARS_MAX:
        return f"request_id has {size} characters, at most {REQUEST_ID_CHARS_MAX} are allowed"
    return ""


def _unfit(state: State, command: PutVariable) -> Fault | None:
    """Say why a put does not fit the present state of its path."""
    table = state.variables
    if reason := _lock_fault(state, command):
        return "locked", reason
    if reason := _cas_fault(table, command):
        return "conflict", reason
    expected = table.incarnation_of_put(command.path, shred_old=command.shred_old)
    if command.incarnation == expected:
        return None
    said = f"{command.path!r} was encrypted for incarnation {command.incarnation}"
    return "stale", f"{said}, the next put must be for {expected}"


def decide_lock(state: State, command: LockVariable, now_ns: int) -> list[Event]:
    """Let a lock hold a path, unless it does already."""
    now_ns = max(now_ns, state.t_ns)
    locks = state.variable_locks.by_path
    if reason := _malformed_lock(command):
        return refuse_request(state, command, "invalid", reason)
    held = locks.get(command.path)
    is_done = held is not None and held.lock == command.lock
    if is_done or (command.path, command.request_id) in state.variables.refused:
        return []
    if held is not None and (held.lock or held.free_ns > now_ns):
        why = "is held by another lock" if held.lock else "was held by a lock that has just expired"
        return refuse_request(state, command, "locked", f"{command.path!r} {why}")
    if held is None and len(locks) >= LOCKS_MAX:
        reason = f"{len(locks)} paths are locked, at most {LOCKS_MAX} may be"
        return refuse_request(state, command, "quota", reason)
    locked = VariableLocked(
        path=command.path,
        lock=command.lock,
        ttl_ns=command.ttl_ns,
        delay_ns=command.delay_ns,
        at_ns=now_ns,
        request_id=command.request_id,
    )
    return [locked]


def decide_release(state: State, command: ReleaseLock) -> list[Event]:
    """Give a lock back; one that does not hold the path is given back already."""
    if state.variable_locks.holder(command.path) != command.lock or not command.lock:
        return []
    released = VariableLockReleased(
        path=command.path, lock=command.lock, request_id=command.request_id
    )
    return [released]


def decide_expiry(state: State, command: ExpireLock, now_ns: int) -> list[Event]:
    """End a lock whose holder was silent; the path stays free for its delay."""
    held = state.variable_locks.by_path.get(command.path)
    if held is None or not command.lock or held.lock != command.lock:
        return []
    free_ns = max(now_ns, state.t_ns) + held.delay_ns
    return [VariableLockExpired(path=command.path, lock=command.lock, free_ns=free_ns)]


def _malformed_lock(command: LockVariable) -> str:
    if reason := path_fault(command.path) or _request_fault(command.request_id):
        return reason
    if not _DIGEST.fullmatch(command.lock):
        return "the lock is not 32 hex digits"
    for name, value, (least, most) in (
        ("ttl", command.ttl_ns, TTL_NS),
        ("delay", command.delay_ns, DELAY_NS),
    ):
        if not least <= value <= most:
            bounds = f"{least // SECOND_NS} to {most // SECOND_NS} s"
            return f"{name} is {value / SECOND_NS:g} s, it must be {bounds}"
    return ""


def _lock_fault(state: State, command: PutVariable | DeleteVariable) -> str:
    holder = state.variable_locks.holder(command.path)
    if holder == command.lock:
        return ""
    held = f"{command.path!r} is locked" if holder else f"{command.path!r} is not locked"
    return f"{held}, by another lock" if holder and command.lock else held


def _cas_fault(table: VariableTable, command: PutVariable | DeleteVariable) -> str:
    row = table.find(command.path)
    revision = 0 if row is None else row.revision
    if command.cas < 0 or command.cas == revision:
        return ""
    if row is None:
        return f"{command.path!r} does not exist, revision {command.cas} is expected"
    expected = f"revision {command.cas}" if command.cas else "none"
    return f"{command.path!r} has revision {revision}, {expected} is expected"


def _beyond_limits(table: VariableTable, command: PutVariable, now_ns: int) -> Fault | None:
    """Say which limit a put would exceed."""
    row = table.by_path.get(command.path)
    recent = [] if row is None else [one for one in row.puts if one.at_ns > now_ns - PUTS_SPAN_NS]
    if len(recent) >= PUTS_MAX:
        seconds = PUTS_SPAN_NS // 1_000_000_000
        said = f"{command.path!r} was put {len(recent)} times within {seconds} seconds"
        return "rate", f"{said}, at most {PUTS_MAX} are allowed"
    total = table.total_size + command.size - (0 if row is None else row.size)
    if total > TOTAL_SIZE_BYTES_MAX:
        said = f"all variables together would have {total} bytes"
        return "quota", f"{said}, at most {TOTAL_SIZE_BYTES_MAX} are allowed"
    return None


DECIDERS: Deciders = {
    DeleteVariable: decide_delete,
    ReleaseLock: decide_release,
    ShredVariables: decide_shred,
    CreateKey: decide_key,
}
TIMED_DECIDERS: TimedDeciders = {
    PutVariable: decide_put,
    LockVariable: decide_lock,
    ExpireLock: decide_expiry,
}
