"""The operators' door: `api.operator|node|alloc|system.<verb>`, from a wish to its effect in the log.

Decides when a wish is fulfilled, refused, or told to ask again. Each verb says what shall be, so what the state or the
log shows answers it: no table of requests outlives this process, and several views need no agreement. The command goes
to the plan applier again every half second until then.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from schemas.allocations import AllocationsCollected
from schemas.base import Command, Event
from schemas.envelope import ENCODER, CommandBatch
from schemas.evaluations import EvaluationsCollected
from schemas.jobs import ErrorDetail, JobsCollected
from schemas.nodes import NodeEligibilityChanged, NodesCollected, PoolDeclared
from schemas.operator import (
    CollectWish,
    DrainWish,
    EligibilityWish,
    MetaWish,
    OperatorVerdict,
    PolicyWish,
    PoolWish,
    RollWish,
    StopWish,
)
from schemas.policy import (
    CollectGarbage,
    DeclarePool,
    OperatorRefused,
    PolicyChanged,
    SetEligibility,
    SetPolicy,
)
from services.view import displacing
from shared.bus import subjects
from shared.core.decide.garbage import Horizon, decide_garbage, size_of
from shared.core.decide.operator import decide_declaration, decide_policy
from shared.core.replica import Replica
from shared.core.role import Effect, Message, Reply, Send, SetTimer
from shared.errors import CommandInvalid
from shared.query.wishes import changed_policy

RESEND_NS = 500_000_000
#: Then the asker is told to ask again.
ANSWER_NS = 5_000_000_000
WAITING_MAX = 1_000
TIMER = "operator"
_KINDS = {
    AllocationsCollected: ("allocations", ""),
    EvaluationsCollected: ("evaluations", "keys"),
    JobsCollected: ("jobs", "job_ids"),
    NodesCollected: ("nodes", "rows"),
}


class Wish(msgspec.Struct, kw_only=True, gc=False):
    """One wish on its way. `fulfils` tells whether an event is its effect."""

    token: int
    command: Command
    verdict: OperatorVerdict
    fulfils: Callable[[Event], bool]
    answer_ns: int
    due_ns: int
    #: collecting goes on until nothing is left.
    is_collecting: bool = False


class Door:
    """Wishes on their way, by request id."""

    def __init__(
        self,
        instance: str,
        replica: Replica,
        find_node: Callable[[str], int],
        find_alloc: Callable[[str], int],
    ) -> None:
        self._instance = instance
        self._replica = replica
        self._find_node = find_node
        self._find_alloc = find_alloc
        self._waiting: dict[str, Wish] = {}
        self._made_ids = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def asked(self, message: Message, now_ns: int) -> list[Effect]:
        """Take a request; at once answered where the state says all."""
        verb = message.subject.partition(".")[2]
        try:
            wish = self._read(verb, message, now_ns)
        except CommandInvalid as fault:
            return [Reply(message.token, self._refusal("", fault.code, fault.message, fault.path))]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            return [Reply(message.token, self._refusal("", "invalid", str(err)))]
        if wish is None:
            known = ", ".join(f"{n}.{v}" for n, vs in subjects.OPERATOR_VERBS.items() for v in vs)
            text = f"nothing answers to {verb!r}; known are {known}"
            return [Reply(message.token, self._refusal("", "invalid", text))]
        if isinstance(wish, OperatorVerdict):
            return [Reply(message.token, self._encoded(wish))]
        if len(self._waiting) >= WAITING_MAX:
            text = f"{len(self._waiting)} wishes wait for the log, try again later"
            return [Reply(message.token, self._refusal("", "unavailable", text))]
        self._waiting[wish.verdict.request_id] = wish
        return [self._send(wish), SetTimer(TIMER, self._next_ns())]

    def see(self, events: Sequence[Event]) -> list[Effect]:
        """Look for effects and refusals in a transaction that was applied."""
        out: list[Effect] = []
        if not self._waiting:
            return out
        for event in events:
            if isinstance(event, OperatorRefused):
                wish = self._waiting.pop(event.request_id, None)
                if wish is not None:
                    told = self._refusal(event.request_id, event.code, event.reason)
                    out.append(Reply(wish.token, told))
                continue
            for wish in list(self._waiting.values()):
                if wish.is_collecting:
                    self._count(wish, event)
                elif wish.fulfils(event):
                    out.append(self._fulfil(wish))
        if any(type(event) in _KINDS for event in events):
            out += self._collect_on()
        return out

    def timer(self, now_ns: int) -> list[Effect]:
        """Send again what is due, tell those who waited long."""
        out: list[Effect] = []
        for request_id, wish in list(self._waiting.items()):
            if wish.answer_ns <= now_ns:
                del self._waiting[request_id]
                verdict = msgspec.structs.replace(wish.verdict, status="pending")
                out.append(Reply(wish.token, self._encoded(verdict)))
            elif wish.due_ns <= now_ns:
                wish.due_ns = now_ns + RESEND_NS
                out.append(self._send(wish))
        if self._waiting:
            out.append(SetTimer(TIMER, self._next_ns()))
        return out

    # ---- verbs ----

    def _read(self, verb: str, message: Message, now_ns: int) -> Wish | OperatorVerdict | None:
        """Read a wish; a verdict where it is so already, None for an unknown verb."""
        match verb:
            case "operator.set_policy":
                return self._policy(message, now_ns)
            case "operator.declare":
                return self._declaration(message, now_ns)
            case "node.set_eligibility":
                return self._eligibility(message, now_ns)
            case "node.drain" | "node.set_meta" | "alloc.stop" | "system.roll":
                return self._displacing(verb, message, now_ns)
            case "system.gc":
                return self._collect(message, now_ns)
            case _:
                return None

    def _policy(self, message: Message, now_ns: int) -> Wish | OperatorVerdict:
        body = msgspec.json.decode(message.data, type=PolicyWish)
        request_id = self._id(body.request_id, message)
        table = self._replica.state.policy
        if body.policy_hash not in ("", table.policy_hash):
            text = f"the policy in force has hash {table.policy_hash}, not {body.policy_hash}"
            raise CommandInvalid("conflict", text, "policy_hash")
        wanted = changed_policy(table.policy, body.change)
        command = SetPolicy(request_id=request_id, policy=wanted)
        for event in decide_policy(self._replica.state, command):
            if isinstance(event, OperatorRefused):
                raise CommandInvalid(event.code, event.reason, "change")
        verdict = OperatorVerdict(request_id=request_id, status="accepted", policy=wanted)
        if wanted == table.policy:
            return verdict

        def fulfils(event: Event) -> bool:
            return isinstance(event, PolicyChanged) and event.policy == wanted

        return self._wish(message, command, verdict, fulfils, now_ns=now_ns)

    def _declaration(self, message: Message, now_ns: int) -> Wish | OperatorVerdict:
        body = msgspec.json.decode(message.data, type=PoolWish)
        request_id = self._id(body.request_id, message)
        state = self._replica.state
        node_id = state.fleet.ids[self._find_node(body.node_id)] if body.node_id else ""
        command = DeclarePool(request_id=request_id, node_id=node_id, pool=body.pool)
        verdict = OperatorVerdict(
            request_id=request_id, status="accepted", node_id=node_id, pool=body.pool
        )
        wanted = decide_declaration(state, command)
        for event in wanted:
            if isinstance(event, OperatorRefused):
                raise CommandInvalid(event.code, event.reason, "pool")
        if not wanted:
            return verdict

        def fulfils(event: Event) -> bool:
            return isinstance(event, PoolDeclared) and event == wanted[0]

        return self._wish(message, command, verdict, fulfils, now_ns=now_ns)

    def _eligibility(self, message: Message, now_ns: int) -> Wish | OperatorVerdict:
        body = msgspec.json.decode(message.data, type=EligibilityWish)
        request_id = self._id(body.request_id, message)
        fleet = self._replica.state.fleet
        row = self._find_node(body.node_id)
        node_id = fleet.ids[row]
        verdict = OperatorVerdict(request_id=request_id, status="accepted", node_id=node_id)
        if bool(fleet.eligible[row]) == body.eligible:
            return verdict
        command = SetEligibility(request_id=request_id, node_id=node_id, eligible=body.eligible)

        def fulfils(event: Event) -> bool:
            ours = isinstance(event, NodeEligibilityChanged) and event.eligible == body.eligible
            return ours and fleet.row_of.get(node_id) == getattr(event, "row", -1)

        return self._wish(message, command, verdict, fulfils, now_ns=now_ns)

    def _displacing(self, verb: str, message: Message, now_ns: int) -> Wish | OperatorVerdict:
        state = self._replica.state
        if verb == "node.drain":
            drained = msgspec.json.decode(message.data, type=DrainWish)
            row, name = self._find_node(drained.node_id), self._id(drained.request_id, message)
            asked = displacing.drain(state, row, drained, name, now_ns=now_ns)
        elif verb == "node.set_meta":
            said = msgspec.json.decode(message.data, type=MetaWish)
            row, name = self._find_node(said.node_id), self._id(said.request_id, message)
            asked = displacing.meta(state, row, said, name)
        elif verb == "system.roll":
            rolled = msgspec.json.decode(message.data or b"{}", type=RollWish)
            asked = displacing.roll(state, rolled, self._id(rolled.request_id, message))
        else:
            stopped = msgspec.json.decode(message.data, type=StopWish)
            row, name = self._find_alloc(stopped.alloc_id), self._id(stopped.request_id, message)
            asked = displacing.stop(state, row, name)
        if asked.command is None:
            return asked.verdict
        return self._wish(message, asked.command, asked.verdict, asked.fulfils, now_ns=now_ns)

    def _collect(self, message: Message, now_ns: int) -> Wish | OperatorVerdict:
        body = msgspec.json.decode(message.data or b"{}", type=CollectWish)
        request_id = self._id(body.request_id, message)
        verdict = OperatorVerdict(request_id=request_id, status="accepted")
        if self._is_clean():
            return verdict
        command = CollectGarbage(request_id=request_id)
        wish = self._wish(message, command, verdict, lambda _: False, now_ns=now_ns)
        wish.is_collecting = True
        return wish

    def _is_clean(self) -> bool:
        """Tell whether nothing could be collected. One vector pass."""
        state = self._replica.state
        return not decide_garbage(state, Horizon(), state.t_ns, everything=True)

    def _count(self, wish: Wish, event: Event) -> None:
        kind = _KINDS.get(type(event))
        if kind is not None:
            name, field = kind
            collected = dict(wish.verdict.collected)
            size = len(getattr(event, field)) if field else size_of(event)  # type: ignore[arg-type]
            collected[name] = collected.get(name, 0) + size
            wish.verdict = msgspec.structs.replace(wish.verdict, collected=collected)

    def _collect_on(self) -> list[Effect]:
        """One pass is bounded: ask for the next, or say that it is done."""
        collecting = [wish for wish in self._waiting.values() if wish.is_collecting]
        if not collecting:
            return []
        if self._is_clean():
            return [self._fulfil(wish) for wish in collecting]
        return [self._send(collecting[0])]

    # ---- inside ----

    def _wish(
        self,
        message: Message,
        command: Command,
        verdict: OperatorVerdict,
        fulfils: Callable[[Event], bool],
        *,
        now_ns: int,
    ) -> Wish:
        return Wish(
            token=message.token,
            command=command,
            verdict=verdict,
            fulfils=fulfils,
            answer_ns=now_ns + ANSWER_NS,
            due_ns=now_ns + RESEND_NS,
        )

    def _id(self, given: str, message: Message) -> str:
        """Name a wish; one that is on its way under the same name must be another's."""
        if given and given not in self._waiting:
            return given[:200]
        self._made_ids += 1
        digest = blake2b(message.data, digest_size=4).hexdigest()
        return f"{self._instance}-{digest}-{self._made_ids}"

    def _fulfil(self, wish: Wish) -> Reply:
        del self._waiting[wish.verdict.request_id]
        return Reply(wish.token, self._encoded(msgspec.structs.replace(wish.verdict, changed=True)))

    def _send(self, wish: Wish) -> Send:
        batch = CommandBatch(sender=self._instance, commands=(wish.command,))  # type: ignore[arg-type]
        return Send(subjects.command("operator"), ENCODER.encode(batch))

    def _refusal(self, request_id: str, code: str, message: str, path: str = "") -> bytes:
        error = ErrorDetail(code=code, message=message, path=path)
        return self._encoded(OperatorVerdict(request_id=request_id, status="refused", error=error))

    def _encoded(self, verdict: OperatorVerdict) -> bytes:
        cluster_id = self._replica.state.policy.cluster_id
        at = msgspec.structs.replace(verdict, seq=self._replica.seq, cluster_id=cluster_id)
        return ENCODER.encode(at)

    def _next_ns(self) -> int:
        return min(min(wish.due_ns, wish.answer_ns) for wish in self._waiting.values())
