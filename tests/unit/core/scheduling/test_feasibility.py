"""Masks: what constraints, datacenters, pools and drivers mean on a fleet's attributes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from shared.core.scheduling.feasibility.constraint_masks import (
    UnknownOperatorError,
    constraint_mask,
    datacenter_mask,
    driver_mask,
    glob_matches,
    pool_mask,
)
from shared.core.state.node_attributes import AttributeColumns, node_attributes
from tests.examples import examples


@pytest.mark.parametrize(
    ("operator", "text", "rows"),
    [
        ("=", "amd64", [0]),
        ("=", "x86_64", [0, 1]),
        ("!=", "x86_64", [2]),
        ("=", "aarch64", [2]),
        ("=", "arm64", [2]),
        ("!=", "amd64", [1, 2]),
    ],
)
def test_the_former_name_of_a_machine_means_the_present_one(
    operator: str, text: str, rows: list[int]
) -> None:
    """A job of the log that says x86_64 finds nodes that say amd64; nodes of the log keep their meaning."""
    columns = AttributeColumns()
    for row, arch in enumerate(("amd64", "x86_64", "arm64")):
        columns.set_row(row, {"attr.cpu.arch": arch})
    mask = constraint_mask(columns, "${attr.cpu.arch}", operator, text)
    assert np.flatnonzero(mask).tolist() == rows


def fleet() -> AttributeColumns:
    """Four nodes; row 2 was cleared."""
    columns = AttributeColumns()
    for row, (dc, pool, attributes) in enumerate(
        (
            ("dc1", "default", {"attr.os": "linux", "meta.want": "linux", "node.class": "a"}),
            ("dc2", "gpu", {"attr.os": "linux", "meta.want": "bsd", "node.class": ""}),
            ("dc1", "default", {"attr.os": "bsd"}),
            ("eu-1", "default", {"attr.driver.exec": "1", "node.class": "b"}),
            ("eu-2", "default", {"attr.driver.exec": "0", "attr.os": "", "node.class": "b"}),
        )
    ):
        columns.set_row(row, {"node.datacenter": dc, "node.pool": pool, **attributes})
    columns.clear_row(2)
    return columns


@pytest.mark.parametrize(
    ("left", "operator", "right", "rows"),
    [
        ("${attr.os}", "=", "linux", [0, 1]),
        ("${attr.os}", "==", "linux", [0, 1]),
        ("linux", "is", "${attr.os}", [0, 1]),
        ("${attr.os}", "!=", "linux", [2, 3, 4]),
        ("${attr.os}", "not", "linux", [2, 3, 4]),
        ("${attr.os}", "=", "", [4]),
        ("${attr.os}", "!=", "", [0, 1]),
        ("${attr.os}", "=", "${meta.want}", [0]),
        ("${attr.os}", "!=", "${meta.want}", [1]),
        ("${attr.nothing}", "=", "", []),
        ("${attr.nothing}", "!=", "x", [0, 1, 2, 3, 4]),
        ("${attr.nothing}", "=", "${attr.nothing}", []),
        ("${attr.nothing}", "!=", "${attr.os}", [0, 1]),
        ("${node.class}", "=", "b", [3, 4]),
        ("${node.class}", "=", "", [1]),
        ("x", "=", "x", [0, 1, 2, 3, 4]),
        ("x", "!=", "x", []),
        ("attr.os", "=", "linux", []),
        ("${env.HOME}", "=", "linux", []),
    ],
)
def test_a_constraint_holds_where_nomad_says(
    left: str, operator: str, right: str, rows: list[int]
) -> None:
    """Both sides may be literal or interpolated; what is absent is "" and only `!=` accepts it."""
    assert np.flatnonzero(constraint_mask(fleet(), left, operator, right)).tolist() == rows


def test_an_unknown_operator_is_named() -> None:
    """An operator without a meaning is an error that names it, never a mask."""
    with pytest.raises(UnknownOperatorError, match="'=~'"):
        constraint_mask(fleet(), "${attr.os}", "=~", "linux")


@pytest.mark.parametrize(
    ("patterns", "rows"),
    [
        (["*"], [0, 1, 3, 4]),
        (["dc1"], [0]),
        (["dc*"], [0, 1]),
        (["*-1", "dc2"], [1, 3]),
        (["eu-?"], []),
        ([], []),
        ([""], []),
    ],
)
def test_datacenters_match_by_glob(patterns: list[str], rows: list[int]) -> None:
    """Any pattern may match; a row that is no node is in no datacenter, not even for `*`."""
    assert np.flatnonzero(datacenter_mask(fleet(), patterns)).tolist() == rows


@pytest.mark.parametrize(
    ("pool", "rows"), [("default", [0, 3, 4]), ("gpu", [1]), ("all", [0, 1, 3, 4]), ("", [])]
)
def test_a_pool_holds_its_nodes(pool: str, rows: list[int]) -> None:
    """A node is in its pool and in `all`; a row that is no node is in none."""
    assert np.flatnonzero(pool_mask(fleet(), pool)).tolist() == rows


def test_a_driver_must_be_reported_and_true() -> None:
    """A driver counts where its attribute reads as true in Go."""
    assert np.flatnonzero(driver_mask(fleet(), "exec")).tolist() == [3]
    assert not driver_mask(fleet(), "docker").any()


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("a*", "a", True),
        ("*a*b*", "xaxbx", True),
        ("*a*b*", "xbxax", False),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("a*b*c", "abbc", True),
        ("a*b*c", "ac", False),
        ("[a]?", "a1", False),
        ("A*", "a", False),
    ],
)
def test_only_the_star_is_special(pattern: str, text: str, *, matches: bool) -> None:
    """`*` is any text; question marks, brackets and case are literal; parts never overlap."""
    assert glob_matches(pattern, text) is matches


def test_a_long_hostile_glob_ends() -> None:
    """Matching is linear in the text for each star, so a pattern of stars cannot stall a scheduler."""
    assert not glob_matches("*a" * 2000 + "b", "a" * 20_000)


def test_every_side_of_a_node_has_a_name() -> None:
    """A node's identity, attributes and meta are reached by Nomad's interpolation names."""
    spec = NodeSpec(
        node_id=NodeId("id-1"),
        name="n1",
        datacenter="dc9",
        node_pool="gpu",
        node_class="big",
        attributes={"kernel.name": "linux"},
        meta={"rack": "r1"},
    )
    columns = AttributeColumns()
    columns.set_row(1, node_attributes(spec))
    for target, value in {
        "${node.unique.id}": "id-1",
        "${node.unique.name}": "n1",
        "${node.datacenter}": "dc9",
        "${node.pool}": "gpu",
        "${node.class}": "big",
        "${attr.kernel.name}": "linux",
        "${meta.rack}": "r1",
    }.items():
        assert constraint_mask(columns, target, "=", value).tolist() == [False, True]


def test_values_nobody_has_any_more_cost_nothing() -> None:
    """Ten thousand nodes with unique names through one row leave one name and one code."""
    columns = AttributeColumns()
    for n in range(10_000):
        columns.set_row(0, {"node.unique.name": f"n{n}"})
    assert list(columns.values("node.unique.name")) == ["", "n9999"]
    columns.clear_row(0)
    assert columns.codes("node.unique.name") is None
    assert columns.rows == 1


NAMES = st.sampled_from(("attr.a", "attr.b", "node.class"))
ROWS = st.tuples(
    st.integers(0, 20), st.none() | st.dictionaries(NAMES, st.sampled_from(("", "x", "y", "z")))
)


@examples(200)
@given(st.lists(ROWS, max_size=40))
def test_columns_hold_what_was_last_set(changes: list[tuple[int, dict[str, str] | None]]) -> None:
    """After any sets and clears each row has exactly its last attributes, and masks agree with them."""
    columns, last = AttributeColumns(), dict[int, dict[str, str]]()
    for row, attributes in changes:
        if attributes is None:
            last.pop(row, None)
            if row < columns.rows:
                columns.clear_row(row)
        else:
            last[row] = attributes
            columns.set_row(row, attributes)
    for name in ("attr.a", "attr.b", "node.class"):
        seen = [columns.value(row, name) for row in range(columns.rows)]
        assert seen == [last.get(row, {}).get(name) for row in range(columns.rows)]
        mask = constraint_mask(columns, f"${{{name}}}", "=", "x")
        assert mask.tolist() == [value == "x" for value in seen]
