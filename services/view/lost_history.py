"""The alarm after a restore of an older log: records after its end, which nodes had seen, are lost.

Decides how long it is shown. It is derived from the log: a view that starts from a later snapshot does not show it.
"""

from schemas.nodes import NodeRegistered
from schemas.policy import IncarnationBegan

#: How long the alarm is shown, in log time.
STANDS_NS = 24 * 3_600 * 1_000_000_000


class LostHistory:
    """The newest loss that a node reported."""

    def __init__(self) -> None:
        self._text = ""
        self._began_ns = 0
        #: first and last record of it.
        self._lost = (0, 0)

    def learn(self, event: IncarnationBegan | NodeRegistered, seq: int, t_ns: int) -> None:
        """Apply the start of an incarnation, or a node's registration. Most lost nothing."""
        reason, first = _reason(event, seq)
        is_less = self._lost[0] == first and event.lost_seq <= self._lost[1]
        if not event.lost_seq or (is_less and self.alarm(t_ns)):
            return
        self._began_ns, self._lost = t_ns, (first, event.lost_seq)
        what = (
            f"records {first} to {event.lost_seq}"
            if event.lost_seq >= first
            else "records of the log"
        )
        rest = f"what they recorded is lost; the log continues at {first} with new ids"
        self._text = f"{reason}: {what} of the former history were known to nodes; {rest}"

    def alarm(self, now_ns: int) -> str:
        """Say it while it is news; empty: it is not."""
        return self._text if self._text and now_ns - self._began_ns < STANDS_NS else ""


def _reason(event: IncarnationBegan | NodeRegistered, seq: int) -> tuple[str, int]:
    """Return the reason, and the first record that is lost."""
    if isinstance(event, IncarnationBegan):
        return event.reason, seq
    first = event.lost_first_seq
    reason = (
        f"node {event.spec.node_id} has seen seq {event.lost_seq} of a history that this log left at {first}: "
        "it was restored from an older copy"
    )
    return reason, first
