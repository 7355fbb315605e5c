"""Hashes of tables: equal rows, equal hashes, in this release and the next."""

import msgspec
import pytest

from schemas.policy import Policy
from shared.core.state.tables import evaluations, jobs, policy, variables

HASHED = [
    jobs.Job,
    jobs.PlanFence,
    jobs.SubmissionRecord,
    evaluations.Evaluation,
    evaluations.PlanNumber,
    variables.VariableRow,
    variables.PutMark,
    variables.KeyRow,
]


@pytest.mark.parametrize("entity", HASHED)
def test_what_is_hashed_leaves_out_defaults(entity: type[msgspec.Struct]) -> None:
    """A new field with a default must not change the hash of a row that an older release wrote."""
    assert entity.__struct_config__.omit_defaults


def test_a_policys_hash_knows_only_what_was_changed() -> None:
    """The policy is written out whole, and hashed by what differs from the defaults."""
    assert policy._changed(Policy()) == {}
    changed = Policy(algorithm="spread", anti_affinity=False)
    assert policy._changed(changed) == {"algorithm": "spread", "anti_affinity": False}
    assert policy._hash(changed) != policy._hash(Policy())
