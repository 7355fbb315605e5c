"""Incarnations: when one begins, that ids of two never meet, and that all who keep them agree."""

import numpy as np
import pytest

from schemas.policy import BeginIncarnation, ClusterCreated, IncarnationBegan
from shared.core.decide.incarnation import INCARNATION_MAX, SEQ_MAX, decide_bus, decide_seen
from shared.core.state.ids import Incarnations, make_key
from shared.core.state.snapshots.codecs import ByteReader
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.state import State
from shared.core.state.tables.policy import PolicyTable

NOW_NS = 1_700_000_000_000_000_000
NOW_MS = NOW_NS // 1_000_000


def state_of(*begun: IncarnationBegan, bus: str = "b1") -> State:
    """A cluster whose log began incarnations at seq 10, 20 and so on."""
    state = State()
    state.begin(1, 0)
    state.evolve(ClusterCreated(cluster_id="c", bus=bus), 1)
    for nth, event in enumerate(begun, 1):
        state.begin(10 * nth, 0)
        state.evolve(event, 10 * nth)
    return state


def seen(incarnation: int, seq: int) -> BeginIncarnation:
    """What a node has seen."""
    return BeginIncarnation(node_id="n1", incarnation=incarnation, seq=seq)


def test_another_start_of_the_bus_begins_one() -> None:
    """The same start, and an unknown one, begin none; another one does, with the time as its number."""
    state = state_of()
    assert decide_bus(state, "b1", NOW_NS) is None
    assert decide_bus(state, "", NOW_NS) is None
    begun = decide_bus(state, "b2", NOW_NS)
    assert begun is not None
    assert (begun.incarnation, begun.bus) == (NOW_MS, "b2")


def test_a_number_always_rises() -> None:
    """A clock that was set back gives no number twice."""
    state = state_of(IncarnationBegan(incarnation=NOW_MS + 5, bus="b2"))
    begun = decide_bus(state, "b3", NOW_NS)
    assert begun is not None and begun.incarnation == NOW_MS + 6


def test_a_node_that_has_seen_more_begins_one_above_all_it_was_told() -> None:
    """Its seq above the head, or a later incarnation; ids are then above the highest it can have been told."""
    state = state_of()
    assert decide_seen(state, seen(0, 7), last_seq=7, now_ns=NOW_NS) is None
    begun = decide_seen(state, seen(0, 8), last_seq=7, now_ns=NOW_NS)
    assert begun is not None
    assert "has seen seq 8, the log ends at 7" in begun.reason and begun.lost_seq == 8
    later = decide_seen(state, seen(NOW_MS + 100, 50), last_seq=7, now_ns=NOW_NS)
    assert later is not None
    # What is made next stands at seq 8 at the earliest.
    assert later.incarnation + 8 > NOW_MS + 100 + 50


def test_an_earlier_incarnation_begins_none() -> None:
    """Who has seen much of a history that was left behind says nothing new."""
    state = state_of(IncarnationBegan(incarnation=NOW_MS))
    assert decide_seen(state, seen(0, 10**6), last_seq=10, now_ns=NOW_NS) is None


@pytest.mark.parametrize(
    ("incarnation", "seq"), [(0, SEQ_MAX + 1), (INCARNATION_MAX + 1, 1), (-1, 5), (0, -5)]
)
def test_nonsense_begins_none(incarnation: int, seq: int) -> None:
    """Numbers that would not fit into an id are no word at all."""
    assert decide_seen(state_of(), seen(incarnation, seq), last_seq=0, now_ns=NOW_NS) is None


@pytest.mark.parametrize(
    ("incarnation", "seq", "first"),
    [
        (0, 9, 0),  # before the first one began
        (0, 10, 10),
        (1_000, 19, 0),
        (1_000, 25, 20),
        (2_000, 5, 20),  # of no incarnation of this log
        (5_000, 90, 0),  # the newest: the heartbeat monitor compares with the end of the log
        (7_000, 90, 0),
    ],
)
def test_a_history_that_was_left_is_told_from_this_one(
    incarnation: int, seq: int, first: int
) -> None:
    """By the incarnations of this log: the first seq that is another record, 0 where there is none."""
    assert Incarnations([(10, 1_000), (20, 5_000)]).first_lost(incarnation, seq) == first


def test_keys_and_seqs_are_each_others_inverse() -> None:
    """In every incarnation, one by one and many at once; before the first one keys are what they always were."""
    both = Incarnations([(10, 1_000), (20, 5_000)])
    seqs = [1, 9, 10, 15, 19, 20, 500]
    keys = [both.key(seq, 3) for seq in seqs]
    assert keys[0] == make_key(1, 3)
    assert len(set(keys)) == len(keys) and keys == sorted(keys)
    assert [both.seq(key) for key in keys] == seqs
    assert both.seqs(np.array(keys, dtype=np.int64)).tolist() == seqs
    assert Incarnations().seqs(np.array([make_key(7, 1)])).tolist() == [7]


def test_two_histories_of_one_copy_share_no_key() -> None:
    """A log is restored twice to the same seq: what each history makes there has another key."""
    keys = set()
    for number in (0, 1, 2):
        state = state_of()
        if number:
            begun = decide_bus(state, f"b{number + 1}", NOW_NS + number * 10**9)
            assert begun is not None
            state.evolve(begun, 2)
        keys |= {state.policy.incarnations.key(seq, 0) for seq in range(3, 103)}
        assert state.allocations.incarnation == state.policy.incarnations.newest
    assert len(keys) == 300


def test_a_snapshot_keeps_them_in_the_format_of_before() -> None:
    """Written and read again, with and without; a table without them is written as release 0.1.0 wrote it."""
    codec = TABLE_CODECS["policy"]
    for state in (state_of(bus=""), state_of(IncarnationBegan(incarnation=7, bus="b2"))):
        table = state.policy
        found = codec.read(ByteReader(b"".join(codec.pieces(table))))
        assert isinstance(found, PolicyTable)
        assert found.digest() == table.digest()
        again = State()
        again.put("policy", found)
        assert again.allocations.incarnation == table.incarnations.newest
        assert again.evaluations.incarnation == table.incarnations.newest
