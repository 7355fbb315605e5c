"""Spread targets: a count is apportioned exactly where there is room, and scores decide about the rest."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from schemas.jobs import Affinity, GroupSpec, Spread, SpreadTarget, UpdatePolicy
from schemas.policy import Policy, SetPolicy, StopAllocation
from shared.core.scheduling.explain.placement_probe import PlacementProbe
from shared.core.scheduling.model import Snapshot
from shared.core.scheduling.selection.spread_quotas import apportion
from tests.builders import Cluster, group, join, register

ROOMY = 100_000
ATTRIBUTES = {"driver.raw_exec": "1"}


def cluster(
    *zones: str, policy: Policy | None = None, cpu_mhz: int = ROOMY, **racks: str
) -> Cluster:
    """A node in each of these zones; its rack is the zone's, or that of `racks` by node."""
    made = Cluster(policy=policy)
    for number, zone in enumerate(zones):
        meta = {"zone": zone, "rack": racks.get(f"n{number}", zone)} if zone else {}
        given: dict[str, Any] = {"memory_mib": ROOMY, "disk_mib": ROOMY, "attributes": ATTRIBUTES}
        made.do(join(f"n{number}", cpu_mhz=cpu_mhz, meta=meta, number=1, boot="b0", **given))
    return made


def spread(*targets: tuple[str, int], weight: int = 50, by: str = "zone") -> Spread:
    """A spread block with these targets."""
    chosen = tuple(SpreadTarget(value=value, percent=percent) for value, percent in targets)
    return Spread(attribute=f"${{meta.{by}}}", weight=weight, targets=chosen)


def web(count: int, *spreads: Spread, **fields: Any) -> GroupSpec:
    """A group of small allocations."""
    return group(
        "web", count=count, cpu_mhz=100, memory_mib=100, disk_mib=1, spreads=spreads, **fields
    )


def by_meta(made: Cluster, name: str = "zone", job_id: str = "app") -> dict[str, int]:
    """How many run on nodes by the value of this meta key."""
    fleet, table = made.state.fleet, made.state.allocations
    codes, values = fleet.attributes.codes(f"meta.{name}"), fleet.attributes.values(f"meta.{name}")
    assert codes is not None
    found = Counter(values[int(codes[table.node[row]])] for row in made.rows(job_id))
    return dict(sorted(found.items()))


SEVENTY = spread(("a", 70), ("b", 30))
QUARTER = spread(("a", 75), ("b", 25))
CASES = {
    "70/30 of 10 on two nodes": ("ab", web(10, SEVENTY), {"a": 7, "b": 3}),
    "75/25 of 40 on two nodes": ("ab", web(40, QUARTER), {"a": 30, "b": 10}),
    "few nodes where many go": ("abbb", web(10, SEVENTY), {"a": 7, "b": 3}),
    "many nodes where many go": ("aaab", web(40, QUARTER), {"a": 30, "b": 10}),
    "more values than nodes": (
        "ab",
        web(10, spread(("a", 50), ("c", 30), ("b", 20))),
        {"a": 7, "b": 3},
    ),
    "the remainder to the largest": ("ab", web(3, SEVENTY), {"a": 2, "b": 1}),
    "equal remainders by order": ("ab", web(5, spread(("b", 50), ("a", 50))), {"a": 2, "b": 3}),
    "what targets leave is of all others": (
        "abc",
        web(10, spread(("a", 50), ("b", 30))),
        {"a": 5, "b": 3, "c": 2},
    ),
    "a star has its share": (
        "abc",
        web(10, spread(("a", 70), ("*", 30))),
        {"a": 7, "b": 2, "c": 1},
    ),
    "a target of 0 gets none": ("ab", web(10, spread(("a", 100), ("b", 0))), {"a": 10}),
    "a missing attribute gets none": (("a", "b", ""), web(10, SEVENTY), {"a": 7, "b": 3}),
    "without targets": ("ab", web(10, spread()), {"a": 5, "b": 5}),
    "without targets on three nodes": ("aab", web(10, spread()), {"a": 5, "b": 5}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_count_is_apportioned(name: str) -> None:
    """Each target takes its share of the count."""
    zones, wanted, expected = CASES[name]
    made = cluster(*zones)
    made.run(register("app", wanted))
    assert by_meta(made) == expected


@pytest.mark.parametrize("job_type", ["service", "batch"])
def test_the_policy_goes_back_to_scores(job_type: str) -> None:
    """`spread_targets = scored` is Nomad's: few nodes miss the target."""
    made = cluster("a", "b", policy=Policy(spread_targets="scored"))
    made.run(register("app", web(10, SEVENTY), job_type=job_type))
    assert by_meta(made) == {"a": 6, "b": 4}
    made.do(SetPolicy(request_id="r1", policy=Policy()))
    made.run(register("other", web(10, SEVENTY), job_type=job_type, submission_id="s2"))
    assert by_meta(made, job_id="other") == {"a": 7, "b": 3}


def test_an_unknown_word_is_refused() -> None:
    """The policy names the words that it takes."""
    refused = cluster("a").do(SetPolicy(request_id="r1", policy=Policy(spread_targets="even")))
    assert "is not one of exact, scored" in str(refused)


def test_affinities_speak_beside_targets() -> None:
    """A group with affinities is ranked by scores alone."""
    zone_b = (Affinity(left="${meta.zone}", right="b", weight=100),)
    made = cluster("a", "b")
    made.run(register("app", web(10, SEVENTY, affinities=zone_b)))
    assert by_meta(made)["b"] > 3


def test_full_nodes_leave_the_rest_to_scores() -> None:
    """What a target has no room for runs elsewhere: no allocation waits for a share."""
    made = cluster("a", "b", cpu_mhz=500)
    made.run(register("app", web(10, SEVENTY)))
    assert by_meta(made) == {"a": 5, "b": 5}


def test_the_heavier_block_goes_first() -> None:
    """Where two blocks cannot both have their shares, the one with less weight gives way."""
    racks = {"n0": "r1", "n1": "r2"}
    for heavy, light, expected in ((90, 10, {"a": 7, "b": 3}), (10, 90, {"a": 2, "b": 8})):
        zones = spread(("a", 70), ("b", 30), weight=heavy)
        rows = spread(("r1", 20), ("r2", 80), weight=light, by="rack")
        made = cluster("a", "b", **racks)
        made.run(register("app", web(10, zones, rows)))
        assert by_meta(made) == expected


def test_blocks_that_agree_both_have_their_shares() -> None:
    """Two blocks are met together where nodes allow it."""
    racks = {"n0": "r1", "n1": "r2", "n2": "r1", "n3": "r2"}
    made = cluster("a", "a", "b", "b", **racks)
    rows = spread(("r1", 40), ("r2", 60), weight=10, by="rack")
    made.run(register("app", web(10, SEVENTY, rows)))
    assert by_meta(made) == {"a": 7, "b": 3}
    assert by_meta(made, "rack") == {"r1": 4, "r2": 6}


def test_a_count_that_changes_keeps_the_shares() -> None:
    """More are apportioned beside what runs; fewer stop by name, and later ones fill the shares again."""
    made = cluster("a", "b")
    for nth, count in enumerate((10, 20, 4, 20)):
        made.run(register("app", web(count, SEVENTY), submission_id=f"s{nth}"))
        found = by_meta(made)
        assert sum(found.values()) == count
        if count != 4:
            assert found == {"a": count * 7 // 10, "b": count * 3 // 10}


def test_targets_that_change_move_nothing() -> None:
    """What runs stays where it is; what is added goes where shares are open."""
    made = cluster("a", "b")
    made.run(register("app", web(10, spread(("a", 100)))))
    made.run(register("app", web(10, spread(("b", 100))), submission_id="s2"))
    assert by_meta(made) == {"a": 10}
    made.run(register("app", web(20, spread(("b", 50), ("a", 50))), submission_id="s3"))
    assert by_meta(made) == {"a": 10, "b": 10}


def test_a_replacement_takes_the_open_share() -> None:
    """What an operator stops is replaced within its share, though the other zone has emptier nodes."""
    made = cluster("a", "b", "b", "b")
    made.run(register("app", web(10, SEVENTY)))
    table = made.state.allocations
    gone = [row for row in made.rows() if table.node[row] == 0][:2]
    for row in gone:
        made.do(StopAllocation(request_id=f"r{row}", alloc_key=int(table.key[row])))
    made.schedule()
    assert by_meta(made) == {"a": 7, "b": 3}
    assert not set(gone) & set(made.rows())


@pytest.mark.parametrize(("update", "new"), [(None, 10), (UpdatePolicy(max_parallel=4), 4)])
def test_an_update_keeps_the_shares(update: UpdatePolicy | None, new: int) -> None:
    """What replaces older allocations takes the shares that these leave, at whatever pace."""
    made = cluster("a", "b")
    made.run(register("app", web(10, SEVENTY, digest="d1", update=update)))
    old = set(made.rows())
    made.run(register("app", web(10, SEVENTY, digest="d2", update=update), submission_id="s2"))
    assert by_meta(made) == {"a": 7, "b": 3}
    assert len(set(made.rows()) - old) == new


def test_lanes_and_samples_keep_the_shares() -> None:
    """Several workers and sampled nodes change which nodes, not how many of each value."""
    for candidates in ("all", "log2"):
        made = cluster(*"aaaabbbb", policy=Policy(candidates=candidates))
        made.do(register("app", web(10, SEVENTY)))
        proposal = made.propose(lane=1, lanes=2)
        nodes = [
            row
            for one in proposal.placements
            for row, n in zip(one.rows, one.counts, strict=True)
            for _ in range(n)
        ]
        assert sum(row < 4 for row in nodes) == 7
        assert len(nodes) == 10


def test_apportioning_is_by_largest_remainders() -> None:
    """Floors first, then the largest remainders; one that has the additional one already goes before its equals."""
    none = np.zeros(4, np.int64)
    assert apportion(np.array([0, 330, 330, 340]), none).tolist() == [0, 3, 3, 4]
    assert apportion(np.array([0, 250, 250, 0]), none).tolist() == [0, 3, 2, 0]
    assert apportion(np.array([0, 250, 250, 0]), np.array([0, 2, 3, 0])).tolist() == [0, 2, 3, 0]
    assert apportion(np.array([0, 0, 0, 0]), none).tolist() == [0, 0, 0, 0]


def test_why_tells_of_the_shares() -> None:
    """A node that was passed over with a better score is explained by the shares; without targets by the pass."""
    made = cluster("a", "b")
    for targets, words in ((SEVENTY, "shares of the count"), (spread(), "in one pass")):
        job_id = f"app-{len(targets.targets)}"
        made.run(register(job_id, web(10, targets), submission_id=job_id))
        job = made.state.jobs.by_id[job_id]
        snapshot = Snapshot(made.state, made.state.allocations.held, made.masks)
        probe = PlacementProbe(snapshot, job, job.groups[0])
        assert words in probe.passed_over_reason()
