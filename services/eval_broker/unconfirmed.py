"""Commands that the broker sent to the applier and the log has not confirmed.

Decides when a command is sent again. Independent of what a command does. The table is in order of sending, so the
oldest is first. Next: `worker_leases.py`.
"""

from itertools import islice

from schemas.base import EvalKey
from schemas.evaluations import EndEvaluations
from shared.core.runtime.deadline_timer import RESEND_NS

#: Keys in one command, and unconfirmed keys at one time.
KEYS_MAX = 256


class UnconfirmedKeys:
    """Evaluations named in unconfirmed commands. Times are steady ns."""

    def __init__(self) -> None:
        self._sent_ns: dict[EvalKey, int] = {}

    def __len__(self) -> int:
        return len(self._sent_ns)

    @property
    def room(self) -> int:
        """How many more keys may be sent now."""
        return max(KEYS_MAX - len(self._sent_ns), 0)

    @property
    def due_ns(self) -> int:
        """When the oldest must be sent again; 0: none."""
        for sent_ns in self._sent_ns.values():
            return sent_ns + RESEND_NS
        return 0

    def ask(self, fresh: list[EvalKey], now_ns: int) -> tuple[EvalKey, ...]:
        """Add new keys; return them and those to be sent again, all marked as sent now."""
        keys: list[EvalKey] = []
        for key, sent_ns in self._sent_ns.items():
            if sent_ns + RESEND_NS > now_ns:
                break
            keys.append(key)
        for key in keys:
            del self._sent_ns[key]
        keys += fresh
        self._sent_ns.update(dict.fromkeys(keys, now_ns))
        return tuple(keys)

    def hurry(self) -> None:
        """Make everything due now."""
        self._sent_ns = dict.fromkeys(self._sent_ns, 1 - RESEND_NS)

    def done(self, key: EvalKey) -> None:
        """Remove a key that the log has confirmed."""
        self._sent_ns.pop(key, None)


class UnconfirmedEndings:
    """Evaluations to be ended without a plan."""

    def __init__(self) -> None:
        #: key -> status and reason; read by the role.
        self.words: dict[EvalKey, tuple[str, str]] = {}
        self._unasked: dict[EvalKey, None] = {}
        self._asked = UnconfirmedKeys()

    def __len__(self) -> int:
        return len(self.words)

    @property
    def due_ns(self) -> int:
        """When the oldest must be sent again; 0: never."""
        return self._asked.due_ns

    def add(self, key: EvalKey, status: str, reason: str) -> None:
        """Add an evaluation that is to end with a status and a reason."""
        if key not in self.words:
            self.words[key] = (status, reason)
            self._unasked[key] = None

    def done(self, key: EvalKey) -> None:
        """Remove an evaluation that has ended."""
        if self.words.pop(key, None) is not None:
            self._unasked.pop(key, None)
            self._asked.done(key)

    def hurry(self) -> None:
        """Make everything that was sent due now."""
        self._asked.hurry()

    def commands(self, now_ns: int) -> list[EndEvaluations]:
        """Return the commands to send now; at most KEYS_MAX keys are unconfirmed at a time."""
        fresh = list(islice(self._unasked, self._asked.room))
        for key in fresh:
            del self._unasked[key]
        by_word: dict[tuple[str, str], list[EvalKey]] = {}
        for key in self._asked.ask(fresh, now_ns):
            by_word.setdefault(self.words[key], []).append(key)
        return [
            EndEvaluations(keys=tuple(keys), status=status, reason=reason)
            for (status, reason), keys in by_word.items()
        ]
