"""What clients of variables are promised: each request once, what is read was put, keys go when their life is over.

Judges answers by the facts of the log, which it reads by itself, and the key store that all keepers share.
"""

from collections.abc import Iterable

import msgspec

from schemas.base import Event
from schemas.identities import SigningKeyCreated
from schemas.variables import (
    VariableAnswer,
    VariableDeleted,
    VariableLife,
    VariablePut,
    VariablesShredded,
    VariableVerdict,
)
from shared.sim.environment.memory_vault import MemoryKeyStore, unseal_items
from shared.sim.environment.variable_clients import VariableQuestion
from shared.sim.oracle.invariants import InvariantChecks


class _Cipher(msgspec.Struct):
    key: int


class VariableChecks:
    """One world's."""

    def __init__(self, ledger: InvariantChecks, store: MemoryKeyStore) -> None:
        self._ledger = ledger
        self._store = store
        #: request id -> path and revision of its put.
        self._put_at: dict[str, tuple[str, int]] = {}
        #: request id -> revision of its path before it was put or deleted.
        self._before: dict[str, int] = {}
        self._revisions: dict[str, int] = {}
        #: path -> its life, and the ciphertext of its newest put; None: it is deleted.
        self._live: dict[str, tuple[int, bytes | None]] = {}
        #: lives that are over, and whether the log says that they are shredded.
        self._over: dict[tuple[str, int], bool] = {}
        #: keys of all ciphertext in the log.
        self._used: set[int] = set()
        #: lives whose keys an older copy of the store brought back.
        self.resurrected: set[tuple[str, int]] = set()

    def follow(self, events: Iterable[Event], seq: int) -> None:
        """Take the facts of a record."""
        for event in events:
            match event:
                case VariablePut():
                    known = self._put_at.setdefault(event.request_id, (event.path, seq))
                    self._note(event.request_id, event.path, seq)
                    self._ledger.hold("variable_put_once", known == (event.path, seq), event)
                    life, cipher = self._live.get(event.path, (0, None))
                    follows = life + (cipher is None)
                    self._ledger.hold(
                        "life_used_once", event.incarnation == follows, event, follows
                    )
                    self._live[event.path] = (event.incarnation, event.cipher)
                    self._check_readable(event.path)
                case VariableDeleted():
                    self._note(event.request_id, event.path, 0)
                    self._live[event.path] = (event.incarnation, None)
                    self._over[event.path, event.incarnation] = False
                case VariablesShredded():
                    for one in event.lives:
                        self._shredded(one)
                case SigningKeyCreated():
                    is_stored = event.key_id in self._store.signing
                    self._ledger.hold("signing_key_durable", is_stored, event, self._store.signing)
                case _:
                    pass

    def _note(self, request_id: str, path: str, revision: int) -> None:
        self._before.setdefault(request_id, self._revisions.get(path, 0))
        self._revisions[path] = revision

    def _shredded(self, life: VariableLife) -> None:
        key = (life.path, life.incarnation)
        is_gone = self._store.keys.get(key) not in self._used or key in self.resurrected
        self._ledger.hold("key_gone", is_gone and key in self._over, life)
        self._over[key] = True

    def erased(self, life: VariableLife) -> None:
        """Judge that a keeper erases the key of a life: the log says before that it is over."""
        key = (life.path, life.incarnation)
        self._ledger.hold("erased_behind_its_end", key in self._over, life)
        self.resurrected.discard(key)

    def answered(
        self, question: VariableQuestion, answer: VariableVerdict | VariableAnswer
    ) -> None:
        """Judge a final answer by the log."""
        expected = question.body.get("cas", -1)
        if getattr(answer, "status", "") == "accepted" and expected != -1:
            # A delete of what is not there is done without a fact.
            before = self._before.get(question.request_id, 0)
            self._ledger.hold("revision_expected", before == expected, question, answer, before)
        if isinstance(answer, VariableAnswer):
            if answer.error is None:
                self._read(question, answer)
        elif question.verb == "put" and answer.status == "accepted":
            found = self._put_at.get(question.request_id)
            right = found == (question.path, answer.revision)
            self._ledger.hold("accepted_put_in_log", right, question, answer, found)
        elif question.verb == "put" and answer.error is not None:
            is_known = question.request_id in self._put_at
            self._ledger.hold("refused_put_not_in_log", not is_known, question, answer)

    def _read(self, question: VariableQuestion, answer: VariableAnswer) -> None:
        items = unseal_items(answer.sealed)
        put = self._put_at.get(items["value"])
        right = put == (question.path, answer.revision) == (answer.path, answer.revision)
        self._ledger.hold("read_is_what_was_put", right, question, answer, items, put)

    def unsettled(self) -> str:
        """Say what is not erased yet; empty: nothing."""
        late = [key for key, is_shredded in self._over.items() if not is_shredded]
        # A key that was drawn behind the end of its life, for a put that came too late, opens nothing.
        late += [key for key in self._over if self._store.keys.get(key) in self._used]
        return f"keys of ended lives are left: {late[:3]}" if late else ""

    def settle(self) -> None:
        """Judge the end: what exists can be read, and nothing else."""
        for path, (_, cipher) in self._live.items():
            if cipher is not None:
                self._check_readable(path)

    def _check_readable(self, path: str) -> None:
        life, cipher = self._live[path]
        assert cipher is not None
        key, found = _key_of(cipher), self._store.keys.get((path, life))
        self._used.add(key)
        self._ledger.hold("variable_readable", found == key, path, life, key, found)


def _key_of(cipher: bytes) -> int:
    return msgspec.json.decode(cipher, type=_Cipher).key
