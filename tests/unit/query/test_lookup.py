"""What people type is found: an allocation by each name that is shown, whatever its job and group are called."""

import pytest

from shared.core.state.ids import alloc_id
from shared.errors import CommandInvalid
from shared.query.lookup import find_alloc
from tests.builders import Cluster, group, join, register


def placed(*jobs: tuple[str, tuple[str, ...]], count: int = 1) -> Cluster:
    cluster = Cluster()
    cluster.do(join("n1", cpu_mhz=10_000, memory_mib=10_000))
    for job_id, groups in jobs:
        cluster.do(register(job_id, *(group(name, count=count) for name in groups)))
        cluster.do(cluster.plan(job_id))
    return cluster


def found(cluster: Cluster, text: str) -> str:
    """The name of the allocation that a text means."""
    table = cluster.state.allocations
    row = find_alloc(cluster.state, text)
    job_id = next(one for one in cluster.state.jobs.by_id if row in table.rows_of(one))
    return f"{job_id}|{table.groups.names[int(table.group[row])]}|{int(table.index[row])}"


@pytest.mark.parametrize(
    ("job_id", "name"),
    [
        ("web", "g"),
        ("web", "g.dot"),
        ("a.b", "c"),
        ("a.b", "c.d.e"),
        ("w", ".g"),
        ("w", "g[1]"),
        ("w", "g 1"),
    ],
)
def test_an_allocation_is_found_by_the_name_that_is_shown(job_id: str, name: str) -> None:
    """With its index, and without where there is one; dots and brackets may be in both ids."""
    cluster = placed((job_id, (name,)))
    assert found(cluster, f"{job_id}.{name}[0]") == f"{job_id}|{name}|0"
    assert found(cluster, f"{job_id}.{name}") == f"{job_id}|{name}|0"
    row = find_alloc(cluster.state, f"{job_id}.{name}")
    whole_id = alloc_id(int(cluster.state.allocations.key[row]))
    assert found(cluster, whole_id) == f"{job_id}|{name}|0"
    for text in (f"{job_id}.{name}[1]", f"{job_id}.other", f"{job_id}.", f".{name}"):
        with pytest.raises(CommandInvalid, match="no allocation"):
            find_alloc(cluster.state, text)


def test_one_name_of_two_jobs_is_ambiguous() -> None:
    """Jobs a and a.b may both have what is shown as a.b.c[0]: the ids are shown then."""
    cluster = placed(("a", ("b.c",)), ("a.b", ("c",)))
    with pytest.raises(CommandInvalid, match="is not unique among allocations: ") as caught:
        find_alloc(cluster.state, "a.b.c[0]")
    ids = str(caught.value).partition("allocations: ")[2].split(", ")
    assert {found(cluster, one) for one in ids} == {"a|b.c|0", "a.b|c|0"}


def test_a_group_of_several_names_them() -> None:
    """Without an index the names are shown from which to choose."""
    cluster = placed(("web", ("g.x",)), count=2)
    with pytest.raises(CommandInvalid, match=r"web\.g\.x\[0\], web\.g\.x\[1\]"):
        find_alloc(cluster.state, "web.g.x")
