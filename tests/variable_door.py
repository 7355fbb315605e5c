"""A keeper's door for tests of its clients: it opens and seals real boxes, and keeps variables in a dictionary."""

from typing import Any

import msgspec

from schemas.jobs import ErrorDetail
from schemas.variables import (
    DeleteVariableRequest,
    GetVariableRequest,
    LockVariableRequest,
    PutVariableRequest,
    ReleaseLockRequest,
    RenewLockRequest,
    VariableAnswer,
    VariableVerdict,
)
from shared.errors import BusUnavailable
from shared.protocol import subjects
from shared.protocol.variable_items import decode_items, encode_items
from shared.sealed_box import key_id, new_pair, open_box, seal

CLUSTER = "cluster-1"
SECOND_NS = 1_000_000_000


class Row(msgspec.Struct, kw_only=True):
    """A variable that exists."""

    revision: int
    create_seq: int
    items: dict[str, str]


class FakeDoor:
    """Answers `query.keys`, `query.variables` and `api.variable.*`; `ask` is what a client is given.

    `silent`: subjects of which so many requests are carried out and not answered. `pending`: how many verdicts say that
    nothing is decided yet. `absent`: there is no keeper.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.seq = 10
        self.pairs: list[tuple[bytes, bytes]] = [new_pair()]
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.raw: list[bytes] = []
        self.silent: dict[str, int] = {}
        self.pending = 0
        self.absent = False
        #: how often the key is rotated as soon as it was asked for.
        self.rotates = 0
        #: requests that were carried out, with the revision of each.
        self.done: dict[str, int] = {}
        #: path -> the request for the lock that holds it; no time passes here: a test ends what is to expire.
        self.locks: dict[str, LockVariableRequest] = {}
        self.ttl_min_ns = 10 * SECOND_NS

    async def ask(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        """Answer one request, as a connection does. Raises BusUnavailable."""
        self.asked.append((subject, msgspec.json.decode(body)))
        self.raw.append(body)
        if self.absent and subject.startswith("api."):
            raise BusUnavailable(f"no responder on {subject}")
        answer = self._answer(subject, body)
        if self.silent.get(subject, 0) > 0:
            self.silent[subject] -= 1
            raise BusUnavailable(f"no answer on {subject} within {timeout_s} s")
        return msgspec.json.encode(answer)

    def written(self, path: str, items: dict[str, str] | None) -> int:
        """Return the seq at which the log says of a path that it has these items; None: that it is deleted."""
        del path, items
        self.seq += 1
        return self.seq

    def lock_written(self, path: str, lock: LockVariableRequest | None) -> None:
        """Write into the log that a lock holds a path; None: that it was given back."""

    def sent(self, verb: str) -> list[dict[str, Any]]:
        """The requests of one verb."""
        return [body for subject, body in self.asked if subject == subjects.api("variable", verb)]

    def _answer(self, subject: str, body: bytes) -> Any:
        match subject.split("."):
            case ["query", "keys"]:
                return self._keys()
            case ["query", "variables"]:
                return self._list(msgspec.json.decode(body))
            case ["api", "variable", "put"]:
                return self._put(msgspec.json.decode(body, type=PutVariableRequest))
            case ["api", "variable", "delete"]:
                return self._delete(msgspec.json.decode(body, type=DeleteVariableRequest))
            case ["api", "variable", "lock"]:
                return self._lock(msgspec.json.decode(body, type=LockVariableRequest))
            case ["api", "variable", "renew"]:
                return self._renew(msgspec.json.decode(body, type=RenewLockRequest))
            case ["api", "variable", "release"]:
                return self._release(msgspec.json.decode(body, type=ReleaseLockRequest))
            case _:
                return self._get(msgspec.json.decode(body, type=GetVariableRequest))

    def _keys(self) -> Any:
        told = [{"key_id": key_id(public), "public": public} for _, public in self.pairs]
        if self.rotates:
            self.rotates -= 1
            self.pairs = [new_pair()]
        return {"seq": self.seq, "cluster_id": CLUSTER, "keys": told}

    def _list(self, query: dict[str, Any]) -> Any:
        found = [
            {
                "path": path,
                "revision": row.revision,
                "create_seq": row.create_seq,
                "create_ns": row.create_seq * SECOND_NS,
                "modify_ns": row.revision * SECOND_NS,
                "items": len(row.items),
                "size": sum(len(k.encode()) + len(v.encode()) for k, v in row.items.items()),
                "lock_seq": 1 if path in self.locks else 0,
            }
            for path, row in sorted(self.rows.items())
            if path.startswith(query.get("id", ""))
        ]
        total, at = len(found), query.get("offset", 0)
        page = found[at : at + query.get("limit", 1000)]
        return {"seq": self.seq, "cluster_id": CLUSTER, "variables": page, "total": total}

    def _put(self, body: PutVariableRequest) -> Any:
        known = {key_id(public): private for private, public in self.pairs}
        if body.key_id not in known:
            return self._refused(body.request_id, "conflict", "sealed for a key not in force", 0)
        context = ("put", CLUSTER, body.path, body.request_id)
        items = decode_items(open_box(body.sealed, known[body.key_id], context))
        row = self.rows.get(body.path)
        if body.request_id not in self.done:
            fault = self._lock_fault(body) or self._cas_fault(body.request_id, row, body.cas)
            if fault is not None:
                return fault
            seq = self.written(body.path, items)
            create = row.create_seq if row is not None and not body.shred_old else seq
            self.rows[body.path] = Row(revision=seq, create_seq=create, items=items)
            self.done[body.request_id] = seq
        return self._verdict(body.request_id, self.done[body.request_id])

    def _delete(self, body: DeleteVariableRequest) -> Any:
        row = self.rows.get(body.path)
        if body.request_id not in self.done:
            fault = self._lock_fault(body) or self._cas_fault(body.request_id, row, body.cas)
            if fault is not None:
                return fault
            self.done[body.request_id] = 0
            if self.rows.pop(body.path, None) is not None:
                self.written(body.path, None)
        return self._verdict(body.request_id, 0)

    def _get(self, body: GetVariableRequest) -> Any:
        row = self.rows.get(body.path)
        if row is None:
            error = ErrorDetail(code="not_found", message=f"there is no variable {body.path!r}")
            return VariableAnswer(error=error)
        plain = encode_items(row.items)
        context = ("get", CLUSTER, body.path, str(row.revision))
        return VariableAnswer(
            path=body.path,
            revision=row.revision,
            create_seq=row.create_seq,
            create_ns=row.create_seq * SECOND_NS,
            modify_ns=row.revision * SECOND_NS,
            items=len(row.items),
            size=len(plain),
            sealed=seal(plain, body.public, context),
        )

    def _lock(self, body: LockVariableRequest) -> Any:
        held = self.locks.get(body.path)
        if held is not None and held.lock_id != body.lock_id:
            text = f"{body.path!r} is held by another lock"
            return self._refused(body.request_id, "conflict", text, 0)
        if not self.ttl_min_ns <= body.ttl_ns <= 86_400 * SECOND_NS:
            return self._refused(body.request_id, "invalid", "ttl must be 10 to 86400 s", 0)
        if held is None:
            self.locks[body.path] = body
            self.lock_written(body.path, body)
        return self._verdict(body.request_id, 0)

    def _renew(self, body: RenewLockRequest) -> Any:
        if self._holder(body.path) != body.lock_id:
            return self._refused("", "not_found", f"the lock does not hold {body.path!r}", 0)
        return self._verdict("", 0)

    def _release(self, body: ReleaseLockRequest) -> Any:
        if self._holder(body.path) == body.lock_id:
            del self.locks[body.path]
            self.lock_written(body.path, None)
        return self._verdict(body.request_id, 0)

    def _holder(self, path: str) -> str:
        return self.locks[path].lock_id if path in self.locks else ""

    def _lock_fault(self, body: PutVariableRequest | DeleteVariableRequest) -> Any:
        if self._holder(body.path) == body.lock_id:
            return None
        is_held = "locked" if body.path in self.locks else "not locked"
        return self._refused(body.request_id, "conflict", f"{body.path!r} is {is_held}", 0)

    def _cas_fault(self, request_id: str, row: Row | None, cas: int) -> Any:
        present = row.revision if row is not None else 0
        if cas in (-1, present):
            return None
        text = f"check-and-set {cas}: the present revision is {present}"
        return self._refused(request_id, "conflict", text, present)

    def _verdict(self, request_id: str, revision: int) -> VariableVerdict:
        if self.pending:
            self.pending -= 1
            return VariableVerdict(request_id=request_id, status="pending")
        return VariableVerdict(request_id=request_id, status="accepted", revision=revision)

    @staticmethod
    def _refused(request_id: str, code: str, text: str, revision: int) -> VariableVerdict:
        error = ErrorDetail(code=code, message=text)
        return VariableVerdict(
            request_id=request_id, status="refused", revision=revision, error=error
        )
