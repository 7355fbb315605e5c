"""A fuzz of jobs: each is refused with a path, or planned within all its rules in a bounded number of steps."""

from collections import Counter

import msgspec
import numpy as np
import pytest

from bench.harness.in_process_state import InProcessState, count_placed
from schemas.base import JobId
from schemas.jobs import SYSTEM_JOB_TYPES, GroupSpec
from schemas.nodes import Pool
from schemas.policy import Policy, Preemption
from shared.core.constraints.operators import OPERATORS, Operand
from shared.core.scheduling.model import Proposal
from shared.core.scheduling.selection import greedy_coupled
from shared.core.state.tables.allocations import EVICT
from shared.jobspec.submission import JobInvalid
from shared.query.resource_usage import all_pools
from tests.bounds import LONG_S
from tests.property import fuzz
from tests.property.fuzz_resources import asking, offering

pytestmark = pytest.mark.property

EVERYBODY_MAY = Policy(preemption=Preemption(service=True, batch=True, system=True, sysbatch=True))
#: Plans that become state, so that later ones find load; about so many.
COMMITTED = 250


def value(inside: InProcessState, row: int, target: str) -> Operand:
    if not target.startswith("${"):
        return Operand(target)
    found = inside.state.fleet.attributes.value(row, target[2:].removesuffix("}"))
    return Operand("", found=False) if found is None else Operand(found)


def keeps_rules(inside: InProcessState, group: GroupSpec, rows: list[int]) -> bool:
    """Ask every constraint of every node of a plan again, one at a time."""
    for rule in group.constraints:
        operation = OPERATORS[rule.operator]
        for row in set(rows):
            if not operation(value(inside, row, rule.left), value(inside, row, rule.right)):
                return False
    if group.distinct_hosts and len(set(rows)) != len(rows):
        return False
    for rule in group.distinct_properties:
        values = Counter(value(inside, row, rule.attribute) for row in rows)
        if max(values.values(), default=0) > rule.limit or Operand("", found=False) in values:
            return False
    return True


def check(inside: InProcessState, job_id: JobId, proposal: Proposal) -> None:
    job = inside.state.jobs.by_id[job_id]
    fleet = inside.state.fleet
    groups = {group.name: group for group in job.groups}
    table = inside.state.allocations
    used = table.used(fleet.size).copy()
    gone = [row for one in proposal.evictions for row in one.rows]
    assert len(set(gone)) == len(gone)
    np.subtract.at(used, table.node[gone], table.groups.ask[table.group[gone]])
    rows_of: dict[str, list[int]] = {name: [] for name in groups}
    for part in proposal.placements:
        group = groups[part.group]
        ask = np.array((group.cpu_mhz, group.memory_mib, group.disk_mib))
        np.add.at(used, list(part.rows), np.array(part.counts)[:, None] * ask)
        rows_of[part.group] += np.repeat(part.rows, part.counts).tolist()
    assert (used <= fleet.capacity[: fleet.size]).all(), "a node holds more than it has"
    for name, rows in rows_of.items():
        most = (
            max(Counter(rows).values(), default=0)
            if job.job_type in SYSTEM_JOB_TYPES
            else len(rows)
        )
        assert most <= groups[name].count
        group = groups[name]
        if job.job_type in SYSTEM_JOB_TYPES:
            # What runs everywhere has several on a node where its count says so.
            group = msgspec.structs.replace(group, distinct_hosts="")
        assert keeps_rules(inside, group, rows), f"group {name} breaks a rule"
    everything = sum(group.count for group in job.groups)
    if job.job_type in SYSTEM_JOB_TYPES:
        return
    if proposal.end == "complete" and count_placed(proposal) < everything:
        (follow_up,) = proposal.follow_ups
        waits = follow_up.blocked.waiting if follow_up.blocked is not None else {}
        # Either it waits with reasons, or it continues after at least one placement.
        assert all(one.reasons for one in waits.values())
        assert waits or count_placed(proposal)


def nothing_in_excess(inside: InProcessState) -> bool:
    """Tell whether no instance, sum, port or licence is held by more than it is enough for."""
    state = inside.state
    pools = all_pools(state)
    assert sum(one.used > 0 for one in pools) > 3, "nothing was held: this shows nothing"
    table = state.allocations
    held: set[tuple[int, int]] = set()
    for row, holding in table.holdings.items():
        if table.desired[row] == EVICT:
            continue
        for port in (*holding.static_ports, *holding.ports):
            at = (int(table.node[row]), port)
            assert at not in held, f"port {port} is held twice on one node"
            held.add(at)
    return not any(one.excess for one in pools)


@pytest.mark.full("minutes")
@pytest.mark.timeout(8 * LONG_S)
def test_ten_thousand_jobs() -> None:
    """Ten thousand jobs on 5,000 nodes: none crashes or loops, each keeps its rules."""
    assert min(run(10_000, 5_000).values()) > 500


def test_five_hundred_jobs() -> None:
    """Five hundred jobs on 600 nodes: none crashes or loops, each keeps its rules."""
    # All three ends are reached, or it would show nothing.
    assert min(run(500, 600).values()) > 25


def test_three_hundred_jobs_that_evict() -> None:
    """Three hundred jobs of all priorities on 40 full nodes: who makes room is gone, and nothing is held twice."""
    inside = InProcessState((offering(fuzz.node(at), at) for at in range(40)), EVERYBODY_MAY)
    outcomes = run(300, 40, inside)
    assert outcomes["evicts"] > 15


def run(jobs: int, nodes: int, inside: InProcessState | None = None) -> Counter[str]:
    """Read, plan and check so many jobs; count how they ended."""
    evicting = inside is not None
    inside = inside or InProcessState([offering(fuzz.node(at), at) for at in range(nodes)])
    inside.declare(Pool(name="seat", amount=400_000))
    outcomes: Counter[str] = Counter(refused=0, placed=0, waits=0)
    if evicting:
        outcomes["evicts"] = 0
    steps = 0
    offer = greedy_coupled._offer

    def counted(*given: object) -> int:
        nonlocal steps
        steps += 1
        return offer(*given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_coupled, "_offer", counted)
        for number in range(jobs):
            try:
                job = asking(fuzz.job(number), number)
                if evicting:
                    job["Priority"] = 20 + number * 37 % 70
                job_id = inside.register(job)
            except JobInvalid as err:
                named = all(one.path.startswith("Job") and one.message for one in err.errors)
                if not named:
                    pytest.fail(f"job {number} is refused without a path: {err.errors}")
                outcomes["refused"] += 1
                continue
            steps = 0
            proposal = inside.propose(job_id, seed=number)
            # Beside the offers that are counted, each group makes those to begin with, and one more round.
            groups = len(inside.state.jobs.by_id[job_id].groups)
            assert steps <= greedy_coupled.STEPS_MAX + 2 * groups * nodes, (
                f"job {number}: {steps} steps"
            )
            check(inside, job_id, proposal)
            outcomes["placed" if count_placed(proposal) else "waits"] += 1
            if evicting:
                outcomes["evicts"] += bool(proposal.evictions)
            if not number % max(jobs // COMMITTED, 1) and proposal.end == "complete":
                inside.commit(job_id, proposal)
    assert nothing_in_excess(inside)
    return outcomes
