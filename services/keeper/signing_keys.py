"""The keys that sign identities: which are stored, which one is in force, and what the log is to say of them (ADR 38).

A key is durable in the store before the log makes its public part known; one whose fact a crash prevented gets it from
the next leader. Where the log knows none, one is made, also in a cluster of an older release. Where it knows some and
the store lacks the one in force, an operator decides: to restore the store, or to rotate. A key that was removed is
erased behind its fact; a crash in between is made up for when the store opens. Who asks: `keyring.py`.
"""

from collections.abc import Callable

from schemas.envelope import AnyCommand
from schemas.identities import (
    CreateSigningKey,
    RemoveSigningKey,
    SigningKeyCreated,
    SigningKeyRemoved,
)
from services.keeper.variable_requests import ask_vault
from shared.core.runtime.deadline_timer import RESEND_NS, earliest
from shared.core.runtime.keeper_messages import (
    EraseSigningKeys,
    MakeSigningKey,
    SigningKeyMade,
    SigningKeysErased,
    StoredSigningKey,
    VaultFailed,
)
from shared.core.runtime.replica import Replica
from shared.core.runtime.resend_table import ResendTable
from shared.core.runtime.step import Step
from shared.core.state.tables.signing_keys import SigningKeyTable
from shared.errors import CommandInvalid

ALGORITHM = "RS256"
#: A first key that could not be made is tried again.
RETRY_NS = 10_000_000_000
_RESEND_MAX_NS = 8_000_000_000


def lost_key(key_id: str) -> str:
    """Say that the store lacks a key, and what an operator does."""
    return (
        f"stream KEYS has no private part of signing key {key_id}: restore it from a backup of the bus, "
        "or rotate the signing key (docs/operations.md)"
    )


class SigningKeys:
    """Signing keys of the keeper that leads. `opened` first, `close` without a store, and when it leads no longer."""

    def __init__(
        self,
        replica: Replica,
        *,
        send: Callable[[AnyCommand, Step], None],
        new_token: Callable[[], int],
    ) -> None:
        self._replica = replica
        self._send = send
        self._new_token = new_token
        #: ids in the store; None: it is not open.
        self._stored: set[str] | None = None
        #: token of the key that the vault makes; 0: none.
        self._making = 0
        self._retry_ns = 0
        #: by key id: what the log does not show yet.
        self._commands: dict[str, AnyCommand] = {}
        self._asked = ResendTable[str](_RESEND_MAX_NS)

    @property
    def _table(self) -> SigningKeyTable:
        return self._replica.state.signing_keys

    @property
    def fault(self) -> str:
        """Why identities cannot be signed until an operator does something; empty: they can, or will soon."""
        newest = self._table.newest
        if self._stored is None or not newest or newest in self._stored:
            return ""
        return lost_key(newest)

    def in_force(self) -> str:
        """Return the id of the key that signs. Raises CommandInvalid (unavailable): there is none yet.

        The store may lack its private part, or have it again: the vault finds out at each question.
        """
        if not self._table.newest:
            raise CommandInvalid("unavailable", "the first signing key is being made")
        return self._table.newest

    # ---- what an operator may ask for ----

    def rotate(self, step: Step) -> None:
        """Have another key made, which signs from its fact on, unless one is made or on its way to the log."""
        is_on_its_way = any(isinstance(one, CreateSigningKey) for one in self._commands.values())
        if not self._making and not is_on_its_way:
            self._making = self._new_token()
            known = (*self._table.by_id, *self._table.removed)
            ask_vault(MakeSigningKey(token=self._making, known=known), step)

    def remove(self, key_id: str, step: Step) -> bool:
        """Have a key taken away; False: it was before. Raises CommandInvalid: it is in force, or unknown."""
        if key_id in self._table.removed:
            return False
        if key_id not in self._table.by_id:
            raise CommandInvalid("not_found", f"there is no signing key {key_id}")
        if key_id == self._table.newest:
            text = f"signing key {key_id} is in force: rotate it first"
            raise CommandInvalid("conflict", text)
        if key_id not in self._commands:
            self._command(key_id, RemoveSigningKey(key_id=key_id), step)
        return True

    # ---- from the vault ----

    def opened(self, stored: tuple[StoredSigningKey, ...], step: Step) -> None:
        """Begin with the keys of a store: erase what the log removed, tell it what it lacks, see that there is one."""
        self._stored = {one.key_id for one in stored}
        self._erase([one.key_id for one in stored if one.key_id in self._table.removed], step)
        for one in stored:
            if one.key_id not in self._table.removed and one.key_id not in self._table.by_id:
                self._announce(one.key_id, one.public, step)
        if not self._table.by_id:
            self.rotate(step)

    def answered(self, item: SigningKeyMade | SigningKeysErased, step: Step) -> None:
        """Take an answer of the vault."""
        match item:
            case SigningKeyMade():
                self._made(item, step)
            case SigningKeysErased() if self._stored is not None:
                self._stored.difference_update(item.key_ids)
            case _:
                pass

    def _made(self, item: SigningKeyMade, step: Step) -> None:
        """Have the log make a key known that is durable."""
        if self._stored is None or item.token != self._making:
            return
        self._making = self._retry_ns = 0
        self._stored.add(item.key_id)
        self._announce(item.key_id, item.public, step)

    def failed(self, item: VaultFailed, step: Step) -> bool:
        """Try again where there is no key at all, else an operator asks again; False: it is of something else."""
        if item.token != self._making:
            return False
        self._making = 0
        self._retry_ns = 0 if self._table.by_id else step.steady_ns + RETRY_NS
        return True

    # ---- from the log, and time ----

    def see(self, event: SigningKeyCreated | SigningKeyRemoved, step: Step) -> bool:
        """Take what the log says of a key; True: it is new, and the open store was read before it had that."""
        self._shown(event.key_id)
        if isinstance(event, SigningKeyCreated):
            return self._stored is not None and event.key_id not in self._stored
        if event.key_id in (self._stored or ()):
            self._erase([event.key_id], step)
        return False

    def finish(self, step: Step) -> None:
        """Send again what the log does not show."""
        for key_id in self._asked.due(step.steady_ns):
            self._asked.sent_again(key_id, step.steady_ns)
            self._send(self._commands[key_id], step)
        if 0 < self._retry_ns <= step.steady_ns:
            self._retry_ns = 0
            self.rotate(step)

    def next_ns(self) -> int:
        """Return when something is due; 0: nothing is."""
        return earliest(self._retry_ns, self._asked.next_ns())

    def hurry(self, step: Step) -> None:
        """Send everything again: another plan applier may have got none of it."""
        self._asked.hurry(step.steady_ns)

    def close(self, *, leads: bool) -> None:
        """Make no key until the store is opened again. Removals need no store: they continue if this keeper `leads`."""
        self._stored = None
        self._making = self._retry_ns = 0
        for key_id, command in list(self._commands.items()):
            if not leads or isinstance(command, CreateSigningKey):
                self._shown(key_id)

    # ---- inside ----

    def _shown(self, key_id: str) -> None:
        self._commands.pop(key_id, None)
        self._asked.remove(key_id)

    def _announce(self, key_id: str, public: bytes, step: Step) -> None:
        command = CreateSigningKey(key_id=key_id, algorithm=ALGORITHM, public=public)
        self._command(key_id, command, step)

    def _command(self, key_id: str, command: AnyCommand, step: Step) -> None:
        self._commands[key_id] = command
        self._asked.add(key_id, step.steady_ns + RESEND_NS)
        self._send(command, step)

    def _erase(self, key_ids: list[str], step: Step) -> None:
        if key_ids:
            ask_vault(EraseSigningKeys(key_ids=tuple(key_ids)), step)
