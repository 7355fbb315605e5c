"""Why-not of jobs that wait for nothing, too, and with a named node: one account, whatever node is asked about."""

from collections import Counter
from random import Random

import pytest

from schemas.jobs import SYSTEM_JOB_TYPES
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Snapshot
from shared.core.scheduling.place import decide_group
from shared.query.explain import explain_candidate
from shared.query.historical_state import HistoricalState
from tests.not_tested import is_full
from tests.property.reason_counts import check_reason_counts
from tests.property.test_why import storm

SEEDS = range(1, 9 if is_full() else 3)
MOMENTS, JOBS, NODES = 25, 6, 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_named_node_changes_the_sentence_alone(seed: int) -> None:
    """Class, reasons, tables and victims are those of all nodes; what a system job does not request evicts nothing."""
    past, rng, seen = HistoricalState(), Random(seed), Counter[str]()
    records = storm(seed)[1]
    moments = set(rng.sample(range(len(records) // 4, len(records) + 1), MOMENTS))
    for record in records:
        past.apply(record)
        if record.seq not in moments:
            continue
        state = past.state
        jobs = [state.jobs.by_id[one] for one in sorted(state.jobs.by_id)]
        jobs = [one for one in jobs if one.groups and not one.is_pattern]
        rows = sorted(state.fleet.row_of.values())
        for job in rng.sample(jobs, min(JOBS, len(jobs))):
            for group in job.groups:
                answer = explain_candidate(state, PlacementCache(), job, group.name)
                check_reason_counts(answer, job.job_type)
                snapshot = Snapshot(state, state.allocations.held, PlacementCache())
                proposal, turn = decide_group(snapshot, job, group.name)
                if job.job_type in SYSTEM_JOB_TYPES and turn is None:
                    assert not answer.victims, answer
                    seen["system"] += 1
                seen["evicts"] += bool(proposal.evictions)
                for row in rng.sample(rows, min(NODES, len(rows))):
                    named = explain_candidate(state, PlacementCache(), job, group.name, row=row)
                    assert (named.wait_class, named.reasons) == (answer.wait_class, answer.reasons)
                    assert (named.filters, named.exhausted) == (answer.filters, answer.exhausted)
                    assert (named.lacking, named.victims) == (answer.lacking, answer.victims)
                    seen["named"] += 1
    assert seen["system"] and seen["named"] > 100, seen
