"""Variables, followed again from the log: lives of paths, check and set, limits, each request carried out once.

A part of the reference model; it shares no code with the table and the decisions. What the log does not say, such as
the revision that a request expects, is known from the request itself, which its sender shows before it sends it.
"""

from typing import NamedTuple

from schemas import identities, variables
from shared.core.state.state import State
from shared.sim.oracle.invariants import InvariantChecks

_RULE = "variable_by_rule"
_PUTS, _SPAN_NS = 10, 60 * 10**9
_SIZE_MAX, _TOTAL_MAX = 64 * 1024, 64 * 1024**2
Request = (
    variables.PutVariable
    | variables.DeleteVariable
    | variables.LockVariable
    | variables.ReleaseLock
)


class ReferencePut(NamedTuple):
    """One put."""

    at_ns: int
    request_id: str
    digest: str


class ReferenceVariable(NamedTuple):
    """A variable that exists."""

    incarnation: int
    revision: int
    create_seq: int
    create_ns: int
    modify_ns: int
    cipher: bytes
    digest: str
    items: int
    size: int


class ReferenceVariables:
    """All paths and keys."""

    def __init__(self, ledger: InvariantChecks) -> None:
        self._ledger = ledger
        self.live: dict[str, ReferenceVariable] = {}
        #: the newest life of each path.
        self.last: dict[str, int] = {}
        #: lives that are over and not shredded, with the seq of their end.
        self.ended: dict[tuple[str, int], int] = {}
        #: oldest first.
        self.keys: dict[str, bytes] = {}
        #: keys of identities, oldest first, and those that were taken away.
        self.signing: dict[str, bytes] = {}
        self.unsigned: set[str] = set()
        #: request -> put, deleted or refused.
        self.told: dict[str, str] = {}
        self._sent: dict[str, list[Request]] = {}
        #: requests that were refused for good.
        self._refused: set[tuple[str, str]] = set()
        #: path -> the lock that holds it, with its delay.
        self.locks: dict[str, tuple[str, int]] = {}
        #: log time before which a path cannot be locked.
        self._free_ns: dict[str, int] = {}
        self._puts: dict[str, list[ReferencePut]] = {}
        self._deletes: dict[str, list[str]] = {}

    def show(self, request: Request) -> None:
        """Make known what will be sent; a keeper encrypts a request anew for another life of its path."""
        known = self._sent.setdefault(request.request_id, [])
        if request not in known:
            known.append(request)

    def apply(self, event: object, seq: int, t_ns: int) -> None:
        """Apply and check one fact. Raises InvariantBroken."""
        match event:
            case variables.VariablePut():
                self._put(event, seq, t_ns)
            case variables.VariableDeleted():
                self._delete(event, seq, t_ns)
            case variables.VariableRefused():
                self._refuse(event, t_ns)
            case variables.VariableLocked():
                self._lock(event, t_ns)
            case variables.VariableLockReleased():
                self._hold(self.locks.get(event.path, ("", 0))[0] == event.lock, event)
                del self.locks[event.path]
                self.told[event.request_id] = "released"
            case variables.VariableLockExpired():
                lock, delay_ns = self.locks.pop(event.path, ("", 0))
                is_late = t_ns - 10**9 <= event.free_ns - delay_ns <= t_ns
                self._hold(lock == event.lock and is_late, event, lock, t_ns)
                self._free_ns[event.path] = event.free_ns
            case variables.VariablesShredded():
                lives = [(one.path, one.incarnation) for one in event.lives]
                over = bool(lives) and all(life in self.ended for life in lives)
                self._hold(over and len(lives) == len(set(lives)), event, self.ended)
                for life in lives:
                    del self.ended[life]
            case variables.KeyCreated():
                self._hold(event.key_id not in self.keys, event)
                self.keys[event.key_id] = event.public
            case identities.SigningKeyCreated():
                is_new = event.key_id not in self.signing and event.key_id not in self.unsigned
                self._hold(is_new and event.at_ns <= t_ns, event)
                self.signing[event.key_id] = event.public
            case identities.SigningKeyRemoved():
                self._hold(event.key_id in [*self.signing][:-1], event, self.signing)
                del self.signing[event.key_id]
                self.unsigned.add(event.key_id)
            case _:
                pass

    def next_life(self, path: str) -> int:
        """The life for which the next put is encrypted, if it does not end the present one."""
        return self.last.get(path, 0) + (path not in self.live)

    def differences(self, state: State) -> list[str]:
        """Say where the table differs."""
        table = state.variables
        rows = {
            path: ReferenceVariable(
                *(row.incarnation, row.revision, row.create_seq, row.create_ns, row.modify_ns),
                *(row.cipher, row.digest, row.items, row.size),
            )
            for path, row in table.by_path.items()
            if row.revision
        }
        last = {path: row.incarnation for path, row in table.by_path.items()}
        marks = {path: [one.request_id for one in row.puts] for path, row in table.by_path.items()}
        puts = {path: [one.request_id for one in found] for path, found in self._puts.items()}
        pairs = {
            "rows": (rows, self.live),
            "lives": (last, self.last),
            "ended": (table.ended, self.ended),
            "keys": ([*table.keys], [*self.keys]),
            "signing": ([*state.signing_keys.by_id], [*self.signing]),
            "removed": (set(state.signing_keys.removed), self.unsigned),
            "locks": (
                {path: one.lock for path, one in state.variable_locks.by_path.items() if one.lock},
                {path: lock for path, (lock, _) in self.locks.items()},
            ),
            "paths": (table.live, sorted(self.live)),
            "size": (table.total_size, sum(one.size for one in self.live.values())),
            "puts": (marks, {path: found[-_PUTS:] for path, found in puts.items()}),
        }
        return [
            f"{name}: {said}, not {ours}" for name, (said, ours) in pairs.items() if said != ours
        ]

    # ---- facts ----

    def _put(self, event: variables.VariablePut, seq: int, t_ns: int) -> None:
        sent = self._meant(event.request_id, event.incarnation)
        assert isinstance(sent, variables.PutVariable)
        same = all(
            getattr(event, name) == getattr(sent, name)
            for name in ("path", "incarnation", "cipher", "digest", "items", "size")
        )
        self._hold(same and event.at_ns <= t_ns, event, sent)
        # The end of the life before, if any, is in the log already.
        ended = self.told.get(event.request_id) == "shred_old"
        judged = "" if ended else self._judge(sent, event.at_ns)
        self._hold(judged == "" and ended <= sent.shred_old, event, sent, judged)
        old = self.live.get(event.path)
        self._hold(event.incarnation == self.next_life(event.path), event, self.last)
        self.last[event.path] = event.incarnation
        self.live[event.path] = ReferenceVariable(
            incarnation=event.incarnation,
            revision=seq,
            create_seq=seq if old is None else old.create_seq,
            create_ns=event.at_ns if old is None else old.create_ns,
            modify_ns=event.at_ns,
            cipher=event.cipher,
            digest=event.digest,
            items=event.items,
            size=event.size,
        )
        put = ReferencePut(event.at_ns, event.request_id, event.digest)
        self._puts.setdefault(event.path, []).append(put)
        self.told[event.request_id] = "put"

    def _delete(self, event: variables.VariableDeleted, seq: int, t_ns: int) -> None:
        sent = self._sent[event.request_id][-1]
        judged = [self._judge(one, t_ns) for one in self._sent[event.request_id]]
        self._hold("" in judged, event, sent, judged)
        is_put = isinstance(sent, variables.PutVariable)
        self._hold(not is_put or getattr(sent, "shred_old", False), event, sent)
        old = self.live.pop(event.path, None)
        self._hold(old is not None and old.incarnation == event.incarnation, event, old)
        self.ended[event.path, event.incarnation] = seq
        self._deletes.setdefault(event.path, []).append(event.request_id)
        self.told[event.request_id] = "shred_old" if is_put else "deleted"

    def _lock(self, event: variables.VariableLocked, t_ns: int) -> None:
        sent = self._sent[event.request_id][-1]
        same = all(
            getattr(event, name) == getattr(sent, name)
            for name in ("path", "lock", "ttl_ns", "delay_ns")
        )
        is_free = event.path not in self.locks and self._free_ns.get(event.path, 0) <= t_ns
        self._hold(same and is_free, event, sent, self.locks, self._free_ns)
        self.locks[event.path] = (event.lock, event.delay_ns)
        self.told[event.request_id] = "locked"

    def _refuse(self, event: variables.VariableRefused, t_ns: int) -> None:
        sent = self._sent[event.request_id][-1]
        judged = [self._judge(one, t_ns) for one in self._sent[event.request_id]]
        present = self.live.get(event.path)
        revision = 0 if present is None else present.revision
        self._hold(event.code in judged and event.revision == revision, event, sent, judged)
        if event.code in {"conflict", "locked", "quota"}:
            self._refused.add((event.path, event.request_id))
        self.told.setdefault(event.request_id, "refused")

    def _meant(self, request_id: str, incarnation: int) -> Request | None:
        """The request for a life of its path."""
        found = [
            one
            for one in self._sent[request_id]
            if getattr(one, "incarnation", incarnation) == incarnation
        ]
        self._hold(bool(found), request_id, incarnation)
        return found[-1]

    # ---- the rules ----

    def _judge(self, sent: Request, t_ns: int) -> str:
        """The code of a refusal; done: it was carried out before; empty: it is carried out now."""
        if sent.path.startswith("nomad") and not sent.path.startswith("nomad/jobs"):
            return "invalid"
        present = self.live.get(sent.path)
        if (sent.path, sent.request_id) in self._refused:
            # A late copy changes nothing: the verdict of its sender stays true.
            return "done"
        if not isinstance(sent, variables.PutVariable):
            return self._judge_other(sent, present, t_ns)
        if sent.items < 1 or sent.size > _SIZE_MAX:
            return "invalid"
        for put in reversed(self._puts.get(sent.path, ())):
            if put.request_id == sent.request_id:
                return "done" if put.digest == sent.digest else "conflict"
        if self.locks.get(sent.path, ("", 0))[0] != sent.lock:
            return "locked"
        if self._is_other(sent, present):
            return "conflict"
        life = self.next_life(sent.path) + (sent.shred_old and present is not None)
        if sent.incarnation != life:
            return "stale"
        recent = [one for one in self._puts.get(sent.path, ()) if one.at_ns > t_ns - _SPAN_NS]
        if len(recent) >= _PUTS:
            return "rate"
        others = sum(one.size for path, one in self.live.items() if path != sent.path)
        return "quota" if others + sent.size > _TOTAL_MAX else ""

    def _judge_other(self, sent: Request, present: ReferenceVariable | None, t_ns: int) -> str:
        holder = self.locks.get(sent.path, ("", 0))[0]
        if not isinstance(sent, variables.DeleteVariable):
            if holder == sent.lock or isinstance(sent, variables.ReleaseLock):
                return "done"
            is_free = not holder and self._free_ns.get(sent.path, 0) <= t_ns
            return "" if is_free else "locked"
        if sent.request_id in self._deletes.get(sent.path, ()):
            return "done"
        if holder != sent.lock:
            return "locked"
        if self._is_other(sent, present):
            return "conflict"
        is_over = present is None or 0 < sent.incarnation < present.incarnation
        return "done" if is_over else ""

    def _is_other(
        self,
        sent: variables.PutVariable | variables.DeleteVariable,
        present: ReferenceVariable | None,
    ) -> bool:
        """Whether a request expects another revision than the present one."""
        revision = 0 if present is None else present.revision
        return sent.cas >= 0 and sent.cas != revision

    def _hold(self, holds: bool, *detail: object) -> None:  # noqa: FBT001
        self._ledger.hold(_RULE, holds, *detail)
