"""Claims on volumes, in lines: who has which volume, where, and what runs there."""

from schemas.volume_answers import ClaimLine
from shared.core.decide.plans.claims import index_row
from shared.core.state.ids import alloc_id
from shared.core.state.state import State


def claim_lines(state: State, job_id: str = "") -> list[ClaimLine]:
    """List the claims, of one job where it is named; sorted by job, group, index and volume."""
    found: list[ClaimLine] = []
    for key, rows in sorted(state.claims.by_index.items(), key=lambda one: one[0]):
        if job_id and key[0] != job_id:
            continue
        row = index_row(state, key)
        shown = "" if row is None else alloc_id(int(state.allocations.key[row]))
        found += [
            ClaimLine(
                job_id=key[0],
                group=key[1],
                index=key[2],
                volume=volume,
                node_id=claim.node_id,
                is_exclusive=claim.is_exclusive,
                create_seq=claim.create_seq,
                alloc_id=shown,
            )
            for volume, claim in sorted(rows.items())
        ]
    return found
