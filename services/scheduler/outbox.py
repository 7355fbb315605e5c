"""Plans on their way: kept until the log tells their fate, sent again in the order of their numbers.

Decides the numbers (gapless, from 1), what travels in one message, and when it is sent again. Must not know how a
plan was made. The applier takes a worker's plans in number order, so one that was lost holds up all later ones, and
they are late together.
"""

import msgspec

from schemas.base import EvalKey, Wire
from schemas.envelope import ENCODER
from schemas.evaluations import EndEvaluations
from schemas.plans import SubmitPlan

RESEND_NS = 500_000_000
#: Plans in one message, and its size; an envelope's worth below 512 KiB.
PLANS_MAX = 64
MESSAGE_BYTES_MAX = 480_000
#: What one round sends again at the most: an applier that is behind must not be flooded.
RESEND_BYTES_MAX = 2_000_000


class Batch(Wire, frozen=True, kw_only=True):
    """A CommandBatch whose commands are encoded already."""

    sender: str
    commands: tuple[msgspec.Raw, ...]


class Kept(msgspec.Struct, eq=False):
    """A plan that the log does not show to its end. `parts` are encoded SubmitPlans."""

    key: EvalKey
    parts: list[msgspec.Raw]
    #: steady time.
    sent_ns: int
    #: parts that the log shows; they come in order.
    seen: int = 0


class Outbox:
    """Plans by number."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._kept: dict[int, Kept] = {}
        self._number_of: dict[EvalKey, int] = {}
        self._last = 0
        self._unsent: list[msgspec.Raw] = []

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: EvalKey) -> bool:
        return key in self._number_of

    @property
    def next_number(self) -> int:
        """Number of the plan that is put next."""
        return self._last + 1

    @property
    def due_ns(self) -> int:
        """When the oldest plan must be sent again, steady time; 0: there is none."""
        for kept in self._kept.values():
            return kept.sent_ns + RESEND_NS
        return 0

    def put(self, plans: list[SubmitPlan], now_ns: int) -> None:
        """Take the parts of the next plan; `flush` sends them."""
        self._last += 1
        parts: list[msgspec.Raw] = []
        for plan in plans:
            assert plan.origin.number == self._last, self._last
            parts.append(msgspec.Raw(ENCODER.encode(plan)))
        self._kept[self._last] = Kept(plans[0].key, parts, now_ns)
        self._number_of[plans[0].key] = self._last
        self._unsent += parts

    def again(self, key: EvalKey, now_ns: int) -> None:
        """Send what the log lacks of an evaluation's plan again."""
        self._repeat(self._kept[self._number_of[key]], now_ns)

    def repeat_late(self, now_ns: int, *, all_of_it: bool = False) -> int:
        """Send what is late again, oldest first; returns the number of plans."""
        size = count = 0
        for kept in self._kept.values():
            if size > RESEND_BYTES_MAX or (kept.sent_ns + RESEND_NS > now_ns and not all_of_it):
                break
            size += self._repeat(kept, now_ns)
            count += 1
        return count

    def settle(self, number: int, part: int, *, refused: bool) -> range:
        """Take note that the log shows a part; returns the parts whose fate is known by that."""
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
        """Return the messages that carry what was put or repeated since the last time."""
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
        return [ENCODER.encode(Batch(sender=self._sender, commands=tuple(one))) for one in messages]

    def _repeat(self, kept: Kept, now_ns: int) -> int:
        kept.sent_ns = now_ns
        parts = kept.parts[kept.seen :]
        self._unsent += parts
        return sum(len(part) for part in parts)


class Failures:
    """Evaluations that could not be decided, until the log shows their end. Times are steady."""

    def __init__(self) -> None:
        self._reasons: dict[EvalKey, str] = {}
        self._sent_ns: dict[EvalKey, int] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def __contains__(self, key: EvalKey) -> bool:
        return key in self._reasons

    @property
    def due_ns(self) -> int:
        """When the oldest must be told again; 0: there is none."""
        return min(self._sent_ns.values(), default=-RESEND_NS) + RESEND_NS

    def put(self, key: EvalKey, reason: str) -> None:
        """Take an evaluation that shall fail; `commands` tells it at once."""
        self._reasons[key] = reason
        self._sent_ns[key] = -RESEND_NS

    def done(self, key: EvalKey) -> None:
        """Forget an evaluation: it ended."""
        if self._reasons.pop(key, None) is not None:
            del self._sent_ns[key]

    def commands(self, now_ns: int) -> tuple[EndEvaluations, ...]:
        """Return what must be told now."""
        late = [key for key, sent_ns in self._sent_ns.items() if sent_ns + RESEND_NS <= now_ns]
        self._sent_ns.update(dict.fromkeys(late, now_ns))
        return tuple(
            EndEvaluations(keys=(key,), status="failed", reason=self._reasons[key]) for key in late
        )
