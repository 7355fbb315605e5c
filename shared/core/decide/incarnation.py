"""When the log begins a new incarnation: it may have been restored from an older copy (ADR 27).

Decides whether one is due and its number. Ids made from then on are of no history that was lost: the number is a time,
and above all that a node has seen.
"""

from schemas.policy import BeginIncarnation, IncarnationBegan
from shared.core.state.state import State

#: Above these a word of a node is nonsense: keys are 63 bits, 20 of them the ordinal.
SEQ_MAX = 1 << 40
INCARNATION_MAX = 1 << 42
_MILLISECOND_NS = 1_000_000
#: Of a node's id in a sentence.
_ID_CHARS_MAX = 80


def is_credible(incarnation: int, seq: int) -> bool:
    """Whether a node can have seen this; anything beyond is nonsense, and no log of ours."""
    return 0 <= seq <= SEQ_MAX and 0 <= incarnation <= INCARNATION_MAX


def decide_bus(state: State, bus: str, now_ns: int) -> IncarnationBegan | None:
    """Compare the start of the bus with the one that the log names: another one may serve an older copy."""
    if not bus or bus == state.policy.bus:
        return None
    reason = "the bus was started again: its log may be an older copy"
    number = max(now_ns // _MILLISECOND_NS, state.policy.incarnations.newest + 1)
    return IncarnationBegan(incarnation=number, bus=bus, reason=reason)


def decide_seen(
    state: State, seen: BeginIncarnation, *, last_seq: int, now_ns: int
) -> IncarnationBegan | None:
    """Compare what a node has seen with the log, which ends at `last_seq`."""
    newest = state.policy.incarnations.newest
    if not is_credible(seen.incarnation, seen.seq):
        return None
    if (seen.incarnation, seen.seq) <= (newest, last_seq):
        return None
    node_id = seen.node_id[:_ID_CHARS_MAX]
    reason = (
        f"node {node_id} has seen seq {seen.seq}, the log ends at {last_seq}: "
        "it was restored from an older copy"
    )
    if seen.incarnation > newest:
        reason = (
            f"node {node_id} has seen a later incarnation: the log was restored from an older copy"
        )
    # What is made next has the number `number + seq`: above all that this node can have been told.
    above = seen.incarnation + seen.seq - last_seq
    number = max(now_ns // _MILLISECOND_NS, newest + 1, above)
    return IncarnationBegan(incarnation=number, reason=reason, lost_seq=seen.seq)
