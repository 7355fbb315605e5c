"""A keeper with its vault, the plan applier's decisions, and a log between them: where tests of the keeper start."""

from typing import Any

import msgspec

from schemas.base import EvalKey, JobId
from schemas.envelope import COMMANDS_DECODER, AnyCommand
from schemas.identities import IdentityAnswers, IdentityAsk, KeyringVerdict
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from schemas.variables import VariableAnswer, VariableAnswers, VariableAsk, VariableVerdict
from services.keeper.role import Keeper
from shared.core.decide.garbage import LogTimeIndex
from shared.core.decide.route import decide
from shared.core.runtime.chain import decode_record
from shared.core.runtime.keeper_messages import (
    VaultAnswer,
    VaultEffect,
)
from shared.core.runtime.messages import (
    CaughtUp,
    Effect,
    LeadershipWon,
    Message,
    Record,
    Reply,
    Send,
    SetTimer,
    Timer,
)
from shared.core.runtime.role import Input
from shared.core.state.ids import alloc_id, make_key
from shared.core.state.state import State
from shared.sim.environment.memory_vault import (
    MemoryKeyStore,
    MemoryVault,
    seal_items,
    unseal_items,
)
from tests.unit.core.state.written_log import START_NS, WrittenLog

SECOND = 1_000_000_000
PUBLIC = b"p" * 32
DATABASE = "nomad/jobs/db"


class Story:
    """Effects wait until the test lets them be performed: the vault's by `vault`, the applier's by `write`."""

    def __init__(self, log: WrittenLog | None = None, store: MemoryKeyStore | None = None) -> None:
        self.log = log or WrittenLog()
        self.store = store or MemoryKeyStore()
        self._vault = MemoryVault(self.store)
        self.role = Keeper(instance="keeper-1")
        self.applied = State()
        self.now_ns = START_NS + SECOND
        self._alarm_ns = 0
        self._token = 0
        #: effects for the vault, and commands, that were not performed yet.
        self.asked: list[VaultEffect] = []
        self.sent: list[AnyCommand] = []
        #: by token.
        self.answers: dict[int, bytes] = {}
        self.ignored: set[int] = set()

    # ---- steps ----

    def step(self, *inputs: Input | VaultAnswer) -> list[Effect]:
        """Take inputs; sort the effects to where they are performed."""
        effects = self.role.step(list(inputs), self.now_ns)  # type: ignore[arg-type]
        for effect in effects:
            match effect:
                case _ if isinstance(effect, VaultEffect):
                    self.asked.append(effect)
                case Send():
                    assert effect.subject == "cmd.variable", effect
                    self.sent += COMMANDS_DECODER.decode(effect.data).commands
                case Reply():
                    assert effect.token not in self.answers, "answered twice"
                    self.answers[effect.token] = effect.data
                case SetTimer():
                    self._alarm_ns = effect.at_ns
                case _:
                    self.ignored.add(effect.token)  # type: ignore[union-attr]
        return effects

    def lead(self) -> "Story":
        """Read the log and lead; the key store opens, and the log shows its keys."""
        self.begin()
        self.settle()
        return self

    def begin(self) -> None:
        """Read the log and lead."""
        self.step(*self.log.records, CaughtUp(self.log.seq), LeadershipWon())

    def vault(self) -> list[VaultAnswer]:
        """Let the vault perform what it was asked."""
        asked, self.asked = self.asked, []
        answers = [self._vault.perform(one) for one in asked]
        self.step(*answers)
        return answers

    def write(self) -> Record | None:
        """Let the plan applier decide what was sent, and the keeper read the record; None: nothing came of it."""
        sent, self.sent = self.sent, []
        for record in self.log.records[self.applied.seq :]:
            self._apply(record)
        self.applied.begin(self.log.seq + 1, self.now_ns)
        events: list[Any] = []
        for command in sent:
            made = decide(self.applied, command, self.now_ns, LogTimeIndex())
            for event in made:
                self.applied.evolve(event, self.applied.seq)
            events += made
        if not events:
            return None
        record = self.log.tx(*events, t_ns=self.now_ns)
        self.step(record)
        return record

    def _apply(self, record: Record) -> None:
        decoded = decode_record(record.seq, record.subject, record.data)
        if record.seq > self.applied.seq and decoded is not None:
            self.applied.apply(decoded, record.seq)

    def settle(self) -> None:
        """Let vault and applier work until nothing waits for them."""
        while self.asked or self.sent:
            self.vault()
            self.write()

    def pass_time(self, seconds: float) -> None:
        """Let the clock run from alarm to alarm; neither vault nor applier works meanwhile."""
        end_ns = self.now_ns + round(seconds * SECOND)
        while self._alarm_ns and self._alarm_ns <= end_ns:
            at_ns, self._alarm_ns = self._alarm_ns, 0
            self.now_ns = max(self.now_ns, at_ns)
            self.step(Timer("due", at_ns))
        self.now_ns = end_ns

    # ---- questions ----

    def ask(self, verb: str, **body: Any) -> int:
        """Ask as a client; return the token of the answer."""
        self._token += 1
        data = msgspec.json.encode(body)
        message = Message("variable", f"api.variable.{verb}", data, self._token, reply=True)
        self.step(message)
        return self._token

    def ask_as_node(self, node_id: str, alloc_id: str, *paths: str, task: str = "server") -> int:
        """Ask as a node; return the token of the answer."""
        self._token += 1
        ask = VariableAsk(alloc_id=alloc_id, task=task, paths=paths, public=PUBLIC)
        subject = f"ask.{node_id}.variable"
        data = msgspec.json.encode(ask)
        self.step(Message("node_variables", subject, data, self._token, reply=True))
        return self._token

    def node_answers(self, token: int) -> VariableAnswers:
        """The answer to a node."""
        return msgspec.json.decode(self.answers[token], type=VariableAnswers)

    def ask_identities(
        self, alloc_id: str, *names: str, node_id: str = "n0", task: str = "server"
    ) -> int:
        """Ask as a node for identities of a task; return the token of the answer."""
        self._token += 1
        ask = IdentityAsk(alloc_id=alloc_id, task=task, names=names, public=PUBLIC)
        subject = f"ask.{node_id}.identity"
        data = msgspec.json.encode(ask)
        self.step(Message("node_identities", subject, data, self._token, reply=True))
        return self._token

    def identities(self, token: int) -> IdentityAnswers:
        """The answer to a node that asked for identities."""
        return msgspec.json.decode(self.answers[token], type=IdentityAnswers)

    def place(self, job_id: str = "web", *, row: int = 0) -> str:
        """Have the log place the one allocation of a job on a node; return its id."""
        placement = GroupPlacement(
            group="g", version=0, rows=(row,), counts=(1,), names=(0, 1), previous=()
        )
        origin = Origin(worker="w", number=self.log.seq, snapshot_seq=1)
        plan = PlanCommitted(
            key=EvalKey(0), job_id=JobId(job_id), origin=origin, placements=(placement,)
        )
        record = self.log.tx(plan)
        if self.role.is_caught_up:
            self.step(record)
        return alloc_id(make_key(record.seq, 0))

    def put(
        self,
        path: str = DATABASE,
        *,
        request_id: str = "r1",
        items: dict[str, str] | None = None,
        key_id: str = MemoryVault.key_id,
        **more: Any,
    ) -> int:
        """Put items; return the token of the answer."""
        sealed = seal_items(
            items or {"password": "secret"},
            cluster_id="c1",
            path=path,
            request_id=request_id,
            key_id=key_id,
        )
        return self.ask(
            "put",
            path=path,
            request_id=request_id,
            key_id=key_id,
            sealed=sealed,
            **more,
        )

    def delete(self, path: str = DATABASE, *, request_id: str = "d1", **more: Any) -> int:
        """Delete a path; return the token of the answer."""
        return self.ask("delete", path=path, request_id=request_id, **more)

    def rotate(self, in_force: str, kind: str = "sealing") -> int:
        """Ask for another key in the place of one; return the token of the answer."""
        body = {"kind": kind, "in_force": in_force}
        return self.ask_for_keys("rotate", msgspec.json.encode(body))

    def remove(self, key_id: str) -> int:
        """Ask that a signing key is removed; return the token of the answer."""
        return self.ask_for_keys("remove", msgspec.json.encode({"key_id": key_id}))

    def ask_for_keys(self, verb: str, data: bytes) -> int:
        """Send a request about keys; return the token of the answer."""
        self._token += 1
        subject = f"api.keyring.{verb}"
        self.step(Message("keyring", subject, data, self._token, reply=True))
        return self._token

    def rotated(self, token: int) -> KeyringVerdict:
        """The answer to a request about keys."""
        return msgspec.json.decode(self.answers[token], type=KeyringVerdict)

    def verdict(self, token: int) -> VariableVerdict:
        """The answer to a put or a delete."""
        return msgspec.json.decode(self.answers[token], type=VariableVerdict)

    def fault(self, token: int) -> tuple[str, str]:
        """Code and reason of a refusal."""
        error = self.verdict(token).error
        assert error is not None
        return error.code, error.message

    def get(self, path: str = DATABASE) -> VariableAnswer:
        """Read a path, through the vault."""
        token = self.ask("get", path=path, public=PUBLIC)
        self.vault()
        return msgspec.json.decode(self.answers[token], type=VariableAnswer)

    def items(self, path: str = DATABASE) -> dict[str, str]:
        """The items of a path."""
        return unseal_items(self.get(path).sealed)
