"""The keeper: takes requests about variables, has its vault encrypt, and asks the plan applier to write what results.

It sees ciphertext, keyed digests, counts and sizes, never a key or an item: those stay in `vault.py`. Any number may
run; all hear what clients ask, the one that leads answers. It decides nothing about a variable: check and set, lives
and limits are decided by the plan applier, in the log's order. Next: `variable_requests.py`.

The leader erases what a life of a path leaves behind: the log says that it is over, then the vault erases its data key,
then the log says that it is erased. The next leader makes up for a crash in between, from the same table.
"""

from itertools import count

from schemas import envelope
from schemas.base import Event
from schemas.envelope import ENCODER, AnyCommand, CommandBatch
from schemas.policy import ClusterCreated
from schemas.variables import (
    ShredVariables,
    VariableLife,
    VariablesShredded,
)
from services.keeper.held_locks import HeldLocks
from services.keeper.identity_claims import vault_block
from services.keeper.keyring import Keyring
from services.keeper.node_identities import NodeIdentities
from services.keeper.node_variables import NodeVariables
from services.keeper.request_bodies import WITHOUT_VAULT
from services.keeper.signing_keys import SigningKeys
from services.keeper.variable_requests import VariableRequests, ask_vault
from shared.core.runtime.counters import Counters
from shared.core.runtime.deadline_timer import RESEND_NS, earliest
from shared.core.runtime.keeper_messages import (
    EraseKeys,
    IdentitySigned,
    ItemsOpened,
    ItemsSealed,
    KeysChecked,
    KeysErased,
    KeyStoreOpened,
    KeyStoreUnusable,
    OpenKeyStore,
    SealingKeyMade,
    SigningKeyMade,
    SigningKeysErased,
    VaultFailed,
)
from shared.core.runtime.messages import (
    Ack,
    CaughtUp,
    LeadershipLost,
    LeadershipWon,
    Listen,
    LogSpace,
    Message,
    Reconnected,
    Replay,
    Send,
    Source,
)
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.resend_table import ResendTable
from shared.core.runtime.role import Input
from shared.core.runtime.step import Step
from shared.protocol import subjects
from shared.protocol.identity_names import VAULT_AUDIENCE, VAULT_LIFE_S
from shared.protocol.variable_paths import LIVES_MAX

#: A store that cannot be used is tried again: an operator may have put the right key in place.
REOPEN_NS = 10_000_000_000
#: A command that the log does not show is sent again after twice the time, up to this.
RESEND_MAX_NS = 8_000_000_000
#: Requests that wait while the key store is opened.
HELD_MAX = 1_000
BATCH_WINDOW_NS = 5_000_000
_COUNTED = ("requests", "puts", "gets", "deletes", "refusals", "resends", "erased_keys")
#: Beside the variables and keys: which cluster it is, what runs on which node, and what job files say of identities.
_TABLES = frozenset(
    {
        *("policy", "variables", "variable_locks", "signing_keys"),
        *("allocations", "fleet", "launches", "jobs"),
    }
)
#: Sources of messages.
_VARIABLE, _NODE_VARIABLES, _NODE_IDENTITIES = "variable", "node_variables", "node_identities"
_KEYRING = "keyring"
_OPENING, _OPEN, _CLOSED = "opening", "open", "closed"


class Keeper(ReplicatedRole):
    """The role. Replays the variables, and what it takes to know which node may read them."""

    name = "keeper"
    leader_key = "keeper"

    def __init__(
        self,
        *,
        instance: str,
        replicas: ReplicaFactory = Replica,
        issuer: str = "",
        vault_audience: str = VAULT_AUDIENCE,
        vault_life_s: int = VAULT_LIFE_S,
    ) -> None:
        super().__init__(instance, _TABLES, replicas)
        self._counters = Counters("caravan_keeper_", _COUNTED)
        tokens = count(1)
        self._locks = HeldLocks(self.replica)
        self._requests = VariableRequests(
            self.replica, self._counters, self._locks, send=self._send, new_token=tokens.__next__
        )
        self.signing = SigningKeys(self.replica, send=self._send, new_token=tokens.__next__)
        self._of_nodes = NodeVariables(self.replica, tokens.__next__)
        self._identities = NodeIdentities(
            self.replica,
            self.signing,
            tokens.__next__,
            issuer=issuer,
            vault=vault_block(vault_audience, vault_life_s),
        )
        self._keyring = Keyring(
            self.replica,
            self._counters,
            self.signing,
            send=self._send,
            new_token=tokens.__next__,
        )
        self._takers: dict[str, VariableRequests | NodeVariables | NodeIdentities | Keyring] = {
            _VARIABLE: self._requests,
            _NODE_VARIABLES: self._of_nodes,
            _NODE_IDENTITIES: self._identities,
            _KEYRING: self._keyring,
        }
        self._store = _CLOSED
        #: why the key store cannot be used; empty: it can, or is not looked at yet.
        self._fault = ""
        self._reopen_ns = 0
        #: what came before the key store was open.
        self._held: list[Message] = []
        #: lives whose keys the vault was asked to erase, and those of which it has.
        self._erasing: set[tuple[str, int]] = set()
        self._erased: dict[tuple[str, int], VariableLife] = {}
        self._asked = ResendTable[str](RESEND_MAX_NS)

    def sources(self) -> tuple[Source, ...]:
        """The log, and what clients ask: every instance hears it, one answers."""
        replay = Replay(space=True, tables=self.replica.tables, batch_window_ns=BATCH_WINDOW_NS)
        return (
            replay,
            Listen(_VARIABLE, subjects.API_VARIABLES),
            Listen(_NODE_VARIABLES, subjects.NODE_VARIABLES),
            Listen(_NODE_IDENTITIES, subjects.NODE_IDENTITIES),
            Listen(_KEYRING, subjects.API_KEYRING),
        )

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and what waits."""
        waiting = {
            "waiting_requests": sum(map(len, self._takers.values())) + len(self._held),
            "waiting_erasures": len(self._erasing) + len(self._erased),
            "held_locks": len(self._locks),
            "store_open_info": self._store == _OPEN,
        }
        return {**self._counters.totals(), **self._counters.gauges(waiting)}

    @property
    def alarms(self) -> tuple[str, ...]:
        """What an operator should know: no variable can be read or written, or no identity signed."""
        if self._fault:
            return (f"the keeper cannot use its keys: {self._fault}",)
        reason = self.signing.fault
        return (f"the keeper cannot sign identities: {reason}",) if reason else ()

    # ---- inputs ----

    def on_message(self, message: Message, step: Step) -> None:
        """Take a request of a client, or leave it to the instance that leads."""
        if not self.is_acting or not message.reply:
            step.emit(Ack(message.token))
            return
        is_open = self._store == _OPEN or _is_without_vault(message)
        if not is_open and not self._fault and len(self._held) < HELD_MAX:
            self._held.append(message)
        else:
            self._counters.add("requests")
            asked = self._takers[message.source]
            if is_open:
                asked.asked(message, step)
            else:
                asked.refuse(message, "unavailable", self._fault or "the keeper is starting", step)

    def _on_failed(self, message: Message, reason: str, step: Step) -> None:
        """Refuse what cannot be handled; a standby leaves that to the one that leads."""
        if self.is_acting:
            for one in self._takers.values():
                one.forget(message.token)
            super()._on_failed(message, reason, step)
        else:
            step.emit(Ack(message.token))

    def on_input(self, item: Input, step: Step) -> None:
        """Take answers of the vault, and changes of leadership and connection."""
        match item:
            case LeadershipWon() | CaughtUp():
                self._locks.begin(step.steady_ns)
                self._begin(step)
            case LeadershipLost():
                self._end(step)
            case Reconnected():
                self._hurry(step)
            case LogSpace():
                self.replica.room.learn(item)
                self._requests.learn(item, step)
            case _:
                self._take_answer(item, step)

    def _take_answer(self, item: object, step: Step) -> None:
        """Take an answer of the vault; one that was asked for under an earlier leadership means nothing."""
        if isinstance(item, ItemsSealed) and self._is_over(item.life):
            # Its key was made behind the end of the life: it would stay.
            ask_vault(EraseKeys(lives=(item.life,)), step)
        if not self.is_acting:
            return
        match item:
            case KeyStoreOpened():
                self._opened(item, step)
            case KeyStoreUnusable():
                self._unusable(item.reason, step)
            case ItemsSealed():
                self._requests.sealed(item, step)
            case ItemsOpened():
                self._requests.opened(item, step)
                self._of_nodes.opened(item, step)
            case IdentitySigned():
                self._identities.signed(item, step)
                newest = self.replica.state.signing_keys.newest
                if self._store == _OPEN and self.signing.fault and item.key_id == newest:
                    # The store was restored, or another keeper made the key: it is read anew.
                    self._open(step)
            case VaultFailed():
                for one in self._takers.values():
                    one.failed(item, step)
            case SealingKeyMade() | SigningKeyMade() | SigningKeysErased():
                self._keyring.answered(item, step)
            case KeysChecked():
                self._keyring.answered(item, step)
                self._erase_lives([one for one in item.lives if self._is_over(one)], step)
            case KeysErased():
                self._note_erased(item, step)
            case _:
                pass

    def on_applied(self, record: envelope.LogRecord, seq: int, step: Step) -> None:
        """Answer what the record shows, and erase what it ends."""
        if not self.is_acting:
            return
        for event in record.events:
            self._locks.see(event, step.steady_ns)
            self._see(event, step)
            if self._keyring.see(event, step) and self._store == _OPEN:
                self._keyring.close()
                self._open(step)
        self._requests.see(record.events, seq, step)

    def _see(self, event: Event, step: Step) -> None:
        match event:
            case ClusterCreated():
                self._begin(step)
            case VariablesShredded():
                for life in event.lives:
                    self._erased.pop((life.path, life.incarnation), None)
                self._asked.remove("shred")
                if self._erased:
                    self._send_shred(step)
            case _:
                pass

    def _on_new_writer(self, step: Step) -> None:
        self._hurry(step)

    def finish(self, step: Step) -> None:
        """Erase what is over, send again what the log does not show, and set the timer."""
        if not self.is_acting:
            return
        if self._store == _OPEN:
            self._erase(step)
        elif 0 < self._reopen_ns <= step.steady_ns:
            self._open(step)
        for name in self._asked.due(step.steady_ns):
            self._counters.add("resends")
            self._asked.sent_again(name, step.steady_ns)
            self._ask_for_shred(step)
        for command in self._locks.due(step.steady_ns):
            self._send(command, step)
        for one in self._takers.values():
            one.finish(step)
        waiting = (self._asked, self._locks, *self._takers.values())
        self.timer.arm(step, earliest(self._reopen_ns, *(one.next_ns() for one in waiting)))

    # ---- leadership and the key store ----

    def _begin(self, step: Step) -> None:
        if self.is_acting and self._store == _CLOSED and self.replica.state.policy.cluster_id:
            self._open(step)

    def _open(self, step: Step) -> None:
        state = self.replica.state
        self._store, self._reopen_ns = _OPENING, 0
        known = (state.variables.keys, state.variables.by_path, state.signing_keys.by_id)
        is_new = not any(known)
        cluster_id = state.policy.cluster_id
        ask_vault(OpenKeyStore(cluster_id=cluster_id, may_create=is_new), step)

    def _end(self, step: Step) -> None:
        """Leave everything to the next leader: clients ask again."""
        self._store, self._fault, self._reopen_ns = _CLOSED, "", 0
        self._erasing.clear()
        self._erased.clear()
        self._asked.clear()
        self._locks.end()
        for one in self._takers.values():
            one.clear(step)
        for message in self._held:
            step.emit(Ack(message.token))
        self._held.clear()

    def _opened(self, item: KeyStoreOpened, step: Step) -> None:
        self._store, self._fault = _OPEN, ""
        self._keyring.answered(item, step)
        # A store that was restored from an older copy holds keys that were erased before.
        self._erase_lives([one for one in item.lives if self._is_over(one)], step)
        held, self._held = self._held, []
        for message in held:
            self._take_message(message, step)

    def _unusable(self, reason: str, step: Step) -> None:
        self._keyring.close()
        self._store, self._fault = _CLOSED, reason
        self._reopen_ns = step.steady_ns + REOPEN_NS
        held, self._held = self._held, []
        for message in held:
            self._take_message(message, step)

    # ---- erasing ----

    def _erase(self, step: Step) -> None:
        """Have the keys of lives erased that are over and not shredded."""
        over = [
            VariableLife(path=path, incarnation=incarnation)
            for path, incarnation in self.replica.state.variables.ended
            if (path, incarnation) not in self._erased
        ]
        if over:
            self._erase_lives(over, step)

    def _is_over(self, life: VariableLife) -> bool:
        """Whether the log says that a life is over: a later one may be in use before the log shows its put."""
        row = self.replica.state.variables.by_path.get(life.path)
        if row is None or row.incarnation < life.incarnation:
            return False
        return row.incarnation > life.incarnation or not row.revision

    def _erase_lives(self, lives: list[VariableLife], step: Step) -> None:
        new = [one for one in lives if (one.path, one.incarnation) not in self._erasing]
        self._erasing.update((one.path, one.incarnation) for one in new)
        for start in range(0, len(new), LIVES_MAX):
            ask_vault(EraseKeys(lives=tuple(new[start : start + LIVES_MAX])), step)

    def _note_erased(self, item: KeysErased, step: Step) -> None:
        """Have the log say it, of those lives of which it says that they are over."""
        ended = self.replica.state.variables.ended
        for life in item.lives:
            key = (life.path, life.incarnation)
            self._erasing.discard(key)
            self._counters.add("erased_keys")
            if key in ended:
                self._erased[key] = life
        if self._erased:
            self._send_shred(step)

    # ---- commands ----

    def _send_shred(self, step: Step) -> None:
        self._asked.add("shred", step.steady_ns + RESEND_NS)
        self._ask_for_shred(step)

    def _ask_for_shred(self, step: Step) -> None:
        lives = tuple(self._erased.values())[:LIVES_MAX]
        self._send(ShredVariables(lives=lives), step)

    def _hurry(self, step: Step) -> None:
        """Send everything again: the former applier, or the bus before, may have got none of it."""
        self._asked.hurry(step.steady_ns)
        self._locks.hurry(step.steady_ns)
        self._requests.hurry(step)
        self._keyring.hurry(step)

    def _send(self, command: AnyCommand, step: Step) -> None:
        batch = CommandBatch(sender=self.instance, commands=(command,))
        step.emit(Send(subjects.command("variable"), ENCODER.encode(batch)))


def _is_without_vault(message: Message) -> bool:
    """Whether a request needs neither keys nor items."""
    return message.source == _VARIABLE and subjects.last_token(message.subject) in WITHOUT_VAULT
