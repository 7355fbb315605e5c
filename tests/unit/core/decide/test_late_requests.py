"""A copy of an operator's command that comes late undoes nothing: what it is about changed since its sender looked."""

import msgspec
import pytest

from schemas.envelope import AnyCommand
from schemas.nodes import Pool
from schemas.policy import DeclarePool, DrainNode, Policy, SetEligibility, SetNodeMeta, SetPolicy
from tests.builders import Cluster, group, join, register


def licence(amount: int, node_id: str = "") -> DeclarePool:
    return DeclarePool(request_id="r", node_id=node_id, pool=Pool(name="licence", amount=amount))


#: A command and the newer one that takes it back.
PAIRS: tuple[tuple[AnyCommand, AnyCommand], ...] = (
    (
        DrainNode(request_id="r1", node_id="n1", draining=True),
        DrainNode(request_id="r2", node_id="n1", draining=False),
    ),
    (
        SetEligibility(request_id="r1", node_id="n1", eligible=False),
        SetEligibility(request_id="r2", node_id="n1", eligible=True),
    ),
    (
        SetNodeMeta(request_id="r1", node_id="n1", change={"rack": "r1"}),
        SetNodeMeta(request_id="r2", node_id="n1", change={"rack": None}),
    ),
    (
        SetPolicy(request_id="r1", policy=Policy(algorithm="spread")),
        SetPolicy(request_id="r2", policy=Policy()),
    ),
    (licence(50_000), licence(0)),
    (licence(50_000, "n1"), licence(0, "n1")),
)
NAMES = ["drain", "eligibility", "meta", "policy", "cluster pool", "node pool"]


def small() -> Cluster:
    cluster = Cluster()
    cluster.do(join("n1"))
    cluster.run(register("app", group(count=2)))
    return cluster


def made_at(command: AnyCommand, seq: int) -> AnyCommand:
    """The command as a sender that has seen the log up to `seq` makes it."""
    return msgspec.structs.replace(command, seen_seq=seq)


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=NAMES)
def test_a_late_copy_does_not_undo_a_newer_request(old: AnyCommand, new: AnyCommand) -> None:
    """Asked, taken back, and asked again by a copy: the tables are those of the newer request."""
    cluster = small()
    copy = made_at(old, cluster.state.seq)
    assert cluster.do(copy)
    assert cluster.do(made_at(new, cluster.state.seq))
    before = cluster.state.hashes()
    assert cluster.do(copy) == []
    assert cluster.state.hashes() == before


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=NAMES)
def test_a_request_made_after_a_change_is_decided(old: AnyCommand, new: AnyCommand) -> None:
    """The same words from a sender that has seen the newer request, or does not say what it has seen, take effect."""
    cluster = small()
    for seen in (cluster.state.seq, 0):
        cluster.do(made_at(new, cluster.state.seq))
        assert cluster.do(made_at(old, seen and cluster.state.seq))


def test_a_change_of_another_node_makes_nothing_late() -> None:
    """Only the node that a command is about counts."""
    cluster = small()
    cluster.do(join("n2"))
    seen = cluster.state.seq
    cluster.do(DrainNode(request_id="r1", node_id="n2", draining=True, seen_seq=seen))
    assert cluster.do(DrainNode(request_id="r2", node_id="n1", draining=True, seen_seq=seen))
