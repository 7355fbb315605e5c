"""Plan outbox: plans without a known outcome, sent again in the order of their numbers.

Numbers are gapless, from 1. The applier takes a worker's plans in number order, so a lost one delays all later ones,
and they become late together.
"""

import msgspec

from schemas.base import EvalKey, Wire
from schemas.envelope import ENCODER
from schemas.evaluations import EndEvaluations
from schemas.plans import SubmitPlan
from shared.core.runtime.deadline_timer import RESEND_NS
from shared.core.runtime.resend_table import ResendTable

#: Plans in one message, and its size; an envelope's worth below 512 KiB.
PLANS_MAX = 64
MESSAGE_BYTES_MAX = 480_000
#: Maximum sent again in one round, so that a slow applier is not flooded.
RESEND_BYTES_MAX = 2_000_000


class EncodedCommandBatch(Wire, frozen=True, kw_only=True):
    """A CommandBatch of encoded commands."""

    sender: str
    commands: tuple[msgspec.Raw, ...]


class UnsettledPlan(msgspec.Struct, eq=False):
    """A plan that the log does not show completely. `parts` are encoded SubmitPlans."""

    key: EvalKey
    parts: list[msgspec.Raw]
    #: steady time of the last send.
    sent_ns: int
    #: parts that the log shows; they arrive in order.
    seen: int = 0


class PlanOutbox:
    """Plans by number."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._kept: dict[int, UnsettledPlan] = {}
        self._number_of: dict[EvalKey, int] = {}
        self._last = 0
        self._unsent: list[msgspec.Raw] = []

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: EvalKey) -> bool:
        return key in self._number_of

    @property
    def next_number(self) -> int:
        """Number of the next plan."""
        return self._last + 1

    @property
    def due_ns(self) -> int:
        """Time when the oldest plan must be sent again, steady clock; 0: there is none."""
        for kept in self._kept.values():
            return kept.sent_ns + RESEND_NS
        return 0

    def put(self, plans: list[SubmitPlan], now_ns: int) -> None:
        """Add the parts of the next plan; `flush` sends them."""
        self._last += 1
        parts: list[msgspec.Raw] = []
        for plan in plans:
            assert plan.origin.number == self._last, self._last
            parts.append(msgspec.Raw(ENCODER.encode(plan)))
        self._kept[self._last] = UnsettledPlan(plans[0].key, parts, now_ns)
        self._number_of[plans[0].key] = self._last
        self._unsent += parts

    def again(self, key: EvalKey, now_ns: int) -> None:
        """Send again the unconfirmed parts of an evaluation's plan."""
        self._repeat(self._kept[self._number_of[key]], now_ns)

    def resend_late(self, now_ns: int, *, all_of_it: bool = False) -> int:
        """Send late plans again, oldest first; returns their number."""
        size = count = 0
        for kept in self._kept.values():
            if size > RESEND_BYTES_MAX or (kept.sent_ns + RESEND_NS > now_ns and not all_of_it):
                break
            size += self._repeat(kept, now_ns)
            count += 1
        return count

    def settle(self, number: int, part: int, *, refused: bool) -> range:
        """Record that the log shows a part; returns the parts confirmed by it."""
        kept = self._kept.get(number)
        if kept is None:
            return range(0)
        total = len(kept.parts)
        settled = range(kept.seen, total if refused else min(part + 1, total))
        kept.seen += len(settled)
        if kept.seen == total:
            del self._kept[number]
            del self._number_of[kept.key]
        return settled

    def flush(self) -> list[bytes]:
        """Return the messages added or repeated since the last call."""
        if not self._unsent:
            return []
        messages: list[list[msgspec.Raw]] = [[]]
        size = 0
        for raw in self._unsent:
            size += len(raw)
            if messages[-1] and (size > MESSAGE_BYTES_MAX or len(messages[-1]) >= PLANS_MAX):
                messages.append([])
                size = len(raw)
            messages[-1].append(raw)
        self._unsent = []
        return [
            ENCODER.encode(EncodedCommandBatch(sender=self._sender, commands=tuple(one)))
            for one in messages
        ]

    def _repeat(self, kept: UnsettledPlan, now_ns: int) -> int:
        kept.sent_ns = now_ns
        parts = kept.parts[kept.seen :]
        self._unsent += parts
        return sum(len(part) for part in parts)


class FailedEvaluations:
    """Evaluations that could not be decided, until the log shows their end. Steady times."""

    def __init__(self) -> None:
        self._reasons: dict[EvalKey, str] = {}
        self._resends = ResendTable[EvalKey]()

    def __len__(self) -> int:
        return len(self._reasons)

    def __contains__(self, key: EvalKey) -> bool:
        return key in self._reasons

    @property
    def due_ns(self) -> int:
        """Time when the oldest must be sent again; 0: there is none."""
        return self._resends.next_ns()

    def put(self, key: EvalKey, reason: str) -> None:
        """Add an evaluation to fail; `commands` sends it at once."""
        self._reasons[key] = reason
        self._resends.add(key, due_ns=0)

    def hurry(self) -> None:
        """Make everything due now."""
        self._resends.hurry(due_ns=0)

    def done(self, key: EvalKey) -> None:
        """Remove an evaluation that ended."""
        if self._reasons.pop(key, None) is not None:
            self._resends.remove(key)

    def commands(self, now_ns: int) -> tuple[EndEvaluations, ...]:
        """Return the commands that are due."""
        late = self._resends.due(now_ns)
        for key in late:
            self._resends.sent_again(key, now_ns)
        return tuple(
            EndEvaluations(keys=(key,), status="failed", reason=self._reasons[key]) for key in late
        )
