"""Filter expressions of lists against a table, and bounds."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.nomad.filter_expression import CHARS_MAX, DEPTH_MAX, compile_filter

JOB: dict[str, Any] = {
    "ID": "web",
    "Priority": 50,
    "Stop": False,
    "Periodic": None,
    "Datacenters": ["dc1", "dc2"],
    "Meta": {"team": "blue", "a.b": "dotted"},
    "TaskGroups": [{"Name": "g", "Count": 2, "Meta": {}}, {"Name": "h", "Count": 0, "Meta": {}}],
}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ID == web", True),
        ('ID == "web"', True),
        ("ID == `web`", True),
        ("ID != web", False),
        ("Priority == 50", True),
        ("Priority != 50", False),
        ("Stop == false", True),
        ("Stop == true", False),
        ("Periodic is nil", True),
        ("Periodic is not nil", False),
        ("Datacenters is empty", False),
        ("Datacenters is not empty", True),
        ("dc1 in Datacenters", True),
        ('"dc3" in Datacenters', False),
        ("dc3 not in Datacenters", True),
        ("Datacenters contains dc2", True),
        ("Datacenters not contains dc2", False),
        ("team in Meta", True),
        ("Meta.team == blue", True),
        ("Meta.owner == blue", False),
        ('Meta["a.b"] == dotted', True),
        ('"/Meta/a.b" == dotted', True),
        ("ID matches `^w.b$`", True),
        ("ID not matches `^x`", True),
        ("TaskGroups.0.Name == g", True),
        ("TaskGroups.1.Count == 0", True),
        ("any TaskGroups as one { one.Count == 0 }", True),
        ("all TaskGroups as one { one.Count == 0 }", False),
        ("any TaskGroups as i, one { i == 1 and one.Name == h }", True),
        ("any TaskGroups as _, one { one.Name == h }", True),
        ("any Meta as key { key == team }", True),
        ("any Meta as key, value { key == team and value == blue }", True),
        ("not ID == web or Priority == 50", True),
        ("not (ID == web or Priority == 50)", False),
        ("ID == web and Priority == 1 or Stop == false", True),
        ("ID == web and (Priority == 1 or Stop == true)", False),
    ],
)
def test_an_expression_decides(text: str, wanted: object) -> None:
    """Each operator, selector and connective, against one job."""
    assert compile_filter(text)(JOB) is wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "and", "ID", "ID ==", "ID = web", "(ID == web", "ID == web)", "ID is", "ID is not"),
        *("not", "any TaskGroups as { ID == 1 }", "any TaskGroups as one ID == 1", '"ID" == web'),
        *("ID matches `(`", "1ID == web", "ID == web Stop == true", 'Meta["a" == b'),
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    """A fault of syntax is a ValueError with a text, nothing else."""
    with pytest.raises(ValueError, match=r"."):
        compile_filter(text)


@pytest.mark.parametrize("text", ["Foo == 1", "Meta.team.deeper == 1", "TaskGroups.7.Name == g"])
def test_an_unknown_field_is_told(text: str) -> None:
    """A field that there is not is an error of the page, not a quiet no."""
    with pytest.raises(LookupError, match=r"."):
        compile_filter(text)(JOB)


def test_length_and_depth_are_bounded() -> None:
    """A hostile expression costs nothing: too long or too deep is refused before it is run."""
    with pytest.raises(ValueError, match="exceeds"):
        compile_filter("ID == " + "x" * CHARS_MAX)
    with pytest.raises(ValueError, match="nested"):
        compile_filter("(" * (DEPTH_MAX + 2) + "ID == web" + ")" * (DEPTH_MAX + 2))
    with pytest.raises(ValueError, match="nested"):
        compile_filter("not " * (DEPTH_MAX + 2) + "ID == web")


@given(st.text(alphabet="ID =!\"'()`{}[].,_notandrisempyl019\\/\n", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text raises anything but the two documented errors."""
    try:
        accepts = compile_filter(text)
    except ValueError:
        return
    with contextlib.suppress(LookupError):
        assert accepts(JOB) in (True, False)
