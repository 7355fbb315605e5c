"""The pages a newcomer reads: every command in them does what they say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.local.processes import processes_using
from tests.docs import page
from tests.docs.page import ROOT, Reader, first_missing, steps

pytestmark = pytest.mark.bus
DOCS = ROOT / "docs"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path)
    yield one
    assert one.end() == 0
    assert not processes_using(tmp_path)


def part(name: str, heading: str = "") -> str:
    """A page, or what stands under one heading of its second level."""
    text = (DOCS / name).read_text(encoding="utf-8")
    if not heading:
        return text
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found, heading
    return found.group(1)


@pytest.mark.parametrize(
    ("name", "heading", "least"),
    [
        ("quickstart.md", "", 12),
        ("concepts.md", "", 4),
        ("operations.md", "One machine", 6),
        ("updates.md", "", 10),
        ("debugging.md", "", 16),
    ],
)
def test_a_page_does_what_it_says(reader: Reader, name: str, heading: str, least: int) -> None:
    """Its commands, in order, print what it shows."""
    found = list(steps(part(name, heading)))
    assert len(found) >= least
    for step in found:
        reader.do(step)


def test_what_is_not_printed_is_missed() -> None:
    """A shown line must be there, behind the one before, whatever the spaces; … stands for anything."""
    said = "ID   STATUS\nab12  running\nend"
    assert first_missing(("ID STATUS", "… running", "end"), said) == ""
    assert first_missing(("… running", "ID STATUS"), said) == "ID STATUS"
    assert first_missing(("running",), said) == "running"
    assert page.first_missing((), said) == ""
