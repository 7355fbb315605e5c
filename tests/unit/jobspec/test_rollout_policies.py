"""What `update` and `migrate` blocks compile to, by job type and level."""

from typing import Any

import pytest

from schemas.jobs import GroupSpec, MigratePolicy, UpdatePolicy
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import to_command

SECOND = 1_000_000_000


def compiled(kind: str, job: str, group: str) -> GroupSpec:
    """Compile a job of one group with these blocks."""
    text = (
        f'job "a" {{\n type = "{kind}"\n {job}\n group "g" {{\n {group}\n task "t" {{\n'
        ' driver = "any"\n }\n }\n}\n'
    )
    found = load_file(text.encode(), "a.nomad.hcl")
    assert found.errors == ()
    assert found.submission is not None
    command: Any = to_command(found.submission, "s")
    one: GroupSpec = command.groups[0]
    return one


@pytest.mark.parametrize(
    ("kind", "update", "migrate"),
    [
        ("service", UpdatePolicy(), MigratePolicy()),
        ("system", UpdatePolicy(), None),
        ("batch", None, None),
        ("sysbatch", None, None),
    ],
)
def test_a_group_without_blocks_has_the_defaults_of_its_type(
    kind: str, update: UpdatePolicy | None, migrate: MigratePolicy | None
) -> None:
    """Service and system jobs are rolled out, service jobs migrate at a pace, batch jobs do neither."""
    found = compiled(kind, "", "")
    assert (found.update, found.migrate) == (update, migrate)


@pytest.mark.parametrize(
    ("job", "group", "wanted"),
    [
        ("update { max_parallel = 3 }", "", UpdatePolicy(max_parallel=3)),
        ("", "update { canary = 2 }", UpdatePolicy(canary=2)),
        (
            "update {\n max_parallel = 3\n auto_revert = true\n}",
            'update {\n canary = 1\n auto_revert = false\n health_check = "manual"\n}',
            UpdatePolicy(max_parallel=3, canary=1, health_check="manual"),
        ),
        ("update { max_parallel = 3 }", "update {}", UpdatePolicy(max_parallel=3)),
        ("", "update { max_parallel = 0 }", UpdatePolicy(max_parallel=0)),
        (
            'update {\n min_healthy_time = "0s"\n progress_deadline = "0s"\n}',
            'update {\n healthy_deadline = "1m"\n canary = 1\n auto_promote = true\n}',
            UpdatePolicy(
                min_healthy_time_ns=0,
                healthy_deadline_ns=60 * SECOND,
                progress_deadline_ns=0,
                canary=1,
                auto_promote=True,
            ),
        ),
    ],
)
def test_the_block_of_a_group_overrides_the_jobs_field_by_field(
    job: str, group: str, wanted: UpdatePolicy
) -> None:
    """A field that the group does not set is the job's, else the default; a zero that it sets is its own."""
    assert compiled("service", job, group).update == wanted


def test_migrate_blocks_merge_like_update_blocks() -> None:
    """The group's fields override the job's."""
    found = compiled(
        "service",
        'migrate {\n max_parallel = 4\n min_healthy_time = "2s"\n}',
        'migrate { health_check = "task_states" }',
    )
    assert found.migrate == MigratePolicy(
        max_parallel=4, health_check="task_states", min_healthy_time_ns=2 * SECOND
    )


def test_a_change_of_pace_replaces_nothing() -> None:
    """Both blocks are outside the digest: allocations are updated in place."""
    plain = compiled("service", "", "")
    paced = compiled("service", "update { canary = 1 }", "migrate { max_parallel = 2 }")
    assert plain.digest == paced.digest
