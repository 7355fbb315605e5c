"""What the broker asked the applier for, until the log shows it.

Decides when a command is sent again. Must not know what it asks for. The table is in order of sending, so what is
late stands in front. Next: `workers.py`.
"""

from itertools import islice

from schemas.base import EvalKey
from schemas.evaluations import EndEvaluations

RESEND_NS = 500_000_000
#: Keys named by one command, and asked for at one time where the rest can wait.
KEYS_MAX = 256


class Requests:
    """Evaluations asked about. Times are steady ns."""

    def __init__(self) -> None:
        self._sent_ns: dict[EvalKey, int] = {}

    def __len__(self) -> int:
        return len(self._sent_ns)

    @property
    def room(self) -> int:
        """How many more may be asked for now."""
        return max(KEYS_MAX - len(self._sent_ns), 0)

    @property
    def due_ns(self) -> int:
        """When the oldest must be sent again; 0: none."""
        for sent_ns in self._sent_ns.values():
            return sent_ns + RESEND_NS
        return 0

    def ask(self, fresh: list[EvalKey], now_ns: int) -> tuple[EvalKey, ...]:
        """Take in what is asked for first now; return that and what must be sent again, all as sent now."""
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

    def done(self, key: EvalKey) -> None:
        """Forget it: the log shows it."""
        self._sent_ns.pop(key, None)


class Endings:
    """Evaluations that shall end without a plan."""

    def __init__(self) -> None:
        #: status and reason; which there are is for others to read.
        self.words: dict[EvalKey, tuple[str, str]] = {}
        self._unasked: dict[EvalKey, None] = {}
        self._asked = Requests()

    def __len__(self) -> int:
        return len(self.words)

    @property
    def due_ns(self) -> int:
        """When the oldest must be asked for again; 0: never."""
        return self._asked.due_ns

    def add(self, key: EvalKey, status: str, reason: str) -> None:
        """Let an evaluation end."""
        if key not in self.words:
            self.words[key] = (status, reason)
            self._unasked[key] = None

    def done(self, key: EvalKey) -> None:
        """Forget it: it ended."""
        if self.words.pop(key, None) is not None:
            self._unasked.pop(key, None)
            self._asked.done(key)

    def commands(self, now_ns: int) -> list[EndEvaluations]:
        """Return what must be asked for now; at most KEYS_MAX are under way."""
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
