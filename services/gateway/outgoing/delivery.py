"""Deliveries of one subscription as a state machine: its position, when it tries again, when it gives up.

Time is an argument. An event is repeated until it is accepted: the ones behind it wait, so that order holds. A target
that answers 410 Gone for a day is disabled.
"""

import msgspec
from msgspec.structs import replace

from schemas.base import SECOND_NS

FIRST_PAUSE_NS, PAUSE_MAX_NS = SECOND_NS, 300 * SECOND_NS
#: So long a target may say that it is not there.
GONE_NS = 86_400 * SECOND_NS
_GONE = (404, 410)
_ERROR_CHARS_MAX = 300


class SentPosition(msgspec.Struct, frozen=True, kw_only=True):
    """State of a subscription, as it is kept on disk. `seq`: all events of records up to it are delivered.

    `ordinal`: of the record behind it, the events before this place are delivered as well.
    """

    cluster_id: str
    seq: int
    ordinal: int = 0
    delivered: int = 0
    #: attempts that failed since the last success, and in all.
    failures: int = 0
    failed: int = 0
    #: when the target began to answer that it is gone; 0: it does not.
    gone_since_ns: int = 0
    next_try_ns: int = 0
    error: str = ""
    #: why it is disabled; empty: it is enabled.
    disabled: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one request. `status` 0: there was no answer, and `error` says why."""

    status: int = 0
    error: str = ""

    @property
    def is_accepted(self) -> bool:
        """Whether the target has the event."""
        return 200 <= self.status < 300


def begin(cluster_id: str, seq: int) -> SentPosition:
    """A subscription that begins behind a record."""
    return SentPosition(cluster_id=cluster_id, seq=seq)


def resumed(
    kept: SentPosition | None, *, cluster_id: str, last_seq: int, from_seq: int
) -> SentPosition:
    """Where a subscription continues. `kept`: what the disk says; `last_seq`: the end of the log.

    A position of another log, or behind the end of a log that was restored from an older copy, means nothing here.
    """
    if kept is None or kept.cluster_id != cluster_id:
        return begin(cluster_id, from_seq - 1 if from_seq else last_seq)
    if kept.seq > last_seq:
        return replace(kept, seq=last_seq, ordinal=0)
    # A start of the gateway enables a target again, and tries it at once: it may be back.
    return replace(kept, next_try_ns=0, gone_since_ns=0, disabled="")


def after(state: SentPosition, attempt: Attempt, now_ns: int) -> SentPosition:
    """The state behind an attempt; `position` moves it on where the event was accepted."""
    if attempt.is_accepted:
        return replace(
            state,
            delivered=state.delivered + 1,
            failures=0,
            gone_since_ns=0,
            next_try_ns=0,
            error="",
        )
    failures = state.failures + 1
    error = attempt.error or f"the target answered {attempt.status}"
    gone_since_ns = (state.gone_since_ns or now_ns) if attempt.status in _GONE else 0
    disabled = ""
    if gone_since_ns and now_ns - gone_since_ns >= GONE_NS:
        disabled = f"the target has answered {attempt.status} for a day"
    return replace(
        state,
        failures=failures,
        failed=state.failed + 1,
        gone_since_ns=gone_since_ns,
        next_try_ns=now_ns + pause_ns(failures),
        error=error[:_ERROR_CHARS_MAX],
        disabled=disabled,
    )


def pause_ns(failures: int) -> int:
    """How long to wait after so many failures in a row: 1 s, doubled each time, at most 5 min."""
    return min(FIRST_PAUSE_NS << min(max(failures - 1, 0), 20), PAUSE_MAX_NS)


def position(state: SentPosition, seq: int, ordinal: int = 0) -> SentPosition:
    """Move on: all up to `seq` is delivered, and so many events of the record behind it."""
    assert (seq, ordinal) >= (state.seq, state.ordinal), (seq, ordinal, state)
    return replace(state, seq=seq, ordinal=ordinal, error="")
