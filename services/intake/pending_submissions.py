"""Submissions that came as requests, between their command and their effect in the log.

Decides when a command is sent again, when its clients get "pending" as an answer, and when it is given up. Everything
is kept in order of its due time: one level of a dict for each waiting time, so that adding, answering and finding
what is due cost the same however many wait. What was never sent is held apart, in the order in which it came: it goes
when there is room for it, and what was sent goes again whether there is room or not.
"""

from itertools import islice

import msgspec

from schemas.base import SECOND_NS

#: Pauses before the first, second … resend; the last one repeats.
RESENDS_NS = (SECOND_NS // 2, SECOND_NS, 2 * SECOND_NS, 5 * SECOND_NS)
ANSWER_NS = 5 * SECOND_NS
#: Resent for this long; a client that still wants it submits again under the same id.
GIVE_UP_NS = 60 * SECOND_NS


class PendingSubmission(msgspec.Struct, kw_only=True, gc=False):
    """One command that the log does not show yet."""

    submission_id: str
    digest: str
    #: the encoded command.
    data: bytes
    born_ns: int
    due_ns: int
    answer_ns: int
    #: messages to answer.
    tokens: list[int]
    #: place in RESENDS_NS; below 0: it was never sent.
    level: int = 0


class PendingSubmissions:
    """Waiting submissions by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, PendingSubmission] = {}
        #: of all commands that wait.
        self.bytes = 0
        #: by level, in order of `due_ns`.
        self._levels: tuple[dict[str, PendingSubmission], ...] = tuple({} for _ in RESENDS_NS)
        #: never sent, oldest first.
        self._held: dict[str, PendingSubmission] = {}
        #: those with tokens, in order of `answer_ns`.
        self._asked: dict[str, PendingSubmission] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def held(self) -> int:
        """How many were never sent."""
        return len(self._held)

    @property
    def sent(self) -> int:
        """How many were sent, and are not in the log."""
        return len(self._by_id) - len(self._held)

    def get(self, submission_id: str) -> PendingSubmission | None:
        """Find a waiting submission."""
        return self._by_id.get(submission_id)

    def add(
        self,
        submission_id: str,
        digest: str,
        data: bytes,
        *,
        token: int | None,
        now_ns: int,
        is_sent: bool = True,
    ) -> None:
        """Note a command that is being sent, or is held back, and who asked for it."""
        waiting = PendingSubmission(
            submission_id=submission_id,
            digest=digest,
            data=data,
            born_ns=now_ns,
            due_ns=now_ns + RESENDS_NS[0],
            answer_ns=now_ns + ANSWER_NS,
            tokens=[] if token is None else [token],
            level=0 if is_sent else -1,
        )
        self._by_id[submission_id] = waiting
        self.bytes += len(data)
        self._place_of(waiting)[submission_id] = waiting
        if token is not None:
            self._asked[submission_id] = waiting

    def ask(self, waiting: PendingSubmission, token: int, now_ns: int) -> None:
        """Note another asker for the same submission."""
        waiting.tokens.append(token)
        waiting.answer_ns = now_ns + ANSWER_NS
        self._asked.pop(waiting.submission_id, None)
        self._asked[waiting.submission_id] = waiting

    def pop(self, submission_id: str) -> PendingSubmission | None:
        """Take out a submission that has its effect."""
        waiting = self._by_id.pop(submission_id, None)
        if waiting is not None:
            self.bytes -= len(waiting.data)
            del self._place_of(waiting)[submission_id]
            self._asked.pop(submission_id, None)
        return waiting

    def unanswered(self, now_ns: int) -> list[PendingSubmission]:
        """Take out of the asked those whose askers have waited long enough; they continue being sent."""
        found = []
        for waiting in self._asked.values():
            if waiting.answer_ns > now_ns:
                break
            found.append(waiting)
        for waiting in found:
            del self._asked[waiting.submission_id]
        return found

    def all_asked(self) -> list[PendingSubmission]:
        """Take out everything asked for, to answer at once; it continues being sent."""
        found = list(self._asked.values())
        self._asked.clear()
        return found

    def let_go(self, now_ns: int, most: int) -> list[bytes]:
        """Take at most `most` commands that were held back, oldest first; they count as sent."""
        found = list(islice(self._held.values(), most))
        for waiting in found:
            del self._held[waiting.submission_id]
            waiting.level = 0
            waiting.due_ns = now_ns + RESENDS_NS[0]
            self._levels[0][waiting.submission_id] = waiting
        return [waiting.data for waiting in found]

    def due(self, now_ns: int) -> list[bytes]:
        """Take the commands that must be sent again, each moved to its next due time; the oldest are given up."""
        found: list[PendingSubmission] = []
        for level in self._levels:
            for waiting in level.values():
                if waiting.due_ns > now_ns:
                    break
                found.append(waiting)
        data = []
        for waiting in found:
            del self._levels[waiting.level][waiting.submission_id]
            if now_ns - waiting.born_ns >= GIVE_UP_NS and not waiting.tokens:
                del self._by_id[waiting.submission_id]
                self.bytes -= len(waiting.data)
                continue
            waiting.level = min(waiting.level + 1, len(RESENDS_NS) - 1)
            waiting.due_ns = now_ns + RESENDS_NS[waiting.level]
            self._levels[waiting.level][waiting.submission_id] = waiting
            data.append(waiting.data)
        return data

    def hurry(self, now_ns: int) -> None:
        """Make everything that was sent due now: sends may have been lost."""
        everything = sorted(self._by_id.values(), key=_age_order)
        for level in self._levels:
            level.clear()
        for waiting in everything:
            if waiting.level >= 0:
                waiting.level = 0
                waiting.due_ns = now_ns
                self._levels[0][waiting.submission_id] = waiting

    def next_ns(self) -> int:
        """Return when something is due next, what is held back left out; 0: nothing."""
        heads = [next(iter(level.values())).due_ns for level in self._levels if level]
        if self._asked:
            heads.append(next(iter(self._asked.values())).answer_ns)
        return min(heads, default=0)

    def _place_of(self, waiting: PendingSubmission) -> dict[str, PendingSubmission]:
        return self._held if waiting.level < 0 else self._levels[waiting.level]


def _age_order(waiting: PendingSubmission) -> tuple[int, str]:
    return waiting.born_ns, waiting.submission_id
