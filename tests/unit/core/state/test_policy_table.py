"""The policy's hash: what it says of a policy, and what a later release may add."""

from schemas.policy import ClusterCreated, Policy, PolicyChanged
from shared.core.state.tables.policy import PolicyTable


class Grown(Policy, frozen=True, kw_only=True, omit_defaults=False):
    """The policy of a later release."""

    a_new_field: int = 7


def table_of(policy: Policy) -> PolicyTable:
    table = PolicyTable()
    table.evolve(ClusterCreated(cluster_id="c1", policy=policy), 1)
    return table


def test_a_new_field_changes_no_old_hash() -> None:
    """Logs of yesterday replay to the hashes in their checkpoints when the policy has gained a field since."""
    old, new = table_of(Policy(delivery_limit=3)), table_of(Grown(delivery_limit=3))
    assert (old.digest(), old.policy_hash) == (new.digest(), new.policy_hash)


def test_every_choice_changes_the_hash() -> None:
    """Two policies that differ in one field, a new one too, have different hashes."""
    policies = (
        Policy(),
        Policy(anti_affinity=False),
        Policy(delivery_limit=7),
        Grown(a_new_field=8),
    )
    tables = [table_of(policy) for policy in policies]
    assert len({table.digest() for table in tables}) == len(policies)
    assert len({table.policy_hash for table in tables}) == len(policies)
    again = table_of(Policy())
    again.evolve(PolicyChanged(policy=Policy()), 2)
    assert again.digest() != tables[0].digest()
    assert again.policy_hash == tables[0].policy_hash
