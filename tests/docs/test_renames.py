"""docs/renames.md and docs/ARCHITECTURE.md name only paths that exist."""

import re

import pytest

from tests.tidy.tree import ROOT, report

FOLDERS = ("bench/", "deploy/", "schemas/", "services/", "shared/", "tests/")
QUOTED = re.compile(r"`([\w./-]+)`")


def new_paths(text: str) -> list[str]:
    """Find the paths of the right column of a table of renames."""
    rows = [
        line.split(" | ", 1)[1]
        for line in text.splitlines()
        if line.startswith("| ") and " | " in line
    ]
    found = [path for row in rows for path in QUOTED.findall(row)]
    return [f"tests/{path}" if path.startswith("unit/") else path for path in found]


@pytest.mark.parametrize("page", ["renames.md", "ARCHITECTURE.md"])
def test_paths_exist(page: str) -> None:
    """Every path in a page is a file or folder of the tree."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    paths = new_paths(text) if page == "renames.md" else QUOTED.findall(text)
    paths = [path for path in paths if path.startswith(FOLDERS)]
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert len(paths) > 20
    assert not missing, report(missing)
